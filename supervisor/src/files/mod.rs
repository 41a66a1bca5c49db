//! File requests of gateways: queues, and the helper processes that serve them.
//!
//! One queue and at most one helper for each lease, and for each set of names that a gateway looks up without a
//! lease, so that a hanging file system stalls only what needs it. An idle helper of a look-up serves other
//! look-ups of the same gateway and user. The owner only enqueues requests and never waits. A helper is this program
//! under the wrapper, started with the user and the confinement of the tenant. It ends when its pipe or control
//! socket closes or its wrapper dies, so none outlives the supervisor.

mod helper;
mod roots;
pub(crate) mod serve;
mod worker;

use crate::context::Context;
use crate::core::lease::ProcessRecord;
use crate::lease::confine::Requester;
use crate::relay::connection::Responder;
use acp_shared::files::{FilesOp, FilesRequest, FilesScope};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::RefusalCode;
use helper::Helper;
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
/// Maximum number of queues for look-ups of one user, each with at most one helper, idle and hanging ones
/// included; also of queues whose lease has ended and whose helper has not.
const QUEUES_PER_USER_MAX: usize = 64;
/// The same maximum for all users together.
const QUEUES_MAX: usize = 512;
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

/// Key of a queue; at most one helper at a time serves it.
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
    /// Equal requests without a lease, and reads beneath equal roots, by their hash.
    LookUp(u64),
}

