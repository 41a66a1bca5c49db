//! Serves one request of an agent to its end: files on a thread that may block, terminals through the
//! supervisor.
//!
//! Each request is committed before it comes here, and may come again after a crash (design §9, H3): what only
//! looks is looked at again, a terminal is asked for under the same lease id, and a write is answered by what
//! stands in the file, never done twice.

use crate::agent_fs::{Roots, content_hash};
use crate::agent_terminal::{self as terminal, Command, Place, Supervise, TerminalError};
use crate::aside;
use crate::core::jsonrpc::{INTERNAL_ERROR, INVALID_PARAMS};
use crate::core::link::{RpcError, Wanted};
use crate::core::rows::AgentRequestRow;
use crate::supervisor::{CallError, FeedItem, Supervisor};
use acp_shared::ids::LeaseId;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{LeaseKind, RefusalCode, Reply, Request, Spawn};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// How long a supervisor that is away is waited for, in milliseconds.
const AWAY_MS: u64 = 5 * 60_000;
/// How long until it is asked again, in milliseconds.
const AGAIN_MS: u64 = 250;
/// How often an ending terminal is asked to be forgotten.
const FORGET_TRIES: u32 = 120;
/// First and longest wait between two looks at a running command, for news that went astray, in milliseconds.
const LOOK_MS: (u64, u64) = (1_000, 15_000);

/// A request, and where it is served.
#[derive(Debug)]
pub(crate) struct Serving {
    /// What is asked, and what was begun.
    pub(crate) row: AgentRequestRow,
    /// Whether an earlier gateway may have begun it.
    pub(crate) again: bool,
    /// The session's working directory: its root.
    pub(crate) cwd: String,
    /// The environment that commands start with.
    pub(crate) env: Vec<(String, String)>,
}

/// Serves a request. Safe to drop at any point: it can be served again.
///
/// # Errors
/// What the agent is told.
pub(crate) async fn serve<S>(supervisor: &S, serving: Serving) -> Result<String, RpcError>
where
    S: Supervise + Clone + Send + 'static,
{
    serve_within(supervisor, serving, AWAY_MS).await
}

async fn serve_within<S>(supervisor: &S, serving: Serving, away_ms: u64) -> Result<String, RpcError>
where
    S: Supervise + Clone + Send + 'static,
{
    let mut waited_ms = 0;
    loop {
        match attempt(supervisor, &serving).await {
            Err(TerminalError::Unavailable) if waited_ms < away_ms => {
                tokio::time::sleep(Duration::from_millis(AGAIN_MS)).await;
                waited_ms += AGAIN_MS;
            }
            outcome => return outcome.map_err(TerminalError::rpc),
        }
    }
}

async fn attempt<S>(supervisor: &S, serving: &Serving) -> Result<String, TerminalError>
where
    S: Supervise + Clone + Send + 'static,
{
    let ours = async |terminal_id: &str| find(supervisor, serving.row.lease_id, terminal_id).await;
    match &serving.row.ask.what {
        Wanted::FsRead { .. } | Wanted::FsWrite { .. } => files(serving).await.map_err(TerminalError::Rpc),
        Wanted::TerminalCreate { .. } => {
            let spawn = spawn_of(serving).await.map_err(TerminalError::Rpc)?;
            terminal::create(supervisor, spawn).await
        }
        Wanted::TerminalOutput { terminal_id } => {
            terminal::output(supervisor, ours(terminal_id).await?).await
        }
        Wanted::TerminalWait { terminal_id } => {
            terminal::wait_for_exit(supervisor, ours(terminal_id).await?).await
        }
        Wanted::TerminalKill { terminal_id } => terminal::kill(supervisor, ours(terminal_id).await?).await,
        Wanted::TerminalRelease { terminal_id } => {
            let lease_id = ours(terminal_id).await?;
            let result = terminal::release(supervisor, lease_id).await?;
            tokio::spawn(forget(supervisor.clone(), lease_id));
            Ok(result)
        }
        Wanted::Permission { .. } => {
            Err(TerminalError::Rpc(error(INTERNAL_ERROR, "a permission is not served here")))
        }
    }
}

fn error(code: i64, message: &str) -> RpcError {
    RpcError { code, message: message.to_owned() }
}

