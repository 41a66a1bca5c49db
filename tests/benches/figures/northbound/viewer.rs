//! An ACP client over a WebSocket or over HTTP with an event stream, read by one thread as fast as possible.

use crate::turn::{Dialect, Turn, Watch};
use serde_json::{Value, json};
use std::fmt::Debug;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

/// Maximum idle time of a connection that is used for another POST: Node closes idle ones after 5 s.
const IDLE_MAX: Duration = Duration::from_secs(3);

/// A connection of either family.
pub(super) trait Socket: Read + Write + Debug + Send {}

impl<T: Read + Write + Debug + Send> Socket for T {}

fn boxed(socket: impl Socket + 'static) -> Box<dyn Socket> {
    Box::new(socket)
}

/// A response that is being read.
pub(super) type Reader = BufReader<Box<dyn Socket>>;

#[derive(Debug, Clone)]
enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// A server of ACP.
#[derive(Debug, Clone)]
pub(super) struct Server {
    address: Address,
    path: String,
    token: String,
    dialect: Dialect,
}

impl Server {
    /// The demo agent of the gateway behind `socket`.
    pub(super) fn demo(socket: &Path) -> Self {
        let (address, path) = (Address::Unix(socket.to_owned()), "/acp/demo".to_owned());
        Self { address, path, token: String::new(), dialect: Dialect::Acp }
    }

    /// A server on TCP; without a token if that is empty.
    pub(super) fn tcp(address: SocketAddr, path: String, token: String, dialect: Dialect) -> Self {
        Self { address: Address::Tcp(address), path, token, dialect }
    }

    fn connect(&self) -> Box<dyn Socket> {
        let socket = match &self.address {
            Address::Unix(path) => UnixStream::connect(path).map(boxed),
            Address::Tcp(address) => TcpStream::connect(address)
                .and_then(|socket| socket.set_nodelay(true).map(|()| boxed(socket))),
        };
        socket.unwrap_or_else(|e| panic!("{:?}: {e}", self.address))
    }

    fn host(&self) -> String {
        match self.address {
            Address::Unix(_) => "localhost".to_owned(),
            Address::Tcp(address) => address.to_string(),
        }
    }

    /// Start of the head of a request.
    fn head(&self, verb: &str, version: &str) -> String {
        let start = format!("{verb} {} HTTP/{version}\r\nhost: {}\r\n", self.path, self.host());
        if self.token.is_empty() { start } else { format!("{start}authorization: Bearer {}\r\n", self.token) }
    }
}

#[derive(Debug)]
enum Transport {
    WebSocket(Box<WebSocket<Box<dyn Socket>>>),
    /// The last one of the streams is read.
    Http {
        posts: Reader,
        used: Instant,
        streams: Vec<Reader>,
        connection: String,
    },
}

/// A client with an open session.
#[derive(Debug)]
pub(super) struct Viewer {
    server: Server,
    transport: Transport,
    /// The session.
    pub(super) session: String,
    line: String,
    next_id: u64,
}

fn initialize() -> Value {
    let params = json!({"protocolVersion": 1, "clientCapabilities": {}});
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
}

/// Reads the head of a response; returns its status line and the id of the connection.
fn read_head(from: &mut Reader) -> (String, Option<String>, usize) {
    let (mut status, mut connection, mut length) = (String::new(), None, 0);
    from.read_line(&mut status).unwrap_or_else(|e| panic!("no response: {e}"));
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        let read = from.read_line(&mut line).unwrap_or_else(|e| panic!("no response: {e}"));
        assert!(read > 0, "no response: {status}");
        let (name, value) = line.trim().split_once(": ").unwrap_or_default();
        if name.eq_ignore_ascii_case("acp-connection-id") {
            connection = Some(value.to_owned());
        }
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().unwrap_or(0);
        }
    }
    (status, connection, length)
}

fn post(server: &Server, to: &mut Reader, connection: Option<&str>, message: &Value) -> Option<String> {
    let body = message.to_string();
    let connection = connection.map(|id| format!("acp-connection-id: {id}\r\n")).unwrap_or_default();
    let head = format!(
        "{}content-type: application/json\r\n{connection}content-length: {}\r\n\r\n",
        server.head("POST", "1.1"),
        body.len()
    );
    let sent = to.get_mut().write_all(format!("{head}{body}").as_bytes());
    sent.unwrap_or_else(|e| panic!("cannot send: {e}"));
    let (status, connection, length) = read_head(to);
    assert!(status.starts_with("HTTP/1.1 20"), "{status}");
    let mut rest = vec![0; length];
    to.read_exact(&mut rest).unwrap_or_else(|e| panic!("no body: {e}"));
    connection
}

