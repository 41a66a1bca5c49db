//! Small gateway client that sends and receives one payload at a time.

use super::ground::Ground;
use acp_tests::wait::SOON;
use serde_json::{Value, json};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::WebSocket;
use tokio_tungstenite::tungstenite::{self, Message};

/// Guilds, messages, reactions, typing, content.
pub(crate) const INTENTS: u64 = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 15;

/// Received from a connection.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Got {
    Payload(Value),
    /// Close frame with its code.
    Closed(u16),
    /// End of the connection without a close frame.
    Gone,
    /// Nothing within the wait.
    Nothing,
}

pub(crate) struct Wire {
    socket: WebSocket<TcpStream>,
    pub(crate) session: String,
    pub(crate) seq: u64,
    pub(crate) interval_ms: u64,
}

impl Wire {
    /// Connects and reads HELLO.
    pub(crate) fn connect(address: &str) -> Self {
        let mut wire = Self::open(address, "/?v=10&encoding=json");
        let hello = wire.payload();
        assert_eq!(hello["op"], 10, "{hello}");
        wire.interval_ms = hello["d"]["heartbeat_interval"].as_u64().unwrap_or_else(|| panic!("{hello}"));
        wire
    }

    pub(crate) fn open(address: &str, path: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap_or_else(|e| panic!("{address}: {e}"));
        stream.set_nodelay(true).unwrap_or_else(|e| panic!("{e}"));
        let request = format!("ws://{address}{path}").into_client_request().unwrap_or_else(|e| panic!("{e}"));
        let (socket, _) = tungstenite::client::client(request, stream).unwrap_or_else(|e| panic!("{e}"));
        Self { socket, session: String::new(), seq: 0, interval_ms: 0 }
    }

    /// Connects and sends RESUME.
    pub(crate) fn resumed(ground: &Ground, session: &str, seq: u64) -> Self {
        let mut wire = Self::connect(ground.fake.address());
        wire.send(&json!({"op": 6, "d": {"token": ground.bot.token, "session_id": session, "seq": seq}}));
        wire
    }

    /// Connects and sends IDENTIFY.
    pub(crate) fn identified(ground: &Ground, intents: u64) -> Self {
        let mut wire = Self::connect(ground.fake.address());
        wire.identify(&ground.bot.token, intents);
        wire
    }

    /// Connects and identifies; READY and the guilds are read.
    pub(crate) fn ready(ground: &Ground) -> Self {
        let mut wire = Self::identified(ground, INTENTS);
        wire.event("READY");
        wire.event("GUILD_CREATE");
        wire
    }

    pub(crate) fn identify(&mut self, token: &str, intents: u64) {
        let properties = json!({"os": "linux", "browser": "t", "device": "t"});
        self.send(&json!({"op": 2, "d": {"token": token, "intents": intents, "properties": properties}}));
    }

    pub(crate) fn send(&mut self, payload: &Value) {
        self.socket.send(Message::Text(payload.to_string())).unwrap_or_else(|e| panic!("{payload}: {e}"));
    }

    /// Next payload or close within `wait`.
    pub(crate) fn next_within(&mut self, wait: Duration) -> Got {
        let end = Instant::now() + wait;
        loop {
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.socket.get_ref().set_read_timeout(Some(left)).unwrap_or_else(|e| panic!("{e}"));
            match self.socket.read() {
                Ok(Message::Text(text)) => {
                    let payload: Value =
                        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
                    self.note(&payload);
                    return Got::Payload(payload);
                }
                Ok(Message::Close(frame)) => {
                    return frame.map_or(Got::Gone, |frame| Got::Closed(u16::from(frame.code)));
                }
                Ok(_) => {}
                Err(tungstenite::Error::Io(error))
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) =>
                {
                    return Got::Nothing;
                }
                Err(_) => return Got::Gone,
            }
        }
    }

    fn note(&mut self, payload: &Value) {
        if let Some(seq) = payload["s"].as_u64() {
            self.seq = seq;
        }
        if let Some(session) = payload["d"]["session_id"].as_str().filter(|_| payload["t"] == "READY") {
            self.session = session.to_owned();
        }
    }

    pub(crate) fn next(&mut self) -> Got {
        self.next_within(SOON)
    }

    pub(crate) fn payload(&mut self) -> Value {
        match self.next() {
            Got::Payload(payload) => payload,
            other => panic!("no payload but {other:?}"),
        }
    }

    /// The next event, which must have this name.
    pub(crate) fn event(&mut self, name: &str) -> Value {
        let payload = self.payload();
        assert_eq!(payload["t"], name, "{payload}");
        payload["d"].clone()
    }

    /// Names of the next events.
    pub(crate) fn names(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.payload()["t"].as_str().unwrap_or("none").to_owned()).collect()
    }

    /// Reads up to an event with this name.
    pub(crate) fn until(&mut self, name: &str) -> Value {
        loop {
            let payload = self.payload();
            if payload["t"] == name {
                return payload["d"].clone();
            }
        }
    }

    /// Checks that nothing arrives for a moment.
    pub(crate) fn quiet(&mut self) {
        let got = self.next_within(Duration::from_millis(400));
        assert_eq!(got, Got::Nothing);
    }

    /// Reads to the end of the connection and returns the close code, if any.
    pub(crate) fn end(&mut self) -> Option<u16> {
        loop {
            match self.next() {
                Got::Payload(_) => {}
                Got::Closed(code) => return Some(code),
                Got::Gone => return None,
                Got::Nothing => panic!("the connection did not end"),
            }
        }
    }

    /// Closes with a code, and waits for the other side.
    pub(crate) fn close(mut self, code: u16) {
        let frame = tungstenite::protocol::CloseFrame { code: code.into(), reason: "".into() };
        self.socket.close(Some(frame)).unwrap_or_else(|e| panic!("{e}"));
        while let Got::Payload(_) = self.next() {}
    }

    /// Drops the connection without a close frame.
    pub(crate) fn drop_it(self) -> (String, u64) {
        (self.session, self.seq)
    }
}
