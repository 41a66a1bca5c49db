//! Every descendant of the adapter ends with it.

use crate::rig::{Rig, is_alive, script, script_with_grace, status_field};
use acp_shared::launch::{ExitStatus, FromWrapper};
use acp_testkit::processes::{KillOnDrop, children};
use nix::libc;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Shell command that ignores SIGTERM, prints its pid and stays.
const IGNORES_SIGTERM: &str = "trap \"\" TERM; echo \"pid $$.\"; while :; do sleep 0.05; done";

/// Asserts that processes left behind by the adapter end with it. The adapter exits with 4 at the end of its stdin.
fn assert_remaining_processes_end(text: &str, expected: usize) {
    let mut rig = Rig::running(&script_with_grace(300, &format!("{text}\nread x; exit 4")));
    crate::rig::eventually("all processes exist", || rig.living_processes().len() >= expected);
    let others: Vec<i32> = rig.living_processes();
    drop(rig.stdin.take());
    rig.assert_adapter_ends(ExitStatus::Exited(4));
    assert_eq!(rig.exit_code(), 4, "{text}");
    assert!(others.iter().all(|pid| !is_alive(*pid)), "{text}");
    assert_eq!(rig.living_processes(), Vec::<i32>::new(), "{text}");
}

#[test]
fn child_in_group_ends() {
    assert_remaining_processes_end("sleep 300 &", 2);
}

#[test]
fn child_in_group_ignoring_sigterm_is_killed() {
    assert_remaining_processes_end(&format!("sh -c '{IGNORES_SIGTERM}' &"), 2);
}

#[test]
fn child_in_own_session_ignoring_sigterm_is_killed() {
    assert_remaining_processes_end(&format!("setsid sh -c '{IGNORES_SIGTERM}' &"), 2);
}

#[test]
fn double_forked_daemon_is_killed() {
    assert_remaining_processes_end(&format!("(setsid sh -c '({IGNORES_SIGTERM}) & exit 0' &)"), 2);
}

#[test]
fn children_in_own_group_are_killed() {
    // `set -m` gives every background job its own process group.
    assert_remaining_processes_end(&format!("set -m; sh -c 'sleep 300 & {IGNORES_SIGTERM}' & set +m"), 3);
}

/// The daemon is found by its ancestry, since it has no marker.
#[test]
fn daemon_without_environment_is_killed() {
    let mut rig = Rig::running(&script_with_grace(
        200,
        &format!("setsid env -i /bin/sh -c '{IGNORES_SIGTERM}' & read x; exit 0"),
    ));
    let line = rig.read_until(".\n");
    let pid: i32 = line.trim_start_matches("pid ").trim_end_matches(".\n").parse().unwrap();
    assert!(is_alive(pid));
    drop(rig.stdin.take());
    assert_eq!(rig.exit_code(), 0);
    assert!(!is_alive(pid));
}

