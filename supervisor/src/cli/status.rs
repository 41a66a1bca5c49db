//! `status`.

use super::{CliError, Output};
use acp_shared::conn::Client;
use acp_shared::protocol::{Reply, Request, Status};

pub(super) async fn run(client: &mut Client, out: &mut Output) -> Result<(), CliError> {
    let Reply::Status(status) = client.call(Request::Status).await? else { return Err(CliError::OutOfTurn) };
    if out.is_json() { Ok(out.value(&json(&status))?) } else { Ok(out.line(&text(&status))?) }
}

fn json(status: &Status) -> serde_json::Value {
    let leases: serde_json::Map<_, _> =
        status.leases.iter().map(|(state, count)| (state.to_string(), (*count).into())).collect();
    let abilities: serde_json::Map<_, _> =
        status.abilities.iter().map(|(name, has)| (name.clone(), (*has).into())).collect();
    let gateways: Vec<_> = status
        .gateways
        .iter()
        .map(|(id, leases)| serde_json::json!({ "gateway_instance_id": id.to_string(), "leases": leases }))
        .collect();
    serde_json::json!({
        "pid": status.pid,
        "version": status.version,
        "supervisor_id": status.supervisor_id,
        "state_dir": status.state_dir,
        "started_at_ms": status.started_at_ms,
        "rung": status.rung,
        "abilities": abilities,
        "leases": leases,
        "gateways": gateways,
        "buffered_bytes": status.buffered_bytes,
        "warnings": status.warnings,
        "read_only": status.read_only,
        "last_upgrade": status.last_upgrade.as_ref().map(super::upgrade::json),
    })
}

fn text(status: &Status) -> String {
    let leases: Vec<String> = status
        .leases
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    let missing: Vec<&str> =
        status.abilities.iter().filter(|(_, has)| !has).map(|(name, _)| name.as_str()).collect();
    let or_none = |text: String| if text.is_empty() { "none".to_owned() } else { text };
    let mut lines = vec![
        format!("supervisor   {} (pid {}, version {})", status.state_dir, status.pid, status.version),
        format!("leases       {}", or_none(leases.join(", "))),
        format!("buffered     {} bytes of output", status.buffered_bytes),
        format!("rung         {}, missing abilities: {}", status.rung, or_none(missing.join(", "))),
        format!("gateways     {}", or_none(format_gateways(status))),
    ];
    lines.extend(status.read_only.iter().map(|why| format!("read only    {why}")));
    lines.extend(
        status.last_upgrade.as_ref().map(|last| format!("upgrade      {}", super::upgrade::text(last))),
    );
    lines.extend(status.warnings.iter().map(|warning| format!("warning      {warning}")));
    lines.join("\n")
}

fn format_gateways(status: &Status) -> String {
    let each: Vec<String> =
        status.gateways.iter().map(|(id, leases)| format!("{id} ({leases} leases)")).collect();
    each.join(", ")
}
