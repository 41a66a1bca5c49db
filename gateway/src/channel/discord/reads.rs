//! Schedule of backfills after a possible loss of events: which conversations to read, and when; no I/O.
//!
//! Each refused request counts towards a ban of the IP address, and each read takes a place in the request
//! queue. So events in quick succession cause a single backfill. Of the conversations of one channel one is
//! read first, and the others only if the bot proves to have access. Inaccessible conversations are left to
//! slow retries, except for one per channel.
//!
//! Times are durations since a fixed instant.

use acp_discord::core::ids::Snowflake;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Quiet period after the last such event before a backfill, and the maximum delay after the first one.
const QUIET_PERIOD: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
/// Shortest and longest interval between two rounds. Doubles while rounds follow each other closely.
const ROUND_INTERVAL: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// Maximum wait for the first conversation of a channel before the others are read regardless.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of refused conversations of a channel after which the whole channel counts as inaccessible.
const REFUSED_MAX: usize = 2;
/// Maximum number of entirely inaccessible channels that are tried per round.
const INACCESSIBLE_MAX: usize = 4;

/// Scope of a possible loss of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BackfillScope {
    /// All servers.
    All,
    /// A server.
    Guild(Snowflake),
    /// A channel with its threads.
    Channel(Snowflake),
}

/// Bound conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BackfillTarget {
    /// Id of the conversation.
    pub(super) id: Snowflake,
    /// Parent channel of a thread.
    pub(super) parent: Option<Snowflake>,
    /// Server, if known.
    pub(super) guild: Option<Snowflake>,
    /// True if the conversation is marked as inaccessible.
    pub(super) is_shut: bool,
}

impl BackfillTarget {
    fn channel(&self) -> Snowflake {
        self.parent.unwrap_or(self.id)
    }
}

impl BackfillScope {
    /// True if the scope includes the conversation. A conversation of an unknown server may be in any server.
    fn holds(self, spot: &BackfillTarget) -> bool {
        match self {
            Self::All => true,
            Self::Guild(guild) => spot.guild.is_none_or(|at| at == guild),
            Self::Channel(channel) => spot.channel() == channel || spot.id == channel,
        }
    }
}

/// Result of a backfill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BackfillOutcome {
    /// Completed.
    Read,
    /// Refused: the bot has no access.
    Refused,
    /// Conversation deleted or unbound.
    Nothing,
}

/// Pending backfill of a scope, with the times of the first and last event.
#[derive(Debug)]
struct PendingBackfill {
    first: Duration,
    last: Duration,
    /// Conversations read since then because of a new message.
    read: BTreeSet<Snowflake>,
}

/// Time of the last round, and the pause until the next.
#[derive(Debug, Default)]
struct RoundPacing {
    last: Option<Duration>,
    pause: Duration,
}

impl RoundPacing {
    fn next(&self) -> Duration {
        self.last.map_or(Duration::ZERO, |last| last + self.pause)
    }

    fn record_round(&mut self, now: Duration) {
        let is_on = self.last.is_some_and(|last| now < last + self.pause + ROUND_INTERVAL.1);
        self.pause = if is_on { (self.pause * 2).min(ROUND_INTERVAL.1) } else { ROUND_INTERVAL.0 };
        self.last = Some(now);
    }
}

/// Channel with one conversation being read before the others.
#[derive(Debug)]
struct ChannelProbe {
    first: Snowflake,
    /// Remaining accessible conversations, then remaining inaccessible ones.
    open: Vec<Snowflake>,
    shut: Vec<Snowflake>,
    refused: usize,
    until: Duration,
}

/// Actions that are due.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BackfillActions {
    /// Conversations to be read.
    pub(super) read: Vec<Snowflake>,
    /// Conversations to be marked inaccessible without a request; left to slow retries.
    pub(super) shut: Vec<Snowflake>,
}

/// Pending backfills, and channels being tried.
#[derive(Debug, Default)]
pub(super) struct BackfillSchedule {
    wanted: BTreeMap<BackfillScope, PendingBackfill>,
    /// Pace of rounds after a session start or lost events, and of all other rounds.
    paces: (RoundPacing, RoundPacing),
    /// Channels being tried, by id.
    tries: BTreeMap<Snowflake, ChannelProbe>,
    /// Conversations marked inaccessible without a request, by channel.
    assumed: BTreeMap<Snowflake, Vec<Snowflake>>,
    rounds: usize,
}

impl BackfillSchedule {
    /// Schedules a backfill of a scope that may have missed events.
    pub(super) fn request_backfill(&mut self, scope: BackfillScope, now: Duration) {
        let new = || PendingBackfill { first: now, last: now, read: BTreeSet::new() };
        let wanted = self.wanted.entry(scope).or_insert_with(new);
        wanted.last = now;
        wanted.read.clear();
    }

