//! Schedule of backfills after a possible loss of events: which conversations to read, and when; no I/O.
//!
//! Each read takes a place in the request queue. So events in quick succession cause a single backfill, and
//! changes of channels and roles are paced.
//!
//! Times are durations since a fixed instant.

use acp_discord::core::ids::Snowflake;
use acp_shared::backoff::Backoff;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Quiet period after the last such event before a backfill, and the maximum delay after the first one.
const QUIET_PERIOD: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
/// Maximum interval between two rounds, in milliseconds.
const ROUND_INTERVAL_MAX_MS: u64 = 60_000;
/// Intervals between two rounds, which double while rounds follow each other closely.
const ROUND_BACKOFF: Backoff = Backoff::new(2_000, ROUND_INTERVAL_MAX_MS);
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

/// Conversation to read: a bound one, or the channel of a project.
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

/// Pending backfill of a scope, with the times of the first and last event.
#[derive(Debug)]
struct PendingBackfill {
    first: Duration,
    last: Duration,
    /// Conversations read since then because of a new message.
    read: BTreeSet<Snowflake>,
}

/// Earliest time of the next round, and the intervals after it.
#[derive(Debug)]
struct RoundPacing {
    next: Duration,
    backoff: Backoff,
}

impl Default for RoundPacing {
    fn default() -> Self {
        Self { next: Duration::ZERO, backoff: ROUND_BACKOFF }
    }
}

impl RoundPacing {
    fn record_round(&mut self, now: Duration) {
        if now >= self.next + Duration::from_millis(ROUND_INTERVAL_MAX_MS) {
            self.backoff.reset();
        }
        self.next = now + self.backoff.next_pause();
    }
}

/// Pending backfills.
#[derive(Debug, Default)]
pub(super) struct BackfillSchedule {
    wanted: BTreeMap<BackfillScope, PendingBackfill>,
    /// Pace of rounds after a session start or lost events, and after changes of channels and roles.
    pacing: (RoundPacing, RoundPacing),
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
        is_first
    }

    fn due_of(&self, scope: BackfillScope, wanted: &PendingBackfill) -> Duration {
        match scope {
            BackfillScope::All => wanted.first.max(self.pacing.0.next),
            BackfillScope::Guild(_) | BackfillScope::Channel(_) => {
                (wanted.last + QUIET_PERIOD.0).min(wanted.first + QUIET_PERIOD.1).max(self.pacing.1.next)
            }
            BackfillScope::Inaccessible => wanted.first,
        }
    }

    /// Returns the time of the next round, unless an event comes first.
    pub(super) fn due(&self) -> Option<Duration> {
        self.wanted.iter().map(|(scope, wanted)| self.due_of(*scope, wanted)).min()
    }

    /// Returns which of these conversations are to be read now. The order changes with each round: in a
    /// denied channel only the first one is tried, and it may be the thread that is inaccessible.
    pub(super) fn due_targets(&mut self, now: Duration, bound: &[BackfillTarget]) -> Vec<Snowflake> {
        let is_due = |(scope, wanted): (&BackfillScope, &PendingBackfill)| {
            (self.due_of(*scope, wanted) <= now).then_some(*scope)
        };
        let due: BTreeSet<BackfillScope> = self.wanted.iter().filter_map(is_due).collect();
        self.wanted.retain(|scope, _| !due.contains(scope));
        if due.contains(&BackfillScope::All) {
            self.pacing.0.record_round(now);
        }
        if due.iter().any(|scope| matches!(scope, BackfillScope::Guild(_) | BackfillScope::Channel(_))) {
            self.pacing.1.record_round(now);
        }
        let meant = bound.iter().filter(|target| due.iter().any(|scope| scope.includes(target)));
        let mut meant: Vec<Snowflake> = meant.map(|target| target.id).collect();
        self.rounds += usize::from(!meant.is_empty());
        let turn = self.rounds.checked_rem(meant.len()).unwrap_or(0);
        meant.rotate_left(turn);
        meant
    }
}

#[cfg(test)]
#[path = "backfill_schedule_tests.rs"]
mod tests;
