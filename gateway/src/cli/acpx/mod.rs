//! `acpx`: the machine contract of acpx as a client of the local API, without state between two commands.

mod args;
mod control;
mod sessions;
mod turn;
mod watch;

use crate::api::client::{GatewayClient, encode};
use crate::cli::GlobalArgs;
use crate::cli::output::{CliError, CliResult, Out, now_ms, print_message};
use acp_core::acpx_contract::{AcpxCode, AcpxNaming, ContractError, Envelope, command_agent, split_command};
use acp_core::api::{AcpxSessionView, SpawnBody};
use acp_core::failure::Failure;
use acp_core::rows::{NonInteractive, PermissionMode, SessionMode};
use acp_core::time_format::format_utc;
use acp_shared::ids::AgentName;
use args::{AcpxCli, AcpxOptions, Format, SessionsVerb, Verb, arrange, wants_json};
use clap::Parser;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Name of the program under which it is this command.
pub(super) const PROGRAM: &str = "acpx";
/// Exit code after a second Ctrl-C, by shell convention.
const INTERRUPTED: u8 = 130;

/// Reason why a command ends early.
#[derive(Debug)]
enum AcpxEnd {
    /// The command failed; the error is not printed yet.
    Error { error: Box<ContractError>, session: Option<String> },
    /// The command ended with this exit code and has printed everything.
    Exit(u8),
    /// Standard output was closed by the reader.
    StdoutClosed,
}

type AcpxResult = Result<(), AcpxEnd>;

impl From<ContractError> for AcpxEnd {
    fn from(error: ContractError) -> Self {
        Self::Error { error: Box::new(error), session: None }
    }
}

impl From<Failure> for AcpxEnd {
    fn from(failure: Failure) -> Self {
        ContractError::from(&failure).into()
    }
}

impl From<CliError> for AcpxEnd {
    fn from(error: CliError) -> Self {
        match error {
            CliError::Failed(failure) => failure.into(),
            CliError::Code(code) => Self::Exit(code),
            CliError::StdoutClosed => Self::StdoutClosed,
        }
    }
}

impl AcpxEnd {
    /// Names the session of an error.
    fn of(self, key: &str) -> Self {
        match self {
            Self::Error { error, session } => {
                Self::Error { error, session: session.or_else(|| Some(key.to_owned())) }
            }
            other => other,
        }
    }
}

/// `~/.acpx/config.json`: the keys that have a meaning here. A project's file is never read.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct UserConfig {
    default_agent: Option<AgentName>,
    default_permissions: Option<PermissionMode>,
    non_interactive_permissions: Option<NonInteractive>,
    timeout: Option<f64>,
    format: Option<Format>,
}

impl UserConfig {
    fn load() -> Result<Self, ContractError> {
        let Some(home) = std::env::var_os("HOME").filter(|home| !home.is_empty()) else {
            return Ok(Self::default());
        };
        let path = PathBuf::from(home).join(".acpx/config.json");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(invalid_config(&path, &error.to_string())),
        };
        serde_json::from_str(&text).map_err(|error| invalid_config(&path, &error.to_string()))
    }
}

fn invalid_config(path: &Path, why: &str) -> ContractError {
    ContractError::new(AcpxCode::Usage, format!("{}: {why}", path.display())).detail("CONFIG_INVALID")
}

/// State of a command.
struct Command {
    options: AcpxOptions,
    config: UserConfig,
    format: Format,
    agent: Option<AgentName>,
    /// Words of the agent's command; empty for an agent that the gateway knows.
    agent_command: Vec<String>,
    client: GatewayClient,
    /// Canonical working directory.
    cwd: String,
    out: Out,
}

/// Runs a command line, without the name of the program.
pub(super) fn main(args: Vec<OsString>, state_dir: Option<PathBuf>) -> ExitCode {
    let args: Vec<String> = args.into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let json = wants_json(&args);
    let strict = json && args.iter().any(|arg| arg == "--json-strict");
    let format = if json { Format::Json } else { Format::Text };
    let mut out = Out::new(json);
    let (agent, args) = match arrange(args) {
        Ok(arranged) => arranged,
        Err(error) => return fail(&mut out, (format, strict), &error, None),
    };
    let cli = match AcpxCli::try_parse_from(std::iter::once(PROGRAM.to_owned()).chain(args)) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text).trim().to_owned();
            return fail(&mut out, (format, strict), &ContractError::new(AcpxCode::Usage, text), None);
        }
        Err(help) => {
            let printed = if strict { Ok(()) } else { out.text(&help.render().to_string()) };
            return out.finish(printed);
        }
    };
    let format = cli.options.format.unwrap_or(Format::Text);
    let mut command = match Command::new(cli.options, agent, state_dir) {
        Ok(command) => command,
        Err(error) => return fail(&mut out, (format, strict), &error, None),
    };
    match command.run(cli.verb) {
        Ok(()) => command.out.finish(Ok(())),
        Err(AcpxEnd::StdoutClosed) => command.out.finish(Err(CliError::StdoutClosed)),
        Err(AcpxEnd::Exit(code)) => command.out.finish(Err(CliError::Code(code))),
        Err(AcpxEnd::Error { error, session }) => {
            let format = (command.format, command.options.json_strict);
            fail(&mut command.out, format, &error, session.as_deref())
        }
    }
}

