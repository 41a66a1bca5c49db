//! Watchdog of actors: lists the live actors and how long each has been processing its current input.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Tracked state of one actor.
#[derive(Debug)]
struct TrackedActor {
    key: String,
    /// Start of the current input, in milliseconds since the watch was created, plus one; 0 while idle.
    busy_since: AtomicU64,
    is_reported: AtomicU64,
}

/// Watchdog of all actors. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ActorWatch {
    created_at: Instant,
    next: Arc<AtomicU64>,
    actors: Arc<Mutex<HashMap<u64, Arc<TrackedActor>>>>,
}

impl Default for ActorWatch {
    fn default() -> Self {
        Self { created_at: Instant::now(), next: Arc::default(), actors: Arc::default() }
    }
}

/// Handle of one actor, with which it reports work and idleness. Removes the actor on drop.
#[derive(Debug)]
pub(crate) struct ActorHeartbeat {
    watch: ActorWatch,
    id: u64,
    actor: Arc<TrackedActor>,
}

impl ActorHeartbeat {
    /// Reports the start of an input.
    pub(crate) fn begin(&self) {
        self.actor.busy_since.store(self.watch.ms() + 1, Ordering::Relaxed);
    }

    /// Reports that the actor is idle.
    pub(crate) fn wait(&self) {
        self.actor.busy_since.store(0, Ordering::Relaxed);
        self.actor.is_reported.store(0, Ordering::Relaxed);
    }
}

impl Drop for ActorHeartbeat {
    fn drop(&mut self) {
        self.watch.actors.lock().remove(&self.id);
    }
}

impl ActorWatch {
    /// Adds an idle actor of this session.
    pub(crate) fn enter(&self, key: &str) -> ActorHeartbeat {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let actor = TrackedActor {
            key: key.to_owned(),
            busy_since: AtomicU64::new(0),
            is_reported: AtomicU64::new(0),
        };
        let actor = Arc::new(actor);
        self.actors.lock().insert(id, Arc::clone(&actor));
        ActorHeartbeat { watch: self.clone(), id, actor }
    }

    /// Number of live actors.
    pub(crate) fn count(&self) -> usize {
        self.actors.lock().len()
    }

    /// Number of actors that have been processing one input for at least `limit`.
    pub(crate) fn stuck(&self, limit: Duration) -> usize {
        self.actors.lock().values().filter(|actor| self.busy(actor).is_some_and(|busy| busy >= limit)).count()
    }

    /// Returns stuck actors that were not reported before: the session key and the duration.
    pub(crate) fn newly_stuck(&self, limit: Duration) -> Vec<(String, Duration)> {
        let actors = self.actors.lock();
        let stuck = actors
            .values()
            .filter_map(|actor| Some((actor, self.busy(actor).filter(|busy| *busy >= limit)?)));
        let fresh = stuck.filter(|(actor, _)| actor.is_reported.swap(1, Ordering::Relaxed) == 0);
        fresh.map(|(actor, busy)| (actor.key.clone(), busy)).collect()
    }

    fn busy(&self, actor: &TrackedActor) -> Option<Duration> {
        match actor.busy_since.load(Ordering::Relaxed) {
            0 => None,
            since => Some(Duration::from_millis((self.ms() + 1).saturating_sub(since))),
        }
    }

    fn ms(&self) -> u64 {
        u64::try_from(self.created_at.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actor_is_stuck_after_time_limit() {
        let watch = ActorWatch::default();
        let heartbeat = watch.enter("one");
        let other = watch.enter("two");
        let limit = Duration::ZERO;
        assert_eq!((watch.count(), watch.stuck(limit)), (2, 0));
        heartbeat.begin();
        assert_eq!((watch.stuck(limit), watch.stuck(Duration::from_secs(9))), (1, 0));
        let named: Vec<String> = watch.newly_stuck(limit).into_iter().map(|(key, _)| key).collect();
        assert_eq!(named, ["one"]);
        assert!(watch.newly_stuck(limit).is_empty(), "each actor is named once");
        heartbeat.wait();
        assert_eq!(watch.stuck(limit), 0);
        drop((heartbeat, other));
        assert_eq!(watch.count(), 0);
    }
}
