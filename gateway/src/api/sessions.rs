//! Handlers of all routes except event streams: each parses a request, calls the service, and responds.

use crate::api::Api;
use crate::api::extract::{ApiError, DefaultAuthor, IdempotencyKeyHeader, Json, JsonBody, SessionKeyPath};
use acp_core::api::{
    AgentView, AnswerBody, BoundView, CancelBody, CloseBody, Done, HealthView, NewBody, Opening, OptionBody,
    PermissionView, PromptBody, RunView, SessionView, SpawnBody, SpawnedView, StatusView, UnbindBody,
};
use acp_core::failure::Failure;
use acp_core::mcp;
use acp_core::request::{
    CancelResult, CloseRequest, PromptAccepted, PromptRequest, SessionStatus, SpawnRequest,
};
use acp_core::rows::{RunMode, SessionMode};
use acp_core::run::RunState;
use acp_core::session::{Ending, SessionState};
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::routing::{MethodRouter, post};
use serde::Deserialize;
use std::time::Duration;

/// Maximum number of sessions in a list.
const SESSIONS_MAX: u32 = 1_000;
/// Maximum time to wait for an agent to open its session, in seconds.
const OPENING_WAIT_MAX_S: u64 = 120;
/// Number of runs shown with a session.
const RUNS_SHOWN: u32 = 20;

