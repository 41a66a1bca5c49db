//! A gateway that does what a test says, step by step: for what no service does on purpose. The strict fake of the
//! system's tests is the double for everything else.

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

type Play = Arc<dyn Fn(usize, Conn) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// What the service answers when asked for its gateway.
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

/// The service, for as long as the test's runtime.
pub struct Server {
    address: String,
    /// Websockets that were accepted.
    connections: Arc<AtomicUsize>,
    /// Codes with which clients closed.
    pub closed: Arc<Mutex<Vec<u16>>>,
}

impl Server {
    /// One that says it is its own gateway. `play` gets each connection with its number.
    pub async fn start<F, P>(play: P) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
        P: Fn(usize, Conn) -> F + Send + Sync + 'static,
    {
        Self::answering(|address| good(&format!("ws://{address}")), play).await
    }

    /// One with another answer.
    pub async fn answering<F, P>(answer: impl FnOnce(&str) -> Answer, play: P) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
        P: Fn(usize, Conn) -> F + Send + Sync + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let address = listener.local_addr().expect("address").to_string();
        let server = Self { connections: Arc::default(), closed: Arc::default(), address };
        let answer = Arc::new(answer(&server.address));
        let play: Play = Arc::new(move |number, conn| Box::pin(play(number, conn)));
        let (connections, closed) = (Arc::clone(&server.connections), Arc::clone(&server.closed));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let work = serve(
                    stream,
                    Arc::clone(&answer),
                    Arc::clone(&play),
                    Arc::clone(&connections),
                    Arc::clone(&closed),
                );
                tokio::spawn(work);
            }
        });
        server
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// A good answer with this gateway.
pub fn good(url: &str) -> Answer {
    let limit = json!({ "total": 1000, "remaining": 900, "reset_after": 60_000, "max_concurrency": 1 });
    Answer { status: 200, body: json!({ "url": url, "shards": 1, "session_start_limit": limit }) }
}

async fn serve(
    mut stream: TcpStream,
    answer: Arc<Answer>,
    play: Play,
    connections: Arc<AtomicUsize>,
    closed: Arc<Mutex<Vec<u16>>>,
) {
    let mut head = [0; 8];
    while stream.peek(&mut head).await.is_ok_and(|have| (1..head.len()).contains(&have)) {
        tokio::task::yield_now().await;
    }
    if head.starts_with(b"GET /api") {
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
    play(number, Conn { socket, seq: 0, closed }).await;
}

/// One websocket.
pub struct Conn {
    socket: WebSocketStream<TcpStream>,
    seq: u64,
    closed: Arc<Mutex<Vec<u16>>>,
}

impl Conn {
    pub async fn text(&mut self, text: impl Into<String>) {
        let _ = self.socket.send(Message::Text(text.into())).await;
    }

    /// HELLO, and waits for IDENTIFY or RESUME; answers which.
    pub async fn greet(&mut self, heartbeat_ms: u64) -> u64 {
        self.text(
            json!({ "op": 10, "d": { "heartbeat_interval": heartbeat_ms }, "s": null, "t": null })
                .to_string(),
        )
        .await;
        loop {
            match self.next().await.and_then(|payload| payload["op"].as_u64()) {
                Some(op @ (2 | 6)) => return op,
                Some(_) => {}
                None => return 0,
            }
        }
    }

    /// A whole beginning, with heartbeats so rare that nothing is noticed by them.
    pub async fn begin(&mut self) {
        self.greet(3_600_000).await;
        self.dispatch("READY", ready()).await;
    }

    pub async fn dispatch(&mut self, name: &str, data: Value) {
        self.seq += 1;
        self.text(json!({ "op": 0, "t": name, "s": self.seq, "d": data }).to_string()).await;
    }

    /// Leaves out so many numbers.
    pub fn skip(&mut self, numbers: u64) {
        self.seq += numbers;
    }

    /// Many at once: one write.
    pub async fn burst(&mut self, events: impl Iterator<Item = (&'static str, Value)>) {
        for (name, data) in events {
            self.seq += 1;
            let text = json!({ "op": 0, "t": name, "s": self.seq, "d": data }).to_string();
            let _ = self.socket.feed(Message::Text(text)).await;
        }
        let _ = self.socket.flush().await;
    }

    /// What the client sends next; heartbeats are answered.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            match self.socket.next().await? {
                Ok(Message::Text(text)) => {
                    let payload: Value = serde_json::from_str(&text).expect("json");
                    if payload["op"] == json!(1) {
                        self.text(json!({ "op": 11, "d": null, "s": null, "t": null }).to_string()).await;
                    }
                    return Some(payload);
                }
                Ok(Message::Close(frame)) => {
                    self.closed.lock().expect("lock").extend(frame.map(|frame| u16::from(frame.code)));
                }
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    /// Serves heartbeats until the client goes.
    pub async fn keep(mut self) {
        while self.next().await.is_some() {}
    }

    /// Closes, with a code or without any.
    pub async fn close(mut self, code: Option<u16>) {
        let frame = code.map(|code| CloseFrame { code: code.into(), reason: "".into() });
        let _ = self.socket.send(Message::Close(frame)).await;
        while let Some(Ok(_)) = self.socket.next().await {}
    }
}

pub fn user(id: u64, name: &str) -> Value {
    json!({ "id": id.to_string(), "username": name, "discriminator": "0", "avatar": null, "bot": id == 1 })
}

pub fn ready() -> Value {
    json!({
        "v": 10, "guilds": [], "session_id": "s", "resume_gateway_url": "wss://gateway.discord.gg", "shard": [0, 1],
        "application": { "id": "2", "flags": 0 },
        "user": { "id": "1", "username": "bot", "discriminator": "0", "avatar": null, "bot": true, "verified": true,
                  "mfa_enabled": false, "flags": 0, "email": null },
    })
}

pub fn message(id: u64) -> Value {
    json!({
        "id": id.to_string(), "channel_id": "10", "author": user(9, "ann"), "content": format!("m{id}"), "type": 0,
        "timestamp": "2026-11-22T09:00:00.000000+00:00", "edited_timestamp": null, "tts": false, "pinned": false,
        "mention_everyone": false, "mentions": [], "mention_roles": [], "attachments": [], "embeds": [],
        "components": [],
    })
}

/// A click, with one field less than the library needs.
pub fn click_without_locale(id: u64) -> Value {
    json!({
        "id": id.to_string(), "application_id": "2", "type": 3, "token": "hunter2", "version": 1, "channel_id": "10",
        "user": user(9, "ann"), "data": { "custom_id": "acp1:/acp cancel", "component_type": 2 },
        "message": message(77), "entitlements": [], "attachment_size_limit": 10_485_760,
    })
}
