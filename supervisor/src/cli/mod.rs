//! Command line: `serve`, and an admin client that uses the same protocol as gateways. One file per command;
//! shared code is here and in `output`, `table` and `text`.

mod doctor;
mod enrol;
mod error;
mod generate;
mod json;
mod leases;
mod legacy;
mod metrics;
mod output;
mod serve;
mod service;
mod status;
mod table;
mod text;
mod upgrade;
mod watch;

use crate::owner::handover::{Handover, ResumeError, exec_previous};
use acp_shared::conn::Client;
use acp_shared::help;
use acp_shared::protocol::{Hello, Role, VERSION_MAX, VERSION_MIN};
use acp_shared::redact::Secret;
use clap::{Args, ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use error::CliError;
use output::{Output, choose_colours};
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Help heading of the options that every command accepts.
const COMMON: &str = "Common options";

/// Deadline for answers to admin commands.
const ANSWER: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "\
Examples:
  acp-supervisor serve --state-dir /var/lib/acp-supervisor
  acp-supervisor doctor                            check the installation; show the next steps
  acp-supervisor leases list --state living        list living leases; every verb accepts shortened IDs
  acp-supervisor leases list --session 'agent:*' --older-than 1h --sort memory
  acp-supervisor leases watch                      follow changes live
  acp-supervisor leases verify ID                  compare each recorded fact with the current one
  acp-supervisor leases reap --dry-run             show what would be ended, and why the rest would not
  acp-supervisor enrol --gateway HOST:7421         get a certificate for a gateway on another machine
  acp-supervisor upgrade                           after installing a new version; agents keep running

With --json every verb prints one line of JSON, failures too: {\"schema\":1,\"type\":...,\"data\":...}.
Text is coloured on a terminal only, unless NO_COLOR or --color says otherwise; COLUMNS sets the width.

Exit codes: 0 done, 1 failed or a negative verdict (verify, doctor), 2 usage or configuration,
3 no supervisor can be reached (serve: its lease store is damaged), 130 interrupted.";

/// Manage process leases: spawn, relay, verify and reap the agents of every gateway on a host
#[derive(Debug, Parser)]
#[command(name = "acp-supervisor", version, propagate_version = true, after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    verb: SupervisorCommand,
}

#[derive(Debug, Args)]
struct GlobalArgs {
    /// State directory of the supervisor [default: $XDG_STATE_HOME/acp-host/supervisor]
    #[arg(long, global = true, help_heading = COMMON, env = "ACP_SUPERVISOR_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Socket of the supervisor [default: supervisor.sock in the state directory]
    #[arg(long, global = true, help_heading = COMMON, env = "ACP_SUPERVISOR_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print JSON for programs
    #[arg(long, global = true, help_heading = COMMON)]
    json: bool,
    /// Use of colours; auto follows NO_COLOR, CLICOLOR, CLICOLOR_FORCE and the terminal
    #[arg(long, global = true, help_heading = COMMON, value_enum, default_value_t, value_name = "WHEN")]
    color: ColorChoice,
    /// Format of the log on standard error; RUST_LOG sets its level
    #[arg(long, global = true, help_heading = COMMON, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

impl GlobalArgs {
    fn state_dir(&self) -> Result<PathBuf, CliError> {
        self.state_dir.clone().or_else(default_state_dir).ok_or(CliError::NoHome)
    }

    /// Returns the socket. Without a flag it is that of the system's supervisor or, if it has none, that of the user's, which
    /// `acp-gateway up` starts in the default state directory.
    fn address(&self) -> Result<Address, CliError> {
        let socket_in = |dir: PathBuf| dir.join(crate::app::SOCKET_FILE);
        let mut own = self.state_dir().map(socket_in);
        if self.state_dir.is_none() && own.as_ref().is_ok_and(|own| !own.exists()) {
            own = user_state_dir().map(socket_in).filter(|user| user.exists()).map_or(own, Ok);
        }
        match &self.socket {
            Some(socket) => Ok(Address { socket: socket.clone(), own: own.ok() }),
            None => own.map(|socket| Address { socket, own: None }),
        }
    }
}

/// Socket address of a supervisor.
#[derive(Debug, Clone)]
struct Address {
    socket: PathBuf,
    /// Socket of the state directory, if `socket` names another one.
    own: Option<PathBuf>,
}

impl Address {
    /// Reads the secret for the handshake, if this user may read it (H9).
    fn secret(&self) -> Option<Secret> {
        [Some(&self.socket), self.own.as_ref()]
            .into_iter()
            .flatten()
            .find_map(|at| crate::server::secret::read_next_to(at))
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
enum SupervisorCommand {
    /// Run the supervisor in the foreground
    Serve {
        /// Configuration file (TOML)
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Path of the acp-wrapper binary [default: in the directory of acp-supervisor, or in ../lib/acp-host]
        #[arg(long, value_name = "PATH")]
        wrapper: Option<PathBuf>,
        /// Start a new session, so that Ctrl-C of the terminal does not reach the supervisor
        #[arg(long)]
        own_session: bool,
        /// File for the log, instead of standard error; kept below 32 MiB with the three files before it
        #[arg(long, value_name = "FILE")]
        log_file: Option<PathBuf>,
        /// Resume from the handover of an earlier program of this process (internal)
        #[arg(long, hide = true, value_name = "NUMBER")]
        resume_from_fd: Option<i32>,
    },
    /// Replace the program of the running supervisor with another version; agents keep running
    Upgrade {
        /// Absolute path of the new program; only root and the supervisor's user may have write access to it
        /// [default: the file that the running one was started from]
        #[arg(long, value_name = "PATH")]
        program: Option<PathBuf>,
    },
    /// Check if the handover on standard input can be taken over (internal)
    #[command(hide = true)]
    HandoverCheck {
        /// Arguments for the start of the supervisor
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// Serve file requests on standard input (internal)
    #[command(hide = true)]
    FilesHelper {
        /// Version of the frames between the supervisor and its file helper
        frames: u32,
    },
    /// Show the state of the supervisor
    Status,
    /// Print the supervisor's metrics as OpenMetrics text, for Prometheus
    Metrics,
    /// Check the installation; explain each problem and the next step
    Doctor(doctor::DoctorArgs),
    /// Get the certificate of this host with a token of a gateway on another machine
    Enrol(enrol::EnrolArgs),
    /// List, inspect or close leases, or end orphans
    #[command(subcommand)]
    Leases(leases::LeasesCommand),
    /// Install, check or remove the supervisor as a service of systemd
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// Check process records from before leases existed, or end their processes
    #[command(subcommand)]
    Legacy(legacy::LegacyCommand),
    /// Write man pages or completion scripts (used by `make man` and `make completions`)
    #[command(hide = true)]
    Generate(generate::GenerateArgs),
}

/// Reads `--json` before the command line is parsed, and sets the colours, to format help and parse errors.
fn early_output_options(args: &[OsString]) -> bool {
    let texts = || args.iter().map(|arg| arg.to_str().unwrap_or_default());
    let next = texts().zip(texts().skip(1)).filter(|(flag, _)| *flag == "--color").map(|(_, value)| value);
    let joined = texts().filter_map(|arg| arg.strip_prefix("--color="));
    if let Some(choice) = next.chain(joined).find_map(|value| ColorChoice::from_str(value, false).ok()) {
        choose_colours(choice);
    }
    texts().any(|arg| arg == "--json")
}

/// Entry point of the binary. After an upgrade, an earlier program of this process has left a handover: until
/// this program has taken over, any failure or panic returns control to the earlier program.
pub(crate) fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    // First, before other descriptors are opened or processes are started.
    let resumed = crate::owner::handover::number(&args).map(crate::owner::handover::resume).transpose();
    let mut handover = match resumed {
        Ok(handover) => handover,
        Err(error) => {
            let json = early_output_options(&args);
            let error = CliError::App(error.into());
            Output::new(json).error(error.code(), &error.message());
            return ExitCode::from(error.exit());
        }
    };
    let done = catch_unwind(AssertUnwindSafe(|| run_command_line(&args, &mut handover)));
    let (code, why) = match done {
        Ok(done) => done,
        Err(panic) => {
            let error = ResumeError::panicked(panic.as_ref());
            match handover {
                Some(_) => (ExitCode::FAILURE, Some(CliError::App(error.into()))),
                None => resume_unwind(panic),
            }
        }
    };
    if let (Some(handover), Some(why)) = (handover, why) {
        let failed = exec_previous(handover, &why);
        tracing::error!(error = %failed, "previous program cannot be executed either");
    }
    code
}

/// Parses the command line. On a narrow terminal, help stands below its option.
fn parse(args: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    if help::is_narrow() {
        command = command.next_line_help(true);
    }
    let matches = command.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Runs the command line. Returns the exit code and, after a failure, its error.
fn run_command_line(args: &[OsString], handover: &mut Option<Handover>) -> (ExitCode, Option<CliError>) {
    let json = early_output_options(args);
    let cli = match parse(args) {
        Ok(cli) => cli,
        Err(error) => {
            let code = ExitCode::from(Output::new(json).usage(&error));
            return (code, Some(CliError::Handover(error.to_string())));
        }
    };
    choose_colours(cli.global.color);
    let mut out = Output::new(cli.global.json);
    match run(cli, &mut out, handover) {
        Ok(()) => (ExitCode::SUCCESS, None),
        Err(error) if error.is_unread() => (ExitCode::SUCCESS, None),
        Err(error) => {
            // If the earlier program resumes, it reports the error itself.
            if handover.is_none() && !matches!(error, CliError::Ended(_)) {
                out.error(error.code(), &error.message());
            }
            (ExitCode::from(error.exit()), Some(error))
        }
    }
}

fn run(cli: Cli, out: &mut Output, handover: &mut Option<Handover>) -> Result<(), CliError> {
    let workers = matches!(cli.verb, SupervisorCommand::Serve { .. });
    if workers {
        crate::app::signals::block_termination_signals().map_err(crate::app::AppError::Signals)?;
    }
    let mut builder = if workers {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = builder.enable_all().build().map_err(CliError::Runtime)?;
    let result = catch_unwind(AssertUnwindSafe(|| runtime.block_on(run_command(cli, out, handover))));
    // A task that cannot end (a process tree that cannot be killed) must not block the exit.
    runtime.shutdown_background();
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

async fn run_command(cli: Cli, out: &mut Output, handover: &mut Option<Handover>) -> Result<(), CliError> {
    let global = cli.global;
    match cli.verb {
        SupervisorCommand::Serve { config, wrapper, own_session, log_file, resume_from_fd: _ } => {
            serve::log(global.log_format, log_file.as_deref())?;
            if own_session {
                serve::leave_session();
            }
            serve::run(serve::options(&global, config.as_deref(), wrapper)?, handover, out).await
        }
        SupervisorCommand::Upgrade { program } => {
            upgrade::run(&global.address()?, &global.state_dir()?, program, out).await
        }
        SupervisorCommand::HandoverCheck { args } => upgrade::check(args, out),
        SupervisorCommand::FilesHelper { frames } => Ok(crate::files::serve::run(frames)?),
        SupervisorCommand::Status => status::run(&mut client(&global.address()?).await?, out).await,
        SupervisorCommand::Metrics => metrics::run(&mut client(&global.address()?).await?, out).await,
        SupervisorCommand::Doctor(args) => doctor::run(&global, &args, out).await,
        SupervisorCommand::Enrol(args) => enrol::run(&args, out).await,
        SupervisorCommand::Service(verb) => service::run(&global, &verb, out).await,
        SupervisorCommand::Legacy(verb) => legacy::run(&verb, out),
        SupervisorCommand::Leases(leases::LeasesCommand::Watch(args)) => {
            watch::run(global.address()?, &args, out).await
        }
        SupervisorCommand::Leases(verb) => {
            leases::run(&mut client(&global.address()?).await?, verb, out).await
        }
        SupervisorCommand::Generate(args) => generate::run(&args, &Cli::command()),
    }
}

/// Connects as an admin, with the default deadline.
async fn client(address: &Address) -> Result<Client, CliError> {
    client_within(address, ANSWER).await
}

/// Connects as an admin; each answer must arrive within `deadline`.
async fn client_within(address: &Address, deadline: Duration) -> Result<Client, CliError> {
    let hello = Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        features: Vec::new(),
        role: Role::Admin,
        secret: address.secret(),
    };
    let opened = Client::open(&address.socket, hello, deadline).await;
    opened.map_err(|source| CliError::Connect { socket: address.socket.clone(), source })
}

/// Returns the system's state directory for root if it exists, else that of the user.
fn default_state_dir() -> Option<PathBuf> {
    let system = Path::new("/var/lib/acp-supervisor");
    if rustix::process::geteuid().is_root() && system.is_dir() {
        return Some(system.to_owned());
    }
    user_state_dir()
}

/// Returns the state directory of the user.
fn user_state_dir() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")))?;
    Some(base.join("acp-host/supervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_and_flag_has_help() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path}");
            for arg in command.get_arguments() {
                assert!(arg.get_help().is_some(), "{path} {}", arg.get_id());
            }
            command.get_subcommands().for_each(|sub| check(sub, &path));
        }
        check(&Cli::command(), "");
    }
}
