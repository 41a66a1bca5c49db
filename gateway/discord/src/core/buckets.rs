//! Rate-limit buckets: how many requests of a route are possible per window, learnt from response headers.
//!
//! Invariant: the estimate of a bucket never exceeds what is left in it, whatever the order and delay of
//! responses. `remaining` only falls within a window. Each request without a response counts against the
//! bucket, even if Discord has counted it already; one with a lost response counts until the window ends.
//! Only a request that was alone in flight tells exactly what is left.

use crate::core::headers::BucketState;
use acp_shared::redact::Secret;
use std::collections::HashMap;
use std::time::Duration;

/// Major parameter of a bucket: Discord counts separately for each value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MajorParam {
    /// No major parameter.
    None,
    /// Channel or thread.
    Channel(u64),
    /// Guild.
    Guild(u64),
    /// Webhook: its id and token.
    Webhook(u64, Secret),
    /// Interaction: token, with the id of the interaction or of the application.
    Interaction(u64, Secret),
}

/// Name of a route: HTTP method and path without ids.
pub type RouteName = &'static str;

/// Minimum assumed length of a bucket's window.
const WINDOW_MIN: Duration = Duration::from_secs(1);
/// Number of buckets at which idle ones are removed. Each interaction creates one.
const BUCKETS_MAX: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum BucketKey {
    /// Route without a response so far: one request at a time.
    Unknown(RouteName, MajorParam),
    /// Bucket name from Discord.
    Named(String, MajorParam),
}

/// Knowledge about the bucket of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RouteBucket {
    Named(String),
    /// Responses carry no rate-limit headers.
    Free,
}

#[derive(Debug, Clone)]
struct Bucket {
    /// Maximum requests per window.
    limit: u32,
    /// Upper bound of the requests left in this window, not counting those in flight.
    remaining: u32,
    /// Requests in flight.
    in_flight: u32,
    /// Requests of this window with a lost response. Other responses may date from before Discord counted
    /// these.
    lost: u32,
    /// Upper bound of the end of the window. `None` if nothing is known about this window.
    reset: Option<Duration>,
    /// Longest remaining window that a response reported.
    window: Duration,
    /// Requests ever admitted. If a permit's number is still the latest, no later request was admitted.
    granted: u64,
}

impl Bucket {
    const fn new() -> Self {
        Self { limit: 1, remaining: 1, in_flight: 0, lost: 0, reset: None, window: WINDOW_MIN, granted: 0 }
    }

    fn reset_if_due(&mut self, now: Duration) {
        if self.reset.is_some_and(|reset| reset <= now) {
            self.reset = None;
            self.remaining = self.limit;
            self.lost = 0;
        }
    }

    const fn available(&self) -> u32 {
        self.remaining.saturating_sub(self.in_flight.saturating_add(self.lost))
    }

    fn is_idle(&self, now: Duration) -> bool {
        self.in_flight == 0 && self.reset.is_none_or(|reset| reset <= now)
    }

    fn wait_until(&mut self, until: Duration) {
        self.remaining = 0;
        self.reset = Some(self.reset.map_or(until, |reset| reset.max(until)));
    }
}

/// Permission to send a request now or later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BucketAvailability {
    /// Send it now.
    Now,
    /// Do not send it before this time.
    At(Duration),
    /// Send it after the next response.
    AfterResponse,
}

/// Admitted request. Its outcome must be reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPermit {
    /// `None` if the route has no limit.
    key: Option<BucketKey>,
    route: RouteName,
    major: MajorParam,
    /// Sequence number in its bucket, if no other request was in flight.
    alone: Option<u64>,
}

/// All buckets of a bot.
#[derive(Debug, Default)]
pub struct Buckets {
    routes: HashMap<RouteName, RouteBucket>,
    buckets: HashMap<BucketKey, Bucket>,
}

impl Buckets {
    fn key(&self, route: RouteName, major: &MajorParam) -> Option<BucketKey> {
        match self.routes.get(route) {
            Some(RouteBucket::Free) => None,
            Some(RouteBucket::Named(name)) => Some(BucketKey::Named(name.clone(), major.clone())),
            None => Some(BucketKey::Unknown(route, major.clone())),
        }
    }

    /// Returns whether a request of this route may be sent now.
    #[must_use]
    pub fn availability(
        &mut self,
        now: Duration,
        route: RouteName,
        major: &MajorParam,
    ) -> BucketAvailability {
        let Some(key) = self.key(route, major) else { return BucketAvailability::Now };
        let Some(bucket) = self.buckets.get_mut(&key) else { return BucketAvailability::Now };
        bucket.reset_if_due(now);
        match (bucket.available(), bucket.reset) {
            (1.., _) => BucketAvailability::Now,
            (0, Some(reset)) => BucketAvailability::At(reset),
            (0, None) => BucketAvailability::AfterResponse,
        }
    }

