//! `acp_leases` and `acp_line_tail`: processes of sessions, and the committed offsets of their output.

use crate::Store;
use crate::codec::to_json;
use crate::db::{Db, Row, params};
use crate::error::StoreError;
use acp_core::bearer::TokenDigest;
use acp_core::rows::{LeaseRow, LeaseStatus};
use acp_shared::ids::{LeaseId, SessionKey};
use acp_shared::protocol::LeaseKind;

const COLUMNS: &str = "lease_id, session_key, spawn_json, usage, stdout_offset, next_stdin_seq, link_state, broken, agent_token";

const INSERT: &str = "INSERT INTO acp_leases (lease_id, session_key, kind, spawn_json, usage, stdout_offset, \
    next_stdin_seq, link_state, broken, agent_token) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";

const PROGRESS: &str = "UPDATE acp_leases SET stdout_offset = ?3, next_stdin_seq = ?4, \
    link_state = coalesce(?5, link_state) \
    WHERE lease_id = ?1 AND session_key = ?2 AND stdout_offset <= ?3 AND next_stdin_seq <= ?4";

fn from_row(row: &Row<'_>) -> Result<LeaseRow, StoreError> {
    Ok(LeaseRow {
        lease_id: row.get("lease_id")?,
        session_key: row.get("session_key")?,
        spawn: row.json("spawn_json")?,
        usage: row.get("usage")?,
        stdout_offset: row.get("stdout_offset")?,
        next_stdin_seq: row.get("next_stdin_seq")?,
        link_state: row.get("link_state")?,
        broken: row.get("broken")?,
        agent_token: row.get("agent_token")?,
    })
}

/// Inserts a lease.
///
/// # Errors
/// SQLite errors: a session cannot have two agent leases that have not ended (H5).
pub fn insert(db: &Db, row: &LeaseRow) -> Result<(), StoreError> {
    let kind = match row.spawn.kind {
        LeaseKind::Agent => "agent",
        LeaseKind::Terminal { .. } => "terminal",
    };
    db.run(
        INSERT,
        params![
            row.lease_id,
            row.session_key,
            kind,
            to_json(&row.spawn)?,
            row.usage,
            row.stdout_offset,
            row.next_stdin_seq,
            row.link_state,
            row.broken,
            row.agent_token
        ],
    )
    .map(drop)
}

/// Returns one lease of a session.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn get(db: &Db, lease_id: LeaseId, session: &SessionKey) -> Result<Option<LeaseRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM acp_leases WHERE lease_id = ?1 AND session_key = ?2");
    db.first(&sql, params![lease_id, session], from_row)
}

/// State of a lease; `None` if the session has no such lease.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn usage(db: &Db, lease_id: LeaseId, session: &SessionKey) -> Result<Option<LeaseStatus>, StoreError> {
    const SQL: &str = "SELECT usage FROM acp_leases WHERE lease_id = ?1 AND session_key = ?2";
    db.first(SQL, params![lease_id, session], |row| row.get("usage"))
}

/// Moves the offsets forward.
///
/// # Errors
/// [`StoreError::Refused`] if an offset would go back, or the lease belongs to another session.
pub fn progress(
    db: &Db,
    lease_id: LeaseId,
    session: &SessionKey,
    stdout_offset: u64,
    next_stdin_seq: u64,
    link_state: Option<&str>,
) -> Result<(), StoreError> {
    let changed = db.run(PROGRESS, params![lease_id, session, stdout_offset, next_stdin_seq, link_state])?;
    if changed == 1 {
        Ok(())
    } else {
        Err(StoreError::Refused("the lease is closed, or its offsets would decrease"))
    }
}

/// Sets the state of a lease.
///
/// # Errors
/// SQLite errors: an ended lease stays ended.
pub fn set_usage(db: &Db, lease_id: LeaseId, usage: LeaseStatus) -> Result<(), StoreError> {
    db.run("UPDATE acp_leases SET usage = ?2 WHERE lease_id = ?1", params![lease_id, usage]).map(drop)
}

