//! Queries over all sessions.

use super::fixtures::*;
use crate::sessions;
use acp_core::event::EventKind;
use acp_core::principal::Principal;
use acp_core::rows::{SessionQuery, SessionRow};
use acp_core::session::SessionState;
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
