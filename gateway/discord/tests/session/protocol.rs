//! Order and timing of payloads, and the reaction to each end of a connection.

use crate::bot::{STEP_TIMEOUT, bot, eventually};
use crate::script::{self, Conn, Server};
use acp_discord::core::event::Event;
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Starts a service that runs `first` on the first session once it has begun, and that begins or resumes all
/// other sessions. Returns the service, and a channel with the first payload of each connection.
async fn start_service<F, P>(first: P) -> (Server, mpsc::Receiver<Value>)
where
    F: Future<Output = ()> + Send + 'static,
    P: Fn(Conn) -> F + Send + Sync + Clone + 'static,
{
    let (begun, payloads) = mpsc::channel(10);
    let connection_script = move |number, mut conn: Conn| {
        let (begun, first) = (begun.clone(), first.clone());
        async move {
            let Some(payload) = conn.handshake(3_600_000).await else { return };
            let answer = if payload["op"] == 6 { ("RESUMED", json!({})) } else { ("READY", script::ready()) };
            let _ = begun.send(payload).await;
            conn.dispatch(answer.0, answer.1).await;
            if number == 0 { first(conn).await } else { conn.hold_open().await }
        }
    };
    (Server::start(connection_script).await, payloads)
}

async fn next_payload(payloads: &mut mpsc::Receiver<Value>) -> Value {
    let payloads = tokio::time::timeout(STEP_TIMEOUT, payloads.recv()).await;
    payloads.expect("a connection arrives in time").expect("the service is running")
}

/// Returns the first payload of the second connection, after `first` has run on the first one.
async fn second_handshake<F, P>(first: P) -> Value
where
    F: Future<Output = ()> + Send + 'static,
    P: Fn(Conn) -> F + Send + Sync + Clone + 'static,
{
    let (server, mut payloads) = start_service(first).await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    assert_eq!(next_payload(&mut payloads).await["op"], 2);
    let second = next_payload(&mut payloads).await;
    bot.end().await.expect("stopped");
    second
}

