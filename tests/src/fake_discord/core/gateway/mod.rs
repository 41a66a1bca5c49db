//! The gateway: connections, sessions, sequence numbers, RESUME.
//!
//! Based on the documentation's pages on the gateway and on opcodes. Sessions are lost when the fake exits: a
//! later RESUME is answered with "invalid session".

mod client;
mod events;

pub use events::{Audience, Event, Redact};

use super::Machine;
use super::faults::EventFate;
use super::model::{Id, Ms};
use super::settings::Rule;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

/// Number of a connection.
pub type SocketId = u64;

/// Intents.
pub mod intent {
    /// Guilds, channels, threads.
    pub const GUILDS: u64 = 1 << 0;
    /// Members; privileged.
    pub const GUILD_MEMBERS: u64 = 1 << 1;
    /// Presences; privileged.
    pub const GUILD_PRESENCES: u64 = 1 << 8;
    /// Messages of guilds.
    pub const GUILD_MESSAGES: u64 = 1 << 9;
    /// Direct messages.
    pub const DIRECT_MESSAGES: u64 = 1 << 12;
    /// Message content; privileged.
    pub const MESSAGE_CONTENT: u64 = 1 << 15;
    /// Intents that the developer portal must allow.
    pub const PRIVILEGED: u64 = GUILD_MEMBERS | GUILD_PRESENCES | MESSAGE_CONTENT;
    /// All defined bits.
    pub const KNOWN: u64 = 0x1_FFFF | (1 << 20) | (1 << 21) | (1 << 24) | (1 << 25);
}

/// Instruction for the task of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToSocket {
    /// Send a text.
    Text(String),
    /// Close the connection with a code.
    Close(u16, &'static str),
    /// Reset the connection (TCP RST).
    Reset,
    /// End the connection within a message.
    Cut,
}

/// A connection.
#[derive(Debug)]
struct Socket {
    /// Its session, after IDENTIFY or RESUME.
    session: Option<String>,
    /// Time at which HELLO is due; `None` once it was sent.
    hello_at: Option<Ms>,
    last_beat_ms: Ms,
    /// Times of the client's last payloads.
    received: VecDeque<Ms>,
    /// A close or reset was queued; nothing more is sent.
    ending: bool,
}

/// A session, created by IDENTIFY and continued by RESUME.
#[derive(Debug)]
struct Session {
    bot_id: Id,
    intents: u64,
    shard: (u64, u64),
    /// The number of the last event.
    seq: u64,
    /// Events for RESUME.
    replay: VecDeque<(u64, String)>,
    socket: Option<SocketId>,
    /// Time since which it has no connection.
    disconnected_since: Option<Ms>,
    /// An event that will be overtaken, and the time since which it is held.
    held: Option<(&'static str, Value, Ms)>,
}

/// Connections and sessions.
#[derive(Debug, Default)]
pub struct Gateway {
    sockets: BTreeMap<SocketId, Socket>,
    sessions: BTreeMap<String, Session>,
    last_socket: SocketId,
    /// Times of the last IDENTIFY of each bot and bucket.
    identified_at: BTreeMap<(Id, u64), Ms>,
    /// Instructions for connections, in order.
    outbox: Vec<(SocketId, ToSocket)>,
}

impl Gateway {
    /// Takes the queued instructions.
    pub fn take_outbox(&mut self) -> Vec<(SocketId, ToSocket)> {
        std::mem::take(&mut self.outbox)
    }

    /// Shifts all deadlines of clients after the clock was advanced.
    pub fn shift_deadlines(&mut self, ms: Ms) {
        for socket in self.sockets.values_mut() {
            socket.last_beat_ms += ms;
            for at in &mut socket.received {
                *at += ms;
            }
        }
    }

    fn send(&mut self, id: SocketId, payload: &Value) {
        self.queue(id, ToSocket::Text(payload.to_string()));
    }

