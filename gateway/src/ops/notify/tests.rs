//! Webhooks against a receiver on loopback.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::request::{read_secret, sign};
use super::run;
use crate::tests::session_row;
use acp_core::config::load::LoadedConfig;
use acp_core::config::{NotifyEvent, NotifyTarget};
use acp_core::event::EventKind;
use acp_core::rows::SessionRow;
use acp_core::writes::Write;
use acp_shared::ids::SessionKey;
use acp_store::{Durability, Store};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::post;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const SECRET: &str = "a secret of thirty-two bytes, yes";
const DEADLINE: Duration = Duration::from_secs(60);

/// Receiver that refuses the first attempts.
struct Receiver {
    refuses: Mutex<u32>,
    got: watch::Sender<Vec<(String, Value)>>,
    attempts: Mutex<Vec<String>>,
}

async fn receive(State(receiver): State<Arc<Receiver>>, headers: HeaderMap, body: Bytes) -> Response {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let (id, body) = (header("webhook-id"), String::from_utf8(body.to_vec()).unwrap());
    let want = sign(SECRET.as_bytes(), &id, &header("webhook-timestamp"), &body);
    assert_eq!(header("webhook-signature"), want);
    receiver.attempts.lock().unwrap().push(id.clone());
    let mut refuses = receiver.refuses.lock().unwrap();
    if *refuses > 0 {
        *refuses -= 1;
        return if *refuses % 2 == 0 {
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        } else {
            Redirect::temporary("/elsewhere").into_response()
        };
    }
    receiver.got.send_modify(|got| got.push((id, serde_json::from_str(&body).unwrap())));
    StatusCode::NO_CONTENT.into_response()
}