    /// Admits a request for which [`availability`](Self::availability) returned [`BucketAvailability::Now`].
    pub fn acquire(&mut self, now: Duration, route: RouteName, major: &MajorParam) -> BucketPermit {
        let Some(key) = self.key(route, major) else {
            return BucketPermit { key: None, route, major: major.clone(), alone: None };
        };
        if self.buckets.len() >= BUCKETS_MAX {
            self.buckets.retain(|_, bucket| !bucket.is_idle(now));
        }
        let bucket = self.buckets.entry(key.clone()).or_insert_with(Bucket::new);
        bucket.granted += 1;
        let alone = (bucket.in_flight == 0).then_some(bucket.granted);
        bucket.in_flight += 1;
        BucketPermit { key: Some(key), route, major: major.clone(), alone }
    }

    /// Records a response.
    pub fn record_response(
        &mut self,
        now: Duration,
        permit: &BucketPermit,
        budget: Option<&BucketState>,
        success: bool,
    ) {
        let Some(budget) = budget else {
            // Error responses often lack the headers of successes; Discord may have counted the request.
            self.record_lost(now, permit);
            if success && !self.routes.contains_key(permit.route) {
                self.routes.insert(permit.route, RouteBucket::Free);
                self.buckets.remove(&BucketKey::Unknown(permit.route, permit.major.clone()));
            }
            return;
        };
        let name = RouteBucket::Named(budget.bucket.clone());
        if self.routes.get(permit.route) != Some(&name) {
            self.routes.insert(permit.route, name);
        }
        let key = BucketKey::Named(budget.bucket.clone(), permit.major.clone());
        let alone = self.finish(permit) && permit.key.as_ref() == Some(&key);
        if let Some(unknown) = permit.key.as_ref().filter(|held| **held != key) {
            // The provisional bucket is removed once it has no request in flight.
            if self.buckets.get(unknown).is_some_and(|bucket| bucket.in_flight == 0) {
                self.buckets.remove(unknown);
            }
        }
        let fresh = !self.buckets.contains_key(&key);
        let bucket = self.buckets.entry(key).or_insert_with(Bucket::new);
        bucket.reset_if_due(now);
        let end = now + budget.reset_after;
        bucket.limit = budget.limit.max(1);
        bucket.window = bucket.window.max(budget.reset_after);
        if alone || fresh {
            bucket.remaining = budget.remaining;
            bucket.lost = 0;
            bucket.reset = Some(end);
        } else {
            bucket.remaining = bucket.remaining.min(budget.remaining);
            bucket.reset = Some(bucket.reset.map_or(end, |reset| reset.max(end)));
        }
    }

    /// Records a refusal because the bucket is empty.
    pub fn record_rate_limited(
        &mut self,
        now: Duration,
        permit: &BucketPermit,
        budget: Option<&BucketState>,
        wait: Duration,
    ) {
        self.record_response(now, permit, budget, false);
        let key = budget.map(|budget| BucketKey::Named(budget.bucket.clone(), permit.major.clone()));
        let key = key.or_else(|| self.key(permit.route, &permit.major));
        // A route believed to be unlimited turned out to have a limit.
        let key = key.unwrap_or_else(|| {
            self.routes.remove(permit.route);
            BucketKey::Unknown(permit.route, permit.major.clone())
        });
        self.buckets.entry(key).or_insert_with(Bucket::new).wait_until(now + wait);
    }

    /// Records a request that ended without a response. Discord may have counted it at any time until now.
    pub fn record_lost(&mut self, now: Duration, permit: &BucketPermit) {
        self.finish(permit);
        let Some(BucketKey::Named(..)) = permit.key else { return };
        let Some(bucket) = permit.key.as_ref().and_then(|key| self.buckets.get_mut(key)) else { return };
        bucket.reset_if_due(now);
        bucket.lost += 1;
        let end = now + bucket.window;
        bucket.reset = Some(bucket.reset.map_or(end, |reset| reset.max(end)));
    }

    /// Records a request that was never sent.
    pub fn release(&mut self, permit: &BucketPermit) {
        self.finish(permit);
    }

    /// Ends a request in flight. Returns true if no other request was in flight at any time during it.
    fn finish(&mut self, permit: &BucketPermit) -> bool {
        let Some(bucket) = permit.key.as_ref().and_then(|key| self.buckets.get_mut(key)) else {
            return false;
        };
        bucket.in_flight = bucket.in_flight.saturating_sub(1);
        permit.alone == Some(bucket.granted)
    }

    /// Number of known buckets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// True if no bucket is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }
}

#[cfg(test)]
mod tests;
