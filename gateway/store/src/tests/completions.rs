//! Owners of sessions, and completions of spawned sessions.

use super::fixtures::{binding, insert_session, key, open, run, session, spawn_tx};
use crate::open::{open_with, open_writer};
use crate::schema::MIGRATIONS;
use crate::{SpawnTx, Store, StoreError, bindings, completions, sessions};
use acp_core::binding::agent_spawn_metadata;
use acp_core::config::Durability;
use acp_core::rows::{BindingRow, BindingStatus, CompletionState, RunRow, SessionRow};
use acp_core::run::RunState;
use acp_core::session::SessionState;
use acp_core::writes::Write;
use acp_shared::ids::RunId;

/// Session, owner, spawner and parent in a database of schema 8; the owner after the upgrade.
type OldRow = (&'static str, &'static str, Option<&'static str>, Option<&'static str>, Option<&'static str>);

const OLD_ROWS: [OldRow; 12] = [
    ("root", "root", None, None, Some("root")),
    ("child", "root", Some("root"), Some("root"), Some("root")),
    ("grandchild", "child", Some("child"), Some("child"), Some("root")),
    ("deepest", "grandchild", Some("grandchild"), Some("grandchild"), Some("root")),
    ("by-owner", "child", None, None, Some("root")),
    ("by-parent", "root", None, Some("child"), Some("root")),
    ("orphan", "gone", Some("gone"), Some("gone"), None),
    ("below-orphan", "orphan", Some("orphan"), Some("orphan"), None),
    ("one", "two", Some("two"), Some("two"), None),
    ("two", "one", Some("one"), Some("one"), None),
    ("below-cycle", "one", Some("one"), Some("one"), None),
    ("own-child", "own-child", Some("own-child"), None, None),
];

#[test]
fn owner_of_an_older_database_becomes_the_root_or_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let db = open_with(dir.path(), Durability::Full, &MIGRATIONS[..8]).unwrap();
    let sql = "INSERT INTO acp_sessions (session_key, backend, agent, mode, cwd, state, owner_session_key, spawned_by, \
        parent_session_key, gateway_instance_id, resumable, options_json, last_session_seq, created_at, updated_at, \
        last_activity_at) VALUES (?1, 'direct', 'demo', 'persistent', '/', 'idle', ?2, ?3, ?4, \
        '01890a5d-ac96-774b-bcce-b302099a8057', 0, '{\"permission\":\"ask\",\"non_interactive\":\"deny\",\"mode_id\":null,\
        \"config\":[]}', 0, 0, 0, 0)";
    // Children before their parents, too.
    for (name, owner, spawner, parent, _) in OLD_ROWS.iter().rev() {
        db.sqlite().unwrap().execute(sql, (name, owner, spawner, parent)).unwrap();
    }
    drop(db);
    let db = open_writer(dir.path(), Durability::Full).unwrap();
    assert_eq!(crate::schema::differences(&db).unwrap(), Vec::<String>::new());
    // Doing it again, as an import does, changes nothing.
    for _ in 0..2 {
        for (name, _, spawner, _, root) in OLD_ROWS {
            let row = sessions::get(&db, &key(name)).unwrap().unwrap();
            assert_eq!(row.owner_session_key, root.map(key), "{name}");
            assert_eq!(row.spawned_by, spawner.map(key), "{name}");
        }
        sessions::find_owners(&db).unwrap();
    }
}

/// Spawns a session below `parent` with a first run, and returns both.
async fn spawned(store: &Store, name: &str, bound: Option<BindingStatus>) -> (SessionRow, RunRow) {
    let bound = bound.map(|status| (status, "{}".to_owned()));
    spawned_with(store, name, bound).await
}

/// As [`spawned`], with the status and metadata of its binding.
async fn spawned_with(
    store: &Store,
    name: &str,
    bound: Option<(BindingStatus, String)>,
) -> (SessionRow, RunRow) {
    let row = SessionRow {
        owner_session_key: Some(key("parent")),
        spawned_by: Some(key("parent")),
        parent_session_key: Some(key("parent")),
        state: SessionState::Idle,
        ..session(name)
    };
    let first = run(&row.session_key, RunState::Queued);
    let binding =
        bound.map(|(status, metadata)| BindingRow { metadata, ..binding(&row.session_key, name, status) });
    store
        .spawn_session(SpawnTx { run: Some(first.clone()), binding, ..spawn_tx(row.clone()) })
        .await
        .unwrap();
    (row, first)
}

async fn commit(store: &Store, session: &SessionRow, writes: Vec<Write>) -> Result<(), StoreError> {
    let (_, fence) = store.claim(session.session_key.clone()).await.unwrap();
    store.commit(fence, writes).await
}

async fn state(store: &Store, run: RunId) -> Option<CompletionState> {
    store.read("completion", move |db| completions::state(db, run)).await.unwrap()
}

fn ended(run: &RunRow) -> Write {
    Write::Run(Box::new(RunRow { state: RunState::Cancelled, ended_at_ms: Some(50), ..run.clone() }))
}

