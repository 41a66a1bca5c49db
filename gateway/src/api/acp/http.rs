//! Requests at `/acp`: messages by POST, streams of server-sent events by GET, the end of a connection by DELETE.

use super::connection::{Connection, Incoming};
use super::stream::{Batch, StreamReader};
use super::{AcpServer, MESSAGE_BYTES_MAX, TooManyConnections, websocket};
use crate::api::extract::{TakenRoom, declared_bytes};
use crate::api::tokens::TokenLease;
use acp_core::jsonrpc::{INVALID_PARAMS, RpcMessage};
use acp_core::northbound::answers::{self, ShownLimits};
use acp_core::northbound::connection::StreamScope;
use acp_core::northbound::frames::{FrameId, ascii_json};
use acp_core::northbound::message::{self, ReplyError, error_frame, result_frame};
use acp_core::northbound::{CONNECTION_HEADER, SESSION_HEADER};
use acp_core::principal::Principal;
use acp_shared::ids::{AgentName, SessionKey};
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

/// First bytes of a stream: they reach the client before any event.
const STREAM_HEAD: &str = "retry: 2000\n:\n\n";

/// Path of `/acp/{agent}`; none for `/acp`.
type AgentPath = Option<Path<String>>;

/// Refusal of a request.
pub(super) enum Refusal {
    /// Without a body for programs.
    Status(StatusCode, String),
    /// With a JSON-RPC error.
    Error(StatusCode, ReplyError),
}

impl Refusal {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self::Status(status, text.into())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Error(status, error) => json_response(status, error_frame("null", &error)),
            Self::Status(status, text) => {
                let mut response = (status, text).into_response();
                let extra = match status {
                    StatusCode::UNAUTHORIZED => Some((header::WWW_AUTHENTICATE, "Bearer")),
                    StatusCode::SERVICE_UNAVAILABLE => Some((header::RETRY_AFTER, "5")),
                    _ => None,
                };
                if let Some((name, value)) = extra {
                    response.headers_mut().insert(name, HeaderValue::from_static(value));
                }
                response
            }
        }
    }
}

impl From<TooManyConnections> for Refusal {
    fn from(_: TooManyConnections) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "too many ACP connections are open; try again later")
    }
}

fn json_response(status: StatusCode, json: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], json).into_response()
}

/// Checks that ACP is served here, and returns the client.
pub(super) fn principal(server: &AcpServer, request: &Request) -> Result<Principal, Refusal> {
    if !server.is_enabled() {
        return Err(Refusal::new(StatusCode::NOT_FOUND, "ACP is switched off here (northbound.acp = false)"));
    }
    let principal = request.extensions().get::<Principal>().cloned();
    principal.ok_or_else(|| Refusal::new(StatusCode::UNAUTHORIZED, "a token is required"))
}

pub(super) fn agent(path: AgentPath) -> Result<Option<AgentName>, Refusal> {
    let Some(Path(name)) = path else { return Ok(None) };
    let agent = AgentName::parse(&name);
    agent.map(Some).map_err(|error| Refusal::new(StatusCode::NOT_FOUND, error.to_string()))
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("\u{fffd}"))
}

/// Returns the connection of a request; `None` without the header.
fn connection(
    server: &AcpServer,
    headers: &HeaderMap,
    principal: &Principal,
) -> Result<Option<Arc<Connection>>, Refusal> {
    let Some(id) = text(headers, CONNECTION_HEADER) else { return Ok(None) };
    // To anybody but the principal that made it, a connection does not exist.
    let found = server.find(id, principal);
    found.map(Some).ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "there is no such connection"))
}

fn required(found: Option<Arc<Connection>>) -> Result<Arc<Connection>, Refusal> {
    found.ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, "the header Acp-Connection-Id is required"))
}

/// `POST /acp`.
pub(super) async fn post(
    State(server): State<Arc<AcpServer>>,
    path: AgentPath,
    request: Request,
) -> Result<Response, Refusal> {
    let principal = principal(&server, &request)?;
    let agent = agent(path)?;
    let found = connection(&server, request.headers(), &principal)?;
    let is_json = text(request.headers(), "content-type").is_some_and(|kind| {
        kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
    });
    if !is_json {
        let text = "the body must be application/json";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    let session_header = text(request.headers(), SESSION_HEADER).map(str::to_owned);
    let is_local = principal.local;
    let lease = request.extensions().get::<TokenLease>().cloned();
    let (body, room) = read_body(&server, &principal, request).await?;
    let is_initialize =
        matches!(message::parse(&body), Ok(RpcMessage::Request { method, .. }) if method == "initialize");
    match found {
        Some(_) if is_initialize => {
            let error = ReplyError::new(message::INVALID_REQUEST, "the connection is initialized already");
            Err(Refusal::Error(StatusCode::BAD_REQUEST, error))
        }
        Some(connection) => {
            let incoming = Incoming { body, session_header, is_local, _room: room };
            if !connection.receive(incoming).await {
                return Err(Refusal::new(StatusCode::NOT_FOUND, "there is no such connection"));
            }
            Ok(StatusCode::ACCEPTED.into_response())
        }
        None => initialize(&server, principal, agent, lease, &body),
    }
}

async fn read_body(
    server: &AcpServer,
    principal: &Principal,
    request: Request,
) -> Result<(Bytes, Option<TakenRoom>), Refusal> {
    let limit = Duration::from_millis(server.limits.body_ms);
    let body = request.into_body();
    let bytes = declared_bytes(&body, MESSAGE_BYTES_MAX);
    let Ok(room) = tokio::time::timeout(limit, server.room.take(principal, bytes)).await else {
        return Err(Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many large messages; try again later",
        ));
    };
    match tokio::time::timeout(limit, to_bytes(body, MESSAGE_BYTES_MAX)).await {
        Err(_) => Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
        Ok(Ok(bytes)) => Ok((bytes, room)),
        Ok(Err(error)) => {
            let mut source = std::error::Error::source(&error);
            while let Some(inner) = source {
                if inner.is::<http_body_util::LengthLimitError>() {
                    let text = format!("a message may have {MESSAGE_BYTES_MAX} bytes at most");
                    return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text));
                }
                source = inner.source();
            }
            Err(Refusal::new(StatusCode::BAD_REQUEST, "the body ended early"))
        }
    }
}

