//! `serve`.

use super::{CliError, Global, LogFormat, Output};
use crate::app::{self, Options};
use crate::config::Config;
use crate::handover::Handover;
use std::path::{Path, PathBuf};
use tracing_subscriber::EnvFilter;

/// Sends the log to standard error.
pub(super) fn log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // A second subscriber is refused; there is only this one.
    drop(match format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => builder.json().try_init(),
    });
}

/// Becomes the leader of a session of its own (H17).
pub(super) fn leave_session() {
    if let Err(error) = rustix::process::setsid() {
        // The leader of a process group cannot; a Ctrl-C of the terminal does not reach another group either.
        tracing::debug!(%error, "the session stays");
    }
}

/// How the supervisor is to run.
pub(super) fn options(
    global: &Global,
    config: Option<&Path>,
    wrapper: Option<PathBuf>,
) -> Result<Options, CliError> {
    let (state_dir, config) = (global.state_dir()?, Config::load(config)?);
    Ok(Options { state_dir, socket: global.socket.clone(), wrapper, config })
}

pub(super) async fn run(
    options: Options,
    handover: &mut Option<Handover>,
    out: &mut Output,
) -> Result<(), CliError> {
    let mut printed = Ok(());
    let served = app::serve(options, handover, |socket| {
        let pid = std::process::id();
        printed = if out.is_json() {
            out.json_line(&serde_json::json!({
                "schema": super::output::SCHEMA, "type": "ready", "event": "ready", "pid": pid, "socket": socket,
            }))
        } else {
            out.line(&format!("acp-supervisor {pid} accepts connections at {}", socket.display()))
        };
        if let Err(error) = &printed {
            tracing::warn!(%error, "cannot print that the supervisor is ready");
        }
    })
    .await;
    Ok(served?)
}
