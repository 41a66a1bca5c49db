//! What must hold in a control plane's database: the pages hang together, the schema is this program's, and the
//! invariants of design §6 hold, as far as a database alone shows them. Only reads.

use crate::store::error::StoreError;
use crate::store::schema::{self, DB_FILE};
use rusqlite::Connection;
use serde::Serialize;
use std::path::Path;

/// The most findings of one rule that are named.
const FOUND_MAX: usize = 20;

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// A name that stays: `pages`, `schema`, `references`, `I1` …
    pub(crate) name: &'static str,
    /// What must hold.
    pub(crate) rule: &'static str,
    /// What breaks it, at most 20 rows; empty when it holds.
    pub(crate) broken: Vec<String>,
}

/// What a look at a database came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// Whether everything holds.
    pub(crate) ok: bool,
    /// Schema version of the file.
    pub(crate) schema_version: i64,
    /// Size of the database, in bytes.
    pub(crate) bytes: u64,
    /// What was looked at, in order.
    pub(crate) checks: Vec<Finding>,
}

/// Each query finds the rows that break the rule, as one text each. What only the processes or the channel can
/// show (the rest of I7 and I8) is not here.
pub(crate) const RULES: &[(&str, &str, &str)] = &[
    (
        "I1",
        "every active binding references a session that is not closed",
        "SELECT b.binding_key FROM acp_bindings b LEFT JOIN acp_sessions s USING (session_key) \
         WHERE b.status IN ('pending','active') AND (s.state IS NULL OR s.state = 'closed')",
    ),
    (
        "I1",
        "a conversation is bound to one session at most",
        "SELECT channel || ' ' || account_id || ' ' || thread_id FROM acp_bindings WHERE status = 'active' \
         GROUP BY channel, account_id, thread_id HAVING count(*) > 1",
    ),
    (
        "I2",
        "at most one turn of a session runs",
        "SELECT session_key FROM acp_runs WHERE state = 'running' AND mode = 'prompt' \
         GROUP BY session_key HAVING count(*) > 1",
    ),
    (
        "I2",
        "no run of a closed session is unfinished",
        "SELECT r.run_id FROM acp_runs r JOIN acp_sessions s USING (session_key) \
         WHERE r.state IN ('queued','running') AND s.state = 'closed'",
    ),
    (
        "I3",
        "the numbers of a session's journal have no gap",
        "SELECT session_key || ': ' || count(*) || ' rows up to ' || max(session_seq) FROM acp_events \
         GROUP BY session_key HAVING count(*) <> max(session_seq) OR min(session_seq) <> 1",
    ),
    (
        "I3",
        "the numbers of a run's journal have no gap",
        "SELECT run_id || ': ' || count(*) || ' rows up to ' || max(seq) FROM acp_events \
         WHERE run_id IS NOT NULL GROUP BY run_id HAVING count(*) <> max(seq) OR min(seq) <> 1",
    ),
    (
        "I3",
        "a run's rows are in the order of the session's",
        "SELECT a.run_id FROM acp_events a JOIN acp_events b ON b.run_id = a.run_id AND b.seq = a.seq + 1 \
         WHERE b.session_seq <= a.session_seq",
    ),
    (
        "I3",
        "a session knows its last row",
        "SELECT session_key FROM acp_sessions s WHERE last_session_seq <> \
         (SELECT coalesce(max(session_seq), 0) FROM acp_events e WHERE e.session_key = s.session_key)",
    ),
    (
        "I3",
        "a run knows its last row",
        "SELECT run_id FROM acp_runs r WHERE last_seq <> \
         (SELECT coalesce(max(seq), 0) FROM acp_events e WHERE e.run_id = r.run_id)",
    ),
    (
        "I4",
        "no run is delivered further than its journal goes",
        "SELECT run_id FROM acp_delivery_checkpoint c WHERE last_event_seq > \
         (SELECT coalesce(max(seq), 0) FROM acp_events e WHERE e.run_id = c.run_id)",
    ),
    (
        "I4",
        "no conversation is delivered further than its session's journal goes",
        "SELECT c.binding_key FROM acp_binding_checkpoint c JOIN acp_bindings b USING (binding_key) \
         WHERE c.last_session_seq > \
         (SELECT coalesce(max(session_seq), 0) FROM acp_events e WHERE e.session_key = b.session_key)",
    ),
    (
        "I5",
        "one key makes one run of a session",
        "SELECT session_key || ' ' || idempotency_key FROM acp_runs \
         GROUP BY session_key, idempotency_key HAVING count(*) > 1",
    ),
    (
        "I6",
        "a run that ended says so once in the journal, and one that did not says nothing",
        "SELECT r.run_id || ' ' || r.state FROM acp_runs r WHERE \
         (SELECT count(*) FROM acp_events e WHERE e.run_id = r.run_id AND e.kind IN ('done','error')) \
         <> (r.state IN ('completed','failed','cancelled'))",
    ),
    (
        "I7",
        "what was planned for a conversation stands in its session's journal",
        "SELECT nonce FROM acp_delivery_part p WHERE NOT EXISTS (SELECT 1 FROM acp_events e \
         WHERE e.session_key = p.session_key AND e.session_seq = p.session_seq)",
    ),
    (
        "I7",
        "nothing before a conversation's checkpoint is still on its way",
        "SELECT p.nonce FROM acp_delivery_part p JOIN acp_binding_checkpoint c USING (binding_key) \
         WHERE p.state IN ('planned','sending') AND p.session_seq < c.last_session_seq",
    ),
    (
        "I8",
        "the lease that a session names is its own and has not ended",
        "SELECT s.session_key FROM acp_sessions s LEFT JOIN acp_leases l USING (lease_id) \
         WHERE s.lease_id IS NOT NULL \
         AND (l.lease_id IS NULL OR l.usage = 'ended' OR l.session_key <> s.session_key)",
    ),
];