    /// Records a new message. Returns true if the conversation must be read first, since missed messages are
    /// older.
    pub(super) fn on_message(&mut self, spot: &BackfillTarget) -> bool {
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

    fn due_of(&self, scope: BackfillScope, wanted: &PendingBackfill) -> Duration {
        match scope {
            BackfillScope::All => wanted.first.max(self.paces.0.next()),
            BackfillScope::Guild(_) | BackfillScope::Channel(_) => {
                (wanted.last + QUIET_PERIOD.0).min(wanted.first + QUIET_PERIOD.1).max(self.paces.1.next())
            }
        }
    }

    /// Returns the time of the next action, unless an event comes first.
    pub(super) fn due(&self) -> Option<Duration> {
        let wanted = self.wanted.iter().map(|(scope, wanted)| self.due_of(*scope, wanted));
        wanted.chain(self.tries.values().map(|a_try| a_try.until)).min()
    }

    /// Returns the actions for these bound conversations that are due now.
    pub(super) fn due_actions(&mut self, now: Duration, bound: &[BackfillTarget]) -> BackfillActions {
        let mut todo = BackfillActions::default();
        for a_try in self.tries.extract_if(.., |_, a_try| a_try.until <= now).map(|(_, a_try)| a_try) {
            todo.read.extend(a_try.open);
        }
        let is_due = |(scope, wanted): (&BackfillScope, &PendingBackfill)| {
            (self.due_of(*scope, wanted) <= now).then_some(*scope)
        };
        let due: BTreeSet<BackfillScope> = self.wanted.iter().filter_map(is_due).collect();
        if due.is_empty() {
            return todo;
        }
        self.wanted.retain(|scope, _| !due.contains(scope));
        self.rounds += 1;
        if due.contains(&BackfillScope::All) {
            self.paces.0.record_round(now);
        }
        if due.iter().any(|scope| *scope != BackfillScope::All) {
            self.paces.1.record_round(now);
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
        // Rotate the choice: the thread may be inaccessible, and not the channel.
        let some_shut = shut.iter().cycle().skip(turn).take(INACCESSIBLE_MAX.min(shut.len())).map(
            |(channel, (_, shut))| {
                let mut shut = shut.clone();
                let turn = self.rounds % shut.len();
                shut.rotate_left(turn);
                (*channel, (Vec::new(), shut))
            },
        );
        let some_shut: Vec<_> = some_shut.collect();
        for (channel, (mut open, mut shut)) in open.into_iter().chain(some_shut) {
            let first = if open.is_empty() { shut.remove(0) } else { open.remove(0) };
            todo.read.push(first);
            if !open.is_empty() || !shut.is_empty() {
                let a_try = ChannelProbe { first, open, shut, refused: 0, until: now + PROBE_TIMEOUT };
                self.tries.insert(channel, a_try);
            }
        }
        todo
    }

    /// Records the result of a backfill. Returns the resulting actions for other conversations of the
    /// channel.
    pub(super) fn record_outcome(
        &mut self,
        now: Duration,
        at: Snowflake,
        came: BackfillOutcome,
    ) -> BackfillActions {
        let mut todo = BackfillActions::default();
        let found = self.tries.iter().find(|(_, a_try)| a_try.first == at).map(|(channel, _)| *channel);
        let Some((channel, mut a_try)) = found.and_then(|channel| self.tries.remove_entry(&channel)) else {
            if came == BackfillOutcome::Read
                && let Some((_, others)) =
                    self.assumed.extract_if(.., |_, others| others.contains(&at)).next()
            {
                // The channel itself is accessible.
                todo.read = others.into_iter().filter(|id| *id != at).collect();
            }
            return todo;
        };
        a_try.refused += usize::from(came == BackfillOutcome::Refused);
        if came == BackfillOutcome::Read {
            self.assumed.remove(&channel);
            todo.read = [a_try.open, a_try.shut].concat();
        } else if a_try.refused < REFUSED_MAX && !a_try.open.is_empty() {
            a_try.first = a_try.open.remove(0);
            a_try.until = now + PROBE_TIMEOUT;
            todo.read.push(a_try.first);
            self.tries.insert(channel, a_try);
        } else if came == BackfillOutcome::Refused {
            todo.shut = a_try.open;
            self.assumed.insert(channel, todo.shut.clone());
        } else if !a_try.shut.is_empty() {
            a_try.first = a_try.shut.remove(0);
            a_try.until = now + PROBE_TIMEOUT;
            todo.read.push(a_try.first);
            self.tries.insert(channel, a_try);
        }
        todo
    }
}

#[cfg(test)]
#[path = "reads_tests.rs"]
mod tests;
