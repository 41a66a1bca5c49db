//! Rows as agents see them.

use acp_core::rows::{RunRow, SessionRow};
use acp_core::run::RunState;
use acp_core::session::SessionState;
use acp_core::session_tools::ListedState;
use acp_shared::ids::SessionKey;
use serde_json::{Value, json};

/// True if a list with these states has closed sessions.
pub(super) fn includes_closed(states: Option<&[ListedState]>) -> bool {
    states.is_some_and(|states| states.contains(&ListedState::Closed))
}

/// True if a session in this state belongs to a list with these states.
pub(super) fn is_in(states: Option<&[ListedState]>, state: SessionState) -> bool {
    match states {
        None => state != SessionState::Closed,
        Some(states) => states.contains(&listed_state(state)),
    }
}

const fn listed_state(state: SessionState) -> ListedState {
    match state {
        SessionState::Creating | SessionState::Running | SessionState::Cancelling => ListedState::Running,
        SessionState::Idle => ListedState::Idle,
        SessionState::Error => ListedState::Error,
        SessionState::Closed => ListedState::Closed,
    }
}

const fn state_name(state: SessionState) -> &'static str {
    match listed_state(state) {
        ListedState::Idle => "idle",
        ListedState::Running => "running",
        ListedState::Error => "error",
        ListedState::Closed => "closed",
    }
}

/// Returns how a session is related to the requester's.
fn relation(row: &SessionRow, own: &SessionRow) -> &'static str {
    if row.session_key == own.session_key {
        return "self";
    }
    if row.spawned_by.as_ref() == Some(&own.session_key) {
        return "child";
    }
    if own.spawned_by.as_ref() == Some(&row.session_key) {
        return "parent";
    }
    if row.owner_session_key.as_ref() == Some(&own.session_key) { "descendant" } else { "other" }
}

/// Returns the row of a list.
pub(super) fn listed(row: &SessionRow, own: &SessionRow) -> Value {
    json!({
        "session": row.session_key,
        "agent": row.agent,
        "state": state_name(row.state),
        "relation": relation(row, own),
        "label": row.label,
        "cwd": row.cwd,
        "mode": row.mode,
        "created_at_ms": row.created_at_ms,
        "last_activity_at_ms": row.last_activity_at_ms,
    })
}

/// Returns the state of a session.
pub(super) fn status(row: &SessionRow, own: &SessionRow, runs: &[RunRow], questions: usize) -> Value {
    let running = runs.iter().find(|run| run.state == RunState::Running).map(|run| run.run_id);
    let queued = runs.iter().filter(|run| run.state == RunState::Queued).count();
    let mut status = listed(row, own);
    let more = json!({
        "permission": row.options.permission,
        "running": running,
        "queued": queued,
        "pending_permissions": questions,
        "last_error": row.last_error.as_ref().map(|failure| {
            json!({ "code": failure.code, "message": failure.message })
        }),
    });
    if let (Some(status), Value::Object(more)) = (status.as_object_mut(), more) {
        status.extend(more);
    }
    status
}

/// Returns the state of a run.
pub(super) fn run(session: &SessionKey, run: &RunRow) -> Value {
    let mut result = json!({ "session": session, "run_id": run.run_id, "state": run.state });
    if let (Some(failure), Some(result)) = (&run.error, result.as_object_mut()) {
        let error = json!({ "code": failure.code, "message": failure.message });
        result.insert("error".to_owned(), error);
    }
    result
}
