//! Logs and counts committed changes: each transition of a session or run is one log line with from, event
//! and to. Starts and ends of agent programs are logged too.
//!
//! The fixed fields (`session_key`, `run_id`, `backend`, `thread_id`, `lease_id`, `idempotency_key`) have the
//! same names everywhere, so that one search finds all lines of a session.

use crate::metrics::{Metrics, OK};
use acp_core::actor::LeaseEvent;
use acp_core::argv_redaction;
use acp_core::rows::{RunRow, SessionRow};
use acp_core::run::{RunEvent, RunState};
use acp_core::session::{SessionEvent, SessionState};
use acp_core::transition::{RunTransition, Transition};
use acp_shared::ids::{LeaseId, RunId};
use acp_shared::protocol::Spawn;
use std::collections::HashMap;

/// Logs a new session, and the first run if present, of the conversation `thread_id`.
pub(crate) fn spawned(session: &SessionRow, run: Option<&RunRow>, thread_id: Option<&str>) {
    tracing::info!(
        session_key = %session.session_key,
        backend = session.backend,
        agent = %session.agent,
        from = "",
        event = "spawned",
        to = session.state.as_str(),
        "session state changed"
    );
    if let Some(Transition::Run(run)) = run.map(|run| Transition::run(None, None, run)) {
        log_run(session, &run, thread_id);
    }
}

/// Logs and counts the transitions of a committed step. `threads` are the conversations in which runs were requested.
pub(crate) fn committed(
    metrics: &Metrics,
    session: &SessionRow,
    transitions: &[Transition],
    threads: &HashMap<RunId, Option<String>>,
) {
    for one in transitions {
        match one {
            Transition::Session { from, event, to, code } => {
                tracing::info!(
                    session_key = %session.session_key,
                    backend = session.backend,
                    lease_id = session.lease_id.map(tracing::field::display),
                    from = from.as_str(),
                    event = event.as_str(),
                    to = to.as_str(),
                    code = code.map(|code| code.as_str()),
                    "session state changed"
                );
                // Only a session without any earlier agent is being spawned.
                let code = code.map_or(OK, |code| code.as_str());
                if *from == SessionState::Creating
                    && matches!(event, SessionEvent::Opened | SessionEvent::Faulted)
                {
                    metrics.spawn(&session.backend, code);
                }
            }
            Transition::Run(run) => {
                log_run(session, run, threads.get(&run.run_id).and_then(Option::as_deref));
                count_run(metrics, &session.backend, run);
            }
            Transition::Refused { run_id, from, event } => tracing::error!(
                session_key = %session.session_key,
                run_id = run_id.map(tracing::field::display),
                backend = session.backend,
                from,
                event,
                "invalid state transition refused"
            ),
        }
    }
}

fn log_run(session: &SessionRow, run: &RunTransition, thread_id: Option<&str>) {
    tracing::info!(
        session_key = %session.session_key,
        run_id = %run.run_id,
        backend = session.backend,
        lease_id = session.lease_id.map(tracing::field::display),
        idempotency_key = run.idempotency_key.as_str(),
        thread_id,
        mode = ?run.mode,
        from = run.from.map_or("", RunState::as_str),
        event = run.event.map_or("accepted", RunEvent::as_str),
        to = run.to.as_str(),
        code = run.code.map(|code| code.as_str()),
        "run state changed"
    );
}

fn count_run(metrics: &Metrics, backend: &str, run: &RunTransition) {
    if run.to == RunState::Running
        && let Some(started) = run.started_at_ms
    {
        metrics.run_started(backend, started.saturating_sub(run.created_at_ms));
    }
    if run.to.is_ended() {
        let turn = run.started_at_ms.zip(run.ended_at_ms);
        let turn = turn.map(|(from, to)| to.saturating_sub(from));
        let code = run.code.map_or(OK, |code| code.as_str());
        metrics.run_ended(backend, run.to.as_str(), code, turn);
    }
}

/// Logs the start of a program. Possible secrets in its arguments are redacted, its environment is logged by
/// name.
pub(crate) fn starting(session: &SessionRow, spawn: &Spawn) {
    let secrets: Vec<&str> = spawn.env.iter().map(|(_, value)| value.as_str()).collect();
    tracing::info!(
        session_key = %session.session_key,
        backend = session.backend,
        lease_id = %spawn.lease_id,
        kind = ?spawn.kind,
        argv = ?argv_redaction::redact_argv(&spawn.argv, &secrets),
        env = ?acp_shared::redact::EnvNames(&spawn.env),
        "agent process starting"
    );
}

/// Logs the end of a program, with its status and the amount of output.
pub(crate) fn exited(session: &SessionRow, lease_id: LeaseId, news: &LeaseEvent) {
    let LeaseEvent::Exited { status, end_offset, stdin_written } = news else { return };
    tracing::info!(
        session_key = %session.session_key,
        backend = session.backend,
        lease_id = %lease_id,
        status = %status,
        stdout_bytes = end_offset,
        stdin_messages = stdin_written,
        "agent process ended"
    );
}
