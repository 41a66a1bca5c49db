//! A session's whole journal as one document, and the changes of files that its agent reported. Both read the journal in
//! bounded batches.

use crate::api::Api;
use crate::api::cursor;
use crate::api::extract::{ApiError, Json, SessionKeyPath};
use crate::session::service::Service;
use acp_core::api::DiffView;
use acp_core::event::{EventKind, EventRow};
use acp_core::event_json::{pruned_text, write_event};
use acp_core::failure::Failure;
use acp_core::render::diff::FileChanges;
use acp_core::transcript::Transcript;
use acp_shared::codes::Code;
use acp_shared::ids::{RunId, SessionKey};
use acp_store::events::JournalRows;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use serde::Deserialize;
use serde_json::json;
use std::io;
use utoipa::{IntoParams, ToSchema};

/// Maximum number of rows in a batch.
const BATCH_ROWS: u32 = 512;
/// Approximate maximum payload of a batch, in bytes.
const BATCH_BYTES: usize = 256 * 1024;
/// Maximum size of a diff, in bytes.
const DIFF_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Source of the changes in a diff.
const SOURCE: &str = "tool_calls";

/// Format of an export.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ExportFormat {
    /// All event lines.
    #[default]
    Jsonl,
    /// Text for people.
    Md,
}

/// Query of `GET /v1/sessions/{key}/export`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExportQuery {
    /// Format of the document; `jsonl` without it.
    #[param(inline)]
    format: Option<ExportFormat>,
}

/// Query of `GET /v1/sessions/{key}/diff`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DiffQuery {
    /// Returns only changes of this run.
    #[param(value_type = Option<String>)]
    run: Option<RunId>,
}

/// Reader of a journal up to its last row at the start of the request.
struct JournalExport {
    api: Api,
    key: SessionKey,
    cursor: u64,
    end: u64,
    writer: ExportWriter,
}

enum ExportWriter {
    Jsonl,
    Md(Transcript),
}

/// `GET /v1/sessions/{key}/export`.
pub(crate) async fn export(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
    query: Result<Query<ExportQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::usage(error.body_text()))?;
    let session = api.service.session(&key).await?;
    let pruned = session.pruned_seq;
    let (kind, note, writer) = match query.format.unwrap_or_default() {
        ExportFormat::Jsonl => ("application/x-ndjson", pruned_line(&key, pruned), ExportWriter::Jsonl),
        ExportFormat::Md => {
            let note = format!("> {}\n\n", pruned_text(pruned));
            ("text/markdown; charset=utf-8", note, ExportWriter::Md(Transcript::default()))
        }
    };
    let note = (pruned > 0).then(|| Ok(Bytes::from(note)));
    let reader = JournalExport { api, key, cursor: pruned, end: session.last_session_seq, writer };
    let pieces = stream::unfold(reader, |mut reader| async move {
        let piece = reader.next().await?;
        Some((piece, reader))
    });
    let mut response = Response::new(Body::from_stream(stream::iter(note).chain(pieces)));
    cursor::tell_pruned(&mut response, pruned);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// First line of an export whose earlier rows are pruned. Its type is none of an event.
fn pruned_line(key: &SessionKey, pruned_seq: u64) -> String {
    format!("{}\n", json!({ "type": "pruned", "session_key": key, "pruned_seq": pruned_seq }))
}

impl JournalExport {
    /// Returns the next piece; `None` after the last one.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        while self.cursor < self.end {
            let position = Some(self.cursor);
            let rows = match self.api.service.events_after(&self.key, position, BATCH_ROWS, BATCH_BYTES).await
            {
                Ok(found) => found.rows,
                Err(failure) => {
                    // Breaks the connection, so that the client does not take this for the end.
                    tracing::warn!(session_key = %self.key, %failure, "export failed");
                    self.cursor = self.end;
                    return Some(Err(io::Error::other(failure)));
                }
            };
            let Some(last) = rows.last() else { break };
            self.cursor = last.session_seq;
            let mut out = String::new();
            let end = self.end;
            rows.iter().filter(|row| row.session_seq <= end).for_each(|row| self.write(row, &mut out));
            if !out.is_empty() {
                return Some(Ok(Bytes::from(out)));
            }
        }
        None
    }

    fn write(&mut self, row: &EventRow, out: &mut String) {
        match &mut self.writer {
            ExportWriter::Jsonl => {
                write_event(row, out);
                out.push('\n');
            }
            ExportWriter::Md(transcript) => transcript.write(row, out),
        }
    }
}

/// `GET /v1/sessions/{key}/diff`.
pub(crate) async fn diff(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
    query: Result<Query<DiffQuery>, QueryRejection>,
) -> Result<Json<DiffView>, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::usage(error.body_text()))?;
    Ok(Json(read_diff(api.service.as_ref(), &key, query.run).await?))
}

/// Returns the changes of files that the agent of a session reported, of one run or of all.
///
/// # Errors
/// `NO_SESSION`.
pub(crate) async fn read_diff(
    service: &dyn Service,
    key: &SessionKey,
    only: Option<RunId>,
) -> Result<DiffView, Failure> {
    service.session(key).await?;
    if let Some(run) = only
        && service.run(key, run).await?.is_none()
    {
        let text = format!("The session has no run {run}.");
        return Err(Failure::new(Code::NoSession, text).origin("gateway"));
    }
    let mut changes = FileChanges::default();
    let mut position = None;
    let pruned_seq = loop {
        let JournalRows { pruned_seq, rows } =
            service.events_after(key, position, BATCH_ROWS, BATCH_BYTES).await?;
        let Some(last) = rows.last() else { break pruned_seq };
        position = Some(last.session_seq);
        let calls = |row: &&EventRow| matches!(row.kind, EventKind::ToolCall | EventKind::ToolCallUpdate);
        for row in rows.iter().filter(calls).filter(|row| only.is_none() || row.run_id == only) {
            if let Ok(update) = serde_json::from_str(&row.payload) {
                changes.add(&update);
            }
        }
    };
    // A comparison may take some tenths of a second.
    let text = tokio::task::spawn_blocking(move || changes.unified(DIFF_BYTES_MAX)).await;
    let text = text.map_err(|error| {
        tracing::error!(session_key = %key, %error, "comparison of changes failed");
        Failure::of(Code::Runtime).origin("gateway")
    })?;
    Ok(DiffView { run_id: only, diff: text.unwrap_or_default(), source: SOURCE.to_owned(), pruned_seq })
}
