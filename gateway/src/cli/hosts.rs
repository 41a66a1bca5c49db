//! `hosts list | enrol`.

mod authority;
mod enrol;
mod enrolment;

use crate::cli::GlobalArgs;
use crate::cli::output::{CliResult, Out, table};
use acp_core::api::HostView;
use clap::Subcommand;

const EXAMPLES: &str = "\
Examples:
  acp-gateway hosts list
  acp-gateway sessions spawn --agent demo --host big1
  acp-gateway sessions set KEY --host local

Hosts are the machines whose supervisors start agents: this one (`local`), and those of [remote.hosts] in the
configuration. Sessions on a host that is away keep their prompts until it is back.";

/// `hosts …`
#[derive(Debug, Subcommand)]
pub(crate) enum HostsCommand {
    /// List the machines that run agents, with their state and room
    #[command(after_help = EXAMPLES)]
    List,
    /// Print a one-time token with which a new host gets its certificate, and wait for that host
    Enrol(enrol::EnrolArgs),
}

/// `hosts …`
pub(crate) async fn run(global: &GlobalArgs, verb: HostsCommand, out: &mut Out) -> CliResult {
    if let HostsCommand::Enrol(args) = verb {
        return enrol::run(global, &args, out).await;
    }
    let views: Vec<HostView> = global.client()?.get("/v1/hosts").await?;
    out.show(&views, |views| list(views))
}

fn list(views: &[HostView]) -> String {
    let rows = views.iter().map(|view| {
        let state = if view.connected { "connected".to_owned() } else { format!("away: {}", view.detail) };
        let memory = match view.memory_bytes >> 20 {
            0 => String::new(),
            megabytes => format!("{:.1} GiB", megabytes as f64 / 1_024.0),
        };
        let agents = if memory.is_empty() { String::new() } else { view.agents.to_string() };
        vec![view.name.clone(), view.address.clone(), agents, memory, view.labels.join(", "), state]
    });
    table(&["HOST", "SUPERVISOR", "AGENTS", "MEMORY", "LABELS", "STATE"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_shows_room_and_the_reason_of_an_outage() {
        let local = HostView {
            name: "local".to_owned(),
            address: "/run/s.sock".to_owned(),
            connected: true,
            detail: "connected".to_owned(),
            labels: Vec::new(),
            agents: 2,
            memory_bytes: 24 << 30,
        };
        let away = HostView {
            name: "big1".to_owned(),
            address: "10.0.0.5:7420".to_owned(),
            connected: false,
            detail: "the supervisor does not answer (timed out)".to_owned(),
            labels: vec!["gpu".to_owned(), "ssd".to_owned()],
            agents: 0,
            memory_bytes: 0,
        };
        let text = list(&[local, away]);
        for want in ["2       24.0 GiB", "gpu, ssd", "away: the supervisor does not answer (timed out)"] {
            assert!(text.contains(want), "{want:?} is not in\n{text}");
        }
    }
}
