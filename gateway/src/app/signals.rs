//! Signals of a gateway: SIGTERM and SIGINT end it; SIGHUP reloads the configuration, or ends a gateway whose terminal was
//! closed.

use acp_core::failure::Failure;
use acp_shared::codes::Code;
use std::fs::File;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Function that tells a person that the service begins to end.
pub(crate) type EndNotice = Box<dyn FnOnce() + Send>;

/// Signals that a service handles.
pub(crate) struct ServiceSignals {
    terminate: Signal,
    interrupt: Signal,
    /// SIGHUP of a service that ends with its terminal.
    hangup: Option<Signal>,
    /// Requests a configuration reload.
    pub(super) reload: Option<Signal>,
    end_notice: Option<EndNotice>,
}

/// Meaning of SIGHUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SighupAction {
    /// Reload the configuration, or end the service if its terminal is gone.
    EndsWithTerminal,
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
        let ends = hangup == SighupAction::EndsWithTerminal && has_terminal();
        let hangup = ends.then(|| listen(SignalKind::hangup())).transpose()?;
        let reload = Some(listen(SignalKind::hangup())?);
        let (terminate, interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt, hangup, reload, end_notice: None })
    }

    /// Sets the function that is called when a signal ends the service.
    #[must_use]
    pub(crate) fn with_end_notice(mut self, notice: EndNotice) -> Self {
        self.end_notice = Some(notice);
        self
    }

    /// Waits for a signal that ends the service.
    pub(crate) async fn next(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(signal) => while signal.recv().await.is_some() && has_terminal() {},
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = hangup => {}
        }
        if let Some(notice) = self.end_notice.take() {
            notice();
        }
    }
}

/// True if this process has a controlling terminal that was not closed.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}
