//! Pace of new sessions and of new connections.
//!
//! The service counts how often a session is identified, 1000 times a day as a rule, and resets the bot's token when
//! that is passed (documentation, "Session Start Limit").

use acp_shared::backoff::Backoff;
use std::collections::VecDeque;

/// Minimum time between two IDENTIFYs (documentation, "Rate Limiting").
const SPACING_MIN_MS: u64 = 5_000;
const HOUR_MS: u64 = 3_600_000;
/// Number of sessions within an hour that raises an alarm: at this rate, a day uses up most of the daily
/// limit.
const ALARM_AT: usize = 25;
/// Minimum milliseconds between two IDENTIFYs, by sessions in the last hour. The last step allows 480 a day.
const SPACING_STEPS_MS: [(usize, u64); 4] = [(0, SPACING_MIN_MS), (6, 15_000), (12, 60_000), (20, 180_000)];
/// Number of ended connections in that time above what a network causes: something closes each one at once.
const FAST_DISCONNECTS_MAX: usize = 6;
const FAST_DISCONNECT_WINDOW_MS: u64 = 10_000;
/// Pauses after failed attempts.
pub const CONNECT_BACKOFF: Backoff = Backoff::new(1_000, 60_000);

/// Pace at which the shards of one bot identify sessions. Times are of one monotonic clock, in milliseconds.
#[derive(Debug, Default)]
pub struct IdentifyPace {
    /// Times of the counted sessions of the last hour.
    identified_at: VecDeque<u64>,
    last: Option<u64>,
    alarmed_at: Option<u64>,
    /// Number of sessions that will not be counted: the first one of each further shard.
    uncounted: u32,
}

impl IdentifyPace {
    /// The pace of a bot with this number of shards.
    #[must_use]
    pub fn with_shards(shards: u32) -> Self {
        Self { uncounted: shards.saturating_sub(1), ..Self::default() }
    }

    /// Records an IDENTIFY. Returns the count of the last hour if it is too high, at most once an hour.
    pub fn record_identify(&mut self, now: u64) -> Option<usize> {
        self.last = Some(now);
        if self.uncounted > 0 {
            self.uncounted -= 1;
            return None;
        }
        self.identified_at.push_back(now);
        let count = self.count_recent(now);
        let told = self.alarmed_at.is_some_and(|at| now.saturating_sub(at) < HOUR_MS);
        if count < ALARM_AT || told {
            return None;
        }
        self.alarmed_at = Some(now);
        Some(count)
    }

    /// Returns the number of counted sessions of the last hour.
    fn count_recent(&mut self, now: u64) -> usize {
        while self.identified_at.front().is_some_and(|at| now.saturating_sub(*at) >= HOUR_MS) {
            self.identified_at.pop_front();
        }
        self.identified_at.len()
    }

    /// Minimum time between the last IDENTIFY and the next.
    fn spacing(&mut self, now: u64) -> u64 {
        let count = self.count_recent(now);
        SPACING_STEPS_MS.iter().rev().find(|(from, _)| count >= *from).map_or(SPACING_MIN_MS, |(_, ms)| *ms)
    }

    /// Time until the next session may be identified.
    pub fn until_next(&mut self, now: u64) -> u64 {
        let spacing = self.spacing(now);
        self.last.map_or(0, |last| (last + spacing).saturating_sub(now))
    }
}

/// Pauses between connections of one shard.
#[derive(Debug)]
pub struct ReconnectBackoff {
    disconnects: VecDeque<u64>,
    backoff: Backoff,
}

impl Default for ReconnectBackoff {
    fn default() -> Self {
        Self { disconnects: VecDeque::new(), backoff: CONNECT_BACKOFF }
    }
}

impl ReconnectBackoff {
    /// Records that a connection ended. Returns the pause before the next one: zero, unless connections end
    /// too fast for network faults.
    pub fn record_disconnect(&mut self, now: u64) -> u64 {
        self.disconnects.push_back(now);
        while self.disconnects.front().is_some_and(|at| now.saturating_sub(*at) >= FAST_DISCONNECT_WINDOW_MS)
        {
            self.disconnects.pop_front();
        }
        if self.disconnects.len() >= FAST_DISCONNECTS_MAX { self.record_failure() } else { 0 }
    }

    /// Records that a session began or was resumed.
    pub const fn reset(&mut self) {
        self.backoff.reset();
    }

    /// Records an attempt that led to no session. Returns the pause before the next one.
    pub const fn record_failure(&mut self) -> u64 {
        self.backoff.next_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifies_slow_down_and_stay_below_the_daily_limit() {
        let mut pace = IdentifyPace::default();
        assert_eq!(pace.until_next(0), 0);
        let (mut now, mut identifies, mut alarms) = (0, 0, 0);
        while now < 24 * HOUR_MS {
            identifies += 1;
            alarms += u32::from(pace.record_identify(now).is_some());
            let wait = pace.until_next(now);
            assert!(wait >= SPACING_MIN_MS);
            now += wait;
        }
        assert!((300..600).contains(&identifies), "{identifies}");
        // At most one alarm an hour, and none while the rate stays below the bound.
        assert!(alarms <= 24, "{alarms}");
        // After a quiet hour the pace is as at the start.
        now += HOUR_MS;
        assert_eq!((pace.until_next(now), pace.spacing(now)), (0, SPACING_MIN_MS));
    }

    #[test]
    fn identify_alarm_is_raised_once_an_hour() {
        let mut pace = IdentifyPace::default();
        let alarms: Vec<usize> = (0..60).filter_map(|i| pace.record_identify(i * 1000)).collect();
        assert_eq!(alarms, [ALARM_AT]);
        assert!(pace.record_identify(HOUR_MS + 24_001).is_some());
    }

    #[test]
    fn first_identify_of_each_shard_is_not_counted() {
        let mut pace = IdentifyPace::with_shards(30);
        assert!(!(0..30).any(|shard| pace.record_identify(shard * SPACING_MIN_MS).is_some()));
        assert_eq!(pace.until_next(29 * SPACING_MIN_MS), SPACING_MIN_MS);
    }

    #[test]
    fn short_connections_back_off() {
        let mut backoff = ReconnectBackoff::default();
        let pauses: Vec<u64> = (0..7).map(|i| backoff.record_disconnect(i * 100)).collect();
        assert_eq!(pauses, [0, 0, 0, 0, 0, 1_000, 2_000]);
        let mut backoff = ReconnectBackoff::default();
        assert!((0..60).all(|i| backoff.record_disconnect(i * 2_000) == 0));
    }

    #[test]
    fn backoff_doubles_to_one_minute_and_resets() {
        let mut backoff = ReconnectBackoff::default();
        let pauses: Vec<u64> = (0..8).map(|_| backoff.record_failure()).collect();
        assert_eq!(pauses, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        backoff.reset();
        assert_eq!(backoff.record_failure(), 1_000);
    }
}
