//! `fs/*` requests of an agent, sent on to the supervisor: the gateway itself opens no file of a project.
//!
//! The supervisor's helper works as the user and within the confinement of the agent's lease. A write is
//! requested once (H3): if its reply is lost, the file is inspected and never written again.

use crate::runtime::agent_host::terminal::{SupervisorCalls, TerminalError, rpc, unexpected};
use crate::supervisor::CallError;
use acp_core::host;
use acp_core::host::{ANSWER_BYTES_MAX, FileContent, too_long_answer};
use acp_core::jsonrpc::{INTERNAL_ERROR, INVALID_PARAMS, NOT_FOUND, quoted, quoted_len};
use acp_shared::files::{
    FilesError, FilesOp, FilesReply, FilesRequest, FilesScope, Inspection, READ_BYTES_MAX,
};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{RefusalCode, Reply, Request};
use sha2::{Digest, Sha256};

/// Maximum size, in bytes, of an existing file that a permission request for a write is computed from.
const EXCERPT_BYTES_MAX: u64 = 256 * 1024;
/// Maximum length of a path in an error message, in characters.
const PATH_SHOWN_MAX: usize = 500;
/// Error message for a write that may have started but is not found in the file.
const UNKNOWN_WRITE: &str = "it is unknown whether this was written; check the file before writing again";

/// Session whose files are accessed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Project<'a> {
    /// The agent's lease.
    pub(crate) lease_id: LeaseId,
    /// Directories of the session, the working directory first.
    pub(crate) roots: &'a [String],
}

/// Handles `fs/read_text_file`. Returns the result as JSON text.
///
/// # Errors
/// [`TerminalError`].
pub(crate) async fn read(
    supervisor: &impl SupervisorCalls,
    project: Project<'_>,
    path: &str,
    line: Option<u64>,
    limit: Option<u64>,
) -> Result<String, TerminalError> {
    let op = FilesOp::Read { path: path.to_owned(), line, limit, bytes_max: READ_BYTES_MAX };
    match ask(supervisor, project, op, path).await? {
        FilesReply::Text(content) if quoted_len(&content) > ANSWER_BYTES_MAX => {
            Err(TerminalError::Rpc(too_long_answer()))
        }
        FilesReply::Text(content) => {
            // Built in place: the content may be large.
            let mut result = quoted(&content);
            drop(content);
            result.insert_str(0, "{\"content\":");
            result.push('}');
            Ok(result)
        }
        _ => Err(unexpected()),
    }
}

/// Handles `fs/write_text_file`. Returns the result as JSON text. `is_uncertain` is true if an earlier
/// attempt may have started; this function updates it for the next attempt.
///
/// # Errors
/// [`TerminalError`].
pub(crate) async fn write(
    supervisor: &impl SupervisorCalls,
    project: Project<'_>,
    path: &str,
    content: &str,
    is_uncertain: &mut bool,
) -> Result<String, TerminalError> {
    if !*is_uncertain {
        // A write that was not sent is certainly not done.
        if !supervisor.is_connected() {
            return Err(TerminalError::Unavailable);
        }
        let op = FilesOp::Write { path: path.to_owned(), content: content.as_bytes().to_vec() };
        match call(supervisor, project, op).await {
            Ok(Ok(FilesReply::Written)) => return Ok("{}".to_owned()),
            Ok(Ok(_)) => return Err(unexpected()),
            Ok(Err(error)) if !error.is_uncertain() => return Err(failed(&error, path)),
            Ok(Err(_)) => *is_uncertain = true,
            Err(CallError::Disconnected) => {
                *is_uncertain = true;
                return Err(TerminalError::Unavailable);
            }
            Err(error) => return Err(refused(error)),
        }
    }
    match inspect(supervisor, project, path, 0).await {
        Ok(Inspection { sha256: found_hash, .. }) if found_hash == Some(sha256(content)) => {
            Ok("{}".to_owned())
        }
        Err(TerminalError::Unavailable) => Err(TerminalError::Unavailable),
        Ok(_) | Err(TerminalError::Rpc(_)) => Err(error(INTERNAL_ERROR, UNKNOWN_WRITE)),
    }
}

/// Returns the state of a file, with its text if it has at most `text_bytes_max` bytes.
///
/// # Errors
/// [`TerminalError`].
pub(crate) async fn inspect(
    supervisor: &impl SupervisorCalls,
    project: Project<'_>,
    path: &str,
    text_bytes_max: u64,
) -> Result<Inspection, TerminalError> {
    match ask(supervisor, project, FilesOp::Inspect { path: path.to_owned(), text_bytes_max }, path).await? {
        FilesReply::Inspected(inspection) => Ok(inspection),
        _ => Err(unexpected()),
    }
}

