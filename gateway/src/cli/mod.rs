//! The command line: one file per verb. This file holds the shared parts: flags, paths, exit codes.

pub(crate) mod acp;
mod acpx;
pub(crate) mod adopt;
pub(crate) mod agent_trial;
mod agents;
pub(crate) mod cell;
pub(crate) mod chat;
pub(crate) mod config;
mod console;
#[cfg(feature = "discord")]
pub(crate) mod discord;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod follow;
mod generate;
mod given;
mod hosts;
pub(crate) mod init;
pub(crate) mod logging;
pub(crate) mod logs;
mod mcp;
mod migrate;
pub(crate) mod output;
pub(crate) mod permissions;
pub(crate) mod prompt;
pub(crate) mod questions;
pub(crate) mod serve;
mod service;
mod service_logs;
mod session_arg;
mod session_changes;
mod session_prune;
mod session_views;
pub(crate) mod sessions;
mod shell_completion;
pub(crate) mod status;
mod stop_signals;
pub(crate) mod store;
pub(crate) mod token;
pub(crate) mod up;

use crate::api::client::GatewayClient;
use crate::channel::ChannelAdapter;
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::help;
use acp_shared::ids::IdempotencyKey;
use clap::{Args, ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};
use output::{CliResult, Out};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

const EXAMPLES: &str = "\
First steps:
  acp-gateway init                                 write a configuration and test an agent
  acp-gateway up -d                                start gateway and supervisor on this machine; `down` ends them
  acp-gateway agents                               list the agents that can be used here
  acp-gateway sessions spawn --agent demo          start a session; prints its key
  acp-gateway prompt KEY 'help'                    send a prompt and stream the reply

SESSION is a key, an id or its first characters, or a label; --last is the session used last, and without a
name it is the open session of the current directory.

With --json every verb prints JSON lines, failures included. Exit codes: 0 done or cancelled, 1 failed,
2 usage, 3 timeout, 4 no such session, 5 permission denied.";

const COMPLETION_EXAMPLES: &str = "\
Examples:
  source <(acp-gateway completions bash)           in ~/.bashrc
  source <(acp-gateway completions zsh)            in ~/.zshrc, after compinit
  acp-gateway completions fish | source            in ~/.config/fish/config.fish

The packages install these scripts. They run `acp-gateway`, which asks the gateway for at most 300 ms.";

#[derive(Debug, Parser)]
#[command(
    name = "acp-gateway",
    version,
    about = "Run coding agents as a service, in sessions that survive crashes and restarts",
    after_help = EXAMPLES
)]
struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    verb: CliCommand,
}

/// Flags of every verb.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct GlobalArgs {
    /// State directory of the gateway [default: $XDG_STATE_HOME/acp-host or ~/.local/state/acp-host]
    #[arg(long, global = true, value_name = "DIR", env = "ACP_GATEWAY_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Print JSON lines for programs
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Use of colours; auto follows NO_COLOR, CLICOLOR, CLICOLOR_FORCE and the terminal
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: ColorChoice,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Ask for the first settings, write the configuration and test an agent with one turn
    Init(init::InitArgs),
    /// Run the gateway, and start a supervisor if none answers; Ctrl-C ends both. With -d, in the background
    Up(up::UpArgs),
    /// End the gateway and the supervisor that `up` started, and all agents
    #[command(after_help = down::EXAMPLES)]
    Down,
    /// Show what runs: gateway, supervisor, sessions, channels and logs
    #[command(after_help = status::EXAMPLES)]
    Status,
    /// Run the gateway in the foreground; the supervisor is managed separately
    Serve(serve::ServeArgs),
    /// Talk with an agent in the terminal
    Chat(chat::ChatArgs),
    /// Open the web console in a browser; Ctrl-C closes it and signs the browser out
    Console(console::ConsoleArgs),
    /// Manage sessions: spawn, list, show, history, set, label, rename, cancel, release, export, new, close, archive, delete, reset, prune
    #[command(subcommand)]
    Sessions(sessions::SessionsCommand),
    /// Send a prompt and stream the reply
    Prompt(prompt::PromptArgs),
    /// Send text into the running turn
    Steer(prompt::PromptArgs),
    /// Connect an editor that speaks ACP on standard input and output
    Acp(acp::AcpArgs),
    #[command(flatten)]
    Acpx(AcpxVerb),
    /// Show the standard error of a session's agents, or with --service the log of gateway and supervisor
    Logs(logs::LogsArgs),
    /// List and answer pending permission requests
    #[command(subcommand)]
    Permissions(permissions::PermissionsCommand),
    /// Manage the tokens of programs and people that use the API over TCP: add, list, revoke
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// List the machines that run agents, and enrol new ones
    #[command(subcommand)]
    Hosts(hosts::HostsCommand),
    /// List the known agents and which are installed here; install, sign in and test one
    Agents(agents::AgentsArgs),
    /// Install, check or remove the gateway as a service of systemd
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// Set up a Discord bot: check its token, learn who you are, write the account
    #[cfg(feature = "discord")]
    #[command(subcommand)]
    Discord(discord::DiscordCommand),
    /// Check the installation
    Doctor(doctor::DoctorArgs),
    /// Show or check the configuration
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Check, read, back up, restore or compact the control plane's database
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Import sessions and bindings of another program
    #[command(subcommand)]
    Migrate(migrate::MigrateCommand),
    /// Give a copied state directory a new identity
    Adopt,
    /// Run a deterministic agent that needs no credentials: speaks ACP on standard input and output
    DemoAgent,
    /// Print a completion script; it completes agents, sessions and settings too
    #[command(after_help = COMPLETION_EXAMPLES)]
    Completions {
        /// Shell of the script
        shell: clap_complete::Shell,
    },
    /// Write man pages or completion scripts (used by `make man` and `make completions`)
    #[command(hide = true)]
    Generate(generate::GenerateArgs),
    /// Connect an agent with the session tools of its gateway on standard input and output (used by agents)
    #[command(hide = true)]
    Mcp,
    /// Run a program in a new Unix session (used by `up`)
    #[command(hide = true)]
    Detached {
        /// Program and arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
}

