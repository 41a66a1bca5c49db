//! `agents`: the table of agents, from the gateway, or from this process if no gateway runs.

use crate::cli::GlobalArgs;
use crate::cli::agent_trial::{self, LoginArgs, StoredArgs, TestArgs, TrialArgs};
use crate::cli::config::{ConfigArgs, environment, read};
use crate::cli::output::{CliError, CliResult, Out, table};
use crate::config::LiveConfig;
use crate::runtime::agents::Agents;
use crate::runtime::local_lookup;
use acp_core::api::AgentView;
use acp_core::config::load::LoadedConfig;
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};

/// `agents`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct AgentsArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Include agents that are not installed here
    #[arg(long)]
    all: bool,
    #[command(subcommand)]
    verb: Option<AgentsCommand>,
}

/// Commands for one agent.
#[derive(Debug, Subcommand)]
enum AgentsCommand {
    /// Start an agent once, so that its program is downloaded
    Install(TrialArgs),
    /// Sign an agent in: with one of its methods, or show which it has
    Login(LoginArgs),
    /// Prove an agent with one turn: start it, ask, print its answer, end it
    Test(TestArgs),
    /// List the sessions that an agent has stored itself; `sessions spawn --resume ID` continues one
    Sessions(StoredArgs),
}

/// Note on a table that was made without a gateway.
pub(crate) const LOCAL: &str = "No gateway answers: this command searched as its own user and on its own PATH; a service may \
                                find other programs.";

/// `agents`
pub(crate) async fn run(global: &GlobalArgs, args: &AgentsArgs, out: &mut Out) -> CliResult {
    run_verb(global, args, out).await.map_err(|error| match error {
        CliError::Failed(failure) => {
            let message = global.repeat_paths(&failure.message, args.config.config.as_deref());
            CliError::Failed(Failure { message, ..failure })
        }
        error => error,
    })
}

async fn run_verb(global: &GlobalArgs, args: &AgentsArgs, out: &mut Out) -> CliResult {
    match &args.verb {
        None => {}
        Some(AgentsCommand::Install(args)) => return agent_trial::install(global, args, out).await,
        Some(AgentsCommand::Login(args)) => return agent_trial::login(global, args, out).await,
        Some(AgentsCommand::Test(args)) => return agent_trial::test(global, args, out).await,
        Some(AgentsCommand::Sessions(args)) => return agent_trial::sessions(global, args, out).await,
    }
    let all = global.advise("agents --all", args.config.config.as_deref());
    match global.client()?.get::<Vec<AgentView>>("/v1/agents").await {
        Ok(views) => out.show(&views, |views| format_agents(views, args.all, &all)),
        Err(failure) if failure.code == Code::GatewayUnavailable => {
            let state_dir = global.state_dir()?;
            let (loaded, _) = read(&state_dir, &args.config, None)?;
            let views = agents_found_here(&agents_of(loaded, &state_dir));
            out.show(&views, |views| format!("{}\n\n{LOCAL}", format_agents(views, args.all, &all)))
        }
        Err(failure) => Err(failure.into()),
    }
}

/// Returns the agents with the programs that this process finds, which may differ from those of a service.
pub(crate) fn agents_found_here(agents: &Agents) -> Vec<AgentView> {
    agents.list(&local_lookup::look_up(&agents.lookup_all()))
}

/// Returns the agents as a gateway started by this process would see them.
pub(crate) fn agents_of(loaded: LoadedConfig, state_dir: &Path) -> Agents {
    Agents::new(LiveConfig::new(loaded), environment(), &exe(), state_dir)
}

/// Returns the path of this program.
pub(crate) fn exe() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("acp-gateway"))
}

/// Formats the agents that can be used, or all of them. `list_all` is the command that shows all.
fn format_agents(views: &[AgentView], all: bool, list_all: &str) -> String {
    let useful = |view: &&AgentView| all || view.path.is_some() || view.origin == "configured";
    let shown: Vec<&AgentView> = views.iter().filter(useful).collect();
    let rows = shown.iter().map(|view| {
        let state = match (view.allowed, view.installed, &view.path) {
            (false, _, _) => "not allowed",
            (true, true, _) => "installed",
            (true, false, Some(_)) => "can be downloaded",
            (true, false, None) => "missing",
        };
        let command = view.command.join(" ");
        vec![
            view.name.to_string(),
            view.title.clone(),
            state.to_owned(),
            command,
            view.note.clone().unwrap_or_default(),
        ]
    });
    let mut text = table(&["AGENT", "TITLE", "STATE", "COMMAND", ""], rows);
    let hidden = views.len() - shown.len();
    if hidden > 0 {
        text.push_str(&format!("\n\n{hidden} more agents are known but not installed here: {list_all}"));
    }
    text
}
