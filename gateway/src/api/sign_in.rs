//! `/v1/login`, `/v1/logout`, `/v1/whoami`, and `/v1/console/open`, by which `acp-gateway console` has a listener and a
//! one-time code for as long as it runs.

use crate::api::cursor::event_stream;
use crate::api::extract::{ApiError, Caller, Json, JsonBody};
use crate::api::listeners::ConsoleListener;
use crate::api::sign_ins::CODE_MS;
use crate::api::tokens::{TokenLease, TokenRegistry, require_local_user};
use crate::api::web_gate::{TokenFault, unauthorized};
use crate::api::{Api, no_such_method};
use acp_core::api::{ConsoleBody, ConsoleOpenedView, Done, IdentityView, LoginBody, LoginView, STREAM_END};
use acp_core::failure::Failure;
use acp_core::principal::{Principal, Scope};
use acp_shared::codes::Code;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// State of these routes in addition to the API's.
#[derive(Clone)]
pub(crate) struct ConsoleDesk {
    /// Valid tokens and sign-ins.
    pub(crate) tokens: TokenRegistry,
    /// Opens listeners.
    pub(crate) listeners: mpsc::Sender<ConsoleListener>,
}

/// Extension of the response to a logout: ends the other requests of the token, after this one.
#[derive(Clone)]
pub(super) struct SignedOut(pub(super) CancellationToken);

/// Router of the sign-in.
pub(crate) fn router(api: Api, desk: ConsoleDesk) -> Router {
    Router::new()
        .route("/v1/login", post(login))
        .route("/v1/logout", post(logout))
        .route("/v1/whoami", get(whoami))
        .route("/v1/console/open", post(open))
        .method_not_allowed_fallback(no_such_method)
        .layer(axum::extract::DefaultBodyLimit::disable())
        .layer(Extension(desk))
        .with_state(api)
}

async fn login(
    Extension(desk): Extension<ConsoleDesk>,
    JsonBody(body): JsonBody<LoginBody>,
) -> Result<Response, ApiError> {
    let Some((token, principal, lease)) = desk.tokens.log_in(&body.code)? else {
        return Ok(unauthorized(TokenFault::Code));
    };
    let view = LoginView { token: token.show(), identity: identity(&desk, &principal, Some(&lease)) };
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(view)).into_response())
}

/// Ends a sign-in. A token of `acp-gateway token add` stays valid: it may be used elsewhere, too.
async fn logout(Extension(desk): Extension<ConsoleDesk>, request: Request) -> Response {
    let lease = request.extensions().get::<TokenLease>();
    let ended = lease.and_then(|lease| desk.tokens.sign_ins().log_out(lease.token));
    let mut response = Json(Done { ok: true }).into_response();
    if let Some(ended) = ended {
        response.extensions_mut().insert(SignedOut(ended));
    }
    response
}

async fn whoami(
    Extension(desk): Extension<ConsoleDesk>,
    Caller(caller): Caller,
    request: Request,
) -> Json<IdentityView> {
    Json(identity(&desk, &caller, request.extensions().get()))
}

fn identity(desk: &ConsoleDesk, principal: &Principal, lease: Option<&TokenLease>) -> IdentityView {
    let left = lease.and_then(|lease| lease.expires_in).and_then(|left| u64::try_from(left.as_millis()).ok());
    IdentityView {
        name: principal.name.clone(),
        scopes: Scope::ALL.into_iter().filter(|scope| principal.may(*scope)).collect(),
        agents: principal.agents.clone(),
        expires_at_ms: left.map(|left| desk.tokens.now_ms() + left),
        console: principal.is_console(),
    }
}

/// Opens a console. The response is a stream: when the client closes it, or is killed, listener and sign-in end.
async fn open(
    State(api): State<Api>,
    Extension(desk): Extension<ConsoleDesk>,
    Caller(caller): Caller,
    JsonBody(body): JsonBody<ConsoleBody>,
) -> Result<Response, ApiError> {
    require_local_user(&caller)?;
    let at = body.listen.as_deref().map(loopback).transpose()?;
    let stop = api.ending.child_token();
    let open = stop.clone().drop_guard();
    let bound = listen(&desk, at, &stop).await?;
    let code = desk.tokens.random()?;
    let now_ms = desk.tokens.now_ms();
    let grant = desk.tokens.sign_ins().open(caller.name, body.scope, &code, now_ms);
    let view = ConsoleOpenedView {
        url: format!("http://{bound}/"),
        code: code.show(),
        code_expires_at_ms: now_ms + CODE_MS,
    };
    let view =
        serde_json::to_string(&view).map_err(|error| ApiError::of(Code::Runtime, error.to_string()))?;
    let first = Bytes::from(format!("event: console\ndata: {view}\n\n"));
    let keep_alive = Duration::from_millis(api.limits.keep_alive_ms);
    let held = (Some(first), stop, (open, grant));
    Ok(event_stream(stream::unfold(held, move |(first, stop, held)| async move {
        if let Some(first) = first {
            return Some((Ok(first), (None, stop, held)));
        }
        if stop.is_cancelled() {
            return None;
        }
        let piece = tokio::select! {
            () = stop.cancelled() => Bytes::from(format!("event: {STREAM_END}\ndata: {{}}\n\n")),
            () = tokio::time::sleep(keep_alive) => Bytes::from_static(b":\n\n"),
        };
        Some((Ok(piece), (None, stop, held)))
    })))
}

/// Parses the address of a console.
fn loopback(text: &str) -> Result<SocketAddr, ApiError> {
    let at: Option<SocketAddr> = text.parse().ok();
    at.filter(|at| at.ip().is_loopback()).ok_or_else(|| {
        ApiError::usage(format!(
            "the console listens on loopback only, such as 127.0.0.1:7434, not at {text:?}; for other machines set \
             northbound.listen with TLS"
        ))
    })
}

async fn listen(
    desk: &ConsoleDesk,
    at: Option<SocketAddr>,
    stop: &CancellationToken,
) -> Result<SocketAddr, ApiError> {
    let ends = || ApiError::from(Failure::of(Code::GatewayUnavailable).origin("gateway"));
    let (reply, opened) = oneshot::channel();
    let asked = ConsoleListener { at, stop: stop.clone(), reply };
    desk.listeners.send(asked).await.map_err(|_| ends())?;
    let opened = opened.await.map_err(|_| ends())?;
    opened.map_err(|why| {
        let at = at.unwrap_or_else(|| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
        ApiError::of(Code::Runtime, format!("cannot listen at {at}: {why}"))
    })
}
