//! Descendants of the wrapper, read from /proc, and signals to them.
//!
//! A descendant is signalled through a pidfd that was opened before its parent was read. Its parent is the
//! wrapper itself (whose children only the wrapper reaps) or a descendant found in the same way that still
//! runs according to its own pidfd. So the parent pid in `stat` is not a reused number. If a process dies in
//! between, the signal fails and cannot hit an unrelated process.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Maximum depth of one walk. Deeper processes move up when their ancestors die.
const DEPTH_MAX: usize = 128;
/// Maximum number of walks in one call of [`kill_all`]; the caller calls again.
const ROUNDS_MAX: usize = 16;
/// Maximum number of survivors that are reported.
const SURVIVORS_MAX: usize = 1024;

/// Used fields of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    state: u8,
    ppid: i32,
    pgrp: i32,
    threads: i32,
}

impl Stat {
    /// Parses the line. The process name may contain any character, so the fields start after the last `)`.
    fn parse(line: &[u8]) -> Option<Self> {
        let end = line.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(line.get(end + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().take(18).collect();
        let number = |at: usize| fields.get(at)?.parse::<i32>().ok();
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            ppid: number(1)?,
            pgrp: number(2)?,
            threads: number(17)?,
        })
    }

    /// Reads the stat of a process, if it exists.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Self::parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// True unless the process is dead. A zombie main thread with other running threads counts as alive.
    pub(crate) const fn is_alive(self) -> bool {
        !matches!(self.state, b'Z' | b'X' | b'x') || self.threads > 1
    }
}

/// Returns the children of a process, forked by any of its threads.
fn children(pid: i32) -> Vec<i32> {
    let tasks = format!("/proc/{pid}/task");
    let mut found = Vec::new();
    let Ok(tasks) = std::fs::read_dir(tasks) else { return found };
    for task in tasks.flatten() {
        if let Ok(list) = std::fs::read_to_string(task.path().join("children")) {
            found.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        } else if task.path().exists() && !lists_children() {
            return children_by_parent(pid);
        }
    }
    found
}

/// Returns the wrapper's own children. Its single thread has forked or adopted all of them.
pub(crate) fn own_children() -> Vec<i32> {
    match std::fs::read_to_string("/proc/thread-self/children") {
        Ok(list) => list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect(),
        Err(_) => children_by_parent(own_pid()),
    }
}

/// True if this kernel has `children` files (CONFIG_PROC_CHILDREN).
fn lists_children() -> bool {
    Path::new("/proc/thread-self/children").exists()
}

/// Fallback without `children` files: scans /proc for processes whose parent is `parent`.
fn children_by_parent(parent: i32) -> Vec<i32> {
    let Ok(all) = std::fs::read_dir("/proc") else { return Vec::new() };
    all.flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| Stat::of(*pid).is_some_and(|stat| stat.ppid == parent))
        .collect()
}

/// One verified descendant.
struct Process {
    pid: i32,
    stat: Stat,
    /// `None` if the kernel has no pidfds or no descriptors are left: then only own children can be
    /// signalled.
    pidfd: Option<OwnedFd>,
}

impl Process {
    fn verified(pid: i32, parent: Option<&Self>) -> Option<Self> {
        let me = own_pid();
        let number = Pid::from_raw(pid.max(0))?;
        let pidfd = rustix::process::pidfd_open(number, PidfdFlags::empty()).ok();
        let stat = Stat::of(pid)?;
        let of_me = stat.ppid == me;
        let of_parent = parent.is_some_and(|parent| stat.ppid == parent.pid && parent.runs());
        (of_me || (of_parent && pidfd.is_some())).then_some(Self { pid, stat, pidfd })
    }

    /// True if the process still runs, so that its pid is not reused.
    fn runs(&self) -> bool {
        let Some(pidfd) = &self.pidfd else { return self.stat.ppid == own_pid() };
        let mut ready = [PollFd::new(pidfd, PollFlags::IN)];
        rustix::event::poll(&mut ready, Some(&Timespec::default())) == Ok(0)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "without a pidfd the target is an unreaped own child, so its pid is not reused"
    )]
    fn signal(&self, signal: Signal) {
        // A failure means a dead process, or one of another user: the sweep reports it as a survivor.
        let _ = match (&self.pidfd, Pid::from_raw(self.pid)) {
            (Some(pidfd), _) => rustix::process::pidfd_send_signal(pidfd, signal),
            (None, Some(pid)) => rustix::process::kill_process(pid, signal),
            (None, None) => Ok(()),
        };
    }
}

