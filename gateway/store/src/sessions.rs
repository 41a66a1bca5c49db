//! `acp_sessions`: sessions, with the queries behind caps and recovery.

use crate::Store;
use crate::codec::{to_json, to_json_opt};
use crate::db::{Db, Params, Row, named_params, params};
use crate::error::StoreError;
use acp_core::recovery::{RecoveryCandidate, RecoveryFacts};
use acp_core::rows::{SessionOptions, SessionQuery, SessionRow};
use acp_core::session::SessionState;
use acp_core::visibility::{Action, principal_sees};
use acp_core::writes::{AccountLimit, SessionLimits};
use acp_shared::ids::SessionKey;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Columns read by [`from_row`].
pub(super) const COLUMNS: &str = "session_key, backend, agent, mode, cwd, label, state, ending, last_error, \
    nullif(owner_session_key, '') AS owner_session_key, asked_by, spawned_by, parent_session_key, gateway_instance_id, agent_session_id, resumable, agent_info_json, lease_id, \
    options_json, last_session_seq, pruned_seq, created_at, updated_at, last_activity_at";

const INSERT: &str = "INSERT INTO acp_sessions (session_key, backend, agent, mode, cwd, label, state, last_error, \
    owner_session_key, asked_by, spawned_by, parent_session_key, gateway_instance_id, agent_session_id, resumable, \
    agent_info_json, lease_id, options_json, last_session_seq, created_at, updated_at, last_activity_at) \
    VALUES (:session_key, :backend, :agent, :mode, :cwd, :label, :state, :last_error, \
    coalesce(:owner_session_key, ''), :asked_by, :spawned_by, :parent_session_key, :gateway_instance_id, :agent_session_id, :resumable, :agent_info_json, \
    :lease_id, :options_json, 0, :created_at, :updated_at, :last_activity_at)";

const UPDATE: &str = "UPDATE acp_sessions SET backend = :backend, agent = :agent, mode = :mode, cwd = :cwd, \
    label = :label, state = :state, ending = :ending, last_error = :last_error, agent_session_id = :agent_session_id, \
    resumable = :resumable, agent_info_json = :agent_info_json, lease_id = :lease_id, \
    options_json = :options_json, updated_at = :updated_at, last_activity_at = :last_activity_at \
    WHERE session_key = :session_key";

/// Reads a row of [`COLUMNS`].
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub(super) fn from_row(row: &Row<'_>) -> Result<SessionRow, StoreError> {
    Ok(SessionRow {
        session_key: row.get("session_key")?,
        backend: row.get("backend")?,
        agent: row.get("agent")?,
        mode: row.get("mode")?,
        cwd: row.get("cwd")?,
        label: row.get("label")?,
        state: row.get("state")?,
        ending: row.get("ending")?,
        last_error: row.json_opt("last_error")?,
        owner_session_key: row.get("owner_session_key")?,
        asked_by: row.get("asked_by")?,
        spawned_by: row.get("spawned_by")?,
        parent_session_key: row.get("parent_session_key")?,
        gateway_instance_id: row.get("gateway_instance_id")?,
        agent_session_id: row.get("agent_session_id")?,
        resumable: row.get("resumable")?,
        agent_info: row.get("agent_info_json")?,
        lease_id: row.get("lease_id")?,
        options: row.json("options_json")?,
        last_session_seq: row.get("last_session_seq")?,
        pruned_seq: row.get("pruned_seq")?,
        created_at_ms: row.get("created_at")?,
        updated_at_ms: row.get("updated_at")?,
        last_activity_at_ms: row.get("last_activity_at")?,
    })
}

/// Query of [`check_not_continued`].
pub(crate) const CONTINUED: &str = "SELECT session_key FROM acp_sessions \
    WHERE state <> 'closed' AND agent = ?1 AND agent_session_id = ?2 LIMIT 1";

