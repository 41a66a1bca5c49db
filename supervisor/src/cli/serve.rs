//! Command `serve`.

use super::{CliError, GlobalArgs, LogFormat, Output};
use crate::app::{self, Options};
use crate::config::Config;
use crate::owner::handover::Handover;
use acp_shared::log_file::LogFile;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// Starts logging to a file, or to standard error.
pub(super) fn log(format: LogFormat, file: Option<&Path>) -> Result<(), CliError> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let (writer, colours) = match file {
        Some(path) => {
            let opened = LogFile::open(path);
            let opened = opened.map_err(|source| CliError::File { path: path.to_owned(), source })?;
            (BoxMakeWriter::new(Mutex::new(opened)), false)
        }
        None => (BoxMakeWriter::new(std::io::stderr), std::io::IsTerminal::is_terminal(&std::io::stderr())),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_target(false);
    // Fails only if a subscriber is already set, which cannot happen here.
    drop(match format {
        LogFormat::Text => builder.with_ansi(colours).try_init(),
        LogFormat::Json => builder.json().try_init(),
    });
    Ok(())
}

/// Makes this process the leader of a new session (H17).
pub(super) fn leave_session() {
    if let Err(error) = rustix::process::setsid() {
        // Fails for a process group leader. Ctrl-C of the terminal does not reach that group either.
        tracing::debug!(%error, "cannot start a new session");
    }
}

/// Returns the options of the supervisor.
pub(super) fn options(
    global: &GlobalArgs,
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
            tracing::warn!(%error, "cannot print the ready line");
        }
    })
    .await;
    Ok(served?)
}
