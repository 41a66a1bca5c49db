//! Of which messages an event told a moment ago: pure.
//!
//! What a request shows may be older than that. Discord does not say by how much: what it shows is believed once there
//! was time for it to catch up.

use acp_discord::core::ids::Snowflake;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// So much older may be what a request shows.
const OLDER_MAX: Duration = Duration::from_secs(10);
/// So many messages are remembered: the last ones.
const TOLD_MAX: usize = 1_000;

/// The messages that were told of a moment ago, in the order of that.
#[derive(Debug, Default)]
pub(super) struct Lately(VecDeque<(Instant, Snowflake)>);

impl Lately {
    /// An event told of a message.
    pub(super) fn told(&mut self, id: Snowflake, now: Instant) {
        while self.0.len() >= TOLD_MAX || self.0.front().is_some_and(|(at, _)| *at + OLDER_MAX <= now) {
            self.0.pop_front();
        }
        self.0.push_back((now, id));
    }

    /// Whether a request may show an older state of a message than events told.
    pub(super) fn has(&self, id: Snowflake, now: Instant) -> bool {
        self.0.iter().any(|(at, told)| *told == id && now < *at + OLDER_MAX)
    }
}

/// Whether a message is so new that a request may not show it yet; the second is now, in milliseconds of the Unix epoch.
pub(super) fn is_new(id: Snowflake, now_ms: u64) -> bool {
    let older_ms = u64::try_from(OLDER_MAX.as_millis()).unwrap_or(u64::MAX);
    now_ms < id.made_at_ms().saturating_add(older_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_remembered_for_a_while_and_up_to_a_bound() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let mut lately = Lately::default();
        let [one, two] = [Snowflake(1), Snowflake(2)];
        lately.told(one, at(0));
        lately.told(two, at(3_000));
        lately.told(one, at(5_000));
        for (ms, want) in [
            (5_000, [true, true]),
            (13_000, [true, false]),
            (14_999, [true, false]),
            (15_000, [false, false]),
        ] {
            assert_eq!([one, two].map(|id| lately.has(id, at(ms))), want, "{ms}");
        }
        for id in 0..=u64::try_from(TOLD_MAX).unwrap_or(0) {
            lately.told(Snowflake(id), at(20_000));
        }
        assert_eq!(lately.0.len(), TOLD_MAX);
        assert!(!lately.has(Snowflake(0), at(20_000)) && lately.has(one, at(20_000)), "the oldest goes");
    }

    #[test]
    fn what_was_just_made_is_new() {
        let made_ms = 1_795_338_000_000;
        let id = Snowflake::from_ms(made_ms);
        for (now_ms, want) in
            [(made_ms, true), (made_ms + 9_999, true), (made_ms + 10_000, false), (made_ms - 60_000, true)]
        {
            assert_eq!(is_new(id, now_ms), want, "{now_ms}");
        }
        assert!(!is_new(Snowflake(7), made_ms));
    }
}
