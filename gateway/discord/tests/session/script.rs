//! Gateway scripted step by step, for behaviour that no real service shows on purpose. All other tests use
//! the strict fake of the system tests.

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

/// Time before HELLO in which a client must send nothing.
const BEFORE_HELLO: Duration = Duration::from_millis(50);

type ConnectionScript = Arc<dyn Fn(usize, Conn) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

/// Service that runs as long as the test's runtime.
pub(crate) struct Server {
    address: String,
    connections: Arc<AtomicUsize>,
    /// Number of requests for the address.
    lookups: Arc<AtomicUsize>,
    /// Close codes sent by clients.
    pub(crate) closed: Arc<Mutex<Vec<u16>>>,
    /// Payloads that clients sent before HELLO. Any such payload fails the test.
    early: Arc<Mutex<Vec<Value>>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let early = self.early.lock().expect("lock");
        assert!(early.is_empty() || std::thread::panicking(), "sent before HELLO: {early:?}");
    }
}

impl Server {
    /// Starts a service that is also the gateway. `script` gets each connection with its number.
    pub(crate) async fn start<F, P>(script: P) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
        P: Fn(usize, Conn) -> F + Send + Sync + 'static,
    {
        Self::answering(|address| gateway_answer(&format!("ws://{address}")), script).await
    }

    pub(crate) async fn answering<F, P>(answer: impl FnOnce(&str) -> Answer, script: P) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
        P: Fn(usize, Conn) -> F + Send + Sync + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let address = listener.local_addr().expect("address").to_string();
        let (connections, lookups) = (Arc::default(), Arc::default());
        let server = Self { connections, lookups, closed: Arc::default(), early: Arc::default(), address };
        let answer = Arc::new(answer(&server.address));
        let script: ConnectionScript = Arc::new(move |number, conn| Box::pin(script(number, conn)));
        let (connections, closed) = (Arc::clone(&server.connections), Arc::clone(&server.closed));
        let (early, lookups) = (Arc::clone(&server.early), Arc::clone(&server.lookups));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let work = serve(
                    stream,
                    Arc::clone(&answer),
                    Arc::clone(&script),
                    Arc::clone(&connections),
                    Arc::clone(&lookups),
                    Arc::clone(&closed),
                    Arc::clone(&early),
                );
                tokio::spawn(work);
            }
        });
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn lookups(&self) -> usize {
        self.lookups.load(Ordering::SeqCst)
    }
}

pub(crate) fn gateway_answer(url: &str) -> Answer {
    let limit = json!({ "total": 1000, "remaining": 900, "reset_after": 60_000, "max_concurrency": 1 });
    Answer { status: 200, body: json!({ "url": url, "shards": 1, "session_start_limit": limit }) }
}

