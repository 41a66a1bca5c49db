//! Executes requests of agents for files and terminals, one task per request, so that a slow one delays no
//! other.
//!
//! A request that an earlier gateway may have started (`again`) follows H3: reads and waits are repeated,
//! terminals are requested again under the same lease id; a write is inspected and never repeated.

use crate::runtime::agent_host::dispatch::{AgentRequestJob, inspect, serve};
use crate::supervisor::SupervisorClient;
use acp_core::actor::ActorInput;
use acp_core::host::Inspection;
use acp_core::jsonrpc::RpcError;
use acp_core::rows::AgentRequestRow;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::{AbortHandle, JoinSet};

/// Result of work for a request.
#[derive(Debug)]
pub(crate) struct AgentRequestDone {
    /// Offset that names the request.
    pub(crate) at: u64,
    /// Result of the work.
    pub(crate) outcome: WorkResult,
}

/// Result of each kind of work.
#[derive(Debug)]
pub(crate) enum WorkResult {
    /// The request is done: its result as JSON text, or the error.
    Done(Result<String, RpcError>),
    /// The target of a write was inspected.
    Inspected(Result<Inspection, RpcError>),
}

impl AgentRequestDone {
    /// Converts the result to the actor's input.
    pub(crate) fn input(self) -> ActorInput {
        let at = self.at;
        match self.outcome {
            WorkResult::Done(outcome) => ActorInput::RequestDone { at, outcome },
            WorkResult::Inspected(found) => ActorInput::Inspected { at, found },
        }
    }
}

/// Requests of one session's agent in progress.
#[derive(Debug)]
pub(crate) struct AgentRequestExecutor {
    supervisor: SupervisorClient,
    tasks: JoinSet<AgentRequestDone>,
    running: HashMap<u64, (AbortHandle, Arc<AtomicBool>)>,
}

impl AgentRequestExecutor {
    /// Creates a performer without requests.
    pub(crate) fn new(supervisor: SupervisorClient) -> Self {
        Self { supervisor, tasks: JoinSet::new(), running: HashMap::new() }
    }

    /// Starts a request of an agent with these roots, whose commands start with the environment `env`.
    pub(crate) fn perform(
        &mut self,
        row: AgentRequestRow,
        again: bool,
        roots: Vec<String>,
        env: Vec<(String, String)>,
    ) {
        let at = row.request.at;
        let supervisor = self.supervisor.clone();
        let recalled = Arc::new(AtomicBool::new(row.request.is_recalled));
        let job = AgentRequestJob { row, again, roots, env, recalled: Arc::clone(&recalled) };
        self.start(at, recalled, async move { WorkResult::Done(serve(&supervisor, job).await) });
    }

    /// Inspects the target of a write.
    pub(crate) fn inspect(&mut self, row: AgentRequestRow, roots: Vec<String>) {
        let supervisor = self.supervisor.clone();
        self.start(row.request.at, Arc::default(), async move {
            WorkResult::Inspected(inspect(&supervisor, &row, &roots).await)
        });
    }

    fn start(
        &mut self,
        at: u64,
        recalled: Arc<AtomicBool>,
        work: impl Future<Output = WorkResult> + Send + 'static,
    ) {
        let handle = self.tasks.spawn(async move { AgentRequestDone { at, outcome: work.await } });
        self.running.insert(at, (handle, recalled));
    }

    /// Recalls a request: parts not yet sent to the supervisor are answered as stopped.
    pub(crate) fn recall(&mut self, at: u64) {
        if let Some((_, recalled)) = self.running.get(&at) {
            recalled.store(true, Ordering::Relaxed);
        }
    }

    /// Aborts a request whose result is no longer needed.
    pub(crate) fn forget(&mut self, at: u64) {
        if let Some((handle, _)) = self.running.remove(&at) {
            handle.abort();
        }
    }

    /// Waits for the next completed request. Safe to cancel; pending forever while no request is in progress.
    pub(crate) async fn next(&mut self) -> AgentRequestDone {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(done)) => {
                    self.running.remove(&done.at);
                    return done;
                }
                // Aborted by `forget`.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}
