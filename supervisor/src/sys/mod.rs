//! The port to the operating system's processes. What is decided in [`crate::core`] is carried out through it, and
//! nothing is signalled but through a handle that was opened before its evidence was read.

pub mod linux;
pub mod people;
pub mod watch;

pub use crate::core::ladder::Abilities;
use crate::core::lease::Scope;
use crate::core::tree::Proc;
use crate::core::verify::{Evidence, Marker, Verified};
use std::collections::HashSet;
use std::io;
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

/// The operating system.
pub trait Sys: Send + Sync + 'static {
    /// An open process: all evidence is read and all signals are sent through it.
    type Handle: Send + Sync + std::fmt::Debug;

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
}
