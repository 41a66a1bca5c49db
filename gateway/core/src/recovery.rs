//! Recovery at start: a pure function from database rows to a plan.
//!
//! The plan lists the sessions that get an actor at once, with the action. The actor itself calls
//! [`recovery_action`] first, so that there is only one decision. Combinations that no transaction produces
//! (a damaged or hand-edited database) are repaired, not trusted. Source: seed 000 "Recovery and
//! self-healing".

use crate::rows::LeaseStatus;
use crate::session::SessionState;
use acp_shared::ids::SessionKey;

/// Session found at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryCandidate {
    /// Key of the session.
    pub session_key: SessionKey,
    /// Summary of the rows.
    pub rows: RecoveryFacts,
    /// Time of the last activity, milliseconds since the Unix epoch.
    pub last_activity_at_ms: u64,
}

/// Summary of a session's rows, as far as recovery depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveryFacts {
    /// State of the session.
    pub state: SessionState,
    /// State of the agent lease that has not ended, if any.
    pub lease: Option<LeaseStatus>,
    /// True if a run is `running`.
    pub running: bool,
    /// True if prompts are queued.
    pub queued: bool,
    /// True if steers are queued.
    pub steers: bool,
}

/// Recovery action for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecoveryAction {
    /// Nothing. The actor is created on demand.
    Rest,
    /// Start the agent: none runs, and the session is in `creating` or prompts are queued.
    Start,
    /// Repeat the spawn request, since the supervisor may not have received the first one.
    SpawnAgain,
    /// Continue to read at the committed offset, while the agent opens the session.
    Open,
    /// Continue to read at the committed offset; the agent has an open session.
    Attach,
    /// Continue the running turn at the committed offset; fail the turn if the agent is not found in time.
    Continue,
    /// Read the remaining output of an ending process, and repeat the close request.
    Drain,
    /// Fail the running turn or the steers with an uncertain outcome, since no lease can tell the outcome.
    GiveUp,
    /// Repair rows that no transaction produces: the state follows the runs.
    Repair(Repair),
}

/// Repair of contradictory rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Repair {
    /// Cancel the unfinished runs of a closed session.
    CancelRuns,
    /// End the turn of a session without a running run.
    Idle,
    /// Fail the running run of a session without a turn: the outcome is unknown.
    FailRun,
}

/// Returns the recovery action for a session with these rows.
pub const fn recovery_action(rows: RecoveryFacts) -> RecoveryAction {
    use LeaseStatus as L;
    use SessionState as S;
    let RecoveryFacts { state, lease, running, queued, steers } = rows;
    let turn = matches!(state, S::Running | S::Cancelling);
    match (state, lease) {
        (S::Closed, _) if running || queued || steers => RecoveryAction::Repair(Repair::CancelRuns),
        (S::Closed, Some(L::Intended | L::Open | L::Ready | L::Closing)) => RecoveryAction::Drain,
        (S::Closed, Some(L::Ended) | None) => RecoveryAction::Rest,
        _ if running && !turn => RecoveryAction::Repair(Repair::FailRun),
        _ if turn && !running => RecoveryAction::Repair(Repair::Idle),
        (_, Some(L::Closing)) => RecoveryAction::Drain,
        (_, Some(L::Intended | L::Open | L::Ready)) if running => RecoveryAction::Continue,
        (_, Some(L::Intended)) => RecoveryAction::SpawnAgain,
        (_, Some(L::Open)) => RecoveryAction::Open,
        (_, Some(L::Ready)) => RecoveryAction::Attach,
        (_, Some(L::Ended) | None) => {
            if running || steers {
                RecoveryAction::GiveUp
            } else if queued || matches!(state, S::Creating) {
                RecoveryAction::Start
            } else {
                RecoveryAction::Rest
            }
        }
    }
}

/// Plan of a start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryPlan {
    /// Sessions that get an actor at once, with the first action.
    pub now: Vec<(SessionKey, RecoveryAction)>,
    /// Idle sessions that get an actor at once as well, most recently used first.
    pub eager: Vec<SessionKey>,
    /// Number of sessions whose actor is created on demand.
    pub lazy: usize,
}

