//! Pending checks of a conversation worker; no I/O. A check runs when the queue is empty, and again after a
//! pause if Discord or the store does not answer. So incoming messages never wait for a check.

use crate::channel::discord::workers::BACKOFF;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Kind of check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CheckKind {
    /// Comparison of the messages whose turn has not begun with their current text.
    Waiting,
    /// Archive state of the thread.
    Thread,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckOutcome {
    /// Completed, or never going to succeed.
    Done,
    /// Not yet decidable for all messages.
    Partly,
    /// Stopped because other work arrived.
    Interrupted,
}

/// Time of the next attempt, and the pause after a failure.
#[derive(Debug, Clone, Copy)]
struct ScheduledCheck {
    at: Instant,
    pause: Duration,
}

/// All pending checks.
#[derive(Debug, Default)]
pub(super) struct PendingChecks(BTreeMap<CheckKind, ScheduledCheck>);

impl PendingChecks {
    /// Schedules a check as soon as possible.
    pub(super) fn schedule(&mut self, look: CheckKind, now: Instant) {
        self.0.insert(look, ScheduledCheck { at: now, pause: BACKOFF.0 });
    }

    /// Returns the next check with its time.
    pub(super) fn next(&self) -> Option<(Instant, CheckKind)> {
        self.0.iter().map(|(look, check)| (check.at, *look)).min()
    }

    /// Schedules a retry of a check that failed or was incomplete.
    pub(super) fn record_failure(&mut self, look: CheckKind, now: Instant) {
        if let Some(check) = self.0.get_mut(&look) {
            check.at = now + check.pause;
            check.pause = (check.pause * 2).min(BACKOFF.1);
        }
    }

    /// Removes a check that is complete or no longer necessary.
    pub(super) fn remove(&mut self, look: CheckKind) {
        self.0.remove(&look);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_check_is_retried_with_backoff_until_done() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let mut owed = PendingChecks::default();
        assert_eq!(owed.next(), None);
        owed.record_failure(CheckKind::Thread, at(0));
        assert_eq!(owed.next(), None, "no check is scheduled");
        owed.schedule(CheckKind::Thread, at(0));
        owed.schedule(CheckKind::Waiting, at(0));
        assert_eq!(owed.next(), Some((at(0), CheckKind::Waiting)));
        owed.record_failure(CheckKind::Waiting, at(0));
        assert_eq!(owed.next(), Some((at(0), CheckKind::Thread)), "a failed check does not delay another");
        owed.remove(CheckKind::Thread);
        let mut now = 0;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let (next, _) = owed.next().unwrap_or((at(0), CheckKind::Thread));
            let next_ms = u64::try_from(next.duration_since(begun).as_millis()).unwrap_or(0);
            pauses.push(next_ms - now);
            now = next_ms;
            owed.record_failure(CheckKind::Waiting, at(now));
        }
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        owed.schedule(CheckKind::Waiting, at(now));
        assert_eq!(owed.next(), Some((at(now), CheckKind::Waiting)), "a new schedule resets the pause");
        owed.remove(CheckKind::Waiting);
        assert_eq!(owed.next(), None);
    }
}
