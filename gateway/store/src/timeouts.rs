//! Input for the timeouts of sessions: their rows, runs and bindings.

use crate::db::{Db, Params, params};
use crate::error::StoreError;
use crate::{Store, bindings, runs, sessions};
use acp_core::rows::SessionRow;
use acp_core::session::SessionState;
use acp_core::timeouts::{TimeoutInput, Timeouts};
use acp_shared::ids::SessionKey;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Maximum number of due timeouts of one check; the next check finds the rest.
const DUE_MAX: usize = 1_000;

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

/// Condition for a session `s` to be at rest.
macro_rules! is_resting {
    () => {
        "s.state IN ('idle','error') AND NOT EXISTS (SELECT 1 FROM acp_runs AS r \
         WHERE r.session_key = s.session_key AND r.state IN ('queued','running'))"
    };
}

/// Bindings of resting sessions that have timeouts of their own, the earliest first.
pub(crate) const OF_BINDINGS: &str = concat!(
    "SELECT s.session_key, b.deadline <= ?1 AS is_due FROM acp_bindings AS b \
     CROSS JOIN acp_sessions AS s ON s.session_key = b.session_key WHERE b.status IN ('active','parked') \
     AND (b.idle_ms > 0 OR b.max_age_ms > 0) AND ",
    is_resting!(),
    " ORDER BY b.deadline"
);

/// Resting sessions, the least recently used first.
pub(crate) const OF_SESSIONS: &str = concat!(
    "SELECT s.session_key, s.last_activity_at <= CAST(?1 AS BIGINT) - CAST(?2 AS BIGINT) AS is_due FROM acp_sessions AS s \
     WHERE s.state <> 'closed' AND ",
    is_resting!(),
    " ORDER BY s.last_activity_at"
);

/// Keys of sessions in the order of their deadlines: those that are due, and the next one.
fn visit_due(
    db: &Db,
    sql: &str,
    with: Params<'_>,
    found: &mut BTreeSet<SessionKey>,
) -> Result<(), StoreError> {
    let mut rows = 0;
    db.visit(sql, with, |row| {
        found.insert(row.get("session_key")?);
        rows += 1;
        let goes_on = row.get("is_due")? && rows < DUE_MAX;
        Ok(if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })
}

fn expiring_sessions(db: &Db, windows: Timeouts, now_ms: u64) -> Result<Vec<ExpiringSession>, StoreError> {
    let within = |ms: u64| ms.min(i64::MAX.unsigned_abs());
    let mut keys = BTreeSet::new();
    visit_due(db, OF_BINDINGS, params![within(now_ms)], &mut keys)?;
    if windows.session_ms > 0 {
        let with = params![within(now_ms), within(windows.session_ms)];
        visit_due(db, OF_SESSIONS, with, &mut keys)?;
    }
    let mut out = Vec::with_capacity(keys.len());
    for session_key in keys {
        let Some(row) = sessions::get(db, &session_key)? else { continue };
        if let Some(subject) = expiry_subject(db, &row)? {
            out.push(ExpiringSession { session_key, subject });
        }
    }
    Ok(out)
}

impl Store {
    /// Resting sessions with a timeout that is due at `now_ms`, a bounded number of them, and those whose timeouts are
    /// next. The cost does not grow with the sessions whose timeouts are later.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn expiring_sessions(
        &self,
        windows: Timeouts,
        now_ms: u64,
    ) -> Result<Vec<ExpiringSession>, StoreError> {
        self.read("mortals", move |db| expiring_sessions(db, windows, now_ms)).await
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
