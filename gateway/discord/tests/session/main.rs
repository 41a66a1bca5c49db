//! The session against gateways that misbehave.

#![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

mod bot;
mod identify_slots;
mod protocol;
mod script;

use acp_discord::core::event::{Event, GapCause};
use acp_discord::websocket::ShardSet;
use bot::{STEP_TIMEOUT, bot, bot_with, eventually};
use script::{Answer, Conn, Server};
use serde_json::{Value, json};
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn burst_events_keep_their_order() {
    let server = Server::start(|_, mut conn: Conn| async move {
        conn.begin().await;
        conn.burst((1..=400).map(|id| ("MESSAGE_CREATE", script::message(id)))).await;
        conn.hold_open().await;
    })
    .await;
    let mut bot = bot(&server, 1000);
    bot.ready().await;
    for id in 1..=400 {
        let Event::Message(message) = bot.next().await else { panic!("no message") };
        assert_eq!((message.id.0, message.text), (id, format!("m{id}")));
    }
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_closes_the_connection_normally() {
    let server = Server::start(|_, mut conn: Conn| async move {
        conn.begin().await;
        conn.hold_open().await;
    })
    .await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    bot.end().await.expect("stopped");
    let closed = Arc::clone(&server.closed);
    eventually("the service sees the close", || *closed.lock().expect("lock") == [1000]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_on_another_host_is_rejected() {
    let elsewhere = Server::start(|_, conn: Conn| conn.hold_open()).await;
    let there = elsewhere.url().replace("http://127.0.0.1", "ws://localhost");
    let server =
        Server::answering(|_| script::gateway_answer(&there), |_, conn: Conn| conn.hold_open()).await;
    let mut bot = bot(&server, 10);
    let Event::Failed(failure) = bot.next().await else { panic!("not refused") };
    assert!(failure.to_string().contains("only to the configured host"), "{failure}");
    assert_eq!(bot.events.next().await, None);
    assert_eq!(bot.end().await, Err(failure));
    assert_eq!((elsewhere.connections(), server.connections()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_token_and_spent_identify_budget_prevent_connecting() {
    let refused = Answer { status: 401, body: json!({ "code": 0, "message": "401: Unauthorized" }) };
    let server = Server::answering(|_| refused, |_, conn: Conn| conn.hold_open()).await;
    let mut bot1 = bot(&server, 10);
    let Event::Failed(failure) = bot1.next().await else { panic!("not refused") };
    assert!(failure.to_string().contains("Reset Token"), "{failure}");
    assert_eq!(server.connections(), 0);
    // One shard is recommended.
    for (left, shards) in [(0, None), (3, Some(ShardSet { numbers: 0..4, count: 4 }))] {
        let few_left = |address: &str| {
            let mut answer = script::gateway_answer(&format!("ws://{address}"));
            answer.body["session_start_limit"]["remaining"] = json!(left);
            answer
        };
        let other = Server::answering(few_left, |_, conn: Conn| conn.hold_open()).await;
        let mut bot2 = bot_with(&other, 10, shards, None);
        let Event::Disconnected { why } = bot2.next().await else { panic!("no Disconnected event") };
        assert!(why.contains("no more new sessions of this bot for 2 minutes"), "{why}");
        bot2.end().await.expect("stopped while it waits");
        assert_eq!(other.connections(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fatal_close_codes_stop_the_session() {
    for code in [4004, 4010, 4011, 4012, 4013, 4014] {
        let server = Server::start(move |_, mut conn: Conn| async move {
            conn.handshake_opcode(3_600_000).await;
            conn.close(Some(code)).await;
        })
        .await;
        let mut bot = bot(&server, 10);
        let failure = bot
            .until(|event| match event {
                Event::Failed(failure) => Some(failure.clone()),
                _ => None,
            })
            .await;
        assert_eq!((failure.code, server.connections()), (Some(code), 1));
        assert_eq!(bot.end().await, Err(failure));
    }
}

async fn acknowledge_heartbeats(mut conn: Conn) -> u64 {
    let op = conn.handshake_opcode(1_000).await;
    conn.hold_open().await;
    op
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unanswered_resume_starts_a_new_session() {
    let (payloads, mut ops) = tokio::sync::mpsc::channel(10);
    let server = Server::start(move |number, mut conn: Conn| {
        let payloads = payloads.clone();
        async move {
            match number {
                0 => {
                    conn.begin().await;
                    conn.text(json!({ "op": 9, "d": true, "s": null, "t": null }).to_string()).await;
                    conn.hold_open().await;
                }
                // RESUME, then IDENTIFY: both stay unanswered.
                1 | 2 => drop(payloads.send(acknowledge_heartbeats(conn).await).await),
                _ => {
                    conn.begin().await;
                    conn.dispatch("MESSAGE_CREATE", script::message(1)).await;
                    conn.hold_open().await;
                }
            }
        }
    })
    .await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    let why = bot.until(|event| match event {
        Event::Disconnected { why } if why.contains("READY") => Some(why.clone()),
        _ => None,
    });
    assert_eq!(why.await, "shard 0 got neither READY nor RESUMED within 5 s of connecting");
    bot.ready().await;
    assert!(matches!(bot.next().await, Event::Message(_)));
    assert_eq!((ops.recv().await, ops.recv().await), (Some(6), Some(2)));
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_without_code_reconnects() {
    let server = Server::start(|number, mut conn: Conn| async move {
        conn.begin().await;
        if number == 0 {
            conn.close(None).await;
        } else {
            conn.hold_open().await;
        }
    })
    .await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    bot.ready().await;
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_connection_loss_reconnects() {
    let server = Server::start(|number, mut conn: Conn| async move {
        match number {
            0 => {
                conn.begin().await;
                conn.dispatch("MESSAGE_CREATE", script::message(1)).await;
            }
            // Accepts and closes at once, like a load balancer without a backend.
            1 => {}
            _ => {
                conn.begin().await;
                conn.dispatch("MESSAGE_CREATE", script::message(2)).await;
                conn.hold_open().await;
            }
        }
    })
    .await;
    let mut bot = bot(&server, 10);
    let message = |event: &Event| match event {
        Event::Message(message) => Some(message.id.0),
        _ => None,
    };
    bot.ready().await;
    assert_eq!(bot.until(message).await, 1);
    bot.ready().await;
    assert_eq!(bot.until(message).await, 2);
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undocumented_payload_is_parsed_or_logged() {
    let server = Server::start(|_, mut conn: Conn| async move {
        conn.begin().await;
        conn.dispatch("INTERACTION_CREATE", script::click_without_locale(200)).await;
        conn.dispatch("MESSAGE_CREATE", json!({ "content": "hunter2" })).await;
        conn.dispatch("MESSAGE_CREATE", script::message(1)).await;
        conn.dispatch("SUBSCRIPTION_CREATE", json!({})).await;
        conn.dispatch("SUBSCRIPTION_CREATE", json!({})).await;
        conn.dispatch("TYPING_START", json!({ "odd": true })).await;
        conn.skip(3);
        conn.dispatch("MESSAGE_CREATE", script::message(2)).await;
        conn.text("{ no json").await;
        conn.dispatch("MESSAGE_CREATE", script::message(3)).await;
        conn.hold_open().await;
    })
    .await;
    let mut bot = bot(&server, 100);
    bot.ready().await;
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| last != "3") {
        seen.push(match bot.next().await {
            Event::Click(click) => format!("{} {}", click.interaction.id, click.custom_id),
            Event::Message(message) => message.id.to_string(),
            Event::Gap { why, lost } => format!("{why:?} {lost}"),
            other => panic!("{other:?}"),
        });
    }
    let expected = ["200 acp1:/acp cancel", "Unreadable 1", "1", "Skipped 3", "2", "Skipped 0", "3"];
    assert_eq!(seen, expected);
    let counts = bot.counts.snapshot();
    let unrecognized = |kind: &str| counts.unrecognized.get(kind).copied();
    assert_eq!((counts.identifies, counts.readies, counts.gaps), (1, 1, 3));
    assert_eq!((unrecognized("SUBSCRIPTION_CREATE"), unrecognized("MESSAGE_CREATE")), (Some(2), Some(1)));
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_without_unused_fields_starts_a_session() {
    let server = Server::start(|_, mut conn: Conn| async move {
        conn.handshake_opcode(41_250).await;
        let mut ready = script::ready();
        ready["application"] = json!({ "id": "2" });
        ready["user"] = json!({ "id": "1", "username": "bot" });
        conn.dispatch("READY", ready).await;
        conn.dispatch("MESSAGE_CREATE", script::message(1)).await;
        conn.hold_open().await;
    })
    .await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    assert!(matches!(bot.next().await, Event::Message(_)));
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_consumer_keeps_heartbeats_and_gets_a_gap() {
    let (beats, mut received) = tokio::sync::mpsc::channel(1000);
    let server = Server::start(move |_, mut conn: Conn| {
        let beats = beats.clone();
        async move {
            conn.handshake_opcode(5_000).await;
            conn.dispatch("READY", script::ready()).await;
            conn.burst((1..=400).map(|id| ("MESSAGE_CREATE", script::message(id)))).await;
            conn.dispatch("INTERACTION_CREATE", script::click_without_locale(500)).await;
            while let Some(payload) = conn.next().await {
                if payload["op"] == json!(1) {
                    let _ = beats.send(payload["d"].clone()).await;
                }
            }
        }
    })
    .await;
    let mut bot = bot(&server, 8);
    // The session received everything while the consumer took nothing, and still runs.
    let mut after = 0;
    while after < 2 {
        let seq: Value = tokio::time::timeout(STEP_TIMEOUT, received.recv())
            .await
            .expect("a heartbeat")
            .expect("a connection");
        after += u64::from(seq == json!(402));
    }
    assert_eq!(bot.counts.snapshot().dropped, 393);
    bot.ready().await;
    for id in 1..=7 {
        let Event::Message(message) = bot.next().await else { panic!("no message") };
        assert_eq!(message.id.0, id);
    }
    let Event::Click(click) = bot.next().await else { panic!("interactions have reserved capacity") };
    assert_eq!(click.interaction.id.0, 500);
    assert_eq!(bot.next().await, Event::Gap { why: GapCause::Overflow, lost: 393 });
    assert_eq!((server.connections(), bot.counts.snapshot().readies), (1, 1));
    bot.end().await.expect("stopped");
}
