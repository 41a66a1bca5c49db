//! What moved in a step: each transition of a session and of a run, as it was decided, for logs and metrics. Nobody
//! hears of one before it is committed.

use crate::core::rows::{RunMode, RunRow};
use crate::core::run::{RunEvent, RunState};
use crate::core::session::{SessionEvent, SessionState};
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, RunId};

/// One transition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Move {
    /// The session's.
    Session {
        /// Where it was.
        from: SessionState,
        /// What happened.
        event: SessionEvent,
        /// Where it is.
        to: SessionState,
        /// Why, when it cannot go on.
        code: Option<Code>,
    },
    /// A run's.
    Run(Box<RunMove>),
    /// A pair that the table does not have: nothing changed, and somebody asked for what they should not.
    Refused {
        /// The run; `None` for the session itself.
        run_id: Option<RunId>,
        /// Where it is.
        from: &'static str,
        /// What was asked for.
        event: &'static str,
    },
}

/// A transition of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunMove {
    /// Which run.
    pub(crate) run_id: RunId,
    /// Turn or steer.
    pub(crate) mode: RunMode,
    /// The key under which it was asked.
    pub(crate) idempotency_key: IdempotencyKey,
    /// Where it was; `None` for one that was just accepted.
    pub(crate) from: Option<RunState>,
    /// What happened; `None` for one that was just accepted.
    pub(crate) event: Option<RunEvent>,
    /// Where it is.
    pub(crate) to: RunState,
    /// Milliseconds since the Unix epoch.
    pub(crate) created_at_ms: u64,
    /// When it left the queue.
    pub(crate) started_at_ms: Option<u64>,
    /// When it ended.
    pub(crate) ended_at_ms: Option<u64>,
    /// Why it failed.
    pub(crate) code: Option<Code>,
}

impl Move {
    /// A run's, with the row as it is now.
    pub(crate) fn run(from: Option<RunState>, event: Option<RunEvent>, row: &RunRow) -> Self {
        Self::Run(Box::new(RunMove {
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