#[test]
fn remaining_processes_get_sigterm_first() {
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
fn stopped_daemon_is_continued_on_sigterm() {
    let mut rig = Rig::running(&script(
        "setsid sh -c 'trap \"echo bye.; exit\" TERM; echo up.; kill -STOP $$; while :; do sleep 0.05; done' & read x; exit 0",
    ));
    rig.read_until("up.");
    crate::rig::eventually("the daemon is stopped", || {
        rig.living_processes()
            .iter()
            .any(|pid| status_field(*pid, "State").is_some_and(|s| s.starts_with('T')))
    });
    drop(rig.stdin.take());
    assert!(rig.read_all().contains("bye."));
    assert_eq!(rig.exit_code(), 0);
}

#[test]
fn sigterm_ends_daemons_and_adapter() {
    let mut rig = Rig::running(&script_with_grace(
        300,
        &format!("setsid sh -c '{IGNORES_SIGTERM}' & {IGNORES_SIGTERM}"),
    ));
    crate::rig::eventually("both processes exist", || rig.living_processes().len() >= 2);
    rig.read_until("pid");
    rig.signal(Signal::TERM);
    rig.assert_adapter_ends(ExitStatus::Signaled(libc::SIGKILL));
    assert_eq!(rig.living_processes(), Vec::<i32>::new());
}

#[test]
fn hundred_simultaneous_orphan_exits_are_reaped() {
    let mut rig = Rig::running(&script(
        "i=0; while [ $i -lt 100 ]; do (setsid sleep 300 &) ; i=$((i+1)); done; echo up; read x; exit 6",
    ));
    rig.read_until("up");
    let is_sleep = |pid: &i32| status_field(*pid, "Name").is_some_and(|name| name == "sleep");
    let sleeping = |rig: &Rig| rig.living_processes().iter().filter(|pid| is_sleep(pid)).count();
    let children = || children(rig.wrapper_pid()).len();
    crate::rig::eventually("all orphans exist", || children() == 101 && sleeping(&rig) == 100);
    for pid in rig.living_processes().into_iter().filter(is_sleep) {
        let _ = rustix::process::pidfd_send_signal(acp_testkit::sys::open(pid).unwrap(), Signal::KILL);
    }
    crate::rig::eventually("only the adapter is left", || children() == 1);
    drop(rig.stdin.take());
    assert_eq!(rig.exit_code(), 6);
}

#[test]
fn hundred_orphans_end_with_adapter() {
    assert_remaining_processes_end(
        "i=0; while [ $i -lt 100 ]; do (setsid sleep 300 &) ; i=$((i+1)); done",
        101,
    );
}

#[test]
fn zombies_do_not_delay_exit() {
    // A shell that calls exec never waits for its children.
    let mut rig =
        Rig::running(&script_with_grace(60_000, "for i in 1 2 3 4 5; do true & done; exec sleep 0.5"));
    let before = Instant::now();
    assert_eq!(rig.exit_code(), 0);
    assert!(before.elapsed() < Duration::from_secs(20), "waited for zombies");
}

/// Time limit: 5 s plus ten times the time to kill as many idle processes one by one. Foreign processes survive.
#[test]
fn bounded_fork_bomb_ends_in_time() {
    let mut bystander = KillOnDrop(std::process::Command::new("sleep").arg("300").spawn().unwrap());
    for prefix in ["setsid", ""] {
        let mut launch = script(&format!(
            "bomb() {{ i=0; while [ $i -lt 150 ]; do {prefix} sh -c 'trap \"\" TERM; sleep 300; sleep 300' & i=$((i+1)); done; wait; }}; \
             echo up; bomb & read x; exit 0"
        ));
        launch.term_grace_ms = 0;
        let mut rig = Rig::running(&launch);
        rig.read_until("up");
        crate::rig::eventually("the fork bomb has grown", || rig.living_processes().len() > 100);
        drop(rig.stdin.take());
        let since = Instant::now();
        let done = FromWrapper::Done { status: ExitStatus::Exited(0), survivors: Vec::new() };
        assert_eq!(rig.receive_all().last(), Some(&done));
        let (took, pace) = (since.elapsed(), acp_testkit::pace::time_to_kill(150).unwrap());
        println!("extinct after {took:?}; 150 idle processes end in {pace:?}");
        assert!(took < Duration::from_secs(5) + 10 * pace, "{took:?}, with {pace:?} for idle ones");
        assert_eq!(rig.living_processes(), Vec::<i32>::new());
    }
    assert_eq!(bystander.try_wait().unwrap(), None, "a foreign process ended");
}

#[test]
fn non_reaping_parent_gets_no_zombies() {
    let mut rig = Rig::running(&script_with_grace(
        5_000,
        "for i in 1 2 3 4 5; do (setsid sleep 300 &); true & done; echo up; read x; exit 2",
    ));
    rig.read_until("up");
    crate::rig::eventually("all processes exist", || rig.living_processes().len() == 6);
    rig.signal(Signal::TERM);
    rig.receive_all();
    // Only processes of this session count: under `cargo test` other tests share this process.
    let left: Vec<i32> = children(std::process::id().cast_signed())
        .into_iter()
        .filter(|pid| status_field(*pid, "NSsid") == Some(rig.wrapper_pid().to_string()))
        .filter(|pid| *pid != rig.wrapper_pid())
        .collect();
    assert_eq!(left, Vec::<i32>::new());
    rig.exit_code();
}
