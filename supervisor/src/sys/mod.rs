//! The port to the operating system's processes. What is decided in [`crate::core`] is carried out through it, and
//! nothing is signalled but through a handle that was opened before its evidence was read.

pub mod linux;
pub mod people;
pub mod watch;

use crate::core::lease::{ProcessRecord, Scope};
use crate::core::tree::Proc;
use crate::core::verify::{Evidence, Marker, Verified};
use acp_shared::launch::ExitStatus;
use rustix::process::Rlimit;
use std::collections::HashSet;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;

/// The signals that this program sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Please end.
    Term,
    /// Go on, so that a stopped process can take its SIGTERM.
    Cont,
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

/// What the kernel can do, as probed at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// `pidfd_open` works.
    pub pidfd: bool,
    /// pidfds have an inode that is unique until the next boot.
    pub pidfs_inode: bool,
    /// A group can be signalled through its leader's pidfd.
    pub pidfd_group: bool,
    /// A socket message can carry a pidfd of its sender.
    pub scm_pidfd: bool,
    /// `/proc` lists processes.
    pub proc_list: bool,
    /// Orphans of a dead wrapper come to the supervisor.
    pub subreaper: bool,
}

impl Abilities {
    /// The rung of the ladder that these allow.
    #[must_use]
    pub const fn rung(&self) -> &'static str {
        match (self.pidfd, self.proc_list) {
            (true, true) => "R2",
            (false, true) => "R3",
            (_, false) => "R4",
        }
    }

    /// By name, for people and programs.
    #[must_use]
    pub fn named(&self) -> Vec<(String, bool)> {
        [
            ("pidfd", self.pidfd),
            ("pidfs_inode", self.pidfs_inode),
            ("pidfd_group", self.pidfd_group),
            ("scm_pidfd", self.scm_pidfd),
            ("proc_list", self.proc_list),
            ("subreaper", self.subreaper),
        ]
        .map(|(name, has)| (name.to_owned(), has))
        .to_vec()
    }
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

    /// Reads everything there is to know through a handle.
    fn evidence(&self, handle: &Self::Handle) -> Evidence;

    /// What the environment of a process says: a hint on whom to open.
    fn peek_marker(&self, pid: i32) -> Marker;

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

    /// Whether a process runs somewhere below one of `roots`. `None` when its line broke while it was read.
    fn is_below(&self, pid: i32, roots: &HashSet<i32>) -> Option<bool>;

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

    /// Collects the exit status of an own child, if it has ended.
    ///
    /// # Errors
    /// It is no child of this process, or was collected before.
    fn collect(&self, child: &Self::Handle) -> io::Result<Option<ExitStatus>>;

    /// The children of this process, dead ones too.
    fn children(&self) -> Vec<i32>;

    /// Collects a child whose exit status nobody wants; whether it was dead.
    ///
    /// # Errors
    /// It is no child of this process.
    fn reap_stray(&self, pid: i32) -> io::Result<bool>;

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
