//! The command line: `serve`, and an admin client of the same protocol that gateways speak.

mod leases;
mod output;
mod serve;
mod status;
mod upgrade;

use crate::app::AppError;
use crate::store::StoreError;
use acp_shared::conn::{Client, ConnError};
use acp_shared::ids::{IdError, LeaseId};
use acp_shared::protocol::{Hello, Role, VERSION_MAX, VERSION_MIN};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use output::Output;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How long a supervisor may take to answer an admin command.
const ANSWER: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "\
Examples:
  acp-supervisor serve --state-dir /var/lib/acp-supervisor
  acp-supervisor --socket ~/.local/state/acp-host/supervisor/supervisor.sock leases list
  acp-supervisor leases verify ID                  each recorded fact beside what runs now
  acp-supervisor leases reap --dry-run             what would be ended, and why the rest would not

With --json every verb prints one line of JSON, failures too. Exit codes: 0 done, 1 failed, 2 usage.";

/// Holds process leases: spawns, relays, verifies and reaps the agents of every gateway on a host.
#[derive(Debug, Parser)]
#[command(name = "acp-supervisor", version, propagate_version = true, after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Args)]
struct Global {
    /// Where the supervisor keeps its state [default: $XDG_STATE_HOME/acp-host/supervisor]
    #[arg(long, global = true, env = "ACP_SUPERVISOR_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Where it listens [default: supervisor.sock in the state directory]
    #[arg(long, global = true, env = "ACP_SUPERVISOR_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print JSON for programs
    #[arg(long, global = true)]
    json: bool,
    /// How the log on standard error is written; what is in it is set by RUST_LOG
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the supervisor in the foreground
    Serve {
        /// Configuration file (TOML)
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// The acp-wrapper binary [default: beside acp-supervisor]
        #[arg(long, value_name = "PATH")]
        wrapper: Option<PathBuf>,
        /// Leave the session of the terminal, so that its Ctrl-C does not reach the supervisor
        #[arg(long)]
        own_session: bool,
        /// Go on where an earlier image of this process was (internal)
        #[arg(long, hide = true, value_name = "NUMBER")]
        resume_from_fd: Option<i32>,
    },
    /// Put another version of the program in the place of the running one; no agent ends
    Upgrade {
        /// The new program, absolute; nobody but root and the supervisor's user may be able to write it
        /// [default: the file that the running one was started from]
        #[arg(long, value_name = "PATH")]
        program: Option<PathBuf>,
    },
    /// Say whether the handover on standard input can be taken over (internal)
    #[command(hide = true)]
    HandoverCheck {
        /// What the supervisor would be started with
        #[arg(last = true)]
        args: Vec<std::ffi::OsString>,
    },
    /// Show how the supervisor is
    Status,
    /// Look at leases, or end orphans
    #[command(subcommand)]
    Leases(LeasesVerb),
}

