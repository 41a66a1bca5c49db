//! JSON output for programs. The schema is in `docs/manual/acp-supervisor.schema.json`; a test validates
//! the real output against it.

use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{EvidenceReport, LastUpgrade, LeaseInfo, LeaseKind, ReapLine, Status};
use serde_json::{Map, Value, json};

fn exit(exit: ExitStatus) -> Value {
    match exit {
        ExitStatus::Exited(code) => json!({ "code": code }),
        ExitStatus::Signaled(signal) => json!({ "signal": signal }),
        ExitStatus::Unknown => json!({}),
    }
}

/// Converts a lease, with all fields.
pub(super) fn lease(lease: &LeaseInfo) -> Value {
    let (kind, parent, output_bytes_max) = match &lease.kind {
        LeaseKind::Agent => ("agent", None, None),
        LeaseKind::Terminal { parent_lease_id, output_bytes_max } => {
            ("terminal", Some(parent_lease_id.to_string()), Some(*output_bytes_max))
        }
    };
    json!({
        "lease_id": lease.lease_id.to_string(),
        "gateway_instance_id": lease.gateway_instance_id.to_string(),
        "owner_uid": lease.owner_uid,
        "session_key": lease.session_key.as_str(),
        "kind": kind,
        "parent_lease_id": parent,
        "output_bytes_max": output_bytes_max,
        "state": lease.state.as_str(),
        "state_reason": lease.state_reason,
        "wrapper_pid": lease.wrapper_pid,
        "adapter_pid": lease.adapter_pid,
        "pgid": lease.pgid,
        "sid": lease.sid,
        "wrapper_path": lease.wrapper_path,
        "command_hash": lease.command_hash,
        "cgroup_path": lease.cgroup_path,
        "rung": lease.rung,
        "started_at_ms": lease.started_at_ms,
        "exit": lease.exit.map(exit),
        "stdout_end": lease.stdout_end,
        "stdout_acked": lease.stdout_acked,
        "stdin_written": lease.stdin_written,
        "buffered_bytes": lease.buffered_bytes,
        "tree_size": lease.tree_size,
        "memory_bytes": lease.memory_bytes,
    })
}

/// Converts an evidence report.
pub(super) fn evidence(report: &EvidenceReport) -> Value {
    let fact = |f: &acp_shared::protocol::EvidenceFact| {
        json!({
            "subject": f.subject, "name": f.name, "recorded": f.recorded, "live": f.live, "agrees": f.agrees,
        })
    };
    json!({
        "lease": lease(&report.lease),
        "facts": report.facts.iter().map(fact).collect::<Vec<_>>(),
        "verdict": report.verdict,
        "why": report.why,
        "tree": report.tree.iter().map(|(pid, name)| json!({ "pid": pid, "name": name })).collect::<Vec<_>>(),
    })
}

/// Converts the action of a reap for one lease.
pub(super) fn reap(line: &ReapLine) -> Value {
    json!({
        "lease_id": line.lease_id.to_string(),
        "state": line.state.as_str(),
        "action": line.action,
        "pids": line.pids,
        "why": line.why,
    })
}

/// Converts the state of the supervisor.
pub(super) fn status(status: &Status) -> Value {
    let leases: Map<_, _> =
        status.leases.iter().map(|(state, count)| (state.to_string(), (*count).into())).collect();
    let abilities: Map<_, _> =
        status.abilities.iter().map(|(name, has)| (name.clone(), (*has).into())).collect();
    let gateways: Vec<_> = status
        .gateways
        .iter()
        .map(|(id, leases)| json!({ "gateway_instance_id": id.to_string(), "leases": leases }))
        .collect();
    json!({
        "pid": status.pid,
        "version": status.version,
        "supervisor_id": status.supervisor_id,
        "state_dir": status.state_dir,
        "started_at_ms": status.started_at_ms,
        "rung": status.rung,
        "rungs_missing": status.rungs_missing.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        "abilities": abilities,
        "leases": leases,
        "gateways": gateways,
        "buffered_bytes": status.buffered_bytes,
        "read_only": status.read_only,
        "swept_at_ms": status.swept_at_ms,
        "last_upgrade": status.last_upgrade.as_ref().map(upgrade),
        "warnings": status.warnings,
    })
}

/// Converts the outcome of an upgrade.
pub(super) fn upgrade(last: &LastUpgrade) -> Value {
    json!({
        "at_ms": last.at_ms,
        "from_version": last.from_version,
        "to_version": last.to_version,
        "leases": last.leases,
        "pause_ms": last.pause_ms,
        "error": last.error,
    })
}
