//! File requests of gateways: queues, and the helper processes that serve them.
//!
//! One queue and at most one helper for each lease, and for each set of names that a gateway looks up without a
//! lease, so that a hanging file system stalls only what needs it. The owner only enqueues requests and never waits. A helper
//! is this program under the wrapper, started with the user and the confinement of the tenant. It ends when
//! its pipe or control socket closes or its wrapper dies, so none outlives the supervisor.

mod helper;
mod roots;
pub(crate) mod serve;
mod worker;

use crate::config::size;
use crate::context::Context;
use crate::core::lease::ProcessRecord;
use crate::lease::confine::Requester;
use crate::relay::connection::Responder;
use acp_shared::files::{FilesOp, FilesRequest, FilesScope};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::RefusalCode;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use worker::Worker;

/// Version of [`HelperJob`] and of the replies: the program on disk may have another version than the running
/// one.
pub(crate) const FRAMES_VERSION: u32 = 1;
/// Capacity of the queue of one helper.
const QUEUED_MAX: usize = 64;
/// Maximum number of queues for look-ups of one gateway, each with at most one helper, idle and hanging ones
/// included.
const LOOKUPS_MAX: usize = 64;
/// Maximum total size of queued requests of this supervisor, in bytes.
const QUEUED_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Retry delay of a refused request, in milliseconds.
const RETRY_MS: u64 = 200;
/// Maximum wait for helpers at shutdown and upgrade; helpers end in any case when their pipes close.
const STOP: Duration = Duration::from_secs(2);

/// Request to a helper; answered by `Result<FilesReply, FilesError>`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HelperJob {
    /// Roots of the request.
    pub(crate) roots: Vec<String>,
    /// The operation.
    pub(crate) op: FilesOp,
}

/// Key of a queue; one helper serves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct HelperKey {
    gateway: GatewayInstanceId,
    scope: QueueScope,
}

/// Requests that share a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum QueueScope {
    /// Requests for a lease.
    Lease(LeaseId),
    /// Equal requests without a lease, by their hash.
    LookUp(u64),
}

impl QueueScope {
    fn of(request: &FilesRequest) -> Self {
        let FilesRequest { scope, roots, op } = request;
        match scope {
            FilesScope::Lease(lease_id) => Self::Lease(*lease_id),
            FilesScope::Tenant => {
                let mut hasher = DefaultHasher::new();
                (discriminant(op), roots, op.names(), op.search()).hash(&mut hasher);
                Self::LookUp(hasher.finish())
            }
        }
    }

    const fn is_lookup(self) -> bool {
        matches!(self, Self::LookUp(_))
    }
}

/// User and directories of a helper, fixed at its start. A request with other values needs another helper.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HelperSetting {
    requester: Requester,
    /// Directories that the helper is confined to.
    roots: Vec<String>,
}

/// A request in a queue.
#[derive(Debug)]
struct FilesJob {
    setting: HelperSetting,
    op: FilesOp,
    to: Responder,
    /// Share of [`QUEUED_BYTES_MAX`].
    _bytes: OwnedSemaphorePermit,
}

/// Queue and its worker.
#[derive(Debug)]
struct HelperQueue {
    jobs: mpsc::Sender<FilesJob>,
    /// Cancelled at the end of the lease or of the supervisor.
    end: CancellationToken,
    /// Finished when no helper of the queue is left.
    worker: JoinHandle<()>,
}

/// Helper of a lease that may have survived an upgrade. No other helper of the lease is started before it is
/// gone.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SurvivingHelper {
    gateway: GatewayInstanceId,
    lease_id: LeaseId,
    process: ProcessRecord,
}

/// Helpers of leases that may be running.
type RunningHelpers = Arc<Mutex<HashMap<HelperKey, ProcessRecord>>>;

/// Queues of file requests.
#[derive(Debug)]
pub(crate) struct FileQueues {
    queues: HashMap<HelperKey, HelperQueue>,
    running: RunningHelpers,
    bytes: Arc<Semaphore>,
    workers: TaskTracker,
    stop: CancellationToken,
}

