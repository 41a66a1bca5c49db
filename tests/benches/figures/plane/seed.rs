//! Creates a control plane of any size from the database of a real gateway. Real processes create one resting
//! session, bound to a conversation, and one whose turn ran when everything was killed; SQL copies their rows under other
//! ids.

use super::crowd::Crowd;
use acp_tests::house::GATEWAY;
use acp_tests::scrape::say;
use acp_tests::wait::{SOON, eventually, until};
use acp_tests::world::World;
use rusqlite::Connection;
use std::path::Path;

/// Conversation of the original session.
const CONVERSATION: &str = "original";

/// Size of a control plane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// Resting sessions, each bound to a conversation with everything delivered.
    pub(crate) resting: usize,
    /// Every n-th resting session had runs; the others have an empty journal.
    pub(crate) prompted_every: usize,
    /// Runs of each of these sessions.
    pub(crate) runs: usize,
    /// Chunks of each run, besides its prompt and its end.
    pub(crate) chunks: usize,
    /// Sessions with a running turn whose agent no longer exists.
    pub(crate) running: usize,
}

/// Number of rows created.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grown {
    /// Rows of `acp_sessions`.
    pub(crate) sessions: usize,
    /// Rows of `acp_events`.
    pub(crate) events: usize,
}

/// Key of a resting session, counted from 1. The first one is the most recently used.
pub(crate) fn resting(number: usize) -> String {
    format!("agent:scripted:acp:{number:032}")
}

/// The two sessions that are copied.
struct Originals {
    resting: String,
    running: String,
}

/// Creates a control plane in the gateway's state directory of this world, while no service runs.
///
/// # Panics
/// When that fails.
pub(crate) fn grow(world: &World, size: Size) -> Grown {
    let originals = originals(world, size.chunks);
    let path = world.path(GATEWAY).join("gateway.db");
    let db = open(&path);
    let grown = multiply(&db, &originals, size).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    db.close().unwrap_or_else(|(_, e)| panic!("{}: {e}", path.display()));
    grown
}

fn originals(world: &World, chunks: usize) -> Originals {
    let supervisor = world.supervisor();
    let gateway = world.gateway(GATEWAY, &supervisor.socket());
    let mut crowd = Crowd::new(&gateway.socket(), 2);
    let mut keys = crowd.spawn(&vec![world.dir("work/originals"); 2]).into_iter();
    let (Some(resting), Some(running)) = (keys.next(), keys.next()) else {
        panic!("two sessions were requested")
    };
    let _ = say(&gateway.socket(), CONVERSATION, "focus", &format!("/focus {resting}"));
    crowd.prompt(std::slice::from_ref(&resting), &format!("chunks {chunks}"), 1);
    crowd.accept(std::slice::from_ref(&running), "say working\nwait_cancel");
    let journal = world.journal(GATEWAY);
    let delivered =
        "SELECT count(*) > 0 AND min(state) = 'sent' AND max(state) = 'sent' FROM acp_delivery_part";
    until(SOON, "the conversation has the answer", || {
        journal.query_row(delivered, [], |row| row.get(0)) == Ok(Some(true))
    });
    let sql = "SELECT count(*) FROM acp_events WHERE session_key = ?1 AND kind = 'agent_message'";
    until(SOON, "the running turn has produced output", || {
        journal.query_row(sql, [&running], |row| row.get(0)) == Ok(1)
    });
    gateway.kill9();
    supervisor.kill9();
    eventually(SOON, "all processes have ended", || world.processes().is_empty().then_some(()));
    Originals { resting, running }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a database of this size cannot be made through the gateway in time"
)]
fn open(path: &Path) -> Connection {
    let db = Connection::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let set = db
        .pragma_update(None, "synchronous", "OFF")
        .and_then(|()| db.pragma_update(None, "journal_mode", "OFF"))
        .and_then(|()| db.pragma_update(None, "cache_size", -500_000))
        .and_then(|()| db.pragma_update(None, "foreign_keys", true));
    set.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    db
}

