//! Handlers of all routes except event streams: each parses a request, calls the service, and responds.

use crate::api::Api;
use crate::api::access::{VisibleSessions, authorize_run, authorize_setting, authorize_spawn};
use crate::api::acpx;
use crate::api::extract::{ApiError, Caller, IdempotencyKeyHeader, Json, JsonBody, SessionKeyPath, author};
use crate::api::openapi::OPENAPI_PATH;
use crate::session::service::Service;
use acp_core::acpx_contract::command_agent;
use acp_core::api::{
    AgentView, AnswerBody, BoundView, CancelBody, CapabilitiesView, CloseBody, Done, ErrorBody, HealthView,
    LimitsView, NEXT_CURSOR_HEADER, NewBody, Opening, OptionBody, OwnerView, PageCursor,
    PendingPermissionView, PermissionView, PromptBody, ReleaseBody, RunView, SessionPatch, SessionView,
    SpawnBody, SpawnedView, StatusView, UnbindBody,
};
use acp_core::event::EventKind;
use acp_core::event_json::{EVENT_VERSION, wire_type};
use acp_core::failure::Failure;
use acp_core::files;
use acp_core::mcp;
use acp_core::permission::Voter;
use acp_core::principal::{Principal, Scope};
use acp_core::request::{
    CancelResult, CloseRequest, PromptAccepted, PromptRequest, SessionStatus, SpawnRequest,
};
use acp_core::rows::{PermissionRow, RunMode, RunPermissions, SessionMode, SessionQuery, SessionRow};
use acp_core::run::RunState;
use acp_core::session::{Ending, SessionState};
use acp_core::visibility::Action;
use acp_shared::codes::Code;
use acp_shared::files::READ_BYTES_MAX;
use acp_shared::ids::{AgentName, SessionKey};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderName, StatusCode};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use utoipa::IntoParams;

/// Maximum number of sessions in a list.
const SESSIONS_MAX: u32 = 1_000;
/// Maximum number of permission requests in a list.
const PERMISSIONS_MAX: u64 = 1_000;
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
pub(crate) async fn agents(
    State(api): State<Api>,
    Caller(caller): Caller,
) -> Result<Json<Vec<AgentView>>, ApiError> {
    let mut agents = api.service.agents().await?;
    agents.retain(|agent| caller.may_use_agent(agent.name.as_str()));
    Ok(Json(agents))
}

/// `GET /health`: liveness of the gateway, for probes without a token.
pub(crate) async fn liveness() -> Json<Done> {
    Json(Done { ok: true })
}

/// `GET /v1/owner`, for probes without a token.
pub(crate) async fn owner(State(api): State<Api>) -> Response {
    let view = api.service.owner();
    if view.serves {
        return Json(view).into_response();
    }
    let text = "The gateway lost its database connection and is shutting down.";
    not_the_owner(view, Failure::new(Code::StoreUnavailable, text).detail("STORE_LOST").origin("gateway"))
}

/// Response of a gateway on standby.
pub(crate) fn not_the_owner(view: OwnerView, failure: Failure) -> Response {
    let body = NotTheOwner { error: ErrorBody::from(failure), view };
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

/// Error with the members of an [`OwnerView`].
#[derive(Serialize)]
struct NotTheOwner {
    #[serde(flatten)]
    error: ErrorBody,
    #[serde(flatten)]
    view: OwnerView,
}

/// `GET /v1/capabilities`.
pub(crate) async fn capabilities(State(api): State<Api>) -> Json<CapabilitiesView> {
    let mut event_types: Vec<String> = EventKind::ALL.map(|kind| wire_type(kind).to_owned()).to_vec();
    event_types.dedup();
    Json(CapabilitiesView {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        event_version: EVENT_VERSION,
        openapi: OPENAPI_PATH.to_owned(),
        event_types,
        limits: LimitsView {
            body_bytes_max: api.limits.body_bytes_max as u64,
            connections_max: api.limits.connections_max as u64,
            sessions_max: u64::from(SESSIONS_MAX),
            file_bytes_max: READ_BYTES_MAX,
        },
    })
}

/// Query of `GET /v1/sessions`.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// True to include closed sessions.
    #[serde(default)]
    all: bool,
    /// Maximum number of sessions.
    limit: Option<u32>,
    /// Returns only sessions in this state.
    #[param(inline)]
    state: Option<SessionState>,
    /// Returns only sessions of this agent.
    #[param(value_type = Option<String>)]
    agent: Option<AgentName>,
    /// Returns only sessions with this text in label, key or working directory, ignoring the case of ASCII letters.
    q: Option<String>,
    /// Returns only sessions without activity after this time, in milliseconds since the Unix epoch.
    idle_since_ms: Option<u64>,
    /// Pages in the order of creation, the newest first: empty for the first page, then the header `Next-Cursor` of the page
    /// before. Without it, sessions are in the order of their last activity.
    cursor: Option<String>,
}

