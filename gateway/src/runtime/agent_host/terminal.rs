//! `terminal/*` requests of an agent. Each command is a lease of its own below the agent's lease (H16), so it
//! is supervised, has bounded output and ends with its session. The terminal id is the lease id, which the
//! caller mints and commits before it calls [`create`].
//!
//! Every call is idempotent by lease id and can be repeated after a crash.

use crate::supervisor::CallError;
use acp_core::jsonrpc::RpcError;
use acp_core::jsonrpc::{INTERNAL_ERROR, INVALID_PARAMS, LIMIT_REACHED, NOT_FOUND};
use acp_shared::ids::{LeaseId, SessionKey};
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Graces, LeaseKind, RefusalCode, Reply, Request, Spawn, Tail};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::future::Future;

/// Bytes of output kept per command if the agent sets no limit.
const OUTPUT_BYTES_DEFAULT: u64 = 1024 * 1024;
/// Upper bound of the limit that an agent may set, in bytes.
const OUTPUT_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Connection to the supervisor.
pub(crate) trait SupervisorCalls: Sync {
    /// True if requests can be sent now.
    fn is_connected(&self) -> bool;

    /// Sends one request and returns its reply.
    fn call(&self, request: Request) -> impl Future<Output = Result<Reply, CallError>> + Send;

    /// Waits until the lease's command has ended; returns at once if it already has. `None` if the lease is
    /// unknown and its exit status was not recorded.
    ///
    /// # Errors
    /// [`CallError::Disconnected`] if the connection to the supervisor was lost during the wait.
    fn exited(&self, lease_id: LeaseId)
    -> impl Future<Output = Result<Option<ExitStatus>, CallError>> + Send;
}

/// Failure of a terminal or file request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TerminalError {
    /// Error to send to the agent.
    #[error("{}", .0.message)]
    Rpc(RpcError),
    /// The supervisor does not answer now; repeat the call once it does.
    #[error("the supervisor does not answer")]
    Unavailable,
}

impl TerminalError {
    /// Converts to the error for the agent, for callers that do not retry.
    pub(crate) fn rpc(self) -> RpcError {
        match self {
            Self::Rpc(error) => error,
            Self::Unavailable => rpc(INTERNAL_ERROR, "the supervisor does not answer"),
        }
    }
}

impl From<CallError> for TerminalError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Disconnected => Self::Unavailable,
            CallError::Refused(refusal) if refusal.code == RefusalCode::LeaseUnknown => {
                Self::Rpc(no_terminal())
            }
            CallError::Refused(refusal) if refusal.code == RefusalCode::QuotaExceeded => {
                Self::Rpc(rpc(LIMIT_REACHED, &refusal.message))
            }
            CallError::Refused(refusal) => Self::Rpc(rpc(INTERNAL_ERROR, &refusal.to_string())),
        }
    }
}

pub(super) fn rpc(code: i64, message: &str) -> RpcError {
    RpcError { code, message: message.to_owned() }
}

fn no_terminal() -> RpcError {
    rpc(NOT_FOUND, "this session has no such terminal")
}

pub(super) fn unexpected() -> TerminalError {
    TerminalError::Rpc(rpc(INTERNAL_ERROR, "the supervisor sent an unexpected response"))
}

/// Session and lease in which a command runs.
#[derive(Debug)]
pub(crate) struct TerminalContext<'a> {
    /// The agent's lease; the terminal ends with it.
    pub(crate) parent_lease_id: LeaseId,
    /// The session.
    pub(crate) session_key: &'a SessionKey,
    /// Canonical paths of the session's roots.
    pub(crate) roots: Vec<String>,
    /// Canonical path of the working directory.
    pub(crate) cwd: String,
    /// Initial environment of this session's commands.
    pub(crate) env: &'a [(String, String)],
}

/// Command from the agent's request.
#[derive(Debug)]
pub(crate) struct TerminalCommand<'a> {
    /// Program, or a whole shell line if there are no arguments.
    pub(crate) command: &'a str,
    /// Arguments.
    pub(crate) args: &'a [String],
    /// Environment variables to add.
    pub(crate) env: &'a [(String, String)],
    /// Maximum number of output bytes to keep.
    pub(crate) output_bytes_max: Option<u64>,
}

/// Builds the spawn request of `terminal/create`, to be committed before it is sent.
///
/// # Errors
/// [`RpcError`] for an empty command or an invalid environment variable.
pub(crate) fn spawn_of(
    lease_id: LeaseId,
    place: TerminalContext<'_>,
    wanted: &TerminalCommand<'_>,
) -> Result<Spawn, RpcError> {
    let mut env = place.env.to_vec();
    for (name, value) in wanted.env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(rpc(INVALID_PARAMS, "an environment variable has an invalid name or value"));
        }
        env.retain(|(known, _)| known != name);
        env.push((name.clone(), value.clone()));
    }
    Ok(Spawn {
        lease_id,
        session_key: place.session_key.clone(),
        kind: LeaseKind::Terminal {
            parent_lease_id: place.parent_lease_id,
            output_bytes_max: wanted.output_bytes_max.unwrap_or(OUTPUT_BYTES_DEFAULT).min(OUTPUT_BYTES_MAX),
        },
        argv: argv(wanted.command, wanted.args)?,
        env,
        cwd: place.cwd,
        roots: place.roots,
        graces: Graces::default(),
    })
}

