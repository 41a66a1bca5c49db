//! `serve`: the gateway in the foreground.

use crate::app;
use crate::app::StartOptions;
use crate::app::reload::Reload;
use crate::app::signals::{ServiceSignals, SighupAction};
use crate::channel::ChannelAdapter;
use crate::cli::config::{ConfigArgs, read};
use crate::cli::logging::LogHandle;
use crate::cli::output::{CliResult, Out, unless_closed};
use crate::cli::{GlobalArgs, inside, logging, usage};
use crate::supervisor::default_secret_path;
use acp_core::config::ignored_keys;
use acp_core::config::{Config, Log};
use acp_core::failure::Failure;
use clap::Args;
use serde::Serialize;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum length of a socket path in the kernel, in bytes (`sun_path` without the terminator).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Name of the log of `up` in the state directory.
pub(crate) const LOG_FILE: &str = "gateway.log";

/// `serve` and `up`
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Socket of the supervisor [default: supervisor/supervisor.sock in the state directory]
    #[arg(long, value_name = "SOCKET")]
    supervisor_socket: Option<PathBuf>,
}

/// Returns the state directory of a supervisor that the gateway starts itself.
pub(crate) fn supervisor_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("supervisor")
}

/// Reads the configuration, creates the state directory and starts the log. `attended` means that a person
/// watches, see [`start_log`].
///
/// # Errors
/// `CONFIG_INVALID`, `USAGE`.
pub(crate) fn prepare(
    global: &GlobalArgs,
    args: &ServeArgs,
    attended: bool,
) -> Result<StartOptions, Failure> {
    let state_dir = global.state_dir()?;
    let (loaded, _) = read(&state_dir, &args.config, args.supervisor_socket.as_deref())?;
    make_private(&state_dir)?;
    // Canonical, independent of symbolic links: the supervisor identifies copies by this path.
    let state_dir = std::fs::canonicalize(&state_dir)
        .map_err(|error| usage(format!("{}: {error}", state_dir.display())))?;
    let log_handle = start_log(&loaded.config.log, attended.then(|| state_dir.join(LOG_FILE)), global.json)?;
    for note in ignored_keys::set(&loaded.sources) {
        tracing::warn!(note, "configuration key has no effect");
    }
    let (supervisor_socket, supervisor_secret) = supervisor_of(&loaded.config, &state_dir);
    fits(&supervisor_socket)?;
    // The socket is created under this name and then renamed.
    fits(&state_dir.join(acp_core::api::SOCKET).with_extension("sock.new"))?;
    let (config_args, socket_flag, dir) =
        (args.config.clone(), args.supervisor_socket.clone(), global.state_dir()?);
    let reload = (!attended).then(|| Reload {
        read: Box::new(move || read(&dir, &config_args, socket_flag.as_deref()).map(|(loaded, _)| loaded)),
        log_level: Box::new(move |level| log_handle.set(level)),
    });
    Ok(StartOptions {
        state_dir,
        loaded,
        reload,
        supervisor_socket,
        supervisor_secret,
        stays_refused: !attended,
    })
}

/// Starts the log. With a file, for a service that a person watches, the log is written there, and the person sees
/// warnings; a program, or a person who set a level, also gets the log of that level.
fn start_log(log: &Log, file: Option<PathBuf>, is_json: bool) -> Result<LogHandle, Failure> {
    let Some(file) = file else { return logging::start(log) };
    let is_default = log.level == Log::default().level;
    let shown = if is_default && !is_json { "warn" } else { &log.level };
    logging::start_with_file(log, shown, &file)?;
    Ok(LogHandle::default())
}

/// Returns the supervisor's socket, and the file with its shared secret.
pub(crate) fn supervisor_of(config: &Config, state_dir: &Path) -> (PathBuf, PathBuf) {
    let own = || supervisor_dir(state_dir).join("supervisor.sock");
    let socket = config.supervisor.socket.clone().unwrap_or_else(own);
    let secret = config.supervisor.secret_file.clone().unwrap_or_else(|| default_secret_path(&socket));
    (socket, secret)
}

/// Refuses a socket path that is too long for the kernel, before anything is started.
fn fits(socket: &Path) -> Result<(), Failure> {
    let bytes = socket.as_os_str().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        let shown = socket.display();
        return Err(usage(format!(
            "the socket path {shown} has {bytes} bytes, more than the maximum of {SOCKET_PATH_BYTES_MAX}. Use \
             a shorter --state-dir"
        )));
    }
    Ok(())
}

/// Creates a directory that only this user can read. An existing one must belong to this user.
///
/// # Errors
/// `USAGE` with the reason.
pub(crate) fn make_private(dir: &Path) -> Result<(), Failure> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| usage(format!("cannot create {}: {error}", dir.display())))?;
    let meta = std::fs::metadata(dir).map_err(|error| usage(format!("{}: {error}", dir.display())))?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(usage(format!("{} belongs to another user", dir.display())));
    }
    Ok(())
}

#[derive(Debug, Serialize)]
struct ReadyLine<'a> {
    event: &'a str,
    pid: u32,
    socket: &'a Path,
}

/// `serve`
pub(crate) async fn run(
    global: &GlobalArgs,
    args: &ServeArgs,
    channels: Vec<Arc<dyn ChannelAdapter>>,
    out: &mut Out,
) -> CliResult {
    let settings = prepare(global, args, false)?;
    let supervisor = settings.supervisor_socket.clone();
    if !settings.supervisor_socket.exists() {
        tracing::warn!(socket = %supervisor.display(), "waiting for the supervisor");
    }
    let mut printed = Ok(());
    let signals = ServiceSignals::listen(SighupAction::Reloads)?;
    let served = app::serve(settings, channels, signals, |socket: &Path| {
        let line = ReadyLine { event: "ready", pid: std::process::id(), socket };
        printed = out.show(&line, |line| {
            format!("The gateway is ready: {} (pid {}). Ctrl-C ends it.", line.socket.display(), line.pid)
        });
    });
    served.await?;
    unless_closed(printed)
}

/// Returns the path of a program in the directory of this one.
///
/// # Errors
/// `RUNTIME` if it does not exist.
pub(crate) fn sibling(name: &str) -> Result<PathBuf, Failure> {
    let exe = std::env::current_exe()
        .map_err(|error| inside("cannot determine the path of this program", &error))?;
    let path = exe.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    let what = format!("{} is missing: install it in the directory of acp-gateway", path.display());
    Err(Failure::new(acp_shared::codes::Code::Runtime, what).origin("client"))
}