/// Handles the first message of a client.
fn initialize(
    server: &Arc<AcpServer>,
    principal: Principal,
    agent: Option<AgentName>,
    lease: Option<TokenLease>,
    body: &[u8],
) -> Result<Response, Refusal> {
    let parsed = message::parse(body).map_err(|error| Refusal::Error(StatusCode::BAD_REQUEST, error))?;
    let (id, params) = match parsed {
        RpcMessage::Request { id, method, params } if method == "initialize" => (id, params),
        _ => {
            let error = ReplyError::new(message::INVALID_REQUEST, "the header Acp-Connection-Id is required");
            return Err(Refusal::Error(StatusCode::BAD_REQUEST, error));
        }
    };
    let result = match initialize_result(server, params) {
        Ok(result) => result,
        Err(error) => return Ok(json_response(StatusCode::OK, error_frame(id, &error))),
    };
    let connection = server.connect(principal, agent)?;
    connection.end_with(lease);
    connection.state().declare(answers::declared(params));
    let mut response = json_response(StatusCode::OK, result_frame(id, &result));
    insert(&mut response, CONNECTION_HEADER, connection.id());
    Ok(response)
}

/// Returns the result of `initialize`, JSON text.
pub(super) fn initialize_result(server: &AcpServer, params: Option<&str>) -> Result<String, ReplyError> {
    if !answers::has_version(params) {
        return Err(ReplyError::new(INVALID_PARAMS, "protocolVersion must be a number"));
    }
    let limits =
        ShownLimits { message_bytes_max: MESSAGE_BYTES_MAX, detach_grace_ms: server.detach_grace_ms() };
    Ok(answers::initialize(env!("CARGO_PKG_VERSION"), limits).to_string())
}

pub(super) fn insert(response: &mut Response, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// `GET /acp`: a stream, or a WebSocket.
pub(super) async fn get(
    State(server): State<Arc<AcpServer>>,
    path: AgentPath,
    request: Request,
) -> Result<Response, Refusal> {
    let principal = principal(&server, &request)?;
    let agent = agent(path)?;
    let headers = request.headers();
    if text(headers, "upgrade").is_some_and(|value| value.eq_ignore_ascii_case("websocket")) {
        return websocket::upgrade(&server, principal, agent, request);
    }
    if !text(headers, "accept").is_some_and(|accept| accept.contains("text/event-stream")) {
        return Err(Refusal::new(StatusCode::NOT_ACCEPTABLE, "the client must accept text/event-stream"));
    }
    let connection = required(connection(&server, headers, &principal)?)?;
    let bad = |what: String| Refusal::new(StatusCode::BAD_REQUEST, what);
    let scope = match text(headers, SESSION_HEADER) {
        None => StreamScope::Connection,
        Some(key) => StreamScope::Session(
            SessionKey::parse(key).map_err(|error| bad(format!("Acp-Session-Id: {error}")))?,
        ),
    };
    let resume = match text(headers, "last-event-id").filter(|id| !id.is_empty()) {
        None => None,
        Some(id) => Some(
            FrameId::parse(id).ok_or_else(|| bad("Last-Event-ID is not one of this server".to_owned()))?,
        ),
    };
    let ticket = {
        let mut state = connection.state();
        let opened = state.open_stream(scope.clone());
        let ticket = opened.map_err(|error| Refusal::new(StatusCode::CONFLICT, error.to_string()))?;
        if let Some(to) = resume {
            state.rewind(&scope, to);
            server.metrics.client_resumed("stream");
        }
        ticket
    };
    Ok(event_stream(StreamReader::new(&server, &connection, ticket)))
}

fn event_stream(reader: StreamReader) -> Response {
    let pieces = stream::unfold((reader, true), |(mut reader, is_first)| async move {
        if is_first {
            return Some((Ok::<_, Infallible>(Bytes::from_static(STREAM_HEAD.as_bytes())), (reader, false)));
        }
        let piece = match reader.next().await? {
            Batch::Heartbeat => Bytes::from_static(b":\n\n"),
            Batch::Frames(frames) => {
                let mut out = String::new();
                for frame in frames {
                    // Writing into a String cannot fail.
                    if let Some(id) = frame.id {
                        let _ = writeln!(out, "id: {id}");
                    }
                    let _ = write!(out, "data: {}\n\n", ascii_json(&frame.json));
                }
                Bytes::from(out)
            }
        };
        Some((Ok(piece), (reader, false)))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    for (name, value) in [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-store, no-transform"),
        ("x-accel-buffering", "no"),
    ] {
        insert(&mut response, name, value);
    }
    response
}

/// `DELETE /acp`.
pub(super) async fn delete(
    State(server): State<Arc<AcpServer>>,
    request: Request,
) -> Result<StatusCode, Refusal> {
    let principal = principal(&server, &request)?;
    let connection = required(connection(&server, request.headers(), &principal)?)?;
    server.remove(connection.id());
    connection.end("deleted");
    Ok(StatusCode::ACCEPTED)
}
