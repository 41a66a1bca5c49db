//! Process setup of the wrapper before the adapter runs.

use crate::error::{StepContext, StepError};
use crate::sys;
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Pid, PidfdFlags};
use std::os::fd::{OwnedFd, RawFd};

/// True if stdin is a control socket of a supervisor: a `SOCK_SEQPACKET` Unix socket.
pub(crate) fn started_by_supervisor() -> bool {
    let stdin = std::io::stdin();
    rustix::net::sockopt::socket_type(&stdin) == Ok(SocketType::SEQPACKET)
        && rustix::net::sockopt::socket_domain(&stdin) == Ok(AddressFamily::UNIX)
}

/// Moves the control socket above the stdio descriptors, puts `/dev/null` in its place, and closes leaked
/// descriptors.
pub(crate) fn take_control_socket() -> Result<OwnedFd, StepError> {
    const STAGE: &str = "set up the control socket";
    if sys::close_all_from(3).is_err() {
        // Kernels before 5.9 lack `close_range`.
        for fd in inherited_above_stdio() {
            // Fails for the descriptor of the directory listing itself, which is already closed.
            let _ = nix::unistd::close(fd);
        }
    }
    let socket = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3).during(STAGE)?;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let null = rustix::fs::open("/dev/null", flags, Mode::empty()).during(STAGE)?;
    nix::unistd::dup2_stdin(&null).during(STAGE)?;
    Ok(socket)
}

fn inherited_above_stdio() -> Vec<RawFd> {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    open.flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok())
        .filter(|fd| *fd > 2)
        .collect()
}

/// Creates a session, becomes child subreaper, leaves the working directory, and keeps dead children
/// waitable.
pub(crate) fn detach_session() -> Result<(), StepError> {
    let own = rustix::process::getpid();
    if let Err(e) = rustix::process::setsid()
        && nix::unistd::getsid(None) != Ok(nix::unistd::Pid::from_raw(own.as_raw_nonzero().get()))
    {
        return Err(e).during("create a session");
    }
    rustix::process::set_child_subreaper(Some(own)).during("become child subreaper")?;
    sys::keep_children_waitable().during("keep dead children waitable")?;
    rustix::process::chdir("/").during("leave the working directory")
}

/// Blocks all signals and opens a signalfd for them.
pub(crate) fn open_signalfd() -> Result<SignalFd, StepError> {
    const STAGE: &str = "set up signal handling";
    let all = SigSet::all();
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&all), None).during(STAGE)?;
    SignalFd::with_flags(&all, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).during(STAGE)
}

/// Opens a pidfd on the parent. The parent's pid is read before and after, so the pidfd cannot refer to
/// another process.
///
/// Returns `None` if the parent is in another pid namespace or the kernel has no pidfds. Then only the
/// control socket indicates that the supervisor is gone.
pub(crate) fn watch_parent() -> Result<Option<OwnedFd>, StepError> {
    const STAGE: &str = "watch the parent";
    let Some(parent) = rustix::process::getppid() else { return Ok(None) };
    let pidfd = match rustix::process::pidfd_open(parent, PidfdFlags::empty()) {
        Ok(pidfd) => Some(pidfd),
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => None,
        Err(e) => return Err(e).during(STAGE),
    };
    if rustix::process::getppid() == Some(parent) {
        Ok(pidfd)
    } else {
        Err(StepError::new("watch the parent: it has ended", libc::ESRCH))
    }
}

/// Opens a pidfd on an own child that is not reaped yet; `None` if that fails.
pub(crate) fn watch_child(pid: i32) -> Option<OwnedFd> {
    rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}