fn multiply(db: &Connection, from: &Originals, size: Size) -> rusqlite::Result<Grown> {
    db.execute_batch(&format!(
        "CREATE TEMP TABLE n AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT i FROM n; \
         CREATE TEMP TABLE r AS WITH RECURSIVE r(r) AS (SELECT 1 UNION ALL SELECT r + 1 FROM r WHERE r < {}) SELECT r FROM r; \
         CREATE TEMP TABLE j AS WITH RECURSIVE j(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM j WHERE i < {}) SELECT i FROM j; \
         BEGIN",
        size.resting, size.runs, size.running.max(1)
    ))?;
    rest(db, &from.resting, size.prompted_every)?;
    if size.running > 0 {
        run_on(db, &from.running)?;
    }
    db.execute_batch("COMMIT")?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    let count = |table: &str| -> rusqlite::Result<usize> {
        let rows: i64 = db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))?;
        Ok(usize::try_from(rows).unwrap_or(0))
    };
    Ok(Grown { sessions: count("acp_sessions")?, events: count("acp_events")? })
}

/// Copies the resting session without its lease, as after the agent's maximum age.
fn rest(db: &Connection, original: &str, prompted_every: usize) -> rusqlite::Result<()> {
    const KEY: &str = "printf('agent:scripted:acp:%032d', i)";
    const RUN: &str = "printf('%08x-%04x-7000-8000-%012x', i, r, i)";
    const BINDING: &str = "printf('%08x-bbbb-7000-8000-%012x', i, i)";
    let rows: i64 = db.query_row(
        "SELECT max(seq) FROM acp_events WHERE session_key = ?1 AND run_id IS NOT NULL",
        [original],
        |row| row.get(0),
    )?;
    let is_prompted = format!("i % {prompted_every} = 0");
    let last = format!("CASE WHEN {is_prompted} THEN {rows} * (SELECT count(*) FROM r) ELSE 0 END");
    let ours = format!("t.session_key = '{original}'");
    let session = [
        ("session_key", KEY),
        ("owner_session_key", KEY),
        ("state", "'idle'"),
        ("lease_id", "NULL"),
        ("last_session_seq", last.as_str()),
        ("last_activity_at", "t.last_activity_at - i"),
    ];
    copy(db, "acp_sessions", "n", &session, &ours, "i")?;
    let run = [("run_id", RUN), ("session_key", KEY), ("idempotency_key", RUN)];
    copy(db, "acp_runs", "n CROSS JOIN r", &run, &format!("{ours} AND {is_prompted}"), "i, r")?;
    let number = format!("(r - 1) * {rows} + t.seq");
    let event = [("session_key", KEY), ("session_seq", number.as_str()), ("run_id", RUN)];
    let of_run = format!("{ours} AND t.run_id IS NOT NULL AND {is_prompted}");
    copy(db, "acp_events", "n CROSS JOIN r", &event, &of_run, "i, r, t.seq")?;
    let bound = [
        ("binding_key", BINDING),
        ("thread_id", "printf('seeded-%d', i)"),
        ("session_key", KEY),
        ("last_activity_at", "t.last_activity_at - i"),
    ];
    copy(db, "acp_bindings", "n", &bound, &ours, "i")?;
    let sql = "SELECT binding_key FROM acp_bindings WHERE thread_id = ?1";
    let binding: String = db.query_row(sql, [CONVERSATION], |row| row.get(0))?;
    let of_binding = format!("t.binding_key = '{binding}'");
    let checkpoint = [("binding_key", BINDING), ("last_session_seq", last.as_str())];
    copy(db, "acp_binding_checkpoint", "n", &checkpoint, &of_binding, "i")?;
    let nonce = "printf('seeded-%d-%d-%d-%d', i, r, t.session_seq, t.part_no)";
    let of_row = "SELECT seq FROM acp_events AS e WHERE e.session_key = t.session_key AND e.session_seq = t.session_seq";
    let number = format!("(r - 1) * {rows} + ({of_row})");
    let part = [
        ("binding_key", BINDING),
        ("session_key", KEY),
        ("run_id", RUN),
        ("session_seq", number.as_str()),
        ("nonce", nonce),
    ];
    let sent = format!("{of_binding} AND t.run_id IS NOT NULL AND {is_prompted}");
    copy(db, "acp_delivery_part", "n CROSS JOIN r", &part, &sent, "i, r, t.part_id")?;
    let style = [("binding_key", BINDING), ("from_session_seq", "0")];
    let first = format!(
        "{of_binding} AND t.from_session_seq = (SELECT max(from_session_seq) FROM acp_binding_style)"
    );
    copy(db, "acp_binding_style", "n", &style, &first, "i")
}

