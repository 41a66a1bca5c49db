//! The log of a service: standard error, text for people or JSON for programs.

use crate::config::{Log, LogFormat};
use crate::error::Failure;
use acp_shared::codes::Code;
use std::io;
use std::sync::Arc;
use tracing_subscriber::EnvFilter;

/// Puts another filter in place.
type Change = Arc<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// The log of this process, whose level can be changed.
#[derive(Clone)]
pub(crate) struct LogHandle {
    change: Option<Change>,
}

impl LogHandle {
    /// Writes other lines from now on.
    ///
    /// # Errors
    /// `CONFIG_INVALID` for directives that cannot be read; `RUNTIME` when the log cannot be changed.
    pub(crate) fn set(&self, level: &str) -> Result<(), Failure> {
        let filter = filter(level)?;
        let Some(change) = &self.change else { return Ok(()) };
        change(filter).map_err(|error| Failure::new(Code::Runtime, format!("log.level: {error}")))
    }
}

fn filter(level: &str) -> Result<EnvFilter, Failure> {
    EnvFilter::try_new(level)
        .map_err(|error| Failure::new(Code::ConfigInvalid, format!("log.level: {error}")))
}

/// Starts logging. Does nothing when the process logs already.
///
/// # Errors
/// `CONFIG_INVALID` for directives that cannot be read.
pub(crate) fn start(log: &Log) -> Result<LogHandle, Failure> {
    let filter = filter(&log.level)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // The one error of starting is that logging runs already: then there is nothing to change either.
    let change: Change = match log.format {
        LogFormat::Text => {
            let terminal = io::IsTerminal::is_terminal(&io::stderr());
            let builder = builder.with_ansi(terminal).with_filter_reloading();
            let handle = builder.reload_handle();
            if builder.try_init().is_err() {
                return Ok(LogHandle { change: None });
            }
            Arc::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()))
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_filter_reloading();
            let handle = builder.reload_handle();
            if builder.try_init().is_err() {
                return Ok(LogHandle { change: None });
            }
            Arc::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()))
        }
    };
    Ok(LogHandle { change: Some(change) })
}