#[derive(Debug, Subcommand)]
enum LeasesVerb {
    /// List all leases
    List,
    /// Show one lease
    Show {
        /// The lease
        #[arg(value_name = "ID")]
        id: String,
    },
    /// Show each piece of evidence beside what the lease says
    Verify {
        /// The lease
        #[arg(value_name = "ID")]
        id: String,
    },
    /// End verified orphans of earlier supervisors
    #[command(group = clap::ArgGroup::new("how").required(true))]
    Reap {
        /// Only show what would be done, and why not
        #[arg(long, group = "how")]
        dry_run: bool,
        /// Do it
        #[arg(long, group = "how")]
        yes: bool,
    },
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error("no supervisor answers at {socket}; start one with `acp-supervisor serve`")]
    Connect {
        socket: PathBuf,
        #[source]
        source: ConnError,
    },
    #[error(transparent)]
    Call(#[from] ConnError),
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("there is no lease {0}")]
    NoLease(LeaseId),
    #[error("the supervisor answered something else than was asked")]
    OutOfTurn,
    #[error("cannot write the output")]
    Output(#[from] std::io::Error),
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    #[error(transparent)]
    App(#[from] AppError),
    #[error("cannot start the runtime")]
    Runtime(#[source] std::io::Error),
    #[error("the supervisor was not upgraded and goes on as it was: {0}")]
    FellBack(String),
    #[error("the new program does not answer; see the log of the supervisor")]
    NoAnswer,
    #[error("the handover cannot be taken over: {0}")]
    Handover(String),
    #[error("there is no home directory to keep state in; name one with --state-dir")]
    NoHome,
}

impl CliError {
    fn code(&self) -> &'static str {
        match self {
            Self::Connect { source: ConnError::Refused(refusal), .. }
            | Self::Call(ConnError::Refused(refusal)) => refusal.code.as_str(),
            Self::Connect { .. } => "SUPERVISOR_UNAVAILABLE",
            Self::Call(ConnError::Timeout(_)) => "TIMEOUT",
            Self::Id(_) | Self::NoHome => "USAGE",
            Self::NoLease(_) => "LEASE_UNKNOWN",
            Self::Config(_) => "CONFIG_INVALID",
            Self::App(AppError::Locked { .. }) => "STATE_DIR_LOCKED",
            Self::App(AppError::Store(StoreError::Damaged { .. })) => "STORE_DAMAGED",
            Self::FellBack(_) | Self::Handover(_) => "UPGRADE_FAILED",
            Self::NoAnswer => "TIMEOUT",
            Self::Call(_) | Self::OutOfTurn | Self::Output(_) | Self::App(_) | Self::Runtime(_) => "RUNTIME",
        }
    }

    fn exit(&self) -> u8 {
        match self {
            Self::Id(_) | Self::NoHome | Self::Config(_) => 2,
            // To start it again is no use before a person has looked at it.
            Self::App(AppError::Store(StoreError::Damaged { .. })) => 3,
            Self::Connect { .. }
            | Self::Call(_)
            | Self::NoLease(_)
            | Self::OutOfTurn
            | Self::Output(_)
            | Self::App(_)
            | Self::FellBack(_)
            | Self::NoAnswer
            | Self::Handover(_)
            | Self::Runtime(_) => 1,
        }
    }

    /// The whole chain in one line.
    fn message(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        text
    }
}

/// What the binary does.
pub(crate) fn main() -> ExitCode {
    let json = std::env::args_os().any(|arg| arg == "--json");
    let mut out = Output::new(json);
    let cli = match Cli::command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(out.usage(&error)),
    };
    match run(cli, &mut out) {
        Ok(()) => ExitCode::SUCCESS,
        // Who read the output has gone: that is their way to say that they have enough.
        Err(CliError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            out.error(error.code(), &error.message());
            ExitCode::from(error.exit())
        }
    }
}

fn run(cli: Cli, out: &mut Output) -> Result<(), CliError> {
    let workers = matches!(cli.verb, Verb::Serve { .. });
    if workers {
        crate::app::hold_signals()?;
    }
    let mut builder = if workers {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = builder.enable_all().build().map_err(CliError::Runtime)?;
    let result = runtime.block_on(verb(cli, out));
    // A task that cannot end (a tree that cannot be killed) must not hold the program.
    runtime.shutdown_background();
    result
}

async fn verb(cli: Cli, out: &mut Output) -> Result<(), CliError> {
    let state_dir = match cli.global.state_dir {
        Some(dir) => dir,
        None => default_state_dir().ok_or(CliError::NoHome)?,
    };
    let socket = cli.global.socket.clone();
    match cli.verb {
        Verb::Serve { config, wrapper, own_session, resume_from_fd } => {
            // Before anything else could be opened, or started.
            let handover = resume_from_fd.map(crate::handover::resume).transpose();
            let handover = handover.map_err(AppError::from)?;
            serve::log(cli.global.log_format);
            if own_session {
                serve::leave_session();
            }
            let config = crate::config::Config::load(config.as_deref())?;
            serve::run(crate::app::Options { state_dir, socket, wrapper, config }, handover, out).await
        }
        Verb::Upgrade { program } => {
            let socket = socket.unwrap_or_else(|| state_dir.join(crate::app::SOCKET_FILE));
            upgrade::run(&socket, &state_dir, program, out).await
        }
        Verb::HandoverCheck { args } => upgrade::check(args, out),
        Verb::Status => status::run(&mut client(socket, &state_dir).await?, out).await,
        Verb::Leases(verb) => leases::run(&mut client(socket, &state_dir).await?, verb, out).await,
    }
}

async fn client(socket: Option<PathBuf>, state_dir: &Path) -> Result<Client, CliError> {
    connect(socket.unwrap_or_else(|| state_dir.join(crate::app::SOCKET_FILE))).await
}

async fn connect(socket: PathBuf) -> Result<Client, CliError> {
    connect_within(socket, ANSWER).await
}

async fn connect_within(socket: PathBuf, deadline: Duration) -> Result<Client, CliError> {
    let hello = Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        features: Vec::new(),
        role: Role::Admin,
        secret: None,
    };
    Client::open(&socket, hello, deadline).await.map_err(|source| CliError::Connect { socket, source })
}

/// The system's directory for root where it is installed, else the user's.
fn default_state_dir() -> Option<PathBuf> {
    let system = Path::new("/var/lib/acp-supervisor");
    if rustix::process::geteuid().is_root() && system.is_dir() {
        return Some(system.to_owned());
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")))?;
    Some(base.join("acp-host/supervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