/// Initializes over HTTP; returns the connection.
pub(super) fn initialize_http(server: &Server) -> String {
    let id = post(server, &mut BufReader::new(server.connect()), None, &initialize());
    id.unwrap_or_else(|| panic!("no connection"))
}

/// Opens the stream of a connection, or of one of its sessions.
pub(super) fn open_stream(server: &Server, connection: &str, session: Option<&str>) -> Reader {
    let mut events = BufReader::with_capacity(64 * 1024, server.connect());
    let session = session.map(|key| format!("acp-session-id: {key}\r\n")).unwrap_or_default();
    let head = format!(
        "{}accept: text/event-stream\r\nacp-connection-id: {connection}\r\n{session}\r\n",
        server.head("GET", "1.0")
    );
    events.get_mut().write_all(head.as_bytes()).unwrap_or_else(|e| panic!("cannot send: {e}"));
    let (status, ..) = read_head(&mut events);
    assert!(status.contains(" 200 "), "{status}");
    events
}

impl Viewer {
    /// Connects a WebSocket.
    pub(super) fn websocket(server: &Server) -> Self {
        let uri = format!("ws://{}{}", server.host(), server.path);
        let mut request = uri.into_client_request().unwrap_or_else(|e| panic!("{server:?}: {e}"));
        if !server.token.is_empty() {
            let value = format!("Bearer {}", server.token);
            let value = value.parse().unwrap_or_else(|e| panic!("{server:?}: {e}"));
            request.headers_mut().insert("authorization", value);
        }
        let (mut ws, _) = tungstenite::client(request, server.connect())
            .unwrap_or_else(|e| panic!("no upgrade by {server:?}: {e}"));
        ws.send(Message::Text(initialize().to_string())).unwrap_or_else(|e| panic!("cannot send: {e}"));
        let mut viewer = Self::of(server, Transport::WebSocket(Box::new(ws)));
        viewer.read();
        viewer
    }

    /// Connects over HTTP, with the connection's stream.
    pub(super) fn http(server: &Server) -> Self {
        let connection = initialize_http(server);
        let streams = vec![open_stream(server, &connection, None)];
        let (posts, used) = (BufReader::new(server.connect()), Instant::now());
        Self::of(server, Transport::Http { posts, used, streams, connection })
    }

    fn of(server: &Server, transport: Transport) -> Self {
        Self { server: server.clone(), transport, session: String::new(), line: String::new(), next_id: 1 }
    }

    /// Starts a session.
    pub(super) fn start(mut self, cwd: &Path) -> Self {
        let id = self.request("session/new", &json!({"cwd": cwd, "mcpServers": []}));
        let answer = self.answer(id, |_| {});
        let key = answer["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("no session: {answer}"));
        key.clone_into(&mut self.session);
        self
    }

    /// Opens the session's own stream, if the transport has more than one, and reads that one from now on.
    pub(super) fn with_session_stream(mut self) -> Self {
        if let Transport::Http { streams, connection, .. } = &mut self.transport {
            streams.push(open_stream(&self.server, connection, Some(&self.session)));
        }
        self
    }

    /// Loads a session, on its own stream if the transport has more than one; calls `on` with each update.
    pub(super) fn load(mut self, session: &str, on: impl FnMut(&str)) -> Self {
        session.clone_into(&mut self.session);
        self = self.with_session_stream();
        let id = self.request("session/load", &json!({"sessionId": session, "cwd": "/", "mcpServers": []}));
        let _ = self.answer(id, on);
        self
    }

    /// Runs a turn to its end.
    pub(super) fn prompt(&mut self, text: &str) -> Turn {
        let params = json!({"sessionId": self.session, "prompt": [{"type": "text", "text": text}]});
        self.reconnect_if_idle();
        let mut watch = Watch::begin(self.server.dialect);
        self.request("session/prompt", &params);
        self.until_end(&mut watch)
    }

    /// Reads a turn of another client to its end.
    pub(super) fn watch(&mut self) -> Turn {
        self.until_end(&mut Watch::begin(self.server.dialect))
    }

    fn reconnect_if_idle(&mut self) {
        if let Transport::Http { posts, used, .. } = &mut self.transport {
            if used.elapsed() > IDLE_MAX {
                *posts = BufReader::new(self.server.connect());
            }
            *used = Instant::now();
        }
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
                let _ = post(&self.server, posts, Some(connection), &message);
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
            Transport::Http { streams, .. } => loop {
                self.line.clear();
                let Some(events) = streams.last_mut() else { panic!("no stream") };
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
