//! Which conversations are read again after something that may mean that events were missed, and when: pure.
//!
//! Each refusal counts towards the ban of the address, and each read takes a place in the queue of requests. So events
//! that come close together are one reason to read; of the conversations of one channel one is read first, and the
//! others only when that shows that the bot may; and what is shut is left to the slow look, but for one of a channel.
//!
//! Times are durations since some moment that stays the same.

use acp_discord::core::ids::Snowflake;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long no more such events have come, and how long after the first one it is read at the latest.
const QUIET: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
/// First and longest time between two rounds. It doubles while rounds follow each other within the longest.
const PACE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// How long a first conversation of a channel is waited for before the others are read without it.
const PATIENCE: Duration = Duration::from_secs(10);
/// So many conversations of a channel are refused before it is the channel.
const REFUSED_MAX: usize = 2;
/// Channels of which every conversation is shut that are tried in one round.
const SHUT_MAX: usize = 4;

/// What may have been missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// Anything.
    All,
    /// What happened in a server.
    Guild(Snowflake),
    /// What happened in a channel and its threads.
    Channel(Snowflake),
}

/// A bound conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    /// Itself.
    pub(super) id: Snowflake,
    /// The channel of a thread.
    pub(super) parent: Option<Snowflake>,
    /// The server, as far as it is known.
    pub(super) guild: Option<Snowflake>,
    /// Whether the bot was refused there when it last looked.
    pub(super) is_shut: bool,
}

impl Spot {
    fn channel(&self) -> Snowflake {
        self.parent.unwrap_or(self.id)
    }
}

impl Scope {
    /// A conversation of which the server is not known may be in any.
    fn holds(self, spot: &Spot) -> bool {
        match self {
            Self::All => true,
            Self::Guild(guild) => spot.guild.is_none_or(|at| at == guild),
            Self::Channel(channel) => spot.channel() == channel || spot.id == channel,
        }
    }
}

/// What came of reading a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    /// It was read.
    Read,
    /// The bot was refused.
    Refused,
    /// It is gone, or is not bound any more.
    Nothing,
}

/// When something is to be read.
#[derive(Debug)]
struct Wanted {
    first: Duration,
    last: Duration,
    /// What was read since, because somebody spoke there.
    read: BTreeSet<Snowflake>,
}

/// When the next round may begin.
#[derive(Debug, Default)]
struct Pace {
    last: Option<Duration>,
    pause: Duration,
}

impl Pace {
    fn next(&self) -> Duration {
        self.last.map_or(Duration::ZERO, |last| last + self.pause)
    }

    fn round(&mut self, now: Duration) {
        let is_on = self.last.is_some_and(|last| now < last + self.pause + PACE.1);
        self.pause = if is_on { (self.pause * 2).min(PACE.1) } else { PACE.0 };
        self.last = Some(now);
    }
}

/// A channel of which one conversation is being read, before the others.
#[derive(Debug)]
struct Try {
    first: Snowflake,
    /// Those that were not shut, then those that were.
    open: Vec<Snowflake>,
    shut: Vec<Snowflake>,
    refused: usize,
    until: Duration,
}

/// What is to be done now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Todo {
    /// Conversations to be read.
    pub(super) read: Vec<Snowflake>,
    /// Conversations that are taken to be shut, without a question: they are looked at now and then.
    pub(super) shut: Vec<Snowflake>,
}

/// What is to be read, and what is being tried.
#[derive(Debug, Default)]
pub(super) struct Reads {
    wanted: BTreeMap<Scope, Wanted>,
    /// Of rounds after a session began or events were lost, and of all others.
    paces: (Pace, Pace),
    /// By channel.
    tries: BTreeMap<Snowflake, Try>,
    /// By channel: those that were taken to be shut without a question.
    assumed: BTreeMap<Snowflake, Vec<Snowflake>>,
    rounds: usize,
}

impl Reads {
    /// Something may have been missed.
    pub(super) fn want(&mut self, scope: Scope, now: Duration) {
        let new = || Wanted { first: now, last: now, read: BTreeSet::new() };
        let wanted = self.wanted.entry(scope).or_insert_with(new);
        wanted.last = now;
        wanted.read.clear();
    }

    /// Somebody speaks in a conversation. Whether it is to be read first: what was missed came before.
    pub(super) fn speaks(&mut self, spot: &Spot) -> bool {
        let mut is_first = spot.is_shut;
        for (scope, wanted) in &mut self.wanted {
            is_first |= scope.holds(spot) && wanted.read.insert(spot.id);
        }
        for a_try in self.tries.values_mut() {
            let before = a_try.open.len() + a_try.shut.len();
            a_try.open.retain(|id| *id != spot.id);
            a_try.shut.retain(|id| *id != spot.id);
            is_first |= a_try.open.len() + a_try.shut.len() < before;
        }
        is_first
    }

