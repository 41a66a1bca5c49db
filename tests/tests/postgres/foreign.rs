//! Servers that are killed and promoted, and the same statements in both engines. Each test needs a server.

use crate::schema_text;
use acp_store::db::Db;
use acp_store::schema;
use acp_testkit::postgres::Postgres;
use acp_testkit::processes::{children, is_alive};
use std::error::Error;

const SCHEMA: &str = include_str!("../../../gateway/store/src/cell/control_plane.sql");

/// Columns and triggers that PostgreSQL has and SQLite may lack: there the rowid gives the order.
const ORDER: [&str; 4] =
    ["acp_acpx_names_ord on ", "acp_completions_ord on ", "acp_acpx_names 5 ord ", "acp_completions 5 ord "];

/// Creates a database with the schema, and returns the address of the cell in it.
fn cell(server: &Postgres) -> String {
    let address = format!("{}&options=-csearch_path%3Dcell", server.create_database("plane"));
    server.query(&address, &format!("BEGIN; CREATE SCHEMA cell; {SCHEMA} COMMIT")).unwrap();
    address
}

fn sqlite(name: &str) -> Db {
    let mut db = schema::open_in_memory(name).unwrap();
    schema::migrate(&mut db).unwrap();
    db
}

#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn server_keeps_rows_through_kills_and_standby_has_them_when_promoted() {
    let Some(mut first) = Postgres::start() else { return };
    let address = first.create_database("kept");
    first.query(&address, "CREATE TABLE t (a BIGINT); INSERT INTO t VALUES (1)").unwrap();
    let processes: Vec<i32> = first.pid().into_iter().chain(children(first.pid().unwrap())).collect();
    assert!(processes.len() > 3, "a server has several processes: {processes:?}");
    first.kill();
    assert_eq!(processes.iter().find(|pid| is_alive(**pid)), None);
    first.query(&address, "SELECT 1").unwrap_err();
    first.restart();
    first.restart();
    first.query(&address, "INSERT INTO t VALUES (2)").unwrap();

    let mut second = first.standby();
    first.query(&address, "INSERT INTO t VALUES (3)").unwrap();
    let of_second = second.address_of("kept");
    let refused = second.query(&of_second, "INSERT INTO t VALUES (4)").unwrap_err();
    assert!(refused.contains("read-only"), "{refused}");
    first.kill();
    second.promote();
    assert_eq!(second.query(&of_second, "INSERT INTO t VALUES (4); SELECT sum(a) FROM t").unwrap(), "10");

    let dirs = [first.dir().to_owned(), second.dir().to_owned()];
    let processes: Vec<i32> = second.pid().into_iter().chain(children(second.pid().unwrap())).collect();
    drop((first, second));
    assert_eq!(processes.iter().find(|pid| is_alive(**pid)), None);
    assert!(dirs.iter().all(|dir| !dir.exists()), "a directory is left: {dirs:?}");
}

#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn both_engines_have_the_same_tables_indexes_keys_and_checks() {
    let Some(server) = Postgres::start() else { return };
    let (sqlite, postgres) =
        (schema_text::of_sqlite(&sqlite("schema")), schema_text::of_postgres(&server, &cell(&server)));
    assert!(sqlite.len() > 300, "the schema has many parts: {sqlite:#?}");
    let differ = sqlite.symmetric_difference(&postgres);
    let differ: Vec<&String> =
        differ.filter(|line| !ORDER.iter().any(|known| line.contains(known))).collect();
    assert!(differ.is_empty(), "in one engine only: {differ:#?}");
}

