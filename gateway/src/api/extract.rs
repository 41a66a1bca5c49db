//! Extractors for requests (bodies, ids, keys) and JSON responses, including errors.

use crate::api::Api;
use crate::api::web_gate::{TokenFault, unauthorized};
use acp_core::api::{ErrorBody, IDEMPOTENCY_HEADER};
use acp_core::failure::Failure;
use acp_core::principal::Principal;
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, SessionKey};
use acp_shared::redact::hide_value;
pub(crate) use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Body as _;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Size from which a body counts as a large one, in bytes.
pub(crate) const LARGE_BYTES: usize = 64 * 1024;
/// Maximum size of all large bodies together, in KiB.
const LARGE_KIB_MAX: u32 = 64 * 1024;
/// Maximum size of the large bodies of one principal, in KiB.
const OWN_KIB_MAX: u32 = LARGE_KIB_MAX / 2;

/// Error response to a request.
#[derive(Debug)]
pub(crate) struct ApiError {
    failure: Failure,
    status: StatusCode,
}

impl ApiError {
    /// Creates an error with this code and message.
    pub(crate) fn of(code: Code, message: impl Into<String>) -> Self {
        Self::from(Failure::new(code, message).origin("gateway"))
    }

    /// Creates an error for an invalid request.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::of(Code::Usage, message)
    }

    /// Replaces the HTTP status that follows from the code.
    pub(crate) fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        error.failure
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        Self { status: status_of(failure.code), failure }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(ErrorBody::from(self.failure))).into_response()
    }
}

/// HTTP status of an error code.
fn status_of(code: Code) -> StatusCode {
    match code {
        Code::Usage | Code::ConfigInvalid => StatusCode::BAD_REQUEST,
        Code::NoSession => StatusCode::NOT_FOUND,
        Code::AgentNotAllowed
        | Code::CwdNotAllowed
        | Code::PermissionDenied
        | Code::PermissionPromptUnavailable
        | Code::NotOwner
        | Code::Disabled
        | Code::DispatchDisabled => StatusCode::FORBIDDEN,
        Code::CursorPruned => StatusCode::GONE,
        Code::LimitReached => StatusCode::TOO_MANY_REQUESTS,
        Code::SessionClosed
        | Code::IdempotencyConflict
        | Code::StaleBinding
        | Code::NotBound
        | Code::ResumeUnavailable
        | Code::Uncertain
        | Code::AuthRequired => StatusCode::CONFLICT,
        Code::StoreUnavailable
        | Code::BackendUnavailable
        | Code::BackendMissing
        | Code::ChannelUnavailable
        | Code::GatewayUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Timeout => StatusCode::GATEWAY_TIMEOUT,
        Code::ProtocolError | Code::TurnFailed | Code::SessionInitFailed => StatusCode::BAD_GATEWAY,
        Code::Runtime => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Room for the large bodies of requests and of responses, so that many of them take bounded memory. One sender has at
/// most half of each.
#[derive(Debug, Clone, Default)]
pub(crate) struct BodyRoom {
    requests: RoomPool,
    responses: RoomPool,
}

/// Room for the bodies of one direction.
#[derive(Debug, Clone)]
struct RoomPool {
    all: Arc<Semaphore>,
    /// Room of each principal that uses some.
    own: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
}

/// Room of one body, released on drop.
#[derive(Debug)]
pub(crate) struct TakenRoom {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Default for RoomPool {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(LARGE_KIB_MAX as usize)), own: Arc::default() }
    }
}

impl RoomPool {
    fn own(&self, principal: &str) -> Arc<Semaphore> {
        let mut own = self.own.lock();
        own.retain(|_, room| room.strong_count() > 0);
        own.get(principal).and_then(Weak::upgrade).unwrap_or_else(|| {
            let room = Arc::new(Semaphore::new(OWN_KIB_MAX as usize));
            own.insert(principal.to_owned(), Arc::downgrade(&room));
            room
        })
    }

    async fn take(&self, principal: &str, bytes: usize) -> Option<TakenRoom> {
        if bytes < LARGE_BYTES {
            return None;
        }
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(OWN_KIB_MAX);
        // The semaphores are never closed.
        let own = self.own(principal).acquire_many_owned(kib).await.ok()?;
        let all = Arc::clone(&self.all).acquire_many_owned(kib).await.ok()?;
        Some(TakenRoom { _own: own, _all: all })
    }
}

impl BodyRoom {
    /// Waits for room for a body of this principal. Small bodies need none.
    pub(crate) async fn take(&self, principal: &Principal, bytes: usize) -> Option<TakenRoom> {
        self.requests.take(&principal.id, bytes).await
    }