/// Opens the session's directory and does something in it, where that may block.
async fn blocking<T: Send + 'static>(
    cwd: &str,
    work: impl FnOnce(&Roots) -> Result<T, RpcError> + Send + 'static,
) -> Result<T, RpcError> {
    let cwd = PathBuf::from(cwd);
    let work = move || {
        let roots = Roots::open(&[cwd]);
        let gone = |why| error(INTERNAL_ERROR, &format!("the session's directory cannot be opened: {why}"));
        roots.map_err(gone).and_then(|roots| work(&roots))
    };
    let done = aside::run(work).await;
    done.unwrap_or_else(|_| Err(error(INTERNAL_ERROR, "the file could not be served")))
}

async fn files(serving: &Serving) -> Result<String, RpcError> {
    let again = serving.again;
    match serving.row.ask.what.clone() {
        Wanted::FsRead { path, line, limit } => {
            blocking(&serving.cwd, move |roots| roots.read(&path, line, limit)).await
        }
        Wanted::FsWrite { path, content } => {
            blocking(&serving.cwd, move |roots| {
                if !again {
                    return roots.write(&path, &content);
                }
                if roots.is_written(&path, &content_hash(&content)) {
                    return Ok("{}".to_owned());
                }
                let text =
                    "the host was restarted while this was written; look at the file before writing again";
                Err(error(INTERNAL_ERROR, text))
            })
            .await
        }
        _ => Err(error(INTERNAL_ERROR, "this is no request for a file")),
    }
}

async fn spawn_of(serving: &Serving) -> Result<Spawn, RpcError> {
    let Wanted::TerminalCreate { command, args, env, cwd, output_bytes_max } = serving.row.ask.what.clone()
    else {
        return Err(error(INVALID_PARAMS, "this is no request for a terminal"));
    };
    let lease_id = serving.row.intent.as_deref().and_then(|intent| LeaseId::parse(intent).ok());
    let lease_id = lease_id.ok_or_else(|| error(INTERNAL_ERROR, "the terminal has no lease id"))?;
    let (parent_lease_id, session_key) = (serving.row.lease_id, serving.row.session_key.clone());
    let (own_cwd, own_env) = (serving.cwd.clone(), serving.env.clone());
    blocking(&serving.cwd, move |roots| {
        let place = Place { parent_lease_id, session_key: &session_key, roots, cwd: &own_cwd, env: &own_env };
        let (command, args, env, cwd) = (&command, &args, &env, cwd.as_deref());
        terminal::spawn_of(lease_id, &place, &Command { command, args, env, cwd, output_bytes_max })
    })
    .await
}

/// The terminal of that id, if this agent process made it: the supervisor's own record says so.
async fn find<S: Supervise>(
    supervisor: &S,
    parent: LeaseId,
    terminal_id: &str,
) -> Result<LeaseId, TerminalError> {
    let Reply::Leases(leases) = supervisor.call(Request::ListLeases { detail: false }).await? else {
        return Err(TerminalError::Rpc(error(INTERNAL_ERROR, "the supervisor did not list its leases")));
    };
    let is_ours = |kind: &LeaseKind| matches!(kind, LeaseKind::Terminal { parent_lease_id, .. } if *parent_lease_id == parent);
    let ours: BTreeSet<LeaseId> =
        leases.iter().filter(|lease| is_ours(&lease.kind)).map(|lease| lease.lease_id).collect();
    terminal::find(terminal_id, &ours).map_err(TerminalError::Rpc)
}

/// A released terminal may take a moment to end; after that nothing of it is kept.
async fn forget<S: Supervise>(supervisor: S, lease_id: LeaseId) {
    for _ in 0..FORGET_TRIES {
        match supervisor.call(Request::Release { lease_id }).await {
            // "Has not ended": the only refusal that time changes.
            Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::BadRequest => {}
            Err(CallError::Disconnected) => {}
            Ok(_) | Err(CallError::Refused(_)) => return,
        }
        tokio::time::sleep(Duration::from_millis(2 * AGAIN_MS)).await;
    }
}

impl Supervise for Supervisor {
    async fn call(&self, request: Request) -> Result<Reply, CallError> {
        Supervisor::call(self, request).await
    }

    async fn exited(&self, lease_id: LeaseId) -> Result<Option<ExitStatus>, CallError> {
        // News first, then the look: what happens in between is not missed.
        let feed = self.feed(lease_id);
        let mut look_ms = LOOK_MS.0;
        loop {
            match Supervisor::call(self, Request::Tail { lease_id }).await {
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
                        if let FeedItem::Exited { status, .. } = item {
                            return Ok(Some(status));
                        }
                    }
                }
                () = tokio::time::sleep(Duration::from_millis(look_ms)) => look_ms = (look_ms * 2).min(LOOK_MS.1),
            }
        }
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