/// `GET /v1/sessions`.
pub(crate) async fn list(
    State(api): State<Api>,
    Caller(caller): Caller,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::usage(error.body_text()))?;
    let limit = u64::from(query.limit.unwrap_or(SESSIONS_MAX).min(SESSIONS_MAX));
    let before = query.cursor.as_deref().map(|text| {
        let invalid =
            || ApiError::usage("invalid cursor: take it from the header Next-Cursor, or leave it empty");
        PageCursor::decode(text).ok_or_else(invalid)
    });
    let before = before.transpose()?.map(|cursor| cursor.0);
    let ListQuery { all, state, agent, q, idle_since_ms, .. } = query;
    let seen_by = Some(caller);
    // One more row tells if there is another page.
    let asked = SessionQuery {
        closed_too: all,
        state,
        agent,
        seen_by,
        text: q,
        idle_since_ms,
        before,
        limit: limit + 1,
    };
    let mut rows = api.service.find_sessions(asked).await?;
    let more = rows.len() as u64 > limit;
    rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let next = rows.last().filter(|_| more && before.is_some()).map(|(ord, _)| PageCursor(*ord).encode());
    let keys = rows.iter().map(|(_, row)| row.session_key.clone()).collect();
    let mut around = api.service.session_activity(keys).await?;
    let views: Vec<SessionView> =
        rows.into_iter().map(|(_, row)| SessionView::from(row).within(&mut around)).collect();
    let next = next.map(|cursor| [(HeaderName::from_static(NEXT_CURSOR_HEADER), cursor)]);
    Ok((next.map(AppendHeaders), Json(views)).into_response())
}

/// `GET /v1/permissions`.
pub(crate) async fn all_permissions(
    State(api): State<Api>,
    Caller(caller): Caller,
) -> Result<Json<Vec<PendingPermissionView>>, ApiError> {
    let rows = visible_permissions(&api.service, caller).await?;
    let view = |row: PermissionRow| {
        let session_key = row.session_key.clone();
        PendingPermissionView { session_key, permission: PermissionView::from(row) }
    };
    Ok(Json(rows.into_iter().map(view).collect()))
}

/// Returns the pending permission requests of all sessions that a principal may see, oldest first.
///
/// # Errors
/// Those of the service.
pub(crate) async fn visible_permissions(
    service: &Arc<dyn Service>,
    caller: Principal,
) -> Result<Vec<PermissionRow>, Failure> {
    // The rows of other agents do not count for the limit.
    let read_max = if caller.is_limited() { u64::from(u32::MAX) } else { PERMISSIONS_MAX };
    let rows = service.all_pending_permissions(read_max).await?;
    let mut visible = VisibleSessions::new(service, caller, Action::History);
    let mut found = Vec::new();
    for row in rows {
        if found.len() as u64 >= PERMISSIONS_MAX {
            break;
        }
        if visible.sees(&row.session_key).await? {
            found.push(row);
        }
    }
    Ok(found)
}

/// `PATCH /v1/sessions/{key}`.
pub(crate) async fn patch(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
    IdempotencyKeyHeader(once): IdempotencyKeyHeader,
    JsonBody(body): JsonBody<SessionPatch>,
) -> Result<Json<SessionStatus>, ApiError> {
    let label = body.label.ok_or_else(|| ApiError::usage("label is required; null removes it"))?;
    Ok(Json(api.service.set_label(&key, label, once).await?))
}