    /// Waits for room for a response to this principal.
    pub(crate) async fn take_response(&self, principal: &Principal, bytes: usize) -> Option<TakenRoom> {
        self.responses.take(&principal.id, bytes).await
    }
}

/// Returns the size of a body, or `max` if it is longer or has no length.
pub(crate) fn declared_bytes(body: &Body, max: usize) -> usize {
    let bytes = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    bytes.unwrap_or(max).min(max)
}

/// JSON request body, limited in size and time. An empty body counts as `{}`.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Api> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Api) -> Result<Self, ApiError> {
        let is_json = request.headers().get(header::CONTENT_TYPE).is_none_or(|kind| {
            let kind = kind.to_str().unwrap_or_default();
            kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
        });
        if !is_json {
            let refused = ApiError::usage("the body must be application/json");
            return Err(refused.status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        let limit = Duration::from_millis(api.limits.body_ms);
        let sender = request.extensions().get::<Principal>().cloned();
        let body = request.into_body();
        // Of a sender that is not known yet, only a small body is read.
        let (max, _room) = match sender {
            None => (LARGE_BYTES - 1, None),
            Some(sender) => {
                let max = api.limits.body_bytes_max;
                let taking = api.room.take(&sender, declared_bytes(&body, max));
                let Ok(room) = tokio::time::timeout(limit, taking).await else {
                    return Err(ApiError::of(Code::LimitReached, "too many large requests; try again later"));
                };
                (max, room)
            }
        };
        let bytes = match tokio::time::timeout(limit, to_bytes(body, max)).await {
            Err(_) => {
                let refused = ApiError::of(Code::Timeout, "the body did not arrive in time");
                return Err(refused.status(StatusCode::REQUEST_TIMEOUT));
            }
            Ok(Err(error)) => return Err(body_error(&error, max)),
            Ok(Ok(bytes)) => bytes,
        };
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        let body = serde_json::from_slice(text).map(Self);
        body.map_err(|error| ApiError::usage(format!("invalid body: {}", hide_value(&error.to_string()))))
    }
}

fn body_error(error: &axum::Error, max: usize) -> ApiError {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if inner.is::<http_body_util::LengthLimitError>() {
            let refused = ApiError::of(Code::LimitReached, format!("the body is larger than {max} bytes"));
            return refused.status(StatusCode::PAYLOAD_TOO_LARGE);
        }
        source = inner.source();
    }
    ApiError::usage("the body ended early")
}

/// Session key from the path.
#[derive(Debug)]
pub(crate) struct SessionKeyPath(pub(crate) SessionKey);

impl FromRequestParts<Api> for SessionKeyPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let params = Path::<std::collections::HashMap<String, String>>::from_request_parts(parts, api).await;
        let params = params.map_err(|error| ApiError::usage(error.body_text()))?;
        let text = params.get("key").map(String::as_str).unwrap_or_default();
        SessionKey::parse(text).map(Self).map_err(|error| ApiError::of(Code::NoSession, error.to_string()))
    }
}

/// Idempotency key of a modifying request; generated if the client sent none.
#[derive(Debug)]
pub(crate) struct IdempotencyKeyHeader(pub(crate) IdempotencyKey);

impl FromRequestParts<Api> for IdempotencyKeyHeader {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, ApiError> {
        let mut values = parts.headers.get_all(IDEMPOTENCY_HEADER).iter();
        let Some(value) = values.next() else { return Ok(Self(IdempotencyKey::mint())) };
        if values.next().is_some() {
            return Err(ApiError::usage("more than one Idempotency-Key header"));
        }
        let text = value.to_str().unwrap_or("\u{fffd}");
        let given = IdempotencyKey::parse(text).map_err(|error| ApiError::usage(error.to_string()))?;
        let sender = parts.extensions.get::<Principal>();
        Ok(Self(sender.map_or_else(IdempotencyKey::mint, |sender| sender.own_key(given))))
    }
}

/// Sender of a request.
#[derive(Debug)]
pub(crate) struct Caller(pub(crate) Principal);

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let principal = parts.extensions.get::<Principal>().cloned();
        principal.map(Self).ok_or_else(|| unauthorized(TokenFault::Missing))
    }
}

/// Returns the author of what a request does: the principal, or the name that a local user gives.
///
/// # Errors
/// `USAGE` if another principal gives a name that is not its own.
pub(crate) fn author(caller: &Principal, given: Option<String>) -> Result<String, ApiError> {
    caller.acts_as(given).map_err(ApiError::usage)
}
