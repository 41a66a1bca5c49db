//! Order and timing of payloads, and the reaction to each end of a connection.

use crate::bot::{SOON, bot, eventually};
use crate::script::{self, Conn, Server};
use acp_discord::core::event::Event;
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Starts a service that runs `first` on the first session once it has begun, and that begins or resumes all
/// other sessions. Returns the service, and a channel with the first payload of each connection.
async fn service<F, P>(first: P) -> (Server, mpsc::Receiver<Value>)
where
    F: Future<Output = ()> + Send + 'static,
    P: Fn(Conn) -> F + Send + Sync + Clone + 'static,
{
    let (begun, asked) = mpsc::channel(10);
    let play = move |number, mut conn: Conn| {
        let (begun, first) = (begun.clone(), first.clone());
        async move {
            let Some(payload) = conn.greeted(3_600_000).await else { return };
            let answer = if payload["op"] == 6 { ("RESUMED", json!({})) } else { ("READY", script::ready()) };
            let _ = begun.send(payload).await;
            conn.dispatch(answer.0, answer.1).await;
            if number == 0 { first(conn).await } else { conn.keep().await }
        }
    };
    (Server::start(play).await, asked)
}

async fn soon(asked: &mut mpsc::Receiver<Value>) -> Value {
    let asked = tokio::time::timeout(SOON, asked.recv()).await;
    asked.expect("a connection arrives in time").expect("the service is running")
}

/// Returns the first payload of the second connection, after `first` has run on the first one.
async fn follows<F, P>(first: P) -> Value
where
    F: Future<Output = ()> + Send + 'static,
    P: Fn(Conn) -> F + Send + Sync + Clone + 'static,
{
    let (server, mut asked) = service(first).await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    assert_eq!(soon(&mut asked).await["op"], 2);
    let second = soon(&mut asked).await;
    bot.end().await.expect("stopped");
    second
}

