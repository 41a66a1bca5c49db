//! `acp_agent_request`: requests of agents to their client other than permissions (H3).

use crate::codec::to_json;
use crate::db::{Db, Row, params};
use crate::error::StoreError;
use acp_core::rows::AgentRequestRow;
use acp_shared::ids::LeaseId;

const PUT: &str = "INSERT INTO acp_agent_request (lease_id, stdout_offset, session_key, ask_json, state, intent, \
    created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (lease_id, stdout_offset) \
    DO UPDATE SET ask_json = excluded.ask_json, state = excluded.state, intent = excluded.intent \
    WHERE acp_agent_request.state <> 'answered' OR excluded.state = 'answered'";

fn from_row(row: &Row<'_>) -> Result<AgentRequestRow, StoreError> {
    Ok(AgentRequestRow {
        lease_id: row.get("lease_id")?,
        session_key: row.get("session_key")?,
        request: row.json("ask_json")?,
        state: row.get("state")?,
        intent: row.get("intent")?,
    })
}

/// Inserts a request, or updates its state.
///
/// # Errors
/// [`StoreError::Refused`] if an answered request would become unanswered.
pub fn put(db: &Db, row: &AgentRequestRow, now_ms: u64) -> Result<(), StoreError> {
    let changed = db.run(
        PUT,
        params![
            row.lease_id,
            row.request.at,
            row.session_key,
            to_json(&row.request)?,
            row.state,
            row.intent,
            now_ms
        ],
    )?;
    if changed == 1 { Ok(()) } else { Err(StoreError::Refused("the request is already answered")) }
}

/// Unanswered requests of a lease's agent, in order.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn unanswered(db: &Db, lease_id: LeaseId) -> Result<Vec<AgentRequestRow>, StoreError> {
    const SQL: &str = "SELECT lease_id, session_key, ask_json, state, intent FROM acp_agent_request \
                       WHERE lease_id = ?1 AND state <> 'answered' ORDER BY stdout_offset";
    db.all(SQL, params![lease_id], from_row)
}
