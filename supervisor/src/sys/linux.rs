//! Linux implementation: pidfds, pidfs inodes and `/proc` directory handles. The only file of this package
//! with `unsafe` code: system calls without a wrapper crate, and descriptors given as numbers.

#![expect(
    unsafe_code,
    reason = "pidfd_send_signal with flags, clone3 into a control group, recvmsg with SCM_PIDFD and taking over a numbered \
              descriptor have no safe wrapper"
)]

use crate::core::cgroup::{CgroupKillPermit, CgroupMembers, LeaseCgroup, UnknownCgroup};
use crate::core::containment::CgroupLimits;
use crate::core::lease::{NsInit, PidScope, ProcessRecord};
use crate::core::tree::{Proc, parse_stat};
use crate::core::verify::legacy::LegacyFacts;
use crate::core::verify::{Evidence, HandleId, Marker, Verified};
use crate::sys::cgroup::CgroupTree;
use crate::sys::handle::{self, legacy_facts_in, marker_in, may_hide, scope};
pub use crate::sys::handle::{ProcessHandle, pidfs_inode};
use crate::sys::packet::{Packet, control_pair};
use crate::sys::proc_reader::{ProcessRead, ProcessReader};
use crate::sys::{
    KernelFeatures, OpenError, OpenProcess, PacketSender, Signal, SignalError, Sys, UnreapedChild,
};
use acp_shared::launch::{ExitStatus, WRAPPER_FILE};
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, WaitId, WaitIdOptions};
use std::collections::HashSet;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SO_PASSPIDFD: libc::c_int = 76;
const SCM_PIDFD: libc::c_int = 4;
const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 4;
/// `PIDFD_GET_INFO` with its first and smallest structure.
const PIDFD_GET_INFO: libc::Ioctl = 0xC040_FF0B_u32 as libc::Ioctl;
const PIDFD_INFO_PID: u64 = 1;
/// The child of `clone3` starts in the given control group.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// Highest signal number of Linux.
const SIGNAL_MAX: libc::c_int = 64;

/// Access to the Linux system.
#[derive(Debug)]
pub struct Linux {
    next_handle: AtomicU64,
    here: Option<PidScope>,
    /// True if pidfds are used where available.
    pidfds: bool,
    /// Control groups (v2), if mounted.
    groups: Option<CgroupTree>,
    /// True if `/proc` may hide processes (hidepid).
    hides: bool,
    /// Reads that may hang.
    reads: ProcessReader,
}

