//! Stops a supervisor and its wrappers at the system calls of their protocols, and kills one of them there: at a
//! call's entry, before its effect, or at its exit.

use crate::common::{TIMEOUT, is_alive};
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

/// Process that makes a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Supervisor,
    /// Child of the supervisor before exec.
    Starting,
    Wrapper,
    /// Child of the wrapper before exec.
    Adapter,
    /// Any other process; not traced.
    Other,
}

/// Side of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    Entry,
    Exit,
}

/// The n-th time, from 1, that a process is at one side of a system call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TracePoint {
    pub(crate) role: Role,
    pub(crate) call_name: String,
    pub(crate) side: Side,
    pub(crate) nth: u32,
}

#[derive(Default)]
struct TraceLog {
    points: Vec<TracePoint>,
    counts: HashMap<(Role, String, Side), u32>,
    plan: Option<(TracePoint, Role)>,
    hit: bool,
    ended: bool,
}

#[derive(Default)]
struct SharedLog {
    log: Mutex<TraceLog>,
    changed: Condvar,
}

impl SharedLog {
    fn lock(&self) -> MutexGuard<'_, TraceLog> {
        self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A traced supervisor. Its thread ends with the last traced process.
pub(crate) struct Tracer {
    shared_log: Arc<SharedLog>,
    thread: Option<JoinHandle<()>>,
}

impl Tracer {
    /// Traces every thread of a supervisor and its descendants.
    pub(crate) fn attach(supervisor: i32) -> Self {
        let shared_log = Arc::new(SharedLog::default());
        let (shared, (attached, is_attached)) = (Arc::clone(&shared_log), std::sync::mpsc::sync_channel(1));
        let thread = std::thread::spawn(move || {
            let mut trace = TraceLoop { supervisor, shared_log: shared, threads: HashMap::new() };
            trace.attach();
            attached.send(()).unwrap();
            trace.run();
            let mut log = trace.shared_log.lock();
            log.ended = true;
            trace.shared_log.changed.notify_all();
        });
        is_attached.recv_timeout(TIMEOUT).unwrap();
        Self { shared_log, thread: Some(thread) }
    }

    /// Clears the log and plans the kill of a process at a trace point.
    pub(crate) fn arm(&self, plan: Option<(TracePoint, Role)>) {
        *self.shared_log.lock() = TraceLog { plan, ..TraceLog::default() };
    }

    /// Waits until the planned point is reached; returns true if it was.
    pub(crate) fn await_hit(&self, within: std::time::Duration) -> bool {
        let until = Instant::now() + within;
        let mut log = self.shared_log.lock();
        while !log.hit && !log.ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            log = self.shared_log.changed.wait_timeout(log, left).unwrap().0;
        }
        log.hit
    }

    /// Trace points since [`Tracer::arm`].
    pub(crate) fn log(&self) -> Vec<TracePoint> {
        self.shared_log.lock().points.clone()
    }

