//! Command `status`.

use super::table::{Cell, Tone, section};
use super::{CliError, Output, json, text};
use acp_shared::conn::Client;
use acp_shared::protocol::{Reply, Request, Status};

pub(super) async fn run(client: &mut Client, out: &mut Output) -> Result<(), CliError> {
    let status = ask(client).await?;
    if out.is_json() {
        return Ok(out.data("status", &json::status(&status))?);
    }
    let look = out.look();
    Ok(out.line(&section("Supervisor", &rows(&status, crate::context::wall_ms()), look))?)
}

/// Requests the state of the supervisor.
pub(super) async fn ask(client: &mut Client) -> Result<Status, CliError> {
    let Reply::Status(status) = client.call(Request::Status).await? else { return Err(CliError::OutOfTurn) };
    Ok(status)
}

fn rows(status: &Status, now_ms: u64) -> Vec<(&'static str, Cell)> {
    let or_none = |text: String| Cell::new(if text.is_empty() { "none".to_owned() } else { text });
    let leases = status.leases.iter().filter(|(_, count)| *count > 0);
    let leases: Vec<String> = leases.map(|(state, count)| format!("{count} {state}")).collect();
    let missing: Vec<&str> =
        status.abilities.iter().filter(|(_, has)| !has).map(|(name, _)| name.as_str()).collect();
    let uptime = text::duration(now_ms.saturating_sub(status.started_at_ms));
    let mut rows = vec![
        ("state", Cell::new(&status.state_dir)),
        ("process", Cell::new(format!("pid {}, version {}, up {uptime}", status.pid, status.version))),
        ("leases", or_none(leases.join(", "))),
        ("buffered", Cell::new(format!("{} of output", text::size(status.buffered_bytes)))),
        ("rung", Cell::new(format!("{} (`acp-supervisor doctor` explains it)", status.rung))),
        ("missing", or_none(missing.join(", "))),
    ];
    if status.gateways.is_empty() {
        rows.push(("gateways", Cell::new("none connected")));
    }
    for (id, leases) in &status.gateways {
        let count = text::count(usize::try_from(*leases).unwrap_or(usize::MAX), "lease");
        rows.push(("gateway", Cell::new(format!("{id} ({count})"))));
    }
    if let Some(why) = &status.read_only {
        rows.push(("read-only", Cell::new(why).tone(Tone::Bad)));
    }
    let upgraded = |last| ("upgrade", Cell::new(super::upgrade::text(last)));
    rows.extend(status.last_upgrade.as_ref().map(upgraded));
    rows.extend(status.warnings.iter().map(|warning| ("warning", Cell::new(warning).tone(Tone::Warn))));
    rows
}
