//! Gateway protocol of one shard: HELLO, heartbeats, IDENTIFY, RESUME, and the reason and pause of each reconnect.
//!
//! Pure: the driver passes what happened and the time, performs the outputs in order, and calls [`Shard::tick`] at
//! [`Shard::deadline`]. Times are of one monotonic clock, in milliseconds. Chance is a number from 0 up to 1.
//!
//! Source: gateway documentation (version 10), "Connection Lifecycle". Nothing is sent before HELLO; a session is
//! resumed wherever the documentation allows it, and a connection without READY or RESUMED is ended in bounded time.
#![deny(clippy::indexing_slicing)]

use super::event::Event;
use crate::core::base_url::BaseUrl;
use crate::core::close_codes::{self, CloseAction, FatalGatewayError};
use crate::core::connect_rate::ReconnectBackoff;
use crate::core::decode::{self, DecodeError, DecodedEvent};
use serde_json::Value as Json;

/// Maximum time from the start of a connection (name lookup, TCP, TLS, websocket) to HELLO.
const HELLO_TIMEOUT_MS: u64 = 15_000;
/// Minimum time between two heartbeats that the service asks for: a client may send 120 payloads a minute.
const REQUESTED_HEARTBEAT_MIN_MS: u64 = 1_000;
/// Bounds of the heartbeat interval.
const INTERVAL_MS: (u64, u64) = (100, 24 * 3_600_000);
/// Maximum number of connections in a row on which RESUME may stay unanswered before a new session is identified.
const RESUMES_MAX: u32 = 3;
/// Pause after an invalid session: 1 to 5 seconds, random.
const INVALID_MS: (f64, f64) = (1_000.0, 4_000.0);
/// Normal closure (RFC 6455). The service ends the session.
pub const CLOSE_NORMAL: u16 = 1000;
/// Code that a connection is closed with whose session is to be resumed: anything but 1000 and 1001.
pub const CLOSE_RESUMABLE: u16 = 4000;

/// Payload from the service.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// Opcode 0.
    Dispatch {
        /// Sequence number.
        seq: Option<u64>,
        /// Name of the event.
        kind: String,
        /// Data of the event.
        data: Json,
    },
    /// Opcode 1: a heartbeat is asked for.
    Heartbeat,
    /// Opcode 7.
    Reconnect,
    /// Opcode 9.
    InvalidSession {
        /// True if the session may be resumed.
        resumable: bool,
    },
    /// Opcode 10.
    Hello {
        /// Heartbeat interval.
        interval_ms: u64,
    },
    /// Opcode 11.
    Ack,
    /// A payload that is not as documented.
    Unreadable,
}

/// Payload to the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutgoingPayload {
    /// Opcode 1, with the last sequence number.
    Heartbeat(Option<u64>),
    /// Opcode 2.
    Identify,
    /// Opcode 6.
    Resume {
        /// Name of the session.
        session: String,
        /// Last sequence number.
        seq: u64,
    },
}

/// End of a connection that the driver noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disconnect {
    /// A connection could not be made.
    NotConnected(String),
    /// The service closed it with this code.
    Closed(u16),
    /// The connection ended without a close code.
    Broken,
    /// A message was larger than allowed. RESUME would bring it again.
    TooLarge,
}

/// End of a connection, and what follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reconnect {
    /// Code to close the connection with; `None` where it has ended.
    pub close: Option<u16>,
    /// Reason, for people.
    pub why: String,
    /// Pause before the next connection.
    pub after_ms: u64,
    /// True if the next connection resumes the session; otherwise it identifies a new one.
    pub resume: bool,
    /// True if the address of the gateway must be requested again, however recent the last one is.
    pub needs_url: bool,
    /// True if the permission to identify is kept during the pause: other shards would get no slot either.
    pub keeps_permit: bool,
}

/// Instruction for the driver.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Send a payload.
    Send(OutgoingPayload),
    /// Wait for an identify slot, then call [`Shard::slot_ended`].
    WaitForSlot,
    /// Pass on an event.
    Event {
        /// Name of the event.
        kind: String,
        /// Parsed event.
        read: Result<DecodedEvent, DecodeError>,
    },
    /// Report events as missed: this number, or an unknown number for 0.
    Gap(u64),
    /// End this connection and make another one. Nothing follows.
    Reconnect(Reconnect),
}