#[derive(Debug, Subcommand)]
enum AcpxVerb {
    /// Drive agents with the machine contract of acpx; also under the program name `acpx`
    #[command(disable_help_flag = true)]
    Acpx {
        /// Arguments, as in `acp-gateway acpx --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
        args: Vec<OsString>,
    },
}

/// Command line of the verb `acpx` alone: programs start it for each turn, and the definition of all verbs costs time.
#[derive(Debug, Parser)]
#[command(name = "acp-gateway")]
struct AcpxCommandLine {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    verb: AcpxVerb,
}

impl AcpxCommandLine {
    /// Parses the command line of that verb; `None` for other verbs and for errors, which [`Cli`] reports.
    fn of(args: &[OsString]) -> Option<Self> {
        args.iter().any(|arg| arg == acpx::PROGRAM).then(|| Self::try_parse_from(args).ok())?
    }
}

/// Runs the command line of the process.
#[must_use]
pub fn main() -> ExitCode {
    main_with(Vec::new())
}

/// Like `main`; a gateway started by it has these channels in addition to the built-in ones.
#[must_use]
pub fn main_with(channels: Vec<Arc<dyn ChannelAdapter>>) -> ExitCode {
    crate::util::allocator::configure_allocator();
    let args: Vec<OsString> = std::env::args_os().collect();
    let name = args.first().and_then(|name| Path::new(name).file_name());
    if name.is_some_and(|name| name == acpx::PROGRAM) {
        return acpx::main(args.into_iter().skip(1).collect(), None);
    }
    if let Some(code) = shell_completion::answer_script(&args, Cli::command) {
        return code;
    }
    if let Some(AcpxCommandLine { global, verb: AcpxVerb::Acpx { args } }) = AcpxCommandLine::of(&args) {
        return acpx::main(args, global.state_dir);
    }
    let cli = match parse(&args) {
        Ok(cli) => cli,
        Err(error) => {
            output::choose_colours_of(&args);
            return parse_failure(&error, args.iter().any(|arg| arg == "--json"));
        }
    };
    let global = cli.global;
    output::choose_colours(global.color);
    match cli.verb {
        CliCommand::DemoAgent => acp_demo_agent::main(global.state_dir.as_deref()),
        CliCommand::Detached { command } => up::detached(&command),
        CliCommand::Acpx(AcpxVerb::Acpx { args }) => acpx::main(args, global.state_dir),
        verb => {
            let mut out = Out::new(global.json);
            let outcome = run(&global, verb, channels, &mut out);
            out.finish(outcome)
        }
    }
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

/// Prints help and version to standard output, and usage errors as one JSON line or as text.
fn parse_failure(error: &clap::Error, json: bool) -> ExitCode {
    let mut out = Out::new(json);
    if !error.use_stderr() {
        let printed = out.help(&error.render());
        return out.finish(printed);
    }
    if json {
        let text = error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text).trim();
        return out.finish(Err(Failure::new(Code::Usage, text).origin("client").into()));
    }
    let text = error.render().to_string();
    let columns = help::columns(std::io::stderr()).unwrap_or(usize::MAX);
    output::print_message(help::wrap(text.trim_end(), columns).as_str());
    ExitCode::from(Code::Usage.exit())
}

