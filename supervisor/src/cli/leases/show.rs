//! `leases show`: all details of one lease.

use super::{list_all, resolve, rows};
use crate::cli::table::{Cell, TableFormat, Tone, section};
use crate::cli::text::{self, or_dash};
use crate::cli::{CliError, Output, json};
use acp_shared::conn::Client;
use acp_shared::protocol::{LeaseInfo, LeaseKind};

pub(super) async fn run(client: &mut Client, id: &str, out: &mut Output) -> Result<(), CliError> {
    let leases = list_all(client, true).await?;
    let id = resolve(&leases, id)?;
    let Some(lease) = leases.iter().find(|l| l.lease_id == id) else {
        return Err(CliError::NoLease(id.to_string()));
    };
    if out.is_json() {
        return Ok(out.data("lease", &json::lease(lease))?);
    }
    let look = out.look();
    Ok(out.line(&text(lease, crate::context::wall_ms(), look))?)
}

/// Pairs of name and value.
type Rows = Vec<(&'static str, Cell)>;

/// Formats a process, group or session id. After the lease has ended, the number may be reused by another
/// process.
fn number(lease: &LeaseInfo, pid: Option<i32>) -> Cell {
    match pid {
        Some(pid) if lease.state.is_ended() => Cell::new(format!("was {pid}")),
        pid => Cell::new(or_dash(pid)),
    }
}

/// Returns the details of a lease, in sections. Empty values are left out.
pub(in crate::cli) fn sections(lease: &LeaseInfo, now_ms: u64) -> Vec<(&'static str, Rows)> {
    let mut head = vec![
        ("lease", Cell::new(lease.lease_id.to_string())),
        ("state", Cell::new(lease.state.as_str()).tone(rows::tone(lease.state))),
        ("reason", Cell::new(&lease.state_reason)),
        ("session", lease.session_key.as_str().into()),
        ("gateway", Cell::new(format!("{} (uid {})", lease.gateway_instance_id, lease.owner_uid))),
        ("kind", rows::kind(lease).into()),
    ];
    if let LeaseKind::Terminal { parent_lease_id, output_bytes_max } = &lease.kind {
        head.push(("of agent", parent_lease_id.to_string().into()));
        head.push(("keeps", format!("{} of output", text::size(*output_bytes_max)).into()));
    }
    let started = text::time(lease.started_at_ms);
    head.push((
        "started",
        match rows::uptime(lease, now_ms) {
            Some(uptime) => Cell::new(format!("{started} ({uptime} ago)")),
            None => Cell::new(started),
        },
    ));
    if lease.exit.is_some() {
        head.push(("ended with", text::exit(lease.exit).into()));
    }
    let processes = vec![
        ("wrapper", number(lease, lease.wrapper_pid)),
        ("adapter", number(lease, lease.adapter_pid)),
        ("group", number(lease, lease.pgid)),
        ("session id", number(lease, lease.sid)),
        (
            "tree",
            Cell::new(lease.tree_size.map_or("-".into(), |n| {
                if n == 1 { "1 process".to_owned() } else { format!("{n} processes") }
            })),
        ),
        ("memory", Cell::new(or_dash(lease.memory_bytes.map(text::size)))),
        ("started from", Cell::new(&lease.wrapper_path)),
        ("command", Cell::new(format!("sha256 {}", lease.command_hash))),
    ];
    let care =
        vec![("rung", Cell::new(&lease.rung)), ("cgroup", Cell::new(or_dash(lease.cgroup_path.as_ref())))];
    let output = format!("{} bytes received, {} acknowledged", lease.stdout_end, lease.stdout_acked);
    let input = text::count(usize::try_from(lease.stdin_written).unwrap_or(usize::MAX), "message");
    let streams = vec![
        ("output", Cell::new(output)),
        ("buffered", Cell::new(format!("{} bytes", lease.buffered_bytes))),
        ("input", Cell::new(input + " written")),
    ];
    let said = |rows: Rows| rows.into_iter().filter(|(_, value)| !value.text().is_empty()).collect();
    vec![
        ("Lease", said(head)),
        ("Processes", said(processes)),
        ("Supervision", said(care)),
        ("Streams", said(streams)),
    ]
}

fn text(lease: &LeaseInfo, now_ms: u64, look: TableFormat) -> String {
    let sections = sections(lease, now_ms);
    let next = match lease.state {
        acp_shared::protocol::LeaseState::Lost => "its process tree is gone, or could not be identified",
        _ => "",
    };
    let mut text: Vec<String> = sections.iter().map(|(title, rows)| section(title, rows, look)).collect();
    if !next.is_empty() {
        let hint = format!("{next}: `acp-supervisor leases verify {}` shows why", lease.lease_id);
        text.push(Tone::Dim.paint(&hint, look.colour));
    }
    text.join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{NOW_MS, three};
    use super::*;

    #[test]
    fn lease_is_shown_in_sections() {
        let format = TableFormat { width: Some(100), headers: true, colour: false };
        let leases = three();
        assert_eq!(
            text(&leases[1], NOW_MS, format).lines().collect::<Vec<_>>(),
            [
                "Lease",
                "  lease     0190b5f0-1000-7000-8000-000000000002",
                "  state     closing",
                "  reason    its agent is \\u{1b}[2Jending",
                "  session   agent:claude:acp:0190b5f000007000",
                "  gateway   01000000-0000-7000-8000-000000000000 (uid 1000)",
                "  kind      term",
                "  of agent  0190b5f0-0000-7000-8000-000000000001",
                "  keeps     4.0K of output",
                "  started   2027-01-15T07:58:59Z (1m01s ago)",
                "Processes",
                "  wrapper       812",
                "  adapter       815",
                "  group         815",
                "  session id    812",
                "  tree          1 process",
                "  memory        2.0M",
                "  started from  /w/acp-wrapper",
                "  command       sha256 aa",
                "Supervision",
                "  rung    R2",
                "  cgroup  -",
                "Streams",
                "  output    2000 bytes received, 500 acknowledged",
                "  buffered  0 bytes",
                "  input     3 messages written"
            ]
        );
        let lost = text(&leases[2], NOW_MS, format);
        assert!(
            lost.contains("  wrapper       was 812\n") && lost.contains("  session id    was 812\n"),
            "{lost}"
        );
        assert!(
            lost.ends_with(
                "or could not be identified: `acp-supervisor leases verify \
                 0190b5f0-2000-7000-8000-000000000003` shows why"
            ),
            "{lost}"
        );
    }
}
