//! `acp_runs`: the turns and steers of sessions.

use crate::Store;
use crate::codec::to_json_opt;
use crate::db::{Db, Row, named_params, params};
use crate::error::StoreError;
use acp_core::rows::{RunPermissions, RunRow};
use acp_shared::ids::{RunId, SessionKey};
use std::sync::Arc;

const COLUMNS: &str = "run_id, session_key, mode, state, prompt, files_json, author, asked_by, interactive, \
    permission, non_interactive, requester_message_id, idempotency_key, last_seq, stop_reason, usage_json, error_json, created_at, started_at, ended_at, chain";

const PUT: &str = "INSERT INTO acp_runs (run_id, session_key, mode, state, prompt, files_json, author, asked_by, interactive, \
    permission, non_interactive, requester_message_id, idempotency_key, last_seq, stop_reason, usage_json, error_json, created_at, started_at, \
    ended_at, chain) VALUES (:run_id, :session_key, :mode, :state, :prompt, :files_json, :author, :asked_by, :interactive, \
    :permission, :non_interactive, :requester_message_id, :idempotency_key, 0, :stop_reason, :usage_json, :error_json, :created_at, :started_at, \
    :ended_at, :chain) ON CONFLICT (run_id) DO UPDATE SET mode = excluded.mode, state = excluded.state, \
    stop_reason = excluded.stop_reason, usage_json = excluded.usage_json, error_json = excluded.error_json, \
    started_at = excluded.started_at, ended_at = excluded.ended_at \
    WHERE acp_runs.session_key = excluded.session_key";

fn from_row(row: &Row<'_>) -> Result<RunRow, StoreError> {
    Ok(RunRow {
        run_id: row.get("run_id")?,
        session_key: row.get("session_key")?,
        mode: row.get("mode")?,
        state: row.get("state")?,
        text: row.get("prompt")?,
        files: row.get::<Option<String>>("files_json")?.map(Arc::from),
        author: row.get("author")?,
        asked_by: row.get("asked_by")?,
        interactive: row.get("interactive")?,
        permissions: RunPermissions {
            mode: row.get("permission")?,
            non_interactive: row.get("non_interactive")?,
        },
        chain: row.get("chain")?,
        requester_message_id: row.get("requester_message_id")?,
        idempotency_key: row.get("idempotency_key")?,
        last_seq: row.get("last_seq")?,
        stop_reason: row.get("stop_reason")?,
        usage: row.get("usage_json")?,
        error: row.json_opt("error_json")?,
        created_at_ms: row.get("created_at")?,
        started_at_ms: row.get("started_at")?,
        ended_at_ms: row.get("ended_at")?,
    })
}

/// Inserts a run, or updates its mutable columns. The number of its last event is updated separately.
///
/// # Errors
/// [`StoreError::Refused`] if the run belongs to another session; SQLite errors (an ended run stays ended,
/// one prompt runs at a time).
pub fn put(db: &Db, row: &RunRow) -> Result<(), StoreError> {
    let changed = db.run_named(
        PUT,
        named_params! {
            ":run_id": row.run_id,
            ":session_key": row.session_key,
            ":mode": row.mode,
            ":state": row.state,
            ":prompt": row.text,
            ":files_json": row.files.as_deref(),
            ":author": row.author,
            ":asked_by": row.asked_by,
            ":interactive": row.interactive,
            ":permission": row.permissions.mode,
            ":non_interactive": row.permissions.non_interactive,
            ":requester_message_id": row.requester_message_id,
            ":idempotency_key": row.idempotency_key,
            ":stop_reason": row.stop_reason,
            ":usage_json": row.usage,
            ":error_json": to_json_opt(row.error.as_ref())?,
            ":created_at": row.created_at_ms,
            ":started_at": row.started_at_ms,
            ":ended_at": row.ended_at_ms,
            ":chain": row.chain,
        },
    )?;
    if changed == 1 { Ok(()) } else { Err(StoreError::Refused("the run belongs to another session")) }
}

/// Returns one run.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn get(db: &Db, run_id: RunId) -> Result<Option<RunRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM acp_runs WHERE run_id = ?1");
    db.first(&sql, params![run_id], from_row)
}

