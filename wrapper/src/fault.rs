//! What can go wrong before the adapter runs: an errno and what was being done. It is what `SetupFailed` carries.

use nix::libc;

/// A failed step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    /// What was being done.
    pub(crate) stage: &'static str,
    /// The errno of the call, or the one that says best what was wrong.
    pub(crate) errno: i32,
}

impl Fault {
    /// A fault that the wrapper found itself.
    pub(crate) const fn new(stage: &'static str, errno: i32) -> Self {
        Self { stage, errno }
    }

    /// Something in the contract with the supervisor is broken.
    pub(crate) const fn protocol(stage: &'static str) -> Self {
        Self::new(stage, libc::EPROTO)
    }
}

/// Names the step that a failed call belongs to.
pub(crate) trait During<T> {
    /// The same result, with the step's name on its error.
    fn during(self, stage: &'static str) -> Result<T, Fault>;
}

impl<T> During<T> for Result<T, rustix::io::Errno> {
    fn during(self, stage: &'static str) -> Result<T, Fault> {
        self.map_err(|e| Fault::new(stage, e.raw_os_error()))
    }
}

impl<T> During<T> for Result<T, nix::errno::Errno> {
    fn during(self, stage: &'static str) -> Result<T, Fault> {
        self.map_err(|e| Fault::new(stage, e as i32))
    }
}

impl<T> During<T> for std::io::Result<T> {
    fn during(self, stage: &'static str) -> Result<T, Fault> {
        self.map_err(|e| Fault::new(stage, e.raw_os_error().unwrap_or(libc::EIO)))
    }
}
