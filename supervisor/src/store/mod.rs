//! Lease store: SQLite in WAL mode with full synchronisation, one writer thread, and one commit for all
//! queued operations (concurrent spawns share their syncs). Each operation has its own savepoint, so that a
//! failing one does not roll back the others (H19).
//!
//! A damaged file is refused. A file of a newer program is opened read-only. A file that is deleted or
//! replaced while in use is rewritten from the open handle.

mod inspect;
mod open;
mod rows;
mod writer;

pub use inspect::{StoreInspection, inspect};

use crate::core::admission::Installation;
use crate::core::lease::Lease;
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// File name of the store inside the state directory.
pub const STORE_FILE: &str = "supervisor.db";
const QUEUED_MAX: usize = 4096;
/// Maximum number of rows in one batch that waits for the disk.
const RECORDS_MAX: usize = 512;
/// Maximum wait for an unresponsive disk before an action on processes.
const PROCESSES_WAIT: Duration = Duration::from_secs(2);

/// Error of the store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// SQLite failed: the disk is full, read-only, or broken.
    #[error("the lease store failed: {0}")]
    Sqlite(String),
    /// The content of the file is not what this program wrote.
    #[error(
        "{path} is damaged ({why}); no process was signalled and nothing is started. Restore it from a \
         backup, or move it away together with its -wal; then its leases are lost, and their remaining \
         processes must be searched for by hand (grep -lz ^OPENCLAW_ACPX_LEASE_ID= /proc/[0-9]*/environ)"
    )]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Description of the damage.
        why: String,
    },
    /// The store was opened read-only.
    #[error("the lease store is read-only: {0}")]
    ReadOnly(String),
    /// The file cannot be created, or its mode cannot be restricted to this user.
    #[error("the lease store's file cannot be used: {0}")]
    File(String),
    /// The store contains an invalid row.
    #[error("the lease store contains an invalid row: {0}")]
    Row(String),
    /// The writer's queue is full.
    #[error("the lease store is behind")]
    Busy,
    /// The writer thread has ended.
    #[error("the lease store is closed")]
    Closed,
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error.to_string())
    }
}

/// Operation of the writer thread.
enum WriteOp {
    SaveLease(Box<Lease>),
    SaveInstallation(Box<Installation>),
    DeleteLeases(Vec<LeaseId>),
    DeleteInstallation(GatewayInstanceId),
    /// Moves the WAL into the database file and ends the writer.
    Finish,
}

struct WriteJob {
    op: WriteOp,
    done: oneshot::Sender<Result<(), StoreError>>,
}

/// Content of the store at start.
#[derive(Debug, Default)]
pub struct Loaded {
    /// All leases, oldest first. A partly unreadable row becomes a `lost` lease without pids, with the
    /// reason.
    pub leases: Vec<Lease>,
    /// All known gateway installations.
    pub installations: Vec<Installation>,
    /// Warnings about the file, for operators.
    pub warnings: Vec<String>,
    /// True if the file did not exist.
    pub fresh: bool,
    /// True if some rows have an unreadable lease id. Processes without a known lease may belong to those
    /// leases.
    pub unreadable: bool,
}

/// Health of the writer.
#[derive(Debug, Default)]
struct WriterHealth {
    commits: AtomicU64,
    /// Reason why the last commit failed, if so.
    failing: Mutex<Option<String>>,
    /// Warning about a rewritten file, if any.
    rewritten: Mutex<Option<String>>,
}

/// Handle of the writer. Cheap to clone; the writer ends when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct Store {
    /// Queue of the writer; the reason if the store is read-only.
    jobs: Result<SyncSender<WriteJob>, Arc<str>>,
    health: Arc<WriterHealth>,
}

/// Writer thread, to be joined at shutdown.
#[derive(Debug)]
pub struct Writer(Option<JoinHandle<()>>);

impl Writer {
    /// Waits until everything is on disk. All [`Store`] handles must be dropped before.
    pub fn finish(self) {
        if self.0.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("lease store writer panicked");
        }
    }
}

