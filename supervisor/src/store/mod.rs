//! The lease store: SQLite in WAL mode with full synchronisation, one writer thread, and one commit for everything
//! that waits (concurrent spawns share their syncs). Each operation has a savepoint of its own, so that one that
//! fails does not take the others with it (H19).

mod rows;

use crate::core::admit::Installation;
use crate::core::lease::Lease;
use acp_shared::ids::LeaseId;
use rusqlite::Connection;
use rusqlite_migration::{M, Migrations};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// File name of the store inside the state directory.
pub const STORE_FILE: &str = "supervisor.db";
const QUEUED_MAX: usize = 4096;
const GROUP_MAX: usize = 512;
const MIGRATIONS: &[M<'static>] = &[M::up(include_str!("migrations/0001_leases.sql"))];

/// Why the store did not do something.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// SQLite failed: the disk is full, read-only, or the file is damaged.
    #[error("the lease store failed: {0}")]
    Sqlite(String),
    /// The file was written by a newer version of this program.
    #[error("{path} was written by a newer version of this program; use that one, or move the file away")]
    Newer {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be made, or cannot be kept to this user.
    #[error("the lease store's file cannot be opened: {0}")]
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
}

struct Job {
    op: Op,
    done: oneshot::Sender<Result<(), StoreError>>,
}

/// Everything that was stored.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Every lease, oldest first.
    pub leases: Vec<Lease>,
    /// Every gateway installation seen.
    pub installations: Vec<Installation>,
}

/// The way to the writer. Cheap to clone; the writer ends when the last one is dropped.
#[derive(Debug, Clone)]
pub struct Store {
    jobs: SyncSender<Job>,
}

/// The writer thread, to be waited for at the end.
#[derive(Debug)]
pub struct Writer(JoinHandle<()>);

impl Writer {
    /// Waits until everything is on disk. All [`Store`]s must be dropped before.
    pub fn finish(self) {
        if self.0.join().is_err() {
            tracing::error!("the writer of the lease store panicked");
        }
    }
}

impl Store {
    /// Opens or makes the store in `state_dir`, whose lock the caller holds, and reads what is in it.
    ///
    /// # Errors
    /// [`StoreError`]; in the case of a newer schema the file is left as it is.
    pub fn open(state_dir: &Path) -> Result<(Self, Writer, Loaded), StoreError> {
        let path = state_dir.join(STORE_FILE);
        let mut connection = connect(&path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.busy_timeout(std::time::Duration::from_secs(1))?;
        migrate(&mut connection, &path)?;
        let loaded =
            Loaded { leases: rows::leases(&connection)?, installations: rows::installations(&connection)? };
        let (jobs, queue) = sync_channel(QUEUED_MAX);
        let thread = std::thread::Builder::new()
            .name("lease-store".into())
            .spawn(move || write(connection, &queue))
            .map_err(|e| StoreError::Sqlite(e.to_string()))?;
        Ok((Self { jobs }, Writer(thread), loaded))
    }

    /// Whether this program would open the store of a supervisor that runs. Nothing is changed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn check(state_dir: &Path) -> Result<(), StoreError> {
        let path = state_dir.join(STORE_FILE);
        refuse_newer(&look(&path)?, &path)
    }

    /// Writes a whole lease. It is durable when this returns.
    ///
    /// # Errors
    /// [`StoreError`]; the stored row is unchanged.
    pub async fn save_lease(&self, lease: &Lease) -> Result<(), StoreError> {
        self.run(Op::SaveLease(Box::new(lease.clone()))).await
    }

    /// Has a whole lease written without waiting for it: for changes that a crash may lose. Operations are written
    /// in the order in which they were asked for.
    pub fn post_lease(&self, lease: &Lease) {
        let (done, _) = oneshot::channel();
        if self.jobs.try_send(Job { op: Op::SaveLease(Box::new(lease.clone())), done }).is_err() {
            tracing::error!(lease_id = %lease.lease_id, "the lease store is behind or closed; a change is not written");
        }
    }

