//! Ids of messages with a recent event; no I/O.
//!
//! A REST response may be older than an event, by an undocumented time. A response about such a message is
//! trusted only after a delay.

use acp_discord::core::ids::Snowflake;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum staleness of a REST response relative to events.
const STALENESS_MAX: Duration = Duration::from_secs(10);
/// Maximum number of remembered messages; the oldest are dropped first.
const REMEMBERED_MAX: usize = 1_000;

/// Ids of messages in the order of their last events, with the time of each event.
#[derive(Debug, Default)]
pub(super) struct RecentEvents(VecDeque<(Instant, Snowflake)>);

impl RecentEvents {
    /// Records an event of a message.
    pub(super) fn record(&mut self, id: Snowflake, now: Instant) {
        while self.0.len() >= REMEMBERED_MAX
            || self.0.front().is_some_and(|(at, _)| *at + STALENESS_MAX <= now)
        {
            self.0.pop_front();
        }
        self.0.push_back((now, id));
    }

    /// True if a REST response may show an older state of the message than events did.
    pub(super) fn has(&self, id: Snowflake, now: Instant) -> bool {
        self.0.iter().any(|(at, told)| *told == id && now < *at + STALENESS_MAX)
    }
}

/// True if a message is so new that a REST response may lack it; `now_ms` is in milliseconds since the Unix
/// epoch.
pub(super) fn is_too_new(id: Snowflake, now_ms: u64) -> bool {
    let older_ms = u64::try_from(STALENESS_MAX.as_millis()).unwrap_or(u64::MAX);
    now_ms < id.created_at_ms().saturating_add(older_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_events_are_bounded_by_time_and_count() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let mut lately = RecentEvents::default();
        let [one, two] = [Snowflake(1), Snowflake(2)];
        lately.record(one, at(0));
        lately.record(two, at(3_000));
        lately.record(one, at(5_000));
        for (ms, want) in [
            (5_000, [true, true]),
            (13_000, [true, false]),
            (14_999, [true, false]),
            (15_000, [false, false]),
        ] {
            assert_eq!([one, two].map(|id| lately.has(id, at(ms))), want, "{ms}");
        }
        for id in 0..=u64::try_from(REMEMBERED_MAX).unwrap_or(0) {
            lately.record(Snowflake(id), at(20_000));
        }
        assert_eq!(lately.0.len(), REMEMBERED_MAX);
        assert!(
            !lately.has(Snowflake(0), at(20_000)) && lately.has(one, at(20_000)),
            "the oldest is dropped"
        );
    }

    #[test]
    fn message_is_new_for_ten_seconds() {
        let made_ms = 1_795_338_000_000;
        let id = Snowflake::from_ms(made_ms);
        for (now_ms, want) in
            [(made_ms, true), (made_ms + 9_999, true), (made_ms + 10_000, false), (made_ms - 60_000, true)]
        {
            assert_eq!(is_too_new(id, now_ms), want, "{now_ms}");
        }
        assert!(!is_too_new(Snowflake(7), made_ms));
    }
}
