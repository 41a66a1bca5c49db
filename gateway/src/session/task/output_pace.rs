//! Spaces the commits of an agent that writes without a break, so that one commit takes many lines.

use std::time::Duration;
use tokio::time::Instant;

/// Time from a commit of output to the next one, while an agent writes without a break.
const INTERVAL: Duration = Duration::from_millis(3);
/// Number of commits close together after which the following ones are spaced.
const BURST_COMMITS: u32 = 2;

/// Decides when a session takes the next output of its agent.
#[derive(Debug, Default)]
pub(super) struct OutputPace {
    committed: Option<Instant>,
    /// Number of successive commits that followed the one before within twice the interval.
    close: u32,
}

impl OutputPace {
    /// Time before which no output is taken; `None` if it is taken at once.
    pub(super) fn ready_at(&self) -> Option<Instant> {
        let last = self.committed.filter(|_| self.close >= BURST_COMMITS)?;
        Some(last + INTERVAL)
    }

    /// Records that output was taken at `taken` and its commit returned at `now`.
    pub(super) fn record(&mut self, taken: Instant, now: Instant) {
        let is_close = self.committed.is_some_and(|last| taken.duration_since(last) < 2 * INTERVAL);
        self.close = if is_close { self.close.saturating_add(1) } else { 0 };
        self.committed = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_spaced_from_the_third_close_commit_until_a_break() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut pace = OutputPace::default();
        // Taken, committed, time of the next output.
        for (taken, committed, ready) in [
            (0, 1, None),
            (1, 2, None),
            (2, 3, Some(6)),
            (6, 7, Some(10)),
            // Slower than the interval, but no break.
            (12, 13, Some(16)),
            (19, 20, None),
            (30, 31, None),
        ] {
            pace.record(at(taken), at(committed));
            assert_eq!(pace.ready_at(), ready.map(at), "taken at {taken} ms");
        }
    }
}
