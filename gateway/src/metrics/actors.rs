//! The watchdog: which actors live, and since when each is at one and the same thing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What is known of one actor.
#[derive(Debug)]
struct Known {
    key: String,
    /// When it began what it is at, in milliseconds since the watch was made, and one more; 0 while it waits.
    busy_since: AtomicU64,
    told: AtomicU64,
}

/// All actors. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ActorWatch {
    made: Instant,
    next: Arc<AtomicU64>,
    known: Arc<Mutex<HashMap<u64, Arc<Known>>>>,
}

impl Default for ActorWatch {
    fn default() -> Self {
        Self { made: Instant::now(), next: Arc::default(), known: Arc::default() }
    }
}

/// One actor's own end: it says when it begins something and when it waits. Dropped with the actor.
#[derive(Debug)]
pub(crate) struct Pulse {
    watch: ActorWatch,
    id: u64,
    known: Arc<Known>,
}

impl Pulse {
    /// It begins something.
    pub(crate) fn begin(&self) {
        self.known.busy_since.store(self.watch.ms() + 1, Ordering::Relaxed);
    }

    /// It waits for the next thing.
    pub(crate) fn wait(&self) {
        self.known.busy_since.store(0, Ordering::Relaxed);
        self.known.told.store(0, Ordering::Relaxed);
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.watch.lock().remove(&self.id);
    }
}

impl ActorWatch {
    /// A new actor of that session, which waits.
    pub(crate) fn enter(&self, key: &str) -> Pulse {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let known = Known { key: key.to_owned(), busy_since: AtomicU64::new(0), told: AtomicU64::new(0) };
        let known = Arc::new(known);
        self.lock().insert(id, Arc::clone(&known));
        Pulse { watch: self.clone(), id, known }
    }

    /// How many actors live.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// How many are at one thing for longer than `limit`.
    pub(crate) fn stuck(&self, limit: Duration) -> usize {
        self.lock().values().filter(|known| self.busy(known).is_some_and(|busy| busy >= limit)).count()
    }

    /// Those that are stuck and were not named before: the session, and for how long.
    pub(crate) fn newly_stuck(&self, limit: Duration) -> Vec<(String, Duration)> {
        let known = self.lock();
        let stuck =
            known.values().filter_map(|known| Some((known, self.busy(known).filter(|busy| *busy >= limit)?)));
        let fresh = stuck.filter(|(known, _)| known.told.swap(1, Ordering::Relaxed) == 0);
        fresh.map(|(known, busy)| (known.key.clone(), busy)).collect()
    }

    fn busy(&self, known: &Known) -> Option<Duration> {
        match known.busy_since.load(Ordering::Relaxed) {
            0 => None,
            since => Some(Duration::from_millis((self.ms() + 1).saturating_sub(since))),
        }
    }

    fn ms(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Known>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_is_stuck_while_it_is_at_one_thing_for_too_long() {
        let watch = ActorWatch::default();
        let pulse = watch.enter("one");
        let other = watch.enter("two");
        let limit = Duration::ZERO;
        assert_eq!((watch.count(), watch.stuck(limit)), (2, 0));
        pulse.begin();
        assert_eq!((watch.stuck(limit), watch.stuck(Duration::from_secs(9))), (1, 0));
        let named: Vec<String> = watch.newly_stuck(limit).into_iter().map(|(key, _)| key).collect();
        assert_eq!(named, ["one"]);
        assert!(watch.newly_stuck(limit).is_empty(), "each is named once");
        pulse.wait();
        assert_eq!(watch.stuck(limit), 0);
        drop((pulse, other));
        assert_eq!(watch.count(), 0);
    }
}