    fn due_of(&self, scope: Scope, wanted: &Wanted) -> Duration {
        match scope {
            Scope::All => wanted.first.max(self.paces.0.next()),
            Scope::Guild(_) | Scope::Channel(_) => {
                (wanted.last + QUIET.0).min(wanted.first + QUIET.1).max(self.paces.1.next())
            }
        }
    }

    /// When there is something to do, as far as nothing else happens.
    pub(super) fn due(&self) -> Option<Duration> {
        let wanted = self.wanted.iter().map(|(scope, wanted)| self.due_of(*scope, wanted));
        wanted.chain(self.tries.values().map(|a_try| a_try.until)).min()
    }

    /// What is to be done of these bound conversations, now that something is due.
    pub(super) fn round(&mut self, now: Duration, bound: &[Spot]) -> Todo {
        let mut todo = Todo::default();
        for a_try in self.tries.extract_if(.., |_, a_try| a_try.until <= now).map(|(_, a_try)| a_try) {
            todo.read.extend(a_try.open);
        }
        let is_due =
            |(scope, wanted): (&Scope, &Wanted)| (self.due_of(*scope, wanted) <= now).then_some(*scope);
        let due: BTreeSet<Scope> = self.wanted.iter().filter_map(is_due).collect();
        if due.is_empty() {
            return todo;
        }
        self.wanted.retain(|scope, _| !due.contains(scope));
        self.rounds += 1;
        if due.contains(&Scope::All) {
            self.paces.0.round(now);
        }
        if due.iter().any(|scope| *scope != Scope::All) {
            self.paces.1.round(now);
        }
        let meant = bound.iter().filter(|spot| due.iter().any(|scope| scope.holds(spot)));
        let mut channels: BTreeMap<Snowflake, (Vec<Snowflake>, Vec<Snowflake>)> = BTreeMap::new();
        for spot in meant {
            let (open, shut) = channels.entry(spot.channel()).or_default();
            if spot.is_shut { shut.push(spot.id) } else { open.push(spot.id) }
        }
        let (open, shut): (Vec<_>, Vec<_>) =
            channels.into_iter().partition(|(_, (open, _))| !open.is_empty());
        let turn = self.rounds.checked_rem(shut.len()).unwrap_or(0);
        // Another one each time, in case that it is the thread and not the channel.
        let some_shut =
            shut.iter().cycle().skip(turn).take(SHUT_MAX.min(shut.len())).map(|(channel, (_, shut))| {
                let mut shut = shut.clone();
                let turn = self.rounds % shut.len();
                shut.rotate_left(turn);
                (*channel, (Vec::new(), shut))
            });
        let some_shut: Vec<_> = some_shut.collect();
        for (channel, (mut open, mut shut)) in open.into_iter().chain(some_shut) {
            let first = if open.is_empty() { shut.remove(0) } else { open.remove(0) };
            todo.read.push(first);
            if !open.is_empty() || !shut.is_empty() {
                let a_try = Try { first, open, shut, refused: 0, until: now + PATIENCE };
                self.tries.insert(channel, a_try);
            }
        }
        todo
    }

    /// Reading a conversation came to something: what that means for the others of its channel.
    pub(super) fn came(&mut self, now: Duration, at: Snowflake, came: Came) -> Todo {
        let mut todo = Todo::default();
        let found = self.tries.iter().find(|(_, a_try)| a_try.first == at).map(|(channel, _)| *channel);
        let Some((channel, mut a_try)) = found.and_then(|channel| self.tries.remove_entry(&channel)) else {
            if came == Came::Read
                && let Some((_, others)) =
                    self.assumed.extract_if(.., |_, others| others.contains(&at)).next()
            {
                // It was not the channel.
                todo.read = others.into_iter().filter(|id| *id != at).collect();
            }
            return todo;
        };
        a_try.refused += usize::from(came == Came::Refused);
        if came == Came::Read {
            self.assumed.remove(&channel);
            todo.read = [a_try.open, a_try.shut].concat();
        } else if a_try.refused < REFUSED_MAX && !a_try.open.is_empty() {
            a_try.first = a_try.open.remove(0);
            a_try.until = now + PATIENCE;
            todo.read.push(a_try.first);
            self.tries.insert(channel, a_try);
        } else if came == Came::Refused {
            todo.shut = a_try.open;
            self.assumed.insert(channel, todo.shut.clone());
        } else if !a_try.shut.is_empty() {
            a_try.first = a_try.shut.remove(0);
            a_try.until = now + PATIENCE;
            todo.read.push(a_try.first);
            self.tries.insert(channel, a_try);
        }
        todo
    }
}

#[cfg(test)]
#[path = "reads_tests.rs"]
mod tests;
