//! `init`: asks for the settings that a first session needs, writes `gateway.toml`, and proves the agent with one
//! turn in a gateway that is started for it.

mod proof;

use crate::cli::agents::{agents_found_here, agents_of};
use crate::cli::config::{ConfigArgs, environment, file_of, toml_string};
use crate::cli::given::{absolute, current_dir};
use crate::cli::output::{CliError, CliResult, Out, print_message};
use crate::cli::questions::Questions;
use crate::cli::serve::make_private;
use crate::cli::{GlobalArgs, inside, usage};
use crate::runtime::agents::{DEMO, nearest_name};
use acp_core::api::AgentView;
use acp_core::config::PermissionMode;
use acp_core::config::load::{Inputs, LoadedConfig, load};
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::ids::AgentName;
use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Permission modes with their meaning, the safest usual one first.
const MODES: [(&str, PermissionMode, &str); 4] = [
    ("ask", PermissionMode::Ask, "reads are allowed; you are asked before writes and commands"),
    ("approve-reads", PermissionMode::ApproveReads, "as ask, for agents that also ask before reads"),
    ("approve-all", PermissionMode::ApproveAll, "nothing is asked: the agent may do everything that you may"),
    ("deny-all", PermissionMode::DenyAll, "everything that needs a permission is refused"),
];

/// `init`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  acp-gateway init\n  acp-gateway init --yes --cwd ~/project --agent demo --permission-mode ask\n\nQuestions that a flag answers are not asked. Other settings: docs/manual/configuration.md"
)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Working directory of sessions that name none [asked; default: the current directory]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Agent of sessions that name none [asked; default: the first one found here, else demo]
    #[arg(long, value_name = "AGENT")]
    agent: Option<AgentName>,
    /// Handling of permission requests [asked; default: ask]
    #[arg(long, visible_alias = "permission", value_name = "MODE", value_parser = PossibleValuesParser::new(MODES.map(|mode| mode.0)))]
    permission_mode: Option<String>,
    /// Ask nothing: take the defaults for what no flag sets
    #[arg(long, short)]
    yes: bool,
    /// Replace an existing configuration file; the old one is kept with the ending .old
    #[arg(long)]
    force: bool,
    /// Do not start the agent for a turn
    #[arg(long)]
    no_test: bool,
}

fn mode_named(name: &str) -> Option<PermissionMode> {
    MODES.iter().find(|mode| mode.0 == name).map(|mode| mode.1)
}

/// Answers of the person.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answers {
    cwd: String,
    agent: AgentName,
    permission: PermissionMode,
}

#[derive(Debug, Serialize)]
struct InitOutput {
    file: PathBuf,
    agent: AgentName,
    cwd: String,
    permission: PermissionMode,
    /// Reply of the agent; `None` without a test.
    reply: Option<String>,
}

/// `init`
pub(crate) async fn run(global: &GlobalArgs, args: &InitArgs, out: &mut Out) -> CliResult {
    let state_dir = global.state_dir()?;
    let file = file_of(&state_dir, args.config.config.as_deref());
    if !args.force && file.exists() {
        let text = format!(
            "{} exists: edit it and run `{}`, or replace it with --force",
            file.display(),
            global.advise("config check", args.config.config.as_deref())
        );
        return Err(usage(text).into());
    }
    let agents = agents_of(LoadedConfig::default(), &state_dir);
    let mut questions = Questions::new(args.yes || out.json)?;
    let answers = ask(args, &agents_found_here(&agents), &mut questions).await?;
    make_private(&state_dir)?;
    write(&file, &config_text(&answers), args.force)?;
    out.note(&format!("Wrote {} (mode 0600).", file.display()))?;
    let reply = match args.no_test {
        true => None,
        false => {
            out.note(&format!("Testing {} with one turn, which may take a minute …", answers.agent))?;
            let test = proof::Proof { state_dir: &state_dir, config: &file, answers: &answers };
            let tested = test.run(&mut questions).await;
            Some(tested.map_err(|error| with_next_step(error, global, &answers.agent))?)
        }
    };
    let shown =
        InitOutput { file, agent: answers.agent, cwd: answers.cwd, permission: answers.permission, reply };
    out.show(&shown, |shown| next_steps(shown, global, args.config.config.as_deref()))
}