    fn queue(&mut self, id: SocketId, what: ToSocket) {
        let Some(socket) = self.sockets.get_mut(&id).filter(|socket| !socket.ending) else { return };
        socket.ending = !matches!(what, ToSocket::Text(_));
        self.outbox.push((id, what));
    }

    /// Whether a bot has a session with a connection.
    #[must_use]
    pub fn is_connected(&self, bot_id: Id) -> bool {
        self.sessions.values().any(|session| session.bot_id == bot_id && session.socket.is_some())
    }

    /// All connections, with a session or without.
    #[must_use]
    pub fn all_sockets(&self) -> Vec<SocketId> {
        self.sockets.keys().copied().collect()
    }

    /// Connections with a session, of a bot or of all.
    #[must_use]
    pub fn sockets_of(&self, bot_id: Option<Id>) -> Vec<SocketId> {
        let of_bot = |session: &&Session| bot_id.is_none_or(|id| id == session.bot_id);
        self.sessions.values().filter(of_bot).filter_map(|session| session.socket).collect()
    }

    /// Ends every session, so that no RESUME succeeds.
    pub fn forget_sessions(&mut self, bot_id: Option<Id>) {
        self.sessions.retain(|_, session| bot_id.is_some_and(|id| id != session.bot_id));
    }

    /// Queues an instruction for several connections.
    pub fn order(&mut self, sockets: &[SocketId], what: &ToSocket) {
        for socket in sockets {
            self.queue(*socket, what.clone());
        }
    }

    fn push(&mut self, id: &str, name: &str, data: &Value, replay_max: usize) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.seq += 1;
        let text = json!({"op": 0, "s": session.seq, "t": name, "d": data}).to_string();
        session.replay.push_back((session.seq, text.clone()));
        if session.replay.len() > replay_max {
            session.replay.pop_front();
        }
        if let Some(socket) = session.socket {
            self.queue(socket, ToSocket::Text(text));
        }
    }
}

impl Machine {
    /// Registers a connection; HELLO is sent a moment later.
    pub fn socket_opened(&mut self, now: Ms) -> SocketId {
        self.gateway.last_socket += 1;
        let id = self.gateway.last_socket;
        let hello_at =
            Some(if self.faults.take_hello() { Ms::MAX } else { now + self.settings.hello_after_ms });
        let socket =
            Socket { session: None, hello_at, last_beat_ms: now, received: VecDeque::new(), ending: false };
        self.gateway.sockets.insert(id, socket);
        self.tally.sockets += 1;
        self.send_due_hellos(now);
        id
    }

    /// Sends HELLO where it is due.
    fn send_due_hellos(&mut self, now: Ms) {
        let interval = self.settings.heartbeat_interval_ms;
        let due = |socket: &Socket| socket.hello_at.is_some_and(|at| now >= at);
        let due: Vec<SocketId> =
            self.gateway.sockets.iter().filter(|(_, socket)| due(socket)).map(|(id, _)| *id).collect();
        for id in due {
            if let Some(socket) = self.gateway.sockets.get_mut(&id) {
                socket.hello_at = None;
                socket.last_beat_ms = now;
            }
            self.gateway
                .send(id, &json!({"op": 10, "d": {"heartbeat_interval": interval}, "s": null, "t": null}));
        }
    }

    /// Removes a connection. After close codes 1000 and 1001 from the client its session ends at once.
    pub fn socket_closed(&mut self, now: Ms, id: SocketId, code: Option<u16>) {
        let Some(socket) = self.gateway.sockets.remove(&id) else { return };
        let Some(session_id) = socket.session else { return };
        let Some(session) = self.gateway.sessions.get_mut(&session_id) else { return };
        if session.socket != Some(id) {
            return;
        }
        session.socket = None;
        session.disconnected_since = Some(now);
        if matches!(code, Some(1000 | 1001)) {
            self.gateway.sessions.remove(&session_id);
        }
    }

