//! Payloads of clients (heartbeats, IDENTIFY, RESUME), and close codes for invalid ones.

use super::super::Machine;
use super::super::model::{Bot, Id, Ms};
use super::super::render;
use super::super::settings::Rule;
use super::{Session, SocketId, ToSocket, intent};
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Payloads a client may send in [`CLIENT_WINDOW_MS`].
const CLIENT_EVENTS_MAX: usize = 120;
const CLIENT_WINDOW_MS: Ms = 60_000;
/// Bytes of one payload of a client.
const CLIENT_PAYLOAD_MAX: usize = 4096;
/// IDENTIFYs are counted for a day.
const IDENTIFY_DAY_MS: Ms = 86_400_000;

/// Close code and reason of a client error.
type Closed = (u16, &'static str);

const UNKNOWN_OPCODE: Closed = (4001, "Unknown opcode.");
const DECODE_ERROR: Closed = (4002, "Error while decoding payload.");
const NOT_AUTHENTICATED: Closed = (4003, "Not authenticated.");
const AUTHENTICATION_FAILED: Closed = (4004, "Authentication failed.");
const ALREADY_AUTHENTICATED: Closed = (4005, "Already authenticated.");
const INVALID_SEQ: Closed = (4007, "Invalid seq.");
const RATE_LIMITED: Closed = (4008, "Rate limited.");
const INVALID_SHARD: Closed = (4010, "Invalid shard.");
const INVALID_INTENTS: Closed = (4013, "Invalid intent(s).");
const DISALLOWED_INTENTS: Closed = (4014, "Disallowed intent(s).");

impl Machine {
    /// Handles a payload of a client.
    pub fn socket_text(&mut self, now: Ms, id: SocketId, text: &str) {
        if let Err((code, reason)) = self.received(now, id, text) {
            *self.tally.closes.entry(code).or_default() += 1;
            self.gateway.queue(id, ToSocket::Close(code, reason));
        }
    }

    fn received(&mut self, now: Ms, id: SocketId, text: &str) -> Result<(), Closed> {
        let first = self.holds(Rule::HelloFirst);
        let (limited, sized) = (self.holds(Rule::ClientEvents), self.holds(Rule::ClientPayload));
        let Some(socket) = self.gateway.sockets.get_mut(&id).filter(|socket| !socket.ending) else {
            return Ok(());
        };
        if first && socket.hello_at.is_some() {
            return Err(NOT_AUTHENTICATED);
        }
        socket.received.push_back(now);
        while socket.received.front().is_some_and(|at| now.saturating_sub(*at) >= CLIENT_WINDOW_MS) {
            socket.received.pop_front();
        }
        if limited && socket.received.len() > CLIENT_EVENTS_MAX {
            return Err(RATE_LIMITED);
        }
        if sized && text.len() > CLIENT_PAYLOAD_MAX {
            return Err(DECODE_ERROR);
        }
        let payload: Value = serde_json::from_str(text).map_err(|_| DECODE_ERROR)?;
        let op = payload.get("op").and_then(Value::as_u64).ok_or(DECODE_ERROR)?;
        let data = payload.get("d").unwrap_or(&Value::Null);
        let known = socket.session.is_some();
        match op {
            1 => {
                self.record_heartbeat(now, id);
                Ok(())
            }
            2 if known => Err(ALREADY_AUTHENTICATED),
            2 => self.identify(now, id, data),
            6 if known => Err(ALREADY_AUTHENTICATED),
            6 => self.resume(id, data),
            // Presence, voice state, members, soundboard, channel info: accepted and ignored.
            3 | 4 | 8 | 31 | 43 if known => Ok(()),
            3 | 4 | 8 | 31 | 43 => Err(NOT_AUTHENTICATED),
            _ => Err(UNKNOWN_OPCODE),
        }
    }

    fn record_heartbeat(&mut self, now: Ms, id: SocketId) {
        if let Some(socket) = self.gateway.sockets.get_mut(&id) {
            socket.last_beat_ms = now;
        }
        if !self.faults.acks_withheld {
            self.gateway.send(id, &json!({"op": 11, "d": null, "s": null, "t": null}));
        }
    }

    fn identify(&mut self, now: Ms, id: SocketId, data: &Value) -> Result<(), Closed> {
        // Counted even if it fails.
        self.tally.identifies += 1;
        let text = |key: &str| data.get(key).and_then(Value::as_str);
        let token = text("token").ok_or(DECODE_ERROR)?;
        let token = token.strip_prefix("Bot ").unwrap_or(token);
        if !data.get("properties").is_some_and(Value::is_object) {
            return Err(DECODE_ERROR);
        }
        let bot = self.world.bot_with_token(token).cloned().ok_or(AUTHENTICATION_FAILED)?;
        let intents = data.get("intents").and_then(Value::as_u64).ok_or(INVALID_INTENTS)?;
        if intents & !intent::KNOWN != 0 {
            return Err(INVALID_INTENTS);
        }
        if intents & intent::PRIVILEGED & !bot.privileged_intents != 0 && self.holds(Rule::DisallowedIntents)
        {
            return Err(DISALLOWED_INTENTS);
        }
        let shard = shard_of(data)?;
        self.count_identify(now, &bot)?;
        let early = self.is_identified_early(now, bot.user_id, shard.0);
        if !early && self.faults.take_unanswered() {
            return Ok(());
        }
        if early || self.faults.take_invalid_session() {
            self.gateway.send(id, &json!({"op": 9, "d": false, "s": null, "t": null}));
            return Ok(());
        }
        self.tally.identified.push((shard.0, shard.1, now));
        let session_id = format!("{:016x}{:016x}", self.faults.dice.number(), self.faults.dice.number());
        let session = Session {
            bot_id: bot.user_id,
            intents,
            shard,
            seq: 0,
            replay: VecDeque::new(),
            socket: Some(id),
            disconnected_since: None,
            held: None,
        };
        self.gateway.sessions.insert(session_id.clone(), session);
        if let Some(socket) = self.gateway.sockets.get_mut(&id) {
            socket.session = Some(session_id.clone());
        }
        self.ready(&bot, &session_id, shard, intents);
        Ok(())
    }

    /// Sends READY, then each guild in full.
    fn ready(&mut self, bot: &Bot, session_id: &str, shard: (u64, u64), intents: u64) {
        let of_shard = |id: u64| (id >> 22) % shard.1 == shard.0;
        let guilds: Vec<_> = self
            .world
            .guilds
            .iter()
            .filter(|guild| guild.alive && guild.members.contains_key(&bot.user_id) && of_shard(guild.id))
            .cloned()
            .collect();
        let unavailable: Vec<Value> =
            guilds.iter().map(|guild| json!({"id": render::id(guild.id), "unavailable": true})).collect();
        let ready = json!({
            "v": 10,
            "user": self.world.users.get(bot.user_id).map_or(Value::Null, render::current_user),
            "guilds": unavailable,
            "session_id": session_id,
            "session_type": "normal",
            "resume_gateway_url": self.gateway_url(),
            "shard": [shard.0, shard.1],
            "application": {"id": render::id(bot.application_id), "flags": 0},
            "private_channels": [],
            "relationships": [],
            "presences": [],
            "user_settings": {},
            "geo_ordered_rtc_regions": [],
        });
        let replay_max = self.settings.replay_max;
        self.gateway.push(session_id, "READY", &ready, replay_max);
        if intents & intent::GUILDS != 0 {
            for guild in guilds {
                let data = self.render_guild_create(&guild, bot);
                self.gateway.push(session_id, "GUILD_CREATE", &data, replay_max);
            }
        }
    }

    /// Whether another session of the same bucket was identified just now ("Session Start Limit"). Records the time if not.
    fn is_identified_early(&mut self, now: Ms, bot: Id, shard: u64) -> bool {
        let bucket = (bot, shard % self.settings.max_concurrency.max(1));
        let last = self.gateway.identified_at.get(&bucket);
        let early = last.is_some_and(|last| now.saturating_sub(*last) < self.settings.identify_spacing_ms);
        if early {
            self.tally.early_identifies += 1;
        } else {
            self.gateway.identified_at.insert(bucket, now);
        }
        early
    }

    fn count_identify(&mut self, now: Ms, bot: &Bot) -> Result<(), Closed> {
        let (total, counts) = (self.settings.identify_total, self.holds(Rule::IdentifyBudget));
        let Some(bot) = self.world.bots.edit(bot.user_id) else { return Ok(()) };
        if now >= bot.identifies_reset_ms {
            bot.identifies = 0;
            bot.identifies_reset_ms = now + IDENTIFY_DAY_MS;
        }
        bot.identifies += 1;
        // Past the limit the service ends all sessions and resets the token.
        if counts && bot.identifies > total { Err(AUTHENTICATION_FAILED) } else { Ok(()) }
    }

    fn resume(&mut self, id: SocketId, data: &Value) -> Result<(), Closed> {
        let text = |key: &str| data.get(key).and_then(Value::as_str).ok_or(DECODE_ERROR);
        let (token, session_id) = (text("token")?, text("session_id")?);
        let seq = data.get("seq").and_then(Value::as_u64).ok_or(DECODE_ERROR)?;
        let token = token.strip_prefix("Bot ").unwrap_or(token);
        let bot = self.world.bot_with_token(token).ok_or(AUTHENTICATION_FAILED)?.user_id;
        self.tally.resumes += 1;
        if self.faults.take_unanswered() {
            return Ok(());
        }
        let refused = self.faults.take_invalid_session();
        let found = self.gateway.sessions.get_mut(session_id);
        let Some(session) = found.filter(|session| session.bot_id == bot && !refused) else {
            self.gateway.sessions.remove(session_id);
            self.gateway.send(id, &json!({"op": 9, "d": false, "s": null, "t": null}));
            return Ok(());
        };
        if seq > session.seq {
            return Err(INVALID_SEQ);
        }
        let first_kept = session.replay.front().map_or(session.seq + 1, |(first, _)| *first);
        if seq + 1 < first_kept {
            self.gateway.sessions.remove(session_id);
            self.gateway.send(id, &json!({"op": 9, "d": false, "s": null, "t": null}));
            return Ok(());
        }
        let before = session.socket.replace(id);
        session.disconnected_since = None;
        let missed: Vec<String> =
            session.replay.iter().filter(|(at, _)| *at > seq).map(|(_, text)| text.clone()).collect();
        // A session has one connection.
        self.gateway.order(before.as_slice(), &ToSocket::Close(4000, "Unknown error."));
        if let Some(socket) = self.gateway.sockets.get_mut(&id) {
            socket.session = Some(session_id.to_owned());
        }
        for text in missed {
            self.gateway.queue(id, ToSocket::Text(text));
        }
        self.gateway.push(session_id, "RESUMED", &json!({}), self.settings.replay_max);
        // RESUMED concerns this connection only and is not replayed over the next one.
        if let Some(session) = self.gateway.sessions.get_mut(session_id) {
            session.replay.pop_back();
        }
        Ok(())
    }
}

fn shard_of(data: &Value) -> Result<(u64, u64), Closed> {
    let Some(shard) = data.get("shard").filter(|shard| !shard.is_null()) else { return Ok((0, 1)) };
    let number = |at: usize| shard.get(at).and_then(Value::as_u64).ok_or(INVALID_SHARD);
    let (shard, of) = (number(0)?, number(1)?);
    if shard < of { Ok((shard, of)) } else { Err(INVALID_SHARD) }
}
