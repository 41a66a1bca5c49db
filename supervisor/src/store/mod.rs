//! The lease store: SQLite in WAL mode with full synchronisation, one writer thread, and one commit for everything
//! that waits (concurrent spawns share their syncs). Each operation has a savepoint of its own, so that one that
//! fails does not take the others with it (H19).
//!
//! A file that is damaged is refused, one of a newer program is only read, and one that is taken away while it is in
//! use is written anew from the open handle.

mod inspect;
mod open;
mod rows;
mod writer;

pub use inspect::{Inspected, inspect};

use crate::core::admit::Installation;
use crate::core::lease::Lease;
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// File name of the store inside the state directory.
pub const STORE_FILE: &str = "supervisor.db";
const QUEUED_MAX: usize = 4096;
/// How many rows wait for the disk together.
const RECORDS_MAX: usize = 512;
/// How long what has to be done to processes waits for a disk that does not answer.
const PROCESSES_WAIT: Duration = Duration::from_secs(2);

/// Why the store did not do something.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// SQLite failed: the disk is full, read-only, or broken.
    #[error("the lease store failed: {0}")]
    Sqlite(String),
    /// The file cannot be what this program left there.
    #[error(
        "{path} is damaged ({why}); nothing was signalled and nothing is started on it. Restore it from a backup, or move it away \
         together with its -wal: its leases are forgotten then, and what is left of their processes has to be looked for by hand \
         (grep -lz ^OPENCLAW_ACPX_LEASE_ID= /proc/[0-9]*/environ)"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The store is only read.
    #[error("the lease store is only read: {0}")]
    ReadOnly(String),
    /// The file cannot be made, or cannot be kept to this user.
    #[error("the lease store's file cannot be used: {0}")]
    File(String),
    /// A row that this program did not write.
    #[error("the lease store holds a row that makes no sense: {0}")]
    Row(String),
    /// Too much waits for the disk.
    #[error("the lease store is behind")]
    Busy,
    /// The writer has ended.
    #[error("the lease store is closed")]
    Closed,
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error.to_string())
    }
}

/// What the writer thread does.
enum Op {
    SaveLease(Box<Lease>),
    SaveInstallation(Box<Installation>),
    DeleteLeases(Vec<LeaseId>),
    DeleteInstallation(GatewayInstanceId),
    /// Everything goes into the one file, and nothing is taken any more.
    Finish,
}

struct Job {
    op: Op,
    done: oneshot::Sender<Result<(), StoreError>>,
}

/// Everything that was stored.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Every lease, oldest first. One whose row cannot be read whole is `lost`, names no process, and says why.
    pub leases: Vec<Lease>,
    /// Every gateway installation seen.
    pub installations: Vec<Installation>,
    /// What a person should know about the file.
    pub warnings: Vec<String>,
    /// The file did not exist.
    pub fresh: bool,
    /// There are leases of which not even the id can be read: what no known lease names may be theirs.
    pub unreadable: bool,
}

/// How the writer is.
#[derive(Debug, Default)]
struct Health {
    commits: AtomicU64,
    /// Why the last commit failed, if it did.
    failing: Mutex<Option<String>>,
    /// What befell the file.
    rewritten: Mutex<Option<String>>,
}

/// The way to the writer. Cheap to clone; the writer ends when the last one is dropped.
#[derive(Debug, Clone)]
pub struct Store {
    /// Nobody takes jobs where the file is only read.
    jobs: Result<SyncSender<Job>, Arc<str>>,
    health: Arc<Health>,
}

/// The writer thread, to be waited for at the end.
#[derive(Debug)]
pub struct Writer(Option<JoinHandle<()>>);

impl Writer {
    /// Waits until everything is on disk. All [`Store`]s must be dropped before.
    pub fn finish(self) {
        if self.0.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the writer of the lease store panicked");
        }
    }
}

impl Store {
    /// Opens or makes the store in `state_dir`, whose lock the caller holds, and reads what is in it. A file of a
    /// newer program is only read: [`Store::read_only`] says so.
    ///
    /// # Errors
    /// [`StoreError`]; a file that is damaged is left as it is.
    pub fn open(state_dir: &Path) -> Result<(Self, Writer, Loaded), StoreError> {
        let opened = open::open(state_dir)?;
        let (leases, mut warnings) = rows::leases(&opened.connection).or_else(|e| opened.unreadable(e))?;
        let unreadable = !warnings.is_empty();
        let (installations, of_homes) =
            rows::installations(&opened.connection).or_else(|e| opened.unreadable(e))?;
        warnings.extend(of_homes.into_iter().chain(opened.warnings));
        let loaded = Loaded { leases, installations, warnings, fresh: opened.fresh, unreadable };
        let health = Arc::new(Health::default());
        if let Some(why) = opened.read_only {
            return Ok((Self { jobs: Err(why.into()), health }, Writer(None), loaded));
        }
        let (jobs, queue) = sync_channel(QUEUED_MAX);
        let disk = writer::Disk::new(state_dir, opened.connection, Arc::clone(&health));
        let thread = std::thread::Builder::new()
            .name("lease-store".into())
            .spawn(move || disk.write(&queue))
            .map_err(|e| StoreError::Sqlite(e.to_string()))?;
        Ok((Self { jobs: Ok(jobs), health }, Writer(Some(thread)), loaded))
    }

    /// Why nothing is written and nothing may be signalled, if that is so.
    #[must_use]
    pub fn read_only(&self) -> Option<&str> {
        self.jobs.as_ref().err().map(AsRef::as_ref)
    }

