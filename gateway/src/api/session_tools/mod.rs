//! Session tools of agents, on a socket of their own: `POST /mcp` with the token of an agent's lease, from a process of that
//! lease. Nothing else is served there.

mod calls;
mod replies;
pub(crate) mod socket;

use crate::api::extract::{ApiError, IdempotencyKeyHeader, json_bytes};
use crate::api::session_tools::calls::AgentCalls;
use crate::api::session_tools::socket::AgentPeer;
use crate::api::{Api, unsupported_method};
use crate::metrics::Metrics;
use acp_core::bearer::of_authorization;
use acp_core::failure::Failure;
use acp_core::principal::Principal;
use acp_core::rows::SessionRow;
use acp_core::session::SessionState;
use acp_core::session_tools::{MCP_PATH, MessageResult, ServerFacts, receive};
use acp_core::visibility::AgentRequester;
use acp_shared::clock::Clock;
use acp_shared::codes::Code;
use acp_shared::ids::LeaseId;
use acp_shared::log_limit::RefusalLog;
use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequestParts as _, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use std::sync::Arc;

/// Name of this listener in metrics.
pub(super) const AGENTS: &str = "agents";

/// State of the handlers.
#[derive(Clone)]
struct SessionTools {
    api: Api,
    metrics: Metrics,
    clock: Clock,
    log: Arc<RefusalLog>,
}

/// Router of the session tools.
pub(crate) fn router(api: Api, metrics: Metrics, clock: Clock) -> Router {
    let tools = SessionTools { api, metrics, clock, log: Arc::default() };
    Router::new()
        .route(MCP_PATH, post(message))
        .fallback(async || ApiError::usage("there is no such path").status(StatusCode::NOT_FOUND))
        .method_not_allowed_fallback(async || unsupported_method())
        .layer(DefaultBodyLimit::disable())
        .with_state(tools)
}

/// Reason for the refusal of a request, for logs and metrics.
#[derive(Debug, Clone, Copy)]
enum RefusalReason {
    NoToken,
    BadToken,
    SwitchedOff,
    Stranger,
}

impl RefusalReason {
    const fn reason(self) -> &'static str {
        match self {
            Self::NoToken => "no_token",
            Self::BadToken => "bad_token",
            Self::SwitchedOff => "switched_off",
            Self::Stranger => "stranger",
        }
    }
}

/// `POST /mcp`: one message of MCP, and its reply.
async fn message(State(tools): State<SessionTools>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let own = match tools.requester(&parts).await? {
        Ok(own) => own,
        Err(refusal) => return Ok(tools.refuse(&parts, refusal)),
    };
    let requester = AgentRequester::of_session(&own, &tools.api.service.config().config);
    parts.extensions.insert(Principal::of_agent(requester.clone()));
    let IdempotencyKeyHeader(once) = IdempotencyKeyHeader::from_request_parts(&mut parts, &tools.api).await?;
    let body = json_bytes(Request::from_parts(parts, body), &tools.api).await?;
    let (service, ending) = (tools.api.service.as_ref(), tools.api.ending.clone());
    let calls = AgentCalls::new(service, tools.clock, ending, own, requester);
    let spawn_agents = calls.spawn_agents();
    let facts = ServerFacts { version: env!("CARGO_PKG_VERSION"), spawn_agents: &spawn_agents };
    let reply = match receive(&body, &facts) {
        MessageResult::Nothing => return Ok(StatusCode::ACCEPTED.into_response()),
        MessageResult::Reply(reply) => reply,
        MessageResult::Call(pending) => match calls.execute(&pending.call, once).await {
            // Nothing was decided: the bridge asks the next gateway process, under the same key.
            Err(failure) if is_ending(&failure) => return Err(failure.into()),
            outcome => pending.reply(outcome),
        },
    };
    Ok(([(header::CONTENT_TYPE, "application/json")], reply).into_response())
}

/// True for a failure of this process that another attempt does not have.
fn is_ending(failure: &Failure) -> bool {
    failure.retryable && matches!(failure.code, Code::GatewayUnavailable | Code::BackendUnavailable)
}

impl SessionTools {
    /// Returns the session whose agent sends the request.
    ///
    /// # Errors
    /// Those of the service. Inside: why the request is refused.
    async fn requester(&self, request: &Parts) -> Result<Result<SessionRow, RefusalReason>, Failure> {
        let service = self.api.service.as_ref();
        let header = request.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(token) = header.and_then(of_authorization) else { return Ok(Err(RefusalReason::NoToken)) };
        let Some((key, lease)) = service.lease_of_token(token.digest()).await? else {
            return Ok(Err(RefusalReason::BadToken));
        };
        let own = match service.session(&key).await {
            Ok(own) if own.state != SessionState::Closed => own,
            Ok(_) => return Ok(Err(RefusalReason::BadToken)),
            Err(failure) => return Err(failure),
        };
        if !service.config().config.agents.get(&own.agent).is_some_and(|agent| agent.session_tools) {
            return Ok(Err(RefusalReason::SwitchedOff));
        }
        Ok(if self.is_of_lease(request, lease).await? { Ok(own) } else { Err(RefusalReason::Stranger) })
    }

    /// True if the peer is a process of the lease.
    async fn is_of_lease(&self, request: &Parts, lease: LeaseId) -> Result<bool, Failure> {
        let Some(peer) = request.extensions.get::<AgentPeer>() else { return Ok(false) };
        let root = self.api.service.root_process(lease).await?;
        Ok(root.is_some_and(|root| peer.descends_from(root)))
    }

    /// Answers every refused request in the same way.
    fn refuse(&self, request: &Parts, refusal: RefusalReason) -> Response {
        let reason = refusal.reason();
        self.metrics.api_refused(AGENTS, reason);
        let peer = request.extensions.get::<AgentPeer>();
        let (uid, pid) = (peer.map_or(u32::MAX, |peer| peer.uid), peer.and_then(|peer| peer.pid));
        if self.log.may_log(uid, reason) {
            tracing::warn!(uid, pid, reason, "request for session tools refused");
        }
        let text = "The session tools are for the processes of a running agent, with the token of its lease.";
        let refused = ApiError::of(Code::PermissionDenied, text).status(StatusCode::UNAUTHORIZED);
        ([(header::WWW_AUTHENTICATE, "Bearer")], refused).into_response()
    }
}
