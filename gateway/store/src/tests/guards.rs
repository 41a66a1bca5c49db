//! Writes that the store refuses.

use super::fixtures::{
    SESSIONS_MAX, binding, count, event, insert_session, is_sqlite, key, lease, open, outbox, permission,
    reopen, request, run, session, spawn_tx,
};
use crate::{SpawnTx, Store, StoreError};
use acp_core::event::EventKind;
use acp_core::rows::{
    BindingStatus, LeaseStatus, PermissionState, RequestState, RunMode, RunRow, SessionRow,
};
use acp_core::run::RunState;
use acp_core::session::SessionState;
use acp_core::writes::{ActorFence, SessionLimits, Write};
use acp_shared::ids::IdempotencyKey;

fn limits(sessions_max: u64) -> SessionLimits {
    SessionLimits { sessions_max, account: None }
}

fn numbering(result: Result<(), StoreError>) -> (u64, u64) {
    match result {
        Err(StoreError::Numbering { want, got, .. }) => (want, got),
        other => panic!("{other:?}"),
    }
}

fn refused(result: Result<(), StoreError>) -> &'static str {
    match result {
        Err(StoreError::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn constraint(result: Result<(), StoreError>) -> String {
    match result {
        Err(StoreError::Sqlite(error)) => error.to_string(),
        Err(StoreError::Postgres(error)) => {
            let error = error.as_db_error().unwrap();
            error.message().replace("violates unique constraint", "violates UNIQUE constraint")
        }
        other => panic!("{other:?}"),
    }
}

async fn claim_new_session(store: &Store, name: &str) -> (SessionRow, ActorFence) {
    let row = insert_session(store, name).await;
    let (_, fence) = store.claim(row.session_key.clone()).await.unwrap();
    (row, fence)
}

#[tokio::test]
async fn superseded_actor_cannot_write() {
    let (_dir, store) = open();
    let (row, old) = claim_new_session(&store, "s").await;
    let (_, new) = store.claim(row.session_key.clone()).await.unwrap();
    let refused = store.commit(old, vec![event(1, None)]).await;
    assert!(matches!(refused, Err(StoreError::Superseded { .. })), "{refused:?}");
    store.commit(new, vec![event(1, None)]).await.unwrap();
    assert_eq!(count(&store, "acp_events").await, 1);
}

#[tokio::test]
async fn writes_to_missing_session_are_refused() {
    let (_dir, store) = open();
    let fence = ActorFence { session_key: key("none"), epoch: 0 };
    assert!(matches!(store.commit(fence, vec![]).await, Err(StoreError::NoSession { .. })));
    assert!(matches!(store.claim(key("none")).await, Err(StoreError::NoSession { .. })));
    assert_eq!(store.session(key("none")).await.unwrap(), None);
}

#[tokio::test]
async fn journal_numbers_must_be_consecutive() {
    let (_dir, store) = open();
    let (row, fence) = claim_new_session(&store, "s").await;
    let first = run(&row.session_key, RunState::Running);
    let commit = async |writes| store.commit(fence.clone(), writes).await;
    commit(vec![event(1, Some((first.run_id, 1))), Write::Run(Box::new(first.clone())), event(2, None)])
        .await
        .unwrap();
    for (name, writes, want) in [
        ("a gap", vec![event(4, None)], (3, 4)),
        ("a repetition", vec![event(2, None)], (3, 2)),
        ("a gap after a valid event", vec![event(3, None), event(5, None)], (4, 5)),
        ("a gap in the run", vec![event(3, Some((first.run_id, 3)))], (2, 3)),
        ("a repetition in the run", vec![event(3, Some((first.run_id, 1)))], (2, 1)),
        (
            "a session row with another number",
            vec![event(3, None), Write::Session(Box::new(SessionRow { last_session_seq: 4, ..row.clone() }))],
            (3, 4),
        ),
        (
            "a run row with another number",
            vec![event(3, None), Write::Run(Box::new(RunRow { last_seq: 7, ..first.clone() }))],
            (1, 7),
        ),
    ] {
        assert_eq!(numbering(commit(writes).await), want, "{name}");
    }
    assert_eq!(count(&store, "acp_events").await, 2);
    assert_eq!(store.run(first.run_id).await.unwrap().unwrap().last_seq, 1);
    commit(vec![event(3, Some((first.run_id, 2)))]).await.unwrap();
    assert_eq!(store.run(first.run_id).await.unwrap().unwrap().last_seq, 2);
}

#[tokio::test]
async fn rows_of_another_session_are_refused() {
    let (_dir, store) = open();
    let (mine, fence) = claim_new_session(&store, "mine").await;
    let (other, other_fence) = claim_new_session(&store, "other").await;
    let (foreign_run, foreign) = (run(&other.session_key, RunState::Queued), lease(&other.session_key));
    let rows = vec![Write::Run(Box::new(foreign_run.clone())), Write::NewLease(Box::new(foreign.clone()))];
    store.commit(other_fence, rows).await.unwrap();
    let lease_id = foreign.lease_id;
    let usage = LeaseStatus::Ended;
    for write in [
        Write::Session(Box::new(other.clone())),
        Write::Run(Box::new(foreign_run.clone())),
        Write::Run(Box::new(RunRow { session_key: mine.session_key.clone(), ..foreign_run.clone() })),
        event(1, Some((foreign_run.run_id, 1))),
        Write::LeaseStatus { lease_id, usage },
        Write::LeaseProgress { lease_id, stdout_offset: 1, next_stdin_seq: 1, link_state: None },
        Write::Tail { lease_id, offset: 0, bytes: vec![1] },
        Write::TailClear { lease_id },
        Write::Outbox(Box::new(outbox(&foreign, 1, foreign_run.run_id))),
        Write::Written { lease_id, through_seq: 1 },
        Write::Request(Box::new(request(&foreign, 1, RequestState::Received))),
        Write::Permission(Box::new(permission(&foreign, 1, PermissionState::Pending))),
        Write::Session(Box::new(SessionRow { lease_id: Some(lease_id), ..mine.clone() })),
    ] {
        let name = format!("{write:?}");
        let result = store.commit(fence.clone(), vec![write]).await;
        assert!(matches!(result, Err(StoreError::Refused(_))), "{name}: {result:?}");
    }
}

#[tokio::test]
async fn journal_is_append_only() {
    let (_dir, store) = open();
    let (row, fence) = claim_new_session(&store, "s").await;
    store.commit(fence, vec![event(1, None)]).await.unwrap();
    let replace = "INSERT OR REPLACE INTO acp_events (event_id, session_key, session_seq, kind, payload_json, created_at) \
         VALUES (1, 's', 1, 'gap', '{}', 0)";
    for sql in ["UPDATE acp_events SET payload_json = '{}'", "DELETE FROM acp_events"]
        .into_iter()
        .chain(is_sqlite().then_some(replace))
    {
        let result = store.write("tamper", move |tx| tx.run_all(sql)).await;
        assert!(constraint(result).contains("append-only"), "{sql}");
    }
    let events = store.events_after(row.session_key, None, 10, 1_000).await.unwrap().rows;
    assert_eq!(events[0].kind, EventKind::AgentMessage);
}

#[tokio::test]
async fn one_prompt_runs_at_a_time_with_concurrent_steers() {
    let (_dir, store) = open();
    let (row, fence) = claim_new_session(&store, "s").await;
    let commit =
        async |row: &RunRow| store.commit(fence.clone(), vec![Write::Run(Box::new(row.clone()))]).await;
    let first = run(&row.session_key, RunState::Running);
    commit(&first).await.unwrap();
    commit(&RunRow { mode: RunMode::Steer, ..run(&row.session_key, RunState::Running) }).await.unwrap();
    let second = run(&row.session_key, RunState::Running);
    assert!(constraint(commit(&second).await).contains("UNIQUE"));
    let ended = RunRow { state: RunState::Completed, ..first };
    commit(&ended).await.unwrap();
    commit(&second).await.unwrap();
    assert!(constraint(commit(&RunRow { state: RunState::Queued, ..ended }).await).contains("stays ended"));
}

#[tokio::test]
async fn closed_session_has_no_bindings_and_stays_closed() {
    let (_dir, store) = open();
    let row = session("s");
    let bound = binding(&row.session_key, "room", BindingStatus::Active);
    let spawn = SpawnTx { binding: Some(bound), ..spawn_tx(row.clone()) };
    store.spawn_session(spawn).await.unwrap();
    let (_, fence) = store.claim(row.session_key.clone()).await.unwrap();
    let closed = Write::Session(Box::new(SessionRow { state: SessionState::Closed, ..row.clone() }));
    let end = Write::EndBindings { reason: "closed".into() };
    assert!(refused(store.commit(fence.clone(), vec![closed.clone()]).await).contains("bindings"));
    store.commit(fence.clone(), vec![closed, end]).await.unwrap();
    let open = Write::Session(Box::new(SessionRow { state: SessionState::Idle, ..row.clone() }));
    assert!(constraint(store.commit(fence, vec![open]).await).contains("stays closed"));
    let late = binding(&row.session_key, "elsewhere", BindingStatus::Active);
    let bind = store.write("bind", move |tx| crate::bindings::insert(tx, &late)).await;
    assert!(constraint(bind).contains("closed"));
}

/// A close on condition ends no binding that was made since its actor last looked.
#[tokio::test]
async fn bound_session_is_not_closed_on_condition() {
    let (_dir, store) = open();
    let row = session("s");
    store.spawn_session(spawn_tx(row.clone())).await.unwrap();
    let (_, fence) = store.claim(row.session_key.clone()).await.unwrap();
    let closed = Write::Session(Box::new(SessionRow { state: SessionState::Closed, ..row.clone() }));
    let close =
        || vec![Write::RequireUnbound, closed.clone(), Write::EndBindings { reason: "closed".into() }];
    let bound = binding(&row.session_key, "room", BindingStatus::Active);
    store.write("bind", move |tx| crate::bindings::insert(tx, &bound)).await.unwrap();
    let refused = store.commit(fence.clone(), close()).await;
    assert!(matches!(refused, Err(StoreError::SessionBound)), "{refused:?}");
    let (key, end) = (row.session_key.clone(), "unbound");
    store.write("unbind", move |tx| crate::bindings::end_all(tx, &key, end)).await.unwrap();
    store.commit(fence, close()).await.unwrap();
}

#[tokio::test]
async fn spawn_is_all_or_nothing() {
    let (_dir, store) = open();
    let row = session("first");
    let idempotency_key = IdempotencyKey::mint();
    let spawn = SpawnTx {
        binding: Some(binding(&row.session_key, "room", BindingStatus::Active)),
        run: Some(run(&row.session_key, RunState::Queued)),
        events: vec![(EventKind::Prompt, "{}".into())],
        idempotency: Some(("spawn".into(), idempotency_key.clone(), "f".into(), "{}".into())),
        caps: limits(2),
        ..spawn_tx(row)
    };
    store.spawn_session(spawn.clone()).await.unwrap();
    let spawn_second = |name: &str, conversation: &str| {
        let row = session(name);
        SpawnTx {
            binding: Some(binding(&row.session_key, conversation, BindingStatus::Active)),
            run: Some(run(&row.session_key, RunState::Queued)),
            idempotency: Some(("spawn".into(), IdempotencyKey::mint(), "f".into(), "{}".into())),
            session: row,
            ..spawn.clone()
        }
    };
    let same_key = SpawnTx { idempotency: spawn.idempotency.clone(), ..spawn_second("second", "hall") };
    let result = store.spawn_session(same_key).await;
    assert!(matches!(result, Err(StoreError::KeyTaken { .. })), "{result:?}");
    let result = store.spawn_session(spawn_second("second", "room")).await;
    assert!(matches!(result, Err(StoreError::ConversationBound)), "{result:?}");
    let mut same_label = spawn_second("second", "hall");
    same_label.session.label.clone_from(&spawn.session.label);
    let result = store.spawn_session(same_label.clone()).await;
    assert!(matches!(result, Err(StoreError::LabelTaken { .. })), "{result:?}");
    let result = store.spawn_session(SpawnTx { caps: limits(1), ..spawn_second("second", "hall") }).await;
    assert!(
        matches!(result, Err(StoreError::LimitReached { sessions_max: 1, account: false })),
        "{result:?}"
    );
    for (table, rows) in
        [("acp_sessions", 1), ("acp_bindings", 1), ("acp_runs", 1), ("acp_events", 1), ("acp_idempotency", 1)]
    {
        assert_eq!(count(&store, table).await, rows, "{table}");
    }
    store.spawn_session(spawn_second("second", "hall")).await.unwrap();
    assert_eq!(
        store.remembered("spawn".into(), idempotency_key).await.unwrap(),
        Some(("f".into(), "{}".into()))
    );
}

/// Closed sessions do not count, and sessions in error count only with a live process.
#[tokio::test]
async fn dead_sessions_do_not_count_towards_limit() {
    let (_dir, store) = open();
    let fits = async |name: &str, sessions_max| {
        store.spawn_session(SpawnTx { caps: limits(sessions_max), ..spawn_tx(session(name)) }).await
    };
    let (row, fence) = claim_new_session(&store, "one").await;
    let write = async |row: &SessionRow| {
        store.commit(fence.clone(), vec![Write::Session(Box::new(row.clone()))]).await.unwrap();
    };
    assert!(matches!(fits("two", 1).await, Err(StoreError::LimitReached { .. })), "an idle session counts");
    let broken = SessionRow { state: SessionState::Error, ..row.clone() };
    write(&broken).await;
    fits("two", 1).await.unwrap();
    let held = lease(&row.session_key);
    store.commit(fence.clone(), vec![Write::NewLease(Box::new(held.clone()))]).await.unwrap();
    assert!(
        matches!(fits("three", 2).await, Err(StoreError::LimitReached { .. })),
        "its process may be running"
    );
    let ended = Write::LeaseStatus { lease_id: held.lease_id, usage: LeaseStatus::Ended };
    store.commit(fence.clone(), vec![ended]).await.unwrap();
    fits("three", 2).await.unwrap();
    write(&SessionRow { state: SessionState::Closed, ..row }).await;
    fits("four", 3).await.unwrap();
    assert!(matches!(fits("five", 3).await, Err(StoreError::LimitReached { .. })));
}

#[tokio::test]
async fn idempotency_key_has_one_answer_until_expiry() {
    let (_dir, store) = open();
    let (_, fence) = claim_new_session(&store, "s").await;
    let idempotency_key = IdempotencyKey::mint();
    let answer = |result: &str| Write::Idempotency {
        scope: "prompt:s".into(),
        key: idempotency_key.clone(),
        fingerprint: "f".into(),
        result: result.into(),
    };
    store.commit(fence.clone(), vec![answer("1")]).await.unwrap();
    let second = store.commit(fence.clone(), vec![event(1, None), answer("2")]).await;
    assert!(matches!(second, Err(StoreError::KeyTaken { .. })), "{second:?}");
    assert_eq!(count(&store, "acp_events").await, 0);
    let remembered = async || store.remembered("prompt:s".into(), idempotency_key.clone()).await.unwrap();
    assert_eq!(remembered().await, Some(("f".into(), "1".into())));
    assert_eq!(store.remembered("other".into(), idempotency_key.clone()).await.unwrap(), None);
    assert_eq!(store.expire_answers(1, 100).await.unwrap(), 0);
    assert_eq!(store.expire_answers(store.clock().wall_ms() + 1, 100).await.unwrap(), 1);
    assert_eq!(remembered().await, None);
}

#[tokio::test]
async fn permission_is_settled_once_and_only_while_agent_lives() {
    let (_dir, store) = open();
    let (row, fence) = claim_new_session(&store, "s").await;
    let held = lease(&row.session_key);
    let commit = async |writes| store.commit(fence.clone(), writes).await;
    let (one, two) =
        (permission(&held, 1, PermissionState::Pending), permission(&held, 2, PermissionState::Pending));
    commit(vec![
        Write::NewLease(Box::new(held.clone())),
        Write::Permission(Box::new(one.clone())),
        Write::Permission(Box::new(two.clone())),
    ])
    .await
    .unwrap();
    let settle = |mut row: acp_core::rows::PermissionRow, option: &str| {
        row.state = PermissionState::Answered;
        row.option_id = Some(option.into());
        row.resolved_by = Some(acp_core::rows::ResolvedBy::Person("ann".into()));
        Write::Permission(Box::new(row))
    };
    commit(vec![settle(one.clone(), "yes")]).await.unwrap();
    assert!(refused(commit(vec![settle(one.clone(), "no")]).await).contains("already settled"));
    assert!(refused(commit(vec![Write::Permission(Box::new(one))]).await).contains("already settled"));
    let ended = Write::LeaseStatus { lease_id: held.lease_id, usage: LeaseStatus::Ended };
    assert!(refused(commit(vec![ended.clone(), settle(two.clone(), "yes")]).await).contains("has ended"));
    commit(vec![ended]).await.unwrap();
    assert!(refused(commit(vec![settle(two.clone(), "yes")]).await).contains("has ended"));
    let mut expired = two;
    expired.state = PermissionState::Expired;
    commit(vec![Write::Permission(Box::new(expired))]).await.unwrap();
}

#[tokio::test]
async fn answered_request_stays_answered() {
    let (_dir, store) = open();
    let (row, fence) = claim_new_session(&store, "s").await;
    let held = lease(&row.session_key);
    let put = |state| Write::Request(Box::new(request(&held, 7, state)));
    let writes = vec![Write::NewLease(Box::new(held.clone())), put(RequestState::Started)];
    store.commit(fence.clone(), writes).await.unwrap();
    store.commit(fence.clone(), vec![put(RequestState::Answered)]).await.unwrap();
    assert!(
        refused(store.commit(fence, vec![put(RequestState::Started)]).await).contains("already answered")
    );
}

#[tokio::test]
async fn session_has_one_agent_lease_at_a_time() {
    let (_dir, store) = open();
    let (row, fence) = claim_new_session(&store, "s").await;
    let (first, second) = (lease(&row.session_key), lease(&row.session_key));
    let commit = async |writes| store.commit(fence.clone(), writes).await;
    commit(vec![Write::NewLease(Box::new(first.clone()))]).await.unwrap();
    assert!(constraint(commit(vec![Write::NewLease(Box::new(second.clone()))]).await).contains("UNIQUE"));
    let ended = Write::LeaseStatus { lease_id: first.lease_id, usage: LeaseStatus::Ended };
    commit(vec![ended, Write::NewLease(Box::new(second.clone()))]).await.unwrap();
    let alive = Write::LeaseStatus { lease_id: first.lease_id, usage: LeaseStatus::Open };
    assert!(constraint(commit(vec![alive]).await).contains("stays ended"));
    assert_eq!(store.leases_in_use().await.unwrap(), [second]);
}

#[tokio::test]
async fn lease_stream_offsets_never_decrease() {
    let (_dir, store) = open();
    let (row, fence) = claim_new_session(&store, "s").await;
    let held = lease(&row.session_key);
    let run_id = run(&row.session_key, RunState::Queued).run_id;
    let commit = async |writes| store.commit(fence.clone(), writes).await;
    let lease_id = held.lease_id;
    let progress = |stdout_offset, next_stdin_seq| Write::LeaseProgress {
        lease_id,
        stdout_offset,
        next_stdin_seq,
        link_state: None,
    };
    commit(vec![Write::NewLease(Box::new(held.clone())), progress(50, 2)]).await.unwrap();
    assert!(refused(commit(vec![progress(49, 2)]).await).contains("would decrease"));
    assert!(refused(commit(vec![progress(50, 1)]).await).contains("would decrease"));
    let message = |seq| Write::Outbox(Box::new(outbox(&held, seq, run_id)));
    assert_eq!(numbering(commit(vec![message(2)]).await), (1, 2));
    commit(vec![message(1), Write::Written { lease_id, through_seq: 1 }]).await.unwrap();
    assert_eq!(numbering(commit(vec![message(1)]).await), (2, 1));
    let tail = |offset, bytes: &[u8]| Write::Tail { lease_id, offset, bytes: bytes.to_vec() };
    commit(vec![tail(50, b"ab")]).await.unwrap();
    assert_eq!(numbering(commit(vec![tail(53, b"c")]).await), (52, 53));
    commit(vec![tail(52, b"c"), Write::TailClear { lease_id }, tail(90, b"x")]).await.unwrap();
    let (kept, hash): (Option<Vec<u8>>, Vec<u8>) = store
        .read("outbox", |db| {
            db.first("SELECT bytes, sha256 FROM acp_stdin_outbox", &[], |row| {
                Ok((row.get("bytes")?, row.get("sha256")?))
            })
        })
        .await
        .unwrap()
        .unwrap();
    assert_eq!((kept, hash.len()), (None, 32));
}

#[tokio::test]
async fn labels_are_unique_among_open_sessions() {
    let (_dir, store) = open();
    let named = |name: &str| SessionRow { label: Some("work".to_owned()), ..session(name) };
    store.spawn_session(spawn_tx(named("one"))).await.unwrap();
    let result = store.spawn_session(spawn_tx(named("two"))).await;
    assert!(matches!(&result, Err(StoreError::LabelTaken { label }) if label == "work"), "{result:?}");
    let (snapshot, fence) = store.claim(key("one")).await.unwrap();
    let closed = SessionRow { state: SessionState::Closed, ..snapshot.session };
    store.commit(fence, vec![Write::Session(Box::new(closed))]).await.unwrap();
    store.spawn_session(spawn_tx(named("two"))).await.unwrap();
}

/// An expired binding ends in its session's transaction, unless it was used since the sweep read it.
#[tokio::test]
async fn activity_during_the_sweep_keeps_a_binding() {
    let (_dir, store) = open();
    let row = session("s");
    let bound = binding(&row.session_key, "room", BindingStatus::Active);
    let (id, seen_ms) = (bound.binding_id, bound.last_activity_at_ms);
    store.spawn_session(SpawnTx { binding: Some(bound), ..spawn_tx(row.clone()) }).await.unwrap();
    let (_, fence) = store.claim(row.session_key.clone()).await.unwrap();
    let used_ms = seen_ms + 1;
    store.commit(fence.clone(), vec![Write::TouchBindings { at_ms: used_ms }]).await.unwrap();
    let expire = |last_activity_at_ms| Write::ExpireBinding {
        binding_id: id,
        last_activity_at_ms,
        reason: "idle".to_owned(),
    };
    let refused = store.commit(fence.clone(), vec![event(1, None), expire(seen_ms)]).await;
    assert!(matches!(refused, Err(StoreError::UsedMeanwhile)), "{refused:?}");
    assert_eq!(count(&store, "acp_events").await, 0, "the whole transaction is rolled back");
    store.commit(fence, vec![event(1, None), expire(used_ms)]).await.unwrap();
    let key = row.session_key;
    let left = store.read("bindings", move |db| crate::bindings::of_session(db, &key)).await.unwrap();
    assert_eq!(left, []);
}

/// D8: expiry times are in the database and survive a kill.
#[tokio::test]
async fn activity_time_survives_reopen() {
    let (dir, store) = open();
    let row = session("s");
    let bound = binding(&row.session_key, "room", BindingStatus::Active);
    let at_ms = bound.last_activity_at_ms + 77;
    store.spawn_session(SpawnTx { binding: Some(bound), ..spawn_tx(row.clone()) }).await.unwrap();
    let (_, fence) = store.claim(row.session_key.clone()).await.unwrap();
    store.commit(fence, vec![Write::TouchBindings { at_ms }]).await.unwrap();
    store.close().await;
    let store = reopen(dir.path());
    let subject = store.expiry_subject(row.session_key).await.unwrap().unwrap();
    assert_eq!(subject.bindings[0].last_activity_at_ms, at_ms);
}

/// Selects sessions to which some timeout applies: an own one or a configured one.
#[tokio::test]
async fn sessions_with_timeouts_are_found() {
    use acp_core::timeouts::Timeouts;
    let (_dir, store) = open();
    for (name, idle_ms) in [("own", Some(5)), ("off", Some(0)), ("none", None)] {
        let row = SessionRow { state: SessionState::Idle, ..session(name) };
        let mut bound = binding(&row.session_key, name, BindingStatus::Active);
        (bound.idle_ms, bound.max_age_ms) = (idle_ms, None);
        store.spawn_session(SpawnTx { binding: Some(bound), ..spawn_tx(row) }).await.unwrap();
    }
    let running = SessionRow { state: SessionState::Running, ..session("running") };
    store.spawn_session(spawn_tx(running)).await.unwrap();
    let none = Timeouts::default();
    for (windows, want) in [
        (none, vec!["own"]),
        (Timeouts { runtime_ms: 9, ..none }, vec!["own"]),
        (Timeouts { session_ms: 9, ..none }, vec!["none", "off", "own"]),
    ] {
        let mut found: Vec<String> = store
            .expiring_sessions(windows, u64::MAX)
            .await
            .unwrap()
            .into_iter()
            .map(|candidate| candidate.session_key.as_str().rsplit(':').next().unwrap_or_default().to_owned())
            .collect();
        found.sort();
        assert_eq!(found, want, "{windows:?}");
    }
}

#[tokio::test]
async fn deleted_sessions_are_not_listed() {
    use acp_core::session::Ending;
    let (_dir, store) = open();
    for ending in Ending::ALL {
        let row = session(ending.as_str());
        store.spawn_session(spawn_tx(row.clone())).await.unwrap();
        let (snapshot, fence) = store.claim(row.session_key).await.unwrap();
        let closed = SessionRow { state: SessionState::Closed, ending: Some(ending), ..snapshot.session };
        store.commit(fence, vec![Write::Session(Box::new(closed))]).await.unwrap();
    }
    let listed = store.sessions(true, 100).await.unwrap();
    assert_eq!(listed.len(), Ending::ALL.len() - 1);
    assert!(listed.iter().all(|row| row.ending != Some(Ending::Deleted)));
}

#[tokio::test]
async fn lists_are_filtered_and_bounded() {
    let (_dir, store) = open();
    for n in 0..5_u64 {
        let row = SessionRow { last_activity_at_ms: n, ..session(&format!("s{n}")) };
        store.spawn_session(SpawnTx { caps: limits(SESSIONS_MAX), ..spawn_tx(row) }).await.unwrap();
    }
    let (last, fence) = store.claim(key("s4")).await.unwrap();
    let closed = SessionRow { state: SessionState::Closed, ..last.session };
    store.commit(fence, vec![Write::Session(Box::new(closed))]).await.unwrap();
    let list = async |closed_too, rows_max| -> Vec<String> {
        let rows = store.sessions(closed_too, rows_max).await.unwrap();
        rows.into_iter().map(|row| row.session_key.to_string()).collect()
    };
    assert_eq!(list(false, 100).await, ["s3", "s2", "s1", "s0"]);
    assert_eq!(list(true, 2).await, ["s4", "s3"]);
}
