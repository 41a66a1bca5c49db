//! The port to the operating system's processes. What is decided in [`crate::core`] is carried out through it, and
//! nothing is signalled but through a handle that was opened before its evidence was read.

pub mod cgroup;
mod handle;
pub mod linux;
pub mod packet;
pub mod people;
mod reads;
pub mod watch;

use crate::core::cgroup::{Cleared, Leaf, Members, Strange};
pub use crate::core::ladder::Abilities;
use crate::core::ladder::Limits;
use crate::core::lease::{ProcessRecord, Scope};
use crate::core::tree::Proc;
use crate::core::verify::legacy::Particulars;
use crate::core::verify::{Evidence, Marker, Verified};
use acp_shared::launch::ExitStatus;
use rustix::process::Rlimit;
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// The signals that this program sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Please end.
    Term,
    /// Go on, so that a stopped process can take its SIGTERM.
    Cont,
    /// Do nothing until you are ended: a tree that stands still cannot grow.
    Stop,
    /// End.
    Kill,
}

/// Why nothing could be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such process (or the number is a thread's).
    #[error("there is no such process")]
    Gone,
    /// The system does not allow or is out of resources.
    #[error("the process cannot be opened")]
    Io(#[source] io::Error),
}

/// Why a signal was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SignalError {
    /// The proof is of another handle. Nothing was sent.
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

/// Who sent a packet, as the kernel says.
#[derive(Debug, Default)]
pub struct Sender {
    /// Its number then.
    pub pid: Option<i32>,
    /// The process, where the kernel gives it.
    pub pidfd: Option<OwnedFd>,
}

/// A child of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offspring {
    /// The thread of this process that forked it, or that it came to.
    pub thread: i32,
    /// Its number.
    pub pid: i32,
}

/// An open process.
pub trait OpenProcess: Send + Sync + std::fmt::Debug + 'static {
    /// Its number.
    fn pid(&self) -> i32;

    /// What identifies it, for the record; `None` when its start time cannot be read.
    fn record(&self) -> Option<ProcessRecord>;

    /// Its inode in pidfs, where the kernel has it.
    fn inode(&self) -> Option<u64>;

    /// A descriptor that is readable once the process has ended, where the kernel gives one.
    fn pidfd(&self) -> Option<BorrowedFd<'_>>;
}

