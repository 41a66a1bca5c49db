//! Rate limits, from the documentation's page on them: buckets of a route and its major parameter, the global
//! limit, invalid requests, and the budget for edits of old messages.
//!
//! A bucket is a fixed window that begins with its first request. Real budgets are not published: the defaults in
//! [`super::settings`] are commonly observed ones.

use super::faults::Scope;
use super::model::{Id, Ms};
use super::settings::Budget;
use std::collections::{HashMap, VecDeque};

/// A window of a bucket.
#[derive(Debug, Clone, Copy)]
struct Window {
    started_ms: Ms,
    used: u64,
}

/// State of a bucket after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketState {
    /// Requests in a window.
    pub limit: u64,
    /// Remaining requests.
    pub remaining: u64,
    /// When the window ends.
    pub reset_ms: Ms,
    /// Time until then.
    pub reset_after_ms: Ms,
    /// Whether this request exceeds the limit.
    pub exhausted: bool,
}

/// Key of a bucket: the bot, the route, and the major parameter (a channel, guild or webhook).
pub type BucketKey = (Id, String, String);

/// All counters.
#[derive(Debug, Default)]
pub struct Limits {
    buckets: HashMap<BucketKey, Window>,
    global: HashMap<Id, Window>,
    old_edits: HashMap<(Id, Id), Window>,
    invalid: VecDeque<Ms>,
    banned_until_ms: Option<Ms>,
}

fn take(window: &mut Window, budget: Budget, now: Ms) -> BucketState {
    if now.saturating_sub(window.started_ms) >= budget.window_ms {
        *window = Window { started_ms: now, used: 0 };
    }
    let exhausted = window.used >= budget.limit;
    if !exhausted {
        window.used += 1;
    }
    let reset_ms = window.started_ms + budget.window_ms;
    BucketState {
        limit: budget.limit,
        remaining: budget.limit - window.used.min(budget.limit),
        reset_ms,
        reset_after_ms: reset_ms.saturating_sub(now),
        exhausted,
    }
}

const fn fresh(now: Ms) -> Window {
    Window { started_ms: now, used: 0 }
}

impl Limits {
    /// Counts a request to a route.
    pub fn route(&mut self, key: BucketKey, budget: Budget, now: Ms) -> BucketState {
        take(self.buckets.entry(key).or_insert(fresh(now)), budget, now)
    }

    /// Counts a request for the bot's global limit.
    pub fn global(&mut self, bot_id: Id, per_second: u64, now: Ms) -> BucketState {
        let budget = Budget { limit: per_second, window_ms: 1000 };
        take(self.global.entry(bot_id).or_insert(fresh(now)), budget, now)
    }

    /// Counts an edit of an old message.
    pub fn old_edit(&mut self, bot_id: Id, channel_id: Id, budget: Budget, now: Ms) -> BucketState {
        take(self.old_edits.entry((bot_id, channel_id)).or_insert(fresh(now)), budget, now)
    }

    /// Counts an invalid request (401, 403, 429 except of scope `shared`).
    pub fn invalid(&mut self, allowed: Budget, ban_ms: Ms, now: Ms) {
        self.invalid.push_back(now);
        while self.invalid.front().is_some_and(|at| now.saturating_sub(*at) >= allowed.window_ms) {
            self.invalid.pop_front();
        }
        if self.invalid.len() as u64 > allowed.limit {
            self.banned_until_ms = Some(now + ban_ms);
            self.invalid.clear();
        }
    }

    /// Remaining time of a ban of the client's address.
    #[must_use]
    pub fn banned_for(&self, now: Ms) -> Option<Ms> {
        self.banned_until_ms.and_then(|until| until.checked_sub(now)).filter(|left| *left > 0)
    }
}

/// Value of `X-RateLimit-Bucket` for a route: the same for all major parameters.
#[must_use]
pub fn bucket_name(route: &str) -> String {
    // FNV-1a: a stable name.
    let hash = route.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// Value of `X-RateLimit-Scope`.
#[must_use]
pub const fn scope_name(scope: Scope) -> &'static str {
    match scope {
        Scope::User => "user",
        Scope::Global => "global",
        Scope::Shared => "shared",
    }
}

/// The headers of a bucket.
#[must_use]
pub fn headers(standing: BucketState, route: &str) -> Vec<(&'static str, String)> {
    let seconds = super::error::seconds;
    vec![
        ("x-ratelimit-limit", standing.limit.to_string()),
        ("x-ratelimit-remaining", standing.remaining.to_string()),
        ("x-ratelimit-reset", format!("{:.3}", seconds(standing.reset_ms))),
        ("x-ratelimit-reset-after", format!("{:.3}", seconds(standing.reset_after_ms))),
        ("x-ratelimit-bucket", bucket_name(route)),
    ]
}