async fn ask(args: &InitArgs, views: &[AgentView], questions: &mut Questions) -> Result<Answers, CliError> {
    let cwd = match &args.cwd {
        Some(cwd) => directory(&cwd.to_string_lossy())?,
        None => {
            let here = current_dir()?.display().to_string();
            questions.ask("Working directory of new sessions", &here, directory).await?
        }
    };
    let agent = match &args.agent {
        Some(agent) => agent_named(views, agent.as_str())?,
        None => {
            let usable: Vec<&AgentView> = views.iter().filter(|view| view.installed).collect();
            let real = usable.iter().find(|view| view.name.as_str() != DEMO);
            let default = real.map_or(DEMO, |view| view.name.as_str()).to_owned();
            for view in &usable {
                questions.explain(&format!("  {}: {}", view.name, view.title));
            }
            let fetched: Vec<&str> = views
                .iter()
                .filter(|view| !view.installed && view.path.is_some())
                .map(|view| view.name.as_str())
                .collect();
            if !fetched.is_empty() {
                questions.explain(&format!("  downloaded on first use: {}", fetched.join(", ")));
            }
            questions.explain("More agents: acp-gateway agents --all");
            questions.ask("Default agent", &default, |name| agent_named(views, name)).await?
        }
    };
    let permission = match args.permission_mode.as_deref().and_then(mode_named) {
        Some(permission) => permission,
        None => {
            for (name, _, meaning) in MODES {
                questions.explain(&format!("  {name}: {meaning}"));
            }
            let parse = |name: &str| {
                let names = MODES.map(|mode| mode.0).join(", ");
                mode_named(name).ok_or_else(|| usage(format!("{name:?} is not a mode: use one of {names}")))
            };
            questions.ask("Permission mode", "ask", parse).await?
        }
    };
    Ok(Answers { cwd, agent, permission })
}

/// Returns the absolute path of an existing directory; `~/` is the home directory.
fn directory(text: &str) -> Result<String, Failure> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let path = match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(text),
    };
    let path = absolute(&path)?;
    match Path::new(&path).is_dir() {
        true => Ok(path),
        false => Err(usage(format!("{path} is not a directory: create it, or name another one"))),
    }
}

fn agent_named(views: &[AgentView], name: &str) -> Result<AgentName, Failure> {
    let Some(view) = views.iter().find(|view| view.name.as_str() == name) else {
        let names = views.iter().map(|view| view.name.as_str());
        let near = nearest_name(name, names).map(|near| format!(" Did you mean {near}?")).unwrap_or_default();
        return Err(usage(format!(
            "no agent is called {name:?}.{near} `acp-gateway agents --all` lists the known agents"
        )));
    };
    if view.path.is_none() {
        let note = view.note.as_deref().unwrap_or("not installed here");
        return Err(usage(format!("{name} is not installed ({note}): install it, or name another one")));
    }
    Ok(view.name.clone())
}

/// Builds the text of the configuration file.
fn config_text(answers: &Answers) -> String {
    let mode = MODES.iter().find(|mode| mode.1 == answers.permission).map_or("ask", |mode| mode.0);
    let modes = MODES.map(|(name, _, meaning)| format!("# {name}: {meaning}")).join("\n");
    format!(
        "# Configuration of acp-gateway, written by `acp-gateway init`. After a change: `acp-gateway config check`,\n\
         # then SIGHUP to `acp-gateway up`, or reload the service. Every key: gateway.example.toml in the documentation.\n\n\
         [acp]\n\
         # Agent of sessions that name none; `acp-gateway agents` lists those that can be used here.\n\
         default_agent = {}\n\
         # Working directory of sessions that name none.\n\
         default_cwd = {}\n\
         # Directories that agents may work in, with all below. Empty: every directory that you can read.\n\
         # workspace_roots = [{}]\n\n\
         [permission]\n\
         # What happens when an agent asks for a permission:\n\
         {modes}\n\
         mode = {}\n",
        toml_string(answers.agent.as_str()),
        toml_string(&answers.cwd),
        toml_string(&answers.cwd),
        toml_string(mode),
    )
}

