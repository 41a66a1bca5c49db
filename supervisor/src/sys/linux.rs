//! Linux: pidfds, pidfs inodes and `/proc` directory handles. The only file of this package with `unsafe` in it,
//! for two system calls that no crate wraps, and for a descriptor that comes as a number.

#![expect(
    unsafe_code,
    reason = "pidfd_send_signal with flags, recvmsg with SCM_PIDFD and taking over a numbered descriptor have no safe wrapper"
)]

use crate::core::cgroup::{self, Cleared, Leaf, Members};
use crate::core::ladder::Limits;
use crate::core::lease::{NsInit, ProcessRecord, Scope};
use crate::core::tree::{Proc, parse_stat};
use crate::core::verify::legacy::Particulars;
use crate::core::verify::{Evidence, HandleId, Life, Marker, Verified};
use crate::sys::cgroup::Tree;
use crate::sys::packet::{Packet, control_pair};
use crate::sys::{Abilities, OpenError, OpenProcess, Sender, Signal, SignalError, Sys};
use acp_shared::launch::ExitStatus;
use nix::libc;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, WaitId, WaitIdOptions};
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const PIDFS_MAGIC: i64 = 0x5049_4446;
const SO_PASSPIDFD: libc::c_int = 76;
const SCM_PIDFD: libc::c_int = 4;
const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 4;
/// The largest environment that is read, in bytes; a longer one counts as unreadable.
const ENVIRON_BYTES_MAX: usize = 4 * 1024 * 1024;
const STAT_BYTES_MAX: usize = 4096;
const CGROUP_BYTES_MAX: usize = 64 * 1024;
/// How far up the line of a process is followed.
const GENERATIONS_MAX: usize = 4096;

/// This machine.
#[derive(Debug)]
pub struct Linux {
    next_handle: AtomicU64,
    here: Option<Scope>,
    /// Whether pidfds are used where the kernel has them.
    pidfds: bool,
    /// The control groups (v2), where they are mounted.
    groups: Option<Tree>,
}

/// An open process.
#[derive(Debug)]
pub struct Handle {
    id: HandleId,
    pid: i32,
    pidfd: Option<OwnedFd>,
    dir: Option<OwnedFd>,
    own_child: bool,
}

impl Handle {
    fn stat(&self) -> Option<Proc> {
        parse_stat(&read_at(self.dir.as_ref()?.as_fd(), "stat", STAT_BYTES_MAX).ok()?)
    }

    fn marker(&self) -> Marker {
        let Some(dir) = &self.dir else { return Marker::Unreadable };
        read_at(dir.as_fd(), "environ", ENVIRON_BYTES_MAX)
            .map_or(Marker::Unreadable, |bytes| Marker::parse(&bytes))
    }

    /// Whether all its threads have ended; `None` where the kernel does not say.
    fn ended(&self) -> Option<bool> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let fd = PollFd::new(self.pidfd.as_ref()?, PollFlags::IN);
        rustix::event::poll(&mut [fd], Some(&at_once)).ok().map(|ready| ready > 0)
    }

    /// Whether its directory says that it was reaped. What is unreadable for another reason is no proof.
    fn is_gone(&self) -> bool {
        let Some(dir) = &self.dir else { return false };
        let stat = read_at(dir.as_fd(), "stat", STAT_BYTES_MAX);
        stat.is_err_and(|e| matches!(Errno::from_io_error(&e), Some(Errno::NOENT | Errno::SRCH)))
    }

    fn reaped(&self) -> Option<bool> {
        let fd = self.pidfd.as_ref()?;
        match raw_signal(fd.as_fd(), 0, 0) {
            Ok(()) | Err(Errno::PERM) => Some(false),
            Err(Errno::SRCH) => Some(true),
            Err(_) => None,
        }
    }
}

