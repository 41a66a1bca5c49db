//! `acp_sessions`.

use crate::core::rows::SessionRow;
use crate::store::Store;
use crate::store::codec::{
    Int, Word, all, first, id, id_opt, int, json, json_opt, run, to_json, to_json_opt, word,
};
use crate::store::error::StoreError;
use acp_shared::ids::{AgentName, SessionKey};
use rusqlite::{Connection, Row, named_params, params};

const COLUMNS: &str = "session_key, backend, agent, mode, cwd, label, state, last_error, owner_session_key, \
    spawned_by, parent_session_key, gateway_instance_id, agent_session_id, resumable, agent_info_json, lease_id, \
    options_json, last_session_seq, created_at, updated_at, last_activity_at";

const INSERT: &str = "INSERT INTO acp_sessions (session_key, backend, agent, mode, cwd, label, state, last_error, \
    owner_session_key, spawned_by, parent_session_key, gateway_instance_id, agent_session_id, resumable, \
    agent_info_json, lease_id, options_json, last_session_seq, created_at, updated_at, last_activity_at) \
    VALUES (:session_key, :backend, :agent, :mode, :cwd, :label, :state, :last_error, :owner_session_key, \
    :spawned_by, :parent_session_key, :gateway_instance_id, :agent_session_id, :resumable, :agent_info_json, \
    :lease_id, :options_json, 0, :created_at, :updated_at, :last_activity_at)";

const UPDATE: &str = "UPDATE acp_sessions SET backend = :backend, agent = :agent, mode = :mode, cwd = :cwd, \
    label = :label, state = :state, last_error = :last_error, agent_session_id = :agent_session_id, \
    resumable = :resumable, agent_info_json = :agent_info_json, lease_id = :lease_id, \
    options_json = :options_json, updated_at = :updated_at, last_activity_at = :last_activity_at \
    WHERE session_key = :session_key";

/// Which sessions a list holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SessionFilter {
    /// Only of this agent.
    pub(crate) agent: Option<AgentName>,
    /// Closed ones too.
    pub(crate) closed_too: bool,
    /// Only those that this one spawned.
    pub(crate) spawned_by: Option<SessionKey>,
    /// The most rows.
    pub(crate) rows_max: u64,
}

fn from_row(row: &Row<'_>) -> Result<SessionRow, StoreError> {
    Ok(SessionRow {
        session_key: id(row, "session_key")?,
        backend: row.get("backend")?,
        agent: id(row, "agent")?,
        mode: word(row, "mode")?,
        cwd: row.get("cwd")?,
        label: row.get("label")?,
        state: word(row, "state")?,
        last_error: json_opt(row, "last_error")?,
        owner_session_key: id(row, "owner_session_key")?,
        spawned_by: id_opt(row, "spawned_by")?,
        parent_session_key: id_opt(row, "parent_session_key")?,
        gateway_instance_id: id(row, "gateway_instance_id")?,
        agent_session_id: row.get("agent_session_id")?,
        resumable: row.get("resumable")?,
        agent_info: row.get("agent_info_json")?,
        lease_id: id_opt(row, "lease_id")?,
        options: json(row, "options_json")?,
        last_session_seq: int(row, "last_session_seq")?,
        created_at_ms: int(row, "created_at")?,
        updated_at_ms: int(row, "updated_at")?,
        last_activity_at_ms: int(row, "last_activity_at")?,
    })
}

/// Inserts a session; its journal is empty.
///
/// # Errors
/// What SQLite says.
pub(crate) fn insert(db: &Connection, row: &SessionRow) -> Result<(), StoreError> {
    let lease_id = row.lease_id.map(|id| id.to_string());
    run(
        db,
        INSERT,
        named_params! {
            ":session_key": row.session_key.as_str(),
            ":backend": row.backend,
            ":agent": row.agent.as_str(),
            ":mode": row.mode.word(),
            ":cwd": row.cwd,
            ":label": row.label,
            ":state": row.state.word(),
            ":last_error": to_json_opt(row.last_error.as_ref())?,
            ":owner_session_key": row.owner_session_key.as_str(),
            ":spawned_by": row.spawned_by.as_ref().map(SessionKey::as_str),
            ":parent_session_key": row.parent_session_key.as_ref().map(SessionKey::as_str),
            ":gateway_instance_id": row.gateway_instance_id.to_string(),
            ":agent_session_id": row.agent_session_id,
            ":resumable": row.resumable,
            ":agent_info_json": row.agent_info,
            ":lease_id": lease_id,
            ":options_json": to_json(&row.options)?,
            ":created_at": Int(row.created_at_ms),
            ":updated_at": Int(row.updated_at_ms),
            ":last_activity_at": Int(row.last_activity_at_ms),
        },
    )?;
    Ok(())
}

/// Updates a session, except for who owns it and for the number of its last event, which counts by itself.
///
/// # Errors
/// [`StoreError::NoSession`]; what SQLite says.
pub(crate) fn update(db: &Connection, row: &SessionRow) -> Result<(), StoreError> {
    let changed = run(
        db,
        UPDATE,
        named_params! {
            ":session_key": row.session_key.as_str(),
            ":backend": row.backend,
            ":agent": row.agent.as_str(),
            ":mode": row.mode.word(),
            ":cwd": row.cwd,
            ":label": row.label,
            ":state": row.state.word(),
            ":last_error": to_json_opt(row.last_error.as_ref())?,
            ":agent_session_id": row.agent_session_id,
            ":resumable": row.resumable,
            ":agent_info_json": row.agent_info,
            ":lease_id": row.lease_id.map(|id| id.to_string()),
            ":options_json": to_json(&row.options)?,
            ":updated_at": Int(row.updated_at_ms),
            ":last_activity_at": Int(row.last_activity_at_ms),
        },
    )?;
    if changed == 1 { Ok(()) } else { Err(StoreError::NoSession { session_key: row.session_key.clone() }) }
}