/// `POST /v1/sessions/{key}/release`.
pub(crate) async fn release(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
    IdempotencyKeyHeader(once): IdempotencyKeyHeader,
    Caller(caller): Caller,
    JsonBody(ReleaseBody {}): JsonBody<ReleaseBody>,
) -> Result<Json<SessionStatus>, ApiError> {
    Ok(Json(api.service.release(&key, caller.name, once).await?))
}

/// `POST /v1/sessions`.
pub(crate) async fn spawn(
    State(api): State<Api>,
    IdempotencyKeyHeader(once): IdempotencyKeyHeader,
    Caller(caller): Caller,
    JsonBody(body): JsonBody<SpawnBody>,
) -> Result<Json<SpawnedView>, ApiError> {
    let wait = body.wait_s.map(|seconds| Duration::from_secs(seconds.min(OPENING_WAIT_MAX_S)));
    let agent = match (body.agent, body.command.as_slice()) {
        (agent, []) => agent,
        (None, command) => Some(command_agent(command).map_err(|error| ApiError::usage(error.to_string()))?),
        (Some(_), _) => return Err(ApiError::usage("agent and command exclude each other")),
    };
    let request = SpawnRequest {
        agent,
        cwd: body.cwd,
        label: body.label,
        mode: body.mode.unwrap_or(SessionMode::Persistent),
        permission: body.permission,
        non_interactive: body.non_interactive_permissions,
        prompt: body.prompt,
        model: body.model,
        voting: body.voting,
        author: author(&caller, body.author)?,
        asked_by: caller.id.clone(),
        interactive: body.interactive,
        spawned_by: body.spawned_by,
        mcp_servers: mcp::servers_from_map(body.mcp_servers)?,
        additional_directories: body.additional_directories,
        auth_method: body.auth_method,
        command: body.command,
        backend: body.backend,
        host: body.host,
        resume: body.resume,
        listing: body.listing,
        acpx: body.acpx,
        ..SpawnRequest::default()
    };
    authorize_spawn(api.service.as_ref(), &caller, &request).await?;
    let is_named = request.acpx.is_some();
    let spawned = api.service.spawn(request, once).await?;
    let seen = match wait {
        None => None,
        Some(wait) if is_named => Some(acpx::opening(&api, &spawned, wait).await?),
        Some(wait) => Some(opening(&api, &spawned.session_key, wait).await?),
    };
    let (opening, error, row) = match seen {
        None => (None, None, None),
        Some(StartResult { opening, error, row }) => (Some(opening), error, row),
    };
    // One that existed may be hidden from the caller.
    let row = row.filter(|_| is_named && !spawned.existing);
    let session = row.map(|row| Box::new(SessionView::from(row)));
    Ok(Json(SpawnedView { spawned, opening, error, session }))
}

/// State of an agent's start at the end of a wait.
pub(super) struct StartResult {
    /// The state.
    pub(super) opening: Opening,
    /// Reason of a failure.
    pub(super) error: Option<Failure>,
    /// The session; `None` if the time was up.
    pub(super) row: Option<SessionRow>,
}

/// Waits until the agent has opened the session.
pub(super) async fn opening(api: &Api, key: &SessionKey, wait: Duration) -> Result<StartResult, ApiError> {
    let mut changes = api.service.watch(key);
    let opened = async {
        loop {
            let row = api.service.session(key).await?;
            if row.state != SessionState::Creating || changes.changed().await.is_err() {
                return Ok::<_, Failure>(row);
            }
        }
    };
    let Ok(row) = tokio::time::timeout(wait, opened).await else {
        return Ok(StartResult { opening: Opening::Pending, error: None, row: None });
    };
    let row = row?;
    let (opening, error) = match row.state {
        SessionState::Creating => (Opening::Pending, None),
        SessionState::Error => (Opening::Failed, row.last_error.clone()),
        // The agent describes itself when it opens a session.
        SessionState::Closed if row.agent_info.is_none() => {
            let closed = || Failure::of(Code::SessionClosed).origin("gateway");
            (Opening::Failed, Some(row.last_error.clone().unwrap_or_else(closed)))
        }
        SessionState::Idle | SessionState::Running | SessionState::Cancelling | SessionState::Closed => {
            (Opening::Open, None)
        }
    };
    Ok(StartResult { opening, error, row: Some(row) })
}