/// Session that can be resumed.
#[derive(Debug)]
struct ResumableSession {
    id: String,
    /// Address for RESUME, if it was given and is permitted.
    url: Option<String>,
}

#[derive(Debug)]
struct Heartbeat {
    interval_ms: u64,
    due_ms: u64,
    sent_ms: Option<u64>,
    is_acked: bool,
}

/// Connection from its start on.
#[derive(Debug)]
struct ConnectionState {
    hello_by_ms: u64,
    /// Deadline of READY or RESUMED, and the kind of handshake; `None` after them.
    ready_by_ms: Option<(u64, &'static str)>,
    /// `None` before HELLO.
    heartbeat: Option<Heartbeat>,
}

/// State of one shard over all of its connections.
#[derive(Debug)]
pub struct Shard {
    number: u32,
    base: BaseUrl,
    ready_timeout_ms: u64,
    /// True if IDENTIFY needs an identify slot.
    needs_slot: bool,
    session: Option<ResumableSession>,
    seq: Option<u64>,
    backoff: ReconnectBackoff,
    /// Connections in a row on which RESUME was sent and not answered.
    unanswered_resumes: u32,
    connection: Option<ConnectionState>,
}

impl Shard {
    /// A shard without a session. `ready_timeout_ms` is the time from the start of a connection, or from IDENTIFY after a
    /// wait for an identify slot, to READY or RESUMED.
    #[must_use]
    pub fn new(number: u32, base: BaseUrl, ready_timeout_ms: u64, needs_slot: bool) -> Self {
        Self {
            number,
            base,
            ready_timeout_ms,
            needs_slot,
            session: None,
            seq: None,
            backoff: ReconnectBackoff::default(),
            unanswered_resumes: 0,
            connection: None,
        }
    }

    /// True if the next connection resumes the session; otherwise it identifies a new one.
    #[must_use]
    pub const fn can_resume(&self) -> bool {
        self.session.is_some()
    }

    /// Address for the next connection, where the session has its own.
    #[must_use]
    pub fn resume_url(&self) -> Option<&str> {
        self.session.as_ref()?.url.as_deref()
    }

    /// Records an attempt that ended before a connection was begun. Returns the pause before the next one.
    pub fn record_failure(&mut self) -> u64 {
        self.backoff.record_failure()
    }

    /// Begins a connection.
    pub fn begin_connection(&mut self, now: u64) {
        self.connection = Some(ConnectionState {
            hello_by_ms: now.saturating_add(self.ready_timeout_ms.min(HELLO_TIMEOUT_MS)),
            ready_by_ms: Some((now.saturating_add(self.ready_timeout_ms), "connecting")),
            heartbeat: None,
        });
    }

    /// Time of the next [`Shard::tick`], while there is a connection.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        let connection = self.connection.as_ref()?;
        let Some(heartbeat) = &connection.heartbeat else { return Some(connection.hello_by_ms) };
        Some(connection.ready_by_ms.map_or(u64::MAX, |(by, _)| by).min(heartbeat.due_ms))
    }

    /// Does what is due.
    pub fn tick(&mut self, now: u64) -> Vec<Output> {
        let seq = self.seq;
        let Some(connection) = &mut self.connection else { return Vec::new() };
        let Some(heartbeat) = &mut connection.heartbeat else {
            let is_late = now >= connection.hello_by_ms;
            return if is_late { vec![Output::Reconnect(self.hello_timed_out())] } else { Vec::new() };
        };
        if let Some((_, since)) = connection.ready_by_ms.filter(|(by, _)| now >= *by) {
            return vec![Output::Reconnect(self.ready_timed_out(since))];
        }
        if now < heartbeat.due_ms {
            return Vec::new();
        }
        if !heartbeat.is_acked {
            let why = "Discord did not answer a heartbeat in time";
            return vec![Output::Reconnect(self.reconnect_after_break(
                now,
                Some(CLOSE_RESUMABLE),
                why.to_owned(),
            ))];
        }
        heartbeat.is_acked = false;
        heartbeat.sent_ms = Some(now);
        heartbeat.due_ms = now.saturating_add(heartbeat.interval_ms);
        vec![Output::Send(OutgoingPayload::Heartbeat(seq))]
    }

