//! Exponential backoff: pauses between attempts that double up to a maximum.

use std::time::Duration;

/// Pauses between attempts. Pure: the caller waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first_ms: u64,
    max_ms: u64,
    pause_ms: u64,
}

impl Backoff {
    /// Creates a backoff with its first and longest pause, in milliseconds.
    #[must_use]
    pub const fn new(first_ms: u64, max_ms: u64) -> Self {
        Self { first_ms, max_ms, pause_ms: first_ms }
    }

    /// Returns the current pause in milliseconds, and doubles the next one.
    pub const fn next_ms(&mut self) -> u64 {
        let pause_ms = self.pause_ms;
        let doubled_ms = pause_ms.saturating_mul(2);
        self.pause_ms = if doubled_ms < self.max_ms { doubled_ms } else { self.max_ms };
        pause_ms
    }

    /// Returns the current pause, and doubles the next one.
    pub const fn next_pause(&mut self) -> Duration {
        Duration::from_millis(self.next_ms())
    }

    /// Starts over with the first pause.
    pub const fn reset(&mut self) {
        self.pause_ms = self.first_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_maximum_and_start_over_after_reset() {
        for (first_ms, max_ms, want) in [
            (50, 2_000, &[50, 100, 200, 400, 800, 1_600, 2_000, 2_000][..]),
            (500, 8_000, &[500, 1_000, 2_000, 4_000, 8_000, 8_000]),
            (0, 10, &[0, 0, 0]),
            (20, 10, &[20, 10, 10]),
            (u64::MAX - 1, u64::MAX, &[u64::MAX - 1, u64::MAX, u64::MAX]),
        ] {
            let mut backoff = Backoff::new(first_ms, max_ms);
            let pauses: Vec<u64> = want.iter().map(|_| backoff.next_ms()).collect();
            assert_eq!(pauses, want, "{first_ms} {max_ms}");
            backoff.reset();
            assert_eq!(backoff, Backoff::new(first_ms, max_ms));
            assert_eq!(backoff.next_pause(), Duration::from_millis(first_ms));
        }
    }
}