pub(super) fn raw_signal(fd: BorrowedFd<'_>, signal: libc::c_int, flags: libc::c_uint) -> Result<(), Errno> {
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

/// Returns the parent of a process according to the kernel, independent of `/proc`; `None` before Linux 6.13.
pub(super) fn raw_parent(pidfd: BorrowedFd<'_>) -> Option<i32> {
    /// The first 64 bytes of `struct pidfd_info`.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        cgroup_id: u64,
        pid: u32,
        tgid: u32,
        ppid: u32,
        rest: [u32; 9],
    }
    let mut info = Info { mask: PIDFD_INFO_PID, ..Info::default() };
    // SAFETY: the descriptor is open for the whole call, and the number of the call says that `info` is 64 bytes,
    // which the kernel reads and writes.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    let told = result == 0 && info.mask & PIDFD_INFO_PID != 0;
    i32::try_from(info.ppid).ok().filter(|_| told)
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

impl Default for Linux {
    fn default() -> Self {
        Self::new()
    }
}

impl Linux {
    /// Opens the system and reads the scope of this process.
    #[must_use]
    pub fn new() -> Self {
        let mut linux = Self {
            next_handle: AtomicU64::new(1),
            here: None,
            pidfds: true,
            groups: CgroupTree::find(),
            hides: std::fs::read_to_string("/proc/self/mountinfo").is_ok_and(|text| may_hide(&text)),
            reads: ProcessReader::default(),
        };
        let first = linux.open_as(1, false).ok();
        let init = NsInit {
            start_ticks: first.as_ref().and_then(ProcessHandle::stat).map(|stat| stat.start_ticks),
            inode: first.as_ref().and_then(OpenProcess::inode),
        };
        linux.here = scope(init);
        linux
    }

    /// Like [`Linux::new`], without pidfds, as on containment level R3.
    #[must_use]
    pub fn without_pidfds() -> Self {
        Self { pidfds: false, ..Self::new() }
    }

    /// Returns the control groups (v2), if mounted.
    #[must_use]
    pub const fn groups(&self) -> Option<&CgroupTree> {
        self.groups.as_ref()
    }

    fn tree(&self) -> io::Result<&CgroupTree> {
        self.groups.as_ref().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Returns the record of this process.
    #[must_use]
    pub fn own_record(&self) -> Option<ProcessRecord> {
        let pid = i32::try_from(std::process::id()).ok()?;
        self.open_as(pid, true).ok()?.record()
    }

    fn open_as(&self, pid: i32, own_child: bool) -> Result<ProcessHandle, OpenError> {
        let number = Pid::from_raw(pid).filter(|_| pid > 0).ok_or(OpenError::Gone)?;
        let opened = if self.pidfds {
            rustix::process::pidfd_open(number, PidfdFlags::empty())
        } else {
            Err(Errno::NOSYS)
        };
        let pidfd = match opened {
            Ok(fd) => Some(fd),
            // EINVAL, or ENOENT on newer kernels: the number belongs to a thread, not a process.
            Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => return Err(OpenError::Gone),
            Err(Errno::NOSYS | Errno::PERM) => None,
            Err(errno) => return Err(OpenError::Io(errno.into())),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = match rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty()) {
            Ok(fd) => Some(fd),
            // `/proc` may hide the process: signal 0 shows whether the pid exists.
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
        let handle = ProcessHandle { id, pid, pidfd, dir, own_child };
        // The directory was opened after the pidfd. If the process had been reaped in between, they could
        // belong to different processes.
        if handle.reaped() == Some(true) { Err(OpenError::Gone) } else { Ok(handle) }
    }

    /// Probes the features of the kernel.
    #[must_use]
    pub fn probe(&self) -> KernelFeatures {
        let me = i32::try_from(std::process::id()).ok().and_then(|pid| self.open_as(pid, false).ok());
        let pidfd = me.as_ref().and_then(ProcessHandle::pidfd);
        let group = pidfd.map(|fd| raw_signal(fd, 0, PIDFD_SIGNAL_PROCESS_GROUP));
        let sent = |fd: BorrowedFd<'_>| raw_signal(fd, 0, 0).is_ok();
        let dir = me.as_ref().and_then(|me| me.dir.as_ref());
        KernelFeatures {
            signals: pidfd.or(dir.map(AsFd::as_fd)).is_some_and(sent),
            pidfd: pidfd.is_some(),
            pidfs_inode: pidfd.and_then(pidfs_inode).is_some(),
            // ESRCH (not a group leader) and EPERM prove that the flag is known; EINVAL does not.
            pidfd_group: matches!(group, Some(Ok(()) | Err(Errno::SRCH | Errno::PERM))),
            scm_pidfd: control_pair().is_ok_and(|(_, ours)| pass_pidfd(ours.as_fd()).is_ok()),
            proc_list: self.snapshot().is_ok_and(|list| !list.is_empty()),
            subreaper: false,
            ..KernelFeatures::NONE
        }
    }
}

impl Sys for Linux {
    type Handle = ProcessHandle;

    fn current_scope(&self) -> Option<PidScope> {
        self.here.clone()
    }

    fn open(&self, pid: i32) -> Result<Arc<ProcessHandle>, OpenError> {
        self.open_as(pid, false).map(Arc::new)
    }

    fn kernel_evidence(&self, handle: &ProcessHandle) -> Evidence {
        let stat = handle.stat();
        // The pidfd provides facts that `/proc` hides.
        let parent = if stat.is_none() { handle.parent() } else { None };
        let life = handle.life(stat.as_ref(), parent);
        Evidence {
            handle: Some(handle.id),
            pid: handle.pid,
            scope: self.here.clone(),
            ppid: stat.as_ref().map(|s| s.ppid).or(parent),
            start_ticks: stat.as_ref().map(|s| s.start_ticks),
            pgid: stat.as_ref().map(|s| s.pgid),
            sid: stat.as_ref().map(|s| s.sid),
            inode: handle.inode(),
            marker: Marker::Unreadable,
            exe: handle.exe(),
            cgroup: handle.cgroup(),
            own_child: handle.own_child,
            life,
        }
    }

    fn marker(&self, handle: &ProcessHandle) -> Marker {
        let Some(dir) = handle.try_clone_dir() else { return Marker::Unreadable };
        self.reads.run_one(handle.pid, move || marker_in(&dir)).unwrap_or(Marker::Unreadable)
    }

    fn legacy_facts(&self, handle: &ProcessHandle) -> LegacyFacts {
        let Some(dir) = handle.try_clone_dir() else { return LegacyFacts::default() };
        self.reads.run_one(handle.pid, move || legacy_facts_in(&dir)).unwrap_or_default()
    }

    fn peek_markers(&self, pids: &[i32]) -> Vec<Marker> {
        let peek = |pid: i32| {
            let read = move || {
                std::fs::read(format!("/proc/{pid}/environ"))
                    .map_or(Marker::Unreadable, |bytes| Marker::parse(&bytes))
            };
            ProcessRead { pid, read: Box::new(read) as Box<dyn FnOnce() -> Marker + Send> }
        };
        let read = self.reads.run_all(pids.iter().copied().map(peek).collect());
        read.into_iter().map(|marker| marker.unwrap_or(Marker::Unreadable)).collect()
    }

    fn is_unreaped(&self, handle: &ProcessHandle) -> bool {
        handle.reaped().map_or_else(|| !handle.is_gone(), |reaped| !reaped)
    }

    fn snapshot(&self) -> io::Result<Vec<Proc>> {
        let mut list = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|text| text.parse::<i32>().ok()) else { continue };
            // A process that ended after the listing is no longer relevant.
            let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else { continue };
            list.extend(parse_stat(&stat));
        }
        Ok(list)
    }

    fn signal(&self, handle: &ProcessHandle, proof: &Verified, signal: Signal) -> Result<(), SignalError> {
        if proof.handle() != handle.id {
            return Err(SignalError::WrongProof);
        }
        // A /proc directory is as good as a pidfd here: both refer to a process, not a pid.
        let fd = handle.pidfd.as_ref().or(handle.dir.as_ref()).ok_or(SignalError::Gone)?;
        raw_signal(fd.as_fd(), number(signal), 0).map_err(signal_error)
    }

    fn signal_group(
        &self,
        handle: &ProcessHandle,
        proof: &Verified,
        signal: Signal,
    ) -> Result<(), SignalError> {
        if proof.handle() != handle.id {
            return Err(SignalError::WrongProof);
        }
        let fd = handle.pidfd.as_ref().ok_or(SignalError::Gone)?;
        raw_signal(fd.as_fd(), number(signal), PIDFD_SIGNAL_PROCESS_GROUP).map_err(signal_error)
    }

    fn own_ancestry(&self) -> HashSet<i32> {
        let mut line = HashSet::new();
        let mut pid = i32::try_from(std::process::id()).unwrap_or(1);
        while pid > 0 && line.insert(pid) {
            pid = self.parent(pid).unwrap_or(0);
        }
        line
    }

    fn start(&self, command: &mut Command, control: &OwnedFd) -> io::Result<i32> {
        let child = command.stdin(Stdio::from(control.try_clone()?)).spawn()?;
        i32::try_from(child.id()).map_err(io::Error::other)
    }

    fn start_in_group(
        &self,
        leaf: &LeaseCgroup,
        command: &Command,
        control: &OwnedFd,
    ) -> io::Result<Option<i32>> {
        let Ok(group) = self.tree().and_then(|tree| tree.open(leaf)) else { return Ok(None) };
        clone_into(&group, command, control)
    }

    fn limit_open_files(&self, pid: i32, limit: Rlimit) -> io::Result<()> {
        rustix::process::prlimit(Pid::from_raw(pid), Resource::Nofile, limit)?;
        Ok(())
    }

    fn make_group(&self, leaf: &LeaseCgroup, limits: &CgroupLimits) -> io::Result<Vec<String>> {
        self.tree()?.make(leaf, limits)
    }

    fn join_group(&self, leaf: &LeaseCgroup, child: &ProcessHandle) -> io::Result<()> {
        self.tree()?.join(leaf, child.pid)
    }

    fn group_members(&self, leaf: &LeaseCgroup) -> io::Result<CgroupMembers> {
        self.tree()?.list(leaf)
    }

    fn group_populated(&self, strange: &UnknownCgroup) -> io::Result<bool> {
        self.tree()?.populated(strange)
    }

    fn kill_group(&self, cleared: &CgroupKillPermit, wait: Duration) -> io::Result<()> {
        self.tree()?.kill(cleared, wait)
    }

    fn remove_group(&self, leaf: &LeaseCgroup) -> io::Result<()> {
        self.tree()?.remove(leaf)
    }

    fn open_child(&self, pid: i32) -> Result<Arc<ProcessHandle>, OpenError> {
        self.open_as(pid, true).map(Arc::new)
    }

    fn is_sender(&self, child: &ProcessHandle, sender: &PacketSender) -> bool {
        let process = sender.pidfd.as_ref().and_then(|fd| pidfs_inode(fd.as_fd()));
        // The pid identifies an unreaped child. The kernel gives no pidfd of a process that is gone.
        sender.pid == Some(child.pid) && process.zip(child.inode()).is_none_or(|(one, other)| one == other)
    }

    fn try_reap(&self, child: &ProcessHandle) -> io::Result<Option<ExitStatus>> {
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

    fn children(&self) -> Vec<UnreapedChild> {
        handle::children_in("/proc/self/task")
    }

    fn may_hide_processes(&self) -> bool {
        self.hides
    }

    fn children_of(&self, handle: &ProcessHandle) -> Vec<i32> {
        handle.children()
    }

    fn reap_orphan(&self, pid: i32) -> io::Result<bool> {
        let pid = Pid::from_raw(pid).ok_or(Errno::CHILD)?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        Ok(rustix::process::waitid(WaitId::Pid(pid), options)?.is_some())
    }

    fn parent(&self, pid: i32) -> Option<i32> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok().and_then(|stat| parse_stat(&stat));
        // The pid was read just before and may be stale; a broken line of ancestors is noticed.
        stat.map(|stat| stat.ppid).or_else(|| self.open_as(pid, false).ok()?.parent())
    }
}

/// Starts a wrapper in a control group, with `control` as its standard input. Returns `None` if the kernel cannot.
///
/// # Errors
/// The program was not executed.
fn clone_into(group: &File, command: &Command, control: &OwnedFd) -> io::Result<Option<i32>> {
    /// `struct clone_args` up to the control group.
    #[repr(C)]
    #[derive(Default)]
    struct CloneArgs {
        flags: u64,
        ids: [u64; 3],
        exit_signal: u64,
        stack: [u64; 5],
        cgroup: u64,
    }
    let (path, name) = (CString::new(command.get_program().as_bytes())?, CString::new(WRAPPER_FILE)?);
    let variables = command.get_envs().filter_map(|(name, value)| Some([name, value?].join(OsStr::new("="))));
    let variables = variables.map(|text| CString::new(text.as_bytes())).collect::<Result<Vec<_>, _>>()?;
    let end = std::ptr::null();
    let env: Vec<_> = variables.iter().map(|text| text.as_ptr()).chain([end]).collect();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let (report, failed) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let stdio = [control.as_raw_fd(), null.as_raw_fd(), null.as_raw_fd()];
    let number = |fd: RawFd| u64::from(fd.unsigned_abs());
    let (exit_signal, cgroup) = (number(libc::SIGCHLD), number(group.as_raw_fd()));
    let asked = CloneArgs { flags: CLONE_INTO_CGROUP, exit_signal, cgroup, ..CloneArgs::default() };
    // No handler of this process runs in the child.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    // SAFETY: the size of `asked` is that of the argument. As after fork, the child has a copy of the memory and one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const asked, size_of::<CloneArgs>()) };
    if pid == 0 {
        // SAFETY: this is the child, and everything it needs was made before.
        unsafe { exec_child(stdio, &path, &[name.as_ptr(), end], &env, failed.as_raw_fd()) }
    }
    mask.thread_set_mask()?;
    let Some(child) = i32::try_from(pid).ok().filter(|pid| *pid > 0).and_then(Pid::from_raw) else {
        return Ok(None);
    };
    drop(failed);
    let mut errno = [0; size_of::<i32>()];
    if rustix::io::retry_on_intr(|| rustix::io::read(&report, &mut errno))? < errno.len() {
        return Ok(Some(child.as_raw_nonzero().get()));
    }
    // It ends at once. A child that is not reaped here is an orphan, which the reaper takes.
    let _ = rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::Pid(child), WaitIdOptions::EXITED));
    Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
}

