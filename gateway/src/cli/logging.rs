//! The log of a service: standard error, text for people or JSON for programs.

use crate::config::{Log, LogFormat};
use crate::error::Failure;
use acp_shared::codes::Code;
use std::io;
use tracing_subscriber::EnvFilter;

/// Starts logging. Does nothing when the process logs already.
///
/// # Errors
/// `CONFIG_INVALID` for directives that cannot be read.
pub(crate) fn start(log: &Log) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(&log.level)
        .map_err(|error| Failure::new(Code::ConfigInvalid, format!("log.level: {error}")))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // The one error is that logging runs already.
    let _ = match log.format {
        LogFormat::Text => builder.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    Ok(())
}
