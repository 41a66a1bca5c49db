//! Descriptors kept open across `execve`.

use crate::sys::linux;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Descriptor in a handover. Stored as a number, valid only in the process that holds the descriptor.
#[derive(Debug)]
pub(crate) struct HandoverFd {
    number: i32,
    fd: Option<OwnedFd>,
}

impl HandoverFd {
    /// Takes ownership of a descriptor to pass.
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { number: fd.as_raw_fd(), fd: Some(fd) }
    }

    /// Returns the descriptor number.
    pub(crate) const fn number(&self) -> i32 {
        self.number
    }

    /// Creates an invalid placeholder, for a trial.
    pub(crate) const fn placeholder() -> Self {
        Self { number: -1, fd: None }
    }

    /// Opens the running program, independent of later changes of its file.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub(crate) fn this_program() -> io::Result<Self> {
        use rustix::fs::{Mode, OFlags};
        Ok(Self::new(rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Makes the descriptor inheritable by the next image, or close-on-exec.
    pub(crate) fn inherit(&self, inherited: bool) -> io::Result<()> {
        use rustix::io::{FdFlags, fcntl_setfd};
        let flags = if inherited { FdFlags::empty() } else { FdFlags::CLOEXEC };
        let fd = self.fd.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(fcntl_setfd(fd.as_fd(), flags)?)
    }

    /// Duplicates the descriptor.
    ///
    /// # Errors
    /// The descriptor was not taken over, or the process is out of descriptors.
    pub(crate) fn try_clone(&self) -> io::Result<OwnedFd> {
        self.fd.as_ref().ok_or_else(missing_descriptor)?.try_clone()
    }

    /// Returns the descriptor.
    ///
    /// # Errors
    /// The descriptor was not taken over.
    pub(crate) fn take(self) -> io::Result<OwnedFd> {
        self.fd.ok_or_else(missing_descriptor)
    }
}

fn missing_descriptor() -> io::Error {
    io::Error::other("a descriptor of the handover is missing")
}

/// Takes over the descriptors that an earlier image left open, and marks them close-on-exec.
///
/// # Errors
/// A number is used twice, is one of the standard streams, or is not open.
pub(crate) fn take_inherited(all: Vec<&mut HandoverFd>) -> io::Result<()> {
    let mut seen = HashSet::new();
    for passed in all {
        if passed.number <= 2 || !seen.insert(passed.number) {
            return Err(io::Error::other(format!("descriptor {} is named twice", passed.number)));
        }
        passed.fd = Some(linux::take_fd(passed.number)?);
    }
    Ok(())
}

impl Serialize for HandoverFd {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i32(self.number)
    }
}

impl<'de> Deserialize<'de> for HandoverFd {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self { number: i32::deserialize(from)?, fd: None })
    }
}
