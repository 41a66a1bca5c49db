//! Retention of the journal: which rows may be pruned, and their removal in bounded transactions. One transaction
//! marks the rows as pruned, which is all that readers see; later ones delete them. A crash in between leaves marked
//! rows, which the next pass deletes.

use crate::Store;
use crate::db::{Db, params};
use crate::error::StoreError;
use crate::events;
use crate::{OpeningTimes, Tx};
use acp_core::retention::{JournalFacts, RetentionPolicy, RunSpan, prunable_through};
use acp_shared::ids::{RunId, SessionKey};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Maximum number of runs that one transaction marks.
const RUNS_AT_ONCE: u64 = 256;
/// Maximum number of runs of a session that are read to count its rows.
const RUNS_MAX: u64 = 1_000_000;
/// Maximum number of rows that one transaction deletes, so that no other write waits for long.
pub const ROWS_AT_ONCE: u64 = 500;
/// Number of sessions that one read examines.
const SESSIONS_AT_ONCE: u64 = 500;

/// Limits of the retention, and the readers that it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PruneRule {
    /// Age and number of turns.
    pub policy: RetentionPolicy,
    /// Names of the configured webhooks. The position of another webhook counts while it is younger than the rows.
    pub webhooks: Vec<String>,
}

/// Returns the time by which the age of rows is measured: the wall clock, but never later than `last_at_ms`, the time of the
/// last row when the process opened the store, plus the monotonic time since. A wall clock that is ahead, or that is set
/// forward, makes no row old.
pub fn age_time_ms(wall_ms: u64, last_at_ms: u64, uptime_ms: u64) -> u64 {
    wall_ms.min(last_at_ms.saturating_add(uptime_ms))
}

/// Sessions of one read that may have rows to prune.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruneCandidates {
    /// Sessions whose first row is old or marked.
    pub sessions: Vec<SessionKey>,
    /// Last session that was examined; `None` after the last one.
    pub next_after: Option<SessionKey>,
}

/// Examines the sessions after a key, in the order of keys, a bounded number of them.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn candidates(
    db: &Db,
    after: Option<&SessionKey>,
    before_ms: u64,
) -> Result<PruneCandidates, StoreError> {
    const SQL: &str = "SELECT s.session_key, EXISTS (SELECT 1 FROM (SELECT session_seq, created_at FROM acp_events AS e \
        WHERE e.session_key = s.session_key ORDER BY session_seq LIMIT 1) AS f \
        WHERE f.created_at < ?2 OR f.session_seq <= s.pruned_seq) AS is_old \
        FROM acp_sessions AS s WHERE s.session_key > ?1 ORDER BY s.session_key LIMIT ?3";
    let after = after.map_or("", SessionKey::as_str);
    let mut found = PruneCandidates::default();
    let mut examined = 0;
    db.visit(SQL, params![after, before_ms, SESSIONS_AT_ONCE], |row| {
        let key: SessionKey = row.get("session_key")?;
        examined += 1;
        if row.get("is_old")? {
            found.sessions.push(key.clone());
        }
        found.next_after = Some(key);
        Ok(ControlFlow::Continue(()))
    })?;
    if examined < SESSIONS_AT_ONCE {
        found.next_after = None;
    }
    Ok(found)
}

/// Reads the facts about a session's journal, with at most `runs_max` of its runs.
///
/// # Errors
/// [`StoreError::NoSession`]; [`StoreError::Unreadable`]; SQLite errors.
pub fn facts(db: &Db, key: &SessionKey, rule: &PruneRule, runs_max: u64) -> Result<JournalFacts, StoreError> {
    const SESSION: &str = "SELECT pruned_seq, last_session_seq, EXISTS (SELECT 1 FROM acp_permission AS p \
        WHERE p.session_key = ?1 AND p.state = 'pending') OR EXISTS (SELECT 1 FROM acp_leases AS l \
        JOIN acp_agent_request AS a ON a.lease_id = l.lease_id AND a.state <> 'answered' \
        WHERE l.session_key = ?1 AND l.usage <> 'ended') AS is_waiting FROM acp_sessions WHERE session_key = ?1";
    const KEPT: &str = "SELECT e.session_seq FROM acp_runs AS r JOIN acp_events AS e ON e.run_id = r.run_id AND e.seq = 1 \
        WHERE r.session_key = ?1 AND r.pruned = 0 AND r.mode = 'prompt' ORDER BY r.ord DESC LIMIT 1 OFFSET ?2";
    let found = db.first(SESSION, params![key], |row| {
        Ok(JournalFacts {
            pruned_seq: row.get("pruned_seq")?,
            last_seq: row.get("last_session_seq")?,
            is_waiting: row.get("is_waiting")?,
            ..JournalFacts::default()
        })
    })?;
    let mut facts = found.ok_or_else(|| StoreError::NoSession { session_key: key.clone() })?;
    if let Some(offset) = rule.policy.keep_turns.checked_sub(1) {
        facts.kept_from = db.first(KEPT, params![key, offset], |row| row.only())?;
    }
    facts.runs = run_spans(db, key, runs_max.saturating_add(1))?;
    facts.has_more_runs = facts.runs.len() as u64 > runs_max;
    facts.runs.truncate(usize::try_from(runs_max).unwrap_or(usize::MAX));
    facts.delivered_through = delivered_through(db, key)?;
    facts.notified_through = notified_through(db, rule)?;
    Ok(facts)
}

