//! Queries over all sessions.

use super::fixtures::*;
use crate::{SpawnTx, bindings, delivery, gauges, sessions, timeouts};
use acp_core::event::EventKind;
use acp_core::principal::Principal;
use acp_core::rows::{BindingStatus, SessionQuery, SessionRow};
use acp_core::run::RunState;
use acp_core::session::SessionState;
use acp_core::timeouts::Timeouts;
use acp_core::writes::Write;

fn query() -> SessionQuery {
    SessionQuery { limit: 10, ..SessionQuery::default() }
}

#[tokio::test]
async fn sessions_are_filtered_and_paged_in_creation_order() {
    let (_dir, store) = open();
    let row = |name: &str, cwd: &str, state, last_activity_at_ms| SessionRow {
        cwd: cwd.to_owned(),
        state,
        last_activity_at_ms,
        ..session(name)
    };
    let rows = [
        row("one", "/tmp/Project", SessionState::Idle, 3),
        row("two", "/tmp", SessionState::Running, 2),
        row("three", "/tmp", SessionState::Closed, 1),
    ];
    store.write("rows", move |tx| rows.iter().try_for_each(|row| sessions::insert(tx, row))).await.unwrap();
    let text = |text: &str| Some(text.to_owned());
    let agents = |patterns: &[&str]| {
        let agents = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        Some(Principal { agents, ..Principal::of_local_user("ann".to_owned()) })
    };
    let from_start = Some(u64::MAX);
    for (query, want) in [
        (query(), vec!["one", "two"]),
        (SessionQuery { closed_too: true, before: from_start, ..query() }, vec!["three", "two", "one"]),
        (SessionQuery { before: from_start, limit: 1, ..query() }, vec!["two"]),
        (SessionQuery { state: Some(SessionState::Running), ..query() }, vec!["two"]),
        (SessionQuery { state: Some(SessionState::Closed), ..query() }, vec!["three"]),
        (SessionQuery { agent: acp_shared::ids::AgentName::parse("none").ok(), ..query() }, vec![]),
        (
            SessionQuery { agent: acp_shared::ids::AgentName::parse("demo").ok(), ..query() },
            vec!["one", "two"],
        ),
        (SessionQuery { seen_by: agents(&["none", "DEM?"]), limit: 1, ..query() }, vec!["one"]),
        (SessionQuery { seen_by: agents(&["none"]), ..query() }, vec![]),
        (SessionQuery { text: text("PROJECT"), ..query() }, vec!["one"]),
        (SessionQuery { text: text("label of t"), ..query() }, vec!["two"]),
        (SessionQuery { idle_since_ms: Some(2), ..query() }, vec!["two"]),
        (SessionQuery { idle_since_ms: Some(u64::MAX), ..query() }, vec!["one", "two"]),
        (SessionQuery { text: text("%"), ..query() }, vec![]),
        (SessionQuery { text: text(""), ..query() }, vec!["one", "two"]),
    ] {
        let found = store.find_sessions(query.clone()).await.unwrap();
        let keys: Vec<&str> = found.iter().map(|(_, row)| row.session_key.as_str()).collect();
        assert_eq!(keys, want, "{query:?}");
    }
    let (ord, _) =
        store.find_sessions(SessionQuery { before: from_start, ..query() }).await.unwrap().remove(0);
    let next = store.find_sessions(SessionQuery { before: Some(ord), ..query() }).await.unwrap();
    assert_eq!(next[0].1.session_key, key("one"));
    store.close().await;
}

#[tokio::test]
async fn events_of_all_sessions_are_in_commit_order() {
    let (_dir, store) = open();
    for name in ["a", "b"] {
        let row = session(name);
        store.write("row", move |tx| sessions::insert(tx, &row)).await.unwrap();
    }
    for (name, session_seq, kind) in [
        ("a", 1, EventKind::Status),
        ("b", 1, EventKind::Done),
        ("a", 2, EventKind::Status),
        ("b", 2, EventKind::Permission),
    ] {
        let event = Write::Event { session_seq, run: None, kind, payload: "{}".to_owned(), extra: None };
        let apply =
            move |tx: &crate::Tx<'_>| crate::tx::commit::apply(tx, &key(name), session_seq - 1, &[event]);
        store.write("event", apply).await.unwrap();
    }
    let order = |rows: Vec<(u64, acp_core::event::EventRow)>| {
        rows.into_iter()
            .map(|(id, row)| (id, row.session_key.to_string(), row.session_seq))
            .collect::<Vec<_>>()
    };
    let row = |id: u64, key: &str, seq: u64| (id, key.to_owned(), seq);
    let found = order(store.all_events_after(1, 0, 10, usize::MAX).await.unwrap());
    assert_eq!(found, [row(2, "b", 1), row(3, "a", 2), row(4, "b", 2)]);
    assert_eq!(order(store.all_events_after(0, 0, 10, 1).await.unwrap()), [row(1, "a", 1)]);
    assert_eq!(store.event_bounds().await.unwrap().last, 4);
    let kinds = vec![EventKind::Done, EventKind::Permission];
    for (after, rows_max, read_to, want) in
        [(0, 10, 2, Some("b")), (2, 10, 4, Some("b")), (2, 1, 3, None), (4, 10, 4, None)]
    {
        let found = store.next_webhook_event(after, kinds.clone(), rows_max).await.unwrap();
        let session = found.event.map(|row| row.session_key.to_string());
        assert_eq!((found.read_to, session.as_deref()), (read_to, want), "{after} {rows_max}");
    }
    store.close().await;
}

