//! Waiting for something to become true, with a deadline: the only place where tests sleep.

use std::time::{Duration, Instant};

/// Between two looks.
const POLL_MS: u64 = 20;

/// How long a test waits for what should happen soon, on a busy machine of two cores.
pub const SOON: Duration = Duration::from_secs(30);

/// How long a test waits for what is slow: a real agent that starts, a whole turn of it.
pub const LONG: Duration = Duration::from_secs(120);

/// Looks again and again until `look` returns something.
///
/// # Panics
/// When `deadline` passes first; the message says what was awaited.
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

/// Looks again and again until `is` holds.
///
/// # Panics
/// When `deadline` passes first; the message says what was awaited.
pub fn until(deadline: Duration, what: &str, mut is: impl FnMut() -> bool) {
    eventually(deadline, what, || is().then_some(()));
}

/// Waits for a moment to the microsecond: sleeps while it is far, spins when it is near.
pub fn wait_for(moment: Instant) {
    let near = Duration::from_millis(1);
    while let Some(left) = moment.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        if left > near {
            std::thread::sleep(left - near);
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Looks without any pause until `look` returns something: for what must be caught in the act.
///
/// # Panics
/// When `deadline` passes first; the message says what was awaited.
pub fn catch<T>(deadline: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + deadline;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "not within {deadline:?}: {what}");
        std::hint::spin_loop();
    }
}
