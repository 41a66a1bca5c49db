//! Whatever the adapter started dies with it, however it tried to get away.

use crate::rig::{Rig, is_alive, script, script_with_grace, status_field};
use acp_shared::launch::{ExitStatus, FromWrapper};
use acp_testkit::processes::{Killed, children};
use nix::libc;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Ignores SIGTERM, says who it is, and stays.
const STUBBORN: &str = "trap \"\" TERM; echo \"pid $$.\"; while :; do sleep 0.05; done";

/// Runs an adapter that leaves something behind and exits with 4 when its stdin closes.
fn leaves_behind(text: &str, expected: usize) {
    let mut rig = Rig::running(&script_with_grace(300, &format!("{text}\nread x; exit 4")));
    crate::rig::eventually("all of them exist", || rig.living().len() >= expected);
    let others: Vec<i32> = rig.living();
    drop(rig.stdin.take());
    rig.adapter_ends(ExitStatus::Exited(4));
    assert_eq!(rig.exit_code(), 4, "{text}");
    assert!(others.iter().all(|pid| !is_alive(*pid)), "{text}");
    assert_eq!(rig.living(), Vec::<i32>::new(), "{text}");
}

#[test]
fn a_child_in_the_group() {
    leaves_behind("sleep 300 &", 2);
}

#[test]
fn a_stubborn_child_in_the_group() {
    leaves_behind(&format!("sh -c '{STUBBORN}' &"), 2);
}

#[test]
fn a_stubborn_child_in_a_session_of_its_own() {
    leaves_behind(&format!("setsid sh -c '{STUBBORN}' &"), 2);
}

#[test]
fn a_daemon_that_forked_twice() {
    leaves_behind(&format!("(setsid sh -c '({STUBBORN}) & exit 0' &)"), 2);
}

#[test]
fn a_child_in_a_group_of_its_own_with_children() {
    // `set -m` gives every background job its own process group.
    leaves_behind(&format!("set -m; sh -c 'sleep 300 & {STUBBORN}' & set +m"), 3);
}

/// Without the mark in its environment it is found all the same: it is below the wrapper.
#[test]
fn a_daemon_with_an_empty_environment() {
    let mut rig = Rig::running(&script_with_grace(
        200,
        &format!("setsid env -i /bin/sh -c '{STUBBORN}' & read x; exit 0"),
    ));
    let said = rig.read_until(".\n");
    let pid: i32 = said.trim_start_matches("pid ").trim_end_matches(".\n").parse().unwrap();
    assert!(is_alive(pid));
    drop(rig.stdin.take());
    assert_eq!(rig.exit_code(), 0);
    assert!(!is_alive(pid));
}

/// Those left behind get SIGTERM first and may use their grace.
#[test]
fn who_is_left_behind_is_asked_first() {
    let mut rig = Rig::running(&script(
        "setsid sh -c 'trap \"echo bye.; exit\" TERM; echo up.; while :; do sleep 0.05; done' & \
         sh -c 'trap \"echo bye.; exit\" TERM; echo up.; while :; do sleep 0.05; done' & read x; exit 0",
    ));
    rig.read_until_times("up.", 2);
    drop(rig.stdin.take());
    let seen = rig.read_all();
    assert_eq!(seen.matches("bye.").count(), 2, "{seen}");
    assert_eq!(rig.exit_code(), 0);
}

#[test]
fn a_stopped_daemon_sees_sigterm_too() {
    let mut rig = Rig::running(&script(
        "setsid sh -c 'trap \"echo bye.; exit\" TERM; echo up.; kill -STOP $$; while :; do sleep 0.05; done' & read x; exit 0",
    ));
    rig.read_until("up.");
    crate::rig::eventually("it is stopped", || {
        rig.living().iter().any(|pid| status_field(*pid, "State").is_some_and(|s| s.starts_with('T')))
    });
    drop(rig.stdin.take());
    assert!(rig.read_all().contains("bye."));
    assert_eq!(rig.exit_code(), 0);
}

#[test]
fn sigterm_ends_daemons_and_adapter_alike() {
    let mut rig = Rig::running(&script_with_grace(300, &format!("setsid sh -c '{STUBBORN}' & {STUBBORN}")));
    crate::rig::eventually("both are there", || rig.living().len() >= 2);
    rig.read_until("pid");
    rig.signal(Signal::TERM);
    rig.adapter_ends(ExitStatus::Signaled(libc::SIGKILL));
    assert_eq!(rig.living(), Vec::<i32>::new());
}