#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn functions_give_what_they_give_in_sqlite() {
    const EXPRESSIONS: [&str; 38] = [
        "max(1, 2)",
        "max(2, 1)",
        "max(3, 3)",
        "max(1, NULL)",
        "max(NULL, 2)",
        "min(1, 2)",
        "min(2, 1)",
        "min(9223372036854775807, -1)",
        "min(1, NULL)",
        "min(NULL, 2)",
        "instr('abc', 'c')",
        "instr('abc', '')",
        "instr('', 'a')",
        "instr('äb', 'b')",
        "instr('abc', 'C')",
        "instr(NULL, 'a')",
        "instr('a', NULL)",
        "json_extract('{\"a\":\"x\"}', '$.a')",
        "json_extract('{\"a\":\"x\\\"\\\\y\\n\\u00e4\\ud83d\\ude00\"}', '$.a')",
        "json_extract('{\"a\":\"\\\\u0000\"}', '$.a')",
        "json_extract('{\"a\":\"\\u0000\",\"b\":\"y\"}', '$.b')",
        "json_extract('{\"a\":12345678901}', '$.a')",
        "json_extract('{\"a\":-1.5}', '$.a')",
        "json_extract('{\"a\":true,\"b\":false}', '$.a')",
        "json_extract('{\"a\":true,\"b\":false}', '$.b')",
        "json_extract('{\"a\":null}', '$.a')",
        "json_extract('{\"a\":{\"b\":{\"c\":7}}}', '$.a.b.c')",
        "json_extract('{\"a\":[1,2]}', '$.a')",
        "json_extract('{\"a\":1}', '$.a.b')",
        "json_extract('{\"a\":1}', '$.b')",
        "json_extract('[1]', '$.a')",
        "json_extract(NULL, '$.a')",
        "json_set('{}', '$.a', 1)",
        "json_set('{\"b\": [1,2], \"a\":{\"c\":1.50}}', '$.b', 3)",
        "json_set('{\"b\":[1,2],\"c\":\"\\n\"}', '$.a', CAST('x\"y' AS TEXT))",
        "json_set('{\"b\":1}', '$.a', CAST(NULL AS BIGINT))",
        "json_set(NULL, '$.a', 1)",
        "json_set('{\"a\":1,\"b\":2}', '$.a', CAST(9223372036854775807 AS BIGINT))",
    ];
    let Some(server) = Postgres::start() else { return };
    let (db, address) = (sqlite("functions"), cell(&server));
    for expression in EXPRESSIONS {
        let sql = format!("SELECT coalesce(CAST({expression} AS TEXT), 'NULL')");
        let want = db.first(&sql, &[], |row| row.only::<String>()).unwrap();
        assert_eq!(Some(server.query(&address, &sql).unwrap()), want, "{expression}");
    }
    for (expression, want) in [
        ("json_extract('{\"a\":\"x\\u0000\\u0000y\\\\u0000\"}', '$.a')", "x\u{fffd}\u{fffd}y\\u0000"),
        ("json_extract_number('{\"a\":7}', '$.a') + 1", "8"),
        ("json_extract_number('{}', '$.a') IS NULL", "t"),
    ] {
        assert_eq!(server.query(&address, &format!("SELECT {expression}")).unwrap(), want, "{expression}");
    }
    for refused in ["json_extract('{', '$.a')", "json_extract('', '$.a')"] {
        let sql = format!("SELECT {refused}");
        db.first(&sql, &[], |row| row.only::<Option<String>>()).unwrap_err();
        server.query(&address, &sql).unwrap_err();
    }
    server.query(&address, "SELECT json_set('{}', '$.a.b', 1)").unwrap_err();
}

/// Inserts with most columns the same.
const SESSION: &str = "INSERT INTO acp_sessions (backend, agent, mode, cwd, owner_session_key, gateway_instance_id, resumable, \
    options_json, created_at, updated_at, last_activity_at, session_key, state, last_session_seq) VALUES \
    ('b', 'a', 'persistent', '/', '', 'g', 1, '{}', 1, 1, 1, ";
const RUN: &str = "INSERT INTO acp_runs (mode, prompt, author, interactive, idempotency_key, last_seq, created_at, run_id, \
    session_key, state, error_json) VALUES ('prompt', 'p', 'x', 1, 'k', 1, 1, ";
