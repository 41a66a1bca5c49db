//! Counters.

use super::faults::{EventFate, RestFate};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Counters since the start of the process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    /// Requests by `ROUTE STATUS`, for example `POST /channels/{}/messages 200`; status 0 is no answer.
    pub requests: BTreeMap<String, u64>,
    /// Errors by `ROUTE CODE`, for example `PATCH /channels/{}/messages/{} 50083`, without injected ones.
    pub refusals: BTreeMap<String, u64>,
    /// 429s.
    pub rate_limited: u64,
    /// Requests that count as invalid.
    pub invalid: u64,
    /// Injected faults of requests, by name.
    pub rest_faults: BTreeMap<String, u64>,
    /// Injected faults of events, by name.
    pub event_faults: BTreeMap<String, u64>,
    /// Connections to the gateway.
    pub sockets: u64,
    /// IDENTIFYs, including refused ones.
    pub identifies: u64,
    /// Sessions that began: number of the shard, number of shards, time.
    pub identified: Vec<(u64, u64, u64)>,
    /// IDENTIFYs refused because another one of the bucket came just before.
    pub early_identifies: u64,
    /// RESUMEs.
    pub resumes: u64,
    /// Connections closed for missing heartbeats.
    pub silent_clients: u64,
    /// Connections closed for client errors, by code.
    pub closes: BTreeMap<u16, u64>,
    /// Messages that notified anybody.
    pub pings: u64,
    /// Creates that returned an earlier message because of an enforced nonce.
    pub deduplicated: u64,
    /// Typing indicators by channel.
    pub typing: BTreeMap<String, u64>,
    /// First responses after the deadline.
    pub late_responses: u64,
    /// Requests of the product that violate Discord's OpenAPI description: the first ones.
    pub violations: Vec<String>,
    /// Milliseconds from each interaction to its first response.
    pub response_ms: Vec<u64>,
}

/// Maximum number of recorded violations.
const VIOLATIONS_MAX: usize = 10;

impl Tally {
    /// Records a violation of the description.
    pub fn violation(&mut self, why: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(why);
        }
    }

    /// Counts an answer; status 0 is no answer.
    pub fn request(&mut self, route: &str, status: u16) {
        *self.requests.entry(format!("{route} {status}")).or_default() += 1;
        if status == 429 {
            self.rate_limited += 1;
        }
    }

    /// Counts an error with a JSON error code.
    pub fn refusal(&mut self, route: &str, code: u64) {
        *self.refusals.entry(format!("{route} {code}")).or_default() += 1;
    }

    /// Number of errors with one of these codes, on all routes.
    #[must_use]
    pub fn refused_with(&self, codes: &[u32]) -> u64 {
        let is_one = |key: &str| {
            let code = key.rsplit_once(' ').and_then(|(_, code)| code.parse().ok());
            code.is_some_and(|code: u32| codes.contains(&code))
        };
        self.refusals.iter().filter(|(key, _)| is_one(key)).map(|(_, count)| count).sum()
    }

    /// Counts a fault of a request.
    pub fn rest_fate(&mut self, route: &str, fate: &RestFate) {
        let fate = serde_json::to_value(fate).unwrap_or_default();
        let name = fate.get("fate").and_then(serde_json::Value::as_str).unwrap_or("unknown");
        *self.rest_faults.entry(name.to_owned()).or_default() += 1;
        if matches!(name, "lost_before" | "error_before" | "late") {
            self.request(route, 0);
        }
    }

    /// Counts a fault of an event.
    pub fn event_fate(&mut self, fate: EventFate) {
        let name = serde_json::to_value(fate).ok();
        let name = name.as_ref().and_then(serde_json::Value::as_str).unwrap_or("unknown").to_owned();
        *self.event_faults.entry(name).or_default() += 1;
    }

    /// Requests to a route, with any answer.
    #[must_use]
    pub fn requests_to(&self, route: &str) -> u64 {
        let of = |(key, count): (&String, &u64)| {
            key.rsplit_once(' ').filter(|(name, _)| *name == route).map_or(0, |_| *count)
        };
        self.requests.iter().map(of).sum()
    }

    /// All requests.
    #[must_use]
    pub fn all_requests(&self) -> u64 {
        self.requests.values().sum()
    }
}
