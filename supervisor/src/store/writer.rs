//! Writer thread: commits all queued operations at once, and checks that the open file is still the one under
//! the store's name.

use super::open::{self, file, identity};
use super::{StoreError, WriteJob, WriteOp, WriterHealth, rows};
use rusqlite::{Connection, TransactionBehavior};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use tokio::sync::oneshot;

const GROUP_MAX: usize = 512;

/// Open file and its directory.
pub(super) struct StoreFile {
    dir: PathBuf,
    /// `None` only while a rewritten file could not be opened yet.
    connection: Option<Connection>,
    /// Identities of the database file and the WAL at the time of opening.
    ours: Vec<(u64, u64)>,
    health: Arc<WriterHealth>,
}

type CommitResult = Result<(), StoreError>;
type CommitReplies = Vec<oneshot::Sender<CommitResult>>;

/// Returns the current identities of the database file and the WAL.
fn current_identities(dir: &Path) -> Vec<(u64, u64)> {
    ["", "-wal"].into_iter().filter_map(|suffix| identity(&file(dir, suffix))).collect()
}

impl StoreFile {
    pub(super) fn new(dir: &Path, connection: Connection, health: Arc<WriterHealth>) -> Self {
        Self { ours: current_identities(dir), dir: dir.to_owned(), connection: Some(connection), health }
    }

    /// Writes until the last [`super::Store`] is dropped.
    pub(super) fn write(mut self, queue: &Receiver<WriteJob>) {
        while let Ok(first) = queue.recv() {
            let mut group = vec![first];
            group.extend(std::iter::from_fn(|| queue.try_recv().ok()).take(GROUP_MAX - 1));
            let (ops, answers): (Vec<WriteOp>, CommitReplies) =
                group.into_iter().map(|job| (job.op, job.done)).unzip();
            let outcomes = self.commit(&ops);
            let finish = ops.iter().find(|op| matches!(op, WriteOp::Finish));
            if finish.is_some()
                && let Err(error) = self.finish()
            {
                tracing::warn!(%error, "lease store WAL kept at shutdown; no data lost");
            }
            for (outcome, answer) in outcomes.into_iter().zip(answers) {
                // The requester may have gone away; the row is written all the same.
                let _ = answer.send(outcome);
            }
            if finish.is_some() {
                return;
            }
        }
    }

    /// Moves the WAL into the database file and closes the file. The last connection to close removes the
    /// WAL.
    fn finish(&mut self) -> CommitResult {
        let Some(connection) = self.connection.take() else { return Ok(()) };
        rows::into_one_file(&connection)?;
        connection.close().map_err(|(_, error)| error)?;
        Ok(())
    }

    fn commit(&mut self, ops: &[WriteOp]) -> Vec<CommitResult> {
        let result = self.try_commit(ops);
        let failing =
            result.as_ref().err().map(|error| format!("the lease store cannot be written: {error}"));
        *self.health.failing.lock() = failing;
        result.unwrap_or_else(|error| {
            tracing::error!(%error, "lease store commit failed");
            ops.iter().map(|_| Err(error.clone())).collect()
        })
    }

    fn try_commit(&mut self, ops: &[WriteOp]) -> Result<Vec<CommitResult>, StoreError> {
        self.ensure_in_place()?;
        let connection = self.connection.as_mut().ok_or(StoreError::Closed)?;
        if ops.iter().all(WriteOp::is_noop) {
            return Ok(ops.iter().map(|_| Ok(())).collect());
        }
        let mut transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut outcomes = Vec::with_capacity(ops.len());
        for op in ops {
            let point = transaction.savepoint()?;
            let outcome = op.apply(&point);
            // A savepoint dropped without a commit is rolled back.
            match &outcome {
                Ok(()) => point.commit()?,
                Err(error) => tracing::error!(%error, "lease store rejected a row"),
            }
            outcomes.push(outcome);
        }
        transaction.commit()?;
        self.health.commits.fetch_add(1, Ordering::Relaxed);
        Ok(outcomes)
    }

    /// Ensures that commits go to a file that can be found again. If the store's name no longer leads to the
    /// open file, the open file is copied to that name, and the file found there is renamed.
    fn ensure_in_place(&mut self) -> Result<(), StoreError> {
        if let Some(connection) = &self.connection {
            if current_identities(&self.dir) == self.ours {
                return Ok(());
            }
            tracing::error!(dir = %self.dir.display(), "lease store file removed or replaced; rewriting it");
            let part = open::create_incomplete(&self.dir)?;
            rows::copy_into(connection, &part)?;
            open::mark_complete(&self.dir)?;
            // Before the old handle is closed: closing removes the WAL by name, even a foreign one.
            open::move_aside(&self.dir, &self.ours)?;
            self.connection = None;
        }
        if file(&self.dir, ".new").exists() {
            open::install(&self.dir)?;
        }
        self.connection = Some(open::connect(&self.dir)?);
        self.ours = current_identities(&self.dir);
        *self.health.rewritten.lock() = Some(format!(
            "the lease store's file was deleted or replaced while in use; it was written again from the open \
             file (in {}: the file found in its place is now supervisor.db.replaced)",
            self.dir.display()
        ));
        Ok(())
    }
}

impl WriteOp {
    /// True if the operation writes no rows and only waits for its turn.
    fn is_noop(&self) -> bool {
        match self {
            Self::DeleteLeases(ids) => ids.is_empty(),
            Self::Finish => true,
            Self::SaveLease(_) | Self::SaveInstallation(_) | Self::DeleteInstallation(_) => false,
        }
    }

    fn apply(&self, connection: &Connection) -> CommitResult {
        match self {
            Self::SaveLease(lease) => rows::save_lease(connection, lease),
            Self::SaveInstallation(installation) => rows::save_installation(connection, installation),
            Self::DeleteLeases(ids) => rows::delete_leases(connection, ids),
            Self::DeleteInstallation(gateway) => rows::delete_installation(connection, *gateway),
            Self::Finish => Ok(()),
        }
    }
}