impl OpenProcess for Handle {
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

/// The inode of a pidfd, if the kernel keeps pidfds in pidfs.
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

fn raw_signal(fd: BorrowedFd<'_>, signal: libc::c_int, flags: libc::c_uint) -> Result<(), Errno> {
    // SAFETY: the descriptor is open for the whole call, the info pointer is null, which the call allows, and the
    // kernel touches no other memory of ours.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            fd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            flags,
        )
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

fn last_errno() -> Errno {
    io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

const fn number(signal: Signal) -> libc::c_int {
    match signal {
        Signal::Term => libc::SIGTERM,
        Signal::Cont => libc::SIGCONT,
        Signal::Stop => libc::SIGSTOP,
        Signal::Kill => libc::SIGKILL,
    }
}

fn signal_error(errno: Errno) -> SignalError {
    match errno {
        Errno::SRCH => SignalError::Gone,
        Errno::PERM => SignalError::Foreign,
        other => SignalError::Io(other.into()),
    }
}

fn read_text(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

impl Default for Linux {
    fn default() -> Self {
        Self::new()
    }
}

impl Linux {
    /// Reads where it runs.
    #[must_use]
    pub fn new() -> Self {
        let mut linux =
            Self { next_handle: AtomicU64::new(1), here: None, pidfds: true, groups: Tree::find() };
        let first = linux.open_as(1, false).ok();
        let init = NsInit {
            start_ticks: first.as_ref().and_then(Handle::stat).map(|stat| stat.start_ticks),
            inode: first.as_ref().and_then(OpenProcess::inode),
        };
        linux.here = read_text("/proc/sys/kernel/random/boot_id")
            .zip(rustix::fs::stat("/proc/self/ns/pid").ok())
            .map(|(boot_id, ns)| Scope { boot_id, pidns: ns.st_ino, init });
        linux
    }

    /// As [`Linux::new`], without pidfds: what rung R3 has.
    #[must_use]
    pub fn without_pidfds() -> Self {
        Self { pidfds: false, ..Self::new() }
    }

    /// The control groups (v2), where they are mounted.
    #[must_use]
    pub const fn groups(&self) -> Option<&Tree> {
        self.groups.as_ref()
    }

    fn tree(&self) -> io::Result<&Tree> {
        self.groups.as_ref().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// This process, for the record.
    #[must_use]
    pub fn myself(&self) -> Option<ProcessRecord> {
        let pid = i32::try_from(std::process::id()).ok()?;
        self.open_as(pid, true).ok()?.record()
    }

    fn open_as(&self, pid: i32, own_child: bool) -> Result<Handle, OpenError> {
        let number = Pid::from_raw(pid).filter(|_| pid > 0).ok_or(OpenError::Gone)?;
        let opened = if self.pidfds {
            rustix::process::pidfd_open(number, PidfdFlags::empty())
        } else {
            Err(Errno::NOSYS)
        };
        let pidfd = match opened {
            Ok(fd) => Some(fd),
            // EINVAL, on newer kernels ENOENT: the number is a thread's, not a process's.
            Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => return Err(OpenError::Gone),
            Err(Errno::NOSYS | Errno::PERM) => None,
            Err(errno) => return Err(OpenError::Io(errno.into())),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = match rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty()) {
            Ok(fd) => Some(fd),
            // One that is hidden can be there all the same: the kernel tells by refusing a signal.
            Err(Errno::NOENT)
                if pidfd.is_none() && rustix::process::test_kill_process(number) == Err(Errno::SRCH) =>
            {
                return Err(OpenError::Gone);
            }
            Err(errno @ (Errno::NOENT | Errno::ACCESS | Errno::PERM)) if pidfd.is_none() => {
                return Err(OpenError::Io(errno.into()));
            }
            Err(Errno::NOENT | Errno::ACCESS | Errno::PERM) => None,
            Err(errno) => return Err(OpenError::Io(errno.into())),
        };
        let id = HandleId(self.next_handle.fetch_add(1, Ordering::Relaxed));
        let handle = Handle { id, pid, pidfd, dir, own_child };
        // The directory was opened after the pidfd. Had the process been reaped in between, the two could be of
        // different processes.
        if handle.reaped() == Some(true) { Err(OpenError::Gone) } else { Ok(handle) }
    }

    /// Tries what the kernel can do.
    #[must_use]
    pub fn probe(&self) -> Abilities {
        let me = i32::try_from(std::process::id()).ok().and_then(|pid| self.open_as(pid, false).ok());
        let pidfd = me.as_ref().and_then(Handle::pidfd);
        let group = pidfd.map(|fd| raw_signal(fd, 0, PIDFD_SIGNAL_PROCESS_GROUP));
        let sent = |fd: BorrowedFd<'_>| raw_signal(fd, 0, 0).is_ok();
        let dir = me.as_ref().and_then(|me| me.dir.as_ref());
        Abilities {
            signals: pidfd.or(dir.map(AsFd::as_fd)).is_some_and(sent),
            pidfd: pidfd.is_some(),
            pidfs_inode: pidfd.and_then(pidfs_inode).is_some(),
            // Not a leader is an answer; an unknown flag is none.
            pidfd_group: matches!(group, Some(Ok(()) | Err(Errno::SRCH | Errno::PERM))),
            scm_pidfd: control_pair().is_ok_and(|(_, ours)| pass_pidfd(ours.as_fd()).is_ok()),
            proc_list: self.snapshot().is_ok_and(|list| !list.is_empty()),
            subreaper: false,
            ..Abilities::NONE
        }
    }
}

impl Sys for Linux {
    type Handle = Handle;

    fn here(&self) -> Option<Scope> {
        self.here.clone()
    }

    fn open(&self, pid: i32) -> Result<Arc<Handle>, OpenError> {
        self.open_as(pid, false).map(Arc::new)
    }

    fn evidence(&self, handle: &Handle) -> Evidence {
        let stat = handle.stat();
        let marker = handle.marker();
        let exe = handle.dir.as_ref().and_then(|dir| {
            let path = rustix::fs::readlinkat(dir, "exe", Vec::new()).ok()?;
            Some(path.to_string_lossy().into_owned())
        });
        let cgroup = handle.dir.as_ref().and_then(|dir| {
            let bytes = read_at(dir.as_fd(), "cgroup", CGROUP_BYTES_MAX).ok()?;
            cgroup::of_process(&String::from_utf8_lossy(&bytes))
        });
        // Read last: what was read above is of a process that still held its number then.
        let life = match (handle.reaped(), &stat) {
            (Some(true), _) => Life::Gone,
            // Its first thread may have ended before the others: a process is dead when its pidfd says so.
            (_, Some(stat)) if stat.zombie && handle.ended() != Some(false) => Life::Zombie,
            (_, Some(_)) => Life::Running,
            (Some(false), None) => Life::Unreadable,
            (None, None) if handle.is_gone() => Life::Gone,
            (None, None) => Life::Unreadable,
        };
        Evidence {
            handle: Some(handle.id),
            pid: handle.pid,
            scope: self.here.clone(),
            life,
            start_ticks: stat.as_ref().map(|s| s.start_ticks),
            ppid: stat.as_ref().map(|s| s.ppid),
            pgid: stat.as_ref().map(|s| s.pgid),
            sid: stat.as_ref().map(|s| s.sid),
            inode: handle.inode(),
            marker,
            exe,
            cgroup,
            own_child: handle.own_child,
        }
    }

    fn particulars(&self, handle: &Handle) -> Particulars {
        let Some(dir) = &handle.dir else { return Particulars::default() };
        let argv = read_at(dir.as_fd(), "cmdline", ENVIRON_BYTES_MAX).ok().and_then(|bytes| {
            let text = String::from_utf8(bytes).ok()?;
            Some(text.strip_suffix('\0')?.split('\0').map(str::to_owned).collect())
        });
        let status = read_at(dir.as_fd(), "status", STAT_BYTES_MAX * 4).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        let uid = line.and_then(|ids| ids.split_ascii_whitespace().next()?.parse().ok());
        Particulars { argv, uid }
    }

    fn peek_marker(&self, pid: i32) -> Marker {
        std::fs::read(format!("/proc/{pid}/environ"))
            .map_or(Marker::Unreadable, |bytes| Marker::parse(&bytes))
    }

    fn holds_number(&self, handle: &Handle) -> bool {
        handle.reaped().map_or_else(|| !handle.is_gone(), |reaped| !reaped)
    }

    fn snapshot(&self) -> io::Result<Vec<Proc>> {
        let mut list = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|text| text.parse::<i32>().ok()) else { continue };
            // A process that ended since it was listed is no longer of interest.
            let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else { continue };
            list.extend(parse_stat(&stat));
        }
        Ok(list)
    }

    fn signal(&self, handle: &Handle, proof: &Verified, signal: Signal) -> Result<(), SignalError> {
        if proof.handle() != handle.id {
            return Err(SignalError::WrongProof);
        }
        // A /proc directory is as good as a pidfd here: both name a process, not a number.
        let fd = handle.pidfd.as_ref().or(handle.dir.as_ref()).ok_or(SignalError::Gone)?;
        raw_signal(fd.as_fd(), number(signal), 0).map_err(signal_error)
    }

    fn signal_group(&self, handle: &Handle, proof: &Verified, signal: Signal) -> Result<(), SignalError> {
        if proof.handle() != handle.id {
            return Err(SignalError::WrongProof);
        }
        let fd = handle.pidfd.as_ref().ok_or(SignalError::Gone)?;
        raw_signal(fd.as_fd(), number(signal), PIDFD_SIGNAL_PROCESS_GROUP).map_err(signal_error)
    }

    fn own_line(&self) -> HashSet<i32> {
        let mut line = HashSet::new();
        let mut pid = i32::try_from(std::process::id()).unwrap_or(1);
        while pid > 0 && line.insert(pid) {
            let stat = std::fs::read(format!("/proc/{pid}/stat")).ok();
            pid = stat.and_then(|bytes| parse_stat(&bytes)).map_or(0, |s| s.ppid);
        }
        line
    }

    fn start(&self, command: &mut Command, control: &OwnedFd) -> io::Result<i32> {
        let child = command.stdin(Stdio::from(control.try_clone()?)).spawn()?;
        i32::try_from(child.id()).map_err(io::Error::other)
    }

    fn limit_open_files(&self, pid: i32, limit: Rlimit) -> io::Result<()> {
        rustix::process::prlimit(Pid::from_raw(pid), Resource::Nofile, limit)?;
        Ok(())
    }

    fn make_group(&self, leaf: &Leaf, limits: &Limits) -> io::Result<Vec<String>> {
        self.tree()?.make(leaf, limits)
    }

    fn join_group(&self, leaf: &Leaf, child: &Handle) -> io::Result<()> {
        self.tree()?.join(leaf, child.pid)
    }

    fn group_members(&self, leaf: &Leaf) -> io::Result<Members> {
        self.tree()?.list(leaf)
    }

    fn kill_group(&self, cleared: &Cleared, wait: Duration) -> io::Result<()> {
        self.tree()?.kill(cleared, wait)
    }

    fn remove_group(&self, leaf: &Leaf) -> io::Result<()> {
        self.tree()?.remove(leaf)
    }

    fn open_child(&self, pid: i32) -> Result<Arc<Handle>, OpenError> {
        self.open_as(pid, true).map(Arc::new)
    }

    fn spoke(&self, child: &Handle, sender: &Sender) -> bool {
        let process = sender.pidfd.as_ref().and_then(|fd| pidfs_inode(fd.as_fd()));
        // The number says enough of a child that holds it; a process that is gone has no descriptor any more.
        sender.pid == Some(child.pid) && process.zip(child.inode()).is_none_or(|(one, other)| one == other)
    }

    fn collect(&self, child: &Handle) -> io::Result<Option<ExitStatus>> {
        let id = match (&child.pidfd, Pid::from_raw(child.pid)) {
            (Some(fd), _) => WaitId::PidFd(fd.as_fd()),
            (None, Some(pid)) => WaitId::Pid(pid),
            (None, None) => return Err(Errno::CHILD.into()),
        };
        let status = rustix::process::waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOHANG)?;
        Ok(status.map(|status| match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => ExitStatus::Exited(code),
            (None, Some(signal)) => ExitStatus::Signaled(signal),
            (None, None) => ExitStatus::Unknown,
        }))
    }