fn own_pid() -> i32 {
    std::process::id().cast_signed()
}

/// Calls `visit` for every descendant, children before their parent: a list of children is read before a
/// signal can kill the parent.
fn walk(visit: &mut dyn FnMut(&Process)) {
    descend(own_children(), None, DEPTH_MAX, visit);
}

fn descend(of: Vec<i32>, parent: Option<&Process>, depth_left: usize, visit: &mut dyn FnMut(&Process)) {
    for child in of {
        let Some(process) = Process::verified(child, parent) else { continue };
        if let Some(depth_left) = depth_left.checked_sub(1) {
            descend(children(child), Some(&process), depth_left, visit);
        }
        visit(&process);
    }
}

/// Sends SIGTERM, then SIGCONT (a stopped process would not handle the first), to every living descendant
/// outside of the process group `except`.
pub(crate) fn term_all(except: Option<i32>) {
    walk(&mut |process| {
        if process.stat.is_alive() && Some(process.stat.pgrp) != except {
            process.signal(Signal::TERM);
            process.signal(Signal::CONT);
        }
    });
}

/// Sends SIGKILL to every living descendant; repeats until a walk finds no new process.
pub(crate) fn kill_all() {
    let mut hit: Vec<i32> = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let before = hit.len();
        walk(&mut |process| {
            if process.stat.is_alive() && !hit.contains(&process.pid) {
                process.signal(Signal::KILL);
                hit.push(process.pid);
            }
        });
        if hit.len() == before {
            return;
        }
    }
}

/// Returns the descendants that are still alive, at most [`SURVIVORS_MAX`].
pub(crate) fn survivors() -> Vec<i32> {
    let mut found = Vec::new();
    walk(&mut |process| {
        if process.stat.is_alive() && found.len() < SURVIVORS_MAX {
            found.push(process.pid);
        }
    });
    found
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn stat_lines_are_parsed() {
        let tail = "1 2 3 0 -1 4194560 89 0 0 0 0 0 0 0 20 0 7 0 123 0 0";
        let stat = |state, threads| Some(Stat { state, ppid: 1, pgrp: 2, threads });
        for (line, want) in [
            (format!("9 (sh) S {tail}"), stat(b'S', 7)),
            (format!("9 (a) S 1 (b\n) ) R {tail}"), stat(b'R', 7)),
            (format!("9 () Z {}", tail.replace(" 7 ", " 1 ")), stat(b'Z', 1)),
            ("9 (sh) S 1 2".to_owned(), None),
            ("9 (sh".to_owned(), None),
            ("9 (sh) S x 2 3 0 -1 4194560 89 0 0 0 0 0 0 0 20 0 7 0".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(Stat::parse(line.as_bytes()), want, "{line}");
        }
    }

    #[test]
    fn zombies_without_threads_are_dead() {
        for (state, threads, want) in [
            (b'S', 1, true),
            (b'D', 1, true),
            (b'T', 1, true),
            (b'Z', 1, false),
            (b'X', 1, false),
            (b'Z', 2, true),
        ] {
            assert_eq!(Stat { state, ppid: 1, pgrp: 1, threads }.is_alive(), want);
        }
    }

    /// A test runs in a thread of its own, so children of other threads are covered.
    #[test]
    fn children_are_found_by_list_and_by_parent() {
        let mut child = Command::new("/bin/sh").args(["-c", "read x"]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id().cast_signed();
        assert!(children(own_pid()).contains(&pid));
        assert!(children_by_parent(own_pid()).contains(&pid));
        let process = Process::verified(pid, None).unwrap();
        assert!(process.stat.is_alive() && process.runs());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!process.runs());
        assert!(Process::verified(pid, None).is_none());
        assert!(!children(own_pid()).contains(&pid));
    }

    #[test]
    fn foreign_pids_are_not_verified() {
        assert!(Process::verified(1, None).is_none());
        assert!(Process::verified(own_pid(), None).is_none());
        assert!(Process::verified(0, None).is_none());
        assert!(Process::verified(-1, None).is_none());
    }
}
