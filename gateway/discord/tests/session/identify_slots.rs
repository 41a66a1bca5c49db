//! Identify slots that programs with one application share.

use crate::bot::{bot_with, eventually};
use crate::script::{self, Conn, Server};
use acp_discord::core::event::Event;
use acp_discord::websocket::{IdentifySlot, IdentifySlots, SessionLimits, ShardSet, ShardState, SlotFuture};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Identify slots with these answers, and the requests. `None` is a slot that is taken.
#[derive(Debug, Default)]
struct Slots {
    answers: Mutex<VecDeque<Option<IdentifySlot>>>,
    asked: Mutex<Vec<(u32, SessionLimits)>>,
}

impl IdentifySlots for Slots {
    fn take(&self, shard: u32, limits: SessionLimits) -> SlotFuture<'_> {
        self.asked.lock().expect("lock").push((shard, limits));
        let answer = self.answers.lock().expect("lock").pop_front();
        let later = IdentifySlot::Later { why: "no slot".to_owned(), after: Duration::from_secs(3_600) };
        let slot = answer.unwrap_or(Some(later)).unwrap_or_else(|| IdentifySlot::Taken(Instant::now()));
        Box::pin(std::future::ready(slot))
    }
}

fn slots(answers: impl IntoIterator<Item = Option<IdentifySlot>>) -> Arc<Slots> {
    Arc::new(Slots { answers: Mutex::new(answers.into_iter().collect()), asked: Mutex::default() })
}

fn one_shard() -> Option<ShardSet> {
    Some(ShardSet { numbers: 3..4, count: 8 })
}

/// Sends HELLO, acknowledges heartbeats and counts them until IDENTIFY, which is returned. Nothing else may come before.
async fn identify(conn: &mut Conn) -> Option<(usize, Value)> {
    conn.text(json!({ "op": 10, "d": { "heartbeat_interval": 100 }, "s": null, "t": null }).to_string())
        .await;
    for beats in 0.. {
        let payload = conn.next().await?;
        if payload["op"] != 1 {
            return Some((beats, payload));
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_is_taken_between_hello_and_identify() {
    let (begun, mut identified) = mpsc::channel(1);
    let server = Server::start(move |_, mut conn: Conn| {
        let begun = begun.clone();
        async move {
            let Some(identified) = identify(&mut conn).await else { return };
            let _ = begun.send(identified).await;
            conn.dispatch("READY", script::ready()).await;
            conn.hold_open().await;
        }
    })
    .await;
    let after = Duration::from_millis(700);
    let slots = slots([Some(IdentifySlot::Later { why: "others".to_owned(), after }), None]);
    let mut bot = bot_with(&server, 10, one_shard(), Some(Arc::clone(&slots) as Arc<dyn IdentifySlots>));
    bot.ready().await;
    let (beats, identify) = identified.recv().await.expect("a payload");
    assert!(beats >= 3, "the connection lives while it waits: {beats}");
    assert_eq!((&identify["op"], &identify["d"]["shard"]), (&json!(2), &json!([3, 8])));
    let asked = slots.asked.lock().expect("lock").clone();
    let limits = SessionLimits { remaining: 900, reset_after: Duration::from_secs(60), max_concurrency: 1 };
    assert_eq!(asked, [(3, limits), (3, limits)]);
    let counts = bot.counts.snapshot();
    assert_eq!((counts.identifies, counts.shards.get(&3)), (1, Some(&ShardState::Up)));
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_without_slot_is_not_identified() {
    let (begun, mut identified) = mpsc::channel(1);
    let server = Server::start(move |_, mut conn: Conn| {
        let begun = begun.clone();
        async move {
            let _ = begun.send(identify(&mut conn).await).await;
        }
    })
    .await;
    let mut bot = bot_with(&server, 10, one_shard(), Some(slots([]) as Arc<dyn IdentifySlots>));
    let why = bot.until(|event| match event {
        Event::Disconnected { why } => Some(why.clone()),
        _ => None,
    });
    assert_eq!(why.await, "no slot");
    assert_eq!(identified.recv().await, Some(None), "only heartbeats");
    let closed = Arc::clone(&server.closed);
    eventually("the service sees the close", || *closed.lock().expect("lock") == [1000]).await;
    let counts = bot.counts.snapshot();
    assert_eq!(counts.identifies, 0);
    assert_eq!(counts.shards.get(&3), Some(&ShardState::Lost("no slot".to_owned())));
    bot.end().await.expect("stopped");
}

/// Of the shards that get no slot, one asks for all, and it does not request the address again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_shard_asks_while_there_is_no_slot() {
    let server = Server::start(|_, mut conn: Conn| async move { drop(identify(&mut conn).await) }).await;
    // The wait of 15 seconds would end after this pause, so that the connection is given up.
    let after = Duration::from_secs(16);
    let refused = IdentifySlot::Later { why: "overlap".to_owned(), after };
    let slots = slots([Some(refused)]);
    let shards = Some(ShardSet { numbers: 3..6, count: 8 });
    let mut bot = bot_with(&server, 10, shards, Some(Arc::clone(&slots) as Arc<dyn IdentifySlots>));
    for want in ["overlap", "no slot"] {
        let why = bot.until(|event| match event {
            Event::Disconnected { why } => Some(why.clone()),
            _ => None,
        });
        assert_eq!(why.await, want);
        // A second shard would send its request within this time.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let asked: Vec<u32> = slots.asked.lock().expect("lock").iter().map(|(shard, _)| *shard).collect();
    assert_eq!((asked.len(), asked[0]), (2, asked[1]), "{asked:?}");
    assert_eq!(server.lookups(), 1);
    bot.end().await.expect("stopped");
}

/// Without identify slots, the shards of the range identify, and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_shards_of_the_range_identify() {
    let (begun, mut identified) = mpsc::channel(4);
    let server = Server::start(move |_, mut conn: Conn| {
        let begun = begun.clone();
        async move {
            let Some(payload) = conn.handshake(3_600_000).await else { return };
            let _ = begun.send(payload["d"]["shard"].clone()).await;
            conn.dispatch("READY", script::ready()).await;
            conn.hold_open().await;
        }
    })
    .await;
    let mut bot = bot_with(&server, 10, Some(ShardSet { numbers: 6..8, count: 8 }), None);
    bot.ready().await;
    bot.ready().await;
    let mut shards = [identified.recv().await, identified.recv().await].map(Option::unwrap_or_default);
    shards.sort_by_key(|shard| shard[0].as_u64());
    assert_eq!(shards, [json!([6, 8]), json!([7, 8])]);
    assert_eq!(bot.counts.snapshot().shards.len(), 2);
    bot.end().await.expect("stopped");
}
