//! A client that reads one session and sends prompts to it, whatever happens to its connection.

use super::link::{Link, Next};
use acp_tests::seed::Seed;
use acp_tests::wait::{LONG, wait_until_instant};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Pause between two attempts to connect, and maximum wait for a message.
const SHORT: Duration = Duration::from_millis(20);
/// Maximum time for which a client does not read.
const DEAF_MAX: Duration = Duration::from_secs(2);

/// How a client reaches the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Http,
    WebSocket,
    Stdio,
}

/// What the clients share with the test.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// No more prompts.
    pub(crate) is_over: AtomicBool,
    /// Clients without an unanswered prompt since then.
    pub(crate) settled: AtomicU64,
    /// Last row of each session, once there are no more.
    pub(crate) last: OnceLock<BTreeMap<String, u64>>,
}

/// Message about a row of the journal: its number and its params or result.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) seq: u64,
    pub(crate) json: Value,
}

/// Prompt without an answer.
struct Pending {
    id: u64,
    text: String,
    key: String,
}

/// Counts of what a client did.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Deeds {
    pub(crate) connected: u64,
    pub(crate) resumed: u64,
    pub(crate) cut: u64,
    pub(crate) deaf: u64,
}

/// See the module.
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) transport: Transport,
    pub(crate) session: String,
    pub(crate) socket: PathBuf,
    pub(crate) path: String,
    /// Makes the command of a bridge.
    pub(crate) bridge: Box<dyn Fn() -> Command + Send>,
    pub(crate) seed: Seed,
    link: Option<Link>,
    next_id: u64,
    /// Load that is not answered.
    loading: Option<u64>,
    pending: Option<Pending>,
    epoch: Value,
    /// Last event, and number of messages held then.
    last: (Option<String>, usize),
    connection: Option<String>,
    pub(crate) held: Vec<Held>,
    /// Texts of the answered prompts.
    pub(crate) answered: Vec<String>,
    pub(crate) deeds: Deeds,
}

impl Peer {
    pub(crate) fn new(
        (name, transport): (String, Transport),
        session: String,
        (socket, path): (PathBuf, String),
        bridge: Box<dyn Fn() -> Command + Send>,
        seed: Seed,
    ) -> Self {
        Self {
            name,
            transport,
            session,
            socket,
            path,
            bridge,
            seed,
            link: None,
            next_id: 1,
            loading: None,
            pending: None,
            epoch: Value::Null,
            last: (None, 0),
            connection: None,
            held: Vec::new(),
            answered: Vec::new(),
            deeds: Deeds::default(),
        }
    }

    /// Number of the last row held. The answer to a repeated prompt may be older than the message before it.
    fn cursor(&self) -> u64 {
        self.held.iter().map(|held| held.seq).max().unwrap_or(0)
    }

    /// Reads and prompts until the end.
    pub(crate) fn run(mut self, signals: &Signals) -> Self {
        let (mut is_settled, mut goal, mut deadline) = (false, None, Instant::now() + 10 * LONG);
        loop {
            if self.link.is_none() && !self.connect() {
                wait_until_instant(Instant::now() + SHORT);
                continue;
            }
            self.act(signals.is_over.load(Ordering::Relaxed));
            self.read();
            if !is_settled && signals.is_over.load(Ordering::Relaxed) && self.pending.is_none() {
                is_settled = true;
                deadline = Instant::now() + LONG;
                signals.settled.fetch_add(1, Ordering::Relaxed);
            }
            goal = goal.or_else(|| signals.last.get().map(|last| last[&self.session]));
            if goal.is_some_and(|goal| self.cursor() >= goal) {
                self.link = None;
                return self;
            }
            let is_late = Instant::now() >= deadline;
            assert!(!is_late, "{} is at row {}, last {goal:?}: {:?}", self.name, self.cursor(), self.deeds);
        }
    }

