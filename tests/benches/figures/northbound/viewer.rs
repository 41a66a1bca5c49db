//! An ACP client over a WebSocket or over HTTP with an event stream, read by one thread as fast as possible.

use crate::turn::{Dialect, Turn, Watch};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

const PATH: &str = "/acp/demo";

#[derive(Debug)]
enum Transport {
    WebSocket(Box<WebSocket<UnixStream>>),
    Http { posts: BufReader<UnixStream>, events: BufReader<UnixStream>, connection: String },
}

/// A client with an open session.
#[derive(Debug)]
pub(super) struct Viewer {
    transport: Transport,
    /// The session.
    pub(super) session: String,
    line: String,
    next_id: u64,
}

fn connect(socket: &Path) -> UnixStream {
    UnixStream::connect(socket).unwrap_or_else(|e| panic!("{}: {e}", socket.display()))
}

fn initialize() -> Value {
    let params = json!({"protocolVersion": 1, "clientCapabilities": {}});
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
}

/// Reads the head of a response; returns its status line and the id of the connection.
fn read_head(from: &mut BufReader<UnixStream>) -> (String, Option<String>, usize) {
    let (mut status, mut connection, mut length) = (String::new(), None, 0);
    from.read_line(&mut status).unwrap_or_else(|e| panic!("no response: {e}"));
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        let read = from.read_line(&mut line).unwrap_or_else(|e| panic!("no response: {e}"));
        assert!(read > 0, "no response: {status}");
        if let Some(id) = line.strip_prefix("acp-connection-id: ") {
            connection = Some(id.trim().to_owned());
        }
        if let Some(text) = line.strip_prefix("content-length: ") {
            length = text.trim().parse().unwrap_or(0);
        }
    }
    (status, connection, length)
}

fn post(to: &mut BufReader<UnixStream>, connection: Option<&str>, message: &Value) -> Option<String> {
    let body = message.to_string();
    let connection = connection.map(|id| format!("acp-connection-id: {id}\r\n")).unwrap_or_default();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{connection}content-length: {}\r\n\r\n",
        body.len()
    );
    let sent = to.get_mut().write_all(format!("{head}{body}").as_bytes());
    sent.unwrap_or_else(|e| panic!("cannot send: {e}"));
    let (status, connection, length) = read_head(to);
    assert!(status.starts_with("HTTP/1.1 20"), "{status}");
    let mut rest = vec![0; length];
    std::io::Read::read_exact(to, &mut rest).unwrap_or_else(|e| panic!("no body: {e}"));
    connection
}

/// Initializes over HTTP; returns the connection.
pub(super) fn initialize_http(socket: &Path) -> String {
    let id = post(&mut BufReader::new(connect(socket)), None, &initialize());
    id.unwrap_or_else(|| panic!("no connection"))
}

/// Opens the stream of a connection, or of one of its sessions.
pub(super) fn open_stream(socket: &Path, connection: &str, session: Option<&str>) -> BufReader<UnixStream> {
    let mut events = BufReader::with_capacity(64 * 1024, connect(socket));
    let session = session.map(|key| format!("acp-session-id: {key}\r\n")).unwrap_or_default();
    let head = format!(
        "GET {PATH} HTTP/1.0\r\nhost: localhost\r\naccept: text/event-stream\r\nacp-connection-id: {connection}\r\n{session}\r\n"
    );
    events.get_mut().write_all(head.as_bytes()).unwrap_or_else(|e| panic!("cannot send: {e}"));
    let (status, ..) = read_head(&mut events);
    assert!(status.contains(" 200 "), "{status}");
    events
}

impl Viewer {
    /// Connects a WebSocket.
    pub(super) fn websocket(socket: &Path) -> Self {
        let (mut ws, _) = tungstenite::client(format!("ws://localhost{PATH}"), connect(socket))
            .unwrap_or_else(|e| panic!("no upgrade: {e}"));
        ws.send(Message::Text(initialize().to_string())).unwrap_or_else(|e| panic!("cannot send: {e}"));
        let mut viewer = Self::of(Transport::WebSocket(Box::new(ws)));
        viewer.read();
        viewer
    }

    /// Connects over HTTP, with the connection's stream.
    pub(super) fn http(socket: &Path) -> Self {
        let connection = initialize_http(socket);
        let events = open_stream(socket, &connection, None);
        Self::of(Transport::Http { posts: BufReader::new(connect(socket)), events, connection })
    }

    const fn of(transport: Transport) -> Self {
        Self { transport, session: String::new(), line: String::new(), next_id: 1 }
    }

    /// Starts a session.
    pub(super) fn start(mut self, cwd: &Path) -> Self {
        let id = self.request("session/new", &json!({"cwd": cwd, "mcpServers": []}));
        let answer = self.answer(id, |_| {});
        let key = answer["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("no session: {answer}"));
        key.clone_into(&mut self.session);
        self
    }

    /// Loads a session; calls `on` with each update.
    pub(super) fn load(mut self, session: &str, on: impl FnMut(&str)) -> Self {
        session.clone_into(&mut self.session);
        let id = self.request("session/load", &json!({"sessionId": session, "cwd": "/", "mcpServers": []}));
        let _ = self.answer(id, on);
        self
    }

    /// Runs a turn to its end.
    pub(super) fn prompt(&mut self, text: &str) -> Turn {
        let params = json!({"sessionId": self.session, "prompt": [{"type": "text", "text": text}]});
        let mut watch = Watch::begin(Dialect::Acp);
        self.request("session/prompt", &params);
        self.until_end(&mut watch)
    }

    /// Reads a turn of another client to its end.
    pub(super) fn watch(&mut self) -> Turn {
        self.until_end(&mut Watch::begin(Dialect::Acp))
    }

    fn until_end(&mut self, watch: &mut Watch) -> Turn {
        loop {
            self.read();
            if let Some(turn) = watch.line(&self.line) {
                return turn;
            }
        }
    }

    fn answer(&mut self, id: u64, mut on: impl FnMut(&str)) -> Value {
        let start = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},");
        loop {
            self.read();
            if self.line.starts_with(&start) {
                return serde_json::from_str(&self.line).unwrap_or_else(|e| panic!("{e}: {}", self.line));
            }
            on(&self.line);
        }
    }

    fn request(&mut self, method: &str, params: &Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        match &mut self.transport {
            Transport::WebSocket(ws) => {
                let sent = ws.send(Message::Text(message.to_string()));
                sent.unwrap_or_else(|e| panic!("cannot send: {e}"));
            }
            Transport::Http { posts, connection, .. } => {
                let _ = post(posts, Some(connection), &message);
            }
        }
        id
    }

    /// Reads the next message.
    fn read(&mut self) {
        match &mut self.transport {
            Transport::WebSocket(ws) => loop {
                if let Message::Text(text) = ws.read().unwrap_or_else(|e| panic!("the socket: {e}")) {
                    self.line = text;
                    return;
                }
            },
            Transport::Http { events, .. } => loop {
                self.line.clear();
                let read = events.read_line(&mut self.line).unwrap_or_else(|e| panic!("the stream: {e}"));
                assert!(read > 0, "the stream ended");
                if self.line.starts_with("data: ") {
                    self.line.drain(.."data: ".len());
                    return;
                }
            },
        }
    }
}