/// Returns the plan for all sessions found, with at most `eager_max` actors for idle sessions.
pub fn recovery_plan(mut found: Vec<RecoveryCandidate>, eager_max: usize) -> RecoveryPlan {
    // Most recently used first: people who wait are served before others.
    found.sort_by(|one, other| {
        let by_age = other.last_activity_at_ms.cmp(&one.last_activity_at_ms);
        by_age.then_with(|| one.session_key.as_str().cmp(other.session_key.as_str()))
    });
    let mut plan = RecoveryPlan::default();
    for RecoveryCandidate { session_key, rows, .. } in found {
        match recovery_action(rows) {
            RecoveryAction::Rest if matches!(rows.state, SessionState::Closed) => {}
            RecoveryAction::Rest if plan.eager.len() < eager_max => plan.eager.push(session_key),
            RecoveryAction::Rest => plan.lazy += 1,
            step => plan.now.push((session_key, step)),
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    const LEASES: [Option<LeaseStatus>; 5] = [
        None,
        Some(LeaseStatus::Intended),
        Some(LeaseStatus::Open),
        Some(LeaseStatus::Ready),
        Some(LeaseStatus::Closing),
    ];

    fn every_combination() -> Vec<RecoveryFacts> {
        let mut all = Vec::new();
        for state in SessionState::ALL {
            for lease in LEASES {
                for bits in 0..8_u8 {
                    let (running, queued, steers) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
                    all.push(RecoveryFacts { state, lease, running, queued, steers });
                }
            }
        }
        all
    }

    /// Action for every combination of rows: state and lease down the table, runs across (none, running,
    /// queued, running and queued, then the same with steers).
    #[test]
    fn every_combination_of_rows_has_an_action() {
        let mut table = String::new();
        for rows in every_combination() {
            if !rows.running && !rows.queued && !rows.steers {
                let lease = rows.lease.map_or("-".to_owned(), |lease| format!("{lease:?}").to_lowercase());
                write!(table, "\n{} {lease}:", rows.state).unwrap();
            }
            let name = match recovery_action(rows) {
                RecoveryAction::Repair(repair) => format!("{repair:?}"),
                step => format!("{step:?}"),
            };
            write!(table, " {name}").unwrap();
        }
        let want = include_str!("recovery.table.txt");
        assert_eq!(table.trim(), want.trim());
    }

    #[test]
    fn unfinished_sessions_never_rest() {
        for rows in every_combination() {
            let unfinished = rows.running || rows.queued || rows.steers;
            let is_resting = recovery_action(rows) == RecoveryAction::Rest;
            assert!(!(is_resting && (unfinished || rows.lease.is_some())), "{rows:?}");
        }
    }

    #[test]
    fn newest_idle_sessions_get_actors_up_to_the_limit() {
        let found = |name: &str, state, lease, at| RecoveryCandidate {
            session_key: SessionKey::parse(name).unwrap(),
            rows: RecoveryFacts { state, lease, running: false, queued: false, steers: false },
            last_activity_at_ms: at,
        };
        let sessions = || {
            vec![
                found("old", SessionState::Idle, None, 1),
                found("new", SessionState::Error, None, 9),
                found("middle", SessionState::Idle, None, 5),
                found("living", SessionState::Idle, Some(LeaseStatus::Ready), 2),
                found("gone", SessionState::Closed, None, 3),
                found("ending", SessionState::Closed, Some(LeaseStatus::Ready), 4),
            ]
        };
        let now = [("ending", RecoveryAction::Drain), ("living", RecoveryAction::Attach)];
        for (cap, eager, lazy) in
            [(0, vec![], 3), (2, vec!["new", "middle"], 1), (9, vec!["new", "middle", "old"], 0)]
        {
            let plan = recovery_plan(sessions(), cap);
            let names: Vec<(&str, RecoveryAction)> =
                plan.now.iter().map(|(key, step)| (key.as_str(), *step)).collect();
            assert_eq!(names, now);
            assert_eq!(plan.eager.iter().map(SessionKey::as_str).collect::<Vec<_>>(), eager);
            assert_eq!(plan.lazy, lazy);
        }
        assert_eq!(recovery_plan(Vec::new(), 16), RecoveryPlan::default());
    }
}