    /// Connects, and opens the session behind the last row held.
    fn connect(&mut self) -> bool {
        if let Some(connection) = self.connection.take().filter(|_| self.loading.is_none())
            && let Some(link) =
                Link::stream(&self.socket, &self.path, &self.session, &connection, self.last.0.as_deref())
        {
            // Messages behind the last event come again.
            self.held.truncate(self.last.1);
            self.opened(link);
            self.deeds.resumed += 1;
            self.send_pending();
            return true;
        }
        let link = match self.transport {
            Transport::Http => Link::http(&self.socket, &self.path, &self.session),
            Transport::WebSocket => Link::websocket(&self.socket, &self.path),
            Transport::Stdio => Some(Link::bridge((self.bridge)())),
        };
        let Some(link) = link else { return false };
        self.opened(link);
        self.deeds.connected += 1;
        self.last = (None, self.held.len());
        let mut params = json!({"sessionId": self.session, "cwd": "/", "mcpServers": []});
        if !self.held.is_empty() {
            params["_meta"] = json!({"acphost": {"after": self.cursor(), "epoch": self.epoch}});
        }
        self.loading = Some(self.next_id);
        let is_sent = self.request("session/load", &params);
        is_sent || self.lose()
    }

    fn opened(&mut self, link: Link) {
        self.connection = link.connection().map(str::to_owned);
        self.link = Some(link);
    }

    fn lose(&mut self) -> bool {
        self.link = None;
        false
    }

    fn request(&mut self, method: &str, params: &Value) -> bool {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
    }

    fn send(&mut self, message: &Value) -> bool {
        let socket = self.socket.clone();
        self.link.as_mut().is_some_and(|link| link.send(socket, message))
    }

    /// Sends the unanswered prompt, perhaps again.
    fn send_pending(&mut self) {
        let Some(Pending { id, text, key }) = &self.pending else { return };
        let params = json!({"sessionId": self.session, "prompt": [{"type": "text", "text": text}],
            "_meta": {"acphost": {"idempotencyKey": key}}});
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": params});
        if !self.send(&message) {
            self.link = None;
        }
    }

    /// Prompts, cuts its connection, or does not read for a while; mostly nothing.
    fn act(&mut self, is_over: bool) {
        if self.loading.is_some() {
            return;
        }
        if self.pending.is_none() && !is_over && self.seed.below(10) == 0 {
            let text = format!(
                "say {}-{}\nthought think\nchunks {} pace_ms=8 size={}",
                self.name,
                self.answered.len(),
                10 + self.seed.below(40),
                20 + self.seed.below(4_000)
            );
            let key = format!("{}:{}", self.name, self.answered.len());
            self.pending = Some(Pending { id: self.next_id, text, key });
            self.next_id += 1;
            self.send_pending();
        }
        match self.seed.below(300) {
            0 => {
                self.deeds.cut += 1;
                self.link = None;
                // Half of them come as new clients.
                if self.seed.below(2) == 0 {
                    self.connection = None;
                }
            }
            1 => {
                self.deeds.deaf += 1;
                wait_until_instant(Instant::now() + self.seed.time_below(DEAF_MAX));
            }
            _ => {}
        }
    }

    fn read(&mut self) {
        let Some(link) = &self.link else { return };
        let (id, json) = match link.next(SHORT) {
            Next::Event(event) => event,
            Next::Nothing => return,
            Next::Ended => {
                self.link = None;
                return;
            }
        };
        let is_answer = json.get("method").is_none();
        let body = if is_answer { &json["result"] } else { &json["params"] };
        if is_answer {
            self.take_answer(&json);
        }
        if let Some(seq) = body["_meta"]["acphost"]["seq"].as_u64() {
            self.held.push(Held { seq, json: body.clone() });
        }
        if id.is_some() {
            self.last = (id, self.held.len());
        }
    }

    fn take_answer(&mut self, json: &Value) {
        let id = json["id"].as_u64();
        assert!(json.get("error").is_none(), "{}: {json}", self.name);
        if self.loading.is_some() && self.loading == id {
            self.epoch = json["result"]["_meta"]["acphost"]["epoch"].clone();
            self.loading = None;
            self.send_pending();
        } else if self.pending.as_ref().is_some_and(|pending| Some(pending.id) == id) {
            assert_eq!(json["result"]["stopReason"], "end_turn", "{}: {json}", self.name);
            self.answered.extend(self.pending.take().map(|pending| pending.text));
        }
    }
}
