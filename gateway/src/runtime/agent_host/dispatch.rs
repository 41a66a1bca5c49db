//! Executes one request of an agent (files and terminals) through the supervisor.
//!
//! Each request is committed before it is executed, and may be repeated after a crash (H3): reads
//! are repeated, a terminal is requested under the same lease id, and a write is answered from the content of
//! the file, never repeated.

use crate::runtime::agent_host::fs::{self as files, Project};
use crate::runtime::agent_host::terminal;
use crate::runtime::agent_host::terminal::{
    SupervisorCalls, TerminalCommand, TerminalContext, TerminalError, rpc,
};
use crate::supervisor::{CallError, SupervisorClient};
use acp_core::backend::AgentRequestKind;
use acp_core::host::{DecisionReason, HostEffect, Inspection};
use acp_core::jsonrpc::RpcError;
use acp_core::jsonrpc::{INTERNAL_ERROR, INVALID_PARAMS, REFUSED};
use acp_core::rows::AgentRequestRow;
use acp_shared::backoff::Backoff;
use acp_shared::ids::LeaseId;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{LeaseKind, Notice, RefusalCode, Reply, Request, Spawn};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Maximum wait for a disconnected supervisor, in milliseconds.
const DISCONNECTED_WAIT_MS: u64 = 5 * 60_000;
/// Delay between attempts, in milliseconds.
const RETRY_MS: u64 = 250;
/// Maximum number of attempts to release an ending terminal.
const RELEASE_ATTEMPTS_MAX: u32 = 120;
/// Intervals between two polls of a running command, in case a notice was lost.
const POLL_BACKOFF: Backoff = Backoff::new(1_000, 15_000);

/// Request, and its execution environment.
#[derive(Debug)]
pub(crate) struct AgentRequestJob {
    /// The agent's request and the recorded intent.
    pub(crate) row: AgentRequestRow,
    /// True if an earlier gateway may have started the request.
    pub(crate) again: bool,
    /// Directories of the session, the working directory first.
    pub(crate) roots: Vec<String>,
    /// Initial environment of commands.
    pub(crate) env: Vec<(String, String)>,
    /// True once the request is recalled: no further part of it is started after that.
    pub(crate) recalled: Arc<AtomicBool>,
}

/// Executes a request. Safe to drop at any point: it can be executed again.
///
/// # Errors
/// Error for the agent.
pub(crate) async fn serve<S>(supervisor: &S, job: AgentRequestJob) -> Result<String, RpcError>
where
    S: SupervisorCalls + Clone + Send + 'static,
{
    serve_within(supervisor, job, DISCONNECTED_WAIT_MS).await
}

async fn serve_within<S>(supervisor: &S, job: AgentRequestJob, wait_ms: u64) -> Result<String, RpcError>
where
    S: SupervisorCalls + Clone + Send + 'static,
{
    let (mut is_uncertain, mut wait_budget) = (job.again, ReconnectWait(wait_ms));
    loop {
        let is_recalled = job.recalled.load(Ordering::Relaxed);
        if is_recalled && !(is_uncertain && HostEffect::of(&job.row.request.what).is_some()) {
            return Err(recalled());
        }
        let outcome = attempt(supervisor, &job, &mut is_uncertain).await;
        if !matches!(outcome, Err(TerminalError::Unavailable)) || !wait_budget.wait().await {
            return outcome.map_err(TerminalError::rpc);
        }
    }
}

/// Returns the error for a recalled effect that was not started.
fn recalled() -> RpcError {
    rpc(REFUSED, DecisionReason::Stopped.refusal())
}

/// Remaining wait for a disconnected supervisor, in milliseconds.
struct ReconnectWait(u64);

impl ReconnectWait {
    /// Waits before the next attempt; false if no time is left.
    async fn wait(&mut self) -> bool {
        let Some(left) = self.0.checked_sub(RETRY_MS) else { return false };
        self.0 = left;
        tokio::time::sleep(Duration::from_millis(RETRY_MS)).await;
        true
    }
}

