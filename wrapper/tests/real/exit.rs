//! Exit status of the wrapper.

use crate::rig::{Rig, program, script};
use acp_shared::launch::{ExitStatus, Launch};

fn assert_exit(launch: &Launch, status: ExitStatus, code: i32) {
    let mut rig = Rig::running(launch);
    rig.assert_adapter_ends(status);
    assert_eq!(rig.exit_code(), code, "{launch:?}");
}

#[test]
fn exit_code_is_passed_on() {
    for code in 0..=255 {
        assert_exit(&script(&format!("exit {code}")), ExitStatus::Exited(code), code);
    }
}

#[test]
fn adapter_exiting_at_once_is_reported() {
    assert_exit(&program(&["/bin/true"]), ExitStatus::Exited(0), 0);
}

#[test]
fn fatal_signal_becomes_exit_code_128_plus_signal() {
    for signal in [1, 2, 3, 6, 9, 10, 11, 13, 14, 15, 31, 34, 64] {
        assert_exit(
            &script(&format!("kill -{signal} $$; sleep 60")),
            ExitStatus::Signaled(signal),
            128 + signal,
        );
    }
}

#[test]
fn output_is_readable_after_exit() {
    let mut rig = Rig::running(&script("read line; echo \"got $line\"; echo err >&2"));
    std::io::Write::write_all(rig.stdin.as_mut().unwrap(), b"hello\n").unwrap();
    assert_eq!(rig.read_all(), "got hello\nerr\n");
    assert_eq!(rig.exit_code(), 0);
}