const BINDING: &str = "INSERT INTO acp_bindings (channel, account_id, target_kind, bound_by, metadata_json, bound_at, \
    last_activity_at, binding_key, thread_id, session_key, status, idle_ms, max_age_ms) VALUES ('c', 'a', 'session', 'x', '{}', \
    5, 6, ";
const EVENT: &str = "INSERT INTO acp_events (kind, payload_json, created_at, session_key, session_seq, run_id, seq) \
    VALUES ('k', '{}', 1, ";
const INBOX: &str = "INSERT INTO acp_inbox (channel, account_id, text, author, context_json, state, created_at, conversation_id, \
    message_id) VALUES ('c', 'a', 't', 'x', '{}', 'received', 1, ";
const PERMISSION: &str = "INSERT INTO acp_permission (ask_json, created_at, session_key, lease_id, stdout_offset, state) \
    VALUES ('{}', 1, ";
const LEASE: &str = "INSERT INTO acp_leases (kind, spawn_json, usage, stdout_offset, next_stdin_seq, link_state, \
    session_key, lease_id) VALUES ('agent', '{}', 'open', 0, 1, 'x', ";

/// Statements in one order: a part that most have, and the rest.
const STATEMENTS: [(&str, &str); 47] = [
    (SESSION, "'s', 'idle', 3)"),
    (SESSION, "'s', 'idle', 3)"),
    (SESSION, "'t', 'lost', 3)"),
    (SESSION, "'t', 'idle', -1)"),
    (SESSION, "'t', 'idle', 0)"),
    (RUN, "'r1', 's', 'running', '{\"code\":\"E\",\"message\":\"m\"}')"),
    (RUN, "'r1', 's', 'running', '{}') ON CONFLICT (run_id) DO UPDATE SET prompt = excluded.prompt"),
    (RUN, "'r2', 's', 'running', NULL)"),
    (RUN, "'r2', 'nowhere', 'queued', NULL)"),
    (RUN, "'r2', 's', 'queued', NULL)"),
    ("UPDATE acp_runs SET state = 'cancelled' WHERE run_id = 'r2'", ""),
    ("UPDATE acp_runs SET state = 'failed' WHERE run_id = 'r2'", ""),
    ("UPDATE acp_runs SET state = 'cancelled' WHERE run_id = 'r2'", ""),
    (BINDING, "'b1', 'one', 's', 'active', 10, NULL)"),
    (BINDING, "'b2', 'one', 's', 'parked', NULL, NULL)"),
    (BINDING, "'b2', 'two', 's', 'active', 0, 20)"),
    (BINDING, "'b3', 'three', 's', 'active', NULL, NULL)"),
    (BINDING, "'b4', 'four', 's', 'active', 10, 20)"),
    (LEASE, "'s', 'l')"),
    (LEASE, "'s', 'm')"),
    (PERMISSION, "'s', 'l', 1, 'pending')"),
    (
        PERMISSION,
        "'s', 'l', 1, 'answered') ON CONFLICT (lease_id, stdout_offset) DO UPDATE SET state = excluded.state",
    ),
    (INBOX, "'one', 'm1')"),
    (INBOX, "'one', 'm1') ON CONFLICT DO NOTHING"),
    (INBOX, "'one', 'm2')"),
    ("UPDATE acp_leases SET usage = 'ended'", ""),
    ("UPDATE acp_leases SET usage = 'open'", ""),
    (EVENT, "'s', 1, NULL, NULL), ('k', '{}', 1, 's', 2, 'r1', 1), ('k', '{}', 1, 's', 3, NULL, NULL)"),
    (EVENT, "'s', 3, NULL, NULL)"),
    (EVENT, "'s', 4, 'r1', 1)"),
    (EVENT, "'s', 4, 'r1', NULL)"),
    (EVENT, "'s', 0, NULL, NULL)"),
    ("UPDATE acp_events SET kind = 'x'", ""),
    ("DELETE FROM acp_events WHERE session_seq = 1", ""),
    ("UPDATE acp_sessions SET pruned_seq = 1 WHERE session_key = 's'", ""),
    ("DELETE FROM acp_events WHERE session_seq = 1", ""),
    ("DELETE FROM acp_events WHERE session_seq = 2", ""),
    ("UPDATE acp_sessions SET pruned_seq = 0 WHERE session_key = 's'", ""),
    ("UPDATE acp_sessions SET pruned_seq = 3 WHERE session_key = 's'", ""),
    ("INSERT INTO acp_acpx_names (session_key, agent, cwd, name) VALUES ('s', 'a', '/', '')", ""),
    ("INSERT INTO acp_acpx_names (session_key, agent, cwd, name) VALUES ('t', 'a', '/', '')", ""),
    ("UPDATE acp_sessions SET state = 'closed' WHERE session_key = 's'", ""),
    ("UPDATE acp_sessions SET state = 'idle' WHERE session_key = 's'", ""),
    (BINDING, "'b5', 'five', 's', 'pending', NULL, NULL)"),
    ("UPDATE acp_bindings SET status = 'parked'", ""),
    (BINDING, "'b5', 'five', 's', 'ended', NULL, NULL)"),
    ("UPDATE acp_bindings SET status = 'ended', session_key = 't'", ""),
];

