//! The wrapper ends as its adapter did, and says so.

use crate::rig::{Rig, program, script};
use acp_shared::launch::{ExitStatus, Launch};

fn ends(launch: &Launch, status: ExitStatus, code: i32) {
    let mut rig = Rig::running(launch);
    rig.adapter_ends(status);
    assert_eq!(rig.exit_code(), code, "{launch:?}");
}

#[test]
fn exit_codes_are_passed_on() {
    for code in 0..=255 {
        ends(&script(&format!("exit {code}")), ExitStatus::Exited(code), code);
    }
}

#[test]
fn an_adapter_that_ends_at_once() {
    ends(&program(&["/bin/true"]), ExitStatus::Exited(0), 0);
}

#[test]
fn death_by_a_signal_is_128_plus_its_number() {
    for signal in [1, 2, 3, 6, 9, 10, 11, 13, 14, 15, 31, 34, 64] {
        ends(&script(&format!("kill -{signal} $$; sleep 60")), ExitStatus::Signaled(signal), 128 + signal);
    }
}

/// What the adapter wrote before its end can be read after it.
#[test]
fn the_pipes_are_the_adapters_alone() {
    let mut rig = Rig::running(&script("read line; echo \"got $line\"; echo err >&2"));
    std::io::Write::write_all(rig.stdin.as_mut().unwrap(), b"hello\n").unwrap();
    assert_eq!(rig.read_all(), "got hello\nerr\n");
    assert_eq!(rig.exit_code(), 0);
}
