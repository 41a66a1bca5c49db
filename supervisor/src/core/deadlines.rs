//! Next wake-up time of the owner loop. An idle supervisor does not wake between two deadlines.

/// Retry delay after a deadline that passed without effect (for example, because of a full queue), in
/// milliseconds.
pub const RETRY_MS: u64 = 500;
/// Maximum sleep while a wall-clock deadline is pending, in milliseconds, because the wall clock can be set
/// meanwhile.
pub const WALL_SLEEP_MS: u64 = 3_600 * 1_000;

/// Maximum sleep while a gateway is absent, in milliseconds: timers do not count the suspension of the machine, which
/// its grace does.
pub const ABSENCE_SLEEP_MS: u64 = 5_000;

/// Absence of a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Absence {
    /// Begin, on the owner's clock.
    pub since_ms: u64,
    /// Time since then that the machine was suspended, which the owner's clock does not count.
    pub suspended_ms: u64,
    /// Grace at the begin. A later configuration may shorten it, and never prolongs it.
    pub grace_ms: u64,
}

impl Absence {
    /// Returns an absence that began `ago_ms` before `now_ms`, suspension included.
    #[must_use]
    pub const fn begun(now_ms: u64, ago_ms: u64, grace_ms: u64) -> Self {
        // What the owner's clock has not counted was suspension.
        Self {
            since_ms: now_ms.saturating_sub(ago_ms),
            suspended_ms: ago_ms.saturating_sub(now_ms),
            grace_ms,
        }
    }

    /// Returns the end of the grace, on the owner's clock.
    #[must_use]
    pub const fn end_ms(&self) -> u64 {
        self.since_ms.saturating_add(self.grace_ms).saturating_sub(self.suspended_ms)
    }
}

/// Deadlines of the owner loop, in milliseconds of its own clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deadlines {
    /// End of the grace of a disconnected gateway.
    pub detached: Option<u64>,
    /// End of a closing agent's wait for terminals.
    pub closing: Option<u64>,
    /// End of the retention of an ended lease; computed from the wall clock.
    pub expiry: Option<u64>,
    /// Next write of acknowledged event ids to the store.
    pub progress: Option<u64>,
    /// Next examination of earlier supervisors' leases or of the store's file.
    pub sweep: Option<u64>,
    /// Next watchdog notification to the service manager.
    pub watchdog: Option<u64>,
    /// End of an upgrade's wait for spawns.
    pub upgrade: Option<u64>,
}

/// Returns the next wake-up time, if any. A deadline that has already passed is retried after `RETRY_MS`.
#[must_use]
pub fn next_wake(now_ms: u64, due: &Deadlines) -> Option<u64> {
    let expiry = due.expiry.map(|at| at.min(now_ms.saturating_add(WALL_SLEEP_MS)));
    let detached = due.detached.map(|at| at.min(now_ms.saturating_add(ABSENCE_SLEEP_MS)));
    let first = [detached, due.closing, expiry, due.progress, due.sweep, due.watchdog, due.upgrade];
    let first = first.into_iter().flatten().min()?;
    Some(if first <= now_ms { now_ms.saturating_add(RETRY_MS) } else { first })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_counts_suspension() {
        for (since_ms, suspended_ms, want) in
            [(1_000, 0, 61_000), (1_000, 20_000, 41_000), (1_000, 61_000, 0), (1_000, u64::MAX, 0)]
        {
            assert_eq!(Absence { since_ms, suspended_ms, grace_ms: 60_000 }.end_ms(), want);
        }
        assert_eq!(Absence { since_ms: 1, suspended_ms: 0, grace_ms: u64::MAX }.end_ms(), u64::MAX);
    }

    #[test]
    fn absence_begins_before_it_is_noticed() {
        for (name, now_ms, ago_ms, want) in [
            ("noticed at once", 100_000, 0, 160_000),
            ("noticed after silence", 100_000, 30_000, 130_000),
            ("longer ago than the grace", 100_000, 90_000, 70_000),
            ("suspended for longer than the owner runs", 100_000, 130_000, 30_000),
            ("suspended for days", 100_000, 1_000_000_000, 0),
        ] {
            assert_eq!(Absence::begun(now_ms, ago_ms, 60_000).end_ms(), want, "{name}");
        }
    }

    #[test]
    fn next_wake_is_first_deadline() {
        let none = Deadlines::default();
        assert_eq!(next_wake(1_000, &none), None);
        let all = Deadlines {
            detached: Some(5_000),
            closing: Some(4_000),
            expiry: Some(3_000),
            progress: Some(7_000),
            sweep: Some(2_500),
            watchdog: Some(2_000),
            upgrade: Some(6_000),
        };
        assert_eq!(next_wake(1_000, &all), Some(2_000));
        assert_eq!(
            next_wake(2_000, &all),
            Some(2_000 + RETRY_MS),
            "an overdue deadline does not cause a busy loop"
        );
        assert_eq!(next_wake(1_000, &Deadlines { closing: Some(4_000), ..none }), Some(4_000));
        assert_eq!(next_wake(1_000, &Deadlines { detached: Some(5_000), ..none }), Some(5_000));
        assert_eq!(next_wake(1_000, &Deadlines { sweep: Some(2_500), ..none }), Some(2_500));
        assert_eq!(next_wake(1_000, &Deadlines { expiry: Some(3_000), ..none }), Some(3_000));
        assert_eq!(next_wake(1_000, &Deadlines { upgrade: Some(6_000), ..none }), Some(6_000));
        assert_eq!(
            next_wake(1_000, &Deadlines { detached: Some(900_000), ..none }),
            Some(1_000 + ABSENCE_SLEEP_MS),
            "suspension is looked for"
        );
        let far = Deadlines { expiry: Some(u64::MAX), ..none };
        assert_eq!(
            next_wake(1_000, &far),
            Some(1_000 + WALL_SLEEP_MS),
            "the sleep is bounded because the wall clock may change"
        );
    }
}
