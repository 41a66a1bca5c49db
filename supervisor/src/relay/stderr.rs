//! Standard error of an agent: the last bytes are kept for people, lines go to the log at a bounded rate.

use super::frozen::StderrState;
use crate::core::tail::{Tail, head};
use acp_shared::ids::LeaseId;
use tokio::time::{Duration, Instant};

/// Lines that are logged in one [`WINDOW`]; the rest is counted.
const LINES_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);
const LINE_BYTES_MAX: usize = 2_000;

#[derive(Debug)]
pub(super) struct Stderr {
    lease_id: LeaseId,
    tail: Tail,
    line: Vec<u8>,
    window: Instant,
    lines: u32,
    suppressed: u64,
}

impl Stderr {
    pub(super) fn new(lease_id: LeaseId, bytes_max: usize) -> Self {
        Self {
            lease_id,
            tail: Tail::new(bytes_max),
            line: Vec::new(),
            window: Instant::now(),
            lines: 0,
            suppressed: 0,
        }
    }

    /// Everything as a value.
    pub(super) fn freeze(self) -> StderrState {
        StderrState { truncated: self.tail.truncated(), line: self.line, tail: self.tail.into_bytes() }
    }

    /// Goes on where another one was frozen.
    pub(super) fn thaw(lease_id: LeaseId, frozen: StderrState, bytes_max: usize) -> Self {
        Self {
            tail: Tail::with(frozen.tail, bytes_max, frozen.truncated),
            line: frozen.line,
            ..Self::new(lease_id, bytes_max)
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.tail.push(bytes);
        for byte in bytes {
            if *byte == b'\n' {
                self.end_line();
            } else if self.line.len() < LINE_BYTES_MAX {
                self.line.push(*byte);
            }
        }
    }

    /// The last bytes as text.
    pub(super) fn text(&self) -> String {
        self.tail.text()
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let now = Instant::now();
        if now.duration_since(self.window) >= WINDOW {
            if self.suppressed > 0 {
                tracing::info!(lease_id = %self.lease_id, lines = self.suppressed, "lines of stderr were not logged");
            }
            (self.window, self.lines, self.suppressed) = (now, 0, 0);
        }
        if self.lines >= LINES_MAX {
            self.suppressed += 1;
            return;
        }
        self.lines += 1;
        let text = String::from_utf8_lossy(&line);
        tracing::info!(lease_id = %self.lease_id, stderr = head(text.trim_end(), LINE_BYTES_MAX), "agent");
    }
}
