//! Stops a supervisor and its wrappers at the system calls that mark the steps of their protocols, and kills one of
//! them there: at a call's entry, before it has any effect, or at its exit, before anybody has acted on it. The

//! programs under test know nothing of it.

use crate::common::{DEADLINE, runs};
use acp_testkit::sys::{Boundary, boundary};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

/// Whose system call it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// The supervisor.
    Supervisor,
    /// Its child before exec.
    Starting,
    /// The wrapper.
    Wrapper,
    /// The wrapper's child before exec.
    Adapter,
    /// Whatever else; it is let go.
    Other,
}

/// Which side of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    Entry,
    Exit,
}

/// One instant: the n-th time, counted from 1, that somebody is at one side of a system call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Instance {
    pub(crate) role: Role,
    pub(crate) what: String,
    pub(crate) side: Side,
    pub(crate) nth: u32,
}

#[derive(Default)]
struct Seen {
    log: Vec<Instance>,
    counts: HashMap<(Role, String, Side), u32>,
    plan: Option<(Instance, Role)>,
    hit: bool,
    ended: bool,
}

#[derive(Default)]
struct Board {
    seen: Mutex<Seen>,
    changed: Condvar,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A traced supervisor. Its thread ends with the last traced process.
pub(crate) struct Tracer {
    board: Arc<Board>,
    thread: Option<JoinHandle<()>>,
}

impl Tracer {
    /// Traces every thread of a supervisor, and whatever it starts.
    pub(crate) fn attach(supervisor: i32) -> Self {
        let board = Arc::new(Board::default());
        let (shared, (attached, is_attached)) = (Arc::clone(&board), std::sync::mpsc::sync_channel(1));
        let thread = std::thread::spawn(move || {
            let mut trace = Trace { supervisor, board: shared, threads: HashMap::new() };
            trace.attach();
            attached.send(()).unwrap();
            trace.run();
            let mut seen = trace.board.lock();
            seen.ended = true;
            trace.board.changed.notify_all();
        });
        is_attached.recv_timeout(DEADLINE).unwrap();
        Self { board, thread: Some(thread) }
    }

    /// Forgets what was seen, and kills the victim at this instant from now on.
    pub(crate) fn arm(&self, plan: Option<(Instance, Role)>) {
        *self.board.lock() = Seen { plan, ..Seen::default() };
    }

    /// Waits until the instant was there. Whether it was.
    pub(crate) fn await_hit(&self, within: std::time::Duration) -> bool {
        let until = Instant::now() + within;
        let mut seen = self.board.lock();
        while !seen.hit && !seen.ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            seen = self.board.changed.wait_timeout(seen, left).unwrap().0;
        }
        seen.hit
    }

    /// What was seen since it was armed.
    pub(crate) fn log(&self) -> Vec<Instance> {
        self.board.lock().log.clone()
    }

