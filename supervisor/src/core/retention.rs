//! Retention of ended leases. Ages come from the supervisor's monotonic clock. The wall clock can jump, so it
//! is used only for leases that ended before this supervisor started. In doubt a lease is kept, but never for
//! ever: a lease that existed at start is removed at the latest when this supervisor has seen the whole
//! retention time.

use crate::core::lease::Lease;
use acp_shared::protocol::LeaseState;

/// Time after a start until the wall clock is trusted, in milliseconds.
pub const WALL_SETTLES_MS: u64 = 3_600 * 1_000;

/// Clock readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// Supervisor's own clock, milliseconds since start.
    pub now_ms: u64,
    /// Wall clock, milliseconds since the Unix epoch.
    pub wall_ms: u64,
    /// Wall clock at the start of the supervisor.
    pub wall_at_start_ms: u64,
}

impl Clocks {
    /// Returns the earlier of two readings: the wall clock, and the wall clock at start plus the elapsed
    /// time.
    fn plausible_wall_ms(&self) -> u64 {
        self.wall_ms.min(self.wall_at_start_ms.saturating_add(self.now_ms))
    }
}

/// End time of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndTime {
    /// Seen by this supervisor, at this time of its own clock.
    Seen(u64),
    /// Before this supervisor started, at this wall-clock time.
    Before(u64),
}

/// Returns when data that is kept for `keep_ms` is due for removal, on the supervisor's own clock: one
/// millisecond after its time.
#[must_use]
pub fn due_ms(ended: EndTime, keep_ms: u64, clocks: &Clocks) -> u64 {
    let keep_ms = keep_ms.saturating_add(1);
    match ended {
        EndTime::Seen(at_ms) => at_ms.saturating_add(keep_ms),
        // Due after the whole time on the own clock, or earlier by a wall clock that had time to be set.
        EndTime::Before(at_wall_ms) => {
            let by_wall = clocks.plausible_wall_ms().checked_sub(at_wall_ms).map(|age_ms| {
                clocks.now_ms.saturating_add(keep_ms.saturating_sub(age_ms)).max(WALL_SETTLES_MS)
            });
            keep_ms.min(by_wall.unwrap_or(u64::MAX))
        }
    }
}

/// Latest finding about a lost lease (H23).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostFinding {
    /// No process of the tree is alive. Contains the reason.
    Gone(&'static str),
    /// The end of the tree is not proved. Contains the reason.
    Unproved(&'static str),
}

/// Text in the reason of a lost lease that is not proved gone.
pub const NOT_PROVED: &str = "not proved gone";

impl LostFinding {
    /// Returns the text that follows the reason of the lease.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Gone(why) => format!("proved gone ({why})"),
            Self::Unproved(why) => format!("{NOT_PROVED} ({why})"),
        }
    }
}

/// True if a lease may be removed after its retention time. A lost lease must be proved gone first (H23).
#[must_use]
pub fn may_be_removed(lease: &Lease, rest: Option<LostFinding>) -> bool {
    match lease.state {
        LeaseState::Closed => true,
        LeaseState::Lost => matches!(rest, Some(LostFinding::Gone(_))),
        LeaseState::Reserved | LeaseState::Bound | LeaseState::Open | LeaseState::Closing => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::lease::fixture;

    const DAY_MS: u64 = 24 * 3_600 * 1_000;
    const KEEP_MS: u64 = 7 * DAY_MS;
    const YEARS_MS: u64 = 3_650 * DAY_MS;
    /// Wall clock at the supervisor's start.
    const START_MS: u64 = 2 * YEARS_MS;

    /// True if a lease has expired after this time, with the wall clock set off by `set_ms`.
    fn is_over(ended: EndTime, after_ms: u64, set_ms: i64) -> bool {
        let wall_ms = (START_MS + after_ms).saturating_add_signed(set_ms);
        let clocks = Clocks { now_ms: after_ms, wall_ms, wall_at_start_ms: START_MS };
        due_ms(ended, KEEP_MS, &clocks) <= after_ms
    }

    #[test]
    fn retention_is_independent_of_wall_clock_changes() {
        let years = YEARS_MS.cast_signed();
        for set_ms in [0, 3_600_000, -3_600_000, years, -years, i64::MIN, i64::MAX] {
            let seen = |at_ms, after_ms| is_over(EndTime::Seen(at_ms), after_ms, set_ms);
            assert!(!seen(5, 5) && !seen(5, 5 + KEEP_MS) && seen(5, 6 + KEEP_MS), "{set_ms}");
            let future = |after_ms| is_over(EndTime::Before(START_MS + YEARS_MS), after_ms, set_ms);
            assert!(!future(KEEP_MS) && future(KEEP_MS + 1), "{set_ms}");
            let fresh = |after_ms| is_over(EndTime::Before(START_MS - DAY_MS), after_ms, set_ms);
            assert!(!fresh(0) && !fresh(6 * DAY_MS) && fresh(KEEP_MS + 1), "{set_ms}");
        }
    }

    #[test]
    fn earlier_ends_expire_by_settled_wall_clock() {
        for (name, ended_ms, after_ms, set_ms, over) in [
            ("old, just started", START_MS - YEARS_MS, 0, 0, false),
            ("old, the clock has settled", START_MS - YEARS_MS, WALL_SETTLES_MS, 0, true),
            ("old, set back", START_MS - 8 * DAY_MS, WALL_SETTLES_MS, -(2 * DAY_MS.cast_signed()), false),
            ("a day old", START_MS - DAY_MS, 6 * DAY_MS, 0, false),
            ("a day old, expired", START_MS - DAY_MS, 6 * DAY_MS + 1, 0, true),
            ("a day old, set forward", START_MS - DAY_MS, WALL_SETTLES_MS, YEARS_MS.cast_signed(), false),
        ] {
            assert_eq!(is_over(EndTime::Before(ended_ms), after_ms, set_ms), over, "{name}");
        }
    }

    #[test]
    fn start_does_not_extend_short_retention() {
        let clocks = Clocks { now_ms: 301, wall_ms: START_MS, wall_at_start_ms: START_MS };
        assert_eq!(due_ms(EndTime::Before(1), 300, &clocks), 301);
    }

    #[test]
    fn only_leases_proved_gone_are_removed() {
        for state in LeaseState::ALL {
            for (rest, gone) in [
                (None, false),
                (Some(LostFinding::Unproved("?")), false),
                (Some(LostFinding::Gone("!")), true),
            ] {
                let lease = Lease { state, ..fixture::lease() };
                let want = state == LeaseState::Closed || (state == LeaseState::Lost && gone);
                assert_eq!(may_be_removed(&lease, rest), want, "{state} {rest:?}");
            }
        }
    }
}