/// Whether the pages hang together: `quick` looks at each page, the whole check at every index too. Findings.
///
/// # Errors
/// What SQLite says, damage that stops even this check included.
pub(crate) fn pages(db: &Connection, quick: bool) -> Result<Vec<String>, StoreError> {
    let name = if quick { "quick_check" } else { "integrity_check" };
    let found = texts(db, &format!("PRAGMA {name}({FOUND_MAX})"))?;
    Ok(found.into_iter().filter(|line| line != "ok").collect())
}

/// The rules that are broken.
///
/// # Errors
/// What SQLite says.
pub(crate) fn rules(db: &Connection) -> Result<Vec<Finding>, StoreError> {
    RULES.iter().map(|(name, rule, sql)| Ok(Finding { name, rule, broken: texts(db, sql)? })).collect()
}

/// Looks at everything, on one snapshot. Damage is a finding, not an error.
///
/// # Errors
/// [`StoreError::Missing`] without a database; what opening says.
pub(crate) fn look(dir: &Path, quick: bool) -> Result<Report, StoreError> {
    let path = dir.join(DB_FILE);
    let meta = std::fs::metadata(&path).map_err(|error| StoreError::file("look at", &path, error))?;
    let mut checks = Vec::new();
    let schema_version = match look_into(dir, quick, &mut checks) {
        Ok(version) => version,
        Err(StoreError::Damaged { why }) => {
            checks.push(Finding { name: "pages", rule: "the file can be read", broken: vec![why] });
            0
        }
        Err(error) => return Err(error),
    };
    let ok = checks.iter().all(|check| check.broken.is_empty());
    Ok(Report { ok, schema_version, bytes: meta.len(), checks })
}

fn look_into(dir: &Path, quick: bool, checks: &mut Vec<Finding>) -> Result<i64, StoreError> {
    let db = schema::open_reader(dir)?;
    db.execute_batch("BEGIN")?;
    let version = schema::version(&db)?;
    schema::refuse_foreign(&db, &dir.join(DB_FILE))?;
    schema::refuse_newer(&db)?;
    if version == 0 {
        return Err(StoreError::Damaged { why: "it is empty: it has no tables".to_owned() });
    }
    checks.push(Finding {
        name: "pages",
        rule: "the pages and indexes hang together",
        broken: pages(&db, quick)?,
    });
    let schema = if schema::is_current(version) { schema::differences(&db)? } else { Vec::new() };
    checks.push(Finding {
        name: "schema",
        rule: "tables, indexes and triggers are this program's",
        broken: schema,
    });
    let references = "SELECT \"table\" || ' ' || coalesce(rowid, '') FROM pragma_foreign_key_check";
    checks.push(Finding {
        name: "references",
        rule: "every reference leads to a row",
        broken: texts(&db, references)?,
    });
    if schema::is_current(version) {
        checks.append(&mut rules(&db)?);
    }
    Ok(version)
}

fn texts(db: &Connection, sql: &str) -> Result<Vec<String>, StoreError> {
    let mut statement = db.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        if found.len() == FOUND_MAX {
            found.push("…".to_owned());
            break;
        }
        found.push(row.get(0)?);
    }
    Ok(found)
}