    /// Sends an event to all its recipients, subject to faults.
    pub fn emit(&mut self, now: Ms, event: &Event) {
        let ids: Vec<String> = self.gateway.sessions.keys().cloned().collect();
        for id in ids {
            let Some(data) = self.view_of(&id, event) else { continue };
            let fate = self.faults.event(event.name);
            self.dispatch(now, &id, event.name, data, fate);
        }
    }

    fn dispatch(&mut self, now: Ms, id: &str, name: &'static str, data: Value, fate: EventFate) {
        let replay_max = self.settings.replay_max;
        if fate != EventFate::Deliver {
            self.tally.event_fate(fate);
        }
        let held = self.gateway.sessions.get_mut(id).and_then(|session| session.held.take());
        match fate {
            EventFate::Deliver => self.gateway.push(id, name, &data, replay_max),
            EventFate::Drop => {}
            EventFate::Duplicate => {
                self.gateway.push(id, name, &data, replay_max);
                self.gateway.push(id, name, &data, replay_max);
            }
            EventFate::Overtaken => {
                if let Some(session) = self.gateway.sessions.get_mut(id) {
                    session.held = Some((name, data, now));
                }
            }
            EventFate::Odd => self.gateway.push(id, name, &odd(&data), replay_max),
            EventFate::ResetInstead => {
                self.break_off(id, &ToSocket::Reset);
                self.gateway.push(id, name, &data, replay_max);
            }
            EventFate::ResetAfter => {
                self.gateway.push(id, name, &data, replay_max);
                self.break_off(id, &ToSocket::Reset);
            }
        }
        if let Some((name, data, _)) = held {
            self.gateway.push(id, name, &data, replay_max);
        }
    }

    fn break_off(&mut self, id: &str, how: &ToSocket) {
        let socket = self.gateway.sessions.get(id).and_then(|session| session.socket);
        self.gateway.order(socket.as_slice(), how);
    }

    /// Handles timers: sends held events, closes clients without heartbeats, ends sessions that were not
    /// resumed.
    pub fn gateway_tick(&mut self, now: Ms) {
        self.send_due_hellos(now);
        let (reorder, window) = (self.settings.reorder_ms, self.settings.resume_window_ms);
        let replay_max = self.settings.replay_max;
        let held: Vec<String> = self
            .gateway
            .sessions
            .iter()
            .filter(|(_, session)| session.held.as_ref().is_some_and(|held| now >= held.2 + reorder))
            .map(|(id, _)| id.clone())
            .collect();
        for id in held {
            let held = self.gateway.sessions.get_mut(&id).and_then(|session| session.held.take());
            if let Some((name, data, _)) = held {
                self.gateway.push(&id, name, &data, replay_max);
            }
        }
        self.gateway.sessions.retain(|_, session| {
            session.disconnected_since.is_none_or(|since| now.saturating_sub(since) < window)
        });
        if self.holds(Rule::Heartbeats) {
            self.close_silent(now);
        }
    }

    fn close_silent(&mut self, now: Ms) {
        // A heartbeat may be late by half an interval because of network delays.
        let patience = self.settings.heartbeat_interval_ms * 3 / 2;
        let silent: Vec<SocketId> = self
            .gateway
            .sockets
            .iter()
            .filter(|(_, socket)| !socket.ending && socket.hello_at.is_none())
            .filter(|(_, socket)| now.saturating_sub(socket.last_beat_ms) > patience)
            .map(|(id, _)| *id)
            .collect();
        self.tally.silent_clients += silent.len() as u64;
        self.gateway.order(&silent, &ToSocket::Close(4009, "Session timed out."));
    }
}

/// Makes an event deviate from the documentation: removes ids and adds an unknown member.
fn odd(data: &Value) -> Value {
    let mut odd = data.clone();
    if let Some(members) = odd.as_object_mut() {
        for key in ["id", "author", "channel_id", "token", "timestamp"] {
            members.remove(key);
        }
        members.insert("something_new".to_owned(), json!({"version": 99}));
    }
    odd
}
