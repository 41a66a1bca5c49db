//! The gateway's clock: wall-clock time that never goes backwards while the process lives.

use std::time::Duration;
use tokio::time::Instant;

/// Source of time. Cheap to copy; all copies agree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    wall_ms: u64,
    base: Instant,
}

impl Clock {
    /// Reads the wall clock once and then advances monotonically, independent of later changes to the wall
    /// clock.
    pub(crate) fn start() -> Self {
        Self::at(acp_store::now_ms())
    }

    /// Creates a clock that shows this time now and advances with the runtime's time.
    pub(crate) fn at(wall_ms: u64) -> Self {
        Self { wall_ms, base: Instant::now() }
    }

    /// Returns milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        self.wall_ms + u64::try_from(self.base.elapsed().as_millis()).unwrap_or(0)
    }

    /// Returns the instant at which [`Clock::now_ms`] will be `at_ms`.
    pub(crate) fn instant_of(&self, at_ms: u64) -> Instant {
        let ahead = Duration::from_millis(at_ms.saturating_sub(self.wall_ms));
        self.base + ahead
    }
}
