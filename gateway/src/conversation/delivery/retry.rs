//! Attempts to deliver one part: their number, their results, and the delay before the next one.

use crate::channel::SendOutcome;
use acp_shared::backoff::Backoff;
use acp_store::delivery::{PartRow, PartState};

/// Maximum retry delay, in milliseconds.
const RETRY_LAST_MS: u64 = 30_000;
/// Time in which a message sent under a persona may still arrive, in milliseconds: until it is written out
/// (20 s at most on Discord), until its response times out (15 s), and as long again as a margin. Measured by
/// the wall clock, which may be set meanwhile.
const ARRIVAL_WINDOW_MS: u64 = 60_000;
/// Additional time for uploads: minimum upload rate.
const UPLOAD_BYTES_PER_MS: u64 = 128;
/// First interval between lookups in that time, in milliseconds. Each interval is as long as all before it: a
/// failed lookup proves nothing, and lookups consume the channel's request budget.
const LOOKUP_INTERVAL_MS: u64 = 5_000;

/// Attempts at one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RetryState {
    /// Number of attempts, those of earlier processes included.
    pub(super) attempts: u64,
    /// True if the result of one attempt is unknown.
    pub(super) is_unknown: bool,
    /// Number of consecutive attempts with an unknown result.
    pub(super) unknown_in_a_row: u64,
    /// Number of attempts refused because of the files.
    pub(super) files_refused: u32,
    /// Time of the last attempt under a persona that may have reached the channel, in milliseconds since the
    /// Unix epoch.
    pub(super) persona_at_ms: Option<u64>,
    /// Delay requested by the channel, in milliseconds.
    limited_ms: Option<u64>,
    backoff: Backoff,
}

impl RetryState {
    /// Restores the attempts from a part's row. The retry delay doubles each time.
    pub(super) fn of(row: &PartRow, first_pause_ms: u64) -> Self {
        Self {
            attempts: row.attempts,
            is_unknown: row.state == PartState::Sending,
            unknown_in_a_row: 0,
            files_refused: 0,
            persona_at_ms: row.persona_at_ms,
            limited_ms: None,
            backoff: Backoff::new(first_pause_ms, RETRY_LAST_MS),
        }
    }

    /// Records the result of another attempt.
    pub(super) fn record_outcome(&mut self, outcome: &SendOutcome) {
        self.attempts += 1;
        let is_unknown = matches!(outcome, SendOutcome::Uncertain { .. });
        self.is_unknown |= is_unknown;
        self.unknown_in_a_row = if is_unknown { self.unknown_in_a_row + 1 } else { 0 };
        if !self.is_unknown {
            self.persona_at_ms = None;
        }
        self.files_refused += u32::from(matches!(outcome, SendOutcome::FilesRefused { .. }));
        self.limited_ms = match outcome {
            SendOutcome::Limited { retry_after_ms } => Some(*retry_after_ms),
            _ => None,
        };
    }

    /// Returns the delay before the next lookup, in milliseconds, or `None` once the message cannot arrive
    /// any longer. A message sent under a persona may arrive after a lookup did not find it, and only a
    /// lookup can tell (C10). `bytes` is the size of its files.
    pub(super) fn next_lookup_delay_ms(&self, now_ms: u64, bytes: u64) -> Option<u64> {
        let since_ms = now_ms.abs_diff(self.persona_at_ms?);
        let left_ms = (ARRIVAL_WINDOW_MS + bytes / UPLOAD_BYTES_PER_MS).checked_sub(since_ms)?;
        Some(left_ms.clamp(1, since_ms.max(LOOKUP_INTERVAL_MS)))
    }

    /// Returns the delay before the next attempt, in milliseconds. A delay requested by the channel does not
    /// extend the later ones.
    pub(super) fn pause(&mut self) -> u64 {
        self.limited_ms.unwrap_or_else(|| self.backoff.next_ms())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use acp_core::render::{MessagePart, PartKind};

    fn row(state: PartState, attempts: u64, persona_at_ms: Option<u64>) -> PartRow {
        let part = MessagePart {
            session_seq: 1,
            part_no: 0,
            run_id: None,
            kind: PartKind::Final,
            text: String::new(),
            nonce: String::new(),
            asks: None,
            files: Vec::new(),
        };
        PartRow { part, state, tag: None, attempts, persona_at_ms, created_at_ms: 0 }
    }

    #[test]
    fn retry_state_follows_attempt_outcomes() {
        let why = String::new;
        let mut tries = RetryState::of(&row(PartState::Planned, 3, None), 10_000);
        let mut seen = Vec::new();
        for outcome in [
            SendOutcome::Rejected { why: why(), again: true },
            SendOutcome::Uncertain { why: why() },
            SendOutcome::Limited { retry_after_ms: 7 },
            SendOutcome::FilesRefused { why: why(), again: true },
            SendOutcome::Uncertain { why: why() },
            SendOutcome::Uncertain { why: why() },
        ] {
            tries.record_outcome(&outcome);
            seen.push((tries.is_unknown, tries.unknown_in_a_row, tries.files_refused, tries.pause()));
        }
        assert_eq!(
            seen,
            [
                (false, 0, 0, 10_000),
                (true, 1, 0, 20_000),
                (true, 0, 0, 7),
                (true, 0, 1, 30_000),
                (true, 1, 1, 30_000),
                (true, 2, 1, 30_000),
            ]
        );
        assert_eq!(tries.attempts, 9);
        assert!(RetryState::of(&row(PartState::Sending, 0, None), 1).is_unknown);
    }

    /// An unknown result stays unknown until the message can no longer arrive; a message that was certainly
    /// not sent never arrives.
    #[test]
    fn persona_message_is_awaited_until_it_cannot_arrive() {
        let sending = |at_ms| RetryState::of(&row(PartState::Sending, 1, at_ms), 1);
        for (at_ms, now_ms, bytes, want) in [
            (None, 1_000_000, 0, None),
            (Some(1_000_000), 1_000_000, 0, Some(5_000)),
            (Some(1_000_000), 1_005_000, 0, Some(5_000)),
            (Some(1_000_000), 1_010_000, 0, Some(10_000)),
            (Some(1_000_000), 1_020_000, 0, Some(20_000)),
            (Some(1_000_000), 1_040_000, 0, Some(20_000)),
            (Some(1_000_000), 1_058_000, 0, Some(2_000)),
            (Some(1_000_000), 1_060_000, 0, Some(1)),
            (Some(1_000_000), 1_060_001, 0, None),
            (Some(1_000_000), 1_060_001, 12_800, Some(99)),
            // The clock was set back: a little, and by a day.
            (Some(1_000_000), 999_000, 0, Some(5_000)),
            (Some(100_000_000), 13_600_000, 0, None),
        ] {
            assert_eq!(
                sending(at_ms).next_lookup_delay_ms(now_ms, bytes),
                want,
                "{at_ms:?} {now_ms} {bytes}"
            );
        }
        let again = SendOutcome::Rejected { why: String::new(), again: true };
        let uncertain = SendOutcome::Uncertain { why: String::new() };
        for (state, outcome, want) in [
            (PartState::Planned, &again, None),
            (PartState::Planned, &uncertain, Some(7)),
            (PartState::Sending, &again, Some(7)),
        ] {
            let mut tries = RetryState { persona_at_ms: Some(7), ..RetryState::of(&row(state, 0, None), 1) };
            tries.record_outcome(outcome);
            assert_eq!(tries.persona_at_ms, want, "{state:?} {outcome:?}");
        }
    }
}
