//! What a start finds in the database, and what is done about it: rows in, plan out.
//!
//! The plan says which sessions get an actor at once and why; [`step`] is also what such an actor does first, so
//! that there is one decision. Combinations that no transaction leaves behind (a damaged or hand-edited database)
//! are mended rather than trusted. Source: seed 000 "Recovery and self-healing".

use crate::core::rows::LeaseUse;
use crate::core::session::SessionState;
use acp_shared::ids::SessionKey;

/// A session as a start finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its key.
    pub(crate) session_key: SessionKey,
    /// Its rows.
    pub(crate) rows: Rows,
    /// When it was last used, milliseconds since the Unix epoch.
    pub(crate) last_activity_at_ms: u64,
}

/// What matters of a session's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Where it is in its life.
    pub(crate) state: SessionState,
    /// What is known of its agent lease that has not ended.
    pub(crate) lease: Option<LeaseUse>,
    /// Whether a run is `running`.
    pub(crate) running: bool,
    /// Whether prompts wait.
    pub(crate) queued: bool,
    /// Whether steers wait.
    pub(crate) steers: bool,
}

/// What is done about a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// Nothing is to be done; an actor is made when somebody asks for it.
    Rest,
    /// It waits for its agent to be started for the first time, or prompts wait and there is no agent: start one.
    Start,
    /// The supervisor may or may not have heard of the lease: ask for it again.
    SpawnAgain,
    /// The agent was opening its session: go on reading from the committed offset.
    Open,
    /// The agent is there: go on reading from the committed offset.
    Attach,
    /// A turn runs: go on with it from the committed offset, or fail it when its agent cannot be found in time.
    Continue,
    /// The process is being ended: read what it still says, and ask for its end again.
    Drain,
    /// A turn ran, or was said a word to, and there is no lease that could tell what became of it.
    GiveUp,
    /// Rows that no transaction leaves behind: the state follows the runs.
    Mend(Mend),
}

/// How rows that contradict each other are brought together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Mend {
    /// A closed session has runs that have not ended: they are cancelled.
    CancelRuns,
    /// It is said to run, and nothing runs.
    Idle,
    /// A run runs in a session that is not said to: its fate is unknown, it fails.
    FailRun,
}

/// What is done about a session with these rows.
pub(crate) const fn step(rows: Rows) -> Step {
    use LeaseUse as L;
    use SessionState as S;
    let Rows { state, lease, running, queued, steers } = rows;
    let turn = matches!(state, S::Running | S::Cancelling);
    match (state, lease) {
        (S::Closed, _) if running || queued || steers => Step::Mend(Mend::CancelRuns),
        (S::Closed, Some(L::Intended | L::Open | L::Ready | L::Closing)) => Step::Drain,
        (S::Closed, Some(L::Ended) | None) => Step::Rest,
        _ if running && !turn => Step::Mend(Mend::FailRun),
        _ if turn && !running => Step::Mend(Mend::Idle),
        (_, Some(L::Closing)) => Step::Drain,
        (_, Some(L::Intended | L::Open | L::Ready)) if running => Step::Continue,
        (_, Some(L::Intended)) => Step::SpawnAgain,
        (_, Some(L::Open)) => Step::Open,
        (_, Some(L::Ready)) => Step::Attach,
        (_, Some(L::Ended) | None) => {
            if running || steers {
                Step::GiveUp
            } else if queued || matches!(state, S::Creating) {
                Step::Start
            } else {
                Step::Rest
            }
        }
    }
}

/// What a start does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Sessions that get an actor at once, and what it does first.
    pub(crate) now: Vec<(SessionKey, Step)>,
    /// Idle sessions whose actor is made at once all the same, the one used last first.
    pub(crate) eager: Vec<SessionKey>,
    /// How many wait for somebody to ask for them.
    pub(crate) lazy: usize,
}