    fn children(&self) -> Vec<i32> {
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let pids: Vec<String> = lists.collect();
        pids.iter()
            .flat_map(|list| list.split_ascii_whitespace())
            .filter_map(|pid| pid.parse().ok())
            .collect()
    }

    fn reap_stray(&self, pid: i32) -> io::Result<bool> {
        let pid = Pid::from_raw(pid).ok_or(Errno::CHILD)?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        Ok(rustix::process::waitid(WaitId::Pid(pid), options)?.is_some())
    }

    fn is_below(&self, pid: i32, roots: &HashSet<i32>) -> Option<bool> {
        let mut at = pid;
        for _ in 0..GENERATIONS_MAX {
            if roots.contains(&at) {
                return Some(true);
            }
            if at <= 1 {
                return Some(false);
            }
            match std::fs::read(format!("/proc/{at}/stat")).ok().and_then(|stat| parse_stat(&stat)) {
                Some(stat) => at = stat.ppid,
                // Hidden from this process, so of another user: none of the trees that it started.
                None if self.open(at).is_ok() => return Some(false),
                None => return None,
            }
        }
        None
    }
}

/// Takes over the listening Unix socket that a service manager left under a number before this program began. No
/// child gets it.
///
/// # Errors
/// There is none.
pub fn inherited_listener(number: RawFd) -> io::Result<OwnedFd> {
    let fd = adopt(number)?;
    let unix = rustix::net::sockopt::socket_domain(&fd)? == rustix::net::AddressFamily::UNIX;
    if unix && rustix::net::sockopt::socket_acceptconn(&fd)? {
        return Ok(fd);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "what was handed over is no listening Unix socket"))
}