    /// Takes a payload from the service.
    pub fn frame(&mut self, now: u64, frame: Frame, chance: f64) -> Vec<Output> {
        let seq = self.seq;
        let Some(connection) = &mut self.connection else { return Vec::new() };
        let heartbeat = match (frame, &mut connection.heartbeat) {
            (Frame::Hello { interval_ms }, None) => return self.start_session(now, interval_ms, chance),
            (Frame::Reconnect, _) => {
                let why = "Discord asked for a reconnect".to_owned();
                return vec![Output::Reconnect(self.reconnect_after_break(now, Some(CLOSE_RESUMABLE), why))];
            }
            (Frame::InvalidSession { resumable }, _) => {
                return vec![Output::Reconnect(self.invalidate_session(now, resumable, chance))];
            }
            (Frame::Dispatch { seq, kind, data }, Some(_)) => return self.dispatch(seq, kind, &data),
            (Frame::Unreadable, Some(_)) => return vec![Output::Gap(0)],
            (Frame::Ack, Some(heartbeat)) => {
                heartbeat.is_acked = true;
                return Vec::new();
            }
            (Frame::Heartbeat, Some(heartbeat)) => heartbeat,
            // A second HELLO; and before HELLO nothing else has a meaning.
            _ => return Vec::new(),
        };
        if heartbeat.sent_ms.is_some_and(|at| now.saturating_sub(at) < REQUESTED_HEARTBEAT_MIN_MS) {
            return Vec::new();
        }
        // The schedule stays as it is: this one may be acknowledged after the next one is due.
        heartbeat.sent_ms = Some(now);
        vec![Output::Send(OutgoingPayload::Heartbeat(seq))]
    }

    /// Takes the end of the wait for an identify slot: an error has the reason and the pause before the next request.
    pub fn slot_ended(&mut self, now: u64, ended: Result<(), (String, u64)>) -> Vec<Output> {
        let Some(connection) = &mut self.connection else { return Vec::new() };
        match ended {
            Ok(()) => {
                connection.ready_by_ms = Some((now.saturating_add(self.ready_timeout_ms), "IDENTIFY"));
                vec![Output::Send(OutgoingPayload::Identify)]
            }
            Err((why, after_ms)) => vec![Output::Reconnect(self.give_up_slot(why, after_ms))],
        }
    }

    /// Takes the end of the connection.
    ///
    /// # Errors
    /// [`FatalGatewayError`] where another connection would end in the same way.
    pub fn connection_ended(&mut self, now: u64, end: Disconnect) -> Result<Reconnect, FatalGatewayError> {
        let why = match end {
            Disconnect::NotConnected(why) => {
                return Ok(self.connect_failed(format!("connection failed: {why}")));
            }
            Disconnect::Broken => "the connection broke".to_owned(),
            Disconnect::TooLarge => {
                self.session = None;
                "Discord sent a message that is too large".to_owned()
            }
            Disconnect::Closed(code) => {
                let close = close_codes::close_code(code);
                if let Some(failure) = close_codes::fatal_error(code) {
                    return Err(failure);
                }
                if close.action == CloseAction::Identify {
                    self.session = None;
                }
                format!("{} (code {code})", close.cause)
            }
        };
        Ok(self.reconnect_after_break(now, None, why))
    }

    fn start_session(&mut self, now: u64, interval_ms: u64, chance: f64) -> Vec<Output> {
        let interval_ms = interval_ms.clamp(INTERVAL_MS.0, INTERVAL_MS.1);
        if let Some(connection) = &mut self.connection {
            connection.heartbeat = Some(Heartbeat {
                interval_ms,
                due_ms: now.saturating_add(fraction_of(interval_ms, chance)),
                sent_ms: None,
                is_acked: true,
            });
        }
        let payload = if let (Some(session), Some(seq)) = (&self.session, self.seq) {
            self.unanswered_resumes += 1;
            OutgoingPayload::Resume { session: session.id.clone(), seq }
        } else {
            self.session = None;
            self.seq = None;
            if self.needs_slot {
                return vec![Output::WaitForSlot];
            }
            OutgoingPayload::Identify
        };
        vec![Output::Send(payload)]
    }