async fn start_receiver(refuses: u32) -> (Arc<Receiver>, String) {
    let receiver = Arc::new(Receiver {
        refuses: Mutex::new(refuses),
        got: watch::Sender::new(Vec::new()),
        attempts: Mutex::default(),
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    // An event that went elsewhere would be missing.
    let elsewhere = || async { StatusCode::OK };
    let router = Router::new().route("/hook", post(receive)).with_state(Arc::clone(&receiver));
    let router = router.route("/elsewhere", post(elsewhere));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (receiver, url)
}

/// Configuration with these targets.
fn config(targets: Vec<NotifyTarget>) -> watch::Sender<Arc<LoadedConfig>> {
    watch::Sender::new(loaded(targets))
}

fn loaded(targets: Vec<NotifyTarget>) -> Arc<LoadedConfig> {
    let mut loaded = LoadedConfig::default();
    loaded.config.notify = targets;
    Arc::new(loaded)
}

fn target(dir: &Path, name: &str, url: &str) -> NotifyTarget {
    let secret_file = dir.join("secret");
    std::fs::write(&secret_file, format!("{SECRET}\n")).unwrap();
    std::fs::set_permissions(&secret_file, std::fs::Permissions::from_mode(0o600)).unwrap();
    NotifyTarget { name: name.to_owned(), url: url.to_owned(), secret_file, ..NotifyTarget::default() }
}

async fn open(dir: &Path) -> Store {
    Store::open(dir, Durability::Normal).unwrap()
}

/// Appends rows of these kinds to the journal.
async fn append(store: &Store, key: &SessionKey, from: u64, kinds: &[EventKind]) {
    let (key, kinds) = (key.clone(), kinds.to_vec());
    let writes: Vec<Write> = (from..)
        .zip(kinds)
        .map(|(session_seq, kind)| Write::Event {
            session_seq,
            run: None,
            kind,
            payload: "{\"stop_reason\":\"end_turn\"}".to_owned(),
            extra: None,
        })
        .collect();
    store.write("append", move |tx| acp_store::tx::commit::apply(tx, &key, from - 1, &writes)).await.unwrap();
}

async fn session(store: &Store) -> SessionKey {
    let key = SessionKey::parse("agent:demo:acp:1").unwrap();
    let row = SessionRow { last_session_seq: 0, lease_id: None, ..session_row(&key) };
    store.write("session", move |tx| acp_store::sessions::insert(tx, &row)).await.unwrap();
    key
}

/// Waits for this number of different messages. A stop between an answer and its commit repeats a message.
async fn received(receiver: &Receiver, count: usize) -> Vec<(String, Value)> {
    let different = |got: &Vec<(String, Value)>| {
        let mut got = got.clone();
        got.dedup();
        got
    };
    let mut got = receiver.got.subscribe();
    let enough = got.wait_for(|got| different(got).len() >= count);
    let found = tokio::time::timeout(DEADLINE, enough).await.unwrap().unwrap().clone();
    different(&found)
}

#[tokio::test]
async fn events_are_delivered_in_order_after_failures_and_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let key = session(&store).await;
    append(&store, &key, 1, &[EventKind::Done]).await;
    let (receiver, url) = start_receiver(2).await;
    let targets = vec![target(dir.path(), "pager", &url)];
    let start = |store: &Store| {
        let stop = CancellationToken::new();
        (
            tokio::spawn(run(
                store.clone(),
                config(targets.clone()).subscribe(),
                store.clock(),
                stop.clone(),
            )),
            stop,
        )
    };
    // A new target begins at the end of the journal.
    assert_eq!(store.webhook_cursor("pager".to_owned()).await.unwrap(), 1);
    let (task, stop) = start(&store);
    let more = [EventKind::AgentMessage, EventKind::Permission, EventKind::Status, EventKind::Error];
    append(&store, &key, 2, &more).await;
    let got = received(&receiver, 2).await;
    let seqs: Vec<_> = got.iter().map(|(_, body)| body["data"]["session_seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, [3, 5]);
    assert_eq!(got[0].1["type"], "permission");
    assert_eq!(got[0].1["event_id"], 3);
    {
        let attempts = receiver.attempts.lock().unwrap();
        assert_eq!(attempts.len(), 4, "two attempts were refused");
        assert!(attempts[..3].iter().all(|id| *id == got[0].0), "an event keeps its id");
    }
    stop.cancel();
    task.await.unwrap();
    append(&store, &key, 6, &[EventKind::Done]).await;
    store.close().await;
    let store = open(dir.path()).await;
    let (task, stop) = start(&store);
    append(&store, &key, 7, &[EventKind::Done]).await;
    let got = received(&receiver, 4).await;
    let ids: Vec<_> = got.iter().map(|(_, body)| body["event_id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [3, 5, 6, 7]);
    stop.cancel();
    task.await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn target_that_is_gone_delays_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let key = session(&store).await;
    let (receiver, url) = start_receiver(0).await;
    // A port that nothing listens at, a target that accepts and never answers, and a secret that others can read.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_url = format!("http://{}/", silent.local_addr().unwrap());
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let open_secret = dir.path().join("open");
    std::fs::write(&open_secret, SECRET).unwrap();
    std::fs::set_permissions(&open_secret, std::fs::Permissions::from_mode(0o644)).unwrap();
    let targets = vec![
        target(dir.path(), "gone", &format!("http://{closed}/")),
        target(dir.path(), "silent", &silent_url),
        NotifyTarget { secret_file: open_secret, ..target(dir.path(), "open", &url) },
        NotifyTarget { events: vec![NotifyEvent::Done], ..target(dir.path(), "good", &url) },
    ];
    for target in &targets {
        store.webhook_cursor(target.name.clone()).await.unwrap();
    }
    let stop = CancellationToken::new();
    let task = tokio::spawn(run(store.clone(), config(targets).subscribe(), store.clock(), stop.clone()));
    append(&store, &key, 1, &[EventKind::Done, EventKind::Error, EventKind::Done]).await;
    let got = received(&receiver, 2).await;
    let ids: Vec<_> = got.iter().map(|(_, body)| body["event_id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [1, 3]);
    stop.cancel();
    task.await.unwrap();
    for (name, want) in [("gone", 0), ("silent", 0), ("open", 0)] {
        assert_eq!(store.webhook_cursor(name.to_owned()).await.unwrap(), want, "{name} lost events");
    }
    store.close().await;
}

#[tokio::test]
async fn reload_replaces_targets_and_continues_where_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let key = session(&store).await;
    let (receiver, url) = start_receiver(0).await;
    store.webhook_cursor("pager".to_owned()).await.unwrap();
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    // A request that nobody answers holds the reload up for a moment only.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_url = format!("http://{}/", silent.local_addr().unwrap());
    store.webhook_cursor("silent".to_owned()).await.unwrap();
    let targets = [("pager", format!("http://{closed}/")), ("silent", silent_url)];
    let config = config(targets.iter().map(|(name, url)| target(dir.path(), name, url)).collect());
    let stop = CancellationToken::new();
    let task = tokio::spawn(run(store.clone(), config.subscribe(), store.clock(), stop.clone()));
    append(&store, &key, 1, &[EventKind::Done]).await;
    let _request = silent.accept().await.unwrap();
    // The new address gets what the old one did not take.
    config.send_replace(loaded(vec![target(dir.path(), "pager", &url)]));
    assert_eq!(received(&receiver, 1).await[0].1["event_id"], 1);
    stop.cancel();
    task.await.unwrap();
    store.close().await;
}

#[test]
fn signature_is_that_of_standard_webhooks() {
    // Example of the Standard Webhooks specification.
    let secret = data_encoding::BASE64.decode(b"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let signature = sign(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", "{\"test\": 2432232314}");
    assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
}

#[test]
fn secret_is_read_from_a_private_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    for (text, mode, want) in [
        ("0123456789abcdef\n", 0o600, Some(b"0123456789abcdef".to_vec())),
        ("whsec_MDEyMzQ1Njc4OWFiY2RlZg==", 0o400, Some(b"0123456789abcdef".to_vec())),
        ("whsec_!", 0o600, None),
        ("short", 0o600, None),
        ("0123456789abcdef", 0o640, None),
    ] {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(read_secret(&path).ok(), want, "{text} {mode:o}");
        std::fs::remove_file(&path).unwrap();
    }
    assert!(read_secret(&path).is_err(), "a missing file");
    assert!(read_secret(dir.path()).is_err(), "a directory");
}
