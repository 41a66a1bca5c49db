//! Processes of this machine, and children that end with their test.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::process::Child;

/// Child process; dropping the value kills and reaps it.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl KillOnDrop {
    /// Pid of the child.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Deref for KillOnDrop {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for KillOnDrop {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // The pid is not reused before the wait.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Pids of all visible processes.
#[must_use]
pub fn all_pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// True if the environment of a process can be read and holds `NAME=value`.
#[must_use]
pub fn has_env(pid: i32, name: &str, value: &str) -> bool {
    let want = format!("{name}={value}");
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == want.as_bytes()))
}

/// Field of `/proc/PID/status`; `None` without this process.
#[must_use]
pub fn status_field(pid: i32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// True if a process exists and is no zombie.
#[must_use]
pub fn is_alive(pid: i32) -> bool {
    status_field(pid, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// True if each thread of a process is stopped by a signal or has ended.
#[must_use]
pub fn has_stopped(pid: i32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    // The state follows the name, which is in parentheses and may hold some itself.
    let stops = |stat: String| {
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with(['T', 't', 'Z', 'X']))
    };
    stats.all(stops)
}

/// Children of all threads of a process, zombies included.
#[must_use]
pub fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<i32>>()).collect()
}
