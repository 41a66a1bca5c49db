//! The log of refusals: a few lines for each user and reason, then their number.

use crate::core::quiet::{Kind, Line, Quiet, WINDOW_MS};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What was refused lately, and how much of it was written.
#[derive(Debug, Clone, Default)]
pub struct Refusals {
    quiet: Arc<Mutex<Quiet>>,
}

fn tell((uid, reason): Kind, left_out: u64) {
    if left_out > 0 {
        tracing::warn!(uid, reason, left_out, "more of these came than are written one by one");
    }
}

impl Refusals {
    fn quiet(&self) -> MutexGuard<'_, Quiet> {
        self.quiet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a refusal is to be logged. What is not is counted, and the number logged in a while.
    #[must_use]
    pub fn may_log(&self, now_ms: u64, uid: u32, reason: &'static str) -> bool {
        let line = self.quiet().on(now_ms, (uid, reason));
        if let Line::Count { begins: Some(kind) } = line {
            let this = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(WINDOW_MS)).await;
                let left_out = this.quiet().end(kind);
                tell(kind, left_out);
            });
        }
        line == Line::Write
    }

    /// Logs the numbers of what was left out so far: there will be no later.
    pub fn tell_all(&self) {
        let all = self.quiet().end_all();
        for (kind, left_out) in all {
            tell(kind, left_out);
        }
    }
}