/// The plan for everything that was found, with at most `eager_max` actors for sessions that rest.
pub(crate) fn plan(mut found: Vec<Found>, eager_max: usize) -> Plan {
    // The one that was used last first: whoever waits is served before whoever does not.
    found.sort_by(|one, other| {
        let by_age = other.last_activity_at_ms.cmp(&one.last_activity_at_ms);
        by_age.then_with(|| one.session_key.as_str().cmp(other.session_key.as_str()))
    });
    let mut plan = Plan::default();
    for Found { session_key, rows, .. } in found {
        match step(rows) {
            Step::Rest if matches!(rows.state, SessionState::Closed) => {}
            Step::Rest if plan.eager.len() < eager_max => plan.eager.push(session_key),
            Step::Rest => plan.lazy += 1,
            step => plan.now.push((session_key, step)),
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use std::fmt::Write as _;

    const LEASES: [Option<LeaseUse>; 5] = [
        None,
        Some(LeaseUse::Intended),
        Some(LeaseUse::Open),
        Some(LeaseUse::Ready),
        Some(LeaseUse::Closing),
    ];

    fn every_combination() -> Vec<Rows> {
        let mut all = Vec::new();
        for state in SessionState::ALL {
            for lease in LEASES {
                for bits in 0..8_u8 {
                    let (running, queued, steers) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
                    all.push(Rows { state, lease, running, queued, steers });
                }
            }
        }
        all
    }

    /// Every combination of rows has an answer that is written down: state and lease down the table, runs across
    /// (none, running, queued, running+queued, then the same with steers).
    #[test]
    fn b12_every_combination_of_rows_has_its_step() {
        let mut table = String::new();
        for rows in every_combination() {
            if !rows.running && !rows.queued && !rows.steers {
                let lease = rows.lease.map_or("-", |lease| match lease {
                    LeaseUse::Intended => "intended",
                    LeaseUse::Open => "open",
                    LeaseUse::Ready => "ready",
                    LeaseUse::Closing => "closing",
                    LeaseUse::Ended => "ended",
                });
                write!(table, "\n{} {lease}:", rows.state).unwrap();
            }
            let name = match step(rows) {
                Step::Mend(mend) => format!("{mend:?}"),
                step => format!("{step:?}"),
            };
            write!(table, " {name}").unwrap();
        }
        let want = include_str!("recovery.table.txt");
        assert_eq!(table.trim(), want.trim());
    }

    #[test]
    fn b12_nothing_that_has_not_ended_is_left_to_itself() {
        for rows in every_combination() {
            let unfinished = rows.running || rows.queued || rows.steers;
            let rests = step(rows) == Step::Rest;
            assert!(!(rests && (unfinished || rows.lease.is_some())), "{rows:?}");
        }
    }

    #[test]
    fn idle_sessions_get_actors_up_to_the_cap_and_the_newest_first() {
        let found = |name: &str, state, lease, at| Found {
            session_key: SessionKey::parse(name).unwrap(),
            rows: Rows { state, lease, running: false, queued: false, steers: false },
            last_activity_at_ms: at,
        };
        let sessions = || {
            vec![
                found("old", SessionState::Idle, None, 1),
                found("new", SessionState::Error, None, 9),
                found("middle", SessionState::Idle, None, 5),
                found("living", SessionState::Idle, Some(LeaseUse::Ready), 2),
                found("gone", SessionState::Closed, None, 3),
                found("ending", SessionState::Closed, Some(LeaseUse::Ready), 4),
            ]
        };
        let now = [("ending", Step::Drain), ("living", Step::Attach)];
        for (cap, eager, lazy) in
            [(0, vec![], 3), (2, vec!["new", "middle"], 1), (9, vec!["new", "middle", "old"], 0)]
        {
            let plan = plan(sessions(), cap);
            let names: Vec<(&str, Step)> = plan.now.iter().map(|(key, step)| (key.as_str(), *step)).collect();
            assert_eq!(names, now);
            assert_eq!(plan.eager.iter().map(SessionKey::as_str).collect::<Vec<_>>(), eager);
            assert_eq!(plan.lazy, lazy);
        }
        assert_eq!(plan(Vec::new(), 16), Plan::default());
    }
}
