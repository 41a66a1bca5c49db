//! Limits over time that no header reports: all requests of a bot, and refusals that count against an IP
//! address.

use std::collections::VecDeque;
use std::time::Duration;

/// Limit of `limit` requests in any window of this length. The moment at which Discord counts a request is
/// unknown, so a request occupies the limit from when it is sent until one window after its response.
#[derive(Debug)]
pub struct GlobalLimit {
    limit: u32,
    window: Duration,
    in_flight: u32,
    /// Times at which finished requests stop counting, earliest first.
    frees_at: VecDeque<Duration>,
    /// Time until which Discord asked to wait.
    blocked_until: Duration,
}

impl GlobalLimit {
    /// Creates a limit of this many requests per window.
    #[must_use]
    pub const fn new(limit: u32, window: Duration) -> Self {
        let limit = if limit == 0 { 1 } else { limit };
        Self { limit, window, in_flight: 0, frees_at: VecDeque::new(), blocked_until: Duration::ZERO }
    }

    /// Changes the limit; requests already sent still count.
    pub const fn set_limit(&mut self, limit: u32) {
        self.limit = if limit == 0 { 1 } else { limit };
    }

    /// Returns `None` if a request may be sent now; `Some(Some(time))`: not before that time; `Some(None)`:
    /// after the next response.
    pub fn required_wait(&mut self, now: Duration) -> Option<Option<Duration>> {
        while self.frees_at.front().is_some_and(|frees_at| *frees_at <= now) {
            self.frees_at.pop_front();
        }
        if self.blocked_until > now {
            return Some(Some(self.blocked_until));
        }
        let held = u32::try_from(self.frees_at.len()).unwrap_or(u32::MAX).saturating_add(self.in_flight);
        (held >= self.limit).then(|| self.frees_at.front().copied())
    }

    /// Records that a request is sent.
    pub const fn acquire(&mut self) {
        self.in_flight += 1;
    }

    /// Records that a request was answered or given up.
    pub fn complete(&mut self, now: Duration) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let frees_at = now + self.window;
        // Time never goes back, so this is the latest one.
        self.frees_at.push_back(frees_at);
    }

    /// Records that a request was never sent.
    pub const fn release(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Blocks requests until this time, as Discord asked.
    pub fn block_until(&mut self, until: Duration) {
        self.blocked_until = self.blocked_until.max(until);
    }
}

/// Refusals that Discord counts against an IP address: at 10,000 in ten minutes it blocks the address.
/// Requests stop long before that, and resume as the oldest refusals leave the window.
#[derive(Debug)]
pub struct InvalidRequestLimit {
    max: usize,
    window: Duration,
    times: VecDeque<Duration>,
}

impl InvalidRequestLimit {
    /// Creates a limit of this many refusals per window.
    #[must_use]
    pub const fn new(max: usize, window: Duration) -> Self {
        let max = if max == 0 { 1 } else { max };
        Self { max, window, times: VecDeque::new() }
    }

    /// Counts a refusal.
    pub fn record(&mut self, now: Duration) {
        self.times.push_back(now);
        while self.times.len() > self.max {
            self.times.pop_front();
        }
    }

    /// Returns `None` if requests are possible, or the time from which they are.
    pub fn blocked_until(&mut self, now: Duration) -> Option<Duration> {
        let window = self.window;
        while self.times.front().is_some_and(|at| *at + window <= now) {
            self.times.pop_front();
        }
        if self.times.len() < self.max { None } else { self.times.front().map(|at| *at + window) }
    }
}

#[cfg(test)]
mod tests {
    use super::{GlobalLimit, InvalidRequestLimit};
    use std::time::Duration;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn slot_is_freed_one_window_after_response() {
        let mut global = GlobalLimit::new(2, ms(1000));
        assert_eq!(global.required_wait(ms(0)), None);
        global.acquire();
        assert_eq!(global.required_wait(ms(0)), None);
        global.acquire();
        // The time is unknown before the next response.
        assert_eq!(global.required_wait(ms(5000)), Some(None));
        global.complete(ms(5000));
        assert_eq!(global.required_wait(ms(5000)), Some(Some(ms(6000))));
        assert_eq!(global.required_wait(ms(6000)), None);
        global.release();
        global.block_until(ms(9000));
        global.block_until(ms(8000));
        assert_eq!(global.required_wait(ms(8999)), Some(Some(ms(9000))));
        assert_eq!(global.required_wait(ms(9000)), None);
    }

    #[test]
    fn lower_limit_counts_requests_that_were_sent() {
        let mut global = GlobalLimit::new(3, ms(1000));
        for at in [0, 100] {
            global.acquire();
            global.complete(ms(at));
        }
        assert_eq!(global.required_wait(ms(200)), None);
        global.set_limit(1);
        assert_eq!(global.required_wait(ms(200)), Some(Some(ms(1000))));
        assert_eq!(global.required_wait(ms(1050)), Some(Some(ms(1100))), "one is still too many");
        global.set_limit(0);
        assert_eq!(global.required_wait(ms(1100)), None, "at least one");
    }

    #[test]
    fn invalid_requests_block_until_the_oldest_expires() {
        let mut invalid = InvalidRequestLimit::new(3, ms(600_000));
        for at in [0, 1000] {
            invalid.record(ms(at));
            assert_eq!(invalid.blocked_until(ms(at)), None);
        }
        invalid.record(ms(2000));
        assert_eq!(invalid.blocked_until(ms(2000)), Some(ms(600_000)));
        assert_eq!(invalid.blocked_until(ms(600_000)), None);
        // One more refusal is possible; the next request waits until the next refusal leaves the window.
        invalid.record(ms(600_000));
        assert_eq!(invalid.blocked_until(ms(600_000)), Some(ms(601_000)));
        assert_eq!(invalid.blocked_until(ms(1_300_000)), None);
    }
}