impl Default for FileQueues {
    fn default() -> Self {
        Self {
            queues: HashMap::new(),
            running: RunningHelpers::default(),
            bytes: Arc::new(Semaphore::new(QUEUED_BYTES_MAX)),
            workers: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }
}

impl FileQueues {
    /// Creates the queues after an upgrade that left helpers behind.
    pub(crate) fn from_surviving(left: Vec<SurvivingHelper>) -> Self {
        let key = |left: &SurvivingHelper| HelperKey {
            gateway: left.gateway,
            scope: QueueScope::Lease(left.lease_id),
        };
        let running = left.iter().map(|left| (key(left), left.process)).collect();
        Self { running: Arc::new(Mutex::new(running)), ..Self::default() }
    }

    /// Enqueues a request; the helper answers it.
    pub(crate) fn enqueue(
        &mut self,
        context: &Arc<Context>,
        requester: Requester,
        request: FilesRequest,
        to: Responder,
    ) {
        let size = u32::try_from(request.bytes()).unwrap_or(u32::MAX);
        let Ok(bytes) = Arc::clone(&self.bytes).try_acquire_many_owned(size) else {
            return busy(to, "too many bytes are queued for file writes");
        };
        let key = HelperKey { gateway: requester.gateway, scope: QueueScope::of(&request) };
        let Some(jobs) = self.queue(context, key) else {
            return busy(to, "too many file helpers of this gateway run");
        };
        let FilesRequest { roots, op, .. } = request;
        let setting = HelperSetting { requester, roots };
        match jobs.try_send(FilesJob { setting, op, to, _bytes: bytes }) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(job) | mpsc::error::TrySendError::Closed(job)) => {
                busy(job.to, "too many file requests of this session are pending");
            }
        }
    }

    /// Returns the queue of a key, with a new worker if it has none.
    fn queue(&mut self, context: &Arc<Context>, key: HelperKey) -> Option<mpsc::Sender<FilesJob>> {
        self.queues.retain(|_, queue| !queue.worker.is_finished());
        if let Some(queue) = self.queues.get(&key) {
            return Some(queue.jobs.clone());
        }
        // The number of living leases has the same bounds; a hanging helper may outlive its lease.
        let is_lookup = key.scope.is_lookup();
        let (of_gateway_max, max) = match is_lookup {
            true => (LOOKUPS_MAX, usize::MAX),
            false => (size(context.config.leases_per_gateway_max), size(context.config.leases_max)),
        };
        let alike = || self.queues.keys().filter(|other| other.scope.is_lookup() == is_lookup);
        let of_gateway = alike().filter(|other| other.gateway == key.gateway).count();
        if of_gateway >= of_gateway_max || alike().count() >= max {
            return None;
        }
        let ((jobs, queue), end) = (mpsc::channel(QUEUED_MAX), self.stop.child_token());
        let worker = Worker::new(Arc::clone(context), key, Arc::clone(&self.running));
        let worker = self.workers.spawn(worker.run(queue, end.clone(), self.stop.clone()));
        self.queues.insert(key, HelperQueue { jobs: jobs.clone(), end, worker });
        Some(jobs)
    }

    /// Ends the helper of a lease that is ending. Queued requests are refused.
    pub(crate) fn end(&self, lease_id: LeaseId) {
        let of_lease = |key: &HelperKey| key.scope == QueueScope::Lease(lease_id);
        for (_, queue) in self.queues.iter().filter(|(key, _)| of_lease(key)) {
            queue.end.cancel();
        }
    }

    /// Ends all helpers: requests in progress are answered as interrupted, queued ones are refused. Returns
    /// the helpers that do not end in time.
    pub(crate) async fn stop(self) -> Vec<SurvivingHelper> {
        self.stop.cancel();
        self.workers.close();
        drop(self.queues);
        if tokio::time::timeout(STOP, self.workers.wait()).await.is_err() {
            tracing::warn!("file helpers did not end in time; they end with their control sockets");
        }
        let running = self.running.lock();
        let left = |(key, process): (&HelperKey, &ProcessRecord)| match key.scope {
            QueueScope::Lease(lease_id) => {
                Some(SurvivingHelper { gateway: key.gateway, lease_id, process: *process })
            }
            QueueScope::LookUp(_) => None,
        };
        running.iter().filter_map(left).collect()
    }
}

fn busy(to: Responder, why: &str) {
    let refusal = acp_shared::protocol::Refusal::new(RefusalCode::Busy, why).retry_after(RETRY_MS);
    to.answer(Err(refusal));
}