    /// Writes what is known about a gateway.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn save_installation(&self, installation: &Installation) -> Result<(), StoreError> {
        self.run(Op::SaveInstallation(Box::new(installation.clone()))).await
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
        self.run(Op::DeleteLeases(Vec::new())).await
    }

    async fn run(&self, op: Op) -> Result<(), StoreError> {
        let (done, answer) = oneshot::channel();
        self.jobs.try_send(Job { op, done }).map_err(|e| match e {
            TrySendError::Full(_) => StoreError::Busy,
            TrySendError::Disconnected(_) => StoreError::Closed,
        })?;
        answer.await.unwrap_or(Err(StoreError::Closed))
    }
}

/// Makes the file readable by this user alone; SQLite gives its companions the same mode.
fn private(path: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let made = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    let kept = made.and_then(|file| file.set_permissions(std::fs::Permissions::from_mode(0o600)));
    kept.map_err(|error| StoreError::File(error.to_string()))
}

#[expect(clippy::disallowed_methods, reason = "this is the store")]
fn connect(path: &Path) -> Result<Connection, StoreError> {
    private(path)?;
    Ok(Connection::open(path)?)
}

#[expect(clippy::disallowed_methods, reason = "this is the store")]
fn look(path: &Path) -> Result<Connection, StoreError> {
    Ok(Connection::open_with_flags(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)?)
}

fn refuse_newer(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if usize::try_from(version).is_ok_and(|version| version > MIGRATIONS.len()) {
        return Err(StoreError::Newer { path: path.to_owned() });
    }
    Ok(())
}

fn migrate(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let migrations = Migrations::from_slice(MIGRATIONS);
    refuse_newer(connection, path)?;
    migrations.to_latest(connection).map_err(|e| StoreError::Sqlite(e.to_string()))
}

fn write(mut connection: Connection, queue: &Receiver<Job>) {
    while let Ok(first) = queue.recv() {
        let mut group = vec![first];
        group.extend(std::iter::from_fn(|| queue.try_recv().ok()).take(GROUP_MAX - 1));
        let (outcomes, answers) = commit(&mut connection, group);
        for (outcome, answer) in outcomes.into_iter().zip(answers) {
            // Nobody waits any more for one whose asker has gone; the row is written all the same.
            let _ = answer.send(outcome);
        }
    }
}

type Answers = Vec<oneshot::Sender<Result<(), StoreError>>>;

fn commit(connection: &mut Connection, group: Vec<Job>) -> (Vec<Result<(), StoreError>>, Answers) {
    let (ops, answers): (Vec<Op>, Answers) = group.into_iter().map(|job| (job.op, job.done)).unzip();
    match try_commit(connection, &ops) {
        Ok(outcomes) => (outcomes, answers),
        Err(error) => {
            tracing::error!(%error, "a commit to the lease store failed");
            (ops.iter().map(|_| Err(error.clone())).collect(), answers)
        }
    }
}

fn try_commit(connection: &mut Connection, ops: &[Op]) -> Result<Vec<Result<(), StoreError>>, StoreError> {
    let mut transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let mut outcomes = Vec::with_capacity(ops.len());
    for op in ops {
        let point = transaction.savepoint()?;
        let outcome = match op {
            Op::SaveLease(lease) => rows::save_lease(&point, lease),
            Op::SaveInstallation(installation) => rows::save_installation(&point, installation),
            Op::DeleteLeases(ids) => rows::delete_leases(&point, ids),
        };
        // A savepoint that is dropped without a commit is rolled back.
        match &outcome {
            Ok(()) => point.commit()?,
            Err(error) => tracing::error!(%error, "the lease store refused a row"),
        }
        outcomes.push(outcome);
    }
    transaction.commit()?;
    Ok(outcomes)
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
