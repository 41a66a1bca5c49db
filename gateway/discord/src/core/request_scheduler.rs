//! Schedule of waiting requests, ordered by priority. Pure: callers report events and get the requests to
//! start.
//!
//! Invariants, each with a property test below:
//!
//! - In a channel, at most one durable and one best-effort request are in flight.
//! - A durable request waits only for durable ones, never for best-effort ones.
//! - While a durable request waits in a channel, no best-effort request starts there.
//! - Durable requests of one priority run in the order of arrival.
//! - Of edits of one message, one is in flight and one waits: a newer edit replaces the waiting one.

use crate::core::ids::Snowflake;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

/// Purpose of a request. Earlier variants have priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Permission request, which blocks an agent.
    Permission,
    /// Reply to a user, or a step towards one.
    Final,
    /// Notice about an error or a change.
    Notice,
    /// Status card of a run.
    Card,
    /// Reaction to a message.
    Reaction,
    /// Typing indicator.
    Typing,
    /// Backfill check that no caller waits for.
    Look,
}

impl Priority {
    /// True if the request must be delivered. The others are best effort and soon lose their value.
    #[must_use]
    pub const fn is_durable(self) -> bool {
        matches!(self, Self::Permission | Self::Final | Self::Notice)
    }

    /// Name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Permission => "permission",
            Self::Final => "final",
            Self::Notice => "notice",
            Self::Card => "card",
            Self::Reaction => "reaction",
            Self::Typing => "typing",
            Self::Look => "look",
        }
    }
}

/// Group of requests that run one at a time, in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sequence {
    /// Content of a message. A newer request supersedes a waiting one.
    Edit(Snowflake),
    /// Reactions of the bot to a message.
    Reactions(Snowflake),
    /// Typing indicator of a channel. A newer request supersedes a waiting one.
    Typing(Snowflake),
}

impl Sequence {
    const fn supersedes(self) -> bool {
        matches!(self, Self::Edit(_) | Self::Typing(_))
    }
}

/// Request that waits to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledRequest<C> {
    /// Channel that the request writes to; `None` if only rate limits delay the request.
    pub channel: Option<Snowflake>,
    /// Purpose.
    pub priority: Priority,
    /// Sequence that the request belongs to.
    pub sequence: Option<Sequence>,
    /// Deadline after which the request is returned unsent.
    pub give_up_at: Duration,
    /// Properties that decide which rate limits apply.
    pub params: C,
}

/// Id of a request in the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Decision of the rate limiter about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartDecision<P> {
    /// Start the request, with this permit.
    Go(P),
    /// Wait until this time; `None`: until the next response.
    Wait(Option<Duration>),
    /// The request can never start.
    Never,
}

/// Decision of the schedule about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScheduleDecision<P> {
    /// The request starts.
    Start(P),
    /// The request would wait too long; a retry is possible after this time.
    GiveUp {
        /// Time from now.
        retry_after: Duration,
    },
    /// The request can never start.
    Never,
}

/// Result of a scheduling step.
#[derive(Debug, PartialEq, Eq)]
pub struct ScheduleStep<P> {
    /// Decisions, in this order.
    pub decisions: Vec<(Ticket, ScheduleDecision<P>)>,
    /// Time of the next step, unless something else causes one earlier.
    pub wake_at: Option<Duration>,
}

/// Error: the schedule is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduleFullError;

/// Time to wait if the time of the next free capacity is unknown.
pub const WAIT_UNKNOWN: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct WaitingRequest<C> {
    request: ScheduledRequest<C>,
    position: u64,
}

/// Waiting requests and requests in flight.
#[derive(Debug)]
pub struct Schedule<C> {
    waiting: HashMap<Ticket, WaitingRequest<C>>,
    order: BTreeMap<(Priority, u64), Ticket>,
    in_flight: HashMap<Ticket, (ScheduledRequest<C>, u64)>,
    /// Channels with a request in flight; true for a durable one.
    writers: HashSet<(Snowflake, bool)>,
    sequences: HashSet<Sequence>,
    next: u64,
    max: usize,
}

