//! How fast connections are made again.
//!
//! The service counts how often a session is begun (IDENTIFY), 1000 times a day as a rule, and takes the bot's token
//! away when that is passed (documentation, "Session Start Limit"). The library begins one every few seconds when
//! something goes on being wrong, so the pace is kept here.

use std::collections::VecDeque;

/// At least so much between two sessions that are begun (documentation, "Rate Limiting").
pub const BETWEEN_MS: u64 = 5_000;
const HOUR_MS: u64 = 3_600_000;
/// So many in an hour, if it went on, would use up a day's.
const ALARM_AT: usize = 25;
/// From so many in an hour on, so much between two of them. The last step is 480 a day.
const STEPS: [(usize, u64); 4] = [(0, BETWEEN_MS), (6, 15_000), (12, 60_000), (20, 180_000)];
/// So many breaks in so long are more than a network makes: something closes each connection at once.
const BREAKS: usize = 6;
const BREAKS_WITHIN_MS: u64 = 10_000;
/// The longest pause after attempts that led to nothing.
const PAUSE_MAX_MS: u64 = 60_000;

/// What was done lately. Times are of one clock that only goes forward, in milliseconds.
#[derive(Debug, Default)]
pub struct Pace {
    begun: VecDeque<u64>,
    broke: VecDeque<u64>,
    alarmed: Option<u64>,
    /// Attempts in a row that led to no session.
    failed: u32,
}

impl Pace {
    /// A session was begun. Says how many were in the last hour, once an hour, if those are too many.
    pub fn began(&mut self, now: u64) -> Option<usize> {
        self.begun.push_back(now);
        let count = self.lately(now);
        let told = self.alarmed.is_some_and(|at| now.saturating_sub(at) < HOUR_MS);
        if count < ALARM_AT || told {
            return None;
        }
        self.alarmed = Some(now);
        Some(count)
    }

    /// How many were begun in the last hour.
    fn lately(&mut self, now: u64) -> usize {
        while self.begun.front().is_some_and(|at| now.saturating_sub(*at) >= HOUR_MS) {
            self.begun.pop_front();
        }
        self.begun.len()
    }

    /// How much is to be between the last one that was begun and the next.
    pub fn spacing(&mut self, now: u64) -> u64 {
        let count = self.lately(now);
        STEPS.iter().rev().find(|(from, _)| count >= *from).map_or(BETWEEN_MS, |(_, ms)| *ms)
    }

    /// The connection broke. Says whether it breaks so fast that it is better to wait.
    pub fn broke(&mut self, now: u64) -> bool {
        self.broke.push_back(now);
        while self.broke.front().is_some_and(|at| now.saturating_sub(*at) >= BREAKS_WITHIN_MS) {
            self.broke.pop_front();
        }
        self.broke.len() >= BREAKS
    }

    /// A session began and is of use.
    pub const fn succeeded(&mut self) {
        self.failed = 0;
    }

    /// An attempt led to nothing. Says how long to wait before the next one.
    pub fn failed(&mut self) -> u64 {
        let pause = 1_000_u64 << self.failed.min(6);
        self.failed = self.failed.saturating_add(1);
        pause.min(PAUSE_MAX_MS)
    }

    /// How long to wait until a session may be begun.
    pub fn until_next(&mut self, now: u64) -> u64 {
        let spacing = self.spacing(now);
        self.begun.back().map_or(0, |last| (last + spacing).saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_begun_ever_slower_and_never_a_thousand_a_day() {
        let mut pace = Pace::default();
        assert_eq!(pace.until_next(0), 0);
        let (mut now, mut begun, mut alarms) = (0, 0, 0);
        while now < 24 * HOUR_MS {
            begun += 1;
            alarms += u32::from(pace.began(now).is_some());
            let wait = pace.until_next(now);
            assert!(wait >= BETWEEN_MS);
            now += wait;
        }
        assert!((300..600).contains(&begun), "{begun}");
        // No more than one an hour; and none while it stays below the bound.
        assert!(alarms <= 24, "{alarms}");
        // A day of quiet later it is as at the start.
        now += HOUR_MS;
        assert_eq!((pace.until_next(now), pace.spacing(now)), (0, BETWEEN_MS));
    }

    #[test]
    fn too_many_are_told_once_an_hour() {
        let mut pace = Pace::default();
        let told: Vec<usize> = (0..60).filter_map(|i| pace.began(i * 1000)).collect();
        assert_eq!(told, [ALARM_AT]);
        assert!(pace.began(HOUR_MS + 24_001).is_some());
    }

    #[test]
    fn breaks_at_once_are_not_a_network() {
        let mut pace = Pace::default();
        let fast: Vec<bool> = (0..6).map(|i| pace.broke(i * 100)).collect();
        assert_eq!(fast, [false, false, false, false, false, true]);
        let mut pace = Pace::default();
        assert!(!(0..60).any(|i| pace.broke(i * 2_000)));
    }

    #[test]
    fn pauses_double_up_to_a_minute_and_begin_anew() {
        let mut pace = Pace::default();
        let pauses: Vec<u64> = (0..8).map(|_| pace.failed()).collect();
        assert_eq!(pauses, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        pace.succeeded();
        assert_eq!(pace.failed(), 1_000);
    }
}
