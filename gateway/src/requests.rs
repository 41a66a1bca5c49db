//! Serves what agents ask for: files and terminals. One task for each request, so that a slow one holds up
//! nobody.
//!
//! What was begun by an earlier gateway (`again`) follows H3: reads are read again, waits wait again, terminals
//! are asked for again under the same lease id; a write is looked at and never done twice.

use crate::core::link::RpcError;
use crate::core::rows::{AgentRequestRow, SessionRow};
use crate::serve::{Serving, serve};
use crate::supervisor::Supervisor;
use std::collections::HashMap;
use tokio::task::{AbortHandle, JoinSet};

/// A request that is done.
#[derive(Debug)]
pub(crate) struct Performed {
    /// Offset that names it.
    pub(crate) at: u64,
    /// Result as JSON text, or the error.
    pub(crate) outcome: Result<String, RpcError>,
}

/// The requests of one session's agent that are being served.
#[derive(Debug)]
pub(crate) struct Performer {
    supervisor: Supervisor,
    tasks: JoinSet<Performed>,
    running: HashMap<u64, AbortHandle>,
}

impl Performer {
    /// Serves nothing yet.
    pub(crate) fn new(supervisor: Supervisor) -> Self {
        Self { supervisor, tasks: JoinSet::new(), running: HashMap::new() }
    }

    /// Begins to serve a request of `session`'s agent, whose commands start with the environment `env`.
    pub(crate) fn perform(
        &mut self,
        row: AgentRequestRow,
        again: bool,
        session: &SessionRow,
        env: Vec<(String, String)>,
    ) {
        let at = row.ask.at;
        let supervisor = self.supervisor.clone();
        let cwd = session.cwd.clone();
        let serving = Serving { row, again, cwd, env };
        let handle =
            self.tasks.spawn(async move { Performed { at, outcome: serve(&supervisor, serving).await } });
        self.running.insert(at, handle);
    }

    /// Nobody wants the answer any more.
    pub(crate) fn forget(&mut self, at: u64) {
        if let Some(handle) = self.running.remove(&at) {
            handle.abort();
        }
    }

    /// The next request that is done. Safe to cancel; never ends by itself.
    pub(crate) async fn next(&mut self) -> Performed {
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
