//! Rows that `claim` and reads return after a commit.

use super::fixtures::{
    SESSIONS_MAX, binding, count, event, failure, lease, open, outbox, permission, reopen, request, run,
    session, spawn_tx,
};
use crate::{SpawnTx, bindings, delivery};
use acp_core::event::{EventKind, EventRow};
use acp_core::recovery::{RecoveryCandidate, RecoveryFacts};
use acp_core::render::{MessagePart, PartKind, nonce};
use acp_core::rows::{BindingStatus, LeaseStatus, PermissionState, RequestState, RunMode, RunRow};
use acp_core::run::RunState;
use acp_core::session::SessionState;
use acp_core::writes::{ActorSnapshot, Write};
use acp_shared::ids::IdempotencyKey;

#[tokio::test]
async fn claim_returns_exactly_what_was_committed() {
    let (dir, store) = open();
    let mut row = session("s");
    let first = run(&row.session_key, RunState::Queued);
    let bound = binding(&row.session_key, "room", BindingStatus::Active);
    let answer = ("f".to_owned(), "{\"ok\":true}".to_owned());
    let idempotency_key = IdempotencyKey::mint();
    let spawn = SpawnTx {
        children_max: None,
        naming: None,
        session: row.clone(),
        binding: Some(bound.clone()),
        run: Some(first.clone()),
        events: vec![(EventKind::Prompt, "{\"text\":\"hi\"}".into())],
        idempotency: Some(("spawn".into(), idempotency_key.clone(), answer.0.clone(), answer.1.clone())),
        caps: acp_core::writes::SessionLimits { sessions_max: SESSIONS_MAX, account: None },
    };
    let (spawned, first_fence) = store.spawn_session(spawn).await.unwrap();
    let (claimed, fence) = store.claim(row.session_key.clone()).await.unwrap();
    assert_eq!(spawned, claimed, "a spawn claims its session");
    assert_eq!(fence.epoch, first_fence.epoch + 1);

    let mut held = lease(&row.session_key);
    row.state = SessionState::Running;
    row.last_error = Some(failure());
    row.agent_session_id = Some("agent-1".into());
    row.resumable = true;
    row.agent_info = Some("{\"name\":\"x\"}".into());
    row.lease_id = Some(held.lease_id);
    row.updated_at_ms = 99;
    row.last_session_seq = 3;
    let running = RunRow { state: RunState::Running, started_at_ms: Some(50), last_seq: 2, ..first };
    let waiting = run(&row.session_key, RunState::Queued);
    let done = RunRow {
        state: RunState::Failed,
        error: Some(failure()),
        stop_reason: Some("refusal".into()),
        usage: Some("{\"in\":1}".into()),
        ended_at_ms: Some(60),
        ..run(&row.session_key, RunState::Failed)
    };
    let pending = permission(&held, 100, PermissionState::Pending);
    let settled = permission(&held, 200, PermissionState::Answered);
    let expired = permission(&held, 250, PermissionState::Expired);
    let started = request(&held, 300, RequestState::Started);
    let answered = request(&held, 400, RequestState::Answered);
    let messages: Vec<_> = (1..=3).map(|seq| outbox(&held, seq, running.run_id)).collect();
    let mut writes = vec![
        event(2, Some((running.run_id, 2))),
        Write::Session(Box::new(row.clone())),
        Write::Run(Box::new(running.clone())),
        Write::Run(Box::new(waiting.clone())),
        Write::Run(Box::new(done.clone())),
        Write::NewLease(Box::new(held.clone())),
        Write::LeaseStatus { lease_id: held.lease_id, usage: LeaseStatus::Open },
        Write::Tail { lease_id: held.lease_id, offset: 70, bytes: b"half a ".to_vec() },
        Write::Tail { lease_id: held.lease_id, offset: 77, bytes: vec![0, 255, 10] },
        event(3, None),
        Write::Permission(Box::new(pending.clone())),
        Write::Permission(Box::new(settled.clone())),
        Write::Permission(Box::new(expired.clone())),
        Write::Request(Box::new(started.clone())),
        Write::Request(Box::new(answered)),
    ];
    writes.extend(messages.iter().map(|message| Write::Outbox(Box::new(message.clone()))));
    writes.push(Write::Written { lease_id: held.lease_id, through_seq: 1 });
    writes.push(Write::LeaseProgress {
        lease_id: held.lease_id,
        stdout_offset: 80,
        next_stdin_seq: 4,
        link_state: Some("{\"s\":2}".into()),
    });
    store.commit(fence, writes).await.unwrap();

    held.usage = LeaseStatus::Open;
    held.stdout_offset = 80;
    held.next_stdin_seq = 4;
    held.link_state = "{\"s\":2}".into();
    let want = ActorSnapshot {
        session: row.clone(),
        lease: Some(held.clone()),
        tail: vec![(70, b"half a ".to_vec()), (77, vec![0, 255, 10])],
        runs: vec![running.clone(), waiting.clone()],
        outbox: messages[1..].to_vec(),
        requests: vec![started],
        permissions: vec![pending.clone()],
    };
    let waiting_prompt = waiting.mode == RunMode::Prompt;
    store.close().await;
    let store = reopen(dir.path());
    let (got, fence) = store.claim(row.session_key.clone()).await.unwrap();
    assert_eq!(got, want);
    assert_eq!(fence.epoch, first_fence.epoch + 2);

    assert_eq!(store.session(row.session_key.clone()).await.unwrap(), Some(row.clone()));
    assert_eq!(store.runs(row.session_key.clone(), 2).await.unwrap(), [done.clone(), waiting]);
    assert_eq!(store.run(done.run_id).await.unwrap(), Some(done));
    assert_eq!(store.pending_permissions(row.session_key.clone()).await.unwrap(), [pending]);
    assert_eq!(store.settled_permissions(9, usize::MAX).await.unwrap(), [expired.clone(), settled]);
    for (rows_max, bytes_max) in [(1, usize::MAX), (9, 0)] {
        assert_eq!(
            store.settled_permissions(rows_max, bytes_max).await.unwrap(),
            std::slice::from_ref(&expired)
        );
    }
    assert_eq!(store.leases_in_use().await.unwrap(), [held.clone()]);
    let rows = RecoveryFacts {
        state: row.state,
        lease: Some(held.usage),
        running: true,
        queued: waiting_prompt,
        steers: !waiting_prompt,
    };
    let found = RecoveryCandidate {
        session_key: row.session_key.clone(),
        rows,
        last_activity_at_ms: row.last_activity_at_ms,
    };
    assert_eq!(store.found_sessions(9).await.unwrap(), (vec![found], 0));
    assert_eq!(store.remembered("spawn".into(), idempotency_key).await.unwrap(), Some(answer));
    let key = row.session_key.clone();
    assert_eq!(store.read("bindings", move |db| bindings::of_session(db, &key)).await.unwrap(), [bound]);
    let events = store.events_after(row.session_key.clone(), Some(1), 100, usize::MAX).await.unwrap().rows;
    let columns = |event: &EventRow| (event.session_seq, event.run_id, event.seq, event.payload.clone());
    assert_eq!(
        events.iter().map(columns).collect::<Vec<_>>(),
        [(2, Some(running.run_id), Some(2), "{\"n\":2}".to_owned()), (3, None, None, "{\"n\":3}".to_owned())]
    );
    store.close().await;
}

