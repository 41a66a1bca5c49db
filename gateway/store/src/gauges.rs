//! Current row counts for metrics and `doctor`.

use crate::bindings;
use crate::db::{Db, params};
use crate::error::StoreError;
use crate::schema::DB_FILE;
use acp_core::binding::StaleReason;
use acp_core::rows::SessionActivity;
use acp_core::session::SessionState;
use acp_shared::ids::SessionKey;
use std::collections::HashMap;
use std::path::Path;

/// Row counts of one snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreGauges {
    /// Number of sessions by state, for all states except closed.
    pub sessions: Vec<(&'static str, u64)>,
    /// Queued runs.
    pub runs_queued: u64,
    /// Unsettled inbox messages.
    pub inbox_waiting: u64,
    /// Delivery parts planned or being sent.
    pub parts_waiting: u64,
    /// Active or parked bindings whose session is closed or missing.
    pub stale_bindings: u64,
}

/// Number of open sessions by state.
pub(crate) const BY_STATE: &str =
    "SELECT state, count(*) AS sessions FROM acp_sessions WHERE state <> 'closed' GROUP BY state";
/// Number of queued runs. The first condition is that of the index of unfinished runs.
pub(crate) const RUNS_QUEUED: &str =
    "SELECT count(*) AS runs FROM acp_runs WHERE state IN ('queued','running') AND state = 'queued'";
/// Number of parts to send. The first condition is that of the index of unsettled parts.
pub(crate) const PARTS_WAITING: &str = "SELECT count(*) AS parts FROM acp_delivery_part \
    WHERE state IN ('planned','sending','uncertain') AND state <> 'uncertain'";

/// Maximum number of stale bindings listed.
const NAMED_MAX: usize = 20;

/// Descriptions of stale bindings for operators: `console/default/room -> KEY (session-closed)`.
///
/// # Errors
/// SQLite errors.
pub fn stale(db: &Db) -> Result<Vec<String>, StoreError> {
    let named = bindings::unsettled(db)?.into_iter().filter_map(|live| {
        let (binding, target, _) = live.found.ok()?;
        let (at, stale) = (&binding.conversation, StaleReason::of(target)?);
        let place = format!("{}/{}/{}", at.channel, at.account_id, at.conversation_id);
        Some(format!("{place} -> {} ({})", binding.session_key, stale.as_str()))
    });
    Ok(named.take(NAMED_MAX).collect())
}

/// Counts all levels.
///
/// # Errors
/// SQLite errors.
pub fn read_gauges(db: &Db) -> Result<StoreGauges, StoreError> {
    let counted = db.all(BY_STATE, &[], |row| Ok((row.get("state")?, row.get("sessions")?)))?;
    let counted: HashMap<SessionState, u64> = counted.into_iter().collect();
    let states = SessionState::ALL.into_iter().filter(|state| *state != SessionState::Closed);
    let sessions = states.map(|state| (state.as_str(), counted.get(&state).copied().unwrap_or(0)));
    Ok(StoreGauges {
        sessions: sessions.collect(),
        runs_queued: count(db, RUNS_QUEUED)?,
        inbox_waiting: count(db, "SELECT count(*) FROM acp_inbox WHERE state = 'received'")?,
        parts_waiting: count(db, PARTS_WAITING)?,
        stale_bindings: count(
            db,
            "SELECT count(*) FROM acp_bindings b LEFT JOIN acp_sessions s USING (session_key) \
             WHERE b.status IN ('active','parked') AND (s.state IS NULL OR s.state = 'closed')",
        )?,
    })
}

fn count(db: &Db, sql: &str) -> Result<u64, StoreError> {
    Ok(db.first(sql, &[], |row| row.only())?.unwrap_or(0))
}

/// Running turn of a session.
pub(crate) const RUNNING_OF_SESSION: &str =
    "SELECT run_id FROM acp_runs WHERE session_key = ?1 AND state = 'running' AND mode = 'prompt'";
/// Number of queued runs of a session. The first condition is that of the index of unfinished runs.
pub(crate) const QUEUED_OF_SESSION: &str = "SELECT count(*) AS runs FROM acp_runs \
    WHERE session_key = ?1 AND state IN ('queued','running') AND state = 'queued'";

/// Reads the runs and bindings of sessions.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn session_activity(db: &Db, keys: &[SessionKey]) -> Result<SessionActivity, StoreError> {
    let mut found = SessionActivity::default();
    for key in keys {
        let running = db.first(RUNNING_OF_SESSION, params![key], |row| row.get("run_id"))?;
        found.running.extend(running.map(|run_id| (key.clone(), run_id)));
        let queued = db.first(QUEUED_OF_SESSION, params![key], |row| row.only())?.unwrap_or(0);
        found.queued.extend((queued > 0).then(|| (key.clone(), queued)));
        let bindings = bindings::of_session(db, key)?;
        found.bindings.extend((!bindings.is_empty()).then(|| (key.clone(), bindings)));
    }
    Ok(found)
}

/// Numbers of running turns and of queued runs of all sessions.
///
/// # Errors
/// SQLite errors.
pub fn unfinished_runs(db: &Db) -> Result<(u64, u64), StoreError> {
    const RUNNING: &str = "SELECT count(*) AS runs FROM acp_runs WHERE state = 'running' AND mode = 'prompt'";
    Ok((count(db, RUNNING)?, count(db, RUNS_QUEUED)?))
}

/// Free space and size of the disk of the state directory, in bytes; `None` if they cannot be read. May block.
#[must_use]
pub fn disk(dir: &Path) -> Option<(u64, u64)> {
    let disk = rustix::fs::statvfs(dir).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    Some((bytes(disk.f_bavail), bytes(disk.f_blocks)))
}

/// Size of all tables of a cell with their indexes, in bytes.
///
/// # Errors
/// Errors of the server.
pub fn cell_size(db: &Db) -> Result<u64, StoreError> {
    const SQL: &str = "SELECT CAST(coalesce(sum(pg_total_relation_size(oid)), 0) AS BIGINT) FROM pg_catalog.pg_class \
        WHERE relkind = 'r' AND relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema())";
    Ok(db.first(SQL, &[], |row| row.only())?.unwrap_or(0))
}

/// Size of the database in `dir` and of its WAL, in bytes.
pub fn sizes(dir: &Path) -> (u64, u64) {
    let size = |name: String| std::fs::metadata(dir.join(name)).map_or(0, |meta| meta.len());
    (size(DB_FILE.to_owned()), size(format!("{DB_FILE}-wal")))
}
