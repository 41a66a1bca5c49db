//! Signals: passed on to the adapter's group, and what SIGTERM starts.

use crate::rig::{Rig, await_state, script, script_with_grace, status_field};
use acp_shared::launch::ExitStatus;
use nix::libc;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Every signal that can be caught, but for SIGCHLD (the wrapper's own) and SIGTERM (which ends the tree).
fn forwarded() -> impl Iterator<Item = Signal> {
    let others = [Signal::KILL, Signal::STOP, Signal::CHILD, Signal::TERM];
    (1..=31).filter_map(Signal::from_named_raw).filter(move |signal| !others.contains(signal))
}

#[test]
fn every_forwardable_signal_reaches_the_adapter_once() {
    // dash reports a trap once the sleep in the foreground ends; `wait` returns at once for a trap.
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
            continue; // It goes with every stop signal below in the shell's own handling; tested on its own.
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
fn signals_reach_the_whole_group() {
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
fn sigterm_is_passed_on_and_the_adapter_may_end_in_its_own_way() {
    let mut rig = Rig::running(&script("trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done"));
    rig.read_until("up");
    rig.signal(Signal::TERM);
    rig.adapter_ends(ExitStatus::Exited(9));
    assert_eq!(rig.exit_code(), 9);
}

#[test]
fn an_adapter_that_ignores_sigterm_is_killed_after_the_grace() {
    let mut rig =
        Rig::running(&script_with_grace(400, "trap '' TERM; echo up; while :; do sleep 0.05; done"));
    rig.read_until("up");
    let before = Instant::now();
    rig.signal(Signal::TERM);
    // A second one changes nothing: the grace does not start again.
    rig.signal(Signal::TERM);
    rig.adapter_ends(ExitStatus::Signaled(libc::SIGKILL));
    assert!(before.elapsed() >= Duration::from_millis(400), "it was killed before its grace period expired");
    assert_eq!(rig.exit_code(), 137);
    rig.nobody_lives();
}

#[test]
fn a_stopped_adapter_sees_sigterm() {
    let text = "trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done";
    // SIGSTOP is not for the wrapper to pass on; whoever stops the adapter with it does so directly.
    for stop in [Signal::STOP, Signal::TSTP, Signal::TTIN, Signal::TTOU] {
        let mut rig = Rig::start(&script(text));
        let (wrapper, adapter) = rig.release();
        rig.read_until("up");
        let ours = || status_field(adapter, "PPid") == Some(wrapper.to_string());
        crate::rig::signal_verified(adapter, stop, ours);
        await_state(adapter, 'T');
        rig.signal(Signal::TERM);
        assert_eq!(rig.exit_code(), 5, "{stop:?}");
    }
}

/// The wrapper's own signal state: all blocked, nothing left to wake it up.
#[test]
fn an_idle_wrapper_sleeps() {
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