fn resume(seq: u64) -> Value {
    json!({ "op": 6, "d": { "token": "hunter2", "session_id": "s", "seq": seq } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resume_is_sent_after_hello_and_nothing_before() {
    let (asked, mut second) = mpsc::channel(1);
    let server = Server::start(move |number, mut conn: Conn| {
        let asked = asked.clone();
        async move {
            if number == 0 {
                conn.begin().await;
                conn.dispatch("MESSAGE_CREATE", script::message(1)).await;
                conn.text(json!({ "op": 7, "d": null, "s": null, "t": null }).to_string()).await;
            } else {
                // A client that does not wait for HELLO has sent a payload by now.
                let early = conn.silence(Duration::from_millis(500)).await;
                let begun = conn.greeted(3_600_000).await;
                let _ = asked.send((early, begun)).await;
                conn.dispatch("RESUMED", json!({})).await;
            }
            conn.keep().await;
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
async fn a_connection_without_hello_is_ended_in_bounded_time() {
    let server = Server::start(|number, mut conn: Conn| async move {
        if number == 0 {
            conn.silence(SOON).await;
        } else {
            conn.begin().await;
            conn.keep().await;
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
async fn a_heartbeat_without_an_answer_is_a_reason_to_resume() {
    let (asked, mut begun) = mpsc::channel(10);
    let beats = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&beats);
    let server = Server::start(move |number, mut conn: Conn| {
        let (asked, heard) = (asked.clone(), Arc::clone(&heard));
        async move {
            let payload = conn.greeted(if number == 0 { 1_000 } else { 3_600_000 }).await;
            let _ = asked.send(payload.unwrap_or_default()).await;
            if number == 0 {
                conn.dispatch("READY", script::ready()).await;
                while let Some(payload) = conn.unanswered().await {
                    heard.lock().expect("lock").push(payload);
                }
            } else {
                conn.dispatch("RESUMED", json!({})).await;
                conn.keep().await;
            }
        }
    })
    .await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    let Event::Disconnected { why } = bot.next().await else { panic!("no Disconnected event") };
    assert_eq!(why, "Discord did not answer a heartbeat in time");
    assert_eq!(bot.next().await, Event::Resumed);
    assert_eq!(soon(&mut begun).await["op"], 2);
    assert_eq!(soon(&mut begun).await, resume(1));
    // One heartbeat was sent, and no second one before the acknowledgement.
    assert_eq!(beats.lock().expect("lock").len(), 1);
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_that_is_asked_for_comes_at_once() {
    let (beat, mut heard) = mpsc::channel(1);
    let (server, _asked) = service(move |mut conn| {
        let beat = beat.clone();
        async move {
            conn.text(json!({ "op": 1, "d": null, "s": null, "t": null }).to_string()).await;
            let _ = beat.send(conn.next().await.unwrap_or_default()).await;
            conn.keep().await;
        }
    })
    .await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    assert_eq!(soon(&mut heard).await, json!({ "op": 1, "d": 1 }));
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_end_of_a_connection_is_followed_by_resume_or_identify() {
    const RESUMED: [u16; 8] = [1000, 1001, 1011, 4000, 4001, 4002, 4005, 4008];
    const IDENTIFIED: [u16; 3] = [4003, 4007, 4009];
    let codes = RESUMED.into_iter().chain(IDENTIFIED);
    let ops = join_all(codes.clone().map(|code| follows(move |conn| conn.close(Some(code))))).await;
    for (code, begun) in codes.zip(ops) {
        assert_eq!(begun["op"], if IDENTIFIED.contains(&code) { 2 } else { 6 }, "{code}");
    }
    let invalid = |resumable: bool| {
        follows(move |mut conn: Conn| async move {
            conn.text(json!({ "op": 9, "d": resumable, "s": null, "t": null }).to_string()).await;
            conn.keep().await;
        })
    };
    let (kept, lost) = tokio::join!(invalid(true), invalid(false));
    assert_eq!((kept, &lost["op"]), (resume(1), &json!(2)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_inside_of_a_message_is_resumed() {
    let begun = follows(|mut conn| async move {
        conn.dispatch("MESSAGE_CREATE", script::message(1)).await;
        conn.part_of_a_message(1_000).await;
    });
    assert_eq!(begun.await, resume(2));
}

/// RESUME would bring the message again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_too_large_costs_the_session() {
    let begun = follows(|mut conn| async move {
        conn.part_of_a_message(40 << 20).await;
        conn.keep().await;
    });
    assert_eq!(begun.await["op"], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resume_goes_to_the_address_that_ready_names() {
    let (other, mut asked) = service(Conn::keep).await;
    let url = other.url().replace("http", "ws");
    let server = Server::start(move |_, mut conn: Conn| {
        let url = url.clone();
        async move {
            conn.greet(3_600_000).await;
            let mut ready = script::ready();
            ready["resume_gateway_url"] = json!(url);
            conn.dispatch("READY", ready).await;
            conn.close(Some(4000)).await;
        }
    })
    .await;
    let mut bot = bot(&server, 10);
    bot.ready().await;
    assert_eq!(soon(&mut asked).await, resume(1));
    bot.until(|event| matches!(event, Event::Resumed).then_some(())).await;
    assert_eq!((server.connections(), other.connections()), (1, 1));
    bot.end().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_identify_one_after_the_other() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&times);
    let two = |address: &str| {
        let mut answer = script::good(&format!("ws://{address}"));
        answer.body["shards"] = json!(2);
        answer
    };
    let server = Server::answering(two, move |_, mut conn: Conn| {
        let noted = Arc::clone(&noted);
        async move {
            let payload = conn.greeted(3_600_000).await.unwrap_or_default();
            noted.lock().expect("lock").push((payload["d"]["shard"].clone(), Instant::now()));
            conn.dispatch("READY", script::ready()).await;
            conn.keep().await;
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