#[tokio::test]
async fn completion_is_due_once_the_run_ends_and_is_delivered_once() {
    let (_dir, store) = open();
    let parent = insert_session(&store, "parent").await;
    let (child, first) = spawned(&store, "child", None).await;
    assert_eq!(state(&store, first.run_id).await, Some(CompletionState::Awaited));
    // Only the first run of a spawned session has a completion.
    let later = run(&child.session_key, RunState::Queued);
    commit(&store, &child, vec![Write::Run(Box::new(later.clone()))]).await.unwrap();
    commit(&store, &child, vec![ended(&later)]).await.unwrap();
    assert_eq!(state(&store, later.run_id).await, None);
    assert_eq!(store.due_completions(9).await.unwrap(), []);
    commit(&store, &child, vec![ended(&first)]).await.unwrap();
    let due = store.due_completions(9).await.unwrap();
    let keys =
        |due: &completions::DueCompletion| (due.requester.clone().unwrap().session_key, due.run.run_id);
    assert_eq!(due.iter().map(keys).collect::<Vec<_>>(), [(parent.session_key.clone(), first.run_id)]);

    // A requester at work gets it afterwards.
    let busy = run(&parent.session_key, RunState::Queued);
    commit(&store, &parent, vec![Write::Run(Box::new(busy.clone()))]).await.unwrap();
    assert_eq!(store.due_completions(9).await.unwrap(), []);
    commit(&store, &parent, vec![ended(&busy)]).await.unwrap();
    assert_eq!(store.due_completions(9).await.unwrap().len(), 1);

    let told = run(&parent.session_key, RunState::Queued);
    let deliver = || vec![Write::Completion { run_id: first.run_id }, Write::Run(Box::new(told.clone()))];
    commit(&store, &parent, deliver()).await.unwrap();
    assert_eq!(state(&store, first.run_id).await, Some(CompletionState::Delivered));
    let again = RunRow { run_id: RunId::mint(), ..told.clone() };
    let writes = vec![Write::Completion { run_id: first.run_id }, Write::Run(Box::new(again.clone()))];
    let refused = commit(&store, &parent, writes).await;
    assert!(matches!(refused, Err(StoreError::UsedMeanwhile)), "{refused:?}");
    assert_eq!(store.run(again.run_id).await.unwrap(), None, "the prompt is not accepted either");
    assert!(!store.take_completion(first.run_id, busy.run_id).await.unwrap());
}

#[tokio::test]
async fn completion_of_a_bound_session_goes_to_its_conversation() {
    let (_dir, store) = open();
    insert_session(&store, "parent").await;
    for (name, status, want) in [
        ("bound", Some(BindingStatus::Active), CompletionState::Bound),
        ("pending", Some(BindingStatus::Pending), CompletionState::Bound),
        ("unbound", None, CompletionState::Due),
    ] {
        let (child, first) = spawned(&store, name, status).await;
        // A one-shot session is closed, with its bindings, in the transaction that ends its run.
        let closed = SessionRow { state: SessionState::Closed, ..child.clone() };
        let reason = "the run of the one-shot session has ended".to_owned();
        let writes = vec![Write::Session(Box::new(closed)), ended(&first), Write::EndBindings { reason }];
        commit(&store, &child, writes).await.unwrap();
        assert_eq!(state(&store, first.run_id).await, Some(want), "{name}");
    }
}

/// The conversation of the spawn itself does not take the completion from the requester, unless a person binds another one.
#[tokio::test]
async fn completion_of_a_session_with_a_thread_of_its_spawn_goes_to_its_requester() {
    let (_dir, store) = open();
    insert_session(&store, "parent").await;
    for (name, status, is_focused, want) in [
        ("active", BindingStatus::Active, false, CompletionState::Due),
        ("pending", BindingStatus::Pending, false, CompletionState::Due),
        ("focused", BindingStatus::Active, true, CompletionState::Bound),
    ] {
        let (child, first) = spawned_with(&store, name, Some((status, agent_spawn_metadata()))).await;
        if is_focused {
            let other = binding(&child.session_key, "elsewhere", BindingStatus::Active);
            store.write("focus", move |tx| bindings::bind(tx, &other)).await.unwrap();
        }
        commit(&store, &child, vec![ended(&first)]).await.unwrap();
        assert_eq!(state(&store, first.run_id).await, Some(want), "{name}");
    }
}

#[tokio::test]
async fn completion_that_was_taken_or_dropped_is_not_delivered() {
    let (_dir, store) = open();
    let parent = insert_session(&store, "parent").await;
    let (child, first) = spawned(&store, "early", None).await;
    commit(&store, &child, vec![ended(&first)]).await.unwrap();
    let turn = RunRow { started_at_ms: Some(1), ..run(&parent.session_key, RunState::Running) };
    let of_parent = |state| Write::Session(Box::new(SessionRow { state, ..parent.clone() }));
    let start = vec![of_parent(SessionState::Cancelling), Write::Run(Box::new(turn.clone()))];
    commit(&store, &parent, start).await.unwrap();
    for waits_in in [turn.run_id, RunId::mint()] {
        assert!(!store.take_completion(first.run_id, waits_in).await.unwrap(), "nobody reads it there");
    }
    commit(&store, &parent, vec![of_parent(SessionState::Running)]).await.unwrap();
    for _ in 0..2 {
        let taken = store.take_completion(first.run_id, turn.run_id).await.unwrap();
        assert!(taken, "a repeated call gets the answer again");
    }
    commit(&store, &parent, vec![ended(&turn), of_parent(SessionState::Idle)]).await.unwrap();
    let (child, second) = spawned(&store, "late", None).await;
    commit(&store, &child, vec![ended(&second)]).await.unwrap();
    assert!(store.drop_completion(second.run_id, "requester-closed").await.unwrap());
    assert_eq!(store.due_completions(9).await.unwrap(), []);
    let states = [state(&store, first.run_id).await, state(&store, second.run_id).await];
    assert_eq!(states, [Some(CompletionState::Taken), Some(CompletionState::Dropped)]);
    let without = store.take_completion(RunId::mint(), turn.run_id).await.unwrap();
    assert!(without, "a run without a completion");
}
