//! The gateway: connections, sessions, sequence numbers, RESUME.
//!
//! Of the documentation's pages on the gateway and on opcodes. Sessions are forgotten when the fake ends: a
//! RESUME is then answered as the service does when in doubt, with "invalid session".

mod client;
mod events;

pub use events::{Audience, Event, Redact};

use super::Machine;
use super::faults::EventFate;
use super::model::{Id, Ms};
use super::settings::Rule;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

/// A connection, as the driver numbers it.
pub type SocketId = u64;

/// Intents that are named here.
pub mod intent {
    /// Guilds, channels, threads.
    pub const GUILDS: u64 = 1 << 0;
    /// Members; privileged.
    pub const GUILD_MEMBERS: u64 = 1 << 1;
    /// Presences; privileged.
    pub const GUILD_PRESENCES: u64 = 1 << 8;
    /// Messages of guilds.
    pub const GUILD_MESSAGES: u64 = 1 << 9;
    /// Reactions in guilds.
    pub const GUILD_MESSAGE_REACTIONS: u64 = 1 << 10;
    /// Typing in guilds.
    pub const GUILD_MESSAGE_TYPING: u64 = 1 << 11;
    /// What is in messages; privileged.
    pub const MESSAGE_CONTENT: u64 = 1 << 15;
    /// Those that the portal must allow.
    pub const PRIVILEGED: u64 = GUILD_MEMBERS | GUILD_PRESENCES | MESSAGE_CONTENT;
    /// Every bit that means something.
    pub const KNOWN: u64 = 0x1_FFFF | (1 << 20) | (1 << 21) | (1 << 24) | (1 << 25);
}

/// What the driver does with a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToSocket {
    /// Send a text.
    Text(String),
    /// Close it in order.
    Close(u16, &'static str),
    /// Break it off: a TCP reset.
    Reset,
    /// End it inside of a message.
    Cut,
}

/// A connection.
#[derive(Debug)]
struct Socket {
    /// Its session, after IDENTIFY or RESUME.
    session: Option<String>,
    /// When HELLO is sent; `None` when it was.
    hello_at: Option<Ms>,
    last_beat_ms: Ms,
    /// When its client's last payloads came.
    received: VecDeque<Ms>,
    /// A close or reset was ordered; nothing more is sent.
    ending: bool,
}

/// A session: what IDENTIFY begins and RESUME goes on with.
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
    /// Since when nobody is connected to it.
    alone_since: Option<Ms>,
    /// An event that will be overtaken, and since when it waits.
    held: Option<(&'static str, Value, Ms)>,
}

/// Connections and sessions.
#[derive(Debug, Default)]
pub struct Gateway {
    sockets: BTreeMap<SocketId, Socket>,
    sessions: BTreeMap<String, Session>,
    last_socket: SocketId,
    last_identify: BTreeMap<Id, Ms>,
    /// What the driver has to send, in order.
    outbox: Vec<(SocketId, ToSocket)>,
}

impl Gateway {
    /// What is to be sent.
    pub fn take_outbox(&mut self) -> Vec<(SocketId, ToSocket)> {
        std::mem::take(&mut self.outbox)
    }

    /// A clock that is set ahead makes no client late.
    pub fn spare(&mut self, ms: Ms) {
        for socket in self.sockets.values_mut() {
            socket.last_beat_ms += ms;
            for at in &mut socket.received {
                *at += ms;
            }
        }
    }

    fn send(&mut self, id: SocketId, payload: &Value) {
        self.tell(id, ToSocket::Text(payload.to_string()));
    }

    fn tell(&mut self, id: SocketId, what: ToSocket) {
        let Some(socket) = self.sockets.get_mut(&id).filter(|socket| !socket.ending) else { return };
        socket.ending = !matches!(what, ToSocket::Text(_));
        self.outbox.push((id, what));
    }

    /// Connections that are open, by bot where one is known.
    #[must_use]
    pub fn connected(&self, bot_id: Id) -> bool {
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

    /// Orders something for connections.
    pub fn order(&mut self, sockets: &[SocketId], what: &ToSocket) {
        for socket in sockets {
            self.tell(*socket, what.clone());
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
            self.tell(socket, ToSocket::Text(text));
        }
    }
}

impl Machine {
    /// A client connected; it is greeted a moment later.
    pub fn socket_opened(&mut self, now: Ms) -> SocketId {
        self.gateway.last_socket += 1;
        let id = self.gateway.last_socket;
        let hello_at =
            Some(if self.faults.take_hello() { Ms::MAX } else { now + self.settings.hello_after_ms });
        let socket =
            Socket { session: None, hello_at, last_beat_ms: now, received: VecDeque::new(), ending: false };
        self.gateway.sockets.insert(id, socket);
        self.tally.sockets += 1;
        self.greet(now);
        id
    }

    /// HELLO for those whose time has come.
    fn greet(&mut self, now: Ms) {
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

    /// A connection is gone. After 1000 and 1001 from the client its session ends at once.
    pub fn socket_gone(&mut self, now: Ms, id: SocketId, code: Option<u16>) {
        let Some(socket) = self.gateway.sockets.remove(&id) else { return };
        let Some(session_id) = socket.session else { return };
        let Some(session) = self.gateway.sessions.get_mut(&session_id) else { return };
        if session.socket != Some(id) {
            return;
        }
        session.socket = None;
        session.alone_since = Some(now);
        if matches!(code, Some(1000 | 1001)) {
            self.gateway.sessions.remove(&session_id);
        }
    }

    /// Everybody who should hear of it does, as far as faults let it.
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

    /// What time brings: held events go, silent clients are closed, sessions that nobody resumed end.
    pub fn gateway_tick(&mut self, now: Ms) {
        self.greet(now);
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
        self.gateway
            .sessions
            .retain(|_, session| session.alone_since.is_none_or(|since| now.saturating_sub(since) < window));
        if self.holds(Rule::Heartbeats) {
            self.close_silent(now);
        }
    }

    fn close_silent(&mut self, now: Ms) {
        // A beat may be late by half an interval, for the way it takes.
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

/// An event that is no longer what the documentation says: ids are missing, and there are members that nobody knows.
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
