//! Whose turn it is: requests that wait, in the order of what they are for. A value: it is told what happens and
//! says what may start.
//!
//! The laws, each a property test below:
//!
//! - In a channel one durable request is under way, and one that is best effort: never two of either.
//! - A durable request waits for durable ones only, never for what is best effort.
//! - While a durable request waits in a channel, nothing that is best effort starts there.
//! - Durable requests of one priority go in the order in which they came.
//! - Of changes of one message one is under way and one waits: a newer one takes the place of the one that waits.

use crate::core::ids::Snowflake;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

/// What a request is for. The first ones go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A question that holds up an agent.
    Permission,
    /// An answer, or what leads to one.
    Final,
    /// A word about an error or a change.
    Notice,
    /// The live card of a run.
    Card,
    /// A reaction to a message.
    Reaction,
    /// A sign of work.
    Typing,
    /// A look whether something was missed, which nobody waits for.
    Look,
}

impl Priority {
    /// Whether somebody owes it. The others are worth nothing a moment later.
    #[must_use]
    pub const fn durable(self) -> bool {
        matches!(self, Self::Permission | Self::Final | Self::Notice)
    }

    /// The word in metrics.
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

/// What must not be mixed up: of each of these one request is under way at a time, in the order in which they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sequence {
    /// What a message says. A newer one makes one that waits pointless.
    Edit(Snowflake),
    /// Reactions of ours to a message.
    Reactions(Snowflake),
    /// The sign of work in a channel. A newer one makes one that waits pointless.
    Typing(Snowflake),
}

impl Sequence {
    const fn supersedes(self) -> bool {
        matches!(self, Self::Edit(_) | Self::Typing(_))
    }
}

/// A request that waits for its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job<C> {
    /// The channel that it writes to; none: it waits for nobody but its budgets.
    pub lane: Option<Snowflake>,
    /// What it is for.
    pub priority: Priority,
    /// What it must not be mixed up with.
    pub sequence: Option<Sequence>,
    /// When it is given back undone.
    pub give_up_at: Duration,
    /// What it is counted against.
    pub counted: C,
}

/// Names a request here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// What its budgets say about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn<P> {
    /// It may start, with this pass.
    Go(P),
    /// Not before that time; none: once an answer has come.
    Wait(Option<Duration>),
    /// It will never start.
    Never,
}

/// What happens to a request next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate<P> {
    /// It starts.
    Start(P),
    /// It would wait for too long: it may be tried again after this time.
    GiveUp {
        /// From now.
        retry_after: Duration,
    },
    /// It will never start.
    Never,
}

/// What is to be done now, and when to look again.
#[derive(Debug, PartialEq, Eq)]
pub struct Step<P> {
    /// What happens to whom, in this order.
    pub fates: Vec<(Ticket, Fate<P>)>,
    /// When something is due that nothing else leads to.
    pub wake_at: Option<Duration>,
}

/// There are too many requests already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// How long is waited where nobody knows when a place comes free.
pub const WAIT_UNKNOWN: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Waiting<C> {
    job: Job<C>,
    place: u64,
}

/// Requests that wait, and which ones are under way.
#[derive(Debug)]
pub struct Schedule<C> {
    waiting: HashMap<Ticket, Waiting<C>>,
    order: BTreeMap<(Priority, u64), Ticket>,
    under_way: HashMap<Ticket, (Job<C>, u64)>,
    /// The writers of each channel: durable or not.
    writers: HashSet<(Snowflake, bool)>,
    sequences: HashSet<Sequence>,
    next: u64,
    most: usize,
}

impl<C> Schedule<C> {
    /// With room for so many requests that wait.
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

    /// A request comes. Also says which one it makes pointless.
    ///
    /// # Errors
    /// There is no room for it.
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
            // It stands where the other stood, or whoever is renewed all the time would never come to its turn.
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

    /// Nobody wants this request any more, or it has ended.
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

    /// A request that was under way was not carried out and waits again, where it stood. False: a newer one waits
    /// already that makes it pointless.
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

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many are under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }
}

impl<C: Clone> Schedule<C> {
    /// Starts what may start; `ask` takes from the budgets when it says yes.
    pub fn step<P>(&mut self, now: Duration, mut ask: impl FnMut(&C) -> Turn<P>) -> Step<P> {
        let mut fates = Vec::new();
        let mut wake_at: Option<Duration> = None;
        // What waits in a channel, and in which sequence: nothing later passes it.
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