/// The operating system.
pub trait Sys: Send + Sync + std::fmt::Debug + 'static {
    /// An open process: all evidence is read and all signals are sent through it.
    type Handle: OpenProcess;

    /// Where process numbers have their meaning here; `None` when it cannot be read.
    fn here(&self) -> Option<Scope>;

    /// Opens a process.
    ///
    /// # Errors
    /// [`OpenError`].
    fn open(&self, pid: i32) -> Result<Arc<Self::Handle>, OpenError>;

    /// Reads what the kernel keeps about a process itself, through a handle. The marker is not read: that alone can
    /// take long.
    fn glance(&self, handle: &Self::Handle) -> Evidence;

    /// Reads what the environment of a process says, through a handle. It lies in the memory of that process, which
    /// may be out of reach: what takes too long is unreadable.
    fn marker(&self, handle: &Self::Handle) -> Marker;

    /// Reads everything there is to know through a handle.
    fn evidence(&self, handle: &Self::Handle) -> Evidence {
        // First, so that what was read last says whether it was of a process that still held its number.
        let marker = self.marker(handle);
        Evidence { marker, ..self.glance(handle) }
    }

    /// Reads what records without a lease are compared with. Where nothing can be read, nothing is believed.
    fn particulars(&self, _handle: &Self::Handle) -> Particulars {
        Particulars::default()
    }

    /// What the environments of processes say, in this order: a hint on whom to open. What takes too long is
    /// unreadable.
    fn peek_markers(&self, pids: &[i32]) -> Vec<Marker>;

    /// Whether the process of a handle was not yet reaped: while it holds, its number means this process.
    fn holds_number(&self, handle: &Self::Handle) -> bool;

    /// All processes: a hint on whom to open.
    ///
    /// # Errors
    /// The list cannot be read.
    fn snapshot(&self) -> io::Result<Vec<Proc>>;

    /// Sends a signal to a verified process.
    ///
    /// # Errors
    /// [`SignalError`]; in each case nothing was sent.
    fn signal(&self, handle: &Self::Handle, proof: &Verified, signal: Signal) -> Result<(), SignalError>;

    /// Sends a signal to the group that a verified process leads.
    ///
    /// # Errors
    /// [`SignalError`]; [`SignalError::Gone`] too when the process leads no group.
    fn signal_group(
        &self,
        handle: &Self::Handle,
        proof: &Verified,
        signal: Signal,
    ) -> Result<(), SignalError>;

    /// This process and its ancestors.
    fn own_line(&self) -> HashSet<i32>;

    /// The parent of a process; `None` when it cannot be read, or there is no such process.
    fn parent(&self, pid: i32) -> Option<i32>;

    /// Whether the list of processes may leave some out.
    fn hides(&self) -> bool {
        false
    }

    /// The children of a process, those that are left out of the list too.
    fn children_of(&self, _handle: &Self::Handle) -> Vec<i32> {
        Vec::new()
    }

    /// Starts a child with `control` as its standard input, and returns its number.
    ///
    /// # Errors
    /// It was not started.
    fn start(&self, command: &mut Command, control: &OwnedFd) -> io::Result<i32>;

    /// Limits the open files of a child that this process has just made and not reaped.
    ///
    /// # Errors
    /// The limit is as it was.
    fn limit_open_files(&self, pid: i32, limit: Rlimit) -> io::Result<()>;

    /// Opens a child that this process has just made and not reaped, so that its number is surely its own.
    ///
    /// # Errors
    /// [`OpenError`].
    fn open_child(&self, pid: i32) -> Result<Arc<Self::Handle>, OpenError>;

    /// Whether an own child, which was not reaped then, sent a packet.
    fn spoke(&self, child: &Self::Handle, sender: &Sender) -> bool {
        let sender = sender.pidfd.as_ref().and_then(|fd| linux::pidfs_inode(fd.as_fd()));
        sender.zip(child.inode()).is_none_or(|(sender, child)| sender == child)
    }

    /// Collects the exit status of an own child, if it has ended.
    ///
    /// # Errors
    /// It is no child of this process, or was collected before.
    fn collect(&self, child: &Self::Handle) -> io::Result<Option<ExitStatus>>;

    /// The children of this process, dead ones too.
    fn children(&self) -> Vec<Offspring>;

    /// Collects a child whose exit status nobody wants; whether it was dead.
    ///
    /// # Errors
    /// It is no child of this process.
    fn reap_stray(&self, pid: i32) -> io::Result<bool>;

    /// Makes the control group of a new lease. Returns the limits that could not be set.
    ///
    /// # Errors
    /// It cannot be made, or is there already. A system without control groups makes none.
    fn make_group(&self, _leaf: &Leaf, _limits: &Limits) -> io::Result<Vec<String>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Moves a child that this process has just made and not reaped into the group of its lease.
    ///
    /// # Errors
    /// It stays where it is.
    fn join_group(&self, _leaf: &Leaf, _child: &Self::Handle) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// What is in the group of a lease and below it. A group that is not there holds nothing.
    ///
    /// # Errors
    /// It cannot be read.
    fn group_members(&self, _leaf: &Leaf) -> io::Result<Members> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether anything is in a recorded group that is not recognised. One that is not there holds nothing.
    ///
    /// # Errors
    /// It cannot be read.
    fn group_populated(&self, _strange: &Strange) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// SIGKILL to all that is in a group; then waits, for so long at most, until nothing is.
    ///
    /// # Errors
    /// Nothing was signalled.
    fn kill_group(&self, _cleared: &Cleared, _wait: Duration) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes the group of a lease that has ended, with all that is below it.
    ///
    /// # Errors
    /// A process is still in it.
    fn remove_group(&self, _leaf: &Leaf) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Does work that reads many files, where it holds up nobody.
    fn aside<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> impl Future<Output = io::Result<T>> + Send {
        async move {
            let done = tokio::task::spawn_blocking(move || work(&self)).await;
            done.unwrap_or_else(|e| Err(io::Error::other(e)))
        }
    }
}
