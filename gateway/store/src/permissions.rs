//! `acp_permission`: permission requests of agents (H4).

use crate::Store;
use crate::codec::to_json;
use crate::db::{Db, Row, params};
use crate::error::StoreError;
use acp_core::permission::parse_permission_id;
use acp_core::rows::{PermissionRow, ResolvedBy};
use acp_shared::ids::{LeaseId, SessionKey};
use std::ops::ControlFlow;

const COLUMNS: &str = "lease_id, session_key, ask_json, state, option_id, settled_by, settled_without, created_at, \
    deadline_at";

const PUT: &str = "INSERT INTO acp_permission (lease_id, stdout_offset, session_key, ask_json, state, option_id, \
    settled_by, settled_without, created_at, deadline_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) \
    ON CONFLICT (lease_id, stdout_offset) DO UPDATE SET state = excluded.state, option_id = excluded.option_id, \
    settled_by = excluded.settled_by, settled_without = excluded.settled_without, deadline_at = excluded.deadline_at \
    WHERE acp_permission.state = 'pending' OR (acp_permission.state = excluded.state \
    AND acp_permission.option_id IS NOT DISTINCT FROM excluded.option_id)";

fn from_row(row: &Row<'_>) -> Result<PermissionRow, StoreError> {
    Ok(PermissionRow {
        lease_id: row.get("lease_id")?,
        session_key: row.get("session_key")?,
        request: row.json("ask_json")?,
        state: row.get("state")?,
        option_id: row.get("option_id")?,
        resolved_by: match row.get("settled_without")? {
            Some(without) => Some(ResolvedBy::Auto(without)),
            None => row.get::<Option<String>>("settled_by")?.map(ResolvedBy::Person),
        },
        created_at_ms: row.get("created_at")?,
        deadline_at_ms: row.get("deadline_at")?,
    })
}

/// Inserts a permission request, or settles it.
///
/// # Errors
/// [`StoreError::Refused`] if it is settled with another result.
pub fn put(db: &Db, row: &PermissionRow) -> Result<(), StoreError> {
    let (by, without) = match &row.resolved_by {
        Some(ResolvedBy::Person(name)) => (Some(name.as_str()), None),
        Some(ResolvedBy::Auto(without)) => (None, Some(*without)),
        None => (None, None),
    };
    let changed = db.run(
        PUT,
        params![
            row.lease_id,
            row.request.at,
            row.session_key,
            to_json(&row.request)?,
            row.state,
            row.option_id,
            by,
            without,
            row.created_at_ms,
            row.deadline_at_ms
        ],
    )?;
    if changed == 1 { Ok(()) } else { Err(StoreError::Refused("the permission request is already settled")) }
}

/// Pending permission requests of a lease's agent, in order.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn pending_of_lease(db: &Db, lease_id: LeaseId) -> Result<Vec<PermissionRow>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM acp_permission WHERE lease_id = ?1 AND state = 'pending' ORDER BY stdout_offset"
    );
    db.all(&sql, params![lease_id], from_row)
}

/// Returns the permission request with this id (lease and offset), in any state.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn get(db: &Db, permission_id: &str) -> Result<Option<PermissionRow>, StoreError> {
    let Some((lease_id, at)) = parse_permission_id(permission_id) else { return Ok(None) };
    let sql = format!("SELECT {COLUMNS} FROM acp_permission WHERE lease_id = ?1 AND stdout_offset = ?2");
    db.first(&sql, params![lease_id, at], from_row)
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
        self.read("pending_permissions", move |db| db.all(&sql, params![key], from_row)).await
    }

    /// Pending permission requests of all sessions, oldest first, at most `rows_max`.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn all_pending_permissions(&self, rows_max: u64) -> Result<Vec<PermissionRow>, StoreError> {
        let sql =
            format!("SELECT {COLUMNS} FROM acp_permission WHERE state = 'pending' ORDER BY ord LIMIT ?1");
        self.read("all_pending_permissions", move |db| db.all(&sql, params![rows_max], from_row)).await
    }

    /// Settled permission requests of all sessions, the newest first: at most `rows_max`, and about `bytes_max` bytes of
    /// requests, but at least one.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn settled_permissions(
        &self,
        rows_max: u64,
        bytes_max: usize,
    ) -> Result<Vec<PermissionRow>, StoreError> {
        // In the order of the rows themselves, which is that of `ord`: nothing is sorted, and nothing older is read.
        let sql = format!(
            "SELECT {COLUMNS} FROM acp_permission WHERE state <> 'pending' ORDER BY rowid DESC LIMIT ?1"
        );
        self.read("settled_permissions", move |db| {
            let (mut found, mut bytes) = (Vec::new(), 0);
            db.visit(&sql, params![rows_max], |row| {
                let row = from_row(row)?;
                bytes += row.request.params.len();
                if bytes > bytes_max && !found.is_empty() {
                    return Ok(ControlFlow::Break(()));
                }
                found.push(row);
                Ok(ControlFlow::Continue(()))
            })?;
            Ok(found)
        })
        .await
    }
}
