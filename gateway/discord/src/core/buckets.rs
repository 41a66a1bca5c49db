//! Discord's buckets: how many requests of a kind may be made in a window, learnt from what answers say.
//!
//! The law: what is known of a bucket is never more than what is left in it, whatever the order and the delay of
//! answers. `seen` only falls within a window, and every request without an answer counts against it, whether Discord
//! has counted it already or not. Only a request that was alone on its way says exactly what is left.

use crate::core::headers::Budget;
use acp_shared::redact::Secret;
use std::collections::HashMap;
use std::time::Duration;

/// What a bucket belongs to beside its name: Discord counts for each of these apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Major {
    /// Neither of the others.
    None,
    /// A channel or a thread.
    Channel(u64),
    /// A server.
    Guild(u64),
    /// A webhook.
    Webhook(u64, Secret),
    /// An interaction: its application and its token.
    Interaction(u64, Secret),
}

/// A kind of request: its method and its path without ids.
pub type RouteName = &'static str;

/// The window of a bucket that was never told apart from others.
const SPAN_MIN: Duration = Duration::from_secs(1);
/// How many buckets are kept. Idle ones go first; interactions make one each.
const BUCKETS_MAX: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// Nothing was heard yet: one request at a time.
    Unknown(RouteName, Major),
    /// As Discord names it.
    Named(String, Major),
}

/// What is known of the bucket of a kind of request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Learnt {
    Named(String),
    /// Answers come without a budget.
    Free,
}

#[derive(Debug, Clone)]
struct Bucket {
    /// Requests in a window.
    limit: u32,
    /// No more than what is left in this window, what is on its way not deducted.
    seen: u32,
    /// Requests without an answer.
    on_their_way: u32,
    /// No sooner than the window ends. None: nothing was heard of this window.
    reset: Option<Duration>,
    /// The longest time that a window was said to last on.
    span: Duration,
    /// How many requests were ever let through: who finds its own number again was alone.
    granted: u64,
}

impl Bucket {
    const fn new() -> Self {
        Self { limit: 1, seen: 1, on_their_way: 0, reset: None, span: SPAN_MIN, granted: 0 }
    }

    fn roll(&mut self, now: Duration) {
        if self.reset.is_some_and(|reset| reset <= now) {
            self.reset = None;
            self.seen = self.limit;
        }
    }

    const fn left(&self) -> u32 {
        self.seen.saturating_sub(self.on_their_way)
    }

    fn is_idle(&self, now: Duration) -> bool {
        self.on_their_way == 0 && self.reset.is_none_or(|reset| reset <= now)
    }

    fn wait_until(&mut self, until: Duration) {
        self.seen = 0;
        self.reset = Some(self.reset.map_or(until, |reset| reset.max(until)));
    }
}

/// Whether a request may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// Now.
    Now,
    /// Not before this time.
    At(Duration),
    /// Once an answer has come.
    AfterAnswer,
}

/// A request that was let through: its answer must be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    /// None: the kind has no budget.
    key: Option<Key>,
    route: RouteName,
    major: Major,
    /// Its number in its bucket, if nothing else was on its way.
    alone: Option<u64>,
}

/// All buckets of a bot.
#[derive(Debug, Default)]
pub struct Buckets {
    routes: HashMap<RouteName, Learnt>,
    buckets: HashMap<Key, Bucket>,
}

impl Buckets {
    fn key(&self, route: RouteName, major: &Major) -> Option<Key> {
        match self.routes.get(route) {
            Some(Learnt::Free) => None,
            Some(Learnt::Named(name)) => Some(Key::Named(name.clone(), major.clone())),
            None => Some(Key::Unknown(route, major.clone())),
        }
    }

    /// Whether a request of this kind may be made now.
    #[must_use]
    pub fn ready(&mut self, now: Duration, route: RouteName, major: &Major) -> Ready {
        let Some(key) = self.key(route, major) else { return Ready::Now };
        let Some(bucket) = self.buckets.get_mut(&key) else { return Ready::Now };
        bucket.roll(now);
        match (bucket.left(), bucket.reset) {
            (1.., _) => Ready::Now,
            (0, Some(reset)) => Ready::At(reset),
            (0, None) => Ready::AfterAnswer,
        }
    }