#[test]
fn a_hundred_orphans_that_end_at_once_are_all_reaped() {
    let mut rig = Rig::running(&script(
        "i=0; while [ $i -lt 100 ]; do (setsid sleep 300 &) ; i=$((i+1)); done; echo up; read x; exit 6",
    ));
    rig.read_until("up");
    let is_sleep = |pid: &i32| status_field(*pid, "Name").is_some_and(|name| name == "sleep");
    let sleeping = |rig: &Rig| rig.living().iter().filter(|pid| is_sleep(pid)).count();
    let children = || children(rig.wrapper_pid()).len();
    crate::rig::eventually("the orphans are there", || children() == 101 && sleeping(&rig) == 100);
    for pid in rig.living().into_iter().filter(is_sleep) {
        let _ = rustix::process::pidfd_send_signal(acp_testkit::sys::open(pid).unwrap(), Signal::KILL);
    }
    crate::rig::eventually("only the adapter is left", || children() == 1);
    drop(rig.stdin.take());
    assert_eq!(rig.exit_code(), 6);
}

/// A hundred living orphans at the adapter's end: all get their signals, none survives.
#[test]
fn a_hundred_orphans_at_the_end() {
    leaves_behind("i=0; while [ $i -lt 100 ]; do (setsid sleep 300 &) ; i=$((i+1)); done", 101);
}

/// The adapter's own dead children, which it never waited for, hold nothing up.
#[test]
fn zombies_are_dead() {
    // A shell that execs keeps its children and never waits for them.
    let mut rig =
        Rig::running(&script_with_grace(60_000, "for i in 1 2 3 4 5; do true & done; exec sleep 0.5"));
    let before = Instant::now();
    assert_eq!(rig.exit_code(), 0);
    assert!(before.elapsed() < Duration::from_secs(20), "it waited for dead processes");
}

/// In the group and out of it, within a second beyond what this machine needs at the same time to end as many idle
/// processes one by one, ten times. Whoever else is there stays.
#[test]
fn a_bounded_fork_bomb_is_extinct_soon() {
    let mut bystander = Killed(std::process::Command::new("sleep").arg("300").spawn().unwrap());
    for how in ["setsid", ""] {
        let mut launch = script(&format!(
            "bomb() {{ i=0; while [ $i -lt 150 ]; do {how} sh -c 'trap \"\" TERM; sleep 300; sleep 300' & i=$((i+1)); done; wait; }}; \
             echo up; bomb & read x; exit 0"
        ));
        launch.term_grace_ms = 0;
        let mut rig = Rig::running(&launch);
        rig.read_until("up");
        crate::rig::eventually("it has grown", || rig.living().len() > 100);
        drop(rig.stdin.take());
        let since = Instant::now();
        let done = FromWrapper::Done { status: ExitStatus::Exited(0), survivors: Vec::new() };
        assert_eq!(rig.hear_all().last(), Some(&done));
        let (took, pace) = (since.elapsed(), acp_testkit::pace::to_end(150).unwrap());
        println!("extinct after {took:?}; 150 idle processes end in {pace:?}");
        assert!(took < Duration::from_secs(5) + 10 * pace, "{took:?}, with {pace:?} for idle ones");
        assert_eq!(rig.living(), Vec::<i32>::new());
    }
    assert_eq!(bystander.try_wait().unwrap(), None, "the bystander lives");
}

/// Nobody above reaps strangers here: what the wrapper leaves behind would stay for ever.
#[test]
fn no_zombie_is_left_to_a_parent_that_does_not_reap() {
    let mut rig = Rig::running(&script_with_grace(
        5_000,
        "for i in 1 2 3 4 5; do (setsid sleep 300 &); true & done; echo up; read x; exit 2",
    ));
    rig.read_until("up");
    crate::rig::eventually("they are there", || rig.living().len() == 6);
    rig.signal(Signal::TERM);
    rig.hear_all();
    // Under `cargo test` other tests run in this process, so only those without a living session are counted.
    let left: Vec<i32> = children(std::process::id().cast_signed())
        .into_iter()
        .filter(|pid| status_field(*pid, "NSsid") == Some(rig.wrapper_pid().to_string()))
        .filter(|pid| *pid != rig.wrapper_pid())
        .collect();
    assert_eq!(left, Vec::<i32>::new());
    rig.exit_code();
}
