//! The supervisor goes away, or the wrapper itself does.

use crate::rig::{Rig, await_state, is_alive, is_readable, script, script_with_grace, status_field};
use acp_shared::launch::{FromWrapper, Launch, ToWrapper};
use acp_testkit::pace::Delays;
use rustix::process::Signal;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

const GRACE_MS: u64 = 300;

/// An adapter with a daemon and a child; all of them ignore SIGTERM.
fn stubborn_tree() -> Launch {
    let stay = "trap \"\" TERM; echo up.; while :; do sleep 0.05; done";
    script_with_grace(GRACE_MS, &format!("setsid sh -c '{stay}' & sh -c '{stay}' & {stay}"))
}

/// What a tree may take beyond its grace.
const SLACK: Duration = Duration::from_millis(50);
/// How often somebody has to be woken from the end of the parent to that of the wrapper: the wrapper by the end and by
/// its timer, three processes by their signals, the wrapper by each of their ends, and this test.
const WAKES: u32 = 10;
/// How often it is tried to be in time.
const ATTEMPTS: u32 = 10;

/// The clock of a wrapper: from the instant at which its parent is gone to its own end, which comes when nobody of its
/// tree is left.
struct Clock {
    delays: Delays,
    wrapper: OwnedFd,
}

impl Clock {
    fn of(wrapper_pid: i32) -> Self {
        Self { delays: Delays::watch(), wrapper: acp_testkit::sys::open(wrapper_pid).unwrap() }
    }

    /// The parent was gone `since`: nobody is left after the grace. Whether that was not much later, on a machine that
    /// lets nobody wait: how long it did let somebody wait meanwhile is granted for each time that somebody had to be
    /// woken.
    fn ends_in_time(self, rig: &Rig, since: Instant) -> bool {
        assert!(is_readable(&self.wrapper), "the wrapper does not end");
        let (took, delay) = (since.elapsed(), self.delays.worst());
        assert_eq!(rig.living(), Vec::<i32>::new());
        let grace = Duration::from_millis(GRACE_MS);
        let over = took.saturating_sub(grace);
        println!("gone {over:?} after the grace; the machine was late by up to {delay:?}");
        assert!(took >= grace, "they had no grace period: {took:?}");
        over < SLACK + WAKES * delay
    }
}

/// One of a few is in time. The delays of one thread are not those of all: a busy machine can let any other wait.
fn once_in_time(attempt: impl Fn() -> bool) {
    assert!((0..ATTEMPTS).any(|_| attempt()), "never in time");
}

#[test]
fn the_control_socket_closes() {
    once_in_time(|| {
        let mut rig = Rig::running(&stubborn_tree());
        rig.read_until_times("up.", 3);
        let clock = Clock::of(rig.wrapper_pid());
        let since = Instant::now();
        drop(rig.control.take());
        let is_in_time = clock.ends_in_time(&rig, since);
        assert_eq!(rig.exit_code(), 137);
        is_in_time
    });
}

/// The parent is a process between this test and the wrapper, and this test keeps the control socket open: only the
/// pidfd on the parent can tell.
#[test]
fn the_parent_is_killed() {
    once_in_time(|| {
        let launch = stubborn_tree();
        let mut rig = Rig::below_a_shell(&launch);
        let (wrapper_pid, _) = rig.greeted();
        assert_ne!(wrapper_pid, rig.wrapper_pid(), "the shell is the parent");
        rig.say(&ToWrapper::Go);
        assert_eq!(rig.hear(), FromWrapper::Running);
        rig.read_until_times("up.", 3);
        let clock = Clock::of(wrapper_pid);
        let since = Instant::now();
        rig.signal(Signal::KILL);
        let is_in_time = clock.ends_in_time(&rig, since);
        assert_eq!(rig.exit_code(), 1000 + 9);
        assert!(!is_alive(wrapper_pid));
        is_in_time
    });
}