fn resume(seq: u64) -> Value {
    json!({ "op": 6, "d": { "token": "hunter2", "session_id": "s", "seq": seq } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resume_is_sent_only_after_hello() {
    let (payloads, mut second) = mpsc::channel(1);
    let server = Server::start(move |number, mut conn: Conn| {
        let payloads = payloads.clone();
        async move {
            if number == 0 {
                conn.begin().await;
                conn.dispatch("MESSAGE_CREATE", script::message(1)).await;
                conn.text(json!({ "op": 7, "d": null, "s": null, "t": null }).to_string()).await;
            } else {
                // A client that does not wait for HELLO has sent a payload by now.
                let early = conn.expect_silence(Duration::from_millis(500)).await;
                let begun = conn.handshake(3_600_000).await;
                let _ = payloads.send((early, begun)).await;
                conn.dispatch("RESUMED", json!({})).await;
            }
            conn.hold_open().await;
        }
    })
    .await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    bot.until(|event| matches!(event, Event::Resumed).then_some(())).await;
    assert_eq!(second.recv().await, Some((None, Some(resume(2)))));
    // The session is still valid: the connection was not closed with 1000 or 1001.
    assert_eq!(*server.closed.lock().expect("lock"), [4000]);
    assert_eq!((bot.counts.snapshot().identifies, bot.counts.snapshot().resumes), (1, 1));
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_hello_times_out() {
    let server = Server::start(|number, mut conn: Conn| async move {
        if number == 0 {
            conn.expect_silence(STEP_TIMEOUT).await;
        } else {
            conn.begin().await;
            conn.hold_open().await;
        }
    })
    .await;
    let started = Instant::now();
    let mut bot = bot(&server, 10);
    let Event::Disconnected { why } = bot.next().await else { panic!("no Disconnected event") };
    assert_eq!(why, "shard 0 got no HELLO within 5 s of connecting");
    assert!(started.elapsed() < Duration::from_secs(15));
    bot.ready().await;
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_heartbeat_ack_resumes_the_session() {
    let (payloads, mut begun) = mpsc::channel(10);
    let beats = Arc::new(Mutex::new(Vec::new()));
    let received = Arc::clone(&beats);
    let server = Server::start(move |number, mut conn: Conn| {
        let (payloads, received) = (payloads.clone(), Arc::clone(&received));
        async move {
            let payload = conn.handshake(if number == 0 { 1_000 } else { 3_600_000 }).await;
            let _ = payloads.send(payload.unwrap_or_default()).await;
            if number == 0 {
                conn.dispatch("READY", script::ready()).await;
                while let Some(payload) = conn.next_unacknowledged().await {
                    received.lock().expect("lock").push(payload);
                }
            } else {
                conn.dispatch("RESUMED", json!({})).await;
                conn.hold_open().await;
            }
        }
    })
    .await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    let Event::Disconnected { why } = bot.next().await else { panic!("no Disconnected event") };
    assert_eq!(why, "Discord did not answer a heartbeat in time");
    assert_eq!(bot.next().await, Event::Resumed);
    assert_eq!(next_payload(&mut begun).await["op"], 2);
    assert_eq!(next_payload(&mut begun).await, resume(1));
    // One heartbeat was sent, and no second one before the acknowledgement.
    assert_eq!(beats.lock().expect("lock").len(), 1);
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requested_heartbeat_is_immediate() {
    let (beat, mut received) = mpsc::channel(1);
    let (server, _payloads) = start_service(move |mut conn| {
        let beat = beat.clone();
        async move {
            conn.text(json!({ "op": 1, "d": null, "s": null, "t": null }).to_string()).await;
            let _ = beat.send(conn.next().await.unwrap_or_default()).await;
            conn.hold_open().await;
        }
    })
    .await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    assert_eq!(next_payload(&mut received).await, json!({ "op": 1, "d": 1 }));
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_code_decides_resume_or_identify() {
    const RESUMED: [u16; 8] = [1000, 1001, 1011, 4000, 4001, 4002, 4005, 4008];
    const IDENTIFIED: [u16; 3] = [4003, 4007, 4009];
    let codes = RESUMED.into_iter().chain(IDENTIFIED);
    let ops = join_all(codes.clone().map(|code| second_handshake(move |conn| conn.close(Some(code))))).await;
    for (code, begun) in codes.zip(ops) {
        assert_eq!(begun["op"], if IDENTIFIED.contains(&code) { 2 } else { 6 }, "{code}");
    }
    let invalid = |resumable: bool| {
        second_handshake(move |mut conn: Conn| async move {
            conn.text(json!({ "op": 9, "d": resumable, "s": null, "t": null }).to_string()).await;
            conn.hold_open().await;
        })
    };
    let (kept, lost) = tokio::join!(invalid(true), invalid(false));
    assert_eq!((kept, &lost["op"]), (resume(1), &json!(2)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partial_message_resumes_the_session() {
    let begun = second_handshake(|mut conn| async move {
        conn.dispatch("MESSAGE_CREATE", script::message(1)).await;
        conn.partial_message(1_000).await;
    });
    assert_eq!(begun.await, resume(2));
}

/// RESUME would repeat the message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_message_starts_a_new_session() {
    let begun = second_handshake(|mut conn| async move {
        conn.partial_message(40 << 20).await;
        conn.hold_open().await;
    });
    assert_eq!(begun.await["op"], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resume_uses_the_url_of_ready() {
    let (other, mut payloads) = start_service(Conn::hold_open).await;
    let url = other.url().replace("http", "ws");
    let server = Server::start(move |_, mut conn: Conn| {
        let url = url.clone();
        async move {
            conn.handshake_opcode(3_600_000).await;
            let mut ready = script::ready();
            ready["resume_gateway_url"] = json!(url);
            conn.dispatch("READY", ready).await;
            conn.close(Some(4000)).await;
        }
    })
    .await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    assert_eq!(next_payload(&mut payloads).await, resume(1));
    bot.until(|event| matches!(event, Event::Resumed).then_some(())).await;
    assert_eq!((server.connections(), other.connections()), (1, 1));
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_identify_in_sequence() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&times);
    let two = |address: &str| {
        let mut answer = script::gateway_answer(&format!("ws://{address}"));
        answer.body["shards"] = json!(2);
        answer
    };
    let server = Server::answering(two, move |_, mut conn: Conn| {
        let noted = Arc::clone(&noted);
        async move {
            let payload = conn.handshake(3_600_000).await.unwrap_or_default();
            noted.lock().expect("lock").push((payload["d"]["shard"].clone(), Instant::now()));
            conn.dispatch("READY", script::ready()).await;
            conn.hold_open().await;
        }
    })
    .await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    bot.ready().await;
    let mut times = std::mem::take(&mut *times.lock().expect("lock"));
    let apart = times[1].1.duration_since(times[0].1);
    assert!(apart > Duration::from_millis(4_500), "{apart:?}");
    times.sort_by_key(|(shard, _)| shard.to_string());
    assert_eq!((&times[0].0, &times[1].0), (&json!([0, 2]), &json!([1, 2])));
    bot.end().await.expect("stopped");
    eventually("both connections are closed normally", || {
        *server.closed.lock().expect("lock") == [1000, 1000]
    })
    .await;
}