/// `GET /v1/sessions/{key}`.
pub(crate) async fn show(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
) -> Result<Json<SessionView>, ApiError> {
    let row = api.service.session(&key).await?;
    Ok(Json(describe(api.service.as_ref(), row).await?))
}

/// Returns everything about one session.
///
/// # Errors
/// Those of the service.
pub(crate) async fn describe(service: &dyn Service, row: SessionRow) -> Result<SessionView, Failure> {
    let key = row.session_key.clone();
    let view = SessionView::from(row);
    let mut view = view.within(&mut service.session_activity(vec![key.clone()]).await?);
    let runs = service.runs(&key, RUNS_SHOWN).await?;
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
    view.expiry = service.expiry(&key).await?;
    let permissions = service.pending_permissions(&key).await?;
    view.permissions = Some(permissions.into_iter().map(PermissionView::from).collect());
    Ok(view)
}

/// `POST /v1/sessions/{key}/prompt`.
pub(crate) async fn prompt(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
    IdempotencyKeyHeader(once): IdempotencyKeyHeader,
    Caller(caller): Caller,
    JsonBody(body): JsonBody<PromptBody>,
) -> Result<Json<PromptAccepted>, ApiError> {
    let request = prompt_request(&api, &key, caller, body).await?;
    Ok(Json(api.service.prompt(&key, request, once).await?))
}

/// Checks a prompt for a session, and returns the request.
///
/// # Errors
/// `USAGE`, `PERMISSION_DENIED`; those of the service.
pub(super) async fn prompt_request(
    api: &Api,
    key: &SessionKey,
    caller: Principal,
    body: PromptBody,
) -> Result<PromptRequest, ApiError> {
    if body.text.is_empty() {
        return Err(ApiError::usage("the text is empty"));
    }
    let permissions =
        RunPermissions { mode: body.permission, non_interactive: body.non_interactive_permissions };
    if !permissions.is_empty() && !caller.may(Scope::Admin) {
        authorize_run(&caller, permissions, &api.service.session(key).await?.options)?;
    }
    Ok(PromptRequest {
        permissions,
        files: files::from_request(body.files).map_err(ApiError::usage)?,
        text: body.text,
        mode: body.mode.unwrap_or(RunMode::Prompt),
        author: author(&caller, body.author)?,
        asked_by: caller.id,
        interactive: body.interactive,
        new_conversation: body.new_conversation,
        ..PromptRequest::default()
    })
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
              Caller(caller): Caller,
              JsonBody(body): JsonBody<CloseBody>| async move {
            let reason = body.reason.unwrap_or_else(|| format!("{} by {}", ending.as_str(), caller.name));
            let (discard, if_idle_since_ms) = (body.discard, body.if_idle_since_ms);
            let request = CloseRequest { reason, ending, discard, if_idle_since_ms };
            Ok::<_, ApiError>(Json(api.service.close(&key, request, once).await?))
        },
    )
}

/// `POST /v1/sessions/{key}/unbind`.
pub(crate) async fn unbind(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
    IdempotencyKeyHeader(once): IdempotencyKeyHeader,
    Caller(caller): Caller,
    JsonBody(body): JsonBody<UnbindBody>,
) -> Result<Json<Vec<BoundView>>, ApiError> {
    let reason = body.reason.unwrap_or_else(|| format!("unbound by {}", caller.name));
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
    Caller(caller): Caller,
    JsonBody(body): JsonBody<OptionBody>,
) -> Result<Json<SessionStatus>, ApiError> {
    let setting = body.setting().ok_or_else(|| ApiError::usage("exactly one setting is required"))?;
    if !caller.may(Scope::Admin) {
        let row = api.service.session(&key).await?;
        authorize_setting(&caller, &setting, &row.options)?;
    }
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
    Caller(caller): Caller,
    JsonBody(mut body): JsonBody<AnswerBody>,
) -> Result<Json<Done>, ApiError> {
    let Path((_, permission_id)) = path.map_err(|error| ApiError::usage(error.body_text()))?;
    let answer = body.answer()?;
    let by = Voter { name: author(&caller, body.by)?, id: caller.id, is_local: caller.local };
    api.service.answer_question(&key, &permission_id, answer, by, once).await?;
    Ok(Json(Done { ok: true }))
}