/// What a transaction of an actor starts from: the newest epoch and the number of the last event.
///
/// # Errors
/// [`StoreError::NoSession`].
pub(crate) fn marks(db: &Connection, key: &SessionKey) -> Result<(u64, u64), StoreError> {
    const SQL: &str = "SELECT epoch, last_session_seq FROM acp_sessions WHERE session_key = ?1";
    first(db, SQL, [key.as_str()], |row| Ok((int(row, "epoch")?, int(row, "last_session_seq")?)))?
        .ok_or_else(|| StoreError::NoSession { session_key: key.clone() })
}

/// Sets the number of the last event.
///
/// # Errors
/// What SQLite says.
pub(crate) fn set_last_seq(db: &Connection, key: &SessionKey, last: u64) -> Result<(), StoreError> {
    const SQL: &str = "UPDATE acp_sessions SET last_session_seq = ?2 WHERE session_key = ?1";
    run(db, SQL, params![key.as_str(), Int(last)])?;
    Ok(())
}

/// Begins a new epoch, in which no earlier actor can write, and returns it.
///
/// # Errors
/// [`StoreError::NoSession`].
pub(crate) fn next_epoch(db: &Connection, key: &SessionKey) -> Result<u64, StoreError> {
    const SQL: &str = "UPDATE acp_sessions SET epoch = epoch + 1 WHERE session_key = ?1 RETURNING epoch";
    first(db, SQL, [key.as_str()], |row| int(row, "epoch"))?
        .ok_or_else(|| StoreError::NoSession { session_key: key.clone() })
}

/// What counts as an open session `s`: not a closed one, and none in error whose processes are all gone.
const OPEN: &str = "s.state <> 'closed' AND (s.state <> 'error' OR EXISTS (SELECT 1 FROM acp_leases AS l \
    WHERE l.session_key = s.session_key AND l.usage <> 'ended'))";

/// How many sessions are open.
///
/// # Errors
/// What SQLite says.
pub(crate) fn count_open(db: &Connection) -> Result<u64, StoreError> {
    let sql = format!("SELECT count(*) AS open FROM acp_sessions AS s WHERE {OPEN}");
    Ok(first(db, &sql, [], |row| int(row, "open"))?.unwrap_or(0))
}

/// How many sessions are open that were first bound in an account.
///
/// # Errors
/// What SQLite says.
pub(crate) fn count_open_of_account(
    db: &Connection,
    channel: &str,
    account_id: &str,
) -> Result<u64, StoreError> {
    // Beside min() the other columns are those of the row that has it.
    let sql = format!(
        "SELECT count(*) AS open FROM acp_sessions AS s JOIN (SELECT session_key, channel, account_id, min(rowid) \
         FROM acp_bindings GROUP BY session_key) AS b ON b.session_key = s.session_key \
         WHERE b.channel = ?1 AND b.account_id = ?2 AND {OPEN}"
    );
    Ok(first(db, &sql, [channel, account_id], |row| int(row, "open"))?.unwrap_or(0))
}

/// One session.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn get(db: &Connection, key: &SessionKey) -> Result<Option<SessionRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM acp_sessions WHERE session_key = ?1");
    first(db, &sql, [key.as_str()], from_row)
}

fn list(db: &Connection, filter: &SessionFilter) -> Result<Vec<SessionRow>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM acp_sessions WHERE (?1 IS NULL OR agent = ?1) AND (?2 OR state <> 'closed') \
         AND (?3 IS NULL OR spawned_by = ?3) ORDER BY last_activity_at DESC, rowid DESC LIMIT ?4"
    );
    let agent = filter.agent.as_ref().map(AgentName::as_str);
    let spawned_by = filter.spawned_by.as_ref().map(SessionKey::as_str);
    all(db, &sql, params![agent, filter.closed_too, spawned_by, Int(filter.rows_max)], from_row)
}

fn unfinished(db: &Connection) -> Result<Vec<SessionKey>, StoreError> {
    const SQL: &str = "SELECT session_key FROM acp_sessions AS s WHERE state <> 'closed' AND \
         EXISTS (SELECT 1 FROM acp_runs AS r WHERE r.session_key = s.session_key \
                 AND r.state IN ('queued','running')) \
         UNION SELECT session_key FROM acp_leases WHERE usage <> 'ended'";
    all(db, SQL, [], |row| id(row, "session_key"))
}

impl Store {
    /// One session.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub(crate) async fn session(&self, key: SessionKey) -> Result<Option<SessionRow>, StoreError> {
        self.read("session", move |db| get(db, &key)).await
    }

    /// Sessions, the one with the latest activity first.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub(crate) async fn sessions(&self, filter: SessionFilter) -> Result<Vec<SessionRow>, StoreError> {
        self.read("sessions", move |db| list(db, &filter)).await
    }

    /// Sessions that need an actor at start: runs that have not ended, or a lease that has not (a closed session
    /// whose process is not known to be gone is one of these).
    ///
    /// # Errors
    /// As [`Store::read`].
    pub(crate) async fn unfinished_sessions(&self) -> Result<Vec<SessionKey>, StoreError> {
        self.read("unfinished_sessions", unfinished).await
    }
}
