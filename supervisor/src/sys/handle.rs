//! Open process on Linux: a pidfd and the process's `/proc` directory, and reads through both.

use crate::core::cgroup;
use crate::core::lease::{NsInit, PidScope, ProcessRecord};
use crate::core::tree::{Proc, parse_stat};
use crate::core::verify::legacy::LegacyFacts;
use crate::core::verify::{HandleId, Marker, ProcessState};
use crate::sys::linux::{raw_parent, raw_signal};
use crate::sys::{OpenProcess, UnreapedChild};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const PIDFS_MAGIC: i64 = 0x5049_4446;
/// Maximum size of an environment, in bytes; a longer one counts as unreadable.
const ENVIRON_BYTES_MAX: usize = 4 * 1024 * 1024;
const STAT_BYTES_MAX: usize = 4096;
const CGROUP_BYTES_MAX: usize = 64 * 1024;

fn read_text(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Reads the scope of this process.
pub(super) fn scope(init: NsInit) -> Option<PidScope> {
    let boot_id = read_text("/proc/sys/kernel/random/boot_id")?;
    let pidns = rustix::fs::stat("/proc/self/ns/pid").ok()?.st_ino;
    let timens = match rustix::fs::stat("/proc/self/ns/time") {
        Ok(ns) => Some(ns.st_ino),
        // Without time namespaces all start times use one clock.
        Err(Errno::NOENT) => None,
        Err(_) => return None,
    };
    Some(PidScope { boot_id, pidns, timens, init })
}

/// Open process.
#[derive(Debug)]
pub struct ProcessHandle {
    pub(super) id: HandleId,
    pub(super) pid: i32,
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) dir: Option<OwnedFd>,
    pub(super) own_child: bool,
}

impl ProcessHandle {
    pub(super) fn stat(&self) -> Option<Proc> {
        parse_stat(&read_at(self.dir.as_ref()?.as_fd(), "stat", STAT_BYTES_MAX).ok()?)
    }

    /// Duplicates the directory descriptor, for a reader thread that may be abandoned.
    pub(super) fn try_clone_dir(&self) -> Option<OwnedFd> {
        self.dir.as_ref()?.try_clone().ok()
    }

    pub(super) fn exe(&self) -> Option<String> {
        let path = rustix::fs::readlinkat(self.dir.as_ref()?, "exe", Vec::new()).ok()?;
        Some(path.to_string_lossy().into_owned())
    }

    pub(super) fn cgroup(&self) -> Option<String> {
        let bytes = read_at(self.dir.as_ref()?.as_fd(), "cgroup", CGROUP_BYTES_MAX).ok()?;
        cgroup::of_process(&String::from_utf8_lossy(&bytes))
    }

    /// Returns the parent as reported by the pidfd; `None` if the kernel does not report it.
    pub(super) fn parent(&self) -> Option<i32> {
        raw_parent(self.pidfd.as_ref()?.as_fd())
    }

    /// Returns the children, including those hidden by `/proc`.
    pub(super) fn children(&self) -> Vec<i32> {
        let Some(dir) = &self.dir else { return Vec::new() };
        let found = children_in(&format!("/proc/self/fd/{}/task", dir.as_raw_fd()));
        found.into_iter().map(|child| child.pid).collect()
    }

    /// Returns the life state. Must be read last, to prove that the process held its pid during the earlier
    /// reads.
    pub(super) fn life(&self, stat: Option<&Proc>, parent: Option<i32>) -> ProcessState {
        match (self.reaped(), stat) {
            (Some(true), _) => ProcessState::Gone,
            // The first thread may end before the others: a process is dead only when the pidfd is readable.
            (_, Some(stat)) if stat.zombie && self.ended() != Some(false) => ProcessState::Zombie,
            (_, Some(_)) => ProcessState::Running,
            (Some(false), None) => match self.ended() {
                Some(true) => ProcessState::Zombie,
                // Hidden by `/proc`, but the pidfd shows a running process.
                Some(false) if parent.is_some() => ProcessState::Running,
                Some(false) | None => ProcessState::Unreadable,
            },
            (None, None) if self.is_gone() => ProcessState::Gone,
            (None, None) => ProcessState::Unreadable,
        }
    }

    /// True if all threads have ended; `None` if the kernel does not report this.
    fn ended(&self) -> Option<bool> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let fd = PollFd::new(self.pidfd.as_ref()?, PollFlags::IN);
        rustix::event::poll(&mut [fd], Some(&at_once)).ok().map(|ready| ready > 0)
    }

    /// True if the `/proc` directory shows that the process was reaped. Other read errors are no proof.
    pub(super) fn is_gone(&self) -> bool {
        let Some(dir) = &self.dir else { return false };
        let stat = read_at(dir.as_fd(), "stat", STAT_BYTES_MAX);
        stat.is_err_and(|e| matches!(Errno::from_io_error(&e), Some(Errno::NOENT | Errno::SRCH)))
    }

    pub(super) fn reaped(&self) -> Option<bool> {
        let fd = self.pidfd.as_ref()?;
        match raw_signal(fd.as_fd(), 0, 0) {
            Ok(()) | Err(Errno::PERM) => Some(false),
            Err(Errno::SRCH) => Some(true),
            Err(_) => None,
        }
    }
}

