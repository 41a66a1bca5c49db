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
    pub(super) is_inaccessible: bool,
}

impl BackfillTarget {
    fn channel(&self) -> Snowflake {
        self.parent.unwrap_or(self.id)
    }
}

impl BackfillScope {
    /// True if the scope includes the conversation. A conversation of an unknown server may be in any server.
    fn includes(self, target: &BackfillTarget) -> bool {
        match self {
            Self::All => true,
            Self::Guild(guild) => target.guild.is_none_or(|at| at == guild),
            Self::Channel(channel) => target.channel() == channel || target.id == channel,
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
    inaccessible: Vec<Snowflake>,
    refused: usize,
    until: Duration,
}

/// Actions that are due.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BackfillActions {
    /// Conversations to be read.
    pub(super) read: Vec<Snowflake>,
    /// Conversations to be marked inaccessible without a request; left to slow retries.
    pub(super) inaccessible: Vec<Snowflake>,
}

/// Pending backfills, and channels being tried.
#[derive(Debug, Default)]
pub(super) struct BackfillSchedule {
    wanted: BTreeMap<BackfillScope, PendingBackfill>,
    /// Pace of rounds after a session start or lost events, and of all other rounds.
    pacing: (RoundPacing, RoundPacing),
    /// Channels being tried, by id.
    probes: BTreeMap<Snowflake, ChannelProbe>,
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
    pub(super) fn on_message(&mut self, target: &BackfillTarget) -> bool {
        let mut is_first = target.is_inaccessible;
        for (scope, wanted) in &mut self.wanted {
            is_first |= scope.includes(target) && wanted.read.insert(target.id);
        }
        for probe in self.probes.values_mut() {
            let before = probe.open.len() + probe.inaccessible.len();
            probe.open.retain(|id| *id != target.id);
            probe.inaccessible.retain(|id| *id != target.id);
            is_first |= probe.open.len() + probe.inaccessible.len() < before;
        }
        is_first
    }

    fn due_of(&self, scope: BackfillScope, wanted: &PendingBackfill) -> Duration {
        match scope {
            BackfillScope::All => wanted.first.max(self.pacing.0.next()),
            BackfillScope::Guild(_) | BackfillScope::Channel(_) => {
                (wanted.last + QUIET_PERIOD.0).min(wanted.first + QUIET_PERIOD.1).max(self.pacing.1.next())
            }
        }
    }

    /// Returns the time of the next action, unless an event comes first.
    pub(super) fn due(&self) -> Option<Duration> {
        let wanted = self.wanted.iter().map(|(scope, wanted)| self.due_of(*scope, wanted));
        wanted.chain(self.probes.values().map(|probe| probe.until)).min()
    }

    /// Returns the actions for these bound conversations that are due now.
    pub(super) fn due_actions(&mut self, now: Duration, bound: &[BackfillTarget]) -> BackfillActions {
        let mut actions = BackfillActions::default();
        for probe in self.probes.extract_if(.., |_, probe| probe.until <= now).map(|(_, probe)| probe) {
            actions.read.extend(probe.open);
        }
        let is_due = |(scope, wanted): (&BackfillScope, &PendingBackfill)| {
            (self.due_of(*scope, wanted) <= now).then_some(*scope)
        };
        let due: BTreeSet<BackfillScope> = self.wanted.iter().filter_map(is_due).collect();
        if due.is_empty() {
            return actions;
        }
        self.wanted.retain(|scope, _| !due.contains(scope));
        self.rounds += 1;
        if due.contains(&BackfillScope::All) {
            self.pacing.0.record_round(now);
        }
        if due.iter().any(|scope| *scope != BackfillScope::All) {
            self.pacing.1.record_round(now);
        }
        let meant = bound.iter().filter(|target| due.iter().any(|scope| scope.includes(target)));
        let mut channels: BTreeMap<Snowflake, (Vec<Snowflake>, Vec<Snowflake>)> = BTreeMap::new();
        for target in meant {
            let (open, inaccessible) = channels.entry(target.channel()).or_default();
            if target.is_inaccessible { inaccessible.push(target.id) } else { open.push(target.id) }
        }
        let (open, inaccessible): (Vec<_>, Vec<_>) =
            channels.into_iter().partition(|(_, (open, _))| !open.is_empty());
        let turn = self.rounds.checked_rem(inaccessible.len()).unwrap_or(0);
        // Rotate the choice: the thread may be inaccessible, and not the channel.
        let some_shut =
            inaccessible.iter().cycle().skip(turn).take(INACCESSIBLE_MAX.min(inaccessible.len())).map(
                |(channel, (_, inaccessible))| {
                    let mut inaccessible = inaccessible.clone();
                    let turn = self.rounds % inaccessible.len();
                    inaccessible.rotate_left(turn);
                    (*channel, (Vec::new(), inaccessible))
                },
            );
        let some_shut: Vec<_> = some_shut.collect();
        for (channel, (mut open, mut inaccessible)) in open.into_iter().chain(some_shut) {
            let first = if open.is_empty() { inaccessible.remove(0) } else { open.remove(0) };
            actions.read.push(first);
            if !open.is_empty() || !inaccessible.is_empty() {
                let probe =
                    ChannelProbe { first, open, inaccessible, refused: 0, until: now + PROBE_TIMEOUT };
                self.probes.insert(channel, probe);
            }
        }
        actions
    }

    /// Records the result of a backfill. Returns the resulting actions for other conversations of the
    /// channel.
    pub(super) fn record_outcome(
        &mut self,
        now: Duration,
        at: Snowflake,
        outcome: BackfillOutcome,
    ) -> BackfillActions {
        let mut actions = BackfillActions::default();
        let found = self.probes.iter().find(|(_, probe)| probe.first == at).map(|(channel, _)| *channel);
        let Some((channel, mut probe)) = found.and_then(|channel| self.probes.remove_entry(&channel)) else {
            if outcome == BackfillOutcome::Read
                && let Some((_, others)) =
                    self.assumed.extract_if(.., |_, others| others.contains(&at)).next()
            {
                // The channel itself is accessible.
                actions.read = others.into_iter().filter(|id| *id != at).collect();
            }
            return actions;
        };
        probe.refused += usize::from(outcome == BackfillOutcome::Refused);
        if outcome == BackfillOutcome::Read {
            self.assumed.remove(&channel);
            actions.read = [probe.open, probe.inaccessible].concat();
        } else if probe.refused < REFUSED_MAX && !probe.open.is_empty() {
            probe.first = probe.open.remove(0);
            probe.until = now + PROBE_TIMEOUT;
            actions.read.push(probe.first);
            self.probes.insert(channel, probe);
        } else if outcome == BackfillOutcome::Refused {
            actions.inaccessible = probe.open;
            self.assumed.insert(channel, actions.inaccessible.clone());
        } else if !probe.inaccessible.is_empty() {
            probe.first = probe.inaccessible.remove(0);
            probe.until = now + PROBE_TIMEOUT;
            actions.read.push(probe.first);
            self.probes.insert(channel, probe);
        }
        actions
    }
}

#[cfg(test)]
#[path = "backfill_schedule_tests.rs"]
mod tests;