impl QueueScope {
    fn of(request: &FilesRequest) -> Self {
        let FilesRequest { scope, roots, op } = request;
        match scope {
            FilesScope::Lease(lease_id) => Self::Lease(*lease_id),
            FilesScope::Tenant => {
                // Reads of files beneath the same roots share a helper: starts of agents need helpers too.
                let names = match op {
                    FilesOp::Read { .. } | FilesOp::Inspect { .. } => &[],
                    _ => op.names(),
                };
                let mut hasher = DefaultHasher::new();
                (discriminant(op), roots, names, op.search()).hash(&mut hasher);
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
    /// User of the gateway.
    uid: u32,
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

/// Idle helpers of look-ups, by the key of the queue that used the helper last and ends it.
type IdleHelpers = Arc<Mutex<HashMap<HelperKey, (HelperSetting, Box<Helper>)>>>;

/// Queues of file requests.
#[derive(Debug)]
pub(crate) struct FileQueues {
    queues: HashMap<HelperKey, HelperQueue>,
    running: RunningHelpers,
    idle: IdleHelpers,
    bytes: Arc<Semaphore>,
    workers: TaskTracker,
    stop: CancellationToken,
}

impl Default for FileQueues {
    fn default() -> Self {
        Self {
            queues: HashMap::new(),
            running: RunningHelpers::default(),
            idle: IdleHelpers::default(),
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
        let Some(jobs) = self.queue(context, key, requester.user.uid) else {
            return busy(to, "too many file helpers run");
        };
        let FilesRequest { roots, op, .. } = request;
        let setting = HelperSetting { requester, roots };
        match jobs.try_send(FilesJob { setting, op, to, _bytes: bytes }) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(job)) => {
                busy(job.to, "too many file requests of this session are pending");
            }
            Err(mpsc::error::TrySendError::Closed(job)) => {
                busy(job.to, "the file helper of this session is ending; the next one starts then");
            }
        }
    }

    /// Returns the queue of a key, with a new worker if it has none.
    fn queue(&mut self, context: &Arc<Context>, key: HelperKey, uid: u32) -> Option<mpsc::Sender<FilesJob>> {
        self.queues.retain(|_, queue| !queue.worker.is_finished());
        if let Some(queue) = self.queues.get(&key) {
            return Some(queue.jobs.clone());
        }
        if !self.has_room(key, uid) {
            return None;
        }
        let ((jobs, queue), end) = (mpsc::channel(QUEUED_MAX), self.stop.child_token());
        let worker = Worker::new(Arc::clone(context), key, Arc::clone(&self.running), Arc::clone(&self.idle));
        let worker = self.workers.spawn(worker.run(queue, end.clone(), self.stop.clone()));
        self.queues.insert(key, HelperQueue { uid, jobs: jobs.clone(), end, worker });
        Some(jobs)
    }

    /// True if a queue may be added. Queues of living leases are bounded by the limits of leases.
    fn has_room(&self, key: HelperKey, uid: u32) -> bool {
        let is_lookup = key.scope.is_lookup();
        let counts = |(other, queue): &(&HelperKey, &HelperQueue)| match is_lookup {
            true => other.scope.is_lookup(),
            false => !other.scope.is_lookup() && queue.end.is_cancelled(),
        };
        let counted = || self.queues.iter().filter(counts);
        let of_user = counted().filter(|(_, queue)| queue.uid == uid).count();
        of_user < QUEUES_PER_USER_MAX && counted().count() < QUEUES_MAX
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lookups(uid: u32, count: usize) -> impl Iterator<Item = (HelperKey, u32)> {
        let key = move |n: usize| {
            let scope = QueueScope::LookUp(n as u64);
            (HelperKey { gateway: GatewayInstanceId::mint(), scope }, uid)
        };
        (0..count).map(key)
    }

    fn lease() -> HelperKey {
        let scope = QueueScope::Lease(LeaseId::mint());
        HelperKey { gateway: GatewayInstanceId::mint(), scope }
    }

    /// Returns queues whose helpers do not end.
    fn hung_queues(keys: impl IntoIterator<Item = (HelperKey, u32)>) -> FileQueues {
        let mut queues = FileQueues::default();
        for (key, uid) in keys {
            let (jobs, end) = (mpsc::channel(1).0, queues.stop.child_token());
            let worker = tokio::spawn(std::future::pending());
            queues.queues.insert(key, HelperQueue { uid, jobs, end, worker });
        }
        queues
    }

    #[tokio::test]
    async fn lookup_queues_are_bounded_for_each_user_and_overall() {
        let key = HelperKey { scope: QueueScope::LookUp(u64::MAX), ..lease() };
        for (hung, of_user, of_other) in [
            (Vec::from_iter(lookups(1, QUEUES_PER_USER_MAX - 1)), true, true),
            (Vec::from_iter(lookups(1, QUEUES_PER_USER_MAX)), false, true),
            ((3..).flat_map(|uid| lookups(uid, 1)).take(QUEUES_MAX - 1).collect(), true, true),
            ((3..).flat_map(|uid| lookups(uid, 1)).take(QUEUES_MAX).collect(), false, false),
        ] {
            let count = hung.len();
            let queues = hung_queues(hung);
            assert_eq!((queues.has_room(key, 1), queues.has_room(key, 2)), (of_user, of_other), "{count}");
            assert!(queues.has_room(lease(), 1), "requests of leases do not need the room of look-ups");
        }
    }

    #[tokio::test]
    async fn queues_of_ended_leases_are_bounded_apart_from_living_ones() {
        let leases: Vec<_> = (0..=QUEUES_MAX).map(|_| (lease(), 1)).collect();
        let queues = hung_queues(leases.clone());
        assert!(queues.has_room(lease(), 1), "the limits of leases bound the queues of living ones");
        let end = |(key, _): &(HelperKey, u32)| match key.scope {
            QueueScope::Lease(lease_id) => queues.end(lease_id),
            QueueScope::LookUp(_) => {}
        };
        leases.iter().take(QUEUES_PER_USER_MAX - 1).for_each(end);
        assert!(queues.has_room(lease(), 1));
        leases.iter().take(QUEUES_PER_USER_MAX).for_each(end);
        assert!(!queues.has_room(lease(), 1));
        assert!(queues.has_room(lease(), 2), "queues of another user");
    }
}
