//! Port to the operating system's processes. Carries out the decisions of [`crate::core`]. Signals are sent
//! only through a handle that was opened before its evidence was read. Also files and services of the host:
//! launch directories, the program on disk, the service manager.

pub mod blocking_io;
pub mod cgroup;
pub mod child;
mod handle;
pub(crate) mod inherited_fd;
pub mod launch_dir;
pub mod linux;
pub mod packet;
mod proc_reader;
pub(crate) mod program;
pub mod systemd;
pub mod users;

use crate::core::cgroup::{CgroupKillPermit, CgroupMembers, LeaseCgroup, UnknownCgroup};
use crate::core::containment::CgroupLimits;
pub use crate::core::containment::KernelFeatures;
use crate::core::lease::{PidScope, ProcessRecord};
use crate::core::tree::Proc;
use crate::core::verify::legacy::LegacyFacts;
use crate::core::verify::{Evidence, Marker, Verified};
use acp_shared::launch::ExitStatus;
use rustix::process::Rlimit;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

fn time_of(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time since this machine was booted, with its suspension, in milliseconds.
#[must_use]
pub fn since_boot_ms() -> u64 {
    millis(time_of(ClockId::Boottime))
}

/// Returns the suspended time of this machine since boot, in milliseconds.
#[must_use]
pub fn suspended_ms() -> u64 {
    let awake = time_of(ClockId::Monotonic);
    millis(time_of(ClockId::Boottime).saturating_sub(awake))
}

/// Signals sent by this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: requests an orderly end.
    Term,
    /// SIGCONT: resumes a stopped process to let SIGTERM take effect.
    Cont,
    /// SIGSTOP: stops a process until SIGKILL, so that the tree cannot grow.
    Stop,
    /// SIGKILL: ends a process.
    Kill,
}

/// Error: a process could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such process (or the number belongs to a thread).
    #[error("there is no such process")]
    Gone,
    /// Permission denied, or out of resources.
    #[error("the process cannot be opened")]
    Io(#[source] io::Error),
}

/// Error: a signal was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SignalError {
    /// The proof belongs to another handle. Nothing was sent.
    #[error("the proof belongs to another process handle")]
    WrongProof,
    /// The process is gone.
    #[error("the process is gone")]
    Gone,
    /// The process belongs to another user.
    #[error("the process belongs to another user")]
    Foreign,
    /// The kernel refused for another reason.
    #[error("the signal was not sent")]
    Io(#[source] io::Error),
}

/// Sender of a packet according to the kernel.
#[derive(Debug, Default)]
pub struct PacketSender {
    /// Pid at the time of sending.
    pub pid: Option<i32>,
    /// pidfd of the sender, if the kernel provides one.
    pub pidfd: Option<OwnedFd>,
}

/// Child of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreapedChild {
    /// Thread of this process with the child: forked, or inherited as subreaper.
    pub thread: i32,
    /// Process id.
    pub pid: i32,
}

/// Open process.
pub trait OpenProcess: Send + Sync + std::fmt::Debug + 'static {
    /// Returns the process id.
    fn pid(&self) -> i32;

    /// Returns the recorded identity; `None` if the start time is unreadable.
    fn record(&self) -> Option<ProcessRecord>;

    /// Returns the pidfs inode, if the kernel provides one.
    fn inode(&self) -> Option<u64>;

    /// Returns a descriptor that becomes readable when the process ends, if the kernel provides one.
    fn pidfd(&self) -> Option<BorrowedFd<'_>>;
}