/// Makes one attempt. `is_uncertain` is true if an earlier one may have written the file or started the
/// command.
async fn attempt<S>(
    supervisor: &S,
    job: &AgentRequestJob,
    is_uncertain: &mut bool,
) -> Result<String, TerminalError>
where
    S: SupervisorCalls + Clone + Send + 'static,
{
    let ours = async |terminal_id: &str| find(supervisor, job.row.lease_id, terminal_id).await;
    let project = Project { lease_id: job.row.lease_id, roots: &job.roots };
    match &job.row.request.what {
        AgentRequestKind::FsRead { path, line, limit } => {
            files::read(supervisor, project, path, *line, *limit).await
        }
        AgentRequestKind::FsWrite { path, content } => {
            files::write(supervisor, project, path, content, is_uncertain).await
        }
        // A recalled command that may have been started is only looked up.
        AgentRequestKind::TerminalCreate { .. } if job.recalled.load(Ordering::Relaxed) => {
            let terminal_id = job.row.intent.as_deref().unwrap_or_default();
            let lease_id = ours(terminal_id).await.map_err(|error| match error {
                TerminalError::Unavailable => TerminalError::Unavailable,
                TerminalError::Rpc(_) => TerminalError::Rpc(recalled()),
            })?;
            Ok(terminal::created(lease_id))
        }
        AgentRequestKind::TerminalCreate { .. } => {
            let spawn = spawn_of(supervisor, project, job).await?;
            *is_uncertain = true;
            terminal::create(supervisor, spawn).await
        }
        AgentRequestKind::TerminalOutput { terminal_id } => {
            terminal::output(supervisor, ours(terminal_id).await?).await
        }
        AgentRequestKind::TerminalWait { terminal_id } => {
            terminal::wait_for_exit(supervisor, ours(terminal_id).await?).await
        }
        AgentRequestKind::TerminalKill { terminal_id } => {
            terminal::kill(supervisor, ours(terminal_id).await?).await
        }
        AgentRequestKind::TerminalRelease { terminal_id } => {
            let lease_id = ours(terminal_id).await?;
            let result = terminal::release(supervisor, lease_id).await?;
            tokio::spawn(release_after_exit(supervisor.clone(), lease_id));
            Ok(result)
        }
        AgentRequestKind::Permission { .. } | AgentRequestKind::Elicitation { .. } => {
            Err(TerminalError::Rpc(rpc(INTERNAL_ERROR, "questions are not served here")))
        }
    }
}

/// Inspects the target of a write in the session's directory. Safe to drop at any point.
///
/// # Errors
/// Error for the agent: the path does not exist, or is outside of the session's roots.
pub(crate) async fn inspect<S: SupervisorCalls>(
    supervisor: &S,
    row: &AgentRequestRow,
    roots: &[String],
) -> Result<Inspection, RpcError> {
    let AgentRequestKind::FsWrite { path, content } = &row.request.what else {
        return Err(rpc(INTERNAL_ERROR, "this is not a request to write a file"));
    };
    let project = Project { lease_id: row.lease_id, roots };
    let mut wait_budget = ReconnectWait(DISCONNECTED_WAIT_MS);
    loop {
        let outcome = files::inspect_target(supervisor, project, path, content).await;
        if !matches!(outcome, Err(TerminalError::Unavailable)) || !wait_budget.wait().await {
            return outcome.map_err(TerminalError::rpc);
        }
    }
}