/// Replaces the text of a queued run.
///
/// # Errors
/// [`StoreError::UsedMeanwhile`] if the run is not queued; SQLite errors.
pub fn reword(db: &Db, run_id: RunId, session: &SessionKey, text: &str) -> Result<(), StoreError> {
    const SQL: &str =
        "UPDATE acp_runs SET prompt = ?3 WHERE run_id = ?1 AND session_key = ?2 AND state = 'queued'";
    match db.run(SQL, params![run_id, session, text])? {
        1 => Ok(()),
        _ => Err(StoreError::UsedMeanwhile),
    }
}

/// Origin of a run, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOrigin {
    /// Idempotency key of the request.
    pub idempotency_key: String,
    /// Backend of the session.
    pub backend: String,
    /// Conversation of the prompt, or the one to which its session was bound first; `None` without both.
    pub thread_id: Option<String>,
}

/// Returns the origin of a run; `None` if there is no such run.
///
/// # Errors
/// SQLite errors.
pub fn origin(db: &Db, run: RunId) -> Result<Option<RunOrigin>, StoreError> {
    const SQL: &str = "SELECT r.idempotency_key, s.backend, coalesce( \
        (SELECT json_extract(payload_json, '$.asked_in.conversation_id') FROM acp_events \
            WHERE run_id = r.run_id AND kind = 'prompt' ORDER BY seq LIMIT 1), \
        (SELECT thread_id FROM acp_bindings WHERE session_key = r.session_key ORDER BY ord LIMIT 1)) AS thread_id \
        FROM acp_runs r JOIN acp_sessions s ON s.session_key = r.session_key WHERE r.run_id = ?1";
    let from_row = |row: &Row<'_>| {
        Ok(RunOrigin {
            idempotency_key: row.get("idempotency_key")?,
            backend: row.get("backend")?,
            thread_id: row.get("thread_id")?,
        })
    };
    db.first(SQL, params![run], from_row)
}

/// Number of a run's last event; `None` if the session has no such run.
///
/// # Errors
/// SQLite errors.
pub fn last_seq(db: &Db, run: RunId, session: &SessionKey) -> Result<Option<u64>, StoreError> {
    const SQL: &str = "SELECT last_seq FROM acp_runs WHERE run_id = ?1 AND session_key = ?2";
    db.first(SQL, params![run, session], |row| row.get("last_seq"))
}

/// Sets the number of a run's last event.
///
/// # Errors
/// SQLite errors.
pub fn set_last_seq(db: &Db, run_id: RunId, last: u64) -> Result<(), StoreError> {
    db.run_later("UPDATE acp_runs SET last_seq = ?2 WHERE run_id = ?1", params![run_id, last])
}

/// Unfinished runs of a session, in the order of acceptance.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn unfinished(db: &Db, key: &SessionKey) -> Result<Vec<RunRow>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM acp_runs WHERE session_key = ?1 AND state IN ('queued','running') ORDER BY ord"
    );
    db.all(&sql, params![key], from_row)
}

/// True if the session has unfinished runs.
///
/// # Errors
/// SQLite errors.
pub fn has_unfinished(db: &Db, key: &SessionKey) -> Result<bool, StoreError> {
    const SQL: &str = "SELECT EXISTS (SELECT 1 FROM acp_runs WHERE session_key = ?1 AND state IN ('queued','running')) \
        AS busy";
    Ok(db.first(SQL, params![key], |row| row.get("busy"))?.unwrap_or(false))
}

impl Store {
    /// The last `rows_max` runs of a session, newest first.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn runs(&self, key: SessionKey, rows_max: u64) -> Result<Vec<RunRow>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM acp_runs WHERE session_key = ?1 ORDER BY ord DESC LIMIT ?2");
        self.read("runs", move |db| db.all(&sql, params![key, rows_max], from_row)).await
    }

    /// Returns the running turn of a session, or else the newest run that has ended.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn current_run(&self, key: SessionKey) -> Result<Option<RunRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM acp_runs WHERE session_key = ?1 AND state <> 'queued' \
             ORDER BY state = 'running' DESC, ord DESC LIMIT 1"
        );
        self.read("current_run", move |db| db.first(&sql, params![key], from_row)).await
    }

    /// Returns one run.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn run(&self, run_id: RunId) -> Result<Option<RunRow>, StoreError> {
        self.read("run", move |db| get(db, run_id)).await
    }
}