/// Prints an error, and returns the exit code. With `strict`, standard error stays empty.
fn fail(
    out: &mut Out,
    (format, strict): (Format, bool),
    error: &ContractError,
    session: Option<&str>,
) -> ExitCode {
    let code = if error.detail.as_deref() == Some("INTERRUPTED") { INTERRUPTED } else { error.code.exit() };
    // A closed standard output cannot be reported.
    let _ = match format {
        Format::Json => {
            let line = error.line(&Envelope::of_control(session), &format_utc(now_ms()));
            let printed = out.line(&line).and_then(|()| out.flush());
            if matches!(printed, Err(CliError::Failed(_))) && !strict {
                print_message(&error.message);
            }
            printed
        }
        Format::Text => {
            let flushed = out.end_line().and_then(|()| out.flush());
            print_message(&error.message);
            flushed
        }
        Format::Quiet => {
            let flushed = out.end_line().and_then(|()| out.flush());
            print_message(&quiet_error(error));
            flushed
        }
    };
    ExitCode::from(code)
}

/// Returns the line about an error in the format `quiet`.
fn quiet_error(error: &ContractError) -> String {
    let detail = error.detail.as_deref().map(|detail| format!(" {detail}")).unwrap_or_default();
    format!("[acpx] error: {}{detail} {}", error.code, error.message.replace('\n', " "))
}

impl Command {
    fn new(
        mut options: AcpxOptions,
        agent: Option<AgentName>,
        state_dir: Option<PathBuf>,
    ) -> Result<Self, ContractError> {
        let usage = |text: &str| ContractError::new(AcpxCode::Usage, text);
        let agent_command =
            options.agent.take().map(|text| read_command(&text)).transpose()?.unwrap_or_default();
        let agent = match (agent, agent_command.as_slice()) {
            (agent, []) => agent,
            (None, command) => Some(command_agent(command).map_err(|error| usage(&error.to_string()))?),
            (Some(_), _) => return Err(usage("the name of an agent and --agent exclude each other")),
        };
        let config = UserConfig::load()?;
        let format = options.format.or(config.format).unwrap_or(Format::Text);
        if options.json_strict && format != Format::Json {
            return Err(usage("--json-strict needs --format json"));
        }
        if options.json_strict && options.verbose {
            return Err(usage("--json-strict and --verbose exclude each other"));
        }
        let dir = options.cwd.clone().unwrap_or_else(|| PathBuf::from("."));
        let cwd = std::fs::canonicalize(&dir)
            .map_err(|error| usage(&format!("--cwd {}: {error}", dir.display())))?;
        let cwd =
            cwd.into_os_string().into_string().map_err(|_| usage("the working directory is not UTF-8"))?;
        options.timeout = options.timeout.or(config.timeout);
        options.state_dir = options.state_dir.or(state_dir);
        let json = format == Format::Json;
        let global =
            GlobalArgs { state_dir: options.state_dir.clone(), json, color: clap::ColorChoice::Never };
        let client = global.client().map_err(|failure| ContractError::from(&failure))?;
        let agent = agent.or_else(|| config.default_agent.clone());
        Ok(Self { options, config, format, agent, agent_command, client, cwd, out: Out::new(json) })
    }

    fn run(&mut self, verb: Verb) -> AcpxResult {
        if self.options.ttl.is_some() {
            self.note("[acpx] --ttl has no effect: acp.runtime.ttl_minutes of the gateway decides")?;
        }
        crate::cli::command()?.block_on(async {
            match verb {
                Verb::Prompt(args) => self.prompt(args).await,
                Verb::Exec(args) => self.exec(args).await,
                Verb::Cancel(name) => self.cancel(name).await,
                Verb::Status(name) => self.status(name).await,
                Verb::SetMode { mode, name } => self.set_mode(mode, name).await,
                Verb::Set { key, value, name } => self.set_option(key, value, name).await,
                Verb::Sessions { verb } => {
                    let verb = verb.unwrap_or(SessionsVerb::List { local: false, filter_cwd: None });
                    self.sessions(verb).await
                }
            }
        })
    }

