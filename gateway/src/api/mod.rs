//! The API: REST and server-sent events under `/v1`, on a Unix socket in the state directory and, if configured, on TCP
//! and the socket of a proxy; and the files of the web console that uses it.
#![deny(clippy::indexing_slicing)]

pub(crate) mod access;
pub(crate) mod acp;
mod acpx;
pub(crate) mod client;
mod connection_io;
pub(crate) mod connection_slots;
pub(crate) mod console;
mod cursor;
pub(crate) mod events;
pub(crate) mod export;
pub(crate) mod extract;
pub(crate) mod files;
mod host;
pub(crate) mod http;
pub(crate) mod listeners;
pub(crate) mod openapi;
pub(crate) mod peer_ancestry;
pub(crate) mod session_log;
pub(crate) mod session_tools;
pub(crate) mod sessions;
pub(crate) mod sign_in;
mod sign_ins;
pub(crate) mod socket;
pub(crate) mod sse_parser;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod tls;
pub(crate) mod tokens;
mod web_files;
mod web_gate;
mod write_timeout;

use crate::api::extract::{ApiError, BodyRoom};
use crate::session::service::Service;
use acp_core::session::Ending;
use acp_shared::codes::Code;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Limits and timeouts of the API.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ApiLimits {
    /// Maximum size of a request body, in bytes.
    pub(crate) body_bytes_max: usize,
    /// Time limit for receiving a request's body, in milliseconds.
    pub(crate) body_ms: u64,
    /// Time limit for receiving a request's head, including the idle time before it, in milliseconds.
    pub(crate) head_ms: u64,
    /// Interval of keep-alive comments on a silent event stream, in milliseconds.
    pub(crate) keep_alive_ms: u64,
    /// Time limit for a client that reads nothing of a response, in milliseconds.
    pub(crate) stall_ms: u64,
    /// Maximum number of concurrent connections; three quarters of them may be event streams.
    pub(crate) connections_max: usize,
}

impl Default for ApiLimits {
    fn default() -> Self {
        Self {
            body_bytes_max: 5 * 1024 * 1024,
            body_ms: 10_000,
            head_ms: 10_000,
            keep_alive_ms: 15_000,
            stall_ms: 60_000,
            connections_max: 128,
        }
    }
}

/// State shared by all handlers.
#[derive(Clone)]
pub(crate) struct Api {
    /// Gateway operations.
    pub(crate) service: Arc<dyn Service>,
    /// Limits and timeouts.
    pub(crate) limits: ApiLimits,
    /// Room for large bodies.
    pub(crate) room: BodyRoom,
    /// Cancelled when the gateway stops; ends all event streams.
    pub(crate) ending: CancellationToken,
}

impl Api {
    /// Creates the API of a service.
    pub(crate) fn new(service: Arc<dyn Service>, limits: ApiLimits, ending: CancellationToken) -> Self {
        Self { service, limits, room: BodyRoom::default(), ending }
    }
}

/// Router of the API. Routers with a state of their own can be merged.
pub(crate) fn router(api: Api) -> Router {
    Router::new()
        .route("/health", get(sessions::liveness))
        .route("/v1/openapi.json", get(openapi::document))
        .route("/v1/capabilities", get(sessions::capabilities))
        .route("/v1/stream", get(events::stream_all))
        .route("/v1/permissions", get(sessions::all_permissions))
        .route("/v1/health", get(sessions::health))
        .route("/v1/owner", get(sessions::owner))
        .route("/v1/status", get(sessions::status))
        .route("/v1/agents", get(sessions::agents))
        .route("/v1/directories", get(files::directories))
        .route("/v1/doctor", get(host::doctor))
        .route("/v1/leases", get(host::leases))
        .route("/v1/leases/{id}", get(host::lease))
        .route("/v1/audit", get(host::audit))
        .route("/v1/sessions", get(sessions::list).post(sessions::spawn))
        .route("/v1/acpx/sessions", get(acpx::list))
        .route("/v1/sessions/{key}", get(sessions::show).patch(sessions::patch))
        .route("/v1/sessions/{key}/release", post(sessions::release))
        .route("/v1/sessions/{key}/export", get(export::export))
        .route("/v1/sessions/{key}/diff", get(export::diff))
        .route("/v1/sessions/{key}/files", get(files::files))
        .route("/v1/sessions/{key}/files/content", get(files::content))
        .route("/v1/sessions/{key}/files/entries", get(files::entries))
        .route("/v1/sessions/{key}/prompt", post(sessions::prompt))
        .route("/v1/sessions/{key}/cancel", post(sessions::cancel))
        .route("/v1/sessions/{key}/close", sessions::ending(Ending::Closed))
        .route("/v1/sessions/{key}/archive", sessions::ending(Ending::Archived))
        .route("/v1/sessions/{key}/delete", sessions::ending(Ending::Deleted))
        .route("/v1/sessions/{key}/reset", sessions::ending(Ending::Reset))
        .route("/v1/sessions/{key}/unbind", post(sessions::unbind))
        .route("/v1/sessions/{key}/new", post(sessions::new))
        .route("/v1/sessions/{key}/options", post(sessions::options))
        .route("/v1/sessions/{key}/permissions", get(sessions::permissions))
        .route("/v1/sessions/{key}/permissions/{id}", post(sessions::answer))
        .route("/v1/sessions/{key}/events", get(events::events))
        .route("/v1/sessions/{key}/log", get(session_log::log))
        .fallback(file_or_no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::disable())
        .with_state(api)
}

/// Serves the files of the web console.
async fn file_or_no_such_path(request: Request) -> Response {
    let no_such_path = || ApiError::usage("there is no such path").status(StatusCode::NOT_FOUND);
    web_files::answer(&request).unwrap_or_else(|| no_such_path().into_response())
}

async fn no_such_method(State(_): State<Api>) -> ApiError {
    unsupported_method()
}

/// Response to a method that a path does not have.
pub(crate) fn unsupported_method() -> ApiError {
    ApiError::of(Code::Usage, "this path does not support that method").status(StatusCode::METHOD_NOT_ALLOWED)
}
