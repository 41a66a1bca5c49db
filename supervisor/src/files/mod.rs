//! File requests of gateways: queues, and the helper processes that serve them.
//!
//! One queue and at most one helper for each lease (or each look-up without a lease), so that a file system that
//! hangs stalls one session. The owner puts a request into its queue and never waits. A helper is this program under
//! the wrapper, started with the user and the confinement of the tenant: it ends with its pipe, with its control
//! socket, and with its wrapper, so none outlives the supervisor.

mod helper;
mod roots;
pub(crate) mod serve;
mod worker;

use crate::confine::Customer;
use crate::context::Context;
use crate::link::Responder;
use acp_shared::files::{FilesOp, FilesRequest, FilesScope};
use acp_shared::protocol::RefusalCode;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Version of [`HelperJob`] and of the answers: the program on disk may be another version than the one that runs.
pub(crate) const FRAMES_VERSION: u32 = 1;
/// Requests that wait for one helper.
const QUEUED_MAX: usize = 64;
/// Bytes of content that wait for all helpers of this supervisor.
const QUEUED_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Helpers of one gateway that belong to no lease.
const TENANT_HELPERS_MAX: usize = 16;
/// Delay after which a refused request is worth another attempt, in milliseconds.
const RETRY_MS: u64 = 200;
/// Time for which shutdown and upgrade wait for helpers; helpers end by themselves in any case.
const STOP: Duration = Duration::from_secs(2);

/// One request to a helper; answered by `Result<FilesReply, FilesError>`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HelperJob {
    /// Roots of the request.
    pub(crate) roots: Vec<String>,
    /// The operation.
    pub(crate) op: FilesOp,
}

/// Identity of one helper.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct HelperKey {
    customer: Customer,
    scope: FilesScope,
    /// Directories that the helper is confined to.
    roots: Vec<String>,
}

/// A request in a queue.
#[derive(Debug)]
struct FilesJob {
    op: FilesOp,
    to: Responder,
    /// Share of [`QUEUED_BYTES_MAX`].
    _bytes: OwnedSemaphorePermit,
}

/// Queues of file requests.
#[derive(Debug)]
pub(crate) struct FileQueues {
    queues: HashMap<HelperKey, mpsc::Sender<FilesJob>>,
    bytes: Arc<Semaphore>,
    workers: TaskTracker,
    stop: CancellationToken,
}

impl Default for FileQueues {
    fn default() -> Self {
        Self {
            queues: HashMap::new(),
            bytes: Arc::new(Semaphore::new(QUEUED_BYTES_MAX)),
            workers: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }
}

impl FileQueues {
    /// Queues a request; the helper answers.
    pub(crate) fn ask(
        &mut self,
        context: &Arc<Context>,
        customer: Customer,
        request: FilesRequest,
        to: Responder,
    ) {
        let FilesRequest { scope, roots, op } = request;
        let size = u32::try_from(op.content_bytes()).unwrap_or(u32::MAX);
        let Ok(bytes) = Arc::clone(&self.bytes).try_acquire_many_owned(size) else {
            return busy(to, "too many bytes wait to be written to files");
        };
        let Some(queue) = self.queue(context, HelperKey { customer, scope, roots }) else {
            return busy(to, "too many file helpers of this gateway run");
        };
        match queue.try_send(FilesJob { op, to, _bytes: bytes }) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(job) | mpsc::error::TrySendError::Closed(job)) => {
                busy(job.to, "too many file requests of this session wait");
            }
        }
    }

    /// The queue of a key; it gets a worker if it has none.
    fn queue(&mut self, context: &Arc<Context>, key: HelperKey) -> Option<mpsc::Sender<FilesJob>> {
        // Workers close their queues before they end.
        self.queues.retain(|_, queue| !queue.is_closed());
        if let Some(queue) = self.queues.get(&key) {
            return Some(queue.clone());
        }
        let others = |other: &&HelperKey| {
            other.scope == FilesScope::Tenant && other.customer.gateway == key.customer.gateway
        };
        if key.scope == FilesScope::Tenant && self.queues.keys().filter(others).count() >= TENANT_HELPERS_MAX
        {
            return None;
        }
        let (queue, jobs) = mpsc::channel(QUEUED_MAX);
        self.queues.insert(key.clone(), queue.clone());
        self.workers.spawn(worker::run(Arc::clone(context), key, jobs, self.stop.clone()));
        Some(queue)
    }

    /// Ends every helper: requests that were begun are answered as interrupted, others are refused.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.workers.close();
        drop(self.queues);
        if tokio::time::timeout(STOP, self.workers.wait()).await.is_err() {
            tracing::warn!("file helpers do not end in time; they end with their control sockets");
        }
    }
}

fn busy(to: Responder, why: &str) {
    let refusal = acp_shared::protocol::Refusal::new(RefusalCode::Busy, why).retry_after(RETRY_MS);
    to.answer(Err(refusal));
}
