//! Execution of a client's calls: each is parsed and authorized, calls one method of the service, and is answered.

use super::AcpServer;
use super::connection::{Connection, Incoming};
use crate::api::access::{require, require_all_agents, visible_session};
use crate::api::export::read_diff;
use crate::api::extract::LARGE_BYTES;
use crate::api::files;
use crate::api::sessions::visible_permissions;
use acp_core::api::{PageCursor, PermissionView};
use acp_core::event::EventKind;
use acp_core::failure::Failure;
use acp_core::jsonrpc::RpcMessage;
use acp_core::jsonrpc::put;
use acp_core::northbound::message::{self, ReplyError, error_frame, reply_frame, session_of, typed_id};
use acp_core::northbound::params::{ClientCall, ListSessions, Prompt, parse_call};
use acp_core::northbound::projection::prompt_answer;
use acp_core::request::{CloseRequest, PromptAccepted, PromptRequest};
use acp_core::rows::{PermissionRow, RunMode, SessionQuery, SessionRow};
use acp_core::run::RunState;
use acp_core::session::Ending;
use acp_core::time_format::format_utc;
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, SessionKey};
use acp_store::events::{self, JournalRows};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// Maximum number of sessions in a page of a list.
const PAGE_MAX: usize = 100;
/// Number of sessions read at once for a page.
const SESSIONS_READ: u64 = 500;
/// Number of runs read to find the running one.
const RUNS_READ: u32 = 200;
/// Rows read at once to find the end of a run.
const ROWS_READ: u32 = 512;
/// Bytes read at once to find the end of a run, and of one page of history.
const ROWS_BYTES: usize = 1024 * 1024;

/// Result of a call; `None` if the answer comes later.
pub(super) type Replied = Result<Option<Value>, ReplyError>;

/// A connection that makes a call.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) server: Arc<AcpServer>,
    pub(super) connection: Arc<Connection>,
    /// True if the kernel reports a peer on this machine for this message.
    pub(super) is_local: bool,
}

/// Executes one message.
pub(super) async fn handle(server: &Arc<AcpServer>, connection: &Arc<Connection>, incoming: Incoming) {
    let (server, connection) = (Arc::clone(server), Arc::clone(connection));
    let caller = Caller { server, connection, is_local: incoming.is_local };
    match message::parse(&incoming.body) {
        Err(error) => caller.connection.push(None, error_frame("null", &error)),
        Ok(RpcMessage::Response { id, outcome }) => caller.on_response(id, outcome).await,
        Ok(RpcMessage::Notification { method, params }) => {
            let header = incoming.session_header.as_deref();
            let done = match caller.admit(&method, params, header) {
                Ok(call @ (ClientCall::Cancel(_) | ClientCall::CancelRequest(_))) => {
                    caller.execute("null", call).await.map(drop)
                }
                Ok(_) => {
                    Err(ReplyError::new(message::INVALID_REQUEST, "this method is a request: it needs an id"))
                }
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                tracing::warn!(method = %method, code = error.code, error = error.message, "acp notification failed");
            }
        }
        Ok(RpcMessage::Request { id, method, params }) => {
            match caller.admit(&method, params, incoming.session_header.as_deref()) {
                Ok(call) => caller.request(id, call).await,
                Err(error) => {
                    let session = session_of(params).and_then(|text| SessionKey::parse(&text).ok());
                    caller.connection.push(session.as_ref(), error_frame(id, &error));
                }
            }
        }
    }
}

/// True for a call that may wait for an agent or reads much: it does not hold up the messages behind it.
const fn is_slow(call: &ClientCall) -> bool {
    !matches!(
        call,
        ClientCall::Prompt(_)
            | ClientCall::Steer(_)
            | ClientCall::Cancel(_)
            | ClientCall::CancelRequest(_)
            | ClientCall::Load(_)
            | ClientCall::Resume(_)
            | ClientCall::Delete(_)
    )
}

impl Caller {
    /// Parses a call and checks that the client may make it.
    fn admit(
        &self,
        method: &str,
        params: Option<&str>,
        header: Option<&str>,
    ) -> Result<ClientCall, ReplyError> {
        if method == "initialize" {
            return Err(ReplyError::new(message::INVALID_REQUEST, "the connection is initialized already"));
        }
        if let (Some(header), Some(session)) = (header, session_of(params))
            && header != session
        {
            return Err(ReplyError::invalid_params(
                "Acp-Session-Id and params.sessionId name different sessions",
            ));
        }
        let call = parse_call(method, params)?;
        require(self.connection.principal(), call.scope(), method)?;
        Ok(call)
    }