/// Checks that no open session continues the agent's conversation of a new one: two processes of the agent would write to
/// it.
///
/// # Errors
/// [`StoreError::Continued`]; SQLite errors.
pub fn check_not_continued(db: &Db, row: &SessionRow) -> Result<(), StoreError> {
    let Some(id) = &row.agent_session_id else { return Ok(()) };
    match db.first(CONTINUED, params![row.agent, id], |row| row.get("session_key"))? {
        Some(session_key) => Err(StoreError::Continued { session_key }),
        None => Ok(()),
    }
}

/// Inserts a session with an empty journal.
///
/// # Errors
/// [`StoreError::LabelTaken`] if an open session has the label; SQLite errors.
pub fn insert(db: &Db, row: &SessionRow) -> Result<(), StoreError> {
    let inserted = db.run_named(
        INSERT,
        named_params! {
            ":session_key": row.session_key,
            ":backend": row.backend,
            ":agent": row.agent,
            ":mode": row.mode,
            ":cwd": row.cwd,
            ":label": row.label,
            ":state": row.state,
            ":last_error": to_json_opt(row.last_error.as_ref())?,
            ":owner_session_key": row.owner_session_key,
            ":asked_by": row.asked_by,
            ":spawned_by": row.spawned_by,
            ":parent_session_key": row.parent_session_key,
            ":gateway_instance_id": row.gateway_instance_id,
            ":agent_session_id": row.agent_session_id,
            ":resumable": row.resumable,
            ":agent_info_json": row.agent_info,
            ":lease_id": row.lease_id,
            ":options_json": to_json(&row.options)?,
            ":created_at": row.created_at_ms,
            ":updated_at": row.updated_at_ms,
            ":last_activity_at": row.last_activity_at_ms,
        },
    );
    label_taken(inserted, row).map(drop)
}

/// Names the label in the error of a row that would give two open sessions one label.
fn label_taken(written: Result<usize, StoreError>, row: &SessionRow) -> Result<usize, StoreError> {
    match (written, &row.label) {
        (Err(error), Some(label)) if error.is_unique_violation() => {
            Err(StoreError::LabelTaken { label: label.clone() })
        }
        (written, _) => written,
    }
}

/// Updates a session except for its owner and the number of its last event, which is updated separately.
///
/// # Errors
/// [`StoreError::NoSession`]; [`StoreError::LabelTaken`] if another open session has the label; SQLite errors.
pub fn update(db: &Db, row: &SessionRow) -> Result<(), StoreError> {
    let changed = db.run_named(
        UPDATE,
        named_params! {
            ":session_key": row.session_key,
            ":backend": row.backend,
            ":agent": row.agent,
            ":mode": row.mode,
            ":cwd": row.cwd,
            ":label": row.label,
            ":state": row.state,
            ":ending": row.ending,
            ":last_error": to_json_opt(row.last_error.as_ref())?,
            ":agent_session_id": row.agent_session_id,
            ":resumable": row.resumable,
            ":agent_info_json": row.agent_info,
            ":lease_id": row.lease_id,
            ":options_json": to_json(&row.options)?,
            ":updated_at": row.updated_at_ms,
            ":last_activity_at": row.last_activity_at_ms,
        },
    );
    let changed = label_taken(changed, row)?;
    if changed == 1 { Ok(()) } else { Err(StoreError::NoSession { session_key: row.session_key.clone() }) }
}

/// Finds the root of each session's tree again, after rows were inserted in any order.
///
/// # Errors
/// SQLite errors.
pub fn find_owners(db: &Db) -> Result<(), StoreError> {
    db.run_all(include_str!("owners.sql"))
}

/// Newest epoch of a session and number of its last event, which an actor's transaction starts from.
///
/// # Errors
/// [`StoreError::NoSession`].
pub fn marks(db: &Db, key: &SessionKey) -> Result<(u64, u64), StoreError> {
    const SQL: &str = "SELECT epoch, last_session_seq FROM acp_sessions WHERE session_key = ?1";
    db.first(SQL, params![key], |row| Ok((row.get("epoch")?, row.get("last_session_seq")?)))?
        .ok_or_else(|| StoreError::NoSession { session_key: key.clone() })
}