    fn invalidate_session(&mut self, now: u64, resumable: bool, chance: f64) -> Reconnect {
        if !resumable {
            self.session = None;
        }
        let why = if resumable { "Discord asked to resume the session" } else { "Discord ended the session" };
        let close = if resumable { CLOSE_RESUMABLE } else { CLOSE_NORMAL };
        let pause = std::time::Duration::from_secs_f64(
            (INVALID_MS.0 + INVALID_MS.1 * clamp_to_unit(chance)) / 1_000.0,
        );
        let pause =
            u64::try_from(pause.as_millis()).unwrap_or(u64::MAX).max(self.backoff.record_disconnect(now));
        self.reconnect(Some(close), why.to_owned(), pause, false)
    }

    fn dispatch(&mut self, seq: Option<u64>, kind: String, data: &Json) -> Vec<Output> {
        let read = decode::event(&kind, data);
        let events: &[Event] = if let Ok(DecodedEvent::Events(events)) = &read { events } else { &[] };
        let mut outputs = Vec::new();
        if let (Some(seq), Some(last)) = (seq, self.seq)
            && seq > last.saturating_add(1)
        {
            outputs.push(Output::Gap(seq - last - 1));
        }
        match events.first() {
            Some(Event::Ready(ready)) => {
                let url = data.get("resume_gateway_url").and_then(Json::as_str);
                let url = url.and_then(|url| self.base.check_gateway_url(url).ok());
                self.session = Some(ResumableSession { id: ready.session.clone(), url });
                self.seq = seq;
                self.mark_established();
            }
            Some(Event::Resumed) => self.mark_established(),
            _ => {}
        }
        self.seq = self.seq.max(seq);
        outputs.push(Output::Event { kind, read });
        outputs
    }

    fn mark_established(&mut self) {
        self.unanswered_resumes = 0;
        self.backoff.reset();
        if let Some(connection) = &mut self.connection {
            connection.ready_by_ms = None;
        }
    }

    fn hello_timed_out(&mut self) -> Reconnect {
        let limit = self.ready_timeout_ms.min(HELLO_TIMEOUT_MS) / 1_000;
        let why = format!("shard {} got no HELLO within {limit} s of connecting", self.number);
        self.connect_failed(why)
    }

    fn ready_timed_out(&mut self, since: &str) -> Reconnect {
        self.session = None;
        let limit = self.ready_timeout_ms / 1_000;
        let why = format!("shard {} got neither READY nor RESUMED within {limit} s of {since}", self.number);
        let pause = self.backoff.record_failure();
        self.reconnect(Some(CLOSE_NORMAL), why, pause, true)
    }

    /// Closes a connection that got no identify slot. Reconnects after the pause; not counted as a failure.
    fn give_up_slot(&mut self, why: String, after_ms: u64) -> Reconnect {
        let lost = self.reconnect(Some(CLOSE_NORMAL), why, after_ms, false);
        Reconnect { needs_url: false, keeps_permit: true, ..lost }
    }

    /// Forgets the session's own address, and requests the gateway address again: this one is unreachable.
    fn connect_failed(&mut self, why: String) -> Reconnect {
        if let Some(session) = &mut self.session {
            session.url = None;
        }
        let pause = self.backoff.record_failure();
        self.reconnect(None, why, pause, true)
    }

    fn reconnect_after_break(&mut self, now: u64, close: Option<u16>, why: String) -> Reconnect {
        let pause = self.backoff.record_disconnect(now);
        self.reconnect(close, why, pause, false)
    }

    fn reconnect(&mut self, close: Option<u16>, why: String, after_ms: u64, needs_url: bool) -> Reconnect {
        self.connection = None;
        if self.unanswered_resumes >= RESUMES_MAX {
            self.session = None;
        }
        if self.session.is_none() {
            self.unanswered_resumes = 0;
        }
        // Discord limits new sessions per day and reports the limit together with the address.
        let resume = self.can_resume();
        Reconnect { close, why, after_ms, resume, needs_url: needs_url || !resume, keeps_permit: false }
    }
}

const fn clamp_to_unit(chance: f64) -> f64 {
    chance.clamp(0.0, 1.0)
}

/// A part of a time.
fn fraction_of(whole_ms: u64, chance: f64) -> u64 {
    let part = std::time::Duration::from_millis(whole_ms).mul_f64(clamp_to_unit(chance));
    u64::try_from(part.as_millis()).unwrap_or(whole_ms)
}

#[cfg(test)]
mod tests;
