//! Files of a session, read-only: a helper of the supervisor reads them as the user of the agents, beneath the session's
//! directories.

use crate::api::Api;
use crate::api::extract::{ApiError, Caller, Json, SessionKeyPath};
use crate::session::service::Service;
use acp_core::api::{FileView, FilesView};
use acp_core::failure::Failure;
use acp_core::rows::SessionRow;
use acp_shared::codes::Code;
use acp_shared::files::{FilesError, FilesOp, FilesReply, NAME_BYTES_MAX, READ_BYTES_MAX};
use acp_shared::ids::SessionKey;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use utoipa::IntoParams;

/// Query of `GET /v1/sessions/{key}/files`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FilesQuery {
    /// File to inspect: an absolute path, or one relative to the working directory.
    path: Option<String>,
}

/// Query of `GET /v1/sessions/{key}/files/content`.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ContentQuery {
    /// File to read: an absolute path, or one relative to the working directory.
    path: String,
    /// First line to return, from 1.
    line: Option<u64>,
    /// Number of lines to return.
    limit: Option<u64>,
}

/// `GET /v1/sessions/{key}/files`: the session's directories, and the state of a file beneath them.
pub(crate) async fn files(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
    query: Result<Query<FilesQuery>, QueryRejection>,
) -> Result<Json<FilesView>, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::usage(error.body_text()))?;
    Ok(Json(inspect(api.service.as_ref(), &key, query.path).await?))
}

/// Returns the directories of a session, and the state of a file beneath them.
pub(crate) async fn inspect(
    service: &dyn Service,
    key: &SessionKey,
    path: Option<String>,
) -> Result<FilesView, ApiError> {
    let session = service.session(key).await?;
    let roots = service.file_roots(&session);
    let file = match path {
        None => None,
        Some(path) => {
            let path = absolute(&session, path)?;
            let op = FilesOp::Inspect { path: path.clone(), text_bytes_max: 0 };
            match service.read_files(roots.clone(), op).await?.map_err(file_error)? {
                FilesReply::Inspected(found) if found.exists => Some(FileView {
                    path: found.canonical.unwrap_or(path),
                    is_regular: found.is_regular,
                    size: found.size,
                    sha256: found.sha256,
                }),
                FilesReply::Inspected(_) => return Err(file_error(FilesError::NotFound)),
                _ => return Err(Failure::of(Code::ProtocolError).origin("supervisor").into()),
            }
        }
    };
    Ok(FilesView { roots, file })
}

/// `GET /v1/sessions/{key}/files/content`: the text of a file.
pub(crate) async fn content(
    State(api): State<Api>,
    Caller(sender): Caller,
    SessionKeyPath(key): SessionKeyPath,
    query: Result<Query<ContentQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(ContentQuery { path, line, limit }) =
        query.map_err(|error| ApiError::usage(error.body_text()))?;
    let bytes = usize::try_from(READ_BYTES_MAX).unwrap_or(usize::MAX);
    let taking = api.room.take_response(&sender, bytes);
    let Ok(room) = tokio::time::timeout(Duration::from_millis(api.limits.body_ms), taking).await else {
        return Err(ApiError::of(Code::LimitReached, "too many files are being read; try again later"));
    };
    let text = read(api.service.as_ref(), &key, path, line, limit).await?;
    // The type is fixed: a browser must not guess that a file of the project is a page of this origin.
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("x-content-type-options"), "nosniff"),
    ];
    let mut response = (headers, text).into_response();
    response.extensions_mut().insert(Arc::new(room));
    Ok(response)
}

/// Returns the text of a file of a session, or some of its lines.
pub(crate) async fn read(
    service: &dyn Service,
    key: &SessionKey,
    path: String,
    line: Option<u64>,
    limit: Option<u64>,
) -> Result<String, ApiError> {
    let session = service.session(key).await?;
    let op = FilesOp::Read { path: absolute(&session, path)?, line, limit, bytes_max: READ_BYTES_MAX };
    match service.read_files(service.file_roots(&session), op).await?.map_err(file_error)? {
        FilesReply::Text(text) => Ok(text),
        _ => Err(Failure::of(Code::ProtocolError).origin("supervisor").into()),
    }
}

/// Returns the absolute form of a path.
fn absolute(session: &SessionRow, path: String) -> Result<String, ApiError> {
    if path.is_empty() || path.contains('\0') {
        return Err(ApiError::usage("the path is empty or has a NUL byte"));
    }
    let path = if path.starts_with('/') { path } else { format!("{}/{path}", session.cwd) };
    if path.len() > NAME_BYTES_MAX {
        return Err(ApiError::usage(format!("the path is longer than {NAME_BYTES_MAX} bytes")));
    }
    Ok(path)
}

/// Converts an error of the helper. A file that may not be read answers like one that does not exist.
fn file_error(error: FilesError) -> ApiError {
    let failure = |code, text: String| Failure::new(code, text).origin("gateway");
    match error {
        FilesError::NotFound | FilesError::Outside | FilesError::Denied | FilesError::NotDirectory => {
            let text = "No such file in the session's directories.".to_owned();
            ApiError::from(failure(Code::Usage, text).detail("NO_SUCH_FILE")).status(StatusCode::NOT_FOUND)
        }
        FilesError::TooLarge { bytes_max } => {
            let text = format!("The file is larger than {bytes_max} bytes.");
            ApiError::from(failure(Code::LimitReached, text)).status(StatusCode::PAYLOAD_TOO_LARGE)
        }
        FilesError::BadPath | FilesError::NotRegular | FilesError::NotUtf8 => {
            ApiError::usage(format!("The file cannot be read: {error}."))
        }
        FilesError::Unsupported
        | FilesError::Io { .. }
        | FilesError::NoHelper { .. }
        | FilesError::TimedOut { .. }
        | FilesError::Interrupted => {
            tracing::warn!(%error, "file of a session cannot be read");
            failure(Code::BackendUnavailable, "The file cannot be read now.".to_owned()).retryable().into()
        }
    }
}