/// Copies the session with the running turn.
fn run_on(db: &Connection, original: &str) -> rusqlite::Result<()> {
    const KEY: &str = "printf('agent:scripted:acp:running%025d', i)";
    const RUN: &str = "printf('%08x-eeee-7000-8000-%012x', i, i)";
    const LEASE: &str = "printf('%08x-ffff-7000-8000-%012x', i, i)";
    let find = |sql: &str| db.query_row(sql, [original], |row| row.get::<_, String>(0));
    let lease = find("SELECT lease_id FROM acp_sessions WHERE session_key = ?1")?;
    let run = find("SELECT run_id FROM acp_runs WHERE session_key = ?1")?;
    let named = |column: &str| {
        format!(
            "replace(replace(replace(t.{column}, '{original}', {KEY}), '{run}', {RUN}), '{lease}', {LEASE})"
        )
    };
    let ours = format!("t.session_key = '{original}'");
    let session = [("session_key", KEY), ("owner_session_key", KEY), ("lease_id", LEASE)];
    copy(db, "acp_sessions", "j", &session, &ours, "i")?;
    let row = [("run_id", RUN), ("session_key", KEY), ("idempotency_key", RUN)];
    copy(db, "acp_runs", "j", &row, &ours, "i")?;
    let of = named("run_id");
    copy(db, "acp_events", "j", &[("session_key", KEY), ("run_id", &of)], &ours, "i, t.session_seq")?;
    let (spawn, state) = (named("spawn_json"), named("link_state"));
    let held = [("lease_id", LEASE), ("session_key", KEY), ("spawn_json", &spawn), ("link_state", &state)];
    copy(db, "acp_leases", "j", &held, &ours, "i")?;
    let meaning = named("meaning_json");
    let sent = [("lease_id", LEASE), ("meaning_json", meaning.as_str())];
    copy(db, "acp_stdin_outbox", "j", &sent, &format!("t.lease_id = '{lease}'"), "i, t.seq")
}

/// Copies the rows of `table` that match `which`, once for each row of `times`, with some columns changed.
fn copy(
    db: &Connection,
    table: &str,
    times: &str,
    changed: &[(&str, &str)],
    which: &str,
    order: &str,
) -> rusqlite::Result<()> {
    let mut names = db.prepare(&format!("PRAGMA table_info({table})"))?;
    let names = names.query_map([], |row| row.get::<_, String>("name"))?;
    let names = names.collect::<rusqlite::Result<Vec<_>>>()?;
    // Rows of the journal and of the outbox get new numbers.
    let is_number = |name: &String| ["event_id", "part_id"].contains(&name.as_str());
    let names: Vec<String> = names.into_iter().filter(|name| !is_number(name)).collect();
    let value = |name: &String| {
        let found = changed.iter().find(|(column, _)| column == name);
        found.map_or_else(|| format!("t.{name}"), |(_, value)| (*value).to_owned())
    };
    let values: Vec<String> = names.iter().map(value).collect();
    db.execute_batch(&format!(
        "INSERT INTO {table} ({}) SELECT {} FROM {times} CROSS JOIN {table} AS t WHERE {which} ORDER BY {order}",
        names.join(", "),
        values.join(", ")
    ))
}
