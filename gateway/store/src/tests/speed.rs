//! How fast the journal takes events, every one of them committed at full durability.

use super::fixtures::{count, key, run, spawned};
use crate::{Durability, Store};
use acp_core::event::EventKind;
use acp_core::run::RunState;
use acp_core::writes::Write;
use std::time::Instant;

const SESSIONS: u64 = 4;
const BATCHES: u64 = 250;
const EVENTS: u64 = 100;
const PAYLOAD_BYTES: usize = 300;

/// Run with `cargo test --release -p acp-gateway store::tests::speed -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
#[expect(clippy::print_stderr, reason = "a measurement says what it found")]
async fn events_per_second() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let store = Store::open(dir.path(), Durability::Full).unwrap();
    for batch in [EVENTS, 10, 1] {
        let mut tasks = Vec::new();
        let begun = Instant::now();
        for n in 0..SESSIONS {
            let store = store.clone();
            tasks.push(tokio::spawn(async move { fill(&store, &format!("s{batch}-{n}"), batch).await }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let seconds = begun.elapsed().as_secs_f64();
        let events = SESSIONS * BATCHES * batch;
        eprintln!(
            "{events} events, {batch} a commit: {:.0}/s; {:?}",
            events as f64 / seconds,
            store.counts()
        );
    }
    assert_eq!(count(&store, "acp_events").await, SESSIONS * BATCHES * (EVENTS + 10 + 1));
    store.close().await;
}

async fn fill(store: &Store, name: &str, batch: u64) {
    let row = spawned(store, name).await;
    let (_, fence) = store.claim(key(name)).await.unwrap();
    let run = run(&row.session_key, RunState::Running);
    store.commit(fence.clone(), vec![Write::Run(Box::new(run.clone()))]).await.unwrap();
    let payload = format!("{{\"text\":\"{}\"}}", "x".repeat(PAYLOAD_BYTES));
    let mut last = 0;
    for _ in 0..BATCHES {
        let writes = (0..batch).map(|_| {
            last += 1;
            let run = Some((run.run_id, last));
            let (kind, payload) = (EventKind::AgentMessage, payload.clone());
            Write::Event { session_seq: last, run, kind, payload, extra: None }
        });
        store.commit(fence.clone(), writes.collect()).await.unwrap();
    }
}
