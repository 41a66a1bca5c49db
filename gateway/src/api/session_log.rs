//! Log of a session: standard error of its agents, stored by the supervisor.

use crate::api::Api;
use crate::api::extract::{ApiError, Json, SessionKeyPath};
use acp_core::api::LogPage;
use acp_core::mcp;
use acp_core::secrets::Secrets;
use acp_shared::ids::SessionKey;
use acp_shared::protocol::{LogFrom, LogPiece};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use utoipa::IntoParams;

/// Default number of lines in a response.
const LINES: u32 = 100;
/// Size of the end of the log that is searched for the last lines, in bytes.
const TAIL_BYTES: u64 = 2 * 1024 * 1024;
/// Maximum number of pieces read for one response.
const PIECES_MAX: u32 = 16;

/// Query of `GET /v1/sessions/{key}/log`.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogQuery {
    /// Returns the lines from this byte offset on.
    offset: Option<u64>,
    /// Returns this number of lines from the end.
    lines: Option<u32>,
}

/// `GET /v1/sessions/{key}/log`: the last lines, or lines from an offset on.
pub(crate) async fn log(
    State(api): State<Api>,
    SessionKeyPath(key): SessionKeyPath,
    query: Result<Query<LogQuery>, QueryRejection>,
) -> Result<Json<LogPage>, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::usage(error.body_text()))?;
    let session = api.service.session(&key).await?;
    let piece = match (query.offset, query.lines) {
        (Some(_), Some(_)) => return Err(ApiError::usage("give either offset or lines, not both")),
        (Some(offset), None) => api.service.session_log(&key, LogFrom::Offset(offset)).await?,
        (None, lines) => last_lines(&api, &key, lines.unwrap_or(LINES)).await?,
    };
    let next_offset = piece.offset + piece.bytes.len() as u64;
    let mut text = String::from_utf8_lossy(&piece.bytes).into_owned();
    // The supervisor redacts the agent's environment, but does not know secrets sent over ACP.
    let loaded = api.service.config();
    let of_agent = loaded.config.agents.get(&session.agent).map(|agent| agent.mcp_servers.as_slice());
    let levels =
        [loaded.config.mcp_servers.as_slice(), of_agent.unwrap_or_default(), &session.options.mcp_servers];
    Secrets::new(&[], &mcp::merge_servers(levels)).redact_text(&mut text);
    Ok(Json(LogPage {
        text,
        offset: piece.offset,
        next_offset,
        more: next_offset < piece.end && !piece.bytes.is_empty(),
    }))
}

async fn last_lines(api: &Api, key: &SessionKey, lines: u32) -> Result<LogPiece, ApiError> {
    let mut all = api.service.session_log(key, LogFrom::End(TAIL_BYTES)).await?;
    for _ in 1..PIECES_MAX {
        let next = all.offset + all.bytes.len() as u64;
        if next >= all.end {
            break;
        }
        let piece = api.service.session_log(key, LogFrom::Offset(next)).await?;
        // A log that was truncated in the meantime does not continue at this offset.
        if piece.bytes.is_empty() || piece.offset != next {
            break;
        }
        all.bytes.extend(piece.bytes);
        all.end = piece.end;
    }
    let ends = memchr::memrchr_iter(b'\n', &all.bytes).nth(lines as usize);
    let cut = ends.map_or(0, |at| at + 1);
    all.bytes.drain(..cut);
    all.offset += cut as u64;
    Ok(all)
}