    async fn request(&self, id: &str, call: ClientCall) {
        if !is_slow(&call) {
            self.reply(id, call).await;
            return;
        }
        let place = tokio::select! {
            biased;
            () = self.connection.ended().cancelled() => return,
            place = Arc::clone(&self.connection.calls).acquire_owned() => place,
        };
        let Ok(place) = place else { return };
        let (caller, id) = (self.clone(), id.to_owned());
        tokio::spawn(async move {
            caller.reply(&id, call).await;
            drop(place);
        });
    }

    async fn reply(&self, id: &str, call: ClientCall) {
        let session = call.session().cloned();
        let outcome = match self.execute(id, call).await {
            Ok(None) => return,
            Ok(Some(result)) => Ok(result.to_string()),
            Err(error) => Err(error),
        };
        let frame = reply_frame(id, &outcome);
        let is_large = frame.len() > LARGE_BYTES;
        self.connection.push(session.as_ref(), frame);
        if is_large {
            self.server.bound_unread();
        }
    }

    /// Executes a call with this raw id.
    async fn execute(&self, id: &str, call: ClientCall) -> Replied {
        let empty = Ok(Some(json!({})));
        if let Err(failure) = self.check_visible(&call).await {
            // What does not exist is deleted already.
            let is_deleted = failure.code == Code::NoSession && matches!(call, ClientCall::Delete(_));
            return if is_deleted { empty } else { Err(failure.into()) };
        }
        match call {
            ClientCall::Login | ClientCall::Ping => empty,
            ClientCall::New(call) => {
                self.new_session(id, *call).await;
                Ok(None)
            }
            ClientCall::Load(call) => self.open_session(id, call, true).await,
            ClientCall::Resume(call) => self.open_session(id, call, false).await,
            ClientCall::List(call) => self.list(&call).await.map(Some),
            ClientCall::Prompt(call) => self.prompt(id, *call, RunMode::Prompt).await,
            ClientCall::Steer(call) => self.prompt(id, *call, RunMode::Steer).await,
            ClientCall::Cancel(session) => self.cancel(&session).await,
            ClientCall::CancelRequest(request) => self.cancel_request(&request).await,
            ClientCall::Close(session) => self.close(&session).await,
            ClientCall::Delete(session) => self.delete(&session).await,
            ClientCall::SetMode { session, mode } => self.set_mode(&session, mode).await,
            ClientCall::SetOption { session, id, value } => self.set_option(&session, id, value).await,
            ClientCall::Show(session) => self.show(&session).await,
            ClientCall::History { session, after, limit } => self.history(&session, after, limit).await,
            ClientCall::Update { session, label } => {
                let key = IdempotencyKey::mint();
                Ok(Some(json!(self.server.service.set_label(&session, label, key).await?)))
            }
            ClientCall::Diff { session, run } => {
                Ok(Some(json!(read_diff(self.server.service.as_ref(), &session, run).await?)))
            }
            ClientCall::Stat { session, path } => {
                let found = files::inspect(self.server.service.as_ref(), &session, path).await;
                Ok(Some(json!(found.map_err(Failure::from)?)))
            }
            ClientCall::ReadFile { session, path, line, limit } => {
                let text = files::read(self.server.service.as_ref(), &session, path, line, limit).await;
                Ok(Some(json!({ "content": text.map_err(Failure::from)? })))
            }
            ClientCall::Permissions(session) => self.permissions(session).await,
            ClientCall::AnswerPermission { session, permission_id, answer } => {
                let (by, key) = (self.voter(), IdempotencyKey::mint());
                self.server.service.answer_question(&session, &permission_id, answer, by, key).await?;
                empty
            }
            ClientCall::Agents => {
                let mut agents = self.server.service.agents().await?;
                agents.retain(|agent| self.connection.principal().may_use_agent(agent.name.as_str()));
                Ok(Some(json!({ "agents": agents })))
            }
            ClientCall::HostStatus => {
                require_all_agents(self.connection.principal())?;
                Ok(Some(json!({ "status": self.server.service.status().await? })))
            }
        }
    }

