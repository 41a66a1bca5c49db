//! Rule of the journal's retention: the last row up to which the journal of a session may be pruned. Pruned rows are
//! the first ones of a session, and a run is pruned as a whole. Rows that a person, a program or an agent may still
//! need stay: of unfinished runs, undelivered ones, and those of the last turns.
#![deny(clippy::indexing_slicing)]

use acp_shared::ids::RunId;

/// Limits of the retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Time before which rows are old, milliseconds since the Unix epoch.
    pub before_ms: u64,
    /// Number of turns that each session keeps, whatever their age.
    pub keep_turns: u64,
}

/// Rows of a run that is not pruned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunSpan {
    /// The run.
    pub run_id: RunId,
    /// Number of its first row in the session's journal.
    pub first: u64,
    /// Number of its last row.
    pub last: u64,
    /// Event id of its last row.
    pub last_event_id: u64,
    /// Time of its last row, milliseconds since the Unix epoch.
    pub last_at_ms: u64,
    /// True if the run has ended and no status card needs its rows.
    pub is_settled: bool,
}

/// Facts about a session's journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalFacts {
    /// Number of the last pruned row; 0 if none is.
    pub pruned_seq: u64,
    /// Number of the last row.
    pub last_seq: u64,
    /// Oldest runs that are not pruned.
    pub runs: Vec<RunSpan>,
    /// True if there are newer runs than these.
    pub has_more_runs: bool,
    /// Number of the first row of the oldest turn that is kept; `None` if the session has no more turns than that.
    pub kept_from: Option<u64>,
    /// Number up to which every conversation has the journal; `None` without a conversation that needs it.
    pub delivered_through: Option<u64>,
    /// Event id up to which every webhook has the journal; `None` without webhooks.
    pub notified_through: Option<u64>,
    /// True if a permission request or another request of the agent is open.
    pub is_waiting: bool,
}

/// Returns the number of the last row that may be pruned; never less than that of the last pruned row. The last row
/// of a session stays, so that its number and its event id remain the highest ones.
#[must_use]
pub fn prunable_through(facts: &JournalFacts, policy: RetentionPolicy) -> u64 {
    let mut through = facts.pruned_seq;
    let Some(limit) = limit(facts, policy) else { return through };
    let mut runs = facts.runs.clone();
    runs.sort_unstable_by_key(|run| run.first);
    let mut end = 0;
    for (at, run) in runs.iter().enumerate() {
        let is_notified = facts.notified_through.is_none_or(|id| run.last_event_id <= id);
        if !run.is_settled || !is_notified || run.last_at_ms >= policy.before_ms {
            break;
        }
        end = end.max(run.last);
        if end > limit {
            break;
        }
        // Runs overlap: a prompt is accepted while another one runs.
        if runs.get(at + 1).is_none_or(|next| next.first > end) {
            through = through.max(end);
        }
    }
    through
}

/// Returns the highest number that may be pruned whatever the runs; `None` if nothing may.
fn limit(facts: &JournalFacts, policy: RetentionPolicy) -> Option<u64> {
    let mut limit = facts.last_seq.saturating_sub(1);
    if facts.is_waiting {
        return None;
    }
    if policy.keep_turns > 0 {
        limit = limit.min(facts.kept_from?.saturating_sub(1));
    }
    if facts.has_more_runs {
        // The rows of the newer runs begin after these first rows.
        limit = limit.min(facts.runs.iter().map(|run| run.first).max()?.saturating_sub(1));
    }
    Some(facts.delivered_through.map_or(limit, |delivered| limit.min(delivered)))
}

#[cfg(test)]
#[path = "retention_tests.rs"]
mod tests;
