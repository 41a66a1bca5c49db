//! Clock of a process. Created once, where the process starts, and passed to everything that reads the time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// Source of time. Cheap to copy; all copies agree.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    base_ms: u64,
    base: Instant,
    is_system: bool,
}

impl Clock {
    /// Clock of this machine.
    #[must_use]
    pub fn start() -> Self {
        Self { is_system: true, ..Self::at(system_ms()) }
    }

    /// Clock that shows this time now and advances with the runtime's time, which tests may pause.
    #[must_use]
    pub fn at(now_ms: u64) -> Self {
        Self { base_ms: now_ms, base: Instant::now(), is_system: false }
    }

    /// Milliseconds since the Unix epoch, for deadlines: the wall clock as it was at the start, advanced monotonically.
    /// Later changes of the wall clock and suspension of the machine have no effect.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.base_ms + u64::try_from(self.base.elapsed().as_millis()).unwrap_or(0)
    }

    /// Milliseconds since the Unix epoch by the wall clock as it is now, for records and for comparison with the
    /// times of other machines.
    #[must_use]
    pub fn wall_ms(&self) -> u64 {
        if self.is_system { system_ms() } else { self.now_ms() }
    }

    /// Instant at which [`Clock::now_ms`] will be `at_ms`.
    #[must_use]
    pub fn instant_of(&self, at_ms: u64) -> Instant {
        self.base + Duration::from_millis(at_ms.saturating_sub(self.base_ms))
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn system_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clock_that_is_set_advances_with_the_runtime() {
        let clock = Clock::at(1_000);
        tokio::time::sleep(Duration::from_millis(250)).await;
        assert_eq!((clock.now_ms(), clock.wall_ms()), (1_250, 1_250));
        assert_eq!(clock.instant_of(1_250), Instant::now());
    }
}