impl Store {
    /// Opens or creates the store in `state_dir`, whose lock the caller holds, and loads its content. The
    /// file of a newer program is opened read-only; see [`Store::read_only`].
    ///
    /// # Errors
    /// [`StoreError`]; a damaged file is left unchanged.
    pub fn open(state_dir: &Path) -> Result<(Self, Writer, Loaded), StoreError> {
        let opened = open::open(state_dir)?;
        let (leases, mut warnings) = rows::leases(&opened.connection).or_else(|e| opened.unreadable(e))?;
        let unreadable = !warnings.is_empty();
        let (installations, of_homes) =
            rows::installations(&opened.connection).or_else(|e| opened.unreadable(e))?;
        warnings.extend(of_homes.into_iter().chain(opened.warnings));
        let loaded = Loaded { leases, installations, warnings, fresh: opened.fresh, unreadable };
        let health = Arc::new(WriterHealth::default());
        if let Some(why) = opened.read_only {
            return Ok((Self { jobs: Err(why.into()), health }, Writer(None), loaded));
        }
        let (jobs, queue) = sync_channel(QUEUED_MAX);
        let disk = writer::StoreFile::new(state_dir, opened.connection, Arc::clone(&health));
        let thread = std::thread::Builder::new()
            .name("lease-store".into())
            .spawn(move || disk.write(&queue))
            .map_err(|e| StoreError::Sqlite(e.to_string()))?;
        Ok((Self { jobs: Ok(jobs), health }, Writer(Some(thread)), loaded))
    }

    /// Returns why the store is read-only and no process may be signalled; `None` if it is writable.
    #[must_use]
    pub fn read_only(&self) -> Option<&str> {
        self.jobs.as_ref().err().map(AsRef::as_ref)
    }