/// Sets the number of the last event.
///
/// # Errors
/// SQLite errors.
pub fn set_last_seq(db: &Db, key: &SessionKey, last: u64) -> Result<(), StoreError> {
    const SQL: &str = "UPDATE acp_sessions SET last_session_seq = ?2 WHERE session_key = ?1";
    db.run_later(SQL, params![key, last])
}

/// Starts and returns a new epoch, in which no earlier actor can write.
///
/// # Errors
/// [`StoreError::NoSession`].
pub fn next_epoch(db: &Db, key: &SessionKey) -> Result<u64, StoreError> {
    const SQL: &str = "UPDATE acp_sessions SET epoch = epoch + 1 WHERE session_key = ?1 RETURNING epoch";
    db.first(SQL, params![key], |row| row.get("epoch"))?
        .ok_or_else(|| StoreError::NoSession { session_key: key.clone() })
}

/// Sessions `s` in use: they are being created, or have an unfinished run (each session at work has one) or a
/// process. Closed sessions are not in use, nor are idle or failed ones without a process. Each part reads a partial
/// index, so that the cost grows with the sessions in use, not with all sessions.
const IN_USE: &str = "(SELECT session_key FROM acp_sessions WHERE state = 'creating' \
    UNION SELECT session_key FROM acp_leases WHERE usage <> 'ended' \
    UNION SELECT session_key FROM acp_runs WHERE state IN ('queued','running')) AS u \
    CROSS JOIN acp_sessions AS s ON s.session_key = u.session_key AND s.state <> 'closed'";
/// Condition for one session `s` in use.
const IS_IN_USE: &str = "s.state = 'creating' \
    OR EXISTS (SELECT 1 FROM acp_leases AS l WHERE l.session_key = s.session_key AND l.usage <> 'ended') \
    OR EXISTS (SELECT 1 FROM acp_runs AS r WHERE r.session_key = s.session_key AND r.state IN ('queued', 'running'))";

/// Checks that one more session may be in use, in total and in the account.
///
/// # Errors
/// [`StoreError::LimitReached`]; SQLite errors.
pub fn check_caps(
    db: &Db,
    SessionLimits { sessions_max, account }: &SessionLimits,
) -> Result<(), StoreError> {
    let sessions_max = *sessions_max;
    let count = |sql: String, with: Params<'_>| db.first(&sql, with, |row| row.get("used"));
    if count(count_in_use_sql(), &[])?.unwrap_or(0) >= sessions_max {
        return Err(StoreError::LimitReached { sessions_max, account: false });
    }
    let Some(AccountLimit { channel, account_id, sessions_max }) = account else { return Ok(()) };
    if count(count_in_use_of_account_sql(), params![channel, account_id])?.unwrap_or(0) >= *sessions_max {
        return Err(StoreError::LimitReached { sessions_max: *sessions_max, account: true });
    }
    Ok(())
}

/// Checks that a session may spawn one more.
///
/// # Errors
/// [`StoreError::TooManyChildren`]; SQLite errors.
pub fn check_children(db: &Db, parent: &SessionKey, children_max: u64) -> Result<(), StoreError> {
    const SQL: &str = "SELECT count(*) AS used FROM acp_sessions WHERE spawned_by = ?1 AND state <> 'closed'";
    let used: u64 = db.first(SQL, params![parent], |row| row.get("used"))?.unwrap_or(0);
    if used < children_max { Ok(()) } else { Err(StoreError::TooManyChildren { children_max }) }
}

/// Open session with the data for the caps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionUsage {
    /// True if the session is not in use.
    pub is_idle: bool,
    /// Channel and account of the session's first binding.
    pub account: Option<(String, String)>,
}

