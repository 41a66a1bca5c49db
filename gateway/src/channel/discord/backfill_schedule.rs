//! Schedule of backfills after a possible loss of events: which conversations to read, and when; no I/O.
//!
//! Each refused request counts towards a ban of the IP address, and each read takes a place in the request
//! queue. So events in quick succession cause a single backfill. Of the conversations of one channel one is
//! read first, and the others only if the bot proves to have access. Inaccessible channels are tried a few at a
//! time.
//!
//! Times are durations since a fixed instant.

use acp_discord::core::ids::Snowflake;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Quiet period after the last such event before a backfill, and the maximum delay after the first one.
const QUIET_PERIOD: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
/// Shortest and longest interval between two rounds. Doubles while rounds follow each other closely.
const ROUND_INTERVAL: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// Maximum wait for one conversation of a channel before the next one is tried.
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
    /// All inaccessible conversations: Discord does not report every restored permission.
    Inaccessible,
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
            Self::Inaccessible => target.is_inaccessible,
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
    /// Remaining conversations, the accessible ones first.
    others: Vec<Snowflake>,
    refused: usize,
    until: Duration,
}

/// Actions that are due.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BackfillActions {
    /// Conversations to be read.
    pub(super) read: Vec<Snowflake>,
    /// Conversations to be marked inaccessible without a request.
    pub(super) inaccessible: Vec<Snowflake>,
}

/// Pending backfills, and channels being tried.
#[derive(Debug, Default)]
pub(super) struct BackfillSchedule {
    wanted: BTreeMap<BackfillScope, PendingBackfill>,
    /// Pace of rounds after a session start or lost events, and after changes of channels and roles.
    pacing: (RoundPacing, RoundPacing),
    /// Channels being tried, by id.
    probes: BTreeMap<Snowflake, ChannelProbe>,
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
            is_first |= probe.others.extract_if(.., |id| *id == target.id).next().is_some();
        }
        is_first
    }

    fn due_of(&self, scope: BackfillScope, wanted: &PendingBackfill) -> Duration {
        match scope {
            BackfillScope::All => wanted.first.max(self.pacing.0.next()),
            BackfillScope::Guild(_) | BackfillScope::Channel(_) => {
                (wanted.last + QUIET_PERIOD.0).min(wanted.first + QUIET_PERIOD.1).max(self.pacing.1.next())
            }
            BackfillScope::Inaccessible => wanted.first,
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
        let late: Vec<_> = self.probes.extract_if(.., |_, probe| probe.until <= now).collect();
        for (channel, probe) in late {
            actions.read.extend(self.probe_next(now, channel, probe));
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
        if due.iter().any(|scope| matches!(scope, BackfillScope::Guild(_) | BackfillScope::Channel(_))) {
            self.pacing.1.record_round(now);
        }
        let meant = bound.iter().filter(|target| due.iter().any(|scope| scope.includes(target)));
        let mut channels: BTreeMap<Snowflake, (Vec<Snowflake>, Vec<Snowflake>)> = BTreeMap::new();
        for target in meant {
            let (open, inaccessible) = channels.entry(target.channel()).or_default();
            if target.is_inaccessible { inaccessible.push(target.id) } else { open.push(target.id) }
        }
        let is_shut = |(open, _): &(Vec<Snowflake>, Vec<Snowflake>)| open.is_empty();
        let shut_count = channels.values().filter(|channel| is_shut(channel)).count();
        let (mut shut_number, turn) = (0, self.rounds.checked_rem(shut_count).unwrap_or(0));
        for (channel, (mut others, mut inaccessible)) in channels {
            let mut refused = 0;
            if others.is_empty() {
                shut_number += 1;
                // Rotate the choice: the thread may be inaccessible, and not the channel.
                if (shut_number + turn) % shut_count >= INACCESSIBLE_MAX {
                    continue;
                }
                refused = REFUSED_MAX - 1;
                let turn = self.rounds % inaccessible.len();
                inaccessible.rotate_left(turn);
            }
            others.append(&mut inaccessible);
            let probe = ChannelProbe { first: Snowflake(0), others, refused, until: now };
            actions.read.extend(self.probe_next(now, channel, probe));
        }
        actions
    }

    /// Returns the next conversation of a channel to be read; `None` if none is left.
    fn probe_next(
        &mut self,
        now: Duration,
        channel: Snowflake,
        mut probe: ChannelProbe,
    ) -> Option<Snowflake> {
        probe.first = *probe.others.first()?;
        probe.others.remove(0);
        probe.until = now + PROBE_TIMEOUT;
        let first = probe.first;
        if !probe.others.is_empty() {
            self.probes.insert(channel, probe);
        }
        Some(first)
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
        let Some((channel, mut probe)) = self.probes.extract_if(.., |_, probe| probe.first == at).next()
        else {
            return actions;
        };
        probe.refused += usize::from(outcome == BackfillOutcome::Refused);
        match outcome {
            BackfillOutcome::Read => actions.read = probe.others,
            BackfillOutcome::Refused if probe.refused >= REFUSED_MAX => actions.inaccessible = probe.others,
            BackfillOutcome::Refused | BackfillOutcome::Nothing => {
                actions.read.extend(self.probe_next(now, channel, probe));
            }
        }
        actions
    }
}

#[cfg(test)]
#[path = "backfill_schedule_tests.rs"]
mod tests;
