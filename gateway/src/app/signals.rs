//! Signals of a gateway: SIGTERM and SIGINT end it; SIGHUP reloads the configuration, or ends a gateway that runs
//! in a terminal.

use acp_core::failure::Failure;
use acp_shared::codes::Code;
use futures_util::FutureExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that a service handles.
pub(crate) struct ServiceSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
    /// Requests a configuration reload.
    pub(super) reload: Option<Signal>,
}

/// Meaning of SIGHUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SighupAction {
    /// The terminal is gone: end the service.
    Ends,
    /// Reload the configuration.
    Reloads,
}

impl ServiceSignals {
    /// Registers the handlers; from now on these signals no longer end the process by default.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub(crate) fn listen(hangup: SighupAction) -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::new(Code::Runtime, format!("Cannot install signal handlers: {error}"))
                    .origin("gateway")
            })
        };
        let heard = Some(listen(SignalKind::hangup())?);
        let (hangup, reload) = match hangup {
            SighupAction::Ends => (heard, None),
            SighupAction::Reloads => (None, heard),
        };
        let (terminate, interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt, hangup, reload })
    }

    /// True if a signal has already arrived.
    pub(crate) fn is_raised(&mut self) -> bool {
        self.next().now_or_never().is_some()
    }

    /// Waits for a signal that ends the service.
    pub(super) async fn next(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = hangup => {}
        }
    }
}