#[tokio::test]
async fn extra_members_of_a_notification_are_kept() {
    let (_dir, store) = open();
    let row = super::fixtures::insert_session(&store, "s").await;
    let (_, fence) = store.claim(row.session_key.clone()).await.unwrap();
    let extra = r#"{"_meta":{"n":1e2}}"#;
    let plan_event = |session_seq, extra: Option<&str>| {
        let (kind, payload) = (EventKind::Plan, "{}".to_owned());
        Write::Event { session_seq, run: None, kind, payload, extra: extra.map(str::to_owned) }
    };
    store.commit(fence, vec![plan_event(1, Some(extra)), plan_event(2, None)]).await.unwrap();
    let events = store.events_after(row.session_key, None, 9, usize::MAX).await.unwrap().rows;
    let kept: Vec<Option<&str>> = events.iter().map(|event| event.extra.as_deref()).collect();
    assert_eq!(kept, [Some(extra), None]);
}

#[tokio::test]
async fn event_pages_are_bounded_by_rows_and_bytes() {
    let (_dir, store) = open();
    let row = super::fixtures::insert_session(&store, "s").await;
    let (_, fence) = store.claim(row.session_key.clone()).await.unwrap();
    store.commit(fence, (1..=20).map(|n| event(n, None)).collect()).await.unwrap();
    let numbers = async |after, rows, bytes| -> Vec<u64> {
        let events =
            store.events_after(row.session_key.clone(), Some(after), rows, bytes).await.unwrap().rows;
        events.iter().map(|event| event.session_seq).collect()
    };
    assert_eq!(numbers(0, 3, usize::MAX).await, [1, 2, 3]);
    assert_eq!(numbers(17, 100, usize::MAX).await, [18, 19, 20]);
    assert_eq!(numbers(0, 100, 0).await, [1], "at least one row is returned");
    // The first nine payloads are seven bytes long.
    assert_eq!(numbers(0, 100, 8).await, [1, 2]);
    assert_eq!(numbers(20, 100, 100).await, [0_u64; 0]);
    assert_eq!(count(&store, "acp_events").await, 20);
}

/// After an upgrade a row may be rendered with more parts than were sent: the end of its text must not be repeated.
#[tokio::test]
async fn row_with_parts_gets_no_more_parts() {
    let (_dir, store) = open();
    let row = session("s");
    let bound = binding(&row.session_key, "room", BindingStatus::Active);
    let spawn = SpawnTx { binding: Some(bound.clone()), ..spawn_tx(row) };
    store.spawn_session(spawn).await.unwrap();
    let plan = |rows: &[(u64, &[&str])]| {
        let part = |session_seq, part_no, text: &str| MessagePart {
            session_seq,
            part_no,
            run_id: None,
            kind: PartKind::Notice,
            text: text.to_owned(),
            nonce: nonce(bound.binding_id, session_seq, part_no),
            asks: None,
            files: Vec::new(),
        };
        let of_row = |(seq, texts): &(u64, &[&str])| -> Vec<MessagePart> {
            (0..).zip(*texts).map(|(part_no, text)| part(*seq, part_no, text)).collect()
        };
        let parts: Vec<MessagePart> = rows.iter().flat_map(of_row).collect();
        let bound = bound.clone();
        store.write("plan", move |tx| delivery::plan_rows(tx, &bound, &parts))
    };
    plan(&[(2, &["ab", "cd"])]).await.unwrap();
    plan(&[(2, &["a", "bc", "d"]), (3, &["e", "f"])]).await.unwrap();
    let id = bound.binding_id;
    let pending = store.read("pending", move |db| delivery::pending_parts(db, id)).await.unwrap();
    let texts: Vec<&str> = pending.iter().map(|row| row.part.text.as_str()).collect();
    assert_eq!(texts, ["ab", "cd", "e", "f"]);
}
