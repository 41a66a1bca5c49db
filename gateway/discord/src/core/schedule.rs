//! Schedule of waiting requests, ordered by priority. Pure: callers report events and get the requests to
//! start.
//!
//! Invariants, each with a property test below:
//!
//! - In a channel, at most one durable and one best-effort request are under way.
//! - A durable request waits only for durable ones, never for best-effort ones.
//! - While a durable request waits in a channel, no best-effort request starts there.
//! - Durable requests of one priority run in the order of arrival.
//! - Of edits of one message, one is under way and one waits: a newer edit replaces the waiting one.

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
    pub const fn durable(self) -> bool {
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

/// Request that waits for its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job<C> {
    /// Channel that the request writes to; `None` if only rate limits delay the request.
    pub lane: Option<Snowflake>,
    /// Purpose.
    pub priority: Priority,
    /// Sequence that the request belongs to.
    pub sequence: Option<Sequence>,
    /// Deadline after which the request is returned unsent.
    pub give_up_at: Duration,
    /// Properties that decide which rate limits apply.
    pub counted: C,
}

/// Id of a request in the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Decision of the rate limiter about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn<P> {
    /// Start the request, with this pass.
    Go(P),
    /// Wait until this time; `None`: until the next response.
    Wait(Option<Duration>),
    /// The request can never start.
    Never,
}

/// Decision of the schedule about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate<P> {
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
pub struct Step<P> {
    /// Decisions, in this order.
    pub fates: Vec<(Ticket, Fate<P>)>,
    /// Time of the next step, unless something else causes one earlier.
    pub wake_at: Option<Duration>,
}

/// Error: the schedule is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// Time to wait if the next free place is unknown.
pub const WAIT_UNKNOWN: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Waiting<C> {
    job: Job<C>,
    place: u64,
}

/// Waiting requests and requests under way.
#[derive(Debug)]
pub struct Schedule<C> {
    waiting: HashMap<Ticket, Waiting<C>>,
    order: BTreeMap<(Priority, u64), Ticket>,
    under_way: HashMap<Ticket, (Job<C>, u64)>,
    /// Channels with a request under way; true for a durable one.
    writers: HashSet<(Snowflake, bool)>,
    sequences: HashSet<Sequence>,
    next: u64,
    most: usize,
}

impl<C> Schedule<C> {
    /// Creates a schedule for this many waiting requests.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            waiting: HashMap::new(),
            order: BTreeMap::new(),
            under_way: HashMap::new(),
            writers: HashSet::new(),
            sequences: HashSet::new(),
            next: 0,
            most,
        }
    }

    /// Adds a request. Also returns the request that it supersedes.
    ///
    /// # Errors
    /// [`Full`] if the maximum number of requests already waits.
    pub fn add(&mut self, mut job: Job<C>) -> Result<(Ticket, Option<Ticket>), Full> {
        let place = self.next;
        let ticket = Ticket(self.next);
        let older = job.sequence.filter(|sequence| sequence.supersedes()).and_then(|sequence| {
            self.waiting.iter().find(|(_, w)| w.job.sequence == Some(sequence)).map(|(ticket, _)| *ticket)
        });
        if older.is_none() && self.waiting.len() >= self.most {
            return Err(Full);
        }
        self.next += 1;
        let place = match older.and_then(|older| self.remove(older)) {
            // It takes the old position: otherwise frequent updates would never get their turn.
            Some(older) => {
                job.priority = job.priority.min(older.job.priority);
                older.place
            }
            None => place,
        };
        self.enqueue(ticket, job, place);
        Ok((ticket, older))
    }

    fn enqueue(&mut self, ticket: Ticket, job: Job<C>, place: u64) {
        self.order.insert((job.priority, place), ticket);
        self.waiting.insert(ticket, Waiting { job, place });
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Waiting<C>> {
        let waiting = self.waiting.remove(&ticket)?;
        self.order.remove(&(waiting.job.priority, waiting.place));
        Some(waiting)
    }

    /// Removes a request that has ended or is no longer wanted.
    pub fn done(&mut self, ticket: Ticket) {
        self.remove(ticket);
        self.land(ticket);
    }

    fn land(&mut self, ticket: Ticket) -> Option<(Job<C>, u64)> {
        let (job, place) = self.under_way.remove(&ticket)?;
        if let Some(lane) = job.lane {
            self.writers.remove(&(lane, job.priority.durable()));
        }
        if let Some(sequence) = job.sequence {
            self.sequences.remove(&sequence);
        }
        Some((job, place))
    }

    /// Puts an unexecuted request back at its old position. Returns false if a newer waiting request
    /// supersedes it.
    pub fn again(&mut self, ticket: Ticket, give_up_at: Duration) -> bool {
        let Some((mut job, place)) = self.land(ticket) else { return false };
        let sequence = job.sequence.filter(|sequence| sequence.supersedes());
        if sequence.is_some() && self.waiting.values().any(|w| w.job.sequence == sequence) {
            return false;
        }
        job.give_up_at = give_up_at;
        self.enqueue(ticket, job, place);
        true
    }

    /// Number of waiting requests.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of requests under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }
}

impl<C: Clone> Schedule<C> {
    /// Starts all requests that may start. `ask` consumes from the rate limits when it returns [`Turn::Go`].
    pub fn step<P>(&mut self, now: Duration, mut ask: impl FnMut(&C) -> Turn<P>) -> Step<P> {
        let mut fates = Vec::new();
        let mut wake_at: Option<Duration> = None;
        // Channels with a waiting durable request, and sequences with any waiting one: nothing overtakes.
        let (mut lanes, mut sequences) = (HashSet::new(), HashSet::new());
        let order: Vec<Ticket> = self.order.values().copied().collect();
        for ticket in order {
            let Some(waiting) = self.waiting.get(&ticket) else { continue };
            let Job { lane, priority, sequence, give_up_at, .. } = waiting.job;
            let durable = priority.durable();
            let held = lane
                .is_some_and(|lane| lanes.contains(&lane) || self.writers.contains(&(lane, durable)))
                || sequence.is_some_and(|s| sequences.contains(&s) || self.sequences.contains(&s));
            let turn = if held { Turn::Wait(None) } else { ask(&waiting.job.counted) };
            let until = match turn {
                Turn::Go(pass) => {
                    self.start(ticket);
                    fates.push((ticket, Fate::Start(pass)));
                    continue;
                }
                Turn::Never => {
                    self.remove(ticket);
                    fates.push((ticket, Fate::Never));
                    continue;
                }
                Turn::Wait(until) => until,
            };
            if give_up_at <= now || until.is_some_and(|until| until > give_up_at) {
                self.remove(ticket);
                let retry_after = until.map_or(WAIT_UNKNOWN, |until| until.saturating_sub(now));
                fates.push((ticket, Fate::GiveUp { retry_after }));
                continue;
            }
            if durable {
                lanes.extend(lane);
            }
            sequences.extend(sequence);
            let due = until.map_or(give_up_at, |until| until.min(give_up_at));
            wake_at = Some(wake_at.map_or(due, |at| at.min(due)));
        }
        Step { fates, wake_at }
    }

    fn start(&mut self, ticket: Ticket) {
        let Some(waiting) = self.remove(ticket) else { return };
        let Waiting { job, place, .. } = waiting;
        if let Some(lane) = job.lane {
            self.writers.insert((lane, job.priority.durable()));
        }
        self.sequences.extend(job.sequence);
        self.under_way.insert(ticket, (job, place));
    }
}

#[cfg(test)]
mod tests;
