//! Leases of OpenClaw's acpx plugin. They are listed and never adopted: their pipes belong to OpenClaw.

use super::fields::{Fields, records};
use super::{MigrationAction, MigrationLine, RecordKind};
use serde_json::Value;

/// Reads a file `process-leases.json`.
pub fn lease_file(file: &Value, source: &str) -> Vec<MigrationLine> {
    let refused = |why: String| vec![MigrationLine::refuse(RecordKind::File, source, source, why)];
    let list = match records(file, "leases") {
        Ok(Value::Array(list)) => list,
        Ok(_) => return refused("`leases` is not an array".to_owned()),
        Err(why) => return refused(why),
    };
    list.iter().map(|lease| lease_line(lease, source)).collect()
}

/// Describes one lease.
pub fn lease_line(lease: &Value, source: &str) -> MigrationLine {
    let parsed = Fields::of(lease).and_then(|fields| {
        let state = fields.text("state")?.unwrap_or("of unknown state").to_owned();
        let pid = fields.number("rootPid")?.unwrap_or(0);
        Ok((fields.required("leaseId")?.to_owned(), state, pid))
    });
    match parsed {
        Ok((id, state, pid)) => {
            let why = match (state.as_str(), pid) {
                ("closed", _) => "it is closed".to_owned(),
                (_, 0) => format!("it is {state} and names no process"),
                (_, pid) => format!(
                    "not adopted; it is {state} with process {pid}: `acp-supervisor legacy check` tells if that is \
                     still the recorded process"
                ),
            };
            MigrationLine::new(RecordKind::Lease, &id, source, MigrationAction::Skip, why)
        }
        Err(why) => MigrationLine::refuse(RecordKind::Lease, "?", source, why),
    }
}
