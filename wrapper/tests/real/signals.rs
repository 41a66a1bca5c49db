//! Signals forwarded to the adapter's group, and SIGTERM.

use crate::rig::{Rig, await_state, script, script_with_grace, status_field};
use acp_shared::launch::ExitStatus;
use nix::libc;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Signals that the wrapper forwards: all that can be caught, except SIGCHLD and SIGTERM.
fn forwarded() -> impl Iterator<Item = Signal> {
    let others = [Signal::KILL, Signal::STOP, Signal::CHILD, Signal::TERM];
    (1..=31).filter_map(Signal::from_named_raw).filter(move |signal| !others.contains(signal))
}

#[test]
fn forwarded_signals_reach_adapter_once() {
    // dash runs a trap after the foreground command ends; `wait` returns at once.
    assert_eq!(forwarded().count(), 27);
    let mut traps = String::new();
    for signal in forwarded() {
        let number = signal.as_raw();
        traps.push_str(&format!("trap 'echo got {number}.' {number}\n"));
    }
    let mut rig = Rig::running(&script(&format!(
        "{traps}\nread never < /dev/null\nsleep 300 & echo ready\nwhile :; do wait; done"
    )));
    rig.read_until("ready\n");
    for signal in forwarded() {
        if signal == Signal::CONT {
            continue; // Sent last: it resumes stopped processes.
        }
        rig.signal(signal);
        let number = signal.as_raw();
        let seen = rig.read_until(&format!("got {number}.\n"));
        assert_eq!(seen.matches(&format!("got {number}.")).count(), 1, "{seen}");
    }
    rig.signal(Signal::CONT);
    rig.read_until("got 18.\n");
}

#[test]
fn forwarded_signals_reach_process_group() {
    let mut rig = Rig::running(&script(
        "trap 'echo parent.' USR1; \
         sh -c 'trap \"echo child.; exit\" USR1; echo up.; while :; do sleep 0.05; done' & \
         wait; wait; exit 3",
    ));
    rig.read_until("up.");
    rig.signal(Signal::USR1);
    let seen = rig.read_all();
    assert!(seen.contains("child.") && seen.contains("parent."), "{seen}");
    assert_eq!(rig.exit_code(), 3);
}

#[test]
fn adapter_may_handle_sigterm() {
    let mut rig = Rig::running(&script("trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done"));
    rig.read_until("up");
    rig.signal(Signal::TERM);
    rig.assert_adapter_ends(ExitStatus::Exited(9));
    assert_eq!(rig.exit_code(), 9);
}

#[test]
fn adapter_ignoring_sigterm_is_killed_after_grace() {
    let mut rig =
        Rig::running(&script_with_grace(400, "trap '' TERM; echo up; while :; do sleep 0.05; done"));
    rig.read_until("up");
    let before = Instant::now();
    rig.signal(Signal::TERM);
    // A second SIGTERM does not restart the grace.
    rig.signal(Signal::TERM);
    rig.assert_adapter_ends(ExitStatus::Signaled(libc::SIGKILL));
    assert!(before.elapsed() >= Duration::from_millis(400), "killed within its grace");
    assert_eq!(rig.exit_code(), 137);
    rig.await_no_process();
}

#[test]
fn stopped_adapter_is_continued_on_sigterm() {
    let text = "trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done";
    // SIGSTOP is not forwarded, so the adapter gets the stop signal directly.
    for stop in [Signal::STOP, Signal::TSTP, Signal::TTIN, Signal::TTOU] {
        let mut rig = Rig::start(&script(text));
        let (wrapper, adapter) = rig.send_go();
        rig.read_until("up");
        let is_adapter = || status_field(adapter, "PPid") == Some(wrapper.to_string());
        crate::rig::signal_verified(adapter, stop, is_adapter);
        await_state(adapter, 'T');
        rig.signal(Signal::TERM);
        assert_eq!(rig.exit_code(), 5, "{stop:?}");
    }
}

/// No signal or timer wakes the wrapper while the adapter runs.
#[test]
fn idle_wrapper_does_not_wake() {
    let mut rig = Rig::running(&script("echo up; exec sleep 60"));
    rig.read_until("up");
    let switches = |rig: &Rig| -> u64 {
        let of = |name| status_field(rig.wrapper_pid(), name).unwrap().parse::<u64>().unwrap();
        of("voluntary_ctxt_switches") + of("nonvoluntary_ctxt_switches")
    };
    let mut before = switches(&rig);
    crate::rig::eventually("the wrapper is idle", || {
        std::thread::sleep(Duration::from_millis(50));
        let now = switches(&rig);
        std::mem::replace(&mut before, now) == now
    });
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(switches(&rig), before);
}
