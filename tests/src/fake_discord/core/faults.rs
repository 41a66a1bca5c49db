//! What goes wrong on purpose: for the next so many, or by chance from a seed.

use super::model::Ms;
use crate::seed::Seed;
use serde::{Deserialize, Serialize};

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "fate")]
pub enum RestFate {
    /// The connection ends before anything is done.
    LostBefore,
    /// It is done and kept; then the connection ends without an answer.
    LostAfter,
    /// An error instead of doing it.
    ErrorBefore {
        /// The HTTP status.
        status: u16,
    },
    /// It is done and kept; then an error is answered.
    ErrorAfter {
        /// The HTTP status.
        status: u16,
    },
    /// Nothing happens for so long, or for ever; then it is done and answered.
    StallBefore {
        /// Milliseconds; none for ever.
        ms: Option<Ms>,
    },
    /// It is done and kept; the answer waits for so long, or for ever.
    StallAfter {
        /// Milliseconds; none for ever.
        ms: Option<Ms>,
    },
    /// The connection ends at once; the request is carried out all the same, so much later.
    Late {
        /// Milliseconds.
        ms: Ms,
    },
    /// It is answered as done, and what it made is not kept: a service that loses what it took.
    Forgotten,
    /// 429 without reason.
    RateLimited {
        /// When to come again.
        retry_after_ms: Ms,
        /// Which limit it is said to be.
        scope: Scope,
    },
}

/// Whose limit a 429 speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The bot's, on this route.
    User,
    /// The bot's, on all routes.
    Global,
    /// The resource's: not counted against the bot.
    Shared,
}

/// What becomes of an event for one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventFate {
    /// It arrives.
    Deliver,
    /// It never arrives, not even with RESUME.
    Drop,
    /// It arrives twice, under two numbers.
    Duplicate,
    /// The next event comes before it; where there is none, it comes a little later.
    Overtaken,
    /// It arrives in a shape that no client can read.
    Odd,
    /// The connection is reset; the event waits for RESUME.
    ResetInstead,
    /// It is sent, and the connection is reset: it may or may not have arrived, and RESUME brings it again.
    ResetAfter,
}

/// How often a fault comes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// The next so many times.
    Next(u64),
    /// With this chance, of one, each time.
    Chance(f64),
}

/// A fault of requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RestFault {
    /// Which route, as `POST /channels/{}/messages`, or with what stands there; `*` for all.
    pub route: String,
    /// How often.
    pub when: When,
    /// What.
    pub fate: RestFate,
}

/// A fault of events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventFault {
    /// Which event, as `MESSAGE_CREATE`; `*` for all.
    pub event: String,
    /// How often.
    pub when: When,
    /// What.
    pub fate: EventFate,
}

/// The faults that are set.
#[derive(Debug, Clone)]
pub struct Faults {
    /// Of requests.
    pub rest: Vec<RestFault>,
    /// Of events.
    pub events: Vec<EventFault>,
    /// Heartbeats are not acknowledged.
    pub acks_withheld: bool,
    /// The whole service is away: requests get 503, connections to the gateway are reset.
    pub away: bool,
    /// So many IDENTIFYs and RESUMEs are answered with "invalid session".
    pub invalid_sessions: u64,
    /// So many connections get no HELLO.
    pub hellos_withheld: u64,
    /// So many IDENTIFYs and RESUMEs get no answer, while heartbeats are acknowledged.
    pub unanswered: u64,
    /// Where chance comes from.
    pub dice: Seed,
}

impl Faults {
    /// None, and chance from a seed.
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

    /// What becomes of a request to this route, which is `exact` with what stands in it. The first fault that strikes
    /// decides.
    pub fn request(&mut self, route: &str, exact: &str) -> Option<RestFate> {
        let dice = &mut self.dice;
        let fate = self.rest.iter_mut().find_map(|fault| {
            let named = ["*", route, exact].contains(&fault.route.as_str());
            (named && strikes(&mut fault.when, dice)).then_some(fault.fate)
        });
        self.rest.retain(|fault| fault.when != When::Next(0));
        fate
    }

    /// What becomes of an event for one session.
    pub fn event(&mut self, event: &str) -> EventFate {
        let dice = &mut self.dice;
        let fate = self.events.iter_mut().find_map(|fault| {
            let named = fault.event == "*" || fault.event == event;
            (named && strikes(&mut fault.when, dice)).then_some(fault.fate)
        });
        self.events.retain(|fault| fault.when != When::Next(0));
        fate.unwrap_or(EventFate::Deliver)
    }

    /// Whether this IDENTIFY or RESUME is answered with "invalid session".
    pub fn take_invalid_session(&mut self) -> bool {
        let strikes = self.invalid_sessions > 0;
        self.invalid_sessions = self.invalid_sessions.saturating_sub(1);
        strikes
    }

    /// Whether this connection gets no HELLO.
    pub fn take_hello(&mut self) -> bool {
        let strikes = self.hellos_withheld > 0;
        self.hellos_withheld = self.hellos_withheld.saturating_sub(1);
        strikes
    }

    /// Whether this IDENTIFY or RESUME gets no answer.
    pub fn take_unanswered(&mut self) -> bool {
        let strikes = self.unanswered > 0;
        self.unanswered = self.unanswered.saturating_sub(1);
        strikes
    }
}

fn strikes(when: &mut When, dice: &mut Seed) -> bool {
    match when {
        When::Next(left) => {
            let strikes = *left > 0;
            *left = left.saturating_sub(1);
            strikes
        }
        When::Chance(chance) => {
            const STEPS: u64 = 1 << 32;
            #[expect(clippy::cast_precision_loss, reason = "2^32 fits")]
            let drawn = dice.below(STEPS) as f64 / STEPS as f64;
            drawn < *chance
        }
    }
}