impl<C> Schedule<C> {
    /// Creates a schedule for this many waiting requests.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            waiting: HashMap::new(),
            order: BTreeMap::new(),
            in_flight: HashMap::new(),
            writers: HashSet::new(),
            sequences: HashSet::new(),
            next: 0,
            max,
        }
    }

    /// Adds a request. Also returns the request that it supersedes.
    ///
    /// # Errors
    /// [`ScheduleFullError`] if the maximum number of requests already waits.
    pub fn add(
        &mut self,
        mut request: ScheduledRequest<C>,
    ) -> Result<(Ticket, Option<Ticket>), ScheduleFullError> {
        let position = self.next;
        let ticket = Ticket(self.next);
        let older = request.sequence.filter(|sequence| sequence.supersedes()).and_then(|sequence| {
            self.waiting.iter().find(|(_, w)| w.request.sequence == Some(sequence)).map(|(ticket, _)| *ticket)
        });
        if older.is_none() && self.waiting.len() >= self.max {
            return Err(ScheduleFullError);
        }
        self.next += 1;
        let position = match older.and_then(|older| self.remove(older)) {
            // It takes the old position: otherwise frequent updates would never be sent.
            Some(older) => {
                request.priority = request.priority.min(older.request.priority);
                older.position
            }
            None => position,
        };
        self.enqueue(ticket, request, position);
        Ok((ticket, older))
    }

    fn enqueue(&mut self, ticket: Ticket, request: ScheduledRequest<C>, position: u64) {
        self.order.insert((request.priority, position), ticket);
        self.waiting.insert(ticket, WaitingRequest { request, position });
    }

    fn remove(&mut self, ticket: Ticket) -> Option<WaitingRequest<C>> {
        let waiting = self.waiting.remove(&ticket)?;
        self.order.remove(&(waiting.request.priority, waiting.position));
        Some(waiting)
    }

    /// Removes a request that has ended or is no longer wanted.
    pub fn done(&mut self, ticket: Ticket) {
        self.remove(ticket);
        self.finish(ticket);
    }

    fn finish(&mut self, ticket: Ticket) -> Option<(ScheduledRequest<C>, u64)> {
        let (request, position) = self.in_flight.remove(&ticket)?;
        if let Some(channel) = request.channel {
            self.writers.remove(&(channel, request.priority.is_durable()));
        }
        if let Some(sequence) = request.sequence {
            self.sequences.remove(&sequence);
        }
        Some((request, position))
    }

    /// Puts an unexecuted request back at its old position. Returns false if a newer waiting request
    /// supersedes it.
    pub fn requeue(&mut self, ticket: Ticket, give_up_at: Duration) -> bool {
        let Some((mut request, position)) = self.finish(ticket) else { return false };
        let sequence = request.sequence.filter(|sequence| sequence.supersedes());
        if sequence.is_some() && self.waiting.values().any(|w| w.request.sequence == sequence) {
            return false;
        }
        request.give_up_at = give_up_at;
        self.enqueue(ticket, request, position);
        true
    }

    /// Number of waiting requests.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

impl<C: Clone> Schedule<C> {
    /// Starts all requests that may start. `ask` consumes from the rate limits when it returns
    /// [`StartDecision::Go`].
    pub fn step<P>(&mut self, now: Duration, mut ask: impl FnMut(&C) -> StartDecision<P>) -> ScheduleStep<P> {
        let mut decisions = Vec::new();
        let mut wake_at: Option<Duration> = None;
        // Channels with a waiting durable request, and sequences with any waiting one: nothing overtakes.
        let (mut channels, mut sequences) = (HashSet::new(), HashSet::new());
        let order: Vec<Ticket> = self.order.values().copied().collect();
        for ticket in order {
            let Some(waiting) = self.waiting.get(&ticket) else { continue };
            let ScheduledRequest { channel, priority, sequence, give_up_at, .. } = waiting.request;
            let durable = priority.is_durable();
            let held = channel.is_some_and(|channel| {
                channels.contains(&channel) || self.writers.contains(&(channel, durable))
            }) || sequence.is_some_and(|s| sequences.contains(&s) || self.sequences.contains(&s));
            let turn = if held { StartDecision::Wait(None) } else { ask(&waiting.request.params) };
            let until = match turn {
                StartDecision::Go(permit) => {
                    self.start(ticket);
                    decisions.push((ticket, ScheduleDecision::Start(permit)));
                    continue;
                }
                StartDecision::Never => {
                    self.remove(ticket);
                    decisions.push((ticket, ScheduleDecision::Never));
                    continue;
                }
                StartDecision::Wait(until) => until,
            };
            if give_up_at <= now || until.is_some_and(|until| until > give_up_at) {
                self.remove(ticket);
                let retry_after = until.map_or(WAIT_UNKNOWN, |until| until.saturating_sub(now));
                decisions.push((ticket, ScheduleDecision::GiveUp { retry_after }));
                continue;
            }
            if durable {
                channels.extend(channel);
            }
            sequences.extend(sequence);
            let due = until.map_or(give_up_at, |until| until.min(give_up_at));
            wake_at = Some(wake_at.map_or(due, |at| at.min(due)));
        }
        ScheduleStep { decisions, wake_at }
    }

    fn start(&mut self, ticket: Ticket) {
        let Some(waiting) = self.remove(ticket) else { return };
        let WaitingRequest { request, position, .. } = waiting;
        if let Some(channel) = request.channel {
            self.writers.insert((channel, request.priority.is_durable()));
        }
        self.sequences.extend(request.sequence);
        self.in_flight.insert(ticket, (request, position));
    }
}

#[cfg(test)]
mod tests;
