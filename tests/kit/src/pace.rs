//! Current speed of this machine. A time limit in a test is a reference value plus the time that the machine needs
//! meanwhile for work outside of the project.

use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Sleep time between two measurements of a delay.
const SLEEP: Duration = Duration::from_millis(1);

/// Measures the time to kill and reap this many idle processes one by one.
///
/// # Errors
/// If a process cannot be started or reaped.
pub fn time_to_kill(processes: usize) -> io::Result<Duration> {
    let idle = || Command::new("sleep").arg("300").stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut started: Vec<Child> = Vec::with_capacity(processes);
    let made = (0..processes).try_for_each(|_| idle().map(|child| started.push(child)));
    let since = Instant::now();
    let ended = started.iter_mut().try_for_each(|child| child.kill().and_then(|()| child.wait().map(drop)));
    made.and(ended).map(|()| since.elapsed())
}

/// Measures the wake-up delay of a thread after a short sleep.
#[derive(Debug)]
pub struct Delays {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Delays {
    /// Starts the measurement.
    #[must_use]
    pub fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut worst = Duration::ZERO;
            while !flag.load(Ordering::Relaxed) {
                let since = Instant::now();
                std::thread::sleep(SLEEP);
                worst = worst.max(since.elapsed().saturating_sub(SLEEP));
            }
            worst
        });
        Self { is_over, thread }
    }

    /// Stops the measurement and returns the worst delay.
    #[must_use]
    pub fn worst(self) -> Duration {
        self.is_over.store(true, Ordering::Relaxed);
        // The thread does not panic; without its result no time is added.
        self.thread.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn measured_times_are_plausible() {
        let delays = Delays::start();
        let few = time_to_kill(2).unwrap();
        let worst = delays.worst();
        assert!(few > Duration::ZERO && worst > Duration::ZERO, "{few:?} {worst:?}");
        assert!(few < Duration::from_secs(30) && worst < Duration::from_secs(30), "{few:?} {worst:?}");
    }
}
