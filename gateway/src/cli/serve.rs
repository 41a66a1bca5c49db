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
    pub(crate) config: ConfigArgs,
    /// Socket of the supervisor [default: supervisor/supervisor.sock in the state directory]
    #[arg(long, value_name = "SOCKET")]
    pub(crate) supervisor_socket: Option<PathBuf>,
}

/// Surroundings of a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServeMode {
    /// `serve`: a service manager keeps the log and restarts the gateway.
    Managed,
    /// `up`: a person watches.
    Terminal,
    /// `up --detach`.
    Background,
}

/// Returns the state directory of a supervisor that the gateway starts itself.
pub(crate) fn supervisor_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("supervisor")
}

/// Returns the default socket of that supervisor.
pub(crate) fn supervisor_socket(state_dir: &Path) -> PathBuf {
    supervisor_dir(state_dir).join("supervisor.sock")
}

/// Reads the configuration, creates the state directory and starts the log.
///
/// # Errors
/// `CONFIG_INVALID`, `USAGE`.
pub(crate) fn prepare(
    global: &GlobalArgs,
    args: &ServeArgs,
    mode: ServeMode,
) -> Result<StartOptions, Failure> {
    let state_dir = global.state_dir()?;
    let (loaded, _) = read(&state_dir, &args.config, args.supervisor_socket.as_deref())?;
    make_private(&state_dir)?;
    // Canonical, independent of symbolic links: the supervisor identifies copies by this path.
    let state_dir = std::fs::canonicalize(&state_dir)
        .map_err(|error| usage(format!("{}: {error}", state_dir.display())))?;
    let log_handle = start_log(&loaded.config.log, mode, &state_dir.join(LOG_FILE), global.json)?;
    let (supervisor_socket, supervisor_secret) = supervisor_of(&loaded.config, &state_dir);
    fits(&supervisor_socket)?;
    // The socket is created under this name and then renamed.
    fits(&state_dir.join(acp_core::api::SOCKET).with_extension("sock.new"))?;
    let (config_args, socket_flag, dir) =
        (args.config.clone(), args.supervisor_socket.clone(), global.state_dir()?);
    let reload = Reload {
        read: Box::new(move || read(&dir, &config_args, socket_flag.as_deref()).map(|(loaded, _)| loaded)),
        log_level: Box::new(move |level| log_handle.set(level)),
    };
    Ok(StartOptions {
        state_dir,
        loaded,
        reload,
        supervisor_socket,
        supervisor_secret,
        stays_refused: mode == ServeMode::Managed,
    })
}

/// Starts the log. `up` writes it to a file and shows warnings; a program, or a person who set a level, also gets the log of
/// that level.
fn start_log(log: &Log, mode: ServeMode, file: &Path, is_json: bool) -> Result<LogHandle, Failure> {
    let shown: fn(&str) -> &str = match (mode, is_json) {
        (ServeMode::Managed, _) => return logging::start(log),
        // Standard error is the same file.
        (ServeMode::Background, _) => |_| "off",
        (ServeMode::Terminal, true) => |level| level,
        (ServeMode::Terminal, false) => |level| if level == Log::default().level { "warn" } else { level },
    };
    logging::start_with_file(log, shown, file)
}

/// Returns the supervisor's socket, and the file with its shared secret.
pub(crate) fn supervisor_of(config: &Config, state_dir: &Path) -> (PathBuf, PathBuf) {
    let socket = config.supervisor.socket.clone().unwrap_or_else(|| supervisor_socket(state_dir));
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
    let settings = prepare(global, args, ServeMode::Managed)?;
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