/// Oldest runs of a session that are not pruned.
fn run_spans(db: &Db, key: &SessionKey, runs_max: u64) -> Result<Vec<RunSpan>, StoreError> {
    // A run whose first or last row is missing blocks the rest: nothing is guessed about a damaged journal.
    const SQL: &str = "SELECT r.run_id, coalesce(f.session_seq, 0) AS first, coalesce(l.session_seq, 9223372036854775807) AS last, \
        coalesce(l.event_id, 0) AS event_id, coalesce(l.created_at, 0) AS created_at, \
        l.event_id IS NOT NULL AND r.state IN ('completed','failed','cancelled') AND NOT EXISTS (SELECT 1 \
        FROM acp_bindings AS b JOIN acp_delivery_card AS c ON c.binding_key = b.binding_key AND c.run_id = r.run_id \
        AND c.folded = 0 WHERE b.session_key = ?1) AS is_settled \
        FROM acp_runs AS r LEFT JOIN acp_events AS f ON f.run_id = r.run_id AND f.seq = 1 \
        LEFT JOIN acp_events AS l ON l.run_id = r.run_id AND l.seq = r.last_seq \
        WHERE r.session_key = ?1 AND r.pruned = 0 AND r.last_seq > 0 ORDER BY r.ord LIMIT ?2";
    db.all(SQL, params![key, runs_max], |row| {
        Ok(RunSpan {
            run_id: row.get("run_id")?,
            first: row.get("first")?,
            last: row.get("last")?,
            last_event_id: row.get("event_id")?,
            last_at_ms: row.get("created_at")?,
            is_settled: row.get("is_settled")?,
        })
    })
}

/// Number up to which every conversation has the journal of its session; `None` without a conversation that needs it.
fn delivered_through(db: &Db, key: &SessionKey) -> Result<Option<u64>, StoreError> {
    const SQL: &str = "SELECT min(min(coalesce(c.last_session_seq, 0), coalesce((SELECT min(p.session_seq) - 1 \
        FROM acp_delivery_part AS p WHERE p.binding_key = b.binding_key AND p.state IN ('planned','sending')), \
        9223372036854775807))) AS through FROM acp_bindings AS b \
        LEFT JOIN acp_binding_checkpoint AS c ON c.binding_key = b.binding_key WHERE b.session_key = ?1 \
        AND (b.status <> 'ended' OR coalesce(c.last_session_seq, 0) < coalesce(CAST(json_extract(b.metadata_json, \
        '$.end_session_seq') AS BIGINT), (SELECT last_session_seq FROM acp_sessions AS s WHERE s.session_key = ?1)) \
        OR EXISTS (SELECT 1 FROM acp_delivery_part AS p WHERE p.binding_key = b.binding_key \
        AND p.state IN ('planned','sending')))";
    Ok(db.first(SQL, params![key], |row| row.get::<Option<u64>>("through"))?.flatten())
}

/// Event id up to which every webhook has the journal; `None` without a webhook that needs it.
fn notified_through(db: &Db, rule: &PruneRule) -> Result<Option<u64>, StoreError> {
    const SQL: &str = "SELECT name, last_event_id, updated_at FROM acp_webhook";
    let all = db.all(SQL, &[], |row| {
        let at_ms: u64 = row.get("updated_at")?;
        Ok((row.get::<String>("name")?, row.get::<u64>("last_event_id")?, at_ms))
    })?;
    let needed = all
        .into_iter()
        .filter(|(name, _, at_ms)| rule.webhooks.contains(name) || *at_ms >= rule.policy.before_ms);
    Ok(needed.map(|(_, event_id, _)| event_id).min())
}

/// Marks rows of a session as pruned, those of a bounded number of runs. Returns false if there are none.
///
/// # Errors
/// Errors of [`facts`].
pub fn mark_pruned(tx: &Tx<'_>, key: &SessionKey, rule: &PruneRule) -> Result<bool, StoreError> {
    const FLOOR: &str = "UPDATE acp_sessions SET pruned_seq = ?2 WHERE session_key = ?1";
    const LAST_ID: &str = "SELECT event_id FROM acp_events WHERE session_key = ?1 AND session_seq = ?2";
    let facts = facts(tx, key, rule, RUNS_AT_ONCE)?;
    let through = prunable_through(&facts, rule.policy);
    if through <= facts.pruned_seq {
        return Ok(false);
    }
    tx.run(FLOOR, params![key, through])?;
    for run in facts.runs.iter().filter(|run| run.last <= through) {
        mark_run(tx, run.run_id)?;
    }
    if let Some(event_id) = tx.first(LAST_ID, params![key, through], |row| row.get("event_id"))? {
        events::note_pruned(tx, event_id)?;
    }
    Ok(true)
}

