//! Errors before the adapter runs: an errno and the failed step, as sent in `SetupFailed`.

use nix::libc;

/// A failed step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StepError {
    /// Description of the step.
    pub(crate) stage: &'static str,
    /// Errno of the call, or the errno that fits best.
    pub(crate) errno: i32,
}

impl StepError {
    /// Creates an error that the wrapper itself detected.
    pub(crate) const fn new(stage: &'static str, errno: i32) -> Self {
        Self { stage, errno }
    }

    /// Creates an error for a violation of the supervisor contract.
    pub(crate) const fn protocol(stage: &'static str) -> Self {
        Self::new(stage, libc::EPROTO)
    }
}

/// Names the step that a failed call belongs to.
pub(crate) trait StepContext<T> {
    /// Attaches the step's name to the error.
    fn during(self, stage: &'static str) -> Result<T, StepError>;
}

impl<T, E: Into<std::io::Error>> StepContext<T> for Result<T, E> {
    fn during(self, stage: &'static str) -> Result<T, StepError> {
        self.map_err(|e| StepError::new(stage, e.into().raw_os_error().unwrap_or(libc::EIO)))
    }
}
