//! The signals that end a supervisor.

use crate::app::AppError;
use crate::context::Context;
use crate::owner::Event;
use nix::sys::signal::{SIGHUP, SIGINT, SIGTERM, SigSet};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use tokio::net::unix::pipe;

/// The signals that end a supervisor. They are blocked and read from a descriptor: one that comes while an image
/// leaves waits for the next one.
pub(crate) struct Signals {
    /// A signalfd, which is read as a pipe is.
    pending: pipe::Receiver,
}

/// Which they are.
fn ending() -> SigSet {
    [SIGTERM, SIGINT, SIGHUP].into_iter().collect()
}

/// Blocks the signals that end a supervisor, before there is a thread that could take one.
///
/// # Errors
/// [`AppError::Signals`].
pub(crate) fn hold() -> Result<(), AppError> {
    ending().thread_block().map_err(|errno| AppError::Signals(errno.into()))
}

impl Signals {
    /// From now on they are received here.
    ///
    /// # Errors
    /// There is no descriptor to be had.
    pub(crate) fn new() -> io::Result<Self> {
        let made = SignalFd::with_flags(&ending(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { pending: pipe::Receiver::from_owned_fd_unchecked(made.as_fd().try_clone_to_owned()?)? })
    }

    /// Tells the owner of each one.
    pub(crate) async fn watch(self, context: Arc<Context>) {
        // One signal is one record of this size.
        let mut record = [0; 128];
        while self.pending.readable().await.is_ok() {
            match self.pending.try_read(&mut record) {
                Ok(_) => context.tell(Event::Stop).await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    tracing::error!(%error, "signals can no longer be received");
                    return;
                }
            }
        }
    }
}
