//! When the owner has to look at the clock again. Between two deadlines an idle supervisor does not wake.

/// How long after a deadline that passed without effect (a full queue, for example) it is tried again, in milliseconds.
pub const AGAIN_MS: u64 = 500;
/// The longest sleep while something is due by the wall clock, which may be set meanwhile, in milliseconds.
pub const WALL_SLEEP_MS: u64 = 3_600 * 1_000;

/// Everything the owner waits for, in milliseconds of its own clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deadlines {
    /// A gateway that went away has been away for its grace.
    pub detached: Option<u64>,
    /// The end of an agent waits no longer for its terminals.
    pub closing: Option<u64>,
    /// Something of an ended lease is kept no longer; reckoned from the wall clock.
    pub expiry: Option<u64>,
    /// Event ids that gateways acknowledged are written.
    pub progress: Option<u64>,
    /// Leases of earlier supervisors, or the store's file, are looked at again.
    pub sweep: Option<u64>,
    /// The service manager is told that the owner is alive.
    pub watchdog: Option<u64>,
    /// An upgrade waits no longer for spawns.
    pub upgrade: Option<u64>,
}

/// The next instant to wake at, if there is one. What should have happened by now gets a pause first.
#[must_use]
pub fn next_wake(now_ms: u64, due: &Deadlines) -> Option<u64> {
    let expiry = due.expiry.map(|at| at.min(now_ms.saturating_add(WALL_SLEEP_MS)));
    let first = [due.detached, due.closing, expiry, due.progress, due.sweep, due.watchdog, due.upgrade];
    let first = first.into_iter().flatten().min()?;
    Some(if first <= now_ms { now_ms.saturating_add(AGAIN_MS) } else { first })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sleeps_until_the_first_deadline() {
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
        assert_eq!(next_wake(2_000, &all), Some(2_000 + AGAIN_MS), "what is overdue does not spin");
        assert_eq!(next_wake(1_000, &Deadlines { closing: Some(4_000), ..none }), Some(4_000));
        assert_eq!(next_wake(1_000, &Deadlines { detached: Some(5_000), ..none }), Some(5_000));
        assert_eq!(next_wake(1_000, &Deadlines { sweep: Some(2_500), ..none }), Some(2_500));
        assert_eq!(next_wake(1_000, &Deadlines { expiry: Some(3_000), ..none }), Some(3_000));
        assert_eq!(next_wake(1_000, &Deadlines { upgrade: Some(6_000), ..none }), Some(6_000));
        let far = Deadlines { expiry: Some(u64::MAX), ..none };
        assert_eq!(next_wake(1_000, &far), Some(1_000 + WALL_SLEEP_MS), "the wall clock may be set");
    }
}