/// Marks the lease's output as unusable, for later gateway processes too.
///
/// # Errors
/// SQLite errors.
pub fn set_broken(db: &Db, lease_id: LeaseId) -> Result<(), StoreError> {
    db.run("UPDATE acp_leases SET broken = 1 WHERE lease_id = ?1", params![lease_id]).map(drop)
}

/// Appends a piece of the unfinished output line.
///
/// # Errors
/// [`StoreError::Numbering`] if the piece does not start at the end of the last one.
pub fn add_tail(db: &Db, lease_id: LeaseId, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
    const END: &str = "SELECT \"offset\" + length(bytes) AS ends FROM acp_line_tail WHERE lease_id = ?1 \
                       ORDER BY \"offset\" DESC LIMIT 1";
    const ADD: &str = "INSERT INTO acp_line_tail (lease_id, \"offset\", bytes) VALUES (?1, ?2, ?3)";
    if let Some(want) = db.first(END, params![lease_id], |row| row.get("ends"))?
        && want != offset
    {
        return Err(StoreError::Numbering { what: "the offset of a piece of a line", want, got: offset });
    }
    db.run(ADD, params![lease_id, offset, bytes]).map(drop)
}

/// Deletes the pieces of the unfinished output line.
///
/// # Errors
/// SQLite errors.
pub fn clear_tail(db: &Db, lease_id: LeaseId) -> Result<(), StoreError> {
    db.run("DELETE FROM acp_line_tail WHERE lease_id = ?1", params![lease_id]).map(drop)
}

/// Pieces of the unfinished output line, as offset and bytes, in order.
///
/// # Errors
/// SQLite errors.
pub fn tail(db: &Db, lease_id: LeaseId) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
    const SQL: &str = "SELECT \"offset\", bytes FROM acp_line_tail WHERE lease_id = ?1 ORDER BY \"offset\"";
    db.all(SQL, params![lease_id], |row| Ok((row.get("offset")?, row.get("bytes")?)))
}

/// True if the lease exists and has not ended.
///
/// # Errors
/// SQLite errors.
pub fn is_used(db: &Db, lease_id: LeaseId) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM acp_leases WHERE lease_id = ?1 AND usage <> 'ended'";
    Ok(db.first(sql, params![lease_id], |_| Ok(()))?.is_some())
}

/// Number of ended agent leases in [`offsets`]. The supervisor may still know one as running if the gateway gave
/// it up.
const ENDED_MAX: usize = 1_000;

/// Offset of the first uncommitted output byte of each agent lease that has not ended, and of the newest ended
/// ones.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn offsets(db: &Db) -> Result<Vec<(LeaseId, u64)>, StoreError> {
    let sql = format!(
        "SELECT lease_id, stdout_offset FROM acp_leases WHERE usage <> 'ended' AND kind = 'agent' UNION ALL \
         SELECT * FROM (SELECT lease_id, stdout_offset FROM acp_leases WHERE usage = 'ended' AND kind = 'agent' \
         ORDER BY rowid DESC LIMIT {ENDED_MAX}) AS newest"
    );
    db.all(&sql, &[], |row| Ok((row.get("lease_id")?, row.get("stdout_offset")?)))
}

impl Store {
    /// Session and lease of the agent that has this token. `None` if there is none, or its lease is being closed.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn lease_of_token(
        &self,
        token: TokenDigest,
    ) -> Result<Option<(SessionKey, LeaseId)>, StoreError> {
        const SQL: &str = "SELECT session_key, lease_id FROM acp_leases \
            WHERE agent_token = ?1 AND usage IN ('intended','open','ready')";
        self.read("lease_of_token", move |db| {
            db.first(SQL, params![token], |row| Ok((row.get("session_key")?, row.get("lease_id")?)))
        })
        .await
    }

    /// Leases that have not ended, including terminals.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn leases_in_use(&self) -> Result<Vec<LeaseRow>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM acp_leases WHERE usage <> 'ended' ORDER BY ord");
        self.read("leases_in_use", move |db| db.all(&sql, &[], from_row)).await
    }
}
