//! Rate limit for log lines caused by peers: a few lines of each kind per window, then only their count. A
//! peer that connects in a loop does not fill the log.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of lines of one kind within [`WINDOW_MS`].
pub const LINES_MAX: u64 = 10;
/// Length of a window, in milliseconds.
pub const WINDOW_MS: u64 = 10_000;
/// Maximum number of kinds with a window of their own; all others share one.
const KINDS_MAX: usize = 1024;
const OTHERS: Kind = (u32::MAX, "others");

/// User id and reason of a line.
pub type Kind = (u32, &'static str);

/// Decision about a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogDecision {
    /// Write the line.
    Write,
    /// Count the line. The caller that gets `begins` calls [`LogLimit::end`] when the window ends.
    Count {
        /// The window, if this line is the first one counted in it.
        begins: Option<Kind>,
    },
}

#[derive(Debug)]
struct Window {
    since_ms: u64,
    lines: u64,
    left_out: u64,
}

/// Windows of all kinds of lines. Pure: the caller supplies the time.
#[derive(Debug, Default)]
pub struct LogLimit {
    windows: HashMap<Kind, Window>,
}

impl LogLimit {
    /// Decides about a line of this kind.
    pub fn on(&mut self, now_ms: u64, kind: Kind) -> LogDecision {
        let over =
            |window: &Window| window.left_out == 0 && now_ms.saturating_sub(window.since_ms) >= WINDOW_MS;
        if self.windows.len() >= KINDS_MAX && !self.windows.contains_key(&kind) {
            self.windows.retain(|_, window| !over(window));
        }
        let room = self.windows.len() < KINDS_MAX || self.windows.contains_key(&kind);
        let kind = if room { kind } else { OTHERS };
        let window = self.windows.entry(kind).or_insert(Window { since_ms: now_ms, lines: 0, left_out: 0 });
        if over(window) {
            (window.since_ms, window.lines) = (now_ms, 0);
        }
        if window.lines < LINES_MAX {
            window.lines += 1;
            return LogDecision::Write;
        }
        window.left_out += 1;
        LogDecision::Count { begins: (window.left_out == 1).then_some(kind) }
    }

    /// Ends a window and returns the number of lines left out of it.
    pub fn end(&mut self, kind: Kind) -> u64 {
        self.windows.remove(&kind).map_or(0, |window| window.left_out)
    }

    /// Ends all windows and returns the number of lines left out of each.
    pub fn end_all(&mut self) -> Vec<(Kind, u64)> {
        let all = std::mem::take(&mut self.windows).into_iter();
        all.map(|(kind, window)| (kind, window.left_out)).filter(|(_, left_out)| *left_out > 0).collect()
    }
}

/// The log of refused peers: a few lines for each user and reason, then their number. Clones share the windows.
#[derive(Debug, Clone)]
pub struct RefusalLog {
    started: Instant,
    limit: Arc<Mutex<LogLimit>>,
}

impl Default for RefusalLog {
    fn default() -> Self {
        Self { started: Instant::now(), limit: Arc::default() }
    }
}

fn write_count((uid, reason): Kind, left_out: u64) {
    if left_out > 0 {
        tracing::warn!(uid, reason, left_out, "similar messages suppressed");
    }
}

impl RefusalLog {
    /// Returns true if a refusal may be logged now. Other refusals are counted, and the count is logged when the window
    /// ends. Needs a tokio runtime.
    #[must_use]
    pub fn may_log(&self, uid: u32, reason: &'static str) -> bool {
        let now_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let line = self.limit.lock().on(now_ms, (uid, reason));
        if let LogDecision::Count { begins: Some(kind) } = line {
            let log = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(WINDOW_MS)).await;
                let left_out = log.limit.lock().end(kind);
                write_count(kind, left_out);
            });
        }
        line == LogDecision::Write
    }

    /// Logs the counts of all windows at once, before the process ends.
    pub fn flush(&self) {
        let all = self.limit.lock().end_all();
        for (kind, left_out) in all {
            write_count(kind, left_out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_beyond_limit_are_counted() {
        let mut limit = LogLimit::default();
        let (a, b) = ((1, "why"), (2, "why"));
        for at in 0..LINES_MAX {
            assert_eq!(limit.on(at, a), LogDecision::Write);
        }
        assert_eq!(limit.on(20, a), LogDecision::Count { begins: Some(a) });
        assert_eq!(limit.on(21, a), LogDecision::Count { begins: None });
        assert_eq!(limit.on(22, b), LogDecision::Write, "each user has its own limit");
        assert_eq!(limit.on(22, (1, "else")), LogDecision::Write, "each reason has its own limit");
        assert_eq!(limit.end(a), 2);
        assert_eq!(limit.on(23, a), LogDecision::Write);
        assert_eq!(limit.on(22 + WINDOW_MS, b), LogDecision::Write);
        assert_eq!(limit.end_all(), []);
    }

    proptest! {
        /// Every line is written or counted, and the number of windows is bounded.
        #[test]
        fn every_line_is_written_or_counted(steps in prop::collection::vec((0u64..3_000, 0u32..3_000), 0..3_000)) {
            let mut limit = LogLimit::default();
            let (mut now, mut written, mut counted) = (0, 0u64, 0u64);
            let mut due: Vec<(u64, Kind)> = Vec::new();
            for (pause, uid) in &steps {
                now += pause;
                for (_, kind) in due.extract_if(.., |(at, _)| *at <= now) {
                    counted += limit.end(kind);
                }
                match limit.on(now, (*uid, "why")) {
                    LogDecision::Write => written += 1,
                    LogDecision::Count { begins } => due.extend(begins.map(|kind| (now + WINDOW_MS, kind))),
                }
                prop_assert!(limit.windows.len() <= KINDS_MAX + 1);
            }
            counted += limit.end_all().into_iter().map(|(_, left_out)| left_out).sum::<u64>();
            prop_assert_eq!(written + counted, steps.len() as u64);
        }
    }
}
