//! Console conversations over the local API. Each reader is a cursor over committed rows.

use crate::api::cursor::{self, Cursor};
use crate::api::extract::{ApiError, Caller, IdempotencyKeyHeader, Json, JsonBody, author};
use crate::api::{Api, no_such_method};
use crate::channel::console::conversation;
use crate::conversation::inbound::InboundService;
use acp_core::failure::Failure;
use acp_core::route::Route;
use acp_shared::ids::SessionKey;
use acp_store::Store;
use acp_store::console::{self, ConsoleMessage};
use acp_store::inbox::{Inbound, Outcome};
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::io;
use std::time::Duration;
use tokio::sync::watch;
use utoipa::{IntoParams, ToSchema};

/// Maximum number of messages in a page.
const PAGE_ROWS_MAX: u64 = 500;
/// Maximum length of a conversation's name, in bytes.
const NAME_BYTES_MAX: usize = 200;

/// State of the console routes in addition to the API's.
#[derive(Debug, Clone)]
pub(crate) struct ConsoleApi {
    /// Receives messages from people.
    pub(crate) inlet: InboundService,
    /// Stores the messages shown.
    pub(crate) store: Store,
}

/// Body of `POST /v1/console/conversations/{id}/messages`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "struct Say")]
pub(crate) struct ConsoleMessageBody {
    /// Text of the message.
    pub(crate) text: String,
    /// The client's id of the message; the idempotency key when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message_id: Option<String>,
    /// Author of the message; the user at the other end of the socket when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) author: Option<String>,
}

/// Response to a [`ConsoleMessageBody`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ConsoleMessageResponse {
    /// Id of the message; sending it again returns the same response.
    pub(crate) message_id: String,
    /// Outcome of the message.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub(crate) outcome: Outcome,
}

/// Page of messages of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct MessagesPage {
    /// Messages in the order of their last change; an edited message is returned again, with the same number.
    #[schema(value_type = Vec<Object>)]
    pub(crate) messages: Vec<ConsoleMessage>,
    /// Cursor of the next page.
    pub(crate) next_after: u64,
}

/// Response to `GET /v1/console/conversations/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ConversationView {
    /// Session bound to the conversation; absent if none is.
    #[schema(value_type = Option<String>)]
    pub(crate) session_key: Option<SessionKey>,
    /// Machine-readable reason for the route.
    pub(crate) reason: String,
}

/// Query of `GET /v1/console/conversations/{id}/messages`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct MessagesQuery {
    /// Returns only messages created or changed after this revision.
    #[param(value_type = Option<u64>)]
    after: Option<Cursor>,
    /// Maximum number of messages in the page.
    limit: Option<u64>,
}

/// Router of the paths below `/v1/console`.
pub(crate) fn router(api: Api, console: ConsoleApi) -> Router {
    Router::new()
        .route("/v1/console/conversations/{id}", get(show))
        .route("/v1/console/conversations/{id}/messages", post(post_message).get(messages))
        .method_not_allowed_fallback(no_such_method)
        .layer(axum::extract::DefaultBodyLimit::disable())
        .layer(Extension(console))
        .with_state(api)
}

fn name(path: Result<Path<String>, PathRejection>) -> Result<String, ApiError> {
    let Path(id) = path.map_err(|error| ApiError::usage(error.body_text()))?;
    if id.is_empty() || id.len() > NAME_BYTES_MAX || id.chars().any(char::is_control) {
        return Err(ApiError::usage(format!(
            "the name of a conversation must have 1 to {NAME_BYTES_MAX} bytes and no control characters"
        )));
    }
    Ok(id)
}

async fn show(
    Extension(console): Extension<ConsoleApi>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<ConversationView>, ApiError> {
    let at = conversation(&name(path)?);
    let route = console.inlet.router().peek_inbound(&at).await.map_err(Failure::from)?.route;
    let reason = route.reason().to_owned();
    let session_key = match route {
        Route::Bound { session_key, .. } => Some(session_key),
        Route::Unbound { .. } | Route::Refused { .. } => None,
    };
    Ok(Json(ConversationView { session_key, reason }))
}

async fn post_message(
    Extension(console): Extension<ConsoleApi>,
    path: Result<Path<String>, PathRejection>,
    IdempotencyKeyHeader(key): IdempotencyKeyHeader,
    Caller(caller): Caller,
    JsonBody(say): JsonBody<ConsoleMessageBody>,
) -> Result<Json<ConsoleMessageResponse>, ApiError> {
    let id = name(path)?;
    let message_id = say.message_id.unwrap_or_else(|| key.as_str().to_owned());
    let author = author(&caller, say.author)?;
    let inbound = Inbound::new(conversation(&id), message_id.clone(), author, say.text);
    let outcome = console.inlet.accept(inbound).await?;
    Ok(Json(ConsoleMessageResponse { message_id, outcome }))
}

async fn messages(
    State(api): State<Api>,
    Extension(console): Extension<ConsoleApi>,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    query: Result<Query<MessagesQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let id = name(path)?;
    let Query(query) = query.map_err(|error| ApiError::usage(error.body_text()))?;
    let limit = query.limit.unwrap_or(PAGE_ROWS_MAX).clamp(1, PAGE_ROWS_MAX);
    let after = query.after.unwrap_or_default().0;
    if !cursor::accepts_stream(&headers) {
        let messages = read(&console.store, &id, after, limit).await.map_err(Failure::from)?;
        let next_after = messages.last().map_or(after, |message| message.revision);
        return Ok(Json(MessagesPage { messages, next_after }).into_response());
    }
    let cursor = cursor::resume(&headers, query.after)?;
    let viewer = ConversationReader {
        wake: console.store.committed(),
        store: console.store,
        api,
        id,
        cursor,
        is_over: false,
    };
    Ok(cursor::event_stream(stream::unfold(viewer, |mut viewer| async move {
        let batch = viewer.next().await?;
        Some((batch, viewer))
    })))
}

async fn read(
    store: &Store,
    id: &str,
    after: u64,
    limit: u64,
) -> Result<Vec<ConsoleMessage>, acp_store::StoreError> {
    let id = id.to_owned();
    store.read("console_messages", move |db| console::after(db, &id, after, limit)).await
}

/// Stream of messages of one conversation, as a cursor over its rows.
struct ConversationReader {
    wake: watch::Receiver<u64>,
    store: Store,
    api: Api,
    id: String,
    cursor: u64,
    is_over: bool,
}

impl ConversationReader {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.is_over {
            return None;
        }
        loop {
            self.wake.mark_unchanged();
            let messages = match read(&self.store, &self.id, self.cursor, PAGE_ROWS_MAX).await {
                Ok(messages) => messages,
                Err(error) => {
                    tracing::warn!(%error, "console stream failed");
                    self.is_over = true;
                    return Some(Err(io::Error::other(error)));
                }
            };
            let mut out = String::new();
            for message in &messages {
                self.cursor = message.revision;
                if let Ok(line) = serde_json::to_string(message) {
                    // Writing into a String cannot fail.
                    let _ = write!(out, "id: {}\ndata: {line}\n\n", message.revision);
                }
            }
            if !out.is_empty() {
                return Some(Ok(Bytes::from(out)));
            }
            tokio::select! {
                () = self.api.ending.cancelled() => return None,
                changed = self.wake.changed() => if changed.is_err() { return None },
                () = tokio::time::sleep(Duration::from_millis(self.api.limits.keep_alive_ms)) => {
                    return Some(Ok(Bytes::from_static(b":\n\n")));
                }
            }
        }
    }
}
