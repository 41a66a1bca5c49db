//! One client's connection to the gateway, for clients that expect to lose it: every failure is a value.

use acp_testkit::processes::KillOnDrop;
use acp_tests::northbound::try_http;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use tokio_tungstenite::tungstenite::{self, Message};

/// Maximum wait for the head of a response.
const HEAD: Duration = Duration::from_secs(20);
/// Interval at which a WebSocket looks for messages to send.
const POLL: Duration = Duration::from_millis(5);
const JSON: (&str, &str) = ("content-type", "application/json");

/// Message of the gateway, with its event id.
type Event = (Option<String>, Value);

/// Result of a read.
pub(crate) enum Next {
    Event(Event),
    Nothing,
    Ended,
}

enum Sending {
    /// Messages go by POST to this path, for this connection.
    Http {
        path: String,
        connection: String,
    },
    Queue(SyncSender<Message>),
    Bridge(KillOnDrop),
}

/// See the module. Its reader takes the next message only after the last one was taken from it: a client that does not
/// read is a socket that does not.
pub(crate) struct Link {
    sending: Sending,
    received: Receiver<Event>,
    socket: Option<UnixStream>,
}

impl Link {
    /// Initializes over HTTP and opens the stream of a session.
    pub(crate) fn http(socket: &Path, path: &str, session: &str) -> Option<Self> {
        let answer = try_http(socket, "POST", path, &[JSON], &initialize(0).to_string()).ok()?;
        assert_eq!(answer.status, 200, "{answer:?}");
        Self::stream(socket, path, session, &answer.header("acp-connection-id")?, None)
    }

    /// Opens the stream of a session of a connection, after the event that came last.
    pub(crate) fn stream(
        socket: &Path,
        path: &str,
        session: &str,
        connection: &str,
        last: Option<&str>,
    ) -> Option<Self> {
        let mut stream = UnixStream::connect(socket).ok()?;
        let last = last.map(|last| format!("last-event-id: {last}\r\n")).unwrap_or_default();
        let head = format!(
            "GET {path} HTTP/1.0\r\nhost: gateway\r\naccept: text/event-stream\r\nacp-connection-id: {connection}\r\n\
             acp-session-id: {session}\r\n{last}\r\n"
        );
        stream.set_read_timeout(Some(HEAD)).ok()?;
        stream.write_all(head.as_bytes()).ok()?;
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        if !head.starts_with("HTTP/1.0 200") && !head.starts_with("HTTP/1.1 200") {
            assert!(head.contains(" 404 "), "{head}");
            return None;
        }
        stream.set_read_timeout(None).ok()?;
        let (to, received) = sync_channel(0);
        std::thread::spawn(move || read_events(reader, &to));
        let sending = Sending::Http { path: path.to_owned(), connection: connection.to_owned() };
        Some(Self { sending, received, socket: Some(stream) })
    }

    /// Opens a WebSocket and initializes.
    pub(crate) fn websocket(socket: &Path, path: &str) -> Option<Self> {
        let stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(HEAD)).ok()?;
        let (mut ws, _) = tungstenite::client(format!("ws://gateway{path}"), stream).ok()?;
        ws.send(Message::Text(initialize(0).to_string())).ok()?;
        let _ = ws.read().ok()?;
        let kept = ws.get_ref().try_clone().ok()?;
        kept.set_read_timeout(Some(POLL)).ok()?;
        let (queue, outgoing) = sync_channel(100);
        let (to, received) = sync_channel(0);
        std::thread::spawn(move || run_websocket(ws, &outgoing, &to));
        Some(Self { sending: Sending::Queue(queue), received, socket: Some(kept) })
    }

    /// Starts a bridge and initializes.
    pub(crate) fn bridge(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let reader = BufReader::new(child.stdout.take().unwrap());
        let (to, received) = sync_channel(0);
        std::thread::spawn(move || {
            for line in reader.lines().map_while(Result::ok) {
                let json = serde_json::from_str(&line).unwrap_or_else(|e| panic!("not JSON ({e}): {line}"));
                if to.send((None, json)).is_err() {
                    return;
                }
            }
        });
        let mut link = Self { sending: Sending::Bridge(KillOnDrop(child)), received, socket: None };
        let _ = link.send("", &initialize(0));
        link
    }

    /// Id of the connection over HTTP.
    pub(crate) fn connection(&self) -> Option<&str> {
        match &self.sending {
            Sending::Http { connection, .. } => Some(connection),
            Sending::Queue(_) | Sending::Bridge(_) => None,
        }
    }

    /// Sends a message. Returns false if it may not have arrived.
    pub(crate) fn send(&mut self, socket: impl AsRef<Path>, message: &Value) -> bool {
        match &mut self.sending {
            Sending::Http { path, connection } => {
                let headers = [JSON, ("acp-connection-id", connection.as_str())];
                let answer = try_http(socket.as_ref(), "POST", path, &headers, &message.to_string());
                answer.is_ok_and(|answer| {
                    assert!(matches!(answer.status, 202 | 404), "{answer:?}");
                    answer.status == 202
                })
            }
            Sending::Queue(queue) => queue.try_send(Message::Text(message.to_string())).is_ok(),
            Sending::Bridge(child) => {
                let line = format!("{message}\n");
                child.0.stdin.as_mut().is_some_and(|stdin| stdin.write_all(line.as_bytes()).is_ok())
            }
        }
    }

    pub(crate) fn next(&self, wait: Duration) -> Next {
        match self.received.recv_timeout(wait) {
            Ok(event) => Next::Event(event),
            Err(RecvTimeoutError::Timeout) => Next::Nothing,
            Err(RecvTimeoutError::Disconnected) => Next::Ended,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

fn initialize(id: u64) -> Value {
    let params = json!({"protocolVersion": 1, "clientCapabilities": {}});
    json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": params})
}

/// Reads events. One that is not complete did not happen.
fn read_events(mut reader: BufReader<UnixStream>, to: &SyncSender<Event>) {
    let (mut id, mut data, mut line) = (None, None, String::new());
    while reader.read_line(&mut line).is_ok_and(|read| read > 0) && line.ends_with('\n') {
        if let Some(found) = line.strip_prefix("id: ") {
            id = Some(found.trim_end().to_owned());
        } else if let Some(found) = line.strip_prefix("data: ") {
            data = Some(serde_json::from_str(found).unwrap());
        } else if line == "\n"
            && let Some(json) = data.take()
            && to.send((id.take(), json)).is_err()
        {
            return;
        }
        line.clear();
    }
}

fn run_websocket(
    mut ws: tungstenite::WebSocket<UnixStream>,
    outgoing: &Receiver<Message>,
    to: &SyncSender<Event>,
) {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    loop {
        while let Ok(message) = outgoing.try_recv() {
            if ws.send(message).is_err() {
                return;
            }
        }
        match ws.read() {
            Ok(Message::Text(text)) => {
                if to.send((None, serde_json::from_str(&text).unwrap())).is_err() {
                    return;
                }
            }
            Ok(Message::Close(_)) => return,
            Ok(_) => {}
            Err(tungstenite::Error::Io(error)) if matches!(error.kind(), WouldBlock | TimedOut) => {}
            Err(_) => return,
        }
    }
}
