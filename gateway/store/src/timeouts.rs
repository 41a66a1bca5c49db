//! Input for the timeouts of sessions: their rows, runs and bindings.

use crate::db::{Db, params};
use crate::error::StoreError;
use crate::{Store, bindings, runs, sessions};
use acp_core::rows::SessionRow;
use acp_core::session::SessionState;
use acp_core::timeouts::{TimeoutInput, Timeouts};
use acp_shared::ids::SessionKey;

/// Session with a timeout, and the input for its deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiringSession {
    /// Session key.
    pub session_key: SessionKey,
    /// Data that the deadline depends on.
    pub subject: TimeoutInput,
}

/// Data that the timeouts of a session depend on; `None` if the session is closed.
fn expiry_subject(db: &Db, row: &SessionRow) -> Result<Option<TimeoutInput>, StoreError> {
    if row.state == SessionState::Closed {
        return Ok(None);
    }
    let rests = matches!(row.state, SessionState::Idle | SessionState::Error);
    let busy = runs::has_unfinished(db, &row.session_key)?;
    let mut bindings = bindings::of_session(db, &row.session_key)?;
    bindings.retain(|binding| binding.status.is_live());
    Ok(Some(TimeoutInput {
        busy: !rests || busy,
        agent_may_end: row.lease_id.is_some() && row.resumable,
        last_activity_at_ms: row.last_activity_at_ms,
        bindings,
    }))
}

/// Resting sessions with a timeout. Without configured timeouts, only those whose bindings have their own.
fn expiring_sessions(db: &Db, windows: Timeouts) -> Result<Vec<ExpiringSession>, StoreError> {
    let sql = format!(
        "SELECT {} FROM acp_sessions AS s WHERE state IN ('idle','error') AND (?1 OR EXISTS (SELECT 1 FROM \
         acp_bindings AS b WHERE b.session_key = s.session_key AND b.status IN ('active','parked') \
         AND (b.idle_ms > 0 OR b.max_age_ms > 0)))",
        sessions::COLUMNS
    );
    let rows = db.all(&sql, params![windows.session_ms > 0], sessions::from_row)?;
    let mut out = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(subject) = expiry_subject(db, &row)? {
            out.push(ExpiringSession { session_key: row.session_key, subject });
        }
    }
    Ok(out)
}

impl Store {
    /// Resting sessions with one of these timeouts, or with a binding that has its own.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn expiring_sessions(&self, windows: Timeouts) -> Result<Vec<ExpiringSession>, StoreError> {
        self.read("mortals", move |db| expiring_sessions(db, windows)).await
    }

    /// Data that the timeouts of one session depend on; `None` if the session is closed or missing.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn expiry_subject(&self, key: SessionKey) -> Result<Option<TimeoutInput>, StoreError> {
        let read = move |db: &Db| sessions::get(db, &key)?.map_or(Ok(None), |row| expiry_subject(db, &row));
        self.read("subject", read).await
    }
}