    /// Waits for the end of everything that is traced.
    pub(crate) fn finish(mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

struct Thread {
    role: Role,
    process: i32,
    /// The call it is in.
    call: Option<String>,
}

struct Trace {
    supervisor: i32,
    board: Arc<Board>,
    threads: HashMap<i32, Thread>,
}

impl Trace {
    fn attach(&mut self) {
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACEEXEC;
        // Threads that were made meanwhile are found in the next round.
        loop {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.supervisor)).unwrap().flatten();
            let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok());
            let new: Vec<i32> = tids.filter(|tid| !self.threads.contains_key(tid)).collect();
            if new.is_empty() {
                return;
            }
            for tid in new {
                let traced = ptrace::seize(Pid::from_raw(tid), options);
                // A new thread of a traced one is traced already.
                assert!(matches!(traced, Ok(()) | Err(Errno::ESRCH | Errno::EPERM)), "{traced:?}");
                let _ = ptrace::interrupt(Pid::from_raw(tid));
                self.look_up(tid);
            }
        }
    }

    fn run(&mut self) {
        loop {
            let status = match waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)) {
                Ok(status) => status,
                Err(Errno::EINTR) => continue,
                // Nothing is traced any more.
                Err(Errno::ECHILD) => return,
                Err(other) => panic!("{other}"),
            };
            match status {
                WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _) => {
                    self.threads.remove(&pid.as_raw());
                }
                WaitStatus::PtraceSyscall(pid) => {
                    self.on_call(pid);
                    go_on(pid, None);
                }
                WaitStatus::PtraceEvent(pid, _, event) => self.on_event(pid, event),
                WaitStatus::Stopped(pid, signal) => go_on(pid, Some(signal)),
                WaitStatus::Continued(_) | WaitStatus::StillAlive => {}
            }
        }
    }

    fn on_event(&mut self, pid: Pid, event: i32) {
        match event {
            libc::PTRACE_EVENT_EXEC => {
                let before = self.threads.remove(&pid.as_raw());
                if self.look_up(pid.as_raw()).role == Role::Other {
                    if let Some(adapter) = before.filter(|thread| thread.role == Role::Adapter) {
                        self.threads.insert(pid.as_raw(), adapter);
                        self.note(pid.as_raw(), "exec".into(), Side::Exit);
                    }
                    self.threads.remove(&pid.as_raw());
                    let _ = ptrace::detach(pid, None);
                    return;
                }
                self.note(pid.as_raw(), "exec".into(), Side::Exit);
            }
            libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_FORK => {
                // The child is known from now on, whether it has stopped yet or not.
                if let Ok(child) = ptrace::getevent(pid) {
                    self.look_up(i32::try_from(child).unwrap());
                }
                self.note(pid.as_raw(), "fork".into(), Side::Exit);
            }
            _ => {}
        }
        go_on(pid, None);
    }

    fn on_call(&mut self, pid: Pid) {
        let tid = pid.as_raw();
        match boundary(pid) {
            Some(Boundary::Entry { call, args }) => {
                let role = self.look_up(tid).role;
                let what = name(role, tid, call, args);
                if let Some(what) = what.clone().filter(|what| !what.starts_with("receive")) {
                    self.note(tid, what, Side::Entry);
                }
                self.look_up(tid).call = what;
            }
            Some(Boundary::Exit(value)) => {
                let call = self.look_up(tid).call.take();
                // Whoever looks for a message that is not there yet has received nothing.
                if let Some(what) = call.filter(|what| value > 0 || !what.starts_with("receive")) {
                    self.note(tid, what, Side::Exit);
                }
            }
            None => {}
        }
    }

    /// Writes down where somebody is, and kills whoever is to die there.
    fn note(&mut self, tid: i32, what: String, side: Side) {
        let role = self.look_up(tid).role;
        let mut seen = self.board.lock();
        let nth = seen.counts.entry((role, what.clone(), side)).or_insert(0);
        *nth += 1;
        let here = Instance { role, what, side, nth: *nth };
        seen.log.push(here.clone());
        let Some(victim) = seen.plan.as_ref().filter(|(at, _)| *at == here).map(|(_, victim)| *victim) else {
            return;
        };
        seen.plan = None;
        drop(seen);
        // The wrapper is the supervisor's child that has called exec, or is about to.
        let is_victim = |role: Role| role == victim || (victim == Role::Wrapper && role == Role::Starting);
        // That an earlier one has ended may not have been seen yet.
        let victims = self.threads.values().filter(|thread| is_victim(thread.role));
        let found = victims.map(|thread| thread.process).find(|process| runs(*process));
        if let Some(process) = found {
            // It is traced and was not reaped by its tracer, so the number is its own.
            let handle = acp_testkit::sys::open(process).unwrap();
            rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::KILL).unwrap();
            if victim == Role::Adapter {
                // Of one thread, so nothing holds it up: whoever is stopped here goes on when it is dead.
                let mut dead = [PollFd::new(&handle, PollFlags::IN)];
                let within = Timespec::try_from(DEADLINE).unwrap();
                assert_eq!(rustix::event::poll(&mut dead, Some(&within)).unwrap(), 1, "it does not die");
            }
            self.board.lock().hit = true;
            self.board.changed.notify_all();
        }
    }

    fn look_up(&mut self, tid: i32) -> &mut Thread {
        let supervisor = self.supervisor;
        self.threads.entry(tid).or_insert_with(|| {
            let (process, role) = who(supervisor, tid);
            Thread { role, process, call: None }
        })
    }
}