    /// Waits for the end of all traced processes.
    pub(crate) fn finish(mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

struct Thread {
    role: Role,
    process: i32,
    /// Current system call.
    call: Option<String>,
}

struct TraceLoop {
    supervisor: i32,
    shared_log: Arc<SharedLog>,
    threads: HashMap<i32, Thread>,
}

impl TraceLoop {
    fn attach(&mut self) {
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACEEXEC;
        // The next round finds threads created meanwhile.
        loop {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.supervisor)).unwrap().flatten();
            let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok());
            let new: Vec<i32> = tids.filter(|tid| !self.threads.contains_key(tid)).collect();
            if new.is_empty() {
                return;
            }
            for tid in new {
                let traced = ptrace::seize(Pid::from_raw(tid), options);
                // New threads of a traced thread are already traced.
                assert!(matches!(traced, Ok(()) | Err(Errno::ESRCH | Errno::EPERM)), "{traced:?}");
                let _ = ptrace::interrupt(Pid::from_raw(tid));
                self.thread_mut(tid);
            }
        }
    }

    fn run(&mut self) {
        loop {
            let status = match waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)) {
                Ok(status) => status,
                Err(Errno::EINTR) => continue,
                // No traced process is left.
                Err(Errno::ECHILD) => return,
                Err(other) => panic!("{other}"),
            };
            match status {
                WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _) => {
                    self.threads.remove(&pid.as_raw());
                }
                WaitStatus::PtraceSyscall(pid) => {
                    self.on_call(pid);
                    resume(pid, None);
                }
                WaitStatus::PtraceEvent(pid, _, event) => self.on_event(pid, event),
                WaitStatus::Stopped(pid, signal) => resume(pid, Some(signal)),
                WaitStatus::Continued(_) | WaitStatus::StillAlive => {}
            }
        }
    }

    fn on_event(&mut self, pid: Pid, event: i32) {
        match event {
            libc::PTRACE_EVENT_EXEC => {
                let before = self.threads.remove(&pid.as_raw());
                if self.thread_mut(pid.as_raw()).role == Role::Other {
                    if let Some(adapter) = before.filter(|thread| thread.role == Role::Adapter) {
                        self.threads.insert(pid.as_raw(), adapter);
                        self.record(pid.as_raw(), "exec".into(), Side::Exit);
                    }
                    self.threads.remove(&pid.as_raw());
                    let _ = ptrace::detach(pid, None);
                    return;
                }
                self.record(pid.as_raw(), "exec".into(), Side::Exit);
            }
            libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_FORK => {
                // The child is registered, stopped or not.
                if let Ok(child) = ptrace::getevent(pid) {
                    self.thread_mut(i32::try_from(child).unwrap());
                }
                self.record(pid.as_raw(), "fork".into(), Side::Exit);
            }
            _ => {}
        }
        resume(pid, None);
    }

    fn on_call(&mut self, pid: Pid) {
        let tid = pid.as_raw();
        match boundary(pid) {
            Some(Boundary::Entry { call, args }) => {
                let role = self.thread_mut(tid).role;
                let call_name = step_name(role, tid, call, args);
                if let Some(name) = call_name.clone().filter(|name| !name.starts_with("receive")) {
                    self.record(tid, name, Side::Entry);
                }
                self.thread_mut(tid).call = call_name;
            }
            Some(Boundary::Exit(value)) => {
                let call = self.thread_mut(tid).call.take();
                // A receive without a message has no effect.
                if let Some(name) = call.filter(|name| value > 0 || !name.starts_with("receive")) {
                    self.record(tid, name, Side::Exit);
                }
            }
            None => {}
        }
    }

    /// Records a trace point and kills the planned victim there.
    fn record(&mut self, tid: i32, call_name: String, side: Side) {
        let role = self.thread_mut(tid).role;
        let mut log = self.shared_log.lock();
        let nth = log.counts.entry((role, call_name.clone(), side)).or_insert(0);
        *nth += 1;
        let here = TracePoint { role, call_name, side, nth: *nth };
        log.points.push(here.clone());
        let Some(victim) = log.plan.as_ref().filter(|(at, _)| *at == here).map(|(_, victim)| *victim) else {
            return;
        };
        log.plan = None;
        drop(log);
        // The wrapper is the supervisor's child that has called exec or is about to.
        let is_victim = |role: Role| role == victim || (victim == Role::Wrapper && role == Role::Starting);
        // The tracer may not have seen the end of an earlier one.
        let victims = self.threads.values().filter(|thread| is_victim(thread.role));
        let found = victims.map(|thread| thread.process).find(|process| is_alive(*process));
        if let Some(process) = found {
            // The traced process is not reaped, so its pid is not reused.
            let handle = acp_testkit::sys::open(process).unwrap();
            rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::KILL).unwrap();
            if victim == Role::Adapter {
                // The adapter has one thread and is not stopped, so it dies at once.
                let mut dead = [PollFd::new(&handle, PollFlags::IN)];
                let within = Timespec::try_from(TIMEOUT).unwrap();
                assert_eq!(
                    rustix::event::poll(&mut dead, Some(&within)).unwrap(),
                    1,
                    "timeout: the adapter lives"
                );
            }
            self.shared_log.lock().hit = true;
            self.shared_log.changed.notify_all();
        }
    }

    fn thread_mut(&mut self, tid: i32) -> &mut Thread {
        let supervisor = self.supervisor;
        self.threads.entry(tid).or_insert_with(|| {
            let (process, role) = identify(supervisor, tid);
            Thread { role, process, call: None }
        })
    }
}

fn resume(pid: Pid, signal: Option<Signal>) {
    // A stopped process may have been killed meanwhile.
    match ptrace::syscall(pid, signal) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(other) => panic!("{other}"),
    }
}

fn identify(supervisor: i32, tid: i32) -> (i32, Role) {
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

/// Name of a system call that is a step; `None` for all others.
fn step_name(role: Role, tid: i32, call: libc::c_long, args: [u64; 6]) -> Option<String> {
    let file = |fd: u64| {
        let link = std::fs::read_link(format!("/proc/{tid}/fd/{fd}")).unwrap_or_default();
        link.file_name().unwrap_or_default().to_string_lossy().into_owned()
    };
    let kind = |fd: u64| file(fd).split(':').next().unwrap_or_default().to_owned();
    Some(match (role, call) {
        (Role::Supervisor, libc::SYS_fdatasync | libc::SYS_fsync) => format!("sync {}", file(args[0])),
        (Role::Supervisor, libc::SYS_linkat) => "link".into(),
        (Role::Supervisor, libc::SYS_openat) if read_text(tid, args[1]).ends_with("/launch.json") => {
            "describe".into()
        }
        (Role::Supervisor, libc::SYS_unlinkat) if read_text(tid, args[1]) == "launch.json" => "remove".into(),
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

/// Reads a string from the memory of another process.
fn read_text(tid: i32, at: u64) -> String {
    let mut bytes = [0u8; 512];
    let memory = std::fs::File::open(format!("/proc/{tid}/mem"));
    let count = memory.and_then(|memory| memory.read_at(&mut bytes, at)).unwrap_or(0);
    let end = bytes[..count].iter().position(|b| *b == 0).unwrap_or(count);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Kills a traced supervisor.
pub(crate) fn kill_supervisor(supervisor: i32) {
    if is_alive(supervisor)
        && let Ok(handle) = acp_testkit::sys::open(supervisor)
    {
        let _ = rustix::process::pidfd_send_signal(&handle, rustix::process::Signal::KILL);
    }
}
