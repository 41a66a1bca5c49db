//! Counters of the REST client, as plain numbers for export by the caller.

use crate::core::headers::RateLimitScope;
use crate::core::request_scheduler::Priority;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// Waiting times of requests in the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitTimes {
    /// Number of requests that left the queue to be sent.
    pub count: u64,
    /// Sum of their waiting times.
    pub total: Duration,
    /// Longest waiting time.
    pub longest: Duration,
}

/// Counters since the start of the client, and a few current values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestCounts {
    /// Finished requests by route and outcome: `done`, or [`RestError::as_str`](super::RestError::as_str).
    pub requests: BTreeMap<(&'static str, &'static str), u64>,
    /// Retries by route, after a 429 response or a failure that may pass.
    pub retries: BTreeMap<&'static str, u64>,
    /// Responses with status 429.
    pub limited: BTreeMap<RateLimitScope, u64>,
    /// Waiting times in the queue.
    pub waits: BTreeMap<Priority, WaitTimes>,
    /// Messages in history responses that could not be parsed.
    pub unreadable: u64,
    /// Requests in the queue now.
    pub waiting: usize,
    /// Requests in flight now.
    pub in_flight: usize,
    /// True if Discord refused the token: requests with the bot's token fail until a new one is set.
    pub unauthorized: bool,
    /// Remaining time during which no request is sent: after too many refusals, or because Discord's edge
    /// asked for it.
    pub blocked_for: Option<Duration>,
}

/// Shared counters.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<RestCounts>);

impl Counters {
    fn with(&self, change: impl FnOnce(&mut RestCounts)) {
        change(&mut self.0.lock());
    }

    pub(crate) fn count_finished(&self, route: &'static str, outcome: &'static str) {
        self.with(|counts| *counts.requests.entry((route, outcome)).or_default() += 1);
    }

    pub(crate) fn count_retry(&self, route: &'static str) {
        self.with(|counts| *counts.retries.entry(route).or_default() += 1);
    }

    pub(crate) fn count_rate_limited(&self, scope: RateLimitScope) {
        self.with(|counts| *counts.limited.entry(scope).or_default() += 1);
    }

    pub(crate) fn count_unreadable(&self) {
        self.with(|counts| counts.unreadable += 1);
    }

    pub(crate) fn count_wait(&self, priority: Priority, wait: Duration) {
        self.with(|counts| {
            let waits = counts.waits.entry(priority).or_default();
            waits.count += 1;
            waits.total += wait;
            waits.longest = waits.longest.max(wait);
        });
    }

    pub(crate) fn snapshot(&self) -> RestCounts {
        self.0.lock().clone()
    }
}
