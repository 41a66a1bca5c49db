//! `leases list | show | verify | reap`.

use super::{CliError, LeasesVerb, Output};
use acp_shared::conn::Client;
use acp_shared::ids::LeaseId;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{EvidenceReport, LeaseInfo, LeaseKind, ReapLine, Reply, Request};
use comfy_table::{Table, presets};
use serde_json::{Value, json};

pub(super) async fn run(client: &mut Client, verb: LeasesVerb, out: &mut Output) -> Result<(), CliError> {
    match verb {
        LeasesVerb::List => {
            let leases = list(client).await?;
            if out.is_json() {
                return Ok(out.value(&leases.iter().map(lease_json).collect::<Vec<_>>())?);
            }
            Ok(out.line(&list_table(&leases))?)
        }
        LeasesVerb::Show { id } => {
            let id = LeaseId::parse(&id)?;
            let lease =
                list(client).await?.into_iter().find(|l| l.lease_id == id).ok_or(CliError::NoLease(id))?;
            let value = lease_json(&lease);
            if out.is_json() { Ok(out.value(&value)?) } else { Ok(out.line(&show_table(&value))?) }
        }
        LeasesVerb::Verify { id } => {
            let lease_id = LeaseId::parse(&id)?;
            let Reply::Evidence(report) = client.call(Request::Verify { lease_id }).await? else {
                return Err(CliError::OutOfTurn);
            };
            if out.is_json() {
                Ok(out.value(&report_json(&report))?)
            } else {
                Ok(out.line(&report_table(&report))?)
            }
        }
        LeasesVerb::Reap { dry_run, yes: _ } => {
            let Reply::Reaped(lines) = client.call(Request::Reap { dry_run }).await? else {
                return Err(CliError::OutOfTurn);
            };
            if out.is_json() {
                return Ok(out.value(&lines.iter().map(reap_json).collect::<Vec<_>>())?);
            }
            Ok(out.line(&reap_table(&lines))?)
        }
    }
}

async fn list(client: &mut Client) -> Result<Vec<LeaseInfo>, CliError> {
    match client.call(Request::ListLeases { detail: false }).await? {
        Reply::Leases(leases) => Ok(leases),
        Reply::Spawned(_)
        | Reply::Attached(_)
        | Reply::Written { .. }
        | Reply::Done
        | Reply::Tail(_)
        | Reply::Closing { .. }
        | Reply::Evidence(_)
        | Reply::Reaped(_)
        | Reply::Status(_) => Err(CliError::OutOfTurn),
    }
}

fn exit_json(exit: ExitStatus) -> Value {
    match exit {
        ExitStatus::Exited(code) => json!({ "code": code }),
        ExitStatus::Signaled(signal) => json!({ "signal": signal }),
        ExitStatus::Unknown => json!({}),
    }
}

fn lease_json(lease: &LeaseInfo) -> Value {
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
        "rung": lease.rung,
        "started_at_ms": lease.started_at_ms,
        "exit": lease.exit.map(exit_json),
        "stdout_end": lease.stdout_end,
        "stdout_acked": lease.stdout_acked,
        "stdin_written": lease.stdin_written,
        "memory_bytes": lease.memory_bytes,
    })
}

fn report_json(report: &EvidenceReport) -> Value {
    let fact = |f: &acp_shared::protocol::EvidenceFact| {
        json!({
            "subject": f.subject, "name": f.name, "recorded": f.recorded, "live": f.live, "agrees": f.agrees,
        })
    };
    json!({
        "lease": lease_json(&report.lease),
        "facts": report.facts.iter().map(fact).collect::<Vec<_>>(),
        "verdict": report.verdict,
        "why": report.why,
        "tree": report.tree.iter().map(|(pid, name)| json!({ "pid": pid, "name": name })).collect::<Vec<_>>(),
    })
}

fn reap_json(line: &ReapLine) -> Value {
    json!({
        "lease_id": line.lease_id.to_string(),
        "state": line.state.as_str(),
        "action": line.action,
        "pids": line.pids,
        "why": line.why,
    })
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    table
}

fn time(ms: u64) -> String {
    let ms = i64::try_from(ms).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |t| format!("{t:.0}"))
}

fn pid(pid: Option<i32>) -> String {
    pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string())
}

fn list_table(leases: &[LeaseInfo]) -> String {
    if leases.is_empty() {
        return "no leases".to_owned();
    }
    let mut table =
        table(&["LEASE", "STATE", "KIND", "SESSION", "WRAPPER", "ADAPTER", "BUFFERED", "STARTED"]);
    for lease in leases {
        let kind = match lease.kind {
            LeaseKind::Agent => "agent",
            LeaseKind::Terminal { .. } => "terminal",
        };
        table.add_row(vec![
            lease.lease_id.to_string(),
            lease.state.to_string(),
            kind.to_owned(),
            lease.session_key.to_string(),
            pid(lease.wrapper_pid),
            pid(lease.adapter_pid),
            lease.stdout_end.saturating_sub(lease.stdout_acked).to_string(),
            time(lease.started_at_ms),
        ]);
    }
    table.trim_fmt()
}

fn show_table(lease: &Value) -> String {
    let mut table = table(&["FIELD", "VALUE"]);
    for (name, value) in lease.as_object().into_iter().flatten() {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        table.add_row(vec![name.clone(), text]);
    }
    table.trim_fmt()
}

fn report_table(report: &EvidenceReport) -> String {
    let mut table = table(&["OF", "FACT", "RECORDED", "NOW", ""]);
    for fact in &report.facts {
        let mark = match fact.agrees {
            Some(true) => "agrees",
            Some(false) => "DIFFERS",
            None => "-",
        };
        table.add_row([&fact.subject, &fact.name, &fact.recorded, &fact.live, &mark.to_owned()]);
    }
    let tree: Vec<String> = report.tree.iter().map(|(pid, name)| format!("{pid} ({name})")).collect();
    let tree = if tree.is_empty() { "no process of it runs".to_owned() } else { tree.join(", ") };
    format!("{}\n\nverdict: {} ({})\ntree:    {tree}", table.trim_fmt(), report.verdict, report.why)
}

fn reap_table(lines: &[ReapLine]) -> String {
    if lines.is_empty() {
        return "no lease is open".to_owned();
    }
    let mut table = table(&["LEASE", "STATE", "ACTION", "PIDS", "WHY"]);
    for line in lines {
        let pids: Vec<String> = line.pids.iter().map(i32::to_string).collect();
        table.add_row([
            &line.lease_id.to_string(),
            line.state.as_str(),
            &line.action,
            &pids.join(" "),
            &line.why,
        ]);
    }
    table.trim_fmt()
}
