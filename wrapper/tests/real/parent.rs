//! Death of the supervisor, or of the wrapper.

use crate::rig::{Rig, await_state, is_alive, is_readable, script, script_with_grace, status_field};
use acp_shared::launch::{FromWrapper, Launch, ToWrapper};
use acp_testkit::pace::Delays;
use rustix::process::Signal;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

const GRACE_MS: u64 = 300;

/// Adapter with a daemon and a child, all ignoring SIGTERM.
fn tree_ignoring_sigterm() -> Launch {
    let stay = "trap \"\" TERM; echo up.; while :; do sleep 0.05; done";
    script_with_grace(GRACE_MS, &format!("setsid sh -c '{stay}' & sh -c '{stay}' & {stay}"))
}

/// Maximum time beyond the grace.
const SLACK: Duration = Duration::from_millis(50);
/// Number of process wake-ups between the parent's end and the wrapper's: exit and timer in the wrapper, three killed
/// processes, three reaps, and the test.
const WAKES: u32 = 10;
/// Maximum number of attempts.
const ATTEMPTS: u32 = 10;

/// Time between the parent's death and the wrapper's exit.
struct EndTimer {
    delays: Delays,
    wrapper: OwnedFd,
}

impl EndTimer {
    fn of(wrapper_pid: i32) -> Self {
        Self { delays: Delays::start(), wrapper: acp_testkit::sys::open(wrapper_pid).unwrap() }
    }

    /// Asserts that the tree is gone after the grace. Returns true if it took at most the grace, the slack, and
    /// the scheduling delay measured meanwhile for each wake-up.
    fn assert_ends_after_grace(self, rig: &Rig, since: Instant) -> bool {
        assert!(is_readable(&self.wrapper), "the wrapper does not end");
        let (took, delay) = (since.elapsed(), self.delays.worst());
        assert_eq!(rig.living_processes(), Vec::<i32>::new());
        let grace = Duration::from_millis(GRACE_MS);
        let over = took.saturating_sub(grace);
        println!("gone {over:?} after the grace; maximum scheduling delay {delay:?}");
        assert!(took >= grace, "killed before the grace: {took:?}");
        over < SLACK + WAKES * delay
    }
}

/// Repeats a timed attempt: the measured delay of one thread is no bound for the others.
fn assert_in_time_once(attempt: impl Fn() -> bool) {
    assert!((0..ATTEMPTS).any(|_| attempt()), "never in time");
}

#[test]
fn closed_control_socket_ends_tree_after_grace() {
    assert_in_time_once(|| {
        let mut rig = Rig::running(&tree_ignoring_sigterm());
        rig.read_until_times("up.", 3);
        let timer = EndTimer::of(rig.wrapper_pid());
        let since = Instant::now();
        drop(rig.control.take());
        let is_in_time = timer.assert_ends_after_grace(&rig, since);
        assert_eq!(rig.exit_code(), 137);
        is_in_time
    });
}

/// The parent is a shell between the test and the wrapper. The control socket stays open, so only the pidfd reports
/// the death.
#[test]
fn parent_death_ends_tree_after_grace() {
    assert_in_time_once(|| {
        let launch = tree_ignoring_sigterm();
        let mut rig = Rig::start_below_shell(&launch);
        let (wrapper_pid, _) = rig.await_hello();
        assert_ne!(wrapper_pid, rig.wrapper_pid(), "the shell is the parent");
        rig.send(&ToWrapper::Go);
        assert_eq!(rig.receive(), FromWrapper::Running);
        rig.read_until_times("up.", 3);
        let timer = EndTimer::of(wrapper_pid);
        let since = Instant::now();
        rig.signal(Signal::KILL);
        let is_in_time = timer.assert_ends_after_grace(&rig, since);
        assert_eq!(rig.exit_code(), 1000 + 9);
        assert!(!is_alive(wrapper_pid));
        is_in_time
    });
}

#[test]
fn parent_death_before_go_runs_nothing() {
    let launch = tree_ignoring_sigterm();
    let mut rig = Rig::start_below_shell(&launch);
    let (wrapper_pid, adapter_pid) = rig.await_hello();
    rig.signal(Signal::KILL);
    rig.exit_code();
    crate::rig::eventually("both are gone", || !is_alive(wrapper_pid) && !is_alive(adapter_pid));
    assert_eq!(rig.living_processes(), Vec::<i32>::new());
}

#[test]
fn stopped_tree_ends_with_parent() {
    let mut rig = Rig::running(&script("setsid sh -c 'kill -STOP $$' & kill -STOP $$"));
    crate::rig::eventually("both are stopped", || {
        let stopped = |pid: &i32| status_field(*pid, "State").is_some_and(|state| state.starts_with('T'));
        rig.living_processes().iter().filter(|pid| stopped(pid)).count() == 2
    });
    drop(rig.control.take());
    assert_eq!(rig.exit_code(), 128 + 15);
    rig.await_no_process();
}

#[test]
fn stopped_parent_does_not_end_tree() {
    let launch = script("echo up; read x; exit 8");
    let mut rig = Rig::start_below_shell(&launch);
    rig.run_adapter();
    rig.read_until("up");
    rig.signal(Signal::STOP);
    await_state(rig.wrapper_pid(), 'T');
    assert_eq!(rig.living_processes().len(), 1);
    rig.signal(Signal::CONT);
    drop(rig.stdin.take());
    assert_eq!(rig.exit_code(), 8);
}

#[test]
fn adapter_dies_with_killed_wrapper() {
    for run_adapter in [false, true] {
        let mut rig = Rig::start(&script("trap '' TERM HUP; while :; do sleep 0.05; done"));
        let (_, adapter_pid) = rig.await_hello();
        if run_adapter {
            rig.send(&ToWrapper::Go);
            assert_eq!(rig.receive(), FromWrapper::Running);
        }
        rig.signal(Signal::KILL);
        assert_eq!(rig.exit_code(), 1000 + 9);
        crate::rig::eventually("the adapter is dead", || !is_alive(adapter_pid));
    }
}

/// The wrapper finds its socket closed.
#[test]
fn parent_death_before_wrapper_exec_runs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let ran = directory.path().join("ran");
    let gate = directory.path().join("gate");
    rustix::fs::mknodat(rustix::fs::CWD, &gate, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let launch = script(&format!("touch {}", ran.display()));
    // The forked shell becomes the wrapper after the gate opens.
    let text = format!("(read go < {}; exec \"$0\") <&0 & wait", gate.display());
    let mut rig = Rig::start_with_prefix(&launch, &["/bin/sh", "-c", &text]);
    rig.launch();
    rig.send(&ToWrapper::Go);
    crate::rig::eventually("the shell has forked", || rig.descendants().len() == 1);
    let begins = rig.descendants()[0];
    drop(rig.control.take());
    rig.signal(Signal::KILL);
    assert_eq!(rig.exit_code(), 1000 + 9);
    std::fs::write(&gate, "go\n").unwrap();
    crate::rig::eventually("the wrapper has ended", || !is_alive(begins));
    assert!(!ran.exists());
}

#[test]
fn end_of_forking_thread_does_not_end_tree() {
    let mut rig = std::thread::spawn(|| Rig::running(&script("echo up; read x; exit 8"))).join().unwrap();
    rig.read_until("up");
    let tree = rig.descendants();
    assert_eq!(tree.len(), 1);
    // A forwarded signal shows that the wrapper is not ending.
    rig.signal(Signal::WINCH);
    assert!(is_alive(rig.wrapper_pid()) && is_alive(tree[0]));
    drop(rig.stdin.take());
    assert_eq!(rig.exit_code(), 8);
}
