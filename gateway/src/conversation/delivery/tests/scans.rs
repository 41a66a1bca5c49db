//! Bindings read by a scan.

use super::*;
use acp_core::rows::Verbosity;

async fn read(scope: &mut ScanScope, store: &Store, cursors: &BindingCursors) -> Vec<String> {
    let found = scope.load_due_bindings(store, cursors).await;
    let mut names: Vec<String> =
        found.into_iter().map(|due| due.binding.conversation.conversation_id).collect();
    names.sort();
    names
}

#[tokio::test]
async fn scan_reads_bindings_of_changed_sessions_only() {
    let (_dir, store) = open();
    let keys = ["a", "b"].map(|name| SessionKey::parse(&format!("agent:demo:acp:{name}")).unwrap());
    let bound = ["a", "b"].map(conversation);
    for (key, at) in keys.iter().zip(&bound) {
        spawn(&store, session_row(key), Some(binding_row(key, at))).await;
    }
    let (mut scope, cursors) = (ScanScope::default(), BindingCursors::new());
    assert_eq!(read(&mut scope, &store, &cursors).await, ["a", "b"], "both are new");
    assert_eq!(read(&mut scope, &store, &cursors).await, [""; 0], "nothing changed");

    JournalWriter::claim(&store, &keys[0]).await.turn("x").await;
    assert_eq!(read(&mut scope, &store, &cursors).await, ["a"], "rows were journaled");

    let of = keys[1].clone();
    let binding = store.read("of", move |db| bindings::of_session(db, &of)).await.unwrap().remove(0);
    let of = binding.clone();
    store
        .write("verbosity", move |tx| bindings::set_verbosity(tx, &of, Some(Verbosity::None)))
        .await
        .unwrap();
    assert_eq!(read(&mut scope, &store, &cursors).await, ["b"], "its verbosity changed");
    for is_parked in [true, false] {
        let at = bound[1].clone();
        store.write("park", move |tx| bindings::park(tx, &at, is_parked)).await.unwrap();
        let want: &[&str] = if is_parked { &[] } else { &["b"] };
        assert_eq!(read(&mut scope, &store, &cursors).await, want, "parked: {is_parked}");
    }

    let id = binding.binding_id;
    store.write("end", move |tx| bindings::end(tx, id, "test")).await.unwrap();
    let known = BindingCursors::from([(id, BindingCursor::default())]);
    assert_eq!(
        read(&mut scope, &store, &known).await,
        ["b"],
        "ended with a cursor: it may have pending rows"
    );
    scope.begin_round();
    assert_eq!(read(&mut scope, &store, &cursors).await, ["a"], "all that are active");
}

/// With 1,000,000 conversations, one read of all of them would stop delivery for seconds.
#[tokio::test]
async fn round_reads_a_page_at_a_time_and_then_what_it_has_missed() {
    const COUNT: u64 = 2 * ROUND_BINDINGS_MAX + 1;
    let (_dir, store) = open();
    let key = SessionKey::parse("agent:demo:acp:1").unwrap();
    spawn(&store, session_row(&key), None).await;
    let rows: Vec<_> = (0..COUNT).map(|n| binding_row(&key, &conversation(&n.to_string()))).collect();
    let ended = rows[0].binding_id;
    store.write("bind", move |tx| rows.iter().try_for_each(|row| bindings::bind(tx, row))).await.unwrap();
    store.write("end", move |tx| bindings::end(tx, ended, "test")).await.unwrap();
    let _ = store.take_changed();
    let (mut scope, mut cursors) = (ScanScope::default(), BindingCursors::new());
    let _ = cursors.insert(ended, BindingCursor::default());
    scope.begin_round();
    let mut pages = Vec::new();
    loop {
        let found = scope.load_due_bindings(&store, &cursors).await;
        pages.push(found.len() as u64);
        for due in found {
            cursors.entry(due.binding.binding_id).or_default().round = scope.round;
        }
        if !scope.goes_on {
            break;
        }
    }
    assert_eq!(pages, [ROUND_BINDINGS_MAX, ROUND_BINDINGS_MAX, 0, 1]);
}

#[tokio::test]
async fn failed_scan_is_repeated_over_all_bindings() {
    let (_dir, store) = open();
    let key = SessionKey::parse("agent:demo:acp:1").unwrap();
    spawn(&store, session_row(&key), Some(binding_row(&key, &conversation("c")))).await;
    store
        .write("break", |tx| {
            Ok(tx.sqlite().unwrap().execute_batch("ALTER TABLE acp_bindings RENAME TO broken")?)
        })
        .await
        .unwrap();
    let (mut scope, cursors) = (ScanScope::default(), BindingCursors::new());
    assert_eq!(read(&mut scope, &store, &cursors).await, [""; 0]);
    store
        .write("repair", |tx| {
            Ok(tx.sqlite().unwrap().execute_batch("ALTER TABLE broken RENAME TO acp_bindings")?)
        })
        .await
        .unwrap();
    assert_eq!(read(&mut scope, &store, &cursors).await, ["c"]);
}
