//! Invariants of design §6 over a gateway's database, whatever happened to the gateway before.

use rusqlite::Connection;

/// Checks everything that the database alone can show.
///
/// # Panics
/// With the name of the invariant and the rows that break it.
pub fn check(db: &Connection) {
    for (name, sql) in RULES {
        let broken = rows(db, sql);
        assert!(broken.is_empty(), "{name}: {broken:#?}");
    }
}

/// Each query finds the rows that break the rule.
const RULES: [(&str, &str); 9] = [
    (
        "I1 every active binding references a session that is not closed",
        "SELECT b.binding_key FROM acp_bindings b JOIN acp_sessions s USING (session_key)
         WHERE b.status IN ('pending', 'active') AND s.state = 'closed'",
    ),
    (
        "I2 at most one running run per session",
        "SELECT session_key FROM acp_runs WHERE state = 'running' AND mode = 'prompt'
         GROUP BY session_key HAVING count(*) > 1",
    ),
    (
        "I3 session_seq has no gap",
        "SELECT session_key || ': ' || count(*) || ' rows up to ' || max(session_seq) FROM acp_events
         GROUP BY session_key HAVING count(*) <> max(session_seq) OR min(session_seq) <> 1",
    ),
    (
        "I3 seq has no gap",
        "SELECT run_id || ': ' || count(*) || ' rows up to ' || max(seq) FROM acp_events
         WHERE run_id IS NOT NULL GROUP BY run_id HAVING count(*) <> max(seq) OR min(seq) <> 1",
    ),
    (
        "I3 a session knows its last row",
        "SELECT session_key FROM acp_sessions s WHERE last_session_seq <>
         (SELECT coalesce(max(session_seq), 0) FROM acp_events e WHERE e.session_key = s.session_key)",
    ),
    (
        "I3 a run's rows are in the order of the session's",
        "SELECT a.run_id FROM acp_events a JOIN acp_events b ON b.run_id = a.run_id AND b.seq = a.seq + 1
         WHERE b.session_seq <= a.session_seq",
    ),
    (
        "I4 the checkpoint never passes the last committed event",
        "SELECT run_id FROM acp_delivery_checkpoint c WHERE last_event_seq >
         (SELECT coalesce(max(seq), 0) FROM acp_events e WHERE e.run_id = c.run_id)",
    ),
    (
        "I5 one key never makes two runs of a session",
        "SELECT session_key || ' ' || idempotency_key FROM acp_runs
         GROUP BY session_key, idempotency_key HAVING count(*) > 1",
    ),
    (
        "a run that ended says so once in the journal, and one that did not says nothing",
        "SELECT r.run_id || ' ' || r.state FROM acp_runs r WHERE
         (SELECT count(*) FROM acp_events e WHERE e.run_id = r.run_id AND e.kind IN ('done', 'error'))
         <> (r.state IN ('completed', 'failed', 'cancelled'))",
    ),
];

fn rows(db: &Connection, sql: &str) -> Vec<String> {
    let mut statement = db.prepare(sql).unwrap_or_else(|e| panic!("{e}: {sql}"));
    let found =
        statement.query_map([], |row| row.get::<_, String>(0)).unwrap_or_else(|e| panic!("{e}: {sql}"));
    found.map(|row| row.unwrap_or_else(|e| panic!("{e}: {sql}"))).collect()
}
