//! Streams of server-sent events, and the row numbers from which clients continue to read.

use crate::api::extract::ApiError;
use acp_core::api::PRUNED_SEQ_HEADER;
use acp_core::failure::Failure;
use acp_store::events;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use futures_util::Stream;
use serde::Deserialize;
use std::io;

/// Name of the header with the last number that a reconnecting client received.
const LAST_EVENT_ID: &str = "last-event-id";

/// Row number sent by a client. Limited to 63 bits, since the store uses signed 64-bit integers.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(try_from = "u64")]
pub(super) struct Cursor(pub(super) u64);

impl TryFrom<u64> for Cursor {
    type Error = &'static str;

    fn try_from(number: u64) -> Result<Self, Self::Error> {
        i64::try_from(number).map(|_| Self(number)).map_err(|_| "the number must be below 2^63")
    }
}

/// Returns the number after which a stream starts: `Last-Event-ID`, else `after`.
///
/// # Errors
/// `USAGE` if the header is no such number.
pub(super) fn resume(headers: &HeaderMap, after: Option<Cursor>) -> Result<u64, ApiError> {
    Ok(resume_optional(headers, after)?.unwrap_or_default())
}

/// As [`resume`], but `None` if the client names no number.
///
/// # Errors
/// `USAGE` if the header is no such number.
pub(super) fn resume_optional(headers: &HeaderMap, after: Option<Cursor>) -> Result<Option<u64>, ApiError> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(after.map(|cursor| cursor.0)) };
    let number = value.to_str().ok().and_then(|text| text.parse::<u64>().ok());
    match number.map(Cursor::try_from) {
        Some(Ok(cursor)) => Ok(Some(cursor.0)),
        Some(Err(_)) | None => Err(ApiError::usage("Last-Event-ID must be a number below 2^63")),
    }
}

/// Returns the number after which a reader continues: the last pruned one without a cursor, so that rows which are pruned
/// before they are read are missed by nobody unnoticed.
///
/// # Errors
/// `CURSOR_PRUNED`.
pub(super) fn start(cursor: u64, pruned: u64) -> Result<u64, Failure> {
    Ok(events::start(events::position(cursor), pruned)?)
}

/// Names the last pruned row in a header of the response.
pub(super) fn tell_pruned(response: &mut Response, pruned: u64) {
    if pruned > 0 {
        response.headers_mut().insert(HeaderName::from_static(PRUNED_SEQ_HEADER), pruned.into());
    }
}

/// Content type of a stream of server-sent events.
const EVENT_STREAM: &str = "text/event-stream";

/// True if the client accepts a stream instead of a page.
pub(super) fn accepts_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains(EVENT_STREAM))
}

/// Builds the response that streams these pieces.
pub(super) fn event_stream(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(pieces));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
