//! The session against gateways that misbehave.

#![expect(clippy::expect_used, reason = "a failed expectation is a failed test")]

mod bot;
mod protocol;
mod script;

use acp_discord::core::event::{Event, GapCause};
use bot::{SOON, bot, eventually};
use script::{Answer, Conn, Server};
use serde_json::{Value, json};
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_a_burst_keep_their_order() {
    let server = Server::start(|_, mut conn: Conn| async move {
        conn.begin().await;
        conn.burst((1..=400).map(|id| ("MESSAGE_CREATE", script::message(id)))).await;
        conn.keep().await;
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
async fn a_stop_closes_in_order() {
    let server = Server::start(|_, mut conn: Conn| async move {
        conn.begin().await;
        conn.keep().await;
    })
    .await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    bot.end().await.expect("stopped");
    let closed = Arc::clone(&server.closed);
    eventually("the service sees the close", || *closed.lock().expect("lock") == [1000]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_to_another_host_than_the_configured_one() {
    let elsewhere = Server::start(|_, conn: Conn| conn.keep()).await;
    let there = elsewhere.url().replace("http://127.0.0.1", "ws://localhost");
    let server = Server::answering(|_| script::good(&there), |_, conn: Conn| conn.keep()).await;
    let mut bot = bot(&server, 10);
    let Event::Failed(failure) = bot.next().await else { panic!("not refused") };
    assert!(failure.to_string().contains("only to the configured host"), "{failure}");
    assert_eq!(bot.events.next().await, None);
    assert_eq!(bot.end().await, Err(failure));
    assert_eq!((elsewhere.connections(), server.connections()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_token_and_a_used_up_budget_are_said_before_anything_is_connected() {
    let refused = Answer { status: 401, body: json!({ "code": 0, "message": "401: Unauthorized" }) };
    let server = Server::answering(|_| refused, |_, conn: Conn| conn.keep()).await;
    let mut bot1 = bot(&server, 10);
    let Event::Failed(failure) = bot1.next().await else { panic!("not refused") };
    assert!(failure.to_string().contains("Reset Token"), "{failure}");
    let none_left = |address: &str| {
        let mut answer = script::good(&format!("ws://{address}"));
        answer.body["session_start_limit"]["remaining"] = json!(0);
        answer
    };
    let other = Server::answering(none_left, |_, conn: Conn| conn.keep()).await;
    let mut bot2 = bot(&other, 10);
    let Event::Disconnected { why } = bot2.next().await else { panic!("no Disconnected event") };
    assert!(why.contains("no more new sessions of this bot for 2 minutes"), "{why}");
    bot2.end().await.expect("stopped while it waits");
    assert_eq!((server.connections(), other.connections()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fatal_codes_end_it_with_words() {
    for code in [4004, 4010, 4011, 4012, 4013, 4014] {
        let server = Server::start(move |_, mut conn: Conn| async move {
            conn.greet(3_600_000).await;
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

/// Acknowledges heartbeats and answers no other payload.
async fn say_nothing(mut conn: Conn) -> u64 {
    let op = conn.greet(1_000).await;
    conn.keep().await;
    op
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unanswered_resume_ends_in_a_new_session() {
    let (asked, mut ops) = tokio::sync::mpsc::channel(10);
    let server = Server::start(move |number, mut conn: Conn| {
        let asked = asked.clone();
        async move {
            match number {
                0 => {
                    conn.begin().await;
                    conn.text(json!({ "op": 9, "d": true, "s": null, "t": null }).to_string()).await;
                    conn.keep().await;
                }
                // RESUME, then IDENTIFY: both stay unanswered.
                1 | 2 => drop(asked.send(say_nothing(conn).await).await),
                _ => {
                    conn.begin().await;
                    conn.dispatch("MESSAGE_CREATE", script::message(1)).await;
                    conn.keep().await;
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
async fn a_close_without_a_code_is_noticed() {
    let server = Server::start(|number, mut conn: Conn| async move {
        conn.begin().await;
        if number == 0 {
            conn.close(None).await;
        } else {
            conn.keep().await;
        }
    })
    .await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    bot.ready().await;
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_dropped_twice_is_made_again() {
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
                conn.keep().await;
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
async fn what_is_not_as_documented_is_read_or_told() {
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
        conn.keep().await;
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
    let strange = |kind: &str| counts.unrecognized.get(kind).copied();
    assert_eq!((counts.identifies, counts.readies, counts.gaps), (1, 1, 3));
    assert_eq!((strange("SUBSCRIPTION_CREATE"), strange("MESSAGE_CREATE")), (Some(2), Some(1)));
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ready_without_fields_that_are_not_needed_begins_a_session() {
    let server = Server::start(|_, mut conn: Conn| async move {
        conn.greet(41_250).await;
        let mut ready = script::ready();
        ready["application"] = json!({ "id": "2" });
        ready["user"] = json!({ "id": "1", "username": "bot" });
        conn.dispatch("READY", ready).await;
        conn.dispatch("MESSAGE_CREATE", script::message(1)).await;
        conn.keep().await;
    })
    .await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    assert!(matches!(bot.next().await, Event::Message(_)));
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_no_events_stalls_no_heartbeat_and_learns_what_is_missing() {
    let (beats, mut heard) = tokio::sync::mpsc::channel(1000);
    let server = Server::start(move |_, mut conn: Conn| {
        let beats = beats.clone();
        async move {
            conn.greet(5_000).await;
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
        let seq: Value =
            tokio::time::timeout(SOON, heard.recv()).await.expect("a heartbeat").expect("a connection");
        after += u64::from(seq == json!(402));
    }
    assert_eq!(bot.counts.snapshot().dropped, 393);
    bot.ready().await;
    for id in 1..=7 {
        let Event::Message(message) = bot.next().await else { panic!("no message") };
        assert_eq!(message.id.0, id);
    }
    let Event::Click(click) = bot.next().await else { panic!("interactions have room of their own") };
    assert_eq!(click.interaction.id.0, 500);
    assert_eq!(bot.next().await, Event::Gap { why: GapCause::Overflow, lost: 393 });
    assert_eq!((server.connections(), bot.counts.snapshot().readies), (1, 1));
    bot.end().await.expect("stopped");
}
