//! How often a part was tried, what that came to, and how long to wait before the next time.

use crate::channel::SendOutcome;
use crate::store::delivery::PartState;

/// Longest pause after a part was not taken.
const RETRY_LAST_MS: u64 = 30_000;

/// The attempts at one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tries {
    /// How many there were, those of earlier processes too.
    pub(super) attempts: u64,
    /// Whether nobody knows what became of one of them.
    pub(super) is_unknown: bool,
    /// How often in a row nobody knows.
    pub(super) unknown_in_a_row: u64,
    /// How often it was refused for its files.
    pub(super) files_refused: u32,
    /// How long the channel wants to be left alone, in milliseconds.
    limited_ms: Option<u64>,
    pause_ms: u64,
}

impl Tries {
    /// Of a part in this state. The first pause is doubled each time.
    pub(super) fn of(state: PartState, attempts: u64, first_pause_ms: u64) -> Self {
        Self {
            attempts,
            is_unknown: state == PartState::Sending,
            unknown_in_a_row: 0,
            files_refused: 0,
            limited_ms: None,
            pause_ms: first_pause_ms,
        }
    }

    /// Takes what another attempt came to.
    pub(super) fn note(&mut self, outcome: &SendOutcome) {
        self.attempts += 1;
        let is_unknown = matches!(outcome, SendOutcome::Uncertain { .. });
        self.is_unknown |= is_unknown;
        self.unknown_in_a_row = if is_unknown { self.unknown_in_a_row + 1 } else { 0 };
        self.files_refused += u32::from(matches!(outcome, SendOutcome::FilesRefused { .. }));
        self.limited_ms = match outcome {
            SendOutcome::Limited { retry_after_ms } => Some(*retry_after_ms),
            _ => None,
        };
    }

    /// The pause before the next attempt, in milliseconds. What the channel asks for makes none of the others longer.
    pub(super) fn pause(&mut self) -> u64 {
        if let Some(ms) = self.limited_ms {
            return ms;
        }
        let now = self.pause_ms;
        self.pause_ms = (now * 2).min(RETRY_LAST_MS);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attempt_is_remembered_for_what_it_was() {
        let why = String::new;
        let mut tries = Tries::of(PartState::Planned, 3, 10_000);
        let mut seen = Vec::new();
        for outcome in [
            SendOutcome::Rejected { why: why(), again: true },
            SendOutcome::Uncertain { why: why() },
            SendOutcome::Limited { retry_after_ms: 7 },
            SendOutcome::FilesRefused { why: why(), again: true },
            SendOutcome::Uncertain { why: why() },
            SendOutcome::Uncertain { why: why() },
        ] {
            tries.note(&outcome);
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
        assert!(Tries::of(PartState::Sending, 0, 1).is_unknown);
    }
}