    /// Lets a request through for which [`ready`](Self::ready) said yes.
    pub fn take(&mut self, now: Duration, route: RouteName, major: &Major) -> Permit {
        let Some(key) = self.key(route, major) else {
            return Permit { key: None, route, major: major.clone(), alone: None };
        };
        if self.buckets.len() >= BUCKETS_MAX {
            self.buckets.retain(|_, bucket| !bucket.is_idle(now));
        }
        let bucket = self.buckets.entry(key.clone()).or_insert_with(Bucket::new);
        bucket.granted += 1;
        let alone = (bucket.on_their_way == 0).then_some(bucket.granted);
        bucket.on_their_way += 1;
        Permit { key: Some(key), route, major: major.clone(), alone }
    }

    /// A request was answered.
    pub fn answered(&mut self, now: Duration, permit: &Permit, budget: Option<&Budget>, success: bool) {
        let Some(budget) = budget else {
            // Errors often come without a budget where successes have one; Discord may have counted them.
            self.lost(now, permit);
            if success && !self.routes.contains_key(permit.route) {
                self.routes.insert(permit.route, Learnt::Free);
                self.buckets.remove(&Key::Unknown(permit.route, permit.major.clone()));
            }
            return;
        };
        let name = Learnt::Named(budget.bucket.clone());
        if self.routes.get(permit.route) != Some(&name) {
            self.routes.insert(permit.route, name);
        }
        let key = Key::Named(budget.bucket.clone(), permit.major.clone());
        let alone = self.land(permit) && permit.key.as_ref() == Some(&key);
        if let Some(unknown) = permit.key.as_ref().filter(|held| **held != key) {
            // It goes once nothing is on its way in it.
            if self.buckets.get(unknown).is_some_and(|bucket| bucket.on_their_way == 0) {
                self.buckets.remove(unknown);
            }
        }
        let fresh = !self.buckets.contains_key(&key);
        let bucket = self.buckets.entry(key).or_insert_with(Bucket::new);
        bucket.roll(now);
        let end = now + budget.reset_after;
        bucket.limit = budget.limit.max(1);
        bucket.span = bucket.span.max(budget.reset_after);
        if alone || fresh {
            bucket.seen = budget.remaining;
            bucket.reset = Some(end);
        } else {
            bucket.seen = bucket.seen.min(budget.remaining);
            bucket.reset = Some(bucket.reset.map_or(end, |reset| reset.max(end)));
        }
    }

    /// A request was refused because its bucket is empty.
    pub fn refused(&mut self, now: Duration, permit: &Permit, budget: Option<&Budget>, wait: Duration) {
        self.answered(now, permit, budget, false);
        let key = budget.map(|budget| Key::Named(budget.bucket.clone(), permit.major.clone()));
        let key = key.or_else(|| self.key(permit.route, &permit.major));
        // A kind that had no budget has one now.
        let key = key.unwrap_or_else(|| {
            self.routes.remove(permit.route);
            Key::Unknown(permit.route, permit.major.clone())
        });
        self.buckets.entry(key).or_insert_with(Bucket::new).wait_until(now + wait);
    }

    /// A request ended without an answer: Discord may have counted it, at the latest now.
    pub fn lost(&mut self, now: Duration, permit: &Permit) {
        self.land(permit);
        let Some(Key::Named(..)) = permit.key else { return };
        let Some(bucket) = permit.key.as_ref().and_then(|key| self.buckets.get_mut(key)) else { return };
        bucket.roll(now);
        bucket.seen = bucket.seen.saturating_sub(1);
        let end = now + bucket.span;
        bucket.reset = Some(bucket.reset.map_or(end, |reset| reset.max(end)));
    }

    /// A request was never made.
    pub fn unused(&mut self, permit: &Permit) {
        self.land(permit);
    }

    /// Takes a request off its way; says whether it was alone all the time.
    fn land(&mut self, permit: &Permit) -> bool {
        let Some(bucket) = permit.key.as_ref().and_then(|key| self.buckets.get_mut(key)) else {
            return false;
        };
        bucket.on_their_way = bucket.on_their_way.saturating_sub(1);
        permit.alone == Some(bucket.granted)
    }

    /// How many buckets are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }
}

#[cfg(test)]
mod tests;