fn run(
    global: &GlobalArgs,
    verb: CliCommand,
    channels: Vec<Arc<dyn ChannelAdapter>>,
    out: &mut Out,
) -> CliResult {
    match verb {
        CliCommand::Init(args) => command()?.block_on(init::run(global, &args, out)),
        CliCommand::Up(args) => service()?.block_on(up::run(global, &args, channels, out)),
        CliCommand::Down => command()?.block_on(down::run(global, out)),
        CliCommand::Status => command()?.block_on(status::run(global, out)),
        CliCommand::Serve(args) => service()?.block_on(serve::run(global, &args, channels, out)),
        CliCommand::Chat(args) => command()?.block_on(chat::run(global, args, out)),
        CliCommand::Console(args) => command()?.block_on(console::run(global, &args, out)),
        CliCommand::Sessions(verb) => command()?.block_on(sessions::run(global, verb, out)),
        CliCommand::Prompt(args) => command()?.block_on(prompt::run(global, args, false, out)),
        CliCommand::Steer(args) => command()?.block_on(prompt::run(global, args, true, out)),
        CliCommand::Acp(args) => command()?.block_on(acp::run(global, args)),
        CliCommand::Mcp => command()?.block_on(mcp::run()),
        CliCommand::Logs(args) => command()?.block_on(logs::run(global, args, out)),
        CliCommand::Permissions(verb) => command()?.block_on(permissions::run(global, verb, out)),
        CliCommand::Token(verb) => command()?.block_on(token::run(global, verb, out)),
        CliCommand::Hosts(verb) => command()?.block_on(hosts::run(global, verb, out)),
        CliCommand::Agents(args) => command()?.block_on(agents::run(global, &args, out)),
        #[cfg(feature = "discord")]
        CliCommand::Discord(verb) => command()?.block_on(discord::run(global, verb, out)),
        CliCommand::Doctor(args) => command()?.block_on(doctor::run(global, &args, out)),
        CliCommand::Service(verb) => command()?.block_on(service::run(global, &verb, out)),
        CliCommand::Config(verb) => config::run(global, &verb, out),
        CliCommand::Store(verb) => store::run(global, &verb, out),
        CliCommand::Migrate(verb) => migrate::run(global, &verb, out),
        CliCommand::Adopt => adopt::run(global, out),
        CliCommand::Completions { shell } => completions(shell, out),
        CliCommand::Generate(args) => generate::run(&args, &Cli::command()),
        // Handled by `main_with`.
        CliCommand::DemoAgent | CliCommand::Detached { .. } | CliCommand::Acpx(_) => Ok(()),
    }
}

fn completions(shell: clap_complete::Shell, out: &mut Out) -> CliResult {
    let script = shell_completion::script(shell).map_err(|error| inside("cannot make the script", &error))?;
    out.text(&script)
}

/// Creates the runtime of a service.
fn service() -> Result<tokio::runtime::Runtime, Failure> {
    let built = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    built.map_err(|error| inside("cannot start the runtime", &error))
}

/// Creates the runtime of a client command.
fn command() -> Result<tokio::runtime::Runtime, Failure> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| inside("cannot start the runtime", &error))
}

/// Builds the failure for an unexpected error in this process.
pub(crate) fn inside(what: &str, error: &dyn std::error::Error) -> Failure {
    Failure::new(Code::Runtime, format!("{what}: {error}")).origin("client")
}

/// Builds the failure for an invalid command line that clap accepts.
pub(crate) fn usage(message: impl Into<String>) -> Failure {
    Failure::new(Code::Usage, message).origin("client")
}

impl GlobalArgs {
    /// Returns the absolute path of the state directory.
    ///
    /// # Errors
    /// `USAGE` if neither `--state-dir` nor the environment names a directory.
    pub(crate) fn state_dir(&self) -> Result<PathBuf, Failure> {
        let given = self.state_dir.clone().filter(|dir| !dir.as_os_str().is_empty());
        let dir = given.or_else(default_state_dir).ok_or_else(|| {
            usage("neither XDG_STATE_HOME nor HOME is set: name a state directory with --state-dir")
        })?;
        std::path::absolute(&dir).map_err(|error| usage(format!("{}: {error}", dir.display())))
    }