/// Inspects the target of a write: canonical path, equality with the new content, and the old text to show.
///
/// # Errors
/// [`TerminalError`], as for the write.
pub(crate) async fn inspect_target(
    supervisor: &impl SupervisorCalls,
    project: Project<'_>,
    path: &str,
    content: &str,
) -> Result<host::Inspection, TerminalError> {
    let found = inspect(supervisor, project, path, EXCERPT_BYTES_MAX).await?;
    if path.ends_with('/') || (found.exists && !found.is_regular) {
        return Err(failed(&FilesError::NotRegular, path));
    }
    let real = found.canonical.ok_or_else(|| failed(&FilesError::BadPath, path))?;
    let is_same = found.sha256 == Some(sha256(content));
    let old = match found.text {
        _ if !found.exists => FileContent::Absent,
        Some(text) => FileContent::Text(text),
        None => FileContent::Opaque(found.size),
    };
    Ok(host::Inspection { path: real, is_same, old })
}

fn sha256(content: &str) -> String {
    format!("{:x}", Sha256::digest(content.as_bytes()))
}

/// Returns the canonical paths of a directory below one of the session's roots, and of the roots.
///
/// # Errors
/// [`TerminalError`].
pub(crate) async fn directory(
    supervisor: &impl SupervisorCalls,
    project: Project<'_>,
    path: &str,
) -> Result<(String, Vec<String>), TerminalError> {
    match ask(supervisor, project, FilesOp::Directory { path: path.to_owned() }, path).await? {
        FilesReply::Directory { path, roots } => Ok((path, roots)),
        _ => Err(unexpected()),
    }
}

async fn ask(
    supervisor: &impl SupervisorCalls,
    project: Project<'_>,
    op: FilesOp,
    path: &str,
) -> Result<FilesReply, TerminalError> {
    call(supervisor, project, op).await.map_err(refused)?.map_err(|error| failed(&error, path))
}

async fn call(
    supervisor: &impl SupervisorCalls,
    project: Project<'_>,
    op: FilesOp,
) -> Result<Result<FilesReply, FilesError>, CallError> {
    let scope = FilesScope::Lease(project.lease_id);
    let request = FilesRequest { scope, roots: project.roots.to_vec(), op };
    match supervisor.call(Request::Files(request)).await? {
        Reply::Files(result) => Ok(result),
        _ => Ok(Err(FilesError::Io { message: "the supervisor sent an unexpected response".to_owned() })),
    }
}

/// Maps temporary refusals (busy, shutting down) to `Unavailable`, so that the caller retries: nothing was
/// started.
fn refused(refusal: CallError) -> TerminalError {
    match refusal {
        CallError::Refused(refusal)
            if matches!(refusal.code, RefusalCode::Busy | RefusalCode::ShuttingDown) =>
        {
            TerminalError::Unavailable
        }
        CallError::Refused(refusal) if refusal.code == RefusalCode::LeaseEnded => {
            error(INTERNAL_ERROR, "the agent has ended")
        }
        CallError::Refused(refusal) => error(INTERNAL_ERROR, &refusal.message),
        CallError::Disconnected => TerminalError::Unavailable,
    }
}

/// Converts an error of the helper to the JSON-RPC error for the agent.
fn failed(failure: &FilesError, path: &str) -> TerminalError {
    let code = match failure {
        FilesError::NotFound => NOT_FOUND,
        FilesError::BadPath
        | FilesError::Outside
        | FilesError::NotRegular
        | FilesError::NotDirectory
        | FilesError::TooLarge { .. }
        | FilesError::NotUtf8 => INVALID_PARAMS,
        FilesError::Denied
        | FilesError::Unsupported
        | FilesError::Io { .. }
        | FilesError::NoHelper { .. }
        | FilesError::TimedOut { .. }
        | FilesError::Interrupted => INTERNAL_ERROR,
    };
    let path: String = path.chars().take(PATH_SHOWN_MAX).collect();
    error(code, &format!("{path}: {failure}"))
}

fn error(code: i64, message: &str) -> TerminalError {
    TerminalError::Rpc(rpc(code, message))
}

#[cfg(test)]
#[path = "fs_tests.rs"]
pub(crate) mod tests;
