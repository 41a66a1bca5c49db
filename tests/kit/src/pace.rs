//! How fast this machine is at this moment: a bound in a test is the one that the reference says, and what the machine
//! needs at the same time for something that nothing of the project has a part in.

use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread that watches for delays sleeps at a time.
const NAP: Duration = Duration::from_millis(1);

/// How long it takes to kill and collect so many processes that do nothing, one after another.
///
/// # Errors
/// They cannot be started, or not be collected.
pub fn to_end(processes: usize) -> io::Result<Duration> {
    let idle = || Command::new("sleep").arg("300").stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut started: Vec<Child> = Vec::with_capacity(processes);
    let made = (0..processes).try_for_each(|_| idle().map(|child| started.push(child)));
    let since = Instant::now();
    let ended = started.iter_mut().try_for_each(|child| child.kill().and_then(|()| child.wait().map(drop)));
    made.and(ended).map(|()| since.elapsed())
}

/// Watches how late this machine lets a thread run that asked for a moment's sleep.
#[derive(Debug)]
pub struct Delays {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Delays {
    /// Begins to watch.
    #[must_use]
    pub fn watch() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut worst = Duration::ZERO;
            while !told.load(Ordering::Relaxed) {
                let since = Instant::now();
                std::thread::sleep(NAP);
                worst = worst.max(since.elapsed().saturating_sub(NAP));
            }
            worst
        });
        Self { over, thread }
    }

    /// The worst delay since then.
    #[must_use]
    pub fn worst(self) -> Duration {
        self.over.store(true, Ordering::Relaxed);
        // A thread that only sleeps does not panic; should it, nothing is known of delays, and no time is added.
        self.thread.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn both_measure_something() {
        let delays = Delays::watch();
        let few = to_end(2).unwrap();
        let worst = delays.worst();
        assert!(few > Duration::ZERO && worst > Duration::ZERO, "{few:?} {worst:?}");
        assert!(few < Duration::from_secs(30) && worst < Duration::from_secs(30), "{few:?} {worst:?}");
    }
}