    /// Formats a command of this program for people, with the state directory and configuration file that were given.
    pub(crate) fn advise(&self, verb: &str, config: Option<&Path>) -> String {
        let dir = self.state_dir.as_ref().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.map(|dir| format!(" --state-dir {}", shell_word(dir))).unwrap_or_default();
        let config = config.map(|file| format!(" --config {}", shell_word(file))).unwrap_or_default();
        format!("acp-gateway{dir} {verb}{config}")
    }

    /// Repeats the given paths in advised commands.
    pub(crate) fn repeat_paths(&self, text: &str, config: Option<&Path>) -> String {
        let own = self.advise("", None);
        let repeated = ["`", "run: "].iter().fold(text.to_owned(), |text, before| {
            text.replace(&format!("{before}acp-gateway "), &format!("{before}{own}"))
        });
        repeated.replace(&format!("{own}up`"), &format!("{}`", self.advise("up", config)))
    }

    /// Creates a client of the gateway.
    ///
    /// # Errors
    /// As [`GlobalArgs::state_dir`].
    pub(crate) fn client(&self) -> Result<GatewayClient, Failure> {
        Ok(GatewayClient::new(&self.state_dir()?))
    }
}

/// Quotes a path for a shell, if necessary.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:@%,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Returns the default state directory, from `XDG_STATE_HOME` or `HOME`.
fn default_state_dir() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = var("XDG_STATE_HOME").filter(|dir| dir.is_absolute());
    base.or_else(|| Some(var("HOME")?.join(".local/state"))).map(|base| base.join("acp-host"))
}

/// `--idempotency-key`.
#[derive(Debug, Clone, Args)]
pub(crate) struct IdempotencyArgs {
    /// Idempotency key: repeated requests with the same key take effect once [default: a new key]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<IdempotencyKey>,
}

impl IdempotencyArgs {
    /// Returns the given key, or a new one.
    pub(crate) fn key(&self) -> IdempotencyKey {
        self.idempotency_key.clone().unwrap_or_else(IdempotencyKey::mint)
    }
}

#[cfg(test)]
mod readers_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_grammar_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn acpx_command_line_is_parsed_without_the_other_verbs() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        for line in [
            "acp-gateway acpx",
            "acp-gateway --state-dir /s acpx --cwd / codex acpx",
            "acp-gateway --json acpx --help",
        ] {
            let args = words(line);
            let (Some(short), Ok(whole)) = (AcpxCommandLine::of(&args), Cli::try_parse_from(&args)) else {
                panic!("{line}")
            };
            let (AcpxVerb::Acpx { args: rest }, CliCommand::Acpx(AcpxVerb::Acpx { args })) =
                (short.verb, whole.verb)
            else {
                panic!("{line}")
            };
            assert_eq!((short.global.state_dir, rest), (whole.global.state_dir, args), "{line}");
        }
        for line in [
            "acp-gateway status",
            "acp-gateway sessions show acpx",
            "acp-gateway --help acpx",
            "acp-gateway --nonsense acpx",
        ] {
            assert!(AcpxCommandLine::of(&words(line)).is_none(), "{line}");
        }
    }

    #[test]
    fn advised_command_repeats_given_paths() {
        let global = |dir: Option<&str>| GlobalArgs {
            state_dir: dir.map(PathBuf::from),
            json: false,
            color: ColorChoice::Never,
        };
        assert_eq!(global(None).advise("up", None), "acp-gateway up");
        assert_eq!(
            global(Some("/a")).advise("up -d", Some(Path::new("/b.toml"))),
            "acp-gateway --state-dir /a up -d --config /b.toml"
        );
        let text = "start it with `acp-gateway up`, or run: acp-gateway agents login a; acp-gateway ends";
        assert_eq!(global(None).repeat_paths(text, None), text);
        assert_eq!(
            global(Some("/a")).repeat_paths(text, Some(Path::new("/b.toml"))),
            "start it with `acp-gateway --state-dir /a up --config /b.toml`, or run: acp-gateway --state-dir /a agents login a; \
             acp-gateway ends"
        );
        assert_eq!(
            global(Some("/it's a")).advise("down", None),
            "acp-gateway --state-dir '/it'\\''s a' down"
        );
    }
}