/// Writes the configuration file with mode 0600, complete or not at all.
fn write(file: &Path, text: &str, force: bool) -> Result<(), Failure> {
    let checked = load(Inputs { file: Some((file, text)), env: &environment(), ..Inputs::default() });
    checked.map_err(|error| Failure::new(Code::ConfigInvalid, error.to_string()).origin("client"))?;
    let failed = |error: io::Error| usage(format!("cannot write {}: {error}", file.display()));
    if force && file.exists() {
        // Each old file is kept under a name of its own, and the name always has a whole file.
        let names = (1..).map(|number| file.with_extension(format!("toml.old.{number}")));
        let mut names = std::iter::once(file.with_extension("toml.old")).chain(names);
        let old = names.find(|name| !name.exists()).unwrap_or_else(|| file.with_extension("toml.old"));
        std::fs::copy(file, &old).map_err(failed)?;
        print_message(&format!("The old configuration is {}.", old.display()));
        let new = file.with_extension("toml.next");
        let _ = std::fs::remove_file(&new);
        return write_private(&new, text).and_then(|()| std::fs::rename(&new, file)).map_err(failed);
    }
    write_private(file, text).map_err(failed)
}

/// Creates a file that only this user can read, with its content on disk. An existing file is an error.
pub(crate) fn write_private(file: &Path, text: &str) -> io::Result<()> {
    let new = file.with_extension("new");
    let _ = std::fs::remove_file(&new);
    let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    opened.write_all(text.as_bytes())?;
    opened.sync_all()?;
    // A link fails if the name exists, which a rename does not.
    let linked = std::fs::hard_link(&new, file);
    std::fs::remove_file(&new)?;
    linked
}

fn next_steps(shown: &InitOutput, global: &GlobalArgs, config: Option<&Path>) -> String {
    let tested = match &shown.reply {
        Some(reply) => format!("{} answered: {}\n\n", shown.agent, reply.trim()),
        None => String::new(),
    };
    let discord = match cfg!(feature = "discord") {
        true => format!("\n  {}\n    connect a Discord bot", global.advise("discord setup", config)),
        false => String::new(),
    };
    format!(
        "{tested}Next:\n  \
         {}\n    start gateway and supervisor on this machine\n  \
         {}\n    in another terminal: start a conversation{discord}",
        global.advise("up", config),
        global.advise(&format!("chat --agent {}", shown.agent), None)
    )
}

/// Adds to the end of a test without a reply what to do now: the configuration is written, so `init` is not called again.
fn with_next_step(error: CliError, global: &GlobalArgs, agent: &AgentName) -> CliError {
    let say = |verb: &str| global.advise(verb, None);
    let (up, test) = (say("up -d"), say(&format!("agents test {agent}")));
    match error {
        CliError::Failed(failure) => {
            let login = say(&format!("agents login {agent}"));
            let text = format!(
                "{}\nWhen this is solved: `{up}`, then `{test}`; `{login}` signs the agent in.",
                failure.message.trim_end(),
            );
            CliError::Failed(Failure { message: text, ..failure })
        }
        ended => {
            print_message(&format!(
                "\nInterrupted; the configuration is written. To test later: `{up}`, then `{test}`."
            ));
            ended
        }
    }
}

/// Builds the failure for a test that could not be made.
fn untested(why: &str) -> Failure {
    inside(
        "the configuration is written, but the agent could not be tested",
        &io::Error::other(why.to_owned()),
    )
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn written_configuration_has_the_answers_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("gateway.toml");
        let answers = Answers {
            cwd: "/srv/a \"b\" \\ c".to_owned(),
            agent: AgentName::parse("demo").unwrap(),
            permission: PermissionMode::ApproveReads,
        };
        let text = config_text(&answers);
        write(&file, &text, false).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let read = std::fs::read_to_string(&file).unwrap();
        let loaded = load(Inputs { file: Some((&file, &read)), ..Inputs::default() }).unwrap();
        assert_eq!(loaded.config.acp.default_agent, Some(answers.agent.clone()));
        assert_eq!(loaded.config.acp.default_cwd, Some(PathBuf::from(&answers.cwd)));
        assert_eq!(loaded.config.permission.mode, PermissionMode::ApproveReads);
        assert!(write(&file, "", false).unwrap_err().message.contains("gateway.toml"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        for old in ["gateway.toml.old", "gateway.toml.old.1"] {
            let before = std::fs::read_to_string(&file).unwrap();
            write(&file, "[acp]\n", true).unwrap();
            assert_eq!(std::fs::read_to_string(dir.path().join(old)).unwrap(), before);
        }
        assert_eq!(std::fs::read_to_string(dir.path().join("gateway.toml.old")).unwrap(), text);
        assert!(write(&file, "nonsense = 1\n", true).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[acp]\n");
    }
}
