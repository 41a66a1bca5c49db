//! Termination signals of the supervisor.

use crate::context::Context;
use crate::context::event::Event;
use nix::sys::signal::{SIGHUP, SIGINT, SIGTERM, SigSet};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use tokio::net::unix::pipe;

/// Receiver of termination signals. The signals are blocked and read from a descriptor: a signal during a
/// handover stays pending for the next program.
pub(crate) struct TerminationSignals {
    /// Signalfd, read like a pipe.
    pending: pipe::Receiver,
}

/// Returns the set of termination signals.
fn termination_signals() -> SigSet {
    [SIGTERM, SIGINT, SIGHUP].into_iter().collect()
}

/// Blocks the termination signals. Must be called before other threads exist that could receive one.
///
/// # Errors
/// The kernel refuses the call.
pub(crate) fn block_termination_signals() -> io::Result<()> {
    Ok(termination_signals().thread_block()?)
}

impl TerminationSignals {
    /// Opens a descriptor that receives the signals.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        let made =
            SignalFd::with_flags(&termination_signals(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { pending: pipe::Receiver::from_owned_fd_unchecked(made.as_fd().try_clone_to_owned()?)? })
    }

    /// Sends a stop event to the owner for each signal.
    pub(crate) async fn watch(self, context: Arc<Context>) {
        // Size of one `signalfd_siginfo` record.
        let mut record = [0; 128];
        while self.pending.readable().await.is_ok() {
            match self.pending.try_read(&mut record) {
                Ok(_) => context.send_event(Event::Stop).await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    tracing::error!(%error, "signal handling failed");
                    return;
                }
            }
        }
    }
}
