//! `acp_agent_request`: requests of agents to their client other than permissions (H3).

use crate::codec::{Int, SqlEnum, all, id, json, run, to_json, word};
use crate::error::StoreError;
use acp_core::rows::AgentRequestRow;
use acp_shared::ids::LeaseId;
use rusqlite::{Connection, Row, params};

const PUT: &str = "INSERT INTO acp_agent_request (lease_id, stdout_offset, session_key, ask_json, state, intent, \
    created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (lease_id, stdout_offset) \
    DO UPDATE SET ask_json = excluded.ask_json, state = excluded.state, intent = excluded.intent \
    WHERE state <> 'answered' OR excluded.state = 'answered'";

fn from_row(row: &Row<'_>) -> Result<AgentRequestRow, StoreError> {
    Ok(AgentRequestRow {
        lease_id: id(row, "lease_id")?,
        session_key: id(row, "session_key")?,
        request: json(row, "ask_json")?,
        state: word(row, "state")?,
        intent: row.get("intent")?,
    })
}

/// Inserts a request, or updates its state.
///
/// # Errors
/// [`StoreError::Refused`] if an answered request would become unanswered.
pub fn put(db: &Connection, row: &AgentRequestRow, now_ms: u64) -> Result<(), StoreError> {
    let changed = run(
        db,
        PUT,
        params![
            row.lease_id.to_string(),
            Int(row.request.at),
            row.session_key.as_str(),
            to_json(&row.request)?,
            row.state.word(),
            row.intent,
            Int(now_ms)
        ],
    )?;
    if changed == 1 { Ok(()) } else { Err(StoreError::Refused("the request is already answered")) }
}

/// Unanswered requests of a lease's agent, in order.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn unanswered(db: &Connection, lease_id: LeaseId) -> Result<Vec<AgentRequestRow>, StoreError> {
    const SQL: &str = "SELECT lease_id, session_key, ask_json, state, intent FROM acp_agent_request \
                       WHERE lease_id = ?1 AND state <> 'answered' ORDER BY stdout_offset";
    all(db, SQL, [lease_id.to_string()], from_row)
}