/// Builds the argv. Some agents send a program and arguments, others one line for a shell.
fn argv(command: &str, args: &[String]) -> Result<Vec<String>, RpcError> {
    if command.trim().is_empty() || command.contains('\0') || args.iter().any(|arg| arg.contains('\0')) {
        return Err(rpc(INVALID_PARAMS, "the command is empty or contains a NUL character"));
    }
    let is_line = |c: char| c.is_whitespace() || "|&;<>()$`\"'*?~#{}!=".contains(c);
    if args.is_empty() && command.contains(is_line) {
        return Ok(vec!["/bin/sh".to_owned(), "-c".to_owned(), command.to_owned()]);
    }
    Ok(std::iter::once(command.to_owned()).chain(args.iter().cloned()).collect())
}

/// Handles `terminal/create`. Returns the result as JSON text. The lease id must be committed before.
///
/// # Errors
/// [`TerminalError`].
pub(crate) async fn create(supervisor: &impl SupervisorCalls, spawn: Spawn) -> Result<String, TerminalError> {
    let lease_id = spawn.lease_id;
    match supervisor.call(Request::Spawn(spawn)).await? {
        Reply::Spawned(_) => Ok(created(lease_id)),
        _ => Err(unexpected()),
    }
}

/// Result of `terminal/create` as JSON text.
pub(crate) fn created(lease_id: LeaseId) -> String {
    json!({ "terminalId": lease_id.to_string() }).to_string()
}

/// Returns the lease of a terminal id if it belongs to this session.
///
/// # Errors
/// [`RpcError`] if it does not.
pub(crate) fn find(terminal_id: &str, allowed: &BTreeSet<LeaseId>) -> Result<LeaseId, RpcError> {
    let lease_id = LeaseId::parse(terminal_id).ok().filter(|id| allowed.contains(id));
    lease_id.ok_or_else(no_terminal)
}

/// Handles `terminal/output`. Returns the result as JSON text.
///
/// # Errors
/// [`TerminalError`].
pub(crate) async fn output(
    supervisor: &impl SupervisorCalls,
    lease_id: LeaseId,
) -> Result<String, TerminalError> {
    let tail = tail(supervisor, lease_id).await?;
    let mut result = json!({ "output": text(&tail), "truncated": tail.truncated });
    if let (Some(exit), Some(result)) = (tail.exit, result.as_object_mut()) {
        result.insert("exitStatus".to_owned(), exit_status(Some(exit)));
    }
    Ok(result.to_string())
}

/// Handles `terminal/wait_for_exit`. Returns the result as JSON text.
///
/// # Errors
/// [`TerminalError`]; the wait can be repeated.
pub(crate) async fn wait_for_exit(
    supervisor: &impl SupervisorCalls,
    lease_id: LeaseId,
) -> Result<String, TerminalError> {
    let exit = supervisor.exited(lease_id).await?;
    Ok(exit_status(exit).to_string())
}

/// Handles `terminal/kill`: stops the command, its output stays readable. Returns the result as JSON text.
///
/// # Errors
/// [`TerminalError`].
pub(crate) async fn kill(
    supervisor: &impl SupervisorCalls,
    lease_id: LeaseId,
) -> Result<String, TerminalError> {
    let reason = "terminal/kill".to_owned();
    match supervisor.call(Request::CloseLease { lease_id, reason }).await {
        Ok(Reply::Closing { .. }) => Ok("{}".to_owned()),
        Ok(_) => Err(unexpected()),
        // The command has already ended, as requested.
        Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::LeaseEnded => Ok("{}".to_owned()),
        Err(error) => Err(error.into()),
    }
}

/// Handles `terminal/release`: stops the command and discards its output. Returns the result as JSON text.
///
/// # Errors
/// [`TerminalError`].
pub(crate) async fn release(
    supervisor: &impl SupervisorCalls,
    lease_id: LeaseId,
) -> Result<String, TerminalError> {
    for request in [
        Request::CloseLease { lease_id, reason: "terminal/release".to_owned() },
        Request::Release { lease_id },
    ] {
        match supervisor.call(request).await {
            // A refused lease is released by the supervisor once its process tree is gone.
            Ok(_) | Err(CallError::Refused(_)) => {}
            Err(CallError::Disconnected) => return Err(TerminalError::Unavailable),
        }
    }
    Ok("{}".to_owned())
}

async fn tail(supervisor: &impl SupervisorCalls, lease_id: LeaseId) -> Result<Tail, TerminalError> {
    match supervisor.call(Request::Tail { lease_id }).await? {
        Reply::Tail(tail) => Ok(tail),
        _ => Err(unexpected()),
    }
}

/// Decodes the output, without a character cut off by the size limit or not yet complete at the end.
fn text(tail: &Tail) -> String {
    let mut bytes = tail.bytes.as_slice();
    if tail.truncated {
        let cut = bytes.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
        bytes = bytes.get(cut..).unwrap_or_default();
    }
    if tail.exit.is_none()
        && let Some(unfinished) = bytes.utf8_chunks().last().map(|chunk| chunk.invalid())
        && std::str::from_utf8(unfinished).is_err_and(|error| error.error_len().is_none())
    {
        bytes = bytes.get(..bytes.len() - unfinished.len()).unwrap_or_default();
    }
    String::from_utf8_lossy(bytes).into_owned()
}

fn exit_status(exit: Option<ExitStatus>) -> Value {
    let (code, signal) = match exit {
        Some(ExitStatus::Exited(code)) => (Some(code), None),
        Some(ExitStatus::Signaled(number)) => (None, Some(signal_name(number))),
        Some(ExitStatus::Unknown) | None => (None, None),
    };
    json!({ "exitCode": code, "signal": signal })
}

fn signal_name(number: i32) -> String {
    let known = nix::sys::signal::Signal::try_from(number);
    known.map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().to_owned())
}

#[cfg(test)]
#[path = "terminal_tests.rs"]
pub(crate) mod tests;