async fn serve(
    mut stream: TcpStream,
    answer: Arc<Answer>,
    script: ConnectionScript,
    connections: Arc<AtomicUsize>,
    lookups: Arc<AtomicUsize>,
    closed: Arc<Mutex<Vec<u16>>>,
    early: Arc<Mutex<Vec<Value>>>,
) {
    let mut head = [0; 8];
    while stream.peek(&mut head).await.is_ok_and(|have| (1..head.len()).contains(&have)) {
        tokio::task::yield_now().await;
    }
    if head.starts_with(b"GET /api") {
        lookups.fetch_add(1, Ordering::SeqCst);
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n")
            && stream.read_buf(&mut request).await.is_ok_and(|have| have > 0)
        {}
        assert!(request.starts_with(b"GET /api/v10/gateway/bot "), "{}", String::from_utf8_lossy(&request));
        let body = answer.body.to_string();
        let head = format!("HTTP/1.1 {} X\r\ncontent-type: application/json\r\n", answer.status);
        let text = format!("{head}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
        let _ = stream.write_all(text.as_bytes()).await;
        return;
    }
    let Ok(socket) = tokio_tungstenite::accept_async(stream).await else { return };
    let number = connections.fetch_add(1, Ordering::SeqCst);
    script(number, Conn { socket, seq: 0, closed, early }).await;
}

pub(crate) struct Conn {
    socket: WebSocketStream<TcpStream>,
    seq: u64,
    closed: Arc<Mutex<Vec<u16>>>,
    early: Arc<Mutex<Vec<Value>>>,
}

impl Conn {
    pub(crate) async fn text(&mut self, text: impl Into<String>) {
        let _ = self.socket.send(Message::Text(text.into())).await;
    }

    /// Sends HELLO and waits for IDENTIFY or RESUME. Returns its opcode.
    pub(crate) async fn handshake_opcode(&mut self, heartbeat_ms: u64) -> u64 {
        let payload = self.handshake(heartbeat_ms).await;
        payload.and_then(|payload| payload["op"].as_u64()).unwrap_or(0)
    }

    /// Like `handshake_opcode`, but returns the whole payload. Before HELLO, waits for payloads that the client must not
    /// send.
    pub(crate) async fn handshake(&mut self, heartbeat_ms: u64) -> Option<Value> {
        let early = self.expect_silence(BEFORE_HELLO).await;
        let hello = json!({ "op": 10, "d": { "heartbeat_interval": heartbeat_ms }, "s": null, "t": null });
        self.text(hello.to_string()).await;
        if early.is_some() {
            return early;
        }
        loop {
            let payload = self.next().await?;
            if matches!(payload["op"].as_u64(), Some(2 | 6)) {
                return Some(payload);
            }
        }
    }

    /// Sends nothing for this time. Returns a payload of the client, which must not send any before HELLO.
    pub(crate) async fn expect_silence(&mut self, time: Duration) -> Option<Value> {
        let early = tokio::time::timeout(time, self.next()).await.ok().flatten();
        self.early.lock().expect("lock").extend(early.clone());
        early
    }

    /// Begins a session, with a heartbeat interval too long to matter.
    pub(crate) async fn begin(&mut self) {
        self.handshake_opcode(3_600_000).await;
        self.dispatch("READY", ready()).await;
    }

    pub(crate) async fn dispatch(&mut self, name: &str, data: Value) {
        self.seq += 1;
        self.text(json!({ "op": 0, "t": name, "s": self.seq, "d": data }).to_string()).await;
    }

    pub(crate) fn skip(&mut self, numbers: u64) {
        self.seq += numbers;
    }

    pub(crate) async fn partial_message(&mut self, size: u64) {
        let mut frame = vec![0x81, 127];
        frame.extend(size.to_be_bytes());
        frame.extend(b"{\"op\":0,");
        let _ = self.socket.get_mut().write_all(&frame).await;
    }

    pub(crate) async fn burst(&mut self, events: impl Iterator<Item = (&'static str, Value)>) {
        for (name, data) in events {
            self.seq += 1;
            let text = json!({ "op": 0, "t": name, "s": self.seq, "d": data }).to_string();
            let _ = self.socket.feed(Message::Text(text)).await;
        }
        let _ = self.socket.flush().await;
    }

    pub(crate) async fn next(&mut self) -> Option<Value> {
        let payload = self.next_unacknowledged().await?;
        if payload["op"] == json!(1) {
            self.text(json!({ "op": 11, "d": null, "s": null, "t": null }).to_string()).await;
        }
        Some(payload)
    }

    pub(crate) async fn next_unacknowledged(&mut self) -> Option<Value> {
        loop {
            match self.socket.next().await? {
                Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).expect("json")),
                Ok(Message::Close(frame)) => {
                    self.closed.lock().expect("lock").extend(frame.map(|frame| u16::from(frame.code)));
                }
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    pub(crate) async fn hold_open(mut self) {
        while self.next().await.is_some() {}
    }

    pub(crate) async fn close(mut self, code: Option<u16>) {
        let frame = code.map(|code| CloseFrame { code: code.into(), reason: "".into() });
        let _ = self.socket.send(Message::Close(frame)).await;
        while let Some(Ok(_)) = self.socket.next().await {}
    }
}

pub(crate) fn user(id: u64, name: &str) -> Value {
    json!({ "id": id.to_string(), "username": name, "discriminator": "0", "avatar": null, "bot": id == 1 })
}

pub(crate) fn ready() -> Value {
    json!({
        "v": 10, "guilds": [], "session_id": "s", "resume_gateway_url": "wss://gateway.discord.gg", "shard": [0, 1],
        "application": { "id": "2", "flags": 0 },
        "user": { "id": "1", "username": "bot", "discriminator": "0", "avatar": null, "bot": true, "verified": true,
                  "mfa_enabled": false, "flags": 0, "email": null },
    })
}

pub(crate) fn message(id: u64) -> Value {
    json!({
        "id": id.to_string(), "channel_id": "10", "author": user(9, "ann"), "content": format!("m{id}"), "type": 0,
        "timestamp": "2026-11-22T09:00:00.000000+00:00", "edited_timestamp": null, "tts": false, "pinned": false,
        "mention_everyone": false, "mentions": [], "mention_roles": [], "attachments": [], "embeds": [],
        "components": [],
    })
}

pub(crate) fn click_without_locale(id: u64) -> Value {
    json!({
        "id": id.to_string(), "application_id": "2", "type": 3, "token": "hunter2", "version": 1, "channel_id": "10",
        "user": user(9, "ann"), "data": { "custom_id": "acp1:/acp cancel", "component_type": 2 },
        "message": message(77), "entitlements": [], "attachment_size_limit": 10_485_760,
    })
}
