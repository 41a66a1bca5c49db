//! Opening of sessions on a connection: `session/new`, `load` and `resume`.

use super::AcpServer;
use super::calls::{Caller, Replied, limit_reached};
use crate::api::access::authorize_spawn;
use crate::api::cursor;
use acp_core::failure::Failure;
use acp_core::northbound::answers::{SessionFacts, opened_session};
use acp_core::northbound::message::{ReplyError, reply_frame};
use acp_core::northbound::params::{NewSession, OpenSession};
use acp_core::northbound::session_view::PendingQuestion;
use acp_core::northbound::voting::QuestionKind;
use acp_core::request::{CloseRequest, SpawnRequest};
use acp_core::rows::{PermissionRow, RunMode, SessionRow};
use acp_core::run::RunState;
use acp_core::session::{Ending, SessionState};
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, SessionKey};
use serde_json::json;
use std::time::Duration;

/// Maximum time to wait for an agent to open its session, in seconds.
const OPENING_MAX_S: u64 = 120;
/// Number of runs read to find the unfinished ones.
const RUNS_READ: u32 = 200;

/// Returns the result of a load whose last row was `last_seq`, JSON text, and the questions that are pending.
pub(super) async fn loaded(
    server: &AcpServer,
    session: &SessionKey,
    last_seq: u64,
) -> Result<(String, Vec<PendingQuestion>), Failure> {
    let row = server.service.session(session).await?;
    let (facts, pending) = facts(server, &row, last_seq).await?;
    Ok((opened_session(&row, &facts, false).to_string(), pending))
}

async fn facts(
    server: &AcpServer,
    row: &SessionRow,
    last_seq: u64,
) -> Result<(SessionFacts, Vec<PendingQuestion>), Failure> {
    let runs = server.service.runs(&row.session_key, RUNS_READ).await?;
    let pending = server.service.pending_permissions(&row.session_key).await?;
    let pending: Vec<PendingQuestion> = pending.iter().map(question).collect();
    let is_running =
        |run: &&acp_core::rows::RunRow| run.state == RunState::Running && run.mode == RunMode::Prompt;
    let facts = SessionFacts {
        last_seq,
        epoch: server.service.cursor_epoch(),
        active_run: runs.iter().find(is_running).map(|run| run.run_id),
        queued: runs.iter().filter(|run| run.state == RunState::Queued).count() as u64,
        pending_permissions: pending.iter().map(|question| question.permission_id.clone()).collect(),
    };
    Ok((facts, pending))
}

/// Returns the question of a pending permission request.
pub(super) fn question(row: &PermissionRow) -> PendingQuestion {
    PendingQuestion {
        permission_id: row.permission_id(),
        run_id: row.request.run_id,
        kind: match row.request.what.elicitation() {
            None => QuestionKind::Permission,
            Some(form) if form.page_id().is_some() => QuestionKind::Page,
            Some(_) => QuestionKind::Form,
        },
        params: row.request.params.clone(),
        deadline_at_ms: row.deadline_at_ms,
        voters: row.request.voters.clone(),
    }
}

impl Caller {
    /// `session/new`.
    pub(super) async fn new_session(&self, id: &str, call: NewSession) {
        match self.spawn(id, call).await {
            Ok(row) => {
                // All rows follow.
                let facts = facts(&self.server, &row, 0).await.map(|(facts, _)| facts).unwrap_or_default();
                let result = opened_session(&row, &facts, true).to_string();
                let mut state = self.connection.state();
                let pushed = state.push(None, reply_frame(id, &Ok(result)));
                state.attach(&row.session_key);
                drop(state);
                self.connection.after_push(pushed);
            }
            Err(error) => self.connection.push(None, reply_frame(id, &Err(error))),
        }
    }

    async fn spawn(&self, id: &str, call: NewSession) -> Result<SessionRow, ReplyError> {
        let key = self.key(call.idempotency_key, id);
        let request = SpawnRequest {
            agent: self.connection.agent().cloned(),
            cwd: Some(call.cwd),
            label: call.label,
            permission: call.permission,
            voting: call.voting,
            author: self.connection.principal().name.clone(),
            asked_by: self.connection.principal().id.clone(),
            mcp_servers: call.mcp_servers,
            additional_directories: call.additional_directories,
            ..SpawnRequest::default()
        };
        let service = &self.server.service;
        authorize_spawn(service.as_ref(), self.connection.principal(), &request).await?;
        let session = service.spawn(request, key).await?.session_key;
        let mut changes = service.watch(&session);
        let opened = async {
            loop {
                let row = service.session(&session).await?;
                if row.state != SessionState::Creating || changes.changed().await.is_err() {
                    return Ok::<_, Failure>(row);
                }
            }
        };
        let row = match tokio::time::timeout(Duration::from_secs(OPENING_MAX_S), opened).await {
            Ok(row) => row?,
            Err(_) => service.session(&session).await?,
        };
        let failure = match row.state {
            SessionState::Error => {
                row.last_error.clone().unwrap_or_else(|| Failure::of(Code::SessionInitFailed))
            }
            SessionState::Closed => {
                row.last_error.clone().unwrap_or_else(|| Failure::of(Code::SessionClosed))
            }
            SessionState::Creating => Failure::of(Code::Timeout),
            SessionState::Idle | SessionState::Running | SessionState::Cancelling => return Ok(row),
        };
        // The client has no id of this session, and will make another one.
        let close =
            CloseRequest { ending: Ending::Deleted, ..CloseRequest::new("its agent could not open it") };
        if let Err(error) = service.close(&session, close, IdempotencyKey::mint()).await {
            tracing::warn!(session_key = %session, failure = %error, "session that did not open stays");
        }
        Err(failure.into())
    }

    /// `session/load` and `session/resume`.
    pub(super) async fn open_session(&self, id: &str, call: OpenSession, replays: bool) -> Replied {
        let row = self.server.service.session(&call.session).await?;
        if row.ending == Some(Ending::Deleted) {
            return Err(ReplyError::no_session());
        }
        let last = row.last_session_seq;
        let is_foreign = call.epoch.is_some_and(|epoch| epoch != self.server.service.cursor_epoch());
        if is_foreign || call.after.is_some_and(|after| after > last) {
            let text = "the cursor belongs to another state of the journal; load the session without it";
            let mut error = ReplyError::invalid_params(text);
            error.data = Some(json!({ "code": "CURSOR_EPOCH", "message": text, "retryable": false }));
            return Err(error);
        }
        let from = if replays { 0 } else { last };
        let after = cursor::start(call.after.unwrap_or(from), row.pruned_seq)?;
        if call.after.is_some() {
            self.server.metrics.client_resumed("session");
        }
        let mut state = self.connection.state();
        if state.session(&call.session).is_some_and(|view| view.is_loading()) {
            return Err(ReplyError::invalid_params("the session is being loaded on this connection"));
        }
        if state.is_full() && !state.has_session(&call.session) {
            return Err(limit_reached("too many sessions are open on this connection; close some"));
        }
        state.load(&call.session, after, last, id);
        drop(state);
        self.connection.wake();
        // The stream answers behind the last row.
        Ok(None)
    }
}
