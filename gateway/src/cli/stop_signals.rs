//! Signals that end a command which has something to put in order first.

use crate::cli::inside;
use acp_core::failure::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP. Their default action is off from the creation on.
#[derive(Debug)]
pub(crate) struct StopSignals([Signal; 3]);

impl StopSignals {
    /// Begins to receive the signals.
    ///
    /// # Errors
    /// `RUNTIME` if signals cannot be handled.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let wait = |kind| signal(kind).map_err(|error| inside("cannot wait for signals", &error));
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hang_up] = kinds.map(wait);
        Ok(Self([interrupt?, terminate?, hang_up?]))
    }

    /// Waits for one of the signals.
    pub(crate) async fn recv(&mut self) {
        let [interrupt, terminate, hang_up] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    }
}