/// `GET /v1/health`: liveness of the gateway, and the last known health of its backends.
pub(crate) async fn health(State(api): State<Api>) -> Json<HealthView> {
    Json(HealthView {
        ok: true,
        ready: api.service.is_ready(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// `GET /v1/status`.
pub(crate) async fn status(State(api): State<Api>) -> Result<Json<StatusView>, ApiError> {
    Ok(Json(api.service.status().await?))
}

/// `GET /v1/agents`.
pub(crate) async fn agents(State(api): State<Api>) -> Result<Json<Vec<AgentView>>, ApiError> {
    Ok(Json(api.service.agents().await?))
}

/// Query of `GET /v1/sessions`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    /// True to include closed sessions.
    #[serde(default)]
    all: bool,
    /// Maximum number of sessions.
    limit: Option<u32>,
}

/// `GET /v1/sessions`.
pub(crate) async fn list(
    State(api): State<Api>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<Vec<SessionView>>, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::usage(error.body_text()))?;
    let limit = query.limit.unwrap_or(SESSIONS_MAX).min(SESSIONS_MAX);
    let rows = api.service.sessions(query.all, limit).await?;
    let mut around = api.service.session_activity().await?;
    Ok(Json(rows.into_iter().map(|row| SessionView::from(row).within(&mut around)).collect()))
}

/// `POST /v1/sessions`.
pub(crate) async fn spawn(
    State(api): State<Api>,
    IdempotencyKeyHeader(once): IdempotencyKeyHeader,
    DefaultAuthor(caller): DefaultAuthor,
    JsonBody(body): JsonBody<SpawnBody>,
) -> Result<Json<SpawnedView>, ApiError> {
    let wait = body.wait_s.map(|seconds| Duration::from_secs(seconds.min(OPENING_WAIT_MAX_S)));
    let request = SpawnRequest {
        agent: body.agent,
        cwd: body.cwd,
        label: body.label,
        mode: body.mode.unwrap_or(SessionMode::Persistent),
        permission: body.permission,
        non_interactive: body.non_interactive_permissions,
        prompt: body.prompt,
        author: body.author.unwrap_or(caller),
        interactive: body.interactive,
        spawned_by: body.spawned_by,
        mcp_servers: mcp::servers_from_map(body.mcp_servers)?,
        additional_directories: body.additional_directories,
        ..SpawnRequest::default()
    };
    let spawned = api.service.spawn(request, once).await?;
    let (opening, error) = match wait {
        None => (None, None),
        Some(wait) => opening(&api, &spawned.session_key, wait).await?,
    };
    Ok(Json(SpawnedView { spawned, opening, error }))
}

/// Waits until the agent has opened the session.
async fn opening(
    api: &Api,
    key: &SessionKey,
    wait: Duration,
) -> Result<(Option<Opening>, Option<Failure>), ApiError> {
    let mut changes = api.service.watch(key);
    let opened = async {
        loop {
            let row = api.service.session(key).await?;
            if row.state != SessionState::Creating || changes.changed().await.is_err() {
                return Ok::<_, Failure>(row);
            }
        }
    };
    let Ok(row) = tokio::time::timeout(wait, opened).await else { return Ok((Some(Opening::Pending), None)) };
    let row = row?;
    Ok(match row.state {
        SessionState::Creating => (Some(Opening::Pending), None),
        SessionState::Error => (Some(Opening::Failed), row.last_error),
        // The agent describes itself when it opens a session.
        SessionState::Closed if row.agent_info.is_none() => {
            let closed = || Failure::of(Code::SessionClosed).origin("gateway");
            (Some(Opening::Failed), Some(row.last_error.unwrap_or_else(closed)))
        }
        SessionState::Idle | SessionState::Running | SessionState::Cancelling | SessionState::Closed => {
            (Some(Opening::Open), None)
        }
    })
}

/// `GET /v1/sessions/{key}`.
pub(crate) async fn show(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
) -> Result<Json<SessionView>, ApiError> {
    let view = SessionView::from(api.service.session(&key).await?);
    let mut view = view.within(&mut api.service.session_activity().await?);
    let runs = api.service.runs(&key, RUNS_SHOWN).await?;
    let mut place = 0;
    let placed = runs.into_iter().map(|row| {
        let mut view = RunView::from(row);
        if view.state == RunState::Queued {
            place += 1;
            view.position = Some(place);
        }
        view
    });
    view.runs = Some(placed.collect());
    view.expiry = api.service.expiry(&key).await?;
    let permissions = api.service.pending_permissions(&key).await?;
    view.permissions = Some(permissions.into_iter().map(PermissionView::from).collect());
    Ok(Json(view))
}

/// `POST /v1/sessions/{key}/prompt`.
pub(crate) async fn prompt(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
    IdempotencyKeyHeader(once): IdempotencyKeyHeader,
    DefaultAuthor(caller): DefaultAuthor,
    JsonBody(body): JsonBody<PromptBody>,
) -> Result<Json<PromptAccepted>, ApiError> {
    if body.text.is_empty() {
        return Err(ApiError::usage("the text is empty"));
    }
    let request = PromptRequest {
        text: body.text,
        mode: body.mode.unwrap_or(RunMode::Prompt),
        author: body.author.unwrap_or(caller),
        interactive: body.interactive,
        new_conversation: body.new_conversation,
        ..PromptRequest::default()
    };
    Ok(Json(api.service.prompt(&key, request, once).await?))
}

/// `POST /v1/sessions/{key}/cancel`.
pub(crate) async fn cancel(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
    IdempotencyKeyHeader(once): IdempotencyKeyHeader,
    JsonBody(body): JsonBody<CancelBody>,
) -> Result<Json<CancelResult>, ApiError> {
    Ok(Json(api.service.cancel(&key, body.run_id, once).await?))
}

/// `POST /v1/sessions/{key}/close`, `archive`, `delete` and `reset`: the close transaction with this ending.
pub(crate) fn ending(ending: Ending) -> MethodRouter<Api> {
    post(
        move |State(api): State<Api>,
              SessionKeyPath(key): SessionKeyPath,
              IdempotencyKeyHeader(once): IdempotencyKeyHeader,
              DefaultAuthor(caller): DefaultAuthor,
              JsonBody(body): JsonBody<CloseBody>| async move {
            let reason = body.reason.unwrap_or_else(|| format!("{} by {caller}", ending.as_str()));
            let request = CloseRequest { reason, ending, discard: body.discard };
            Ok::<_, ApiError>(Json(api.service.close(&key, request, once).await?))
        },
    )
}

/// `POST /v1/sessions/{key}/unbind`.
pub(crate) async fn unbind(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
    IdempotencyKeyHeader(once): IdempotencyKeyHeader,
    DefaultAuthor(caller): DefaultAuthor,
    JsonBody(body): JsonBody<UnbindBody>,
) -> Result<Json<Vec<BoundView>>, ApiError> {
    let reason = body.reason.unwrap_or_else(|| format!("unbound by {caller}"));
    let ended = api.service.unbind(&key, body.binding_id, reason, once).await?;
    Ok(Json(ended.into_iter().map(BoundView::from).collect()))
}

/// `POST /v1/sessions/{key}/new`.
pub(crate) async fn new(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
    IdempotencyKeyHeader(once): IdempotencyKeyHeader,
    JsonBody(NewBody {}): JsonBody<NewBody>,
) -> Result<Json<SessionStatus>, ApiError> {
    Ok(Json(api.service.new_conversation(&key, once).await?))
}

/// `POST /v1/sessions/{key}/options`.
pub(crate) async fn options(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
    IdempotencyKeyHeader(once): IdempotencyKeyHeader,
    JsonBody(body): JsonBody<OptionBody>,
) -> Result<Json<SessionStatus>, ApiError> {
    let setting = body.setting().ok_or_else(|| ApiError::usage("exactly one setting is required"))?;
    Ok(Json(api.service.set(&key, setting, once).await?))
}

/// `GET /v1/sessions/{key}/permissions`.
pub(crate) async fn permissions(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
) -> Result<Json<Vec<PermissionView>>, ApiError> {
    api.service.session(&key).await?;
    let rows = api.service.pending_permissions(&key).await?;
    Ok(Json(rows.into_iter().map(PermissionView::from).collect()))
}

/// `POST /v1/sessions/{key}/permissions/{id}`.
pub(crate) async fn answer(
    State(api): State<Api>,
    path: Result<Path<(String, String)>, PathRejection>,
    SessionKeyPath(key): SessionKeyPath,
    IdempotencyKeyHeader(once): IdempotencyKeyHeader,
    DefaultAuthor(caller): DefaultAuthor,
    JsonBody(mut body): JsonBody<AnswerBody>,
) -> Result<Json<Done>, ApiError> {
    let Path((_, permission_id)) = path.map_err(|error| ApiError::usage(error.body_text()))?;
    let answer = body.answer()?;
    let by = body.by.unwrap_or(caller);
    api.service.answer_question(&key, &permission_id, answer, &by, once).await?;
    Ok(Json(Done { ok: true }))
}
