//! Clients that speak ACP to a gateway: over HTTP with event streams, over a WebSocket, and through the stdio bridge.
//! Written for tests: each received message says on which stream it came, and nothing is hidden.

use crate::wait::SOON;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

/// Maximum number of messages that a test has not read.
const MESSAGES_MAX: usize = 100_000;

/// Name of the stream of the connection.
pub const CONNECTION: &str = "connection";

/// Message of the gateway.
#[derive(Debug, Clone)]
pub struct Received {
    /// Stream: [`CONNECTION`], a session, `ws` or `stdio`.
    pub stream: String,
    /// Id of the event, if it has one.
    pub id: Option<String>,
    /// The message; null at the end of the stream.
    pub json: Value,
}

/// Response to a request over HTTP.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status.
    pub status: u16,
    /// Head of the response.
    pub head: String,
    /// Body of the response.
    pub body: String,
}

impl Answer {
    /// Value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(have, _)| have.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

fn connect(socket: &Path) -> UnixStream {
    UnixStream::connect(socket).unwrap_or_else(|e| panic!("{}: {e}", socket.display()))
}

/// Sends one request over a connection of its own. The version without chunks makes the body end with the connection.
///
/// # Panics
/// When there is no response.
#[must_use]
pub fn http(socket: &Path, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let answer = try_http(socket, method, path, headers, body);
    answer.unwrap_or_else(|e| panic!("{method} {path}: {e}"))
}

/// As [`http`], for a gateway that may be gone.
///
/// # Errors
/// There is no response.
pub fn try_http(
    socket: &Path,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    send_head(&mut stream, method, path, headers, body.len())?;
    let _ = stream.write_all(body.as_bytes());
    let mut bytes = Vec::new();
    // A server that refuses a body may close before it has read all of it.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other(format!("no status: {text:?}")))?;
    Ok(Answer { status, head: head.to_owned(), body: body.to_owned() })
}

fn send_head(
    stream: &mut UnixStream,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    length: usize,
) -> std::io::Result<()> {
    let mut head = format!("{method} {path} HTTP/1.0\r\nhost: gateway\r\ncontent-length: {length}\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())
}

enum Transport {
    Http { socket: PathBuf, path: String, connection: String },
    Queue(SyncSender<Message>),
    Stdio(Box<Child>),
}

/// A client.
pub struct Client {
    transport: Transport,
    sender: SyncSender<Received>,
    received: Receiver<Received>,
    /// Messages that were read and not asked for yet.
    backlog: VecDeque<Received>,
    next_id: u64,
    /// Streams over HTTP, to cut them.
    sockets: Vec<(String, UnixStream)>,
    /// Result of `initialize`.
    pub info: Value,
}

fn initialize_params() -> Value {
    json!({"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": {"name": "test", "version": "1"}})
}

impl Client {
    fn new(transport: Transport, sender: SyncSender<Received>, received: Receiver<Received>) -> Self {
        let backlog = VecDeque::new();
        Self { transport, sender, received, backlog, next_id: 1, sockets: Vec::new(), info: Value::Null }
    }

    /// Initializes over HTTP and opens the connection's stream.
    ///
    /// # Panics
    /// When the gateway refuses.
    #[must_use]
    pub fn http(socket: &Path, path: &str) -> Self {
        let mut client = Self::http_without_stream(socket, path);
        client.open(CONNECTION, None);
        client
    }

    /// Initializes over HTTP.
    ///
    /// # Panics
    /// When the gateway refuses.
    #[must_use]
    pub fn http_without_stream(socket: &Path, path: &str) -> Self {
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": initialize_params()});
        let answer = http(socket, "POST", path, &[("content-type", "application/json")], &body.to_string());
        assert_eq!(answer.status, 200, "{answer:?}");
        let connection = answer.header("acp-connection-id").unwrap_or_else(|| panic!("no id: {answer:?}"));
        let (sender, received) = sync_channel(MESSAGES_MAX);
        let transport = Transport::Http { socket: socket.to_owned(), path: path.to_owned(), connection };
        let mut client = Self::new(transport, sender, received);
        client.info = answer.json()["result"].clone();
        client
    }

    /// Connects a WebSocket and initializes.
    ///
    /// # Panics
    /// When the gateway refuses.
    #[must_use]
    pub fn websocket(socket: &Path, path: &str) -> Self {
        Self::websocket_with(socket, path, &json!({}))
    }

    /// As [`Client::websocket`], and declares these capabilities.
    ///
    /// # Panics
    /// When the gateway refuses.
    #[must_use]
    pub fn websocket_with(socket: &Path, path: &str, capabilities: &Value) -> Self {
        let stream = connect(socket);
        let request = format!("ws://gateway{path}");
        let (mut ws, _) = tungstenite::client(request, stream).unwrap_or_else(|e| panic!("no upgrade: {e}"));
        let poll = Some(Duration::from_millis(5));
        ws.get_mut().set_read_timeout(poll).unwrap_or_else(|e| panic!("{e}"));
        let (sender, received) = sync_channel(MESSAGES_MAX);
        let (queue, outgoing) = sync_channel(1_000);
        let to = sender.clone();
        std::thread::spawn(move || run_websocket(ws, &outgoing, &to));
        let mut client = Self::new(Transport::Queue(queue), sender, received);
        let mut params = initialize_params();
        params["clientCapabilities"] = capabilities.clone();
        client.info = client.call("initialize", &params);
        client
    }

    /// Starts a bridge and initializes.
    ///
    /// # Panics
    /// When it cannot be started, or fails.
    #[must_use]
    pub fn stdio(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        let stdout = child.stdout.take().unwrap_or_else(|| panic!("no stdout"));
        let (sender, received) = sync_channel(MESSAGES_MAX);
        let to = sender.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Anything else than JSON on standard output is a failure of every test.
                let json = serde_json::from_str(&line)
                    .unwrap_or_else(|e| json!({"not_json": line, "error": e.to_string()}));
                if to.send(Received { stream: "stdio".to_owned(), id: None, json }).is_err() {
                    return;
                }
            }
            let _ = to.send(Received { stream: "stdio".to_owned(), id: None, json: Value::Null });
        });
        let mut client = Self::new(Transport::Stdio(Box::new(child)), sender, received);
        client.info = client.call("initialize", &initialize_params());
        client
    }

    /// Id of the connection over HTTP.
    ///
    /// # Panics
    /// Over another transport.
    #[must_use]
    pub fn connection(&self) -> &str {
        match &self.transport {
            Transport::Http { connection, .. } => connection,
            Transport::Queue(_) | Transport::Stdio(_) => panic!("no HTTP connection"),
        }
    }

    /// Closes standard input of a bridge and returns its exit code.
    ///
    /// # Panics
    /// Over another transport.
    #[must_use]
    pub fn end_of_input(mut self) -> Option<i32> {
        match &mut self.transport {
            Transport::Stdio(child) => {
                drop(child.stdin.take());
                child.wait().ok().and_then(|status| status.code())
            }
            Transport::Http { .. } | Transport::Queue(_) => panic!("no bridge"),
        }
    }

    /// Opens the stream of a session, or [`CONNECTION`], over HTTP. Waits for its first bytes.
    ///
    /// # Panics
    /// When the gateway refuses.
    pub fn open(&mut self, stream: &str, last_event_id: Option<&str>) {
        let answer = self.try_open(stream, last_event_id);
        assert!(answer.is_ok(), "{answer:?}");
    }

    /// As [`Client::open`].
    ///
    /// # Errors
    /// The response of a gateway that refuses.
    ///
    /// # Panics
    /// Over another transport.
    pub fn try_open(&mut self, stream: &str, last_event_id: Option<&str>) -> Result<(), Answer> {
        let Transport::Http { socket, path, connection } = &self.transport else { panic!("no HTTP") };
        let mut headers = vec![("accept", "text/event-stream"), ("acp-connection-id", connection.as_str())];
        if stream != CONNECTION {
            headers.push(("acp-session-id", stream));
        }
        headers.extend(last_event_id.map(|id| ("last-event-id", id)));
        let mut opened = connect(socket);
        send_head(&mut opened, "GET", path, &headers, 0).unwrap_or_else(|e| panic!("cannot send: {e}"));
        let kept = opened.try_clone().unwrap_or_else(|e| panic!("{e}"));
        let mut reader = BufReader::new(opened);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                break;
            }
        }
        let status: u16 = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        if status != 200 {
            let mut body = String::new();
            let _ = reader.read_to_string(&mut body);
            return Err(Answer { status, head, body });
        }
        let mut first = String::new();
        while first != "\n" {
            first.clear();
            let read = reader.read_line(&mut first).unwrap_or(0);
            assert!(read > 0, "the stream has no head");
        }
        self.sockets.retain(|(name, _)| name != stream);
        self.sockets.push((stream.to_owned(), kept));
        let (to, stream) = (self.sender.clone(), stream.to_owned());
        std::thread::spawn(move || read_events(reader, &stream, &to));
        Ok(())
    }

    /// Cuts a stream over HTTP as a broken network does.
    pub fn cut(&mut self, stream: &str) {
        for (_, socket) in self.sockets.iter().filter(|(name, _)| name == stream) {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        self.sockets.retain(|(name, _)| name != stream);
    }

    /// Posts a message over HTTP with further headers, and returns the response.
    ///
    /// # Panics
    /// Over another transport.
    #[must_use]
    pub fn post(&self, message: &str, headers: &[(&str, &str)]) -> Answer {
        let Transport::Http { socket, path, connection } = &self.transport else { panic!("no HTTP") };
        let own = [("content-type", "application/json"), ("acp-connection-id", connection.as_str())];
        http(socket, "POST", path, &[&own, headers].concat(), message)
    }

    /// Sends a message.
    ///
    /// # Panics
    /// When it cannot be sent.
    pub fn send(&mut self, message: &Value) {
        let text = message.to_string();
        match &mut self.transport {
            Transport::Http { .. } => {
                let answer = self.post(&text, &[]);
                assert_eq!((answer.status, answer.body.as_str()), (202, ""), "{message}: {answer:?}");
            }
            Transport::Queue(queue) => {
                queue.send(Message::Text(text)).unwrap_or_else(|e| panic!("the socket is closed: {e}"));
            }
            Transport::Stdio(child) => {
                let stdin = child.stdin.as_mut().unwrap_or_else(|| panic!("no stdin"));
                let written = stdin.write_all(format!("{text}\n").as_bytes()).and_then(|()| stdin.flush());
                written.unwrap_or_else(|e| panic!("the bridge does not read: {e}"));
            }
        }
    }

    /// Sends a request and returns its id.
    pub fn request(&mut self, method: &str, params: &Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// Sends a notification.
    pub fn notify(&mut self, method: &str, params: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Answers a request of the gateway.
    pub fn respond(&mut self, request: &Value, result: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result}));
    }

    /// Answers a permission request with an option.
    pub fn choose(&mut self, request: &Value, option: &str) {
        self.respond(request, &json!({"outcome": {"outcome": "selected", "optionId": option}}));
    }

    /// Next message; `None` if none comes within the deadline.
    pub fn next_within(&mut self, deadline: Duration) -> Option<Received> {
        if let Some(found) = self.backlog.pop_front() {
            return Some(found);
        }
        match self.received.recv_timeout(deadline) {
            Ok(received) => Some(received),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("all streams have ended"),
        }
    }

    /// Reads until a message is found; returns it and the messages before it.
    ///
    /// # Panics
    /// When none comes in time.
    pub fn find(&mut self, what: &str, is: impl Fn(&Received) -> bool) -> (Received, Vec<Received>) {
        let until = Instant::now() + SOON;
        let mut before = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Some(received) = self.next_within(left) else {
                let seen: Vec<String> = before.iter().map(|it: &Received| it.json.to_string()).collect();
                panic!("{what} does not come; before: {seen:#?}");
            };
            if is(&received) {
                return (received, before);
            }
            before.push(received);
        }
    }

    /// Waits for the answer to a request; returns it and the messages before it.
    pub fn answer(&mut self, id: u64) -> (Received, Vec<Received>) {
        self.find(&format!("the answer to {id}"), |it| it.json["id"] == id && it.json.get("method").is_none())
    }

    /// Sends a request and returns its result; messages before it stay to be read.
    ///
    /// # Panics
    /// When it is an error.
    pub fn call(&mut self, method: &str, params: &Value) -> Value {
        let answer = self.call_any(method, params);
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Sends a request and returns its error; messages before it stay to be read.
    ///
    /// # Panics
    /// When it is none.
    pub fn refusal(&mut self, method: &str, params: &Value) -> Value {
        let answer = self.call_any(method, params);
        assert!(answer.get("error").is_some(), "{method}: {answer}");
        answer["error"].clone()
    }

    fn call_any(&mut self, method: &str, params: &Value) -> Value {
        let id = self.request(method, params);
        let (answer, before) = self.answer(id);
        for message in before.into_iter().rev() {
            self.backlog.push_front(message);
        }
        answer.json
    }

    /// Starts a session and returns its id.
    ///
    /// # Panics
    /// When the gateway refuses.
    pub fn new_session(&mut self, cwd: &Path) -> String {
        let result = self.call("session/new", &json!({"cwd": cwd, "mcpServers": []}));
        result["sessionId"].as_str().unwrap_or_else(|| panic!("no session: {result}")).to_owned()
    }

    /// Sends a prompt and returns its id.
    pub fn prompt(&mut self, session: &str, text: &str) -> u64 {
        self.request("session/prompt", &prompt_params(session, text))
    }

    /// Loads a session with a cursor; returns the answer and the messages before it.
    pub fn load(&mut self, session: &str, after: Option<u64>) -> (Received, Vec<Received>) {
        let mut params = json!({"sessionId": session, "cwd": "/", "mcpServers": []});
        if let Some(after) = after {
            params["_meta"] = json!({"acphost": {"after": after}});
        }
        let id = self.request("session/load", &params);
        self.answer(id)
    }

    /// Waits for a permission request or an elicitation; returns it and the messages before it.
    pub fn question(&mut self) -> (Value, Vec<Received>) {
        let is_question = |it: &Received| {
            it.json["method"] == "session/request_permission" || it.json["method"] == "elicitation/create"
        };
        let (found, before) = self.find("a question", is_question);
        (found.json, before)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        for (_, socket) in &self.sockets {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        if let Transport::Stdio(child) = &mut self.transport {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Params of a prompt with one text.
#[must_use]
pub fn prompt_params(session: &str, text: &str) -> Value {
    json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]})
}

/// Concatenated message text of the agent in these messages.
#[must_use]
pub fn agent_text(messages: &[Received]) -> String {
    let updates = messages.iter().map(|message| &message.json["params"]["update"]);
    let chunks = updates.filter(|update| update["sessionUpdate"] == "agent_message_chunk");
    chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
}

/// Texts of people in these messages.
#[must_use]
pub fn user_texts(messages: &[Received]) -> Vec<&str> {
    let updates = messages.iter().map(|message| &message.json["params"]["update"]);
    let chunks = updates.filter(|update| update["sessionUpdate"] == "user_message_chunk");
    chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
}

/// Row numbers of updates in these messages.
#[must_use]
pub fn seqs(messages: &[Received]) -> Vec<u64> {
    let seq = |message: &Received| message.json["params"]["_meta"]["acphost"]["seq"].as_u64();
    messages.iter().filter_map(seq).collect()
}

fn read_events(mut reader: BufReader<UnixStream>, stream: &str, to: &SyncSender<Received>) {
    let (mut id, mut line) = (None, String::new());
    while reader.read_line(&mut line).unwrap_or(0) > 0 {
        if let Some(found) = line.strip_prefix("id: ") {
            id = Some(found.trim_end().to_owned());
        } else if let Some(data) = line.strip_prefix("data: ") {
            let Ok(json) = serde_json::from_str(data) else { break };
            let received = Received { stream: stream.to_owned(), id: id.take(), json };
            if to.send(received).is_err() {
                return;
            }
        }
        line.clear();
    }
    let _ = to.send(Received { stream: stream.to_owned(), id: None, json: Value::Null });
}

fn run_websocket(mut ws: WebSocket<UnixStream>, outgoing: &Receiver<Message>, to: &SyncSender<Received>) {
    use std::sync::mpsc::TryRecvError;
    let ends = |json: Value| Received { stream: "ws".to_owned(), id: None, json };
    loop {
        match outgoing.try_recv() {
            Ok(message) => {
                if ws.send(message).is_err() {
                    break;
                }
                continue;
            }
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {}
        }
        match ws.read() {
            Ok(Message::Text(text)) => {
                let json = serde_json::from_str(&text).unwrap_or(Value::Null);
                if to.send(ends(json)).is_err() {
                    break;
                }
            }
            Ok(Message::Close(_)) => break,
            Ok(_) => {}
            Err(tungstenite::Error::Io(error))
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    let _ = to.send(ends(Value::Null));
}

/// Forwards connections on a port of loopback to the gateway's socket, for clients that only know TCP. Returns the
/// port.
///
/// # Panics
/// When no port is free.
#[must_use]
pub fn tcp_port(socket: &Path) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("{e}"));
    let port = listener.local_addr().unwrap_or_else(|e| panic!("{e}")).port();
    let socket = socket.to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(gateway) = UnixStream::connect(&socket) else { continue };
            let (Ok(mut from_client), Ok(mut to_gateway)) = (client.try_clone(), gateway.try_clone()) else {
                continue;
            };
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from_client, &mut to_gateway);
                let _ = to_gateway.shutdown(std::net::Shutdown::Write);
            });
            let (mut from_gateway, mut to_client) = (gateway, client);
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from_gateway, &mut to_client);
                let _ = to_client.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    port
}