    /// How many commits were made, each with one sync, whatever the number of rows in it.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.health.commits.load(Ordering::Relaxed)
    }

    /// What a person should know about the store now.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        [&self.health.rewritten, &self.health.failing]
            .into_iter()
            .filter_map(|text| text.lock().unwrap_or_else(PoisonError::into_inner).clone())
            .collect()
    }

    /// Whether this program would open the store of a supervisor that runs. Nothing is changed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn check(state_dir: &Path) -> Result<(), StoreError> {
        match open::newer(state_dir)? {
            None => Ok(()),
            Some((_, version)) => {
                Err(StoreError::ReadOnly(format!("schema {version} is of a newer program")))
            }
        }
    }

    /// Writes a whole lease. It is durable when this returns.
    ///
    /// # Errors
    /// [`StoreError`]; the stored row is unchanged.
    pub async fn save_lease(&self, lease: &Lease) -> Result<(), StoreError> {
        self.run(Op::SaveLease(Box::new(lease.clone()))).await
    }

    /// Writes a lease before something is done to its processes. Those come first (H19): a disk that fails is only
    /// reported, and one that hangs is waited for only so long; then the row follows when the disk answers.
    pub async fn record(&self, lease: &Lease, what: &'static str) {
        self.record_all(std::slice::from_ref(&lease), what).await;
    }

    /// The same for many leases: they share their commits. Each batch waits for the disk once.
    pub async fn record_all(&self, leases: &[&Lease], what: &'static str) {
        for batch in leases.chunks(RECORDS_MAX) {
            let asked: Vec<_> = batch
                .iter()
                .map(|lease| (*lease, self.ask(Op::SaveLease(Box::new((*lease).clone())))))
                .collect();
            let until = tokio::time::Instant::now() + PROCESSES_WAIT;
            for (lease, asked) in asked {
                let saved = tokio::time::timeout_at(until, answer(asked)).await;
                let error = match saved {
                    Ok(Ok(())) => continue,
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => format!("the disk has not answered within {PROCESSES_WAIT:?}"),
                };
                tracing::error!(lease_id = %lease.lease_id, state = %lease.state, error, "{what} is not on record");
            }
        }
    }

    /// Has a whole lease written without waiting for it: for changes that a crash may lose. Operations are written
    /// in the order in which they were asked for.
    pub fn post_lease(&self, lease: &Lease) {
        if !self.post(Op::SaveLease(Box::new(lease.clone()))) {
            tracing::error!(lease_id = %lease.lease_id, "the lease store is behind or closed; a change is not written");
        }
    }

    /// Posts a gateway to the writer without waiting. Returns false if the writer had no room.
    pub fn post_installation(&self, known: &Installation) -> bool {
        self.post(Op::SaveInstallation(Box::new(known.clone())))
    }

    /// Has the writer see whether its file is still in its place, without waiting for it.
    pub fn post_check(&self) {
        self.post(Op::DeleteLeases(Vec::new()));
    }

    fn post(&self, op: Op) -> bool {
        let (done, _) = oneshot::channel();
        self.jobs.as_ref().is_ok_and(|jobs| jobs.try_send(Job { op, done }).is_ok())
    }

    /// Has what is known about a gateway written, in turn and from now on: before any lease that it asks for later. What
    /// is returned waits until that is durable; a disk that fails is only reported, and one that hangs is waited for
    /// only so long, since who is away cannot end what it left here.
    pub fn record_installation(&self, known: &Installation) -> impl Future<Output = ()> + Send + use<> {
        let gateway = known.gateway;
        let asked = self.ask(Op::SaveInstallation(Box::new(known.clone())));
        async move {
            let error = match tokio::time::timeout(PROCESSES_WAIT, answer(asked)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("the disk has not answered within {PROCESSES_WAIT:?}"),
            };
            tracing::error!(%gateway, error, "what is known of a gateway is not on record");
        }
    }

    /// Forgets a gateway that has no lease.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn delete_installation(&self, gateway: GatewayInstanceId) -> Result<(), StoreError> {
        self.run(Op::DeleteInstallation(gateway)).await
    }

    /// Removes leases past their retention.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn delete_leases(&self, ids: Vec<LeaseId>) -> Result<(), StoreError> {
        self.run(Op::DeleteLeases(ids)).await
    }

    /// Waits until everything that was asked for before is written.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn flush(&self) -> Result<(), StoreError> {
        match &self.jobs {
            Ok(_) => self.run(Op::DeleteLeases(Vec::new())).await,
            Err(_) => Ok(()),
        }
    }

    /// Ends the store in order: what was asked for before is written, everything goes into the one file, and the file
    /// is closed. Nothing is written after that.
    ///
    /// # Errors
    /// [`StoreError`]: something of it could not be written.
    pub async fn finish(&self) -> Result<(), StoreError> {
        match &self.jobs {
            Ok(_) => self.run(Op::Finish).await,
            Err(_) => Ok(()),
        }
    }

    async fn run(&self, op: Op) -> Result<(), StoreError> {
        answer(self.ask(op)).await
    }

    /// Has something done, in turn. The answer comes when it is durable.
    fn ask(&self, op: Op) -> Result<Answer, StoreError> {
        let jobs = self.jobs.as_ref().map_err(|why| StoreError::ReadOnly(why.to_string()))?;
        let (done, answer) = oneshot::channel();
        jobs.try_send(Job { op, done }).map_err(|e| match e {
            TrySendError::Full(_) => StoreError::Busy,
            TrySendError::Disconnected(_) => StoreError::Closed,
        })?;
        Ok(answer)
    }
}

type Answer = oneshot::Receiver<Result<(), StoreError>>;

async fn answer(asked: Result<Answer, StoreError>) -> Result<(), StoreError> {
    asked?.await.unwrap_or(Err(StoreError::Closed))
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
