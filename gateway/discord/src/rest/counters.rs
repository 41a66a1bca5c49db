//! What is counted, as plain numbers that whoever uses this package can export.

use crate::core::headers::Scope;
use crate::core::schedule::Priority;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long requests waited for their turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    /// How many had their turn.
    pub count: u64,
    /// All their waits together.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
}

/// What was counted since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests by kind and by what became of them: `done`, or the word of a fault.
    pub requests: BTreeMap<(&'static str, &'static str), u64>,
    /// What was asked once more by kind, because it was refused for now or its answer was lost.
    pub retries: BTreeMap<&'static str, u64>,
    /// Answers with status 429.
    pub limited: BTreeMap<Scope, u64>,
    /// How long requests waited for their turn.
    pub waits: BTreeMap<Priority, Waits>,
    /// Messages that were read and could not be understood.
    pub left_out: u64,
    /// Requests that wait now.
    pub waiting: usize,
    /// Requests that are under way now.
    pub under_way: usize,
    /// Whether Discord refused the token: nothing that needs it is asked any more.
    pub unauthorized: bool,
    /// For how long no request is made at all: there were too many refusals, or the guard before Discord wants none.
    pub shut_for: Option<Duration>,
}

/// Where counting is done.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<Counts>);

impl Counters {
    fn with(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn ended(&self, route: &'static str, outcome: &'static str) {
        self.with(|counts| *counts.requests.entry((route, outcome)).or_default() += 1);
    }

    pub(crate) fn again(&self, route: &'static str) {
        self.with(|counts| *counts.retries.entry(route).or_default() += 1);
    }

    pub(crate) fn limited(&self, scope: Scope) {
        self.with(|counts| *counts.limited.entry(scope).or_default() += 1);
    }

    pub(crate) fn left_out(&self) {
        self.with(|counts| counts.left_out += 1);
    }

    pub(crate) fn waited(&self, priority: Priority, wait: Duration) {
        self.with(|counts| {
            let waits = counts.waits.entry(priority).or_default();
            waits.count += 1;
            waits.total += wait;
            waits.longest = waits.longest.max(wait);
        });
    }

    pub(crate) fn snapshot(&self) -> Counts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
