//! The agent's state and its event loop.

use super::flags::Flags;
use super::log::Log;
use super::messages;
use super::outlet::{self, Line};
use super::requests::{Answer, Requests};
use super::session::Sessions;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Request to exit the process with this code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

/// A prompt that was accepted and is not answered yet.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) id: Value,
    pub(crate) session: String,
    pub(crate) text: String,
    pub(crate) cancelled: bool,
}

/// The agent.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) flags: Flags,
    pub(crate) log: Log,
    pub(crate) sessions: Sessions,
    /// `mcpServers` of each session, as given last.
    pub(crate) servers: BTreeMap<String, Value>,
    pub(crate) requests: Requests,
    pub(crate) initialized: bool,
    pub(crate) authenticated: bool,
    /// Set for clients that support boolean config options.
    pub(crate) knows_booleans: bool,
    /// Ids of all requests of the client, as JSON text.
    pub(crate) client_ids: BTreeSet<String>,
    /// Queued prompts.
    pub(crate) queue: VecDeque<Prompt>,
    /// The session of the running turn, and whether it was cancelled.
    pub(crate) turn: Option<(String, bool)>,
    pub(crate) ignore_eof: bool,
    /// Counter for tool call ids.
    pub(crate) calls: u64,
    /// The client closed the agent's stdin, and the log has the event.
    eof: bool,
    inbox: Receiver<Line>,
}

impl Agent {
    /// Opens log and state, and starts reading stdin.
    pub(crate) fn start(flags: Flags) -> std::io::Result<Self> {
        let mut log = Log::open(flags.log.as_deref())?;
        log.event("start", json!({"args": std::env::args().collect::<Vec<_>>()}));
        Ok(Self {
            log,
            sessions: Sessions::open(flags.state.clone())?,
            servers: BTreeMap::new(),
            requests: Requests::new(flags.string_ids),
            initialized: false,
            authenticated: false,
            knows_booleans: false,
            client_ids: BTreeSet::new(),
            queue: VecDeque::new(),
            turn: None,
            ignore_eof: false,
            calls: 0,
            eof: false,
            inbox: outlet::read_stdin()?,
            flags,
        })
    }

    /// Serves until the client closes stdin or a script ends the process. Returns the exit code.
    pub(crate) fn run(mut self) -> u8 {
        loop {
            let done = match self.queue.pop_front() {
                Some(prompt) => self.take_turn(prompt),
                None => self.handle_next_line(None),
            };
            if let Err(Exit(code)) = done {
                return code;
            }
        }
    }

    /// Handles one line of the client; returns without one at `until`.
    pub(crate) fn handle_next_line(&mut self, until: Option<Instant>) -> Result<(), Exit> {
        let line = match until {
            None => self.inbox.recv().unwrap_or(Line::End),
            Some(until) => match self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => Line::End,
            },
        };
        match line {
            Line::Text(text) => self.handle(&text),
            Line::End if self.ignore_eof => {
                self.log_eof();
                let until = until.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                Ok(())
            }
            Line::End => {
                self.log_eof();
                Err(Exit(0))
            }
        }
    }

    fn log_eof(&mut self) {
        if !self.eof {
            self.eof = true;
            self.log.event("eof", json!({}));
        }
    }

    /// Whether the running turn was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.turn.as_ref().is_some_and(|(_, cancelled)| *cancelled)
    }

    /// Handles the client's lines for `ms` milliseconds; returns early when the running turn is cancelled.
    pub(crate) fn pause(&mut self, ms: u64) -> Result<(), Exit> {
        let until = Instant::now() + Duration::from_millis(ms);
        loop {
            self.handle_next_line(Some(until))?;
            if self.is_cancelled() || Instant::now() >= until {
                return Ok(());
            }
        }
    }

    /// Sends a message.
    pub(crate) fn send(&self, message: &Value) -> Result<(), Exit> {
        outlet::message(message).map_err(|_| Exit(1))
    }

    /// Sends an update of a session.
    pub(crate) fn update(&self, session: &str, update: Value) -> Result<(), Exit> {
        self.send(&messages::update(session, update))
    }

    /// Sends a request and waits for its answer; `None` if the turn is cancelled first.
    pub(crate) fn ask(&mut self, session: &str, method: &str, params: Value) -> Result<Option<Answer>, Exit> {
        let id = self.requests.begin(session, method);
        self.send(&messages::request(&id, method, params))?;
        loop {
            if let Some(answer) = self.requests.take(&id) {
                return Ok(Some(answer));
            }
            if self.is_cancelled() {
                self.requests.abandon(&id);
                if self.flags.cancel_request {
                    self.send(&messages::notification("$/cancel_request", json!({"requestId": id})))?;
                }
                return Ok(None);
            }
            self.handle_next_line(None)?;
        }
    }

    /// Sends a request without waiting for its answer.
    pub(crate) fn ask_without_waiting(
        &mut self,
        session: &str,
        method: &str,
        params: Value,
    ) -> Result<(), Exit> {
        let id = self.requests.begin(session, method);
        self.requests.abandon(&id);
        self.send(&messages::request(&id, method, params))
    }
}
