//! State transitions of a session and of its runs in one step, for logs and metrics. They are published only
//! after the commit.

use crate::rows::{RunMode, RunRow};
use crate::run::{RunEvent, RunState};
use crate::session::{SessionEvent, SessionState};
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, RunId};

/// One state transition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transition {
    /// Transition of the session.
    Session {
        /// Previous state.
        from: SessionState,
        /// Event of the transition.
        event: SessionEvent,
        /// New state.
        to: SessionState,
        /// Error code, if the session failed.
        code: Option<Code>,
    },
    /// Transition of a run.
    Run(Box<RunTransition>),
    /// Event that the state table does not allow: nothing changed. Caused by a bug in the caller.
    Refused {
        /// Run; `None` for the session itself.
        run_id: Option<RunId>,
        /// Current state.
        from: &'static str,
        /// Refused event.
        event: &'static str,
    },
}

/// Transition of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunTransition {
    /// Id of the run.
    pub run_id: RunId,
    /// Turn or steer.
    pub mode: RunMode,
    /// Idempotency key of the request.
    pub idempotency_key: IdempotencyKey,
    /// Previous state; `None` for a newly accepted run.
    pub from: Option<RunState>,
    /// Event of the transition; `None` for a newly accepted run.
    pub event: Option<RunEvent>,
    /// New state.
    pub to: RunState,
    /// Time of acceptance, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Time at which the run left the queue.
    pub started_at_ms: Option<u64>,
    /// Time of the end.
    pub ended_at_ms: Option<u64>,
    /// Error code of a failed run.
    pub code: Option<Code>,
}

impl Transition {
    /// Returns the transition of a run.
    pub const fn as_run(&self) -> Option<&RunTransition> {
        match self {
            Self::Run(run) => Some(run),
            Self::Session { .. } | Self::Refused { .. } => None,
        }
    }

    /// Creates the transition of a run. `row` has the new state.
    pub fn run(from: Option<RunState>, event: Option<RunEvent>, row: &RunRow) -> Self {
        Self::Run(Box::new(RunTransition {
            run_id: row.run_id,
            mode: row.mode,
            idempotency_key: row.idempotency_key.clone(),
            from,
            event,
            to: row.state,
            created_at_ms: row.created_at_ms,
            started_at_ms: row.started_at_ms,
            ended_at_ms: row.ended_at_ms,
            code: row.error.as_ref().map(|failure| failure.code),
        }))
    }
}