    /// Body of a request for a session of the agent in this directory.
    fn spawn_body(&self, mode: SessionMode) -> SpawnBody {
        SpawnBody {
            agent: self.agent.clone().filter(|_| self.agent_command.is_empty()),
            command: self.agent_command.clone(),
            cwd: Some(self.cwd.clone()),
            mode: Some(mode),
            ..SpawnBody::default()
        }
    }

    /// Returns the name in this directory, or up to the root of its repository.
    fn naming(&self, name: Option<String>) -> AcpxNaming {
        AcpxNaming {
            name: name.unwrap_or_default(),
            cwd: self.cwd.clone(),
            root: Some(repository_root(&self.cwd)),
            replace: false,
        }
    }

    /// Returns the open session with a name.
    async fn find(&self, name: Option<String>) -> Result<Option<AcpxSessionView>, AcpxEnd> {
        self.look_up(&self.naming(name), false).await
    }

    /// Returns the session with a name; with `closed_too` a closed one of its directory if none is open.
    async fn look_up(
        &self,
        naming: &AcpxNaming,
        closed_too: bool,
    ) -> Result<Option<AcpxSessionView>, AcpxEnd> {
        let (cwd, name) = (encode(&naming.cwd), encode(&naming.name));
        let mut path = format!("/v1/acpx/sessions?cwd={cwd}&name={name}&all={closed_too}");
        let agent = self.agent.as_ref().map(|agent| ("agent", agent.as_str()));
        for (key, value) in agent.into_iter().chain(naming.root.as_deref().map(|root| ("root", root))) {
            path.push_str(&format!("&{key}={}", encode(value)));
        }
        let found: Vec<AcpxSessionView> = self.client.get(&path).await?;
        Ok(found.into_iter().next())
    }

    /// Returns the open session with a name, or fails with `NO_SESSION`.
    async fn require(&self, name: Option<String>) -> Result<AcpxSessionView, AcpxEnd> {
        self.find(name.clone()).await?.ok_or_else(|| self.no_session(name))
    }

    /// Returns the error about a name without an open session.
    fn no_session(&self, name: Option<String>) -> AcpxEnd {
        let agent = match &self.agent {
            Some(_) if !self.agent_command.is_empty() => "--agent COMMAND ".to_owned(),
            Some(agent) => format!("{agent} "),
            None => String::new(),
        };
        let flag =
            name.filter(|name| !name.is_empty()).map(|name| format!(" --name {name}")).unwrap_or_default();
        let text = format!(
            "No acpx session found (searched up to {}).\nCreate one: acpx {agent}sessions new{flag}",
            repository_root(&self.cwd)
        );
        ContractError::new(AcpxCode::NoSession, text).into()
    }

    /// Prints the result of a command: an object with the envelope, or the text for people.
    fn answer(
        &mut self,
        action: &str,
        members: Value,
        text: Option<&str>,
        quiet: Option<&str>,
    ) -> AcpxResult {
        let shown = match self.format {
            Format::Text => text,
            Format::Quiet => quiet,
            Format::Json => {
                let Value::Object(members) = members else { return Ok(()) };
                let mut line = Map::new();
                line.insert("action".to_owned(), action.into());
                line.insert("type".to_owned(), action.into());
                line.extend(members.into_iter().filter(|(_, value)| !value.is_null()));
                let session = line.get("sessionId").and_then(Value::as_str).map(str::to_owned);
                // An envelope is an object.
                if let Ok(Value::Object(envelope)) =
                    serde_json::to_value(Envelope::of_control(session.as_deref()))
                {
                    line.extend(envelope);
                }
                return Ok(self.out.json(&line)?);
            }
        };
        if let Some(shown) = shown {
            self.out.line(shown)?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Prints a note on standard error, unless only JSON may be printed, or only the answer.
    fn note(&mut self, text: &str) -> CliResult {
        if self.format != Format::Quiet && !self.options.json_strict {
            self.out.flush()?;
            print_message(text);
        }
        Ok(())
    }
}

/// Splits the command of an agent.
fn read_command(text: &str) -> Result<Vec<String>, ContractError> {
    split_command(text).ok_or_else(|| {
        let text = format!("--agent {text:?}: a quote or an escape is not closed, or the program is missing");
        ContractError::new(AcpxCode::Usage, text)
    })
}

/// Returns the ids of a session under both of their names.
fn ids(session: &acp_core::api::SessionView) -> Map<String, Value> {
    let key = session.session_key.as_str();
    let agents = session.agent_session_id.as_deref().unwrap_or(key);
    [("acpxRecordId", key), ("acpxSessionId", agents), ("id", key), ("sessionId", key)]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect()
}

/// Returns the root of the repository that holds a directory, or else the directory.
fn repository_root(cwd: &str) -> String {
    let root = Path::new(cwd).ancestors().find(|directory| directory.join(".git").exists());
    root.and_then(Path::to_str).unwrap_or(cwd).to_owned()
}
