//! `agents`: the table of agents, from the gateway, or from here when none runs.

use crate::agents::Agents;
use crate::api::AgentView;
use crate::cli::Global;
use crate::cli::config::{ConfigArgs, environment, read};
use crate::cli::output::{Out, Outcome, table};
use crate::error::Failure;
use crate::live::Live;
use acp_shared::codes::Code;
use clap::Args;
use std::path::PathBuf;

/// `agents`
#[derive(Debug, Args)]
pub(crate) struct AgentsArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Also those that are not installed here
    #[arg(long)]
    all: bool,
}

/// `agents`
pub(crate) async fn run(global: &Global, args: &AgentsArgs, out: &mut Out) -> Outcome {
    let views = match global.client()?.get::<Vec<AgentView>>("/v1/agents").await {
        Ok(views) => views,
        Err(failure) if failure.code == Code::GatewayUnavailable => here(global, &args.config)?.list(),
        Err(failure) => return Err(failure.into()),
    };
    out.show(&views, |views| people(views, args.all))
}

/// The agents as a gateway started here would see them.
///
/// # Errors
/// `CONFIG_INVALID`.
pub(crate) fn here(global: &Global, config: &ConfigArgs) -> Result<Agents, Failure> {
    let state_dir = global.state_dir()?;
    let (loaded, _) = read(&state_dir, config, None)?;
    Ok(Agents::new(Live::new(loaded), environment(), &exe(), &state_dir))
}

/// This program's own file.
pub(crate) fn exe() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("acp-gateway"))
}

fn people(views: &[AgentView], all: bool) -> String {
    let useful = |view: &&AgentView| all || view.path.is_some() || view.origin == "configured";
    let shown: Vec<&AgentView> = views.iter().filter(useful).collect();
    let rows = shown.iter().map(|view| {
        let state = match (view.allowed, view.installed, &view.path) {
            (false, _, _) => "not allowed",
            (true, true, _) => "installed",
            (true, false, Some(_)) => "can be fetched",
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
        text.push_str(&format!(
            "\n\n{hidden} more are known and not installed here: acp-gateway agents --all"
        ));
    }
    text
}