    /// Checks that the client may see the session that a call names.
    async fn check_visible(&self, call: &ClientCall) -> Result<(), Failure> {
        let principal = self.connection.principal();
        match call.named_session() {
            Some(session) if principal.is_limited() => {
                visible_session(self.server.service.as_ref(), principal, session, call.action())
                    .await
                    .map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Returns the idempotency key of a request: the client's own, or one of its id on this connection.
    pub(super) fn key(&self, given: Option<IdempotencyKey>, id: &str) -> IdempotencyKey {
        if let Some(given) = given {
            return self.connection.principal().own_key(given);
        }
        let (connection, typed) = (self.connection.id(), typed_id(id));
        IdempotencyKey::parse(&format!("acp:{connection}:{typed}")).unwrap_or_else(|_| {
            // An id with other characters: its hash is always a valid key.
            let text = format!("acp:{connection}:h:{:x}", Sha256::digest(typed.as_bytes()));
            IdempotencyKey::parse(&text).unwrap_or_else(|_| IdempotencyKey::mint())
        })
    }

    pub(super) fn require(&self, session: &SessionKey) -> Result<(), ReplyError> {
        if self.connection.state().has_session(session) { Ok(()) } else { Err(ReplyError::no_session()) }
    }

    async fn prompt(&self, id: &str, call: Prompt, mode: RunMode) -> Replied {
        let Prompt { session, text, blocks, idempotency_key } = call;
        self.require(&session)?;
        let key = self.key(idempotency_key, id);
        let principal = self.connection.principal();
        let request = PromptRequest {
            text,
            files: blocks,
            mode,
            author: principal.name.clone(),
            asked_by: principal.id.clone(),
            interactive: self.can_be_asked(&session).await?,
            ..PromptRequest::default()
        };
        if let Some(view) = self.connection.state().session(&session) {
            if view.is_full() {
                return Err(limit_reached("too many prompts of this connection wait for their answers"));
            }
            view.begin_prompt();
        }
        let accepted = self.submit_prompt(&session, request, key).await;
        let of_turn = accepted.as_ref().ok().filter(|_| mode == RunMode::Prompt);
        let of_turn = of_turn.map(|accepted| (accepted.run_id, id));
        let cursor = self.connection.state().session(&session).map(|view| view.end_prompt(of_turn));
        self.connection.wake();
        let accepted = accepted?;
        if mode == RunMode::Steer {
            let (run_id, steered) = (accepted.run_id, accepted.steered);
            return Ok(Some(
                json!({ "runId": run_id, "steered": steered, "queuedBehind": accepted.queued_behind }),
            ));
        }
        let cursor = cursor.ok_or_else(ReplyError::closed_before_answer)?;
        self.repeat_answer(id, &session, &accepted, cursor).await?;
        // The stream answers behind the row that ends the run.
        Ok(None)
    }

    /// Submits a prompt. One that is repeated is the same as before, though others may be there now who can be asked.
    async fn submit_prompt(
        &self,
        session: &SessionKey,
        request: PromptRequest,
        key: IdempotencyKey,
    ) -> Result<PromptAccepted, Failure> {
        let service = &self.server.service;
        match service.prompt(session, request.clone(), key.clone()).await {
            Err(failure) if failure.code == Code::IdempotencyConflict => {
                let before = PromptRequest { interactive: !request.interactive, ..request };
                service.prompt(session, before, key).await
            }
            accepted => accepted,
        }
    }

    /// Answers a prompt that was sent again, if the stream had passed the end of its run at row `cursor`.
    async fn repeat_answer(
        &self,
        id: &str,
        session: &SessionKey,
        accepted: &PromptAccepted,
        cursor: u64,
    ) -> Result<(), ReplyError> {
        let (run, mut after) = (accepted.run_id, accepted.after_seq);
        while after < cursor {
            let position = events::position(after);
            let rows = self.server.service.events_after(session, position, ROWS_READ, ROWS_BYTES).await?.rows;
            let Some(last) = rows.last() else { return Ok(()) };
            after = last.session_seq;
            let is_end = |kind| matches!(kind, EventKind::Done | EventKind::Error);
            let end = rows.iter().find(|row| row.run_id == Some(run) && is_end(row.kind));
            if let Some(row) = end.filter(|row| row.session_seq <= cursor) {
                if let Some(view) = self.connection.state().session(session) {
                    view.end_run(run);
                }
                self.connection.push(Some(session), prompt_answer(id, row));
                return Ok(());
            }
        }
        Ok(())
    }

    /// `session/cancel`: the running turn, and the queued prompts of this connection.
    async fn cancel(&self, session: &SessionKey) -> Replied {
        self.require(session)?;
        let runs = self.server.service.runs(session, RUNS_READ).await?;
        let running = runs.iter().find(|run| run.state == RunState::Running && run.mode == RunMode::Prompt);
        let running = running.map(|run| run.run_id);
        let own = self.connection.state().session(session).map(|view| view.own_runs()).unwrap_or_default();
        // Queued ones first: none of them starts when the running one ends.
        let queued = own.into_iter().filter(|run| Some(*run) != running);
        for run in queued.chain(running) {
            self.server.service.cancel(session, Some(run), IdempotencyKey::mint()).await?;
        }
        Ok(Some(json!({})))
    }

    /// `$/cancel_request`: the run of this prompt.
    async fn cancel_request(&self, request: &str) -> Replied {
        let found = self.connection.state().run_of(request);
        if let Some((session, run)) = found {
            self.server.service.cancel(&session, Some(run), IdempotencyKey::mint()).await?;
        }
        Ok(Some(json!({})))
    }

    /// `session/delete`, which may be repeated.
    async fn delete(&self, session: &SessionKey) -> Replied {
        let reason = format!("deleted by {}", self.connection.principal().name);
        let request = CloseRequest { ending: Ending::Deleted, ..CloseRequest::new(reason) };
        match self.server.service.close(session, request, IdempotencyKey::mint()).await {
            Err(failure) if failure.code != Code::NoSession => Err(failure.into()),
            Ok(_) | Err(_) => Ok(Some(json!({}))),
        }
    }

    async fn list(&self, call: &ListSessions) -> Result<Value, ReplyError> {
        let invalid = || ReplyError::invalid_params("the cursor is not one of this gateway");
        let text = call.cursor.as_deref().unwrap_or_default();
        let mut before = PageCursor::decode(text).ok_or_else(invalid)?.0;
        let mut found: Vec<(u64, SessionRow)> = Vec::new();
        // One more row tells if there is another page.
        while found.len() <= PAGE_MAX {
            let asked = SessionQuery {
                seen_by: Some(self.connection.principal().clone()),
                before: Some(before),
                limit: SESSIONS_READ,
                ..SessionQuery::default()
            };
            let rows = self.server.service.find_sessions(asked).await?;
            let Some((last, _)) = rows.last() else { break };
            before = *last;
            found.extend(
                rows.into_iter().filter(|(_, row)| call.cwd.as_ref().is_none_or(|cwd| row.cwd == *cwd)),
            );
        }
        let sessions: Vec<Value> = found.iter().take(PAGE_MAX).map(|(_, row)| listed(row)).collect();
        let mut result = json!({ "sessions": sessions });
        let next = found.get(PAGE_MAX - 1).filter(|_| found.len() > PAGE_MAX);
        if let Some((ord, _)) = next {
            put(&mut result, "nextCursor", json!(PageCursor(*ord).encode()));
        }
        Ok(result)
    }

    async fn history(&self, session: &SessionKey, after: u64, limit: u32) -> Replied {
        let service = &self.server.service;
        service.session(session).await?;
        let JournalRows { pruned_seq, rows } =
            service.events_after(session, events::position(after), limit, ROWS_BYTES).await?;
        let next = rows.last().map_or(after, |row| row.session_seq);
        let events: Vec<Value> = rows
            .iter()
            .filter(|row| row.kind != EventKind::Replay)
            .filter_map(|row| serde_json::from_str(&acp_core::event_json::event_line(row)).ok())
            .collect();
        let mut result = json!({ "events": events, "nextAfter": next, "more": !rows.is_empty() });
        if pruned_seq > 0 {
            put(&mut result, "prunedSeq", json!(pruned_seq));
        }
        Ok(Some(result))
    }

    async fn permissions(&self, session: Option<SessionKey>) -> Replied {
        let service = &self.server.service;
        let rows = match session {
            Some(session) => {
                service.session(&session).await?;
                service.pending_permissions(&session).await?
            }
            None => visible_permissions(service, self.connection.principal().clone()).await?,
        };
        let view = |row: PermissionRow| {
            let session = row.session_key.clone();
            let mut view = json!(PermissionView::from(row));
            put(&mut view, "sessionId", json!(session));
            view
        };
        Ok(Some(json!({ "permissions": rows.into_iter().map(view).collect::<Vec<_>>() })))
    }
}

/// Error for a client that holds as much as it may.
pub(super) fn limit_reached(text: &str) -> ReplyError {
    Failure::new(Code::LimitReached, text).origin("gateway").retryable().into()
}

/// Returns a session as an element of a list.
fn listed(row: &SessionRow) -> Value {
    let mut out = json!({
        "sessionId": row.session_key,
        "cwd": row.cwd,
        "updatedAt": format_utc(row.last_activity_at_ms),
        "_meta": { "acphost": { "agent": row.agent, "state": row.state, "lastSeq": row.last_session_seq } },
    });
    if let Some(label) = &row.label {
        put(&mut out, "title", json!(label));
    }
    out
}