    /// Returns the number of commits. Each has one sync, whatever the number of rows.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.health.commits.load(Ordering::Relaxed)
    }

    /// Returns the current warnings about the store, for operators.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        [&self.health.rewritten, &self.health.failing]
            .into_iter()
            .filter_map(|text| text.lock().clone())
            .collect()
    }

    /// Checks that this program can open the store of a running supervisor. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError`] if the store is unusable or of a newer program.
    pub fn check(state_dir: &Path) -> Result<(), StoreError> {
        match open::newer(state_dir)? {
            None => Ok(()),
            Some((_, version)) => Err(StoreError::ReadOnly(format!(
                "schema {version} belongs to a newer version of this program"
            ))),
        }
    }

    /// Writes a whole lease, durably when the call returns.
    ///
    /// # Errors
    /// [`StoreError`]; the stored row is unchanged.
    pub async fn save_lease(&self, lease: &Lease) -> Result<(), StoreError> {
        self.run(WriteOp::SaveLease(Box::new(lease.clone()))).await
    }

    /// Writes a lease before an action on its processes. The action has priority (H19): a disk error is only
    /// logged, and the wait for an unresponsive disk is limited. The row is then written when the disk
    /// answers.
    pub async fn record(&self, lease: &Lease, what: &'static str) {
        self.record_all(std::slice::from_ref(&lease), what).await;
    }

    /// Like `Store::record`, for many leases in shared commits. Each batch waits for the disk once.
    pub async fn record_all(&self, leases: &[&Lease], what: &'static str) {
        for batch in leases.chunks(RECORDS_MAX) {
            let asked: Vec<_> = batch
                .iter()
                .map(|lease| (*lease, self.enqueue(WriteOp::SaveLease(Box::new((*lease).clone())))))
                .collect();
            let until = tokio::time::Instant::now() + PROCESSES_WAIT;
            for (lease, asked) in asked {
                let saved = tokio::time::timeout_at(until, await_receipt(asked)).await;
                let error = match saved {
                    Ok(Ok(())) => continue,
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => format!("the disk has not answered within {PROCESSES_WAIT:?}"),
                };
                tracing::error!(
                    lease_id = %lease.lease_id,
                    state = %lease.state,
                    error,
                    change = what,
                    "lease change not recorded"
                );
            }
        }
    }

    /// Queues a whole lease without waiting, for changes that a crash may lose. Operations are written in the
    /// order of their requests.
    pub fn post_lease(&self, lease: &Lease) {
        if !self.post(WriteOp::SaveLease(Box::new(lease.clone()))) {
            tracing::error!(
                lease_id = %lease.lease_id,
                "lease store queue full or closed; lease change not written"
            );
        }
    }

    /// Posts a gateway to the writer without waiting. Returns false if the writer had no room.
    pub fn post_installation(&self, known: &Installation) -> bool {
        self.post(WriteOp::SaveInstallation(Box::new(known.clone())))
    }

    /// Queues a check of the file's identity without waiting.
    pub fn post_check(&self) {
        self.post(WriteOp::DeleteLeases(Vec::new()));
    }

    fn post(&self, op: WriteOp) -> bool {
        let (done, _) = oneshot::channel();
        self.jobs.as_ref().is_ok_and(|jobs| jobs.try_send(WriteJob { op, done }).is_ok())
    }

    /// Queues the record of a gateway immediately, and thus before any later lease of the gateway. The
    /// returned future waits until the record is durable, for a limited time.
    ///
    /// # Errors
    /// The reason why the record may not be on disk, which is logged too. A gateway of this machine is admitted
    /// nevertheless: otherwise it could not end its leases.
    pub fn record_installation(
        &self,
        known: &Installation,
    ) -> impl Future<Output = Result<(), String>> + Send + use<> {
        let gateway = known.gateway;
        let asked = self.enqueue(WriteOp::SaveInstallation(Box::new(known.clone())));
        async move {
            let error = match tokio::time::timeout(PROCESSES_WAIT, await_receipt(asked)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("the disk has not answered within {PROCESSES_WAIT:?}"),
            };
            tracing::error!(%gateway, error, "gateway record not written");
            Err(error)
        }
    }

    /// Deletes a gateway without leases.
    ///
    /// # Errors
    /// [`StoreError`]; the stored row is unchanged.
    pub async fn delete_installation(&self, gateway: GatewayInstanceId) -> Result<(), StoreError> {
        self.run(WriteOp::DeleteInstallation(gateway)).await
    }

    /// Removes leases past their retention.
    ///
    /// # Errors
    /// [`StoreError`]; the stored rows are unchanged.
    pub async fn delete_leases(&self, ids: Vec<LeaseId>) -> Result<(), StoreError> {
        self.run(WriteOp::DeleteLeases(ids)).await
    }

    /// Waits until all earlier operations are written.
    ///
    /// # Errors
    /// [`StoreError`] if the wait failed.
    pub async fn flush(&self) -> Result<(), StoreError> {
        match &self.jobs {
            Ok(_) => self.run(WriteOp::DeleteLeases(Vec::new())).await,
            Err(_) => Ok(()),
        }
    }

    /// Shuts down the store: writes all earlier operations, moves the WAL into the database file, and closes
    /// the file. Later operations fail.
    ///
    /// # Errors
    /// [`StoreError`] if an operation could not be written.
    pub async fn finish(&self) -> Result<(), StoreError> {
        match &self.jobs {
            Ok(_) => self.run(WriteOp::Finish).await,
            Err(_) => Ok(()),
        }
    }

    async fn run(&self, op: WriteOp) -> Result<(), StoreError> {
        await_receipt(self.enqueue(op)).await
    }

    /// Queues an operation. The reply is sent when the operation is durable.
    fn enqueue(&self, op: WriteOp) -> Result<WriteReceipt, StoreError> {
        let jobs = self.jobs.as_ref().map_err(|why| StoreError::ReadOnly(why.to_string()))?;
        let (done, answer) = oneshot::channel();
        jobs.try_send(WriteJob { op, done }).map_err(|e| match e {
            TrySendError::Full(_) => StoreError::Busy,
            TrySendError::Disconnected(_) => StoreError::Closed,
        })?;
        Ok(answer)
    }
}

type WriteReceipt = oneshot::Receiver<Result<(), StoreError>>;

async fn await_receipt(asked: Result<WriteReceipt, StoreError>) -> Result<(), StoreError> {
    asked?.await.unwrap_or(Err(StoreError::Closed))
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
