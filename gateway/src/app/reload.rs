//! Reload of the configuration on SIGHUP.

use crate::config::LiveConfig;
use acp_core::config::load::LoadedConfig;
use acp_core::config::reload::ReloadChanges;
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use std::sync::Arc;
use tokio::signal::unix::Signal;
use tokio_util::sync::CancellationToken;

type ReadConfigFn = dyn Fn() -> Result<LoadedConfig, Failure> + Send + Sync;
type SetLogLevelFn = dyn Fn(&str) -> Result<(), Failure> + Send + Sync;

/// Steps of a configuration reload.
pub(crate) struct Reload {
    /// Reads the configuration from the sources of the start.
    pub(crate) read: Box<ReadConfigFn>,
    /// Applies the new log level.
    pub(crate) log_level: Box<SetLogLevelFn>,
}

/// Reloads the configuration on each signal. An invalid one is refused as a whole, and the old one stays in
/// force.
pub(super) async fn reload_on_signal(
    how: Reload,
    mut asked: Signal,
    live: LiveConfig,
    stop: CancellationToken,
) {
    let how = Arc::new(how);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Some(()) = asked.recv() => {}
        }
        let (how, live) = (Arc::clone(&how), live.clone());
        let done = tokio::task::spawn_blocking(move || reload(&how, &live)).await;
        match done {
            Ok(Ok(changes)) => log_reload(&changes),
            Ok(Err(failure)) => {
                tracing::error!(%failure, "configuration reload failed; old configuration kept");
            }
            Err(error) => tracing::error!(%error, "configuration reload panicked; old configuration kept"),
        }
    }
}

fn reload(how: &Reload, live: &LiveConfig) -> Result<ReloadChanges, Failure> {
    let next = (how.read)()?;
    (how.log_level)(&next.config.log.level)?;
    live.replace(next).map_err(|error| Failure::new(Code::Runtime, error.to_string()).origin("gateway"))
}

fn log_reload(changes: &ReloadChanges) {
    let list = |keys: &[String]| keys.join(", ");
    if changes.applied.is_empty() {
        tracing::info!("configuration reloaded; no live key changed");
    } else {
        tracing::info!(keys = list(&changes.applied), "configuration reloaded; keys applied");
    }
    if !changes.after_restart.is_empty() {
        let keys = list(&changes.after_restart);
        tracing::warn!(keys, "changed keys need a gateway restart");
    }
}
