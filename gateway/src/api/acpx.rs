//! `/v1/acpx/sessions`: sessions with names in the contract of acpx.

use crate::api::Api;
use crate::api::access::{VisibleSessions, visible_session};
use crate::api::extract::{ApiError, Caller, IdempotencyKeyHeader, Json, JsonBody};
use crate::api::sessions::{self, StartResult};
use crate::api::{cursor, events};
use acp_core::acpx_contract::{AcpxNaming, NameQuery};
use acp_core::api::{AcpxSessionView, NamedPromptBody, NamedPromptView, Opening, SessionView};
use acp_core::failure::Failure;
use acp_core::principal::Principal;
use acp_core::request::{CloseRequest, PromptRequest, SpawnResult};
use acp_core::session::SessionState;
use acp_core::visibility::Action;
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, IdempotencyKey};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use std::time::Duration;
use utoipa::IntoParams;

/// Maximum number of sessions in a list.
const SESSIONS_MAX: u64 = 1_000;

/// Query of `GET /v1/acpx/sessions`.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct NameListQuery {
    /// Returns only sessions of this agent; absent: of all agents, or with `cwd` of the configured default.
    #[param(value_type = Option<String>)]
    agent: Option<AgentName>,
    /// Returns only the open session with the name `name` in this directory or the nearest parent; with `all`, if there is
    /// none, the newest closed one in exactly this directory.
    cwd: Option<String>,
    /// Uppermost parent directory of `cwd` in which the session is looked for.
    root: Option<String>,
    /// Name; absent: the session without one.
    name: Option<String>,
    /// True to include closed sessions that are not removed.
    #[serde(default)]
    all: bool,
}

/// `GET /v1/acpx/sessions`.
pub(crate) async fn list(
    State(api): State<Api>,
    Caller(caller): Caller,
    query: Result<Query<NameListQuery>, QueryRejection>,
) -> Result<Json<Vec<AcpxSessionView>>, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::usage(error.body_text()))?;
    let NameListQuery { agent, cwd, root, name, all } = query;
    let query = match cwd {
        None => NameQuery::All { agent, closed_too: all, limit: SESSIONS_MAX },
        Some(cwd) => {
            let naming = AcpxNaming { name: name.unwrap_or_default(), cwd, root, replace: false };
            query_of(&api, agent, naming, all)?
        }
    };
    Ok(Json(find(&api, caller, Action::List, query).await?))
}

/// `POST /v1/acpx/prompt`: sends a prompt to the open session with a name, and streams its turn if the client accepts
/// `text/event-stream`. One request, since a program waits for the first chunk.
pub(crate) async fn prompt(
    State(api): State<Api>,
    IdempotencyKeyHeader(once): IdempotencyKeyHeader,
    Caller(caller): Caller,
    headers: HeaderMap,
    JsonBody(body): JsonBody<NamedPromptBody>,
) -> Result<Response, ApiError> {
    let found_by =
        serde_json::to_string(&(&body.agent, &body.acpx)).map_err(|_| Failure::of(Code::Runtime))?;
    let query = query_of(&api, body.agent, body.acpx, false)?;
    let found = find(&api, caller.clone(), Action::Send, query).await?;
    let session = found.into_iter().next().ok_or_else(|| Failure::of(Code::NoSession).origin("gateway"))?;
    let key = session.session.session_key.clone();
    if caller.is_limited() {
        visible_session(api.service.as_ref(), &caller, &key, Action::History).await?;
    }
    let request = sessions::prompt_request(&api, &key, caller, body.prompt).await?;
    let request = PromptRequest { found_by: Some(found_by), ..request };
    let accepted = api.service.prompt(&key, request, once).await?;
    let view = NamedPromptView { session, accepted };
    if cursor::accepts_stream(&headers) {
        events::turn(api, key, &view)
    } else {
        Ok(Json(view).into_response())
    }
}

/// Returns the query for the session with a name.
///
/// # Errors
/// `USAGE`.
fn query_of(
    api: &Api,
    agent: Option<AgentName>,
    naming: AcpxNaming,
    closed_too: bool,
) -> Result<NameQuery, ApiError> {
    naming.check().map_err(ApiError::usage)?;
    let agent = agent.or_else(|| api.service.config().config.acp.default_agent.clone());
    let agent = agent.ok_or_else(|| {
        ApiError::usage("no agent was named, and acp.default_agent is not set: name the agent")
    })?;
    Ok(NameQuery::Named { agent, naming, closed_too })
}

/// Returns the sessions of a query with which the principal may do this.
///
/// # Errors
/// Those of the service.
async fn find(
    api: &Api,
    caller: Principal,
    action: Action,
    query: NameQuery,
) -> Result<Vec<AcpxSessionView>, Failure> {
    let mut visible = VisibleSessions::new(&api.service, caller, action);
    let mut found = Vec::new();
    for named in api.service.acpx_sessions(query).await? {
        if visible.sees(&named.session.session_key).await? {
            let session = SessionView::from(named.session);
            found.push(AcpxSessionView { name: named.name, cwd: named.cwd, session });
        }
    }
    Ok(found)
}

/// Waits until the agent has opened a session with a name. A new session is closed if the agent cannot open it, so that the
/// name is free.
pub(super) async fn opening(
    api: &Api,
    spawned: &SpawnResult,
    wait: Duration,
) -> Result<StartResult, ApiError> {
    let key = &spawned.session_key;
    if spawned.existing {
        let row = api.service.session(key).await?;
        if row.state != SessionState::Creating {
            return Ok(StartResult { opening: Opening::Open, error: None, row: Some(row) });
        }
    }
    let opened = sessions::opening(api, key, wait).await?;
    if !spawned.existing && opened.opening == Opening::Failed {
        let request = CloseRequest::new("the agent could not open the session");
        api.service.close(key, request, IdempotencyKey::mint()).await?;
    }
    Ok(opened)
}
