//! One turn as its reader sees it: times of the first chunk, of the last chunk and of the end.

use crate::stats::{ms, per_second};
use std::time::{Duration, Instant};

/// Format of the lines.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Dialect {
    /// ACP, as the agent writes it.
    Acp,
    /// ACP of `qwen serve`: the answer may overtake updates, and an event behind the last update ends the turn.
    QwenServe,
    /// Event lines of the gateway, alone or as data of server-sent events.
    Events,
}

/// A turn that has ended; times since the prompt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    /// Number of chunks received.
    pub(crate) chunks: usize,
    /// Number of chunks received behind the answer.
    pub(crate) late: usize,
    /// Until the first chunk.
    pub(crate) first: Duration,
    /// Until the last chunk.
    pub(crate) last: Duration,
    /// Until the answer and the last chunk were read.
    pub(crate) done: Duration,
}

impl Turn {
    /// Milliseconds until the first chunk.
    pub(crate) fn first_ms(&self) -> f64 {
        ms(self.first)
    }

    /// Milliseconds from the first chunk to the last.
    pub(crate) fn stream_ms(&self) -> f64 {
        ms(self.last - self.first)
    }

    /// Milliseconds until the end.
    pub(crate) fn done_ms(&self) -> f64 {
        ms(self.done)
    }

    /// Chunks per second from the first to the last.
    pub(crate) fn stream_rate(&self) -> f64 {
        per_second(self.chunks - 1, self.last - self.first)
    }

    /// Chunks per second from the prompt to the end of the turn.
    pub(crate) fn whole_rate(&self) -> f64 {
        per_second(self.chunks, self.done)
    }
}

/// Observes the lines of one turn.
#[derive(Debug)]
pub(crate) struct Watch {
    dialect: Dialect,
    began: Instant,
    chunks: usize,
    late: usize,
    first: Duration,
    last: Duration,
    answered: Option<Duration>,
    /// Whether no update can come any more once the answer is read.
    is_complete: bool,
}

impl Watch {
    /// Starts the clock; call it just before the prompt is sent.
    pub(crate) fn begin(dialect: Dialect) -> Self {
        let (chunks, late, first, last) = (0, 0, Duration::ZERO, Duration::ZERO);
        let is_complete = !matches!(dialect, Dialect::QwenServe);
        Self { dialect, began: Instant::now(), chunks, late, first, last, answered: None, is_complete }
    }

    /// Processes a line; returns the turn if the line ends it.
    ///
    /// # Panics
    /// When the turn fails, or ends without a chunk.
    pub(crate) fn line(&mut self, line: &str) -> Option<Turn> {
        let (chunk, end, failure) = match self.dialect {
            Dialect::Acp | Dialect::QwenServe => ("\"agent_message_chunk\"", "\"stopReason\"", "\"error\":{"),
            Dialect::Events => ("\"type\":\"text_delta\"", "\"type\":\"done\"", "\"type\":\"error\""),
        };
        if line.contains(chunk) {
            self.last = self.began.elapsed();
            if self.chunks == 0 {
                self.first = self.last;
            }
            self.chunks += 1;
            self.late += usize::from(self.answered.is_some());
            return None;
        }
        assert!(!line.contains(failure), "the turn failed: {line}");
        if !line.contains(end) {
            return None;
        }
        if line.contains("\"turn_complete\"") {
            self.is_complete = true;
        } else {
            self.answered = Some(self.began.elapsed());
        }
        let answered = self.answered.filter(|_| self.is_complete)?;
        assert!(self.chunks > 0, "a turn without a chunk: {line}");
        let Self { chunks, late, first, last, .. } = *self;
        Some(Turn { chunks, late, first, last, done: answered.max(last) })
    }
}