impl OpenProcess for ProcessHandle {
    fn pid(&self) -> i32 {
        self.pid
    }

    fn record(&self) -> Option<ProcessRecord> {
        let start_ticks = self.stat()?.start_ticks;
        Some(ProcessRecord { pid: self.pid, start_ticks, inode: self.inode() })
    }

    fn inode(&self) -> Option<u64> {
        self.pidfd().and_then(pidfs_inode)
    }

    fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }
}

/// Returns the inode of a pidfd; `None` if the kernel has no pidfs.
#[must_use]
pub fn pidfs_inode(fd: BorrowedFd<'_>) -> Option<u64> {
    if rustix::fs::fstatfs(fd).ok()?.f_type != PIDFS_MAGIC {
        return None;
    }
    Some(rustix::fs::fstat(fd).ok()?.st_ino)
}

fn read_at(dir: BorrowedFd<'_>, name: &str, bytes_max: usize) -> io::Result<Vec<u8>> {
    let fd = rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::new();
    let mut piece = vec![0u8; 4096];
    loop {
        match rustix::io::read(&fd, &mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(piece.get(..count).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if bytes.len() > bytes_max {
            return Err(io::Error::from(Errno::FBIG));
        }
    }
}

/// Reads the lease marker from a process's environment. May hang.
pub(super) fn marker_in(dir: &OwnedFd) -> Marker {
    read_at(dir.as_fd(), "environ", ENVIRON_BYTES_MAX)
        .map_or(Marker::Unreadable, |bytes| Marker::parse(&bytes))
}

/// Reads the facts that legacy records are compared to. May hang.
pub(super) fn legacy_facts_in(dir: &OwnedFd) -> LegacyFacts {
    let argv = read_at(dir.as_fd(), "cmdline", ENVIRON_BYTES_MAX).ok().and_then(|bytes| {
        let text = String::from_utf8(bytes).ok()?;
        Some(text.strip_suffix('\0')?.split('\0').map(str::to_owned).collect())
    });
    let status = read_at(dir.as_fd(), "status", STAT_BYTES_MAX * 4).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let uid = line.and_then(|ids| ids.split_ascii_whitespace().next()?.parse().ok());
    LegacyFacts { argv, uid }
}

/// Returns the children of the threads in a task directory, including those hidden by `/proc`.
pub(super) fn children_in(tasks: &str) -> Vec<UnreapedChild> {
    let mut found = Vec::new();
    for task in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
        let Some(thread) = task.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let pids = list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        found.extend(pids.map(|pid| UnreapedChild { thread, pid }));
    }
    found
}

/// True if the mount options in `/proc/self/mountinfo` hide other users' processes in `/proc`.
pub(super) fn may_hide(mountinfo: &str) -> bool {
    let mut of_proc = mountinfo.lines().filter_map(|line| {
        let (fields, filesystem) = line.split_once(" - ")?;
        (fields.split(' ').nth(4)? == "/proc").then_some(filesystem)
    });
    // The last mount on the path is the visible one.
    let options = of_proc.next_back().unwrap_or_default().rsplit(' ').next().unwrap_or_default();
    options
        .split(',')
        .any(|option| option.strip_prefix("hidepid=").is_some_and(|value| !matches!(value, "0" | "off")))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::sys::Sys;
    use crate::sys::linux::Linux;

    #[test]
    fn hidden_proc_is_detected_by_mount_options() {
        let with = |options: &str| format!("22 1 0:5 / /proc rw,relatime shared:3 - proc proc {options}\n");
        for (text, want) in [
            (with("rw"), false),
            (with("rw,hidepid=0"), false),
            (with("rw,hidepid=off"), false),
            (with("rw,hidepid=2"), true),
            (with("rw,gid=4,hidepid=invisible"), true),
            (with("rw") + &with("rw,hidepid=ptraceable"), true),
            (with("rw,hidepid=2") + &with("rw"), false),
            ("23 1 0:6 / /mnt/proc rw - proc proc rw,hidepid=2\n".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(may_hide(&text), want, "{text}");
        }
    }

    /// The pidfd's parent equals that in `/proc`, if the kernel reports one.
    #[test]
    fn parent_and_children_are_read_without_process_list() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (me, pid) = (std::process::id().cast_signed(), child.id().cast_signed());
        let sys = Linux::new();
        let handle = sys.open(pid).unwrap();
        assert!(handle.parent().is_none_or(|parent| parent == me), "{:?}", handle.parent());
        assert!(sys.children_of(&sys.open(me).unwrap()).contains(&pid));
        assert_eq!(sys.parent(pid), Some(me));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((handle.parent(), sys.parent(pid)), (None, None));
    }
}
