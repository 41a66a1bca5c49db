//! Waits for conditions, with a deadline. Tests sleep only here.

use std::time::{Duration, Instant};

/// Interval between two checks, in milliseconds.
const POLL_MS: u64 = 20;

/// Deadline for fast events, on a busy machine of two cores.
pub const SOON: Duration = Duration::from_secs(30);

/// Deadline for slow events: the start of a real agent, a complete turn of it.
pub const LONG: Duration = Duration::from_secs(120);

/// Polls until `look` returns a value.
///
/// # Panics
/// When `deadline` passes first; the message contains `what`.
pub fn eventually<T>(deadline: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + deadline;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "not within {deadline:?}: {what}");
        std::thread::sleep(Duration::from_millis(POLL_MS));
    }
}

/// Polls until `is` returns true.
///
/// # Panics
/// When `deadline` passes first; the message contains `what`.
pub fn until(deadline: Duration, what: &str, mut is: impl FnMut() -> bool) {
    eventually(deadline, what, || is().then_some(()));
}

/// Waits until `moment` with microsecond precision: sleeps first, spins during the last millisecond.
pub fn wait_until_instant(moment: Instant) {
    let near = Duration::from_millis(1);
    while let Some(left) = moment.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        if left > near {
            std::thread::sleep(left - near);
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Polls without sleeping until `look` returns a value: for states that last only a moment.
///
/// # Panics
/// When `deadline` passes first; the message contains `what`.
pub fn spin_until<T>(deadline: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + deadline;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "not within {deadline:?}: {what}");
        std::hint::spin_loop();
    }
}