/// Executes a program in a new child; writes the errno of a failure to `failed`. Only async-signal-safe calls: locks may be
/// held by threads that the child does not have.
///
/// # Safety
/// To be called in the child alone. The arrays end with a null pointer.
unsafe fn exec_child(
    stdio: [RawFd; 3],
    path: &CStr,
    argv: &[*const libc::c_char],
    env: &[*const libc::c_char],
    failed: RawFd,
) -> ! {
    // SAFETY: system calls on numbers and on memory that outlives them; an empty set is all zeroes.
    unsafe {
        for signal in 1..=SIGNAL_MAX {
            libc::signal(signal, libc::SIG_DFL);
        }
        let none: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        if (0..).zip(stdio).all(|(number, fd)| libc::dup2(fd, number) == number) {
            libc::execve(path.as_ptr(), argv.as_ptr(), env.as_ptr());
        }
        let errno = *libc::__errno_location();
        libc::write(failed, (&raw const errno).cast(), size_of::<libc::c_int>());
        libc::_exit(1)
    }
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

/// Takes over a descriptor that an earlier image of this process, or a service manager, left open, and marks
/// it close-on-exec. The caller passes each number once, before this program has opened any descriptor.
///
/// # Errors
/// The number is not open.
pub fn take_fd(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: a closed number gives EBADF; for an open one the call changes only the descriptor's flag.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and no value of this image owns it: it was inherited over `execve`, is meant for this
    // program alone, and the caller takes each number once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Buffer for the control messages of one packet, credentials and a pidfd, aligned for their headers. A
/// sender cannot pass more than a few descriptors in this space.
#[repr(C, align(8))]
struct ControlSpace([u8; CONTROL_SPACE_BYTES]);

const CONTROL_SPACE_BYTES: usize = 64;

/// Receives one packet without blocking. A packet of no bytes and without a sender is the end of the stream.
///
/// # Errors
/// `WouldBlock` if no packet is available.
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
    // Descriptors without room were sent but not opened.
    let cut = header.msg_flags & libc::MSG_CTRUNC != 0;
    let mut got = Packet { bytes, sender: PacketSender::default(), laden: cut };
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