fn mark_run(tx: &Tx<'_>, run_id: RunId) -> Result<(), StoreError> {
    tx.run("UPDATE acp_runs SET pruned = 1 WHERE run_id = ?1", params![run_id]).map(drop)
}

/// Deletes at most [`ROWS_AT_ONCE`] marked rows of a session. Returns their number.
///
/// # Errors
/// SQLite errors.
pub fn delete_pruned(tx: &Tx<'_>, key: &SessionKey) -> Result<u64, StoreError> {
    const SQL: &str = "DELETE FROM acp_events WHERE event_id IN (SELECT event_id FROM acp_events \
        WHERE session_key = ?1 AND session_seq <= (SELECT pruned_seq FROM acp_sessions WHERE session_key = ?1) \
        ORDER BY session_seq LIMIT ?2)";
    Ok(tx.run(SQL, params![key, ROWS_AT_ONCE])? as u64)
}

/// Rows of a session that a pass would remove.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrunableRows {
    /// Number of rows.
    pub rows: u64,
    /// Size of their payloads, in bytes.
    pub bytes: u64,
}

/// Counts the rows of a session that a pass would remove, marked ones included.
///
/// # Errors
/// Errors of [`facts`].
pub fn prunable_rows(db: &Db, key: &SessionKey, rule: &PruneRule) -> Result<PrunableRows, StoreError> {
    const SQL: &str = "SELECT count(*) AS rows, CAST(coalesce(sum(octet_length(payload_json) \
        + coalesce(octet_length(extra_json), 0)), 0) AS BIGINT) AS bytes FROM acp_events WHERE session_key = ?1 AND session_seq <= ?2";
    let facts = facts(db, key, rule, RUNS_MAX)?;
    let through = prunable_through(&facts, rule.policy);
    let found = db.first(SQL, params![key, through], |row| {
        Ok(PrunableRows { rows: row.get("rows")?, bytes: row.get("bytes")? })
    })?;
    Ok(found.unwrap_or_default())
}

/// True if rows of a session may be pruned or are marked.
fn is_prunable(db: &Db, key: &SessionKey, rule: &PruneRule) -> Result<bool, StoreError> {
    const MARKED: &str = "SELECT EXISTS (SELECT 1 FROM acp_events WHERE session_key = ?1 AND session_seq <= \
        (SELECT pruned_seq FROM acp_sessions WHERE session_key = ?1)) AS marked";
    let facts = facts(db, key, rule, RUNS_AT_ONCE)?;
    let is_marked = db.first(MARKED, params![key], |row| row.get("marked"))?.unwrap_or(false);
    Ok(is_marked || prunable_through(&facts, rule.policy) > facts.pruned_seq)
}

impl Store {
    /// Returns the time by which the age of rows is measured: see [`age_time_ms`].
    pub fn age_time_ms(&self) -> u64 {
        let OpeningTimes { last_at_ms, opened_ms } = self.inner.times;
        let clock = self.clock();
        age_time_ms(clock.wall_ms(), last_at_ms, clock.now_ms().saturating_sub(opened_ms))
    }

    /// Prunes the journals of all sessions. Returns the number of deleted rows. Stops between two transactions once
    /// `goes_on` returns false.
    ///
    /// # Errors
    /// As [`Store::write`]. Rows deleted before the error stay deleted.
    pub async fn prune_journals(
        &self,
        rule: PruneRule,
        goes_on: impl Fn() -> bool + Send,
    ) -> Result<u64, StoreError> {
        let rule = Arc::new(rule);
        let (mut rows, mut after) = (0, None);
        loop {
            let before_ms = rule.policy.before_ms;
            let from: Option<SessionKey> = after;
            let found =
                self.read("prune_candidates", move |db| candidates(db, from.as_ref(), before_ms)).await?;
            for key in found.sessions {
                rows += self.prune_session(key, &rule, &goes_on).await?;
            }
            after = found.next_after;
            if after.is_none() || !goes_on() {
                return Ok(rows);
            }
        }
    }

    async fn prune_session(
        &self,
        key: SessionKey,
        rule: &Arc<PruneRule>,
        goes_on: &(impl Fn() -> bool + Send),
    ) -> Result<u64, StoreError> {
        let (session, limits) = (key.clone(), Arc::clone(rule));
        if !self.read("is_prunable", move |db| is_prunable(db, &session, &limits)).await? {
            return Ok(0);
        }
        loop {
            let (session, limits) = (key.clone(), Arc::clone(rule));
            let is_marked = self.write("prune_mark", move |tx| mark_pruned(tx, &session, &limits)).await?;
            if !is_marked || !goes_on() {
                break;
            }
        }
        let mut rows = 0;
        while goes_on() {
            let session = key.clone();
            let deleted = self.write("prune_delete", move |tx| delete_pruned(tx, &session)).await?;
            rows += deleted;
            if deleted < ROWS_AT_ONCE {
                break;
            }
        }
        Ok(rows)
    }
}