/// Reads the data for the caps; `None` if the session is closed or missing.
///
/// # Errors
/// SQLite errors.
pub fn session_usage(db: &Db, key: &SessionKey) -> Result<Option<SessionUsage>, StoreError> {
    let sql = format!(
        "SELECT b.channel, b.account_id, NOT ({IS_IN_USE}) AS asleep FROM acp_sessions AS s LEFT JOIN acp_bindings AS b \
         ON b.session_key = s.session_key AND b.ord = (SELECT min(ord) FROM acp_bindings WHERE session_key = s.session_key) \
         WHERE s.session_key = ?1 AND s.state <> 'closed'"
    );
    db.first(&sql, params![key], |row| {
        let channel: Option<String> = row.get("channel")?;
        let account = channel.zip(row.get::<Option<String>>("account_id")?);
        Ok(SessionUsage { is_idle: row.get("asleep")?, account })
    })
}

fn count_in_use_sql() -> String {
    format!("SELECT count(*) AS used FROM {IN_USE}")
}

/// Number of sessions in use whose first binding is in an account.
fn count_in_use_of_account_sql() -> String {
    format!(
        "SELECT count(*) AS used FROM {IN_USE} JOIN acp_bindings AS b ON b.session_key = s.session_key \
         AND b.ord = (SELECT min(ord) FROM acp_bindings WHERE session_key = s.session_key) \
         WHERE b.channel = ?1 AND b.account_id = ?2"
    )
}

/// Returns one session.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn get(db: &Db, key: &SessionKey) -> Result<Option<SessionRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM acp_sessions WHERE session_key = ?1");
    db.first(&sql, params![key], from_row)
}

/// Condition for a session that lists show. Written so that SQLite uses the index of open sessions.
const fn listed(closed_too: bool) -> &'static str {
    if closed_too { "ending IS DISTINCT FROM 'deleted'" } else { "state <> 'closed'" }
}

/// Query of [`find`]. With `is_page` in the order of creation, which is stable.
pub(crate) fn find_sql(closed_too: bool, is_page: bool) -> String {
    let (page, order) = if is_page {
        ("ord < ?4", "ord DESC")
    } else {
        ("CAST(?4 AS BIGINT) IS NULL", "last_activity_at DESC, ord DESC")
    };
    format!(
        "SELECT {COLUMNS}, ord FROM acp_sessions WHERE {} AND (CAST(?1 AS TEXT) IS NULL OR state = ?1) \
         AND (CAST(?2 AS TEXT) IS NULL OR agent = ?2) \
         AND (CAST(?3 AS TEXT) IS NULL OR instr(lower(coalesce(label, '')), ?3) > 0 \
         OR instr(lower(session_key), ?3) > 0 OR instr(lower(cwd), ?3) > 0) AND (CAST(?6 AS BIGINT) IS NULL OR last_activity_at <= ?6) AND {page} ORDER BY {order} LIMIT ?5",
        listed(closed_too)
    )
}