/// Rows that the statements leave, a text each.
const LEFT: [&str; 8] = [
    "SELECT session_key || ' ' || ord || ' ' || state FROM acp_sessions ORDER BY ord",
    "SELECT run_id || ' ' || ord || ' ' || state || ' ' || coalesce(error_code || error_message, '') FROM acp_runs ORDER BY ord",
    "SELECT binding_key || ' ' || ord || ' ' || status || ' ' || coalesce(expires_at, 0) || ' ' || deadline FROM acp_bindings \
     WHERE binding_key < 'b5' ORDER BY ord",
    "SELECT lease_id || ' ' || ord || ' ' || usage FROM acp_leases ORDER BY ord",
    "SELECT lease_id || ' ' || ord || ' ' || state FROM acp_permission ORDER BY ord",
    "SELECT message_id || ' ' || ord FROM acp_inbox ORDER BY ord",
    "SELECT session_key || ' ' || session_seq FROM acp_events ORDER BY event_id",
    "SELECT session_key || ' ' || is_open FROM acp_acpx_names",
];

/// Message of the engine.
fn cause(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), cause)
}

#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn same_statements_are_refused_and_leave_the_same_rows() {
    let Some(server) = Postgres::start() else { return };
    let (db, address) = (sqlite("statements"), cell(&server));
    for (start, rest) in STATEMENTS {
        let sql = format!("{start}{rest}");
        match (db.run(&sql, &[]), server.query(&address, &sql)) {
            (Ok(_), Ok(_)) => {}
            (Err(want), Err(found)) => {
                let want = cause(&want);
                let is_same = found.contains(&want) || want.contains("constraint failed");
                assert!(is_same, "{sql}: {want} / {found}");
            }
            (want, found) => panic!("{sql}: {want:?} / {found:?}"),
        }
    }
    for sql in LEFT {
        let want = db.all(sql, &[], |row| row.only::<String>()).unwrap();
        assert!(!want.is_empty(), "{sql}");
        assert_eq!(server.query(&address, sql).unwrap(), want.join("\n"), "{sql}");
    }
    // A sum has no overflow.
    server
        .query(&address, &format!("{BINDING} 'b6', 'six', 't', 'active', 9223372036854775807, NULL)"))
        .unwrap();
    let deadline = "SELECT deadline FROM acp_bindings WHERE binding_key = 'b6'";
    assert_eq!(server.query(&address, deadline).unwrap(), i64::MAX.to_string());
    // A copied row keeps its number.
    let copy = format!(
        "{} 'u', 'idle', 0)",
        SESSION.replacen(" (", " (ord, ", 1).replacen("VALUES (", "VALUES (70, ", 1)
    );
    server.query(&address, &copy).unwrap();
    assert_eq!(server.query(&address, "SELECT ord FROM acp_sessions WHERE session_key = 'u'").unwrap(), "70");
}
