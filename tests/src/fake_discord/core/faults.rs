//! Injected faults: for the next N occurrences, or with a probability, from a seed.

use super::model::Ms;
use crate::seed::Seed;
use serde::{Deserialize, Serialize};

/// Fault of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "fate")]
pub enum RestFate {
    /// The connection ends before the request is executed.
    LostBefore,
    /// The request is executed and stored; then the connection ends without an answer.
    LostAfter,
    /// The request is not executed; the answer is an error.
    ErrorBefore {
        /// The HTTP status.
        status: u16,
    },
    /// The request is executed and stored; the answer is an error.
    ErrorAfter {
        /// The HTTP status.
        status: u16,
    },
    /// The request is executed and answered after a delay, or never.
    StallBefore {
        /// Milliseconds; `None` for ever.
        ms: Option<Ms>,
    },
    /// The request is executed and stored; the answer is delayed, or never sent.
    StallAfter {
        /// Milliseconds; `None` for ever.
        ms: Option<Ms>,
    },
    /// The connection ends at once; the request is executed after a delay.
    Late {
        /// Milliseconds.
        ms: Ms,
    },
    /// The request is answered with success, but the created message is lost.
    Forgotten,
    /// A 429 although no limit is exceeded.
    RateLimited {
        /// The announced delay.
        retry_after_ms: Ms,
        /// The announced kind of limit.
        scope: Scope,
    },
}

/// Scope of the limit of a 429.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The bot's limit of this route.
    User,
    /// The bot's limit of all routes.
    Global,
    /// The resource's limit: not counted against the bot.
    Shared,
}

/// Fault of an event for one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventFate {
    /// No fault: the event arrives.
    Deliver,
    /// The event never arrives, not even with RESUME.
    Drop,
    /// The event arrives twice, with two sequence numbers.
    Duplicate,
    /// The next event overtakes it; without one, it arrives a little later.
    Overtaken,
    /// The event arrives with missing and unknown members.
    Odd,
    /// The connection is reset; the event waits for RESUME.
    ResetInstead,
    /// The event is sent, and the connection is reset: it may have arrived, and RESUME delivers it again.
    ResetAfter,
}

/// Frequency of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// The next N times.
    Next(u64),
    /// With this probability each time.
    Chance(f64),
}

/// A fault of requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RestFault {
    /// Route (`POST /channels/{}/messages`), or an exact path; `*` for all.
    pub route: String,
    /// Its frequency.
    pub when: When,
    /// The fault.
    pub fate: RestFate,
}

/// A fault of events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventFault {
    /// Name of the event (`MESSAGE_CREATE`); `*` for all.
    pub event: String,
    /// Its frequency.
    pub when: When,
    /// The fault.
    pub fate: EventFate,
}

/// All active faults.
#[derive(Debug, Clone)]
pub struct Faults {
    /// Faults of requests.
    pub rest: Vec<RestFault>,
    /// Faults of events.
    pub events: Vec<EventFault>,
    /// Heartbeats are not acknowledged.
    pub acks_withheld: bool,
    /// The whole service is unavailable: requests get 503, gateway connections are reset.
    pub away: bool,
    /// Number of IDENTIFYs and RESUMEs to answer with "invalid session".
    pub invalid_sessions: u64,
    /// Number of connections that get no HELLO.
    pub hellos_withheld: u64,
    /// Number of IDENTIFYs and RESUMEs that get no answer, while heartbeats are acknowledged.
    pub unanswered: u64,
    /// Random number generator.
    pub dice: Seed,
}

impl Faults {
    /// No faults, with a seeded random number generator.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            rest: Vec::new(),
            events: Vec::new(),
            acks_withheld: false,
            away: false,
            invalid_sessions: 0,
            hellos_withheld: 0,
            unanswered: 0,
            dice: Seed::from_number(seed),
        }
    }

    /// Draws the fault of a request to this route, whose exact path is `exact`. The first fault that applies
    /// is used.
    pub fn request(&mut self, route: &str, exact: &str) -> Option<RestFate> {
        let dice = &mut self.dice;
        let fate = self.rest.iter_mut().find_map(|fault| {
            let named = ["*", route, exact].contains(&fault.route.as_str());
            (named && applies(&mut fault.when, dice)).then_some(fault.fate)
        });
        self.rest.retain(|fault| fault.when != When::Next(0));
        fate
    }

    /// Draws the fault of an event for one session.
    pub fn event(&mut self, event: &str) -> EventFate {
        let dice = &mut self.dice;
        let fate = self.events.iter_mut().find_map(|fault| {
            let named = fault.event == "*" || fault.event == event;
            (named && applies(&mut fault.when, dice)).then_some(fault.fate)
        });
        self.events.retain(|fault| fault.when != When::Next(0));
        fate.unwrap_or(EventFate::Deliver)
    }

    /// Whether this IDENTIFY or RESUME is answered with "invalid session".
    pub fn take_invalid_session(&mut self) -> bool {
        let is_due = self.invalid_sessions > 0;
        self.invalid_sessions = self.invalid_sessions.saturating_sub(1);
        is_due
    }

    /// Whether this connection gets no HELLO.
    pub fn take_hello(&mut self) -> bool {
        let is_due = self.hellos_withheld > 0;
        self.hellos_withheld = self.hellos_withheld.saturating_sub(1);
        is_due
    }

    /// Whether this IDENTIFY or RESUME gets no answer.
    pub fn take_unanswered(&mut self) -> bool {
        let is_due = self.unanswered > 0;
        self.unanswered = self.unanswered.saturating_sub(1);
        is_due
    }
}

fn applies(when: &mut When, dice: &mut Seed) -> bool {
    match when {
        When::Next(left) => {
            let is_due = *left > 0;
            *left = left.saturating_sub(1);
            is_due
        }
        When::Chance(chance) => {
            const STEPS: u64 = 1 << 32;
            #[expect(clippy::cast_precision_loss, reason = "2^32 fits")]
            let drawn = dice.below(STEPS) as f64 / STEPS as f64;
            drawn < *chance
        }
    }
}
