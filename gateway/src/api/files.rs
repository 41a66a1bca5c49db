//! Files of a session, read-only: a helper of the supervisor reads them as the user of the agents, beneath the session's
//! directories.

use crate::api::Api;
use crate::api::access;
use crate::api::extract::{ApiError, Caller, Json, SessionKeyPath};
use crate::session::service::Service;
use acp_core::api::{DirectoriesView, EntriesView, EntryView, FileView, FilesView};
use acp_core::config::remote::LOCAL;
use acp_core::failure::Failure;
use acp_core::policy::{PolicyScope, effective_policy};
use acp_core::rows::SessionRow;
use acp_shared::codes::Code;
use acp_shared::files::{
    ENTRIES_MAX, FilesEntry, FilesError, FilesOp, FilesReply, NAME_BYTES_MAX, READ_BYTES_MAX,
};
use acp_shared::ids::{AgentName, SessionKey};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;
use utoipa::IntoParams;

/// Maximum number of completions of a directory.
const DIRECTORIES_MAX: usize = 200;

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
            match service
                .read_files(session.options.host_name(), roots.clone(), op)
                .await?
                .map_err(file_error)?
            {
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

/// Query of `GET /v1/sessions/{key}/files/entries`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EntriesQuery {
    /// Directory: an absolute path, or one relative to the working directory, which is the default.
    path: Option<String>,
}

/// `GET /v1/sessions/{key}/files/entries`: a directory of the session.
pub(crate) async fn entries(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
    query: Result<Query<EntriesQuery>, QueryRejection>,
) -> Result<Json<EntriesView>, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::usage(error.body_text()))?;
    let session = api.service.session(&key).await?;
    let path = query.path.map_or_else(|| Ok(session.cwd.clone()), |path| absolute(&session, path))?;
    let roots = api.service.file_roots(&session);
    let host = session.options.host_name();
    let (found, more) = list(api.service.as_ref(), host, roots, path).await?.map_err(file_error)?;
    let view = |FilesEntry { name, is_directory, size }| EntryView { name, is_directory, size };
    Ok(Json(EntriesView { entries: found.into_iter().map(view).collect(), more }))
}

async fn list(
    service: &dyn Service,
    host: &str,
    roots: Vec<String>,
    path: String,
) -> Result<Result<(Vec<FilesEntry>, bool), FilesError>, Failure> {
    let op = FilesOp::List { path, entries_max: ENTRIES_MAX };
    match service.read_files(host, roots, op).await? {
        Ok(FilesReply::List { entries, more }) => Ok(Ok((entries, more))),
        Ok(_) => Err(Failure::of(Code::ProtocolError).origin("supervisor")),
        Err(error) => Ok(Err(error)),
    }
}

/// Query of `GET /v1/directories`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DirectoriesQuery {
    /// Agent of the session to start; absent takes the configured default.
    #[param(value_type = Option<String>)]
    agent: Option<AgentName>,
    /// Prefix of the path; absent lists the directories that the configuration allows.
    prefix: Option<String>,
    /// Host of the directories; absent means the gateway's machine.
    host: Option<String>,
}

/// `GET /v1/directories`: completes the working directory of a new session.
pub(crate) async fn directories(
    State(api): State<Api>,
    Caller(caller): Caller,
    query: Result<Query<DirectoriesQuery>, QueryRejection>,
) -> Result<Json<DirectoriesView>, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::usage(error.body_text()))?;
    let loaded = api.service.config();
    let agent = query.agent.or_else(|| loaded.config.acp.default_agent.clone());
    if agent.as_ref().is_some_and(|agent| !caller.may_use_agent(agent.as_str())) {
        return Err(Failure::of(Code::AgentNotAllowed).into());
    }
    // A session is not started for an agent either.
    if agent.is_none() || caller.acts_for.is_some() {
        access::require_all_agents(&caller)?;
    }
    let scope = agent.map_or_else(PolicyScope::default, |agent| PolicyScope::default().with_agent(&agent));
    let policy = effective_policy(&loaded, &scope);
    let allowed =
        [&policy.cwd_roots.value, &policy.workspace_roots.value].into_iter().find(|roots| !roots.is_empty());
    let roots: Vec<String> = allowed.map_or_else(
        || vec!["/".to_owned()],
        |roots| roots.iter().map(|root| root.display().to_string()).collect(),
    );
    let prefix = query.prefix.unwrap_or_default();
    if prefix.len() > NAME_BYTES_MAX || prefix.contains('\0') {
        return Err(ApiError::usage(format!(
            "the prefix is longer than {NAME_BYTES_MAX} bytes, or has a NUL byte"
        )));
    }
    let mut found: Vec<String> = roots.iter().filter(|root| root.starts_with(&prefix)).cloned().collect();
    let mut more = false;
    if let Some((parent, name)) = prefix.rsplit_once('/') {
        let parent = if parent.is_empty() { "/" } else { parent };
        let within: Vec<String> =
            roots.into_iter().filter(|root| FilePath::new(parent).starts_with(root)).collect();
        if !within.is_empty() {
            // A directory that cannot be read has no completions.
            let host = query.host.as_deref().unwrap_or(LOCAL);
            let listed = list(api.service.as_ref(), host, within, parent.to_owned()).await?;
            let (entries, others) = listed.unwrap_or_default();
            more = others;
            let fits = |entry: &FilesEntry| {
                entry.is_directory
                    && entry.name.starts_with(name)
                    && (name.starts_with('.') || !entry.name.starts_with('.'))
            };
            let path = |entry: FilesEntry| format!("{}/{}", parent.trim_end_matches('/'), entry.name);
            found.extend(entries.into_iter().filter(fits).map(path));
        }
    }
    found.sort_unstable();
    found.dedup();
    more |= found.len() > DIRECTORIES_MAX;
    found.truncate(DIRECTORIES_MAX);
    Ok(Json(DirectoriesView { directories: found, more }))
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
    let roots = service.file_roots(&session);
    match service.read_files(session.options.host_name(), roots, op).await?.map_err(file_error)? {
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
