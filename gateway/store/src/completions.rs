//! `acp_completions`: ends of spawned sessions' first runs, each for the session that spawned it, once.

use crate::db::{Db, Row, params};
use crate::error::StoreError;
use crate::{Store, Tx, bindings, runs, sessions};
use acp_core::binding::{BoundSession, is_of_agent_spawn};
use acp_core::route::{OutboundContext, Route, route_outbound};
use acp_core::rows::{CompletionState, RunRow, SessionRow};
use acp_core::session::SessionState;
use acp_shared::ids::{RunId, SessionKey};

/// Completion that a requester gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueCompletion {
    /// Requester of the completion; `None` if that session does not exist.
    pub requester: Option<SessionRow>,
    /// The spawned session.
    pub session: SessionRow,
    /// Its first run, which has ended.
    pub run: RunRow,
}

/// Inserts the completion of a spawned session's first run.
///
/// # Errors
/// SQLite errors.
pub fn insert(tx: &Tx<'_>, run_id: RunId, requester: &SessionKey) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO acp_completions (run_id, requester_session_key, state, reason, updated_at) \
        VALUES (?1, ?2, 'awaited', '', ?3)";
    tx.run(SQL, params![run_id, requester, tx.now_ms()]).map(drop)
}

/// Routes the completion of a run that ends in this transaction, whose bindings are not ended yet. A session that a person
/// bound to a conversation is shown there, and its requester gets nothing. The conversation that a spawn of the requester
/// itself made does not count: its agent waits for the end.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn route(tx: &Tx<'_>, run: &RunRow) -> Result<(), StoreError> {
    const SQL: &str = "UPDATE acp_completions SET state = ?2, reason = ?3, updated_at = ?4 WHERE run_id = ?1";
    if !run.state.is_ended() || state(tx, run.run_id)? != Some(CompletionState::Awaited) {
        return Ok(());
    }
    let mut bound = bindings::of_session(tx, &run.session_key)?;
    bound.retain(|binding| !is_of_agent_spawn(&binding.metadata));
    let question = OutboundContext {
        session_key: Some(&run.session_key),
        // The run is the session's, which may be closed in the same transaction.
        session: BoundSession::Known(SessionState::Running),
        bindings: &bound,
        requester: None,
    };
    let route = route_outbound(question, |_| true);
    let state = match route {
        Route::Unbound { .. } => CompletionState::Due,
        // Several conversations show it all, and a pending one as soon as it is there.
        Route::Bound { .. } | Route::Refused { .. } => CompletionState::Bound,
    };
    tx.run(SQL, params![run.run_id, state, route.reason(), tx.now_ms()]).map(drop)
}

/// Marks a due completion as a prompt of its requester.
///
/// # Errors
/// [`StoreError::UsedMeanwhile`] if it is not due; SQLite errors.
pub fn deliver(tx: &Tx<'_>, run_id: RunId) -> Result<(), StoreError> {
    const SQL: &str = "UPDATE acp_completions SET state = 'delivered', updated_at = ?2 \
        WHERE run_id = ?1 AND state = 'due'";
    if tx.run(SQL, params![run_id, tx.now_ms()])? == 1 { Ok(()) } else { Err(StoreError::UsedMeanwhile) }
}

/// Ends an undelivered completion. Returns false if there is none.
fn settle(tx: &Tx<'_>, run_id: RunId, state: CompletionState, reason: &str) -> Result<bool, StoreError> {
    const SQL: &str = "UPDATE acp_completions SET state = ?2, reason = ?3, updated_at = ?4 \
        WHERE run_id = ?1 AND state IN ('awaited','due')";
    Ok(tx.run(SQL, params![run_id, state, reason, tx.now_ms()])? == 1)
}

/// State of a run's completion; `None` for a run without one.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn state(db: &Db, run_id: RunId) -> Result<Option<CompletionState>, StoreError> {
    db.first("SELECT state FROM acp_completions WHERE run_id = ?1", params![run_id], |row| row.get("state"))
}

/// Due completions of requesters without an unfinished run, the oldest first, at most `rows_max`.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
fn due(db: &Db, rows_max: u64) -> Result<Vec<DueCompletion>, StoreError> {
    const SQL: &str = "SELECT c.run_id, c.requester_session_key FROM acp_completions AS c WHERE c.state = 'due' \
        AND NOT EXISTS (SELECT 1 FROM acp_runs AS r WHERE r.session_key = c.requester_session_key \
        AND r.state IN ('queued','running')) ORDER BY c.updated_at, c.run_id LIMIT ?1";
    let from_row = |row: &Row<'_>| Ok((row.get("run_id")?, row.get("requester_session_key")?));
    let rows: Vec<(RunId, SessionKey)> = db.all(SQL, params![rows_max], from_row)?;
    let mut found = Vec::with_capacity(rows.len());
    for (run_id, requester) in rows {
        let Some(run) = runs::get(db, run_id)? else { continue };
        let Some(session) = sessions::get(db, &run.session_key)? else { continue };
        found.push(DueCompletion { requester: sessions::get(db, &requester)?, session, run });
    }
    Ok(found)
}

impl Store {
    /// Due completions of requesters without an unfinished run, the oldest first, at most `rows_max`.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn due_completions(&self, rows_max: u64) -> Result<Vec<DueCompletion>, StoreError> {
        self.read("due_completions", move |db| due(db, rows_max)).await
    }

    /// Takes a completion for a requester that waits for the run in the turn `turn`: it is not delivered. Returns false if
    /// it was delivered before, or will be, because that turn has ended or is being cancelled: nobody would read it there.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn take_completion(&self, run_id: RunId, turn: RunId) -> Result<bool, StoreError> {
        const RUNS: &str = "SELECT 1 FROM acp_runs AS r JOIN acp_sessions AS s ON s.session_key = r.session_key \
            WHERE r.run_id = ?1 AND r.state = 'running' AND s.state = 'running'";
        self.write("take_completion", move |tx| {
            if tx.first(RUNS, params![turn], |_| Ok(()))?.is_some() {
                settle(tx, run_id, CompletionState::Taken, "")?;
            }
            Ok(match state(tx, run_id)? {
                Some(CompletionState::Awaited | CompletionState::Due | CompletionState::Delivered) => false,
                Some(CompletionState::Bound | CompletionState::Taken | CompletionState::Dropped) | None => {
                    true
                }
            })
        })
        .await
    }

    /// Gives up a completion whose requester is closed.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn drop_completion(&self, run_id: RunId, reason: &'static str) -> Result<bool, StoreError> {
        self.write("drop_completion", move |tx| settle(tx, run_id, CompletionState::Dropped, reason)).await
    }
}
