//! `leases close`: ends leases with grace periods, requested by an admin. The gateway is notified as for any
//! other end.

use super::{list_all, resolve};
use crate::cli::error::FAILED;
use crate::cli::{CliError, Output, text};
use acp_shared::conn::Client;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseInfo, Reply, Request};
use clap::Args;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Poll interval while waiting for the end.
const POLL: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(in crate::cli) struct CloseArgs {
    /// Lease ids, or the beginnings or ends of ids
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// Reason, for the record and for the gateway
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Do not ask for confirmation
    #[arg(long, short = 'y')]
    yes: bool,
    /// Wait until the process trees are verified to be gone
    #[arg(long)]
    wait: bool,
    /// Maximum waiting time
    #[arg(long, value_name = "TIME", value_parser = text::parse_duration, default_value = "2m", requires = "wait")]
    timeout: u64,
}

pub(super) async fn run(client: &mut Client, args: &CloseArgs, out: &mut Output) -> Result<(), CliError> {
    let leases = list_all(client, false).await?;
    let mut ids = Vec::new();
    for id in &args.ids {
        let id = resolve(&leases, id)?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let closing: Vec<&LeaseInfo> = leases.iter().filter(|lease| ids.contains(&lease.lease_id)).collect();
    if !args.yes && !confirm(&closing, out)? {
        return Err(CliError::Ended(FAILED));
    }
    let me = rustix::process::geteuid().as_raw();
    let reason = args.reason.clone().unwrap_or_else(|| format!("closed by an admin (uid {me})"));
    for lease_id in &ids {
        let asked = Request::CloseLease { lease_id: *lease_id, reason: reason.clone() };
        let Reply::Closing { .. } = client.call(asked).await? else { return Err(CliError::OutOfTurn) };
    }
    let closed = if args.wait {
        wait(client, &ids, Duration::from_millis(args.timeout)).await?
    } else {
        of(list_all(client, false).await?, &ids)
    };
    report(&closed, out)
}

/// Asks the user at the terminal to confirm. Fails if there is no terminal.
fn confirm(leases: &[&LeaseInfo], out: &mut Output) -> Result<bool, CliError> {
    if !std::io::stdin().is_terminal() || out.is_json() {
        return Err(CliError::usage(
            "confirmation needs a terminal and no --json; add --yes to close without it",
        ));
    }
    let names: Vec<String> =
        leases.iter().map(|l| format!("{} ({}, {})", l.lease_id, l.session_key, l.state)).collect();
    Ok(out.confirm(&format!("End {}? A running turn fails.", names.join(", ")))?)
}

fn of(leases: Vec<LeaseInfo>, ids: &[LeaseId]) -> Vec<LeaseInfo> {
    leases.into_iter().filter(|lease| ids.contains(&lease.lease_id)).collect()
}

async fn wait(client: &mut Client, ids: &[LeaseId], timeout: Duration) -> Result<Vec<LeaseInfo>, CliError> {
    let until = Instant::now() + timeout;
    loop {
        let leases = of(list_all(client, false).await?, ids);
        let Some(waiting) = leases.iter().find(|lease| !lease.state.is_ended()) else { return Ok(leases) };
        if Instant::now() >= until {
            let why = format!("still {} ({})", waiting.state, waiting.state_reason);
            return Err(CliError::NotClosed(waiting.lease_id, why));
        }
        tokio::time::sleep(POLL).await;
    }
}

fn report(leases: &[LeaseInfo], out: &mut Output) -> Result<(), CliError> {
    if out.is_json() {
        let each = |l: &LeaseInfo| {
            serde_json::json!({
                "lease_id": l.lease_id.to_string(), "state": l.state.as_str(), "state_reason": l.state_reason,
            })
        };
        return Ok(out.data("closed", &leases.iter().map(each).collect::<Vec<_>>())?);
    }
    for lease in leases {
        let line = format!("{} {} ({})", lease.lease_id, lease.state, text::plain(&lease.state_reason));
        out.line(&line)?;
    }
    Ok(())
}
