//! Limits over time that no header reports: all requests of a bot, and refusals that count against an IP
//! address.

use std::collections::VecDeque;
use std::time::Duration;

/// Limit of `places` requests in any window of this length. The moment at which Discord counts a request is
/// unknown, so a request holds its place from when it is sent until one window after its response.
#[derive(Debug)]
pub struct Global {
    places: u32,
    window: Duration,
    on_their_way: u32,
    /// Times at which places become free, earliest first.
    back: VecDeque<Duration>,
    /// Time until which Discord asked to wait.
    closed_until: Duration,
}

impl Global {
    /// Creates a limit of this many requests per window.
    #[must_use]
    pub const fn new(places: u32, window: Duration) -> Self {
        let places = if places == 0 { 1 } else { places };
        Self { places, window, on_their_way: 0, back: VecDeque::new(), closed_until: Duration::ZERO }
    }

    /// Returns `None` if a request may be sent now; `Some(Some(time))`: not before that time; `Some(None)`:
    /// after the next response.
    pub fn ready(&mut self, now: Duration) -> Option<Option<Duration>> {
        while self.back.front().is_some_and(|back| *back <= now) {
            self.back.pop_front();
        }
        if self.closed_until > now {
            return Some(Some(self.closed_until));
        }
        let held = u32::try_from(self.back.len()).unwrap_or(u32::MAX).saturating_add(self.on_their_way);
        (held >= self.places).then(|| self.back.front().copied())
    }

    /// Records that a request is sent.
    pub const fn take(&mut self) {
        self.on_their_way += 1;
    }

    /// Records that a request was answered or given up.
    pub fn landed(&mut self, now: Duration) {
        self.on_their_way = self.on_their_way.saturating_sub(1);
        let back = now + self.window;
        // Time never goes back, so this is the latest one.
        self.back.push_back(back);
    }

    /// Records that a request was never sent.
    pub const fn unused(&mut self) {
        self.on_their_way = self.on_their_way.saturating_sub(1);
    }

    /// Blocks requests until this time, as Discord asked.
    pub fn close(&mut self, until: Duration) {
        self.closed_until = self.closed_until.max(until);
    }
}

/// Refusals that Discord counts against an IP address: at 10,000 in ten minutes it blocks the address.
/// Requests stop long before that, and resume as the oldest refusals leave the window.
#[derive(Debug)]
pub struct Invalid {
    most: usize,
    window: Duration,
    times: VecDeque<Duration>,
}

impl Invalid {
    /// Creates a limit of this many refusals per window.
    #[must_use]
    pub const fn new(most: usize, window: Duration) -> Self {
        let most = if most == 0 { 1 } else { most };
        Self { most, window, times: VecDeque::new() }
    }

    /// Counts a refusal.
    pub fn count(&mut self, now: Duration) {
        self.times.push_back(now);
        while self.times.len() > self.most {
            self.times.pop_front();
        }
    }

    /// Returns `None` if requests are possible, or the time from which they are.
    pub fn ready(&mut self, now: Duration) -> Option<Duration> {
        let window = self.window;
        while self.times.front().is_some_and(|at| *at + window <= now) {
            self.times.pop_front();
        }
        if self.times.len() < self.most { None } else { self.times.front().map(|at| *at + window) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Global, Invalid};
    use std::time::Duration;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_place_comes_back_a_window_after_the_answer() {
        let mut global = Global::new(2, ms(1000));
        assert_eq!(global.ready(ms(0)), None);
        global.take();
        assert_eq!(global.ready(ms(0)), None);
        global.take();
        // The time is unknown before the next response.
        assert_eq!(global.ready(ms(5000)), Some(None));
        global.landed(ms(5000));
        assert_eq!(global.ready(ms(5000)), Some(Some(ms(6000))));
        assert_eq!(global.ready(ms(6000)), None);
        global.unused();
        global.close(ms(9000));
        global.close(ms(8000));
        assert_eq!(global.ready(ms(8999)), Some(Some(ms(9000))));
        assert_eq!(global.ready(ms(9000)), None);
    }

    #[test]
    fn refusals_stop_requests_until_the_oldest_is_forgotten() {
        let mut invalid = Invalid::new(3, ms(600_000));
        for at in [0, 1000] {
            invalid.count(ms(at));
            assert_eq!(invalid.ready(ms(at)), None);
        }
        invalid.count(ms(2000));
        assert_eq!(invalid.ready(ms(2000)), Some(ms(600_000)));
        assert_eq!(invalid.ready(ms(600_000)), None);
        // One more refusal is possible; the next request waits until the next refusal leaves the window.
        invalid.count(ms(600_000));
        assert_eq!(invalid.ready(ms(600_000)), Some(ms(601_000)));
        assert_eq!(invalid.ready(ms(1_300_000)), None);
    }
}
