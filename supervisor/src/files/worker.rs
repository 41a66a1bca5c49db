//! The queue of one helper: serves requests one by one, starts the helper when it is needed and ends it when it is
//! idle or does not answer.

use super::helper::Helper;
use super::{FilesJob, HelperJob, HelperKey};
use crate::context::Context;
use crate::link::Responder;
use acp_shared::files::{FilesError, FilesOp, FilesReply, FilesScope};
use acp_shared::protocol::{RefusalCode, Reply};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

/// Idle time of a helper without a lease: a spawn makes a few look-ups in a row.
const TENANT_IDLE: Duration = Duration::from_secs(1);
/// Time for which a request waits for the end of an earlier helper.
const ENDING: Duration = Duration::from_secs(2);

type Answer = Result<FilesReply, FilesError>;

/// The helper of a queue.
enum Slot {
    Empty,
    Starting(JoinHandle<Result<Helper, FilesError>>),
    Ready(Box<Helper>),
    /// Killed, with its pid. The next helper starts after its end, because its last write could still be done.
    Ending(i32, JoinHandle<()>),
}

struct Worker {
    context: Arc<Context>,
    key: HelperKey,
    slot: Slot,
}

/// Serves a queue until it has been idle for long enough, or `stop` is cancelled.
pub(super) async fn run(
    context: Arc<Context>,
    key: HelperKey,
    mut jobs: mpsc::Receiver<FilesJob>,
    stop: CancellationToken,
) {
    let idle = match key.scope {
        FilesScope::Lease(_) => Duration::from_millis(context.config.files_idle_ms),
        FilesScope::Tenant => TENANT_IDLE,
    };
    let mut worker = Worker { context, key, slot: Slot::Empty };
    loop {
        let job = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            job = timeout(idle, jobs.recv()) => job,
        };
        match job {
            Ok(Some(job)) => worker.job(job, &stop).await,
            Ok(None) => break,
            // Closed first, so that a request that came just now is still served.
            Err(_) => jobs.close(),
        }
    }
    jobs.close();
    while let Ok(job) = jobs.try_recv() {
        refuse(job.to);
    }
    worker.end().await;
}

fn refuse(to: Responder) {
    to.refuse(RefusalCode::ShuttingDown, "the supervisor is ending its file helpers; try again");
}

impl Worker {
    async fn job(&mut self, job: FilesJob, stop: &CancellationToken) {
        let FilesJob { op, to, _bytes } = job;
        // Its client has gone and may have settled the request already: what was not begun never is.
        if to.link().end().is_cancelled() {
            return;
        }
        let within_ms = self.context.config.files_request_ms;
        let until = Instant::now() + Duration::from_millis(within_ms);
        let answer = tokio::select! {
            biased;
            answer = self.serve(op, until, within_ms) => answer,
            () = stop.cancelled() => Err(FilesError::Interrupted),
        };
        to.answer(Ok(Reply::Files(answer)));
    }

    async fn serve(&mut self, op: FilesOp, until: Instant, within_ms: u64) -> Answer {
        loop {
            match &mut self.slot {
                Slot::Empty => {
                    let start = Helper::start(Arc::clone(&self.context), self.key.clone());
                    self.slot = Slot::Starting(tokio::spawn(start));
                }
                Slot::Starting(starting) => {
                    let Ok(started) = timeout_at(until, starting).await else {
                        let message = format!("it is not ready after {within_ms} ms");
                        return Err(FilesError::NoHelper { message });
                    };
                    self.slot = Slot::Empty;
                    let started = started
                        .unwrap_or_else(|panic| Err(FilesError::NoHelper { message: panic.to_string() }))?;
                    self.slot = Slot::Ready(Box::new(started));
                }
                Slot::Ending(pid, ending) => {
                    if timeout(ENDING, ending).await.is_err() {
                        let message = format!(
                            "an earlier one, process {pid}, does not end: its file system does not answer"
                        );
                        return Err(FilesError::NoHelper { message });
                    }
                    self.slot = Slot::Empty;
                }
                Slot::Ready(helper) => {
                    let job = HelperJob { roots: self.key.roots.clone(), op };
                    let answer = match timeout_at(until, helper.exchange(&job)).await {
                        Ok(Ok(answer)) => return answer,
                        Ok(Err(error)) => {
                            tracing::warn!(pid = helper.pid(), %error, "file helper ended unexpectedly");
                            Err(FilesError::Interrupted)
                        }
                        Err(_) => {
                            tracing::warn!(pid = helper.pid(), within_ms, ?job, "file helper did not answer");
                            Err(FilesError::TimedOut { within_ms })
                        }
                    };
                    self.dismiss();
                    return answer;
                }
            }
        }
    }

    /// Begins the end of a helper that runs.
    fn dismiss(&mut self) {
        if let Slot::Ready(helper) = std::mem::replace(&mut self.slot, Slot::Empty) {
            let pid = helper.pid();
            self.slot = Slot::Ending(pid, tokio::spawn(helper.end(Arc::clone(&self.context))));
        }
    }

    async fn end(self) {
        match self.slot {
            Slot::Empty => {}
            Slot::Starting(starting) => {
                if let Ok(Ok(helper)) = starting.await {
                    helper.end(self.context).await;
                }
            }
            Slot::Ready(helper) => helper.end(self.context).await,
            Slot::Ending(_, ending) => drop(ending.await),
        }
    }
}