/// Sessions that match a query, each with its number in the order of creation.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn find(db: &Db, query: &SessionQuery) -> Result<Vec<(u64, SessionRow)>, StoreError> {
    let closed_too = query.closed_too || query.state == Some(SessionState::Closed);
    let sql = find_sql(closed_too, query.before.is_some());
    let text = query.text.as_ref().map(|text| text.to_ascii_lowercase());
    let before = query.before.map(|before| before.min(i64::MAX.unsigned_abs()));
    // SQLite does not know who sees a row: rows that are not seen are passed over, and do not count.
    let limited = query.seen_by.as_ref().filter(|principal| principal.is_limited());
    let read_max = if limited.is_none() { query.limit } else { i64::MAX.unsigned_abs() };
    let idle_since = query.idle_since_ms.map(|since_ms| since_ms.min(i64::MAX.unsigned_abs()));
    let with = params![query.state, query.agent, text, before, read_max, idle_since];
    let mut found = Vec::new();
    db.visit(&sql, with, |row| {
        if found.len() as u64 >= query.limit {
            return Ok(ControlFlow::Break(()));
        }
        let session = from_row(row)?;
        if limited.is_none_or(|principal| principal_sees(principal, &session, Action::List)) {
            found.push((row.get("ord")?, session));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}

/// Condition for the outer session to have unfinished runs that satisfy `$what`. The `state IN` term matches
/// the partial index of unfinished runs; without it SQLite reads all runs.
macro_rules! has_runs {
    ($what:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM acp_runs AS r WHERE r.session_key = s.session_key \
             AND r.state IN ('queued','running') AND ",
            $what,
            ")"
        )
    };
}

/// Query for the sessions that may have unfinished work at start. Each part of the union reads a partial index.
const UNFINISHED: &str = concat!(
    "SELECT s.session_key, s.state, s.last_activity_at, l.usage, ",
    has_runs!("r.state = 'running'"),
    " AS running, ",
    has_runs!("r.state = 'queued' AND r.mode = 'prompt'"),
    " AS queued, ",
    has_runs!("r.state = 'queued' AND r.mode = 'steer'"),
    " AS steers FROM (SELECT session_key FROM acp_sessions WHERE state <> 'closed' AND state NOT IN ('idle','error') \
     UNION SELECT session_key FROM acp_leases WHERE usage <> 'ended' \
     UNION SELECT session_key FROM acp_runs WHERE state IN ('queued','running')) AS u \
     CROSS JOIN acp_sessions AS s ON s.session_key = u.session_key \
     LEFT JOIN acp_leases AS l ON l.lease_id = s.lease_id AND l.usage <> 'ended'"
);

/// Query for the other open sessions, the most recently used first.
const RESTING: &str = concat!(
    "SELECT s.session_key, s.state, s.last_activity_at, NULL AS usage, 0 AS running, 0 AS queued, 0 AS steers \
     FROM acp_sessions AS s WHERE s.state <> 'closed' AND s.state IN ('idle','error') AND NOT ",
    has_runs!("TRUE"),
    " AND NOT EXISTS (SELECT 1 FROM acp_leases AS l WHERE l.session_key = s.session_key AND l.usage <> 'ended') \
     ORDER BY s.last_activity_at DESC, s.session_key LIMIT ?1"
);

fn candidate_from_row(row: &Row<'_>) -> Result<RecoveryCandidate, StoreError> {
    Ok(RecoveryCandidate {
        session_key: row.get("session_key")?,
        rows: RecoveryFacts {
            state: row.get("state")?,
            lease: row.get("usage")?,
            running: row.get("running")?,
            queued: row.get("queued")?,
            steers: row.get("steers")?,
        },
        last_activity_at_ms: row.get("last_activity_at")?,
    })
}

impl Store {
    /// Returns one session.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn session(&self, key: SessionKey) -> Result<Option<SessionRow>, StoreError> {
        self.read("session", move |db| get(db, &key)).await
    }

    /// Agent information of the newest session of a backend that was opened.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn last_agent_info(&self, backend: &'static str) -> Result<Option<String>, StoreError> {
        const SQL: &str = "SELECT agent_info_json FROM acp_sessions WHERE backend = ?1 AND agent_info_json IS NOT NULL \
            ORDER BY ord DESC LIMIT 1";
        self.read("last_agent_info", move |db| {
            db.first(SQL, params![backend], |row| row.get("agent_info_json"))
        })
        .await
    }

    /// At most `rows_max` sessions, the one with the latest activity first; with `closed_too` also the closed
    /// ones, except deleted ones.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn sessions(&self, closed_too: bool, rows_max: u64) -> Result<Vec<SessionRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM acp_sessions WHERE {} ORDER BY last_activity_at DESC, ord DESC LIMIT ?1",
            listed(closed_too)
        );
        self.read("sessions", move |db| db.all(&sql, params![rows_max], from_row)).await
    }

    /// Key of the open session with a label.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn session_with_label(&self, label: String) -> Result<Option<SessionKey>, StoreError> {
        const SQL: &str = "SELECT session_key FROM acp_sessions WHERE label = ?1 AND state <> 'closed'";
        self.read("session_with_label", move |db| db.first(SQL, params![label], |row| row.get("session_key")))
            .await
    }

    /// Open sessions on a host, with their directories.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn sessions_on(&self, host: String) -> Result<Vec<(SessionKey, Vec<PathBuf>)>, StoreError> {
        // Names of hosts have no wildcard.
        const SQL: &str = "SELECT session_key, cwd, options_json FROM acp_sessions \
            WHERE state <> 'closed' AND options_json LIKE '%\"' || ?1 || '\"%'";
        self.read("sessions_on", move |db| {
            let mut found = Vec::new();
            db.visit(SQL, params![host], |row| {
                let options: SessionOptions = row.json("options_json")?;
                if options.is_on(&host) {
                    let all = std::iter::once(row.get("cwd")?).chain(options.additional_directories);
                    found.push((row.get("session_key")?, all.map(PathBuf::from).collect()));
                }
                Ok(ControlFlow::Continue(()))
            })?;
            Ok(found)
        })
        .await
    }

    /// Sessions that match a query, each with its number in the order of creation.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn find_sessions(&self, query: SessionQuery) -> Result<Vec<(u64, SessionRow)>, StoreError> {
        self.read("find_sessions", move |db| find(db, &query)).await
    }

    /// Sessions to recover at start: those with unfinished work, closed ones with a lease or run that has not ended
    /// included (e.g. a process that may still be alive), and at most `resting_max` others that are open. With the number
    /// of open sessions that are left out.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn found_sessions(
        &self,
        resting_max: u64,
    ) -> Result<(Vec<RecoveryCandidate>, u64), StoreError> {
        const OPEN: &str = "SELECT count(*) AS sessions FROM acp_sessions WHERE state <> 'closed'";
        self.read("found_sessions", move |db| {
            let mut found = db.all(UNFINISHED, &[], candidate_from_row)?;
            found.extend(db.all(RESTING, params![resting_max], candidate_from_row)?);
            let all: u64 = db.first(OPEN, &[], |row| row.only())?.unwrap_or(0);
            let open = found.iter().filter(|candidate| candidate.rows.state != SessionState::Closed).count();
            Ok((found, all.saturating_sub(open as u64)))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::Durability;

    /// At 100,000 sessions, a query over all of them would stop every commit for a moment.
    #[tokio::test]
    async fn counts_of_sessions_in_use_read_no_table_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Durability::Normal).unwrap();
        for sql in [count_in_use_sql(), count_in_use_of_account_sql()] {
            let sql = format!("EXPLAIN QUERY PLAN {sql}");
            let steps = store
                .read("plan", move |db| {
                    let mut statement = db.sqlite().unwrap().prepare(&sql)?;
                    let rows = statement.raw_query();
                    let steps: Result<Vec<String>, _> = rows.mapped(|row| row.get("detail")).collect();
                    Ok(steps?)
                })
                .await
                .unwrap();
            let whole: Vec<&String> = steps
                .iter()
                .filter(|step| step.starts_with("SCAN") && *step != "SCAN u")
                .filter(|step| {
                    !["acp_sessions_creating", "acp_leases_in_use", "acp_runs_unfinished"]
                        .iter()
                        .any(|partial| step.contains(&format!("INDEX {partial}")))
                })
                .collect();
            assert_eq!(whole, Vec::<&String>::new(), "{steps:?}");
            assert_eq!(steps.iter().filter(|step| step.starts_with("SCAN acp_")).count(), 3, "{steps:?}");
        }
        store.close().await;
    }

    #[tokio::test]
    async fn start_query_uses_index_of_unfinished_runs() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Durability::Normal).unwrap();
        let sql = format!("EXPLAIN QUERY PLAN {UNFINISHED}");
        let steps = store.read("plan", move |db| db.all(&sql, &[], |row| row.get::<String>("detail")));
        let steps = steps.await.unwrap();
        let of_runs: Vec<&String> = steps.iter().filter(|step| step.contains(" r ")).collect();
        assert_eq!(of_runs.len(), 3, "{steps:?}");
        for step in of_runs {
            assert!(step.contains("INDEX acp_runs_unfinished "), "{step}");
        }
        let scans: Vec<&String> = steps.iter().filter(|step| step.starts_with("SCAN acp_")).collect();
        assert!(scans.len() == 3 && scans.iter().all(|step| step.contains(" INDEX ")), "{steps:?}");
        store.close().await;
    }
}