/// The parent dies before anything ran: nothing ever does.
#[test]
fn the_parent_is_killed_before_go() {
    let launch = stubborn_tree();
    let mut rig = Rig::below_a_shell(&launch);
    let (wrapper_pid, adapter_pid) = rig.greeted();
    rig.signal(Signal::KILL);
    rig.exit_code();
    crate::rig::eventually("both are gone", || !is_alive(wrapper_pid) && !is_alive(adapter_pid));
    assert_eq!(rig.living(), Vec::<i32>::new());
}

/// Whoever is stopped does not live longer than the others.
#[test]
fn the_parent_dies_above_a_stopped_tree() {
    let mut rig = Rig::running(&script("setsid sh -c 'kill -STOP $$' & kill -STOP $$"));
    crate::rig::eventually("both are stopped", || {
        let stopped = |pid: &i32| status_field(*pid, "State").is_some_and(|state| state.starts_with('T'));
        rig.living().iter().filter(|pid| stopped(pid)).count() == 2
    });
    drop(rig.control.take());
    assert_eq!(rig.exit_code(), 128 + 15);
    rig.nobody_lives();
}

/// A supervisor that is only stopped is not gone.
#[test]
fn the_parent_is_stopped() {
    let launch = script("echo up; read x; exit 8");
    let mut rig = Rig::below_a_shell(&launch);
    rig.go();
    rig.read_until("up");
    rig.signal(Signal::STOP);
    await_state(rig.wrapper_pid(), 'T');
    assert_eq!(rig.living().len(), 1);
    rig.signal(Signal::CONT);
    drop(rig.stdin.take());
    assert_eq!(rig.exit_code(), 8);
}

#[test]
fn the_wrapper_is_killed_and_the_adapter_dies_with_it() {
    for go in [false, true] {
        let mut rig = Rig::start(&script("trap '' TERM HUP; while :; do sleep 0.05; done"));
        let (_, adapter_pid) = rig.greeted();
        if go {
            rig.say(&ToWrapper::Go);
            assert_eq!(rig.hear(), FromWrapper::Running);
        }
        rig.signal(Signal::KILL);
        assert_eq!(rig.exit_code(), 1000 + 9);
        crate::rig::eventually("the adapter is dead", || !is_alive(adapter_pid));
    }
}

/// The supervisor dies after its fork, before the wrapper has run an instruction: it finds its socket closed.
#[test]
fn the_parent_dies_before_the_wrapper_begins() {
    let directory = tempfile::tempdir().unwrap();
    let ran = directory.path().join("ran");
    let gate = directory.path().join("gate");
    rustix::fs::mknodat(rustix::fs::CWD, &gate, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let launch = script(&format!("touch {}", ran.display()));
    // The forked shell becomes the wrapper once the gate opens.
    let text = format!("(read go < {}; exec \"$0\") <&0 & wait", gate.display());
    let mut rig = Rig::start_under(&launch, &["/bin/sh", "-c", &text]);
    rig.launch();
    rig.say(&ToWrapper::Go);
    crate::rig::eventually("the shell has forked", || rig.below().len() == 1);
    let begins = rig.below()[0];
    drop(rig.control.take());
    rig.signal(Signal::KILL);
    assert_eq!(rig.exit_code(), 1000 + 9);
    std::fs::write(&gate, "go\n").unwrap();
    crate::rig::eventually("the wrapper has ended", || !is_alive(begins));
    assert!(!ran.exists());
}

/// What started the wrapper was a thread, and it ends; its process lives.
#[test]
fn the_forking_thread_ends() {
    let mut rig = std::thread::spawn(|| Rig::running(&script("echo up; read x; exit 8"))).join().unwrap();
    rig.read_until("up");
    let tree = rig.below();
    assert_eq!(tree.len(), 1);
    // The wrapper answers signals, and so has not been told to end.
    rig.signal(Signal::WINCH);
    assert!(is_alive(rig.wrapper_pid()) && is_alive(tree[0]));
    drop(rig.stdin.take());
    assert_eq!(rig.exit_code(), 8);
}