fn go_on(pid: Pid, signal: Option<Signal>) {
    // A process that was killed while it was stopped is no longer there to go on.
    match ptrace::syscall(pid, signal) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(other) => panic!("{other}"),
    }
}

fn who(supervisor: i32, tid: i32) -> (i32, Role) {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<i32>().ok()
    };
    let (process, parent) = (field("Tgid:").unwrap_or(tid), field("PPid:").unwrap_or(0));
    let exe = std::fs::read_link(format!("/proc/{tid}/exe")).unwrap_or_default();
    let exe = exe.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let role = match exe.as_str() {
        _ if process == supervisor => Role::Supervisor,
        "acp-supervisor" => Role::Starting,
        "acp-wrapper" if parent == supervisor => Role::Wrapper,
        "acp-wrapper" => Role::Adapter,
        _ => Role::Other,
    };
    (process, role)
}

/// The name of a system call that marks a step; `None` for all others.
fn name(role: Role, tid: i32, call: libc::c_long, args: [u64; 6]) -> Option<String> {
    let file = |fd: u64| {
        let link = std::fs::read_link(format!("/proc/{tid}/fd/{fd}")).unwrap_or_default();
        link.file_name().unwrap_or_default().to_string_lossy().into_owned()
    };
    let kind = |fd: u64| file(fd).split(':').next().unwrap_or_default().to_owned();
    Some(match (role, call) {
        (Role::Supervisor, libc::SYS_fdatasync | libc::SYS_fsync) => format!("sync {}", file(args[0])),
        (Role::Supervisor, libc::SYS_linkat) => "link".into(),
        (Role::Supervisor, libc::SYS_openat) if text(tid, args[1]).ends_with("/launch.json") => {
            "describe".into()
        }
        (Role::Supervisor, libc::SYS_unlinkat) if text(tid, args[1]) == "launch.json" => "remove".into(),
        (Role::Supervisor, libc::SYS_pidfd_open) => "open".into(),
        (Role::Supervisor, libc::SYS_pidfd_send_signal) if args[1] != 0 => format!("signal {}", args[1]),
        (Role::Supervisor, libc::SYS_write) if file(args[0]) == "cgroup.kill" => "end group".into(),
        (Role::Supervisor, libc::SYS_close) if kind(args[0]) == "pipe" => "close pipe".into(),
        (Role::Starting | Role::Adapter, libc::SYS_execve) => "exec".into(),
        (Role::Wrapper, libc::SYS_setsid) => "setsid".into(),
        (Role::Wrapper, libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork) => {
            "fork".into()
        }
        (Role::Wrapper, libc::SYS_write) if kind(args[0]) == "pipe" => "go".into(),
        (Role::Wrapper, libc::SYS_kill) => format!("signal {}", args[1]),
        (Role::Wrapper, libc::SYS_pidfd_send_signal) if args[1] != 0 => format!("signal {}", args[1]),
        (Role::Wrapper, libc::SYS_exit_group) => "exit".into(),
        (Role::Supervisor, libc::SYS_sendmsg) | (Role::Wrapper, libc::SYS_sendmsg | libc::SYS_sendto) => {
            "send".into()
        }
        (Role::Supervisor | Role::Wrapper, libc::SYS_recvmsg) => "receive".into(),
        _ => return None,
    })
}

/// A text in the memory of another process.
fn text(tid: i32, at: u64) -> String {
    let mut bytes = [0u8; 512];
    let memory = std::fs::File::open(format!("/proc/{tid}/mem"));
    let count = memory.and_then(|memory| memory.read_at(&mut bytes, at)).unwrap_or(0);
    let end = bytes[..count].iter().position(|b| *b == 0).unwrap_or(count);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Kills a traced supervisor whatever it is doing.
pub(crate) fn end(supervisor: i32) {
    if runs(supervisor)
        && let Ok(handle) = acp_testkit::sys::open(supervisor)
    {
        let _ = rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::KILL);
    }
}
