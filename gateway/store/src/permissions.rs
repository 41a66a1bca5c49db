//! `acp_permission`: permission requests of agents (H4).

use crate::Store;
use crate::codec::{Int, SqlEnum, all, first, id, int, int_opt, json, run, to_json, word, word_opt};
use crate::error::StoreError;
use acp_core::permission::parse_permission_id;
use acp_core::rows::{PermissionRow, ResolvedBy};
use acp_shared::ids::{LeaseId, SessionKey};
use rusqlite::{Connection, Row, params};

const COLUMNS: &str = "lease_id, session_key, ask_json, state, option_id, settled_by, settled_without, created_at, \
    deadline_at";

const PUT: &str = "INSERT INTO acp_permission (lease_id, stdout_offset, session_key, ask_json, state, option_id, \
    settled_by, settled_without, created_at, deadline_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) \
    ON CONFLICT (lease_id, stdout_offset) DO UPDATE SET state = excluded.state, option_id = excluded.option_id, \
    settled_by = excluded.settled_by, settled_without = excluded.settled_without, deadline_at = excluded.deadline_at \
    WHERE state = 'pending' OR (state = excluded.state AND option_id IS excluded.option_id)";

fn from_row(row: &Row<'_>) -> Result<PermissionRow, StoreError> {
    Ok(PermissionRow {
        lease_id: id(row, "lease_id")?,
        session_key: id(row, "session_key")?,
        request: json(row, "ask_json")?,
        state: word(row, "state")?,
        option_id: row.get("option_id")?,
        resolved_by: match word_opt(row, "settled_without")? {
            Some(without) => Some(ResolvedBy::Auto(without)),
            None => row.get::<_, Option<String>>("settled_by")?.map(ResolvedBy::Person),
        },
        created_at_ms: int(row, "created_at")?,
        deadline_at_ms: int_opt(row, "deadline_at")?,
    })
}

/// Inserts a permission request, or settles it.
///
/// # Errors
/// [`StoreError::Refused`] if it is settled with another result.
pub fn put(db: &Connection, row: &PermissionRow) -> Result<(), StoreError> {
    let (by, without) = match &row.resolved_by {
        Some(ResolvedBy::Person(name)) => (Some(name.as_str()), None),
        Some(ResolvedBy::Auto(without)) => (None, Some(without.word())),
        None => (None, None),
    };
    let changed = run(
        db,
        PUT,
        params![
            row.lease_id.to_string(),
            Int(row.request.at),
            row.session_key.as_str(),
            to_json(&row.request)?,
            row.state.word(),
            row.option_id,
            by,
            without,
            Int(row.created_at_ms),
            row.deadline_at_ms.map(Int)
        ],
    )?;
    if changed == 1 { Ok(()) } else { Err(StoreError::Refused("the permission request is already settled")) }
}

/// Pending permission requests of a lease's agent, in order.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn pending_of_lease(db: &Connection, lease_id: LeaseId) -> Result<Vec<PermissionRow>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM acp_permission WHERE lease_id = ?1 AND state = 'pending' ORDER BY stdout_offset"
    );
    all(db, &sql, [lease_id.to_string()], from_row)
}

/// Returns the permission request with this id (lease and offset), in any state.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn get(db: &Connection, permission_id: &str) -> Result<Option<PermissionRow>, StoreError> {
    let Some((lease_id, at)) = parse_permission_id(permission_id) else { return Ok(None) };
    let sql = format!("SELECT {COLUMNS} FROM acp_permission WHERE lease_id = ?1 AND stdout_offset = ?2");
    first(db, &sql, params![lease_id.to_string(), Int(at)], from_row)
}

impl Store {
    /// Pending permission requests of a session, oldest first.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn pending_permissions(&self, key: SessionKey) -> Result<Vec<PermissionRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM acp_permission WHERE session_key = ?1 AND state = 'pending' ORDER BY ord"
        );
        self.read("pending_permissions", move |db| all(db, &sql, [key.as_str()], from_row)).await
    }
}