/// Interface to the operating system.
pub trait Sys: Send + Sync + std::fmt::Debug + 'static {
    /// Open process, through which all evidence is read and all signals are sent.
    type Handle: OpenProcess;

    /// Returns the scope in which pids are valid here; `None` if unreadable.
    fn current_scope(&self) -> Option<PidScope>;

    /// Opens a process.
    ///
    /// # Errors
    /// [`OpenError`] if the process is gone or cannot be opened.
    fn open(&self, pid: i32) -> Result<Arc<Self::Handle>, OpenError>;

    /// Reads the kernel's facts about a process through a handle, without the marker, whose read may take
    /// long.
    fn kernel_evidence(&self, handle: &Self::Handle) -> Evidence;

    /// Reads the lease marker from a process's environment through a handle. The kernel reads it from the
    /// memory of the process, which may hang: after a timeout the marker counts as unreadable.
    fn marker(&self, handle: &Self::Handle) -> Marker;

    /// Reads all evidence through a handle.
    fn evidence(&self, handle: &Self::Handle) -> Evidence {
        // The marker comes first: the life state, read last, shows whether the process still held its pid.
        let marker = self.marker(handle);
        Evidence { marker, ..self.kernel_evidence(handle) }
    }

    /// Reads the facts that legacy records are compared to. Without facts no record is believed.
    fn legacy_facts(&self, _handle: &Self::Handle) -> LegacyFacts {
        LegacyFacts::default()
    }

    /// Reads the markers of processes by pid, in the same order: a hint about which processes to open. After
    /// a timeout a marker counts as unreadable.
    fn peek_markers(&self, pids: &[i32]) -> Vec<Marker>;

    /// True if the process of a handle is not reaped yet. Until then its pid cannot be reused.
    fn is_unreaped(&self, handle: &Self::Handle) -> bool;

    /// Lists all processes: a hint about which processes to open.
    ///
    /// # Errors
    /// The list is unreadable.
    fn snapshot(&self) -> io::Result<Vec<Proc>>;

    /// Sends a signal to a verified process.
    ///
    /// # Errors
    /// [`SignalError`]; in any case nothing was sent.
    fn signal(&self, handle: &Self::Handle, proof: &Verified, signal: Signal) -> Result<(), SignalError>;

    /// Sends a signal to the process group led by a verified process.
    ///
    /// # Errors
    /// [`SignalError`]; [`SignalError::Gone`] also if the process leads no group.
    fn signal_group(
        &self,
        handle: &Self::Handle,
        proof: &Verified,
        signal: Signal,
    ) -> Result<(), SignalError>;

    /// Returns the pids of this process and its ancestors.
    fn own_ancestry(&self) -> HashSet<i32>;

    /// Returns the parent of a process; `None` if unreadable or gone.
    fn parent(&self, pid: i32) -> Option<i32>;

    /// True if the process list may be incomplete.
    fn may_hide_processes(&self) -> bool {
        false
    }

    /// Returns the children of a process, including those missing in the process list.
    fn children_of(&self, _handle: &Self::Handle) -> Vec<i32> {
        Vec::new()
    }

    /// Starts a child with `control` as its standard input, and returns its pid.
    ///
    /// # Errors
    /// The child was not started.
    fn start(&self, command: &mut Command, control: &OwnedFd) -> io::Result<i32>;

    /// Starts the wrapper of a lease as [`Sys::start`], inside its control group. Returns `None` if the system cannot:
    /// then [`Sys::join_group`] moves the child, for which the kernel may need more than 10 ms.
    ///
    /// # Errors
    /// The child was not started.
    fn start_in_group(
        &self,
        _leaf: &LeaseCgroup,
        _command: &Command,
        _control: &OwnedFd,
    ) -> io::Result<Option<i32>> {
        Ok(None)
    }

    /// Limits the number of open files of an unreaped child of this process.
    ///
    /// # Errors
    /// The limit is unchanged.
    fn limit_open_files(&self, pid: i32, limit: Rlimit) -> io::Result<()>;

    /// Opens an unreaped child of this process, whose pid cannot have been reused.
    ///
    /// # Errors
    /// [`OpenError`] if the child cannot be opened.
    fn open_child(&self, pid: i32) -> Result<Arc<Self::Handle>, OpenError>;

    /// True if an unreaped child of this process sent a packet.
    fn is_sender(&self, child: &Self::Handle, sender: &PacketSender) -> bool {
        let sender = sender.pidfd.as_ref().and_then(|fd| linux::pidfs_inode(fd.as_fd()));
        sender.zip(child.inode()).is_none_or(|(sender, child)| sender == child)
    }

    /// Returns the exit status of a child and reaps it, if it has exited.
    ///
    /// # Errors
    /// The process is not a child of this process, or was reaped before.
    fn try_reap(&self, child: &Self::Handle) -> io::Result<Option<ExitStatus>>;

    /// Returns the children of this process, including zombies.
    fn children(&self) -> Vec<UnreapedChild>;

    /// Reaps an orphan whose exit status is not needed. Returns true if it was dead.
    ///
    /// # Errors
    /// The process is not a child of this process.
    fn reap_orphan(&self, pid: i32) -> io::Result<bool>;

    /// Creates the control group of a new lease. Returns the limits that could not be set.
    ///
    /// # Errors
    /// The group cannot be created or already exists, or the system has no control groups.
    fn make_group(&self, _leaf: &LeaseCgroup, _limits: &CgroupLimits) -> io::Result<Vec<String>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Moves an unreaped child of this process into the group of its lease.
    ///
    /// # Errors
    /// The child was not moved.
    fn join_group(&self, _leaf: &LeaseCgroup, _child: &Self::Handle) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns the members of a lease's group and of the groups below. A missing group has none.
    ///
    /// # Errors
    /// The group is unreadable.
    fn group_members(&self, _leaf: &LeaseCgroup) -> io::Result<CgroupMembers> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Checks whether an unrecognised group contains processes. A missing group contains none.
    ///
    /// # Errors
    /// The group is unreadable.
    fn group_populated(&self, _strange: &UnknownCgroup) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sends SIGKILL to all processes of a group, then waits at most `wait` until the group is empty.
    ///
    /// # Errors
    /// The kernel denied the signal.
    fn kill_group(&self, _cleared: &CgroupKillPermit, _wait: Duration) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes the group of an ended lease, including the groups below.
    ///
    /// # Errors
    /// A group still contains processes.
    fn remove_group(&self, _leaf: &LeaseCgroup) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Runs work that reads many files as a blocking task.
    fn run_blocking<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> impl Future<Output = io::Result<T>> + Send {
        async move {
            let done = tokio::task::spawn_blocking(move || work(&self)).await;
            done.unwrap_or_else(|e| Err(io::Error::other(e)))
        }
    }
}