async fn spawn_of(
    supervisor: &impl SupervisorCalls,
    project: Project<'_>,
    job: &AgentRequestJob,
) -> Result<Spawn, TerminalError> {
    let AgentRequestKind::TerminalCreate { command, args, env, cwd, output_bytes_max } =
        &job.row.request.what
    else {
        return Err(TerminalError::Rpc(rpc(INVALID_PARAMS, "this is not a request to create a terminal")));
    };
    let lease_id = job.row.intent.as_deref().and_then(|intent| LeaseId::parse(intent).ok());
    let without = || TerminalError::Rpc(rpc(INTERNAL_ERROR, "the terminal has no lease id"));
    let lease_id = lease_id.ok_or_else(without)?;
    let wanted = cwd.as_deref().or(job.roots.first().map(String::as_str)).unwrap_or_default();
    let (cwd, roots) = files::directory(supervisor, project, wanted).await?;
    let place = TerminalContext {
        parent_lease_id: job.row.lease_id,
        session_key: &job.row.session_key,
        roots,
        cwd,
        env: &job.env,
    };
    let command = TerminalCommand { command, args, env, output_bytes_max: *output_bytes_max };
    terminal::spawn_of(lease_id, place, &command).map_err(TerminalError::Rpc)
}

/// Returns the lease of a terminal id if this agent process created it, according to the supervisor.
async fn find<S: SupervisorCalls>(
    supervisor: &S,
    parent: LeaseId,
    terminal_id: &str,
) -> Result<LeaseId, TerminalError> {
    let Reply::Leases(leases) = supervisor.call(Request::ListLeases { detail: false }).await? else {
        return Err(TerminalError::Rpc(rpc(INTERNAL_ERROR, "the supervisor did not list its leases")));
    };
    let is_ours = |kind: &LeaseKind| matches!(kind, LeaseKind::Terminal { parent_lease_id, .. } if *parent_lease_id == parent);
    let ours: BTreeSet<LeaseId> =
        leases.iter().filter(|lease| is_ours(&lease.kind)).map(|lease| lease.lease_id).collect();
    terminal::find(terminal_id, &ours).map_err(TerminalError::Rpc)
}

/// Releases a terminal after the end of its command, which may take a moment, to discard the output.
async fn release_after_exit<S: SupervisorCalls>(supervisor: S, lease_id: LeaseId) {
    for _ in 0..RELEASE_ATTEMPTS_MAX {
        match supervisor.call(Request::Release { lease_id }).await {
            // "Has not ended": the only temporary refusal.
            Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::BadRequest => {}
            Err(CallError::Disconnected) => {}
            Ok(_) | Err(CallError::Refused(_)) => return,
        }
        tokio::time::sleep(Duration::from_millis(2 * RETRY_MS)).await;
    }
}

impl SupervisorCalls for SupervisorClient {
    fn is_connected(&self) -> bool {
        self.status().borrow().is_up()
    }

    async fn call(&self, request: Request) -> Result<Reply, CallError> {
        SupervisorClient::call(self, request).await
    }

    async fn exited(&self, lease_id: LeaseId) -> Result<Option<ExitStatus>, CallError> {
        // Subscribed before the poll, so that an exit in between is not missed.
        let feed = self.feed(lease_id);
        let mut backoff = POLL_BACKOFF;
        let mut interval = backoff.next_pause();
        loop {
            match SupervisorClient::call(self, Request::Tail { lease_id }).await {
                Ok(Reply::Tail(tail)) => {
                    if tail.exit.is_some() {
                        return Ok(tail.exit);
                    }
                }
                Ok(_) => return Ok(None),
                Err(CallError::Refused(refusal)) if refusal.code != RefusalCode::Busy => return Ok(None),
                Err(CallError::Refused(_)) => {}
                Err(CallError::Disconnected) => return Err(CallError::Disconnected),
            }
            tokio::select! {
                biased;
                items = feed.next() => {
                    for item in items {
                        if let Notice::Exited { status, .. } = item {
                            return Ok(Some(status));
                        }
                    }
                }
                () = tokio::time::sleep(interval) => interval = backoff.next_pause(),
            }
        }
    }
}

#[cfg(test)]
#[path = "dispatch_tests.rs"]
mod tests;
