//! Current row counts for metrics and `doctor`.

use crate::bindings;
use crate::db::{Db, params};
use crate::error::StoreError;
use crate::schema::DB_FILE;
use acp_core::binding::StaleReason;
use acp_core::rows::SessionActivity;
use acp_core::session::SessionState;
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

/// Maximum number of stale bindings listed.
const NAMED_MAX: usize = 20;

/// Descriptions of stale bindings for operators: `console/default/room -> KEY (session-closed)`.
///
/// # Errors
/// SQLite errors.
pub fn stale(db: &Db) -> Result<Vec<String>, StoreError> {
    let named = bindings::open_bindings(db)?.into_iter().filter_map(|live| {
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
    let states = SessionState::ALL.into_iter().filter(|state| *state != SessionState::Closed);
    let by_state = "SELECT count(*) FROM acp_sessions WHERE state = ?1";
    let sessions = states.map(|state| {
        Ok((state.as_str(), db.first(by_state, params![state], |row| row.only())?.unwrap_or(0)))
    });
    Ok(StoreGauges {
        sessions: sessions.collect::<Result<_, StoreError>>()?,
        runs_queued: count(db, "SELECT count(*) FROM acp_runs WHERE state = 'queued'")?,
        inbox_waiting: count(db, "SELECT count(*) FROM acp_inbox WHERE state = 'received'")?,
        parts_waiting: count(
            db,
            "SELECT count(*) FROM acp_delivery_part WHERE state IN ('planned','sending')",
        )?,
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

/// Reads the runs and bindings of all sessions.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn session_activity(db: &Db) -> Result<SessionActivity, StoreError> {
    let mut found = SessionActivity::default();
    let running = "SELECT session_key, run_id FROM acp_runs WHERE state = 'running' AND mode = 'prompt'";
    found.running.extend(db.all(running, &[], |row| Ok((row.get("session_key")?, row.get("run_id")?)))?);
    let queued =
        "SELECT session_key, count(*) AS runs FROM acp_runs WHERE state = 'queued' GROUP BY session_key";
    found.queued.extend(db.all(queued, &[], |row| Ok((row.get("session_key")?, row.get("runs")?)))?);
    let live = format!("SELECT {} FROM acp_bindings WHERE status <> 'ended' ORDER BY ord", bindings::COLUMNS);
    for binding in db.all(&live, &[], bindings::from_row)? {
        found.bindings.entry(binding.session_key.clone()).or_default().push(binding);
    }
    Ok(found)
}

/// Free space and size of the disk of the state directory, in bytes; `None` if they cannot be read. May block.
#[must_use]
pub fn disk(dir: &Path) -> Option<(u64, u64)> {
    let disk = rustix::fs::statvfs(dir).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    Some((bytes(disk.f_bavail), bytes(disk.f_blocks)))
}

/// Size of the database in `dir` and of its WAL, in bytes.
pub fn sizes(dir: &Path) -> (u64, u64) {
    let size = |name: String| std::fs::metadata(dir.join(name)).map_or(0, |meta| meta.len());
    (size(DB_FILE.to_owned()), size(format!("{DB_FILE}-wal")))
}
