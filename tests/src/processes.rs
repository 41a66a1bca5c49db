//! Processes of this machine as `/proc` shows them, and signals that can only reach the inspected process.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// One living process. Zombies are not listed: they hold no resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its pid.
    pub pid: i32,
    /// Its parent's pid.
    pub ppid: i32,
    /// Its process group id.
    pub pgid: i32,
    /// Its session id.
    pub sid: i32,
    /// Ticks between boot and its start: with the pid, its identity for as long as the machine is up.
    pub start_ticks: u64,
    /// Its arguments.
    pub argv: Vec<String>,
}

/// A pidfd of one process: signals through it never reach another process, even if the pid is reused.
#[derive(Debug)]
pub struct ProcessHandle {
    /// Its pid, for messages.
    pub pid: i32,
    fd: OwnedFd,
}

impl ProcessHandle {
    /// Opens the process that has this pid now; `None` if there is none. Check the process's identity after
    /// this call, not before.
    #[must_use]
    pub fn open(pid: i32) -> Option<Self> {
        let fd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        Some(Self { pid, fd })
    }

    /// Sends a signal; returns `false` if the process no longer exists.
    #[must_use]
    pub fn signal(&self, signal: Signal) -> bool {
        pidfd_send_signal(&self.fd, signal).is_ok()
    }

    /// Sends SIGKILL; returns `false` if the process no longer exists.
    #[must_use]
    pub fn kill(&self) -> bool {
        self.signal(Signal::KILL)
    }
}

/// Reads one process; `None` if it does not exist, is a zombie or is not readable.
#[must_use]
pub fn read(pid: i32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, parentheses and blanks included.
    let rest = stat.get(stat.rfind(')')? + 2..)?;
    let fields: Vec<&str> = rest.split(' ').collect();
    if matches!(fields.first(), Some(&"Z" | &"X")) {
        return None;
    }
    let number = |i: usize| fields.get(i).and_then(|f| f.parse::<i64>().ok());
    let small = |i: usize| number(i).and_then(|n| i32::try_from(n).ok());
    let argv = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some(Process {
        pid,
        ppid: small(1)?,
        pgid: small(2)?,
        sid: small(3)?,
        start_ticks: fields.get(19)?.parse().ok()?,
        argv: argv
            .split(|b| *b == 0)
            .filter(|part| !part.is_empty())
            .map(|part| String::from_utf8_lossy(part).into_owned())
            .collect(),
    })
}

/// Whether a process exists and is not a zombie.
#[must_use]
pub fn is_alive(pid: i32) -> bool {
    read(pid).is_some()
}

fn list_pids() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whether the environment that a process was started with holds `NAME=value`.
#[must_use]
pub fn has_env(pid: i32, name: &str, value: &str) -> bool {
    let want = format!("{name}={value}");
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|b| *b == 0).any(|entry| entry == want.as_bytes()))
}

/// Every living process whose environment holds `NAME=value`.
#[must_use]
pub fn list_with_env(name: &str, value: &str) -> Vec<Process> {
    list_pids().into_iter().filter(|pid| has_env(*pid, name, value)).filter_map(read).collect()
}

/// All living processes of a lease: the wrapper and its descendants, in any session.
#[must_use]
pub fn list_of_lease(lease_id: &str) -> Vec<Process> {
    let mut found = list_with_env(acp_shared::launch::ENV_LEASE_ID, lease_id);
    // The wrapper is recognised by its program file: its own environment need not contain the lease id.
    for pid in list_pids() {
        let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let ours = exe.components().any(|part| part.as_os_str() == lease_id);
        if ours && found.iter().all(|p| p.pid != pid) {
            found.extend(read(pid));
        }
    }
    found
}

/// Whether the program, the working directory or an argument of a process is below a directory.
#[must_use]
pub fn belongs_to_dir(pid: i32, dir: &Path) -> bool {
    let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).unwrap_or_default();
    link("exe").starts_with(dir)
        || link("cwd").starts_with(dir)
        || read(pid).is_some_and(|p| p.argv.iter().any(|arg| PathBuf::from(arg).starts_with(dir)))
}

/// All living processes that belong to a directory (see [`belongs_to_dir`]) or whose environment holds
/// `NAME=value`, except this process.
#[must_use]
pub fn list_under_or_with_env(dir: &Path, name: &str, value: &str) -> Vec<Process> {
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    list_pids()
        .into_iter()
        .filter(|pid| *pid != me && (has_env(*pid, name, value) || belongs_to_dir(*pid, dir)))
        .filter_map(read)
        .collect()
}