async fn plan(store: &crate::Store, sql: String) -> Vec<String> {
    let read = store.read("plan", move |db| {
        let mut statement = db.sqlite().unwrap().prepare(&format!("EXPLAIN QUERY PLAN {sql}"))?;
        let steps: Result<Vec<String>, _> = statement.raw_query().mapped(|row| row.get("detail")).collect();
        Ok(steps?)
    });
    read.await.unwrap()
}

/// These run at every check, prompt or list. One that reads or sorts all sessions stops everything at 1,000,000.
#[tokio::test]
async fn repeated_queries_read_an_index_in_its_order() {
    let (_dir, store) = open();
    let open_sessions = "SCAN acp_sessions USING INDEX acp_sessions_open";
    let by_number = "SEARCH acp_sessions USING INDEX acp_sessions_ord (ord<?)";
    for (sql, want) in [
        (timeouts::OF_BINDINGS.to_owned(), "SCAN b USING INDEX acp_bindings_deadline"),
        (timeouts::OF_SESSIONS.to_owned(), "SCAN s USING INDEX acp_sessions_open"),
        (delivery::page_sql(), "SEARCH b USING INDEX acp_bindings_living (status=? AND ord>?)"),
        (
            delivery::SAME_TEXT.to_owned(),
            "SEARCH b USING INDEX acp_bindings_of_conversation (channel=? AND account_id=? AND thread_id=?)",
        ),
        (bindings::pending_sql(), "SEARCH acp_bindings USING INDEX acp_bindings_living (status=?)"),
        (sessions::find_sql(false, false), open_sessions),
        (sessions::find_sql(false, true), by_number),
        (sessions::find_sql(true, true), by_number),
        (
            sessions::CONTINUED.to_owned(),
            "SEARCH acp_sessions USING INDEX acp_sessions_continued (agent_session_id=?)",
        ),
        (gauges::BY_STATE.to_owned(), "SCAN acp_sessions USING COVERING INDEX acp_sessions_open"),
        (gauges::RUNS_QUEUED.to_owned(), "SCAN acp_runs USING INDEX acp_runs_unfinished"),
        (gauges::PARTS_WAITING.to_owned(), "SCAN acp_delivery_part USING INDEX acp_delivery_part_pending"),
        (
            gauges::RUNNING_OF_SESSION.to_owned(),
            "SEARCH acp_runs USING INDEX acp_runs_one_running (session_key=?)",
        ),
        (
            gauges::QUEUED_OF_SESSION.to_owned(),
            "SEARCH acp_runs USING INDEX acp_runs_unfinished (session_key=?)",
        ),
    ] {
        let steps = plan(&store, sql.clone()).await;
        assert_eq!(steps[0], want, "{sql}");
        if sql == delivery::SAME_TEXT {
            let parts = "SEARCH p USING INDEX acp_delivery_part_said (print=? AND binding_key=?)";
            assert_eq!(steps[1..], [parts], "{sql}");
        }
        for step in &steps[1..] {
            // Rows with the same time of activity are sorted by their number, and the few states are grouped.
            let is_bounded = step.starts_with("SEARCH") || step.starts_with("CORRELATED");
            let is_small_sort = step.contains("LAST TERM OF ORDER BY") || step.contains("FOR GROUP BY");
            assert!(is_bounded || is_small_sort, "{step}: {sql}");
        }
    }
    store.close().await;
}

/// Bindings in the order of their timeouts: those that are due, and the next one.
#[tokio::test]
async fn check_of_timeouts_ends_at_the_first_that_is_not_due() {
    let (_dir, store) = open();
    for n in 1..=5_u64 {
        let row = SessionRow {
            state: SessionState::Idle,
            last_activity_at_ms: 100 * n,
            ..session(&format!("s{n}"))
        };
        let mut bound = binding(&row.session_key, &n.to_string(), BindingStatus::Active);
        (bound.idle_ms, bound.max_age_ms) = if n == 5 { (Some(0), Some(0)) } else { (Some(10 * n), None) };
        bound.last_activity_at_ms = 0;
        store.spawn_session(SpawnTx { binding: Some(bound), ..spawn_tx(row) }).await.unwrap();
    }
    let at_work = run(&key("s1"), RunState::Queued);
    store.write("run", move |tx| crate::runs::put(tx, &at_work)).await.unwrap();
    let none = Timeouts::default();
    let of_session = Timeouts { session_ms: 1_000, ..none };
    for (windows, now_ms, want) in [
        (none, 5, vec!["s2"]),
        (none, 20, vec!["s2", "s3"]),
        (none, 1_000, vec!["s2", "s3", "s4"]),
        (of_session, 5, vec!["s2"]),
        (of_session, 1_000, vec!["s2", "s3", "s4"]),
        (of_session, 1_450, vec!["s2", "s3", "s4", "s5"]),
    ] {
        let found = store.expiring_sessions(windows, now_ms).await.unwrap();
        let keys: Vec<&str> = found.iter().map(|found| found.session_key.as_str()).collect();
        assert_eq!(keys, want, "{windows:?} at {now_ms}");
    }
    store.close().await;
}

/// A largest possible timeout neither overflows nor is refused.
#[tokio::test]
async fn longest_timeout_is_later_than_any_time() {
    let (_dir, store) = open();
    let row = SessionRow { state: SessionState::Idle, ..session("s") };
    let mut bound = binding(&row.session_key, "room", BindingStatus::Active);
    bound.idle_ms = Some(i64::MAX.unsigned_abs());
    store.spawn_session(SpawnTx { binding: Some(bound), ..spawn_tx(row) }).await.unwrap();
    let found = store.expiring_sessions(Timeouts::default(), 1_000).await.unwrap();
    assert_eq!(found.len(), 1, "the next timeout");
    store.close().await;
}