/// Asks the kernel to send a pidfd of the sender with each packet.
///
/// # Errors
/// The kernel is older than 6.5.
pub fn pass_pidfd(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    let size = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(4);
    // SAFETY: the option is an int, `on` lives through the call, and `size` is its size.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSPIDFD, (&raw const on).cast(), size)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes over a descriptor that an earlier image of this process, or a service manager, left open, and closes it to
/// all later ones. The caller names each number once, before this program has opened anything of its own.
///
/// # Errors
/// It is not open.
pub fn adopt(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: a number that is not open gives EBADF; the flag of one that is open is all that is changed.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and no value of this image owns it: it was inherited over `execve`, is meant for this
    // program alone, and the caller takes each number once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Room for what the kernel says of one packet, credentials and a pidfd, aligned as its headers want. Whoever sends
/// descriptors gets few of them in here.
#[repr(C, align(8))]
struct ControlSpace([u8; CONTROL_SPACE_BYTES]);

const CONTROL_SPACE_BYTES: usize = 64;

/// Receives one packet, without waiting. One of no bytes and of no sender is the end of all.
///
/// # Errors
/// `WouldBlock` when nothing is there yet.
pub fn recv_packet(socket: BorrowedFd<'_>, packet: &mut [u8]) -> io::Result<Packet> {
    let mut space = ControlSpace([0; CONTROL_SPACE_BYTES]);
    let mut piece = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: packet.len() };
    // SAFETY: a msghdr of zeroes is a valid empty one.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_control = space.0.as_mut_ptr().cast();
    header.msg_controllen = size_of::<ControlSpace>();
    // SAFETY: the header points at `piece` and `space`, which outlive the call, with their true sizes.
    let got = unsafe {
        libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT)
    };
    let bytes = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    // What had no room was not opened; it was sent all the same.
    let cut = header.msg_flags & libc::MSG_CTRUNC != 0;
    let mut got = Packet { bytes, sender: Sender::default(), laden: cut };
    // SAFETY: the header is as the kernel filled it in; the macros stay within `msg_controllen` bytes of `space`.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !control.is_null() {
        // SAFETY: `control` is not null and points at a whole header inside of `space`, which is aligned for it.
        let (level, kind, len) =
            unsafe { ((*control).cmsg_level, (*control).cmsg_type, (*control).cmsg_len) };
        // SAFETY: plain arithmetic on a constant.
        let head = unsafe { libc::CMSG_LEN(0) } as usize;
        let ints = len.saturating_sub(head) / size_of::<libc::c_int>();
        // SAFETY: the message carries so many ints from here on, all inside of `space`.
        let int =
            |at: usize| unsafe { libc::CMSG_DATA(control).cast::<libc::c_int>().add(at).read_unaligned() };
        match (level, kind) {
            // The first of pid, uid and gid.
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if ints > 0 => got.sender.pid = Some(int(0)),
            (libc::SOL_SOCKET, SCM_PIDFD) if ints > 0 && int(0) >= 0 => {
                // SAFETY: a descriptor that the kernel made for us just now and nothing else owns.
                got.sender.pidfd = Some(unsafe { OwnedFd::from_raw_fd(int(0)) });
            }
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                got.laden = true;
                // SAFETY: as above, each of them; closed at once.
                (0..ints).for_each(|at| drop(unsafe { OwnedFd::from_raw_fd(int(at)) }));
            }
            _ => {}
        }
        // SAFETY: both pointers belong to the same filled-in header.
        control = unsafe { libc::CMSG_NXTHDR(&raw const header, control) };
    }
    if header.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(Errno::MSGSIZE.into());
    }
    Ok(got)
}
