//! Database of the control plane. No other package of the gateway names rusqlite.
//!
//! One thread writes and commits in groups ([`writer`]); a small pool of connections reads ([`readers`]).
//! Every change is a named transaction passed to [`Store::write`]; the value that it returns is durable. Each
//! table has one file with its SQL and its row type; `tx/` holds the transactions over several tables.

pub mod acpx_names;
pub mod backup;
pub mod bindings;
pub mod cards;
pub mod cell;
pub mod check;
pub mod checkpoints;
pub mod codec;
pub mod command_queries;
pub mod command_replies;
pub mod compact;
pub mod completions;
pub mod console;
pub mod db;
pub mod delivery;
pub mod error;
pub mod events;
pub mod gauges;
pub mod health;
pub mod histograms;
pub mod host_reports;
pub mod idempotency;
pub mod identity;
pub mod inbox;
pub mod interactive_messages;
pub mod leases;
pub mod lock;
pub mod marks;
pub mod meta;
mod move_marks;
pub mod move_rows;
pub mod notify;
pub mod offline;
pub mod open;
pub mod openclaw_import;
pub mod openclaw_source;
pub mod permissions;
pub mod postgres;
pub mod project_marks;
pub mod readers;
pub mod render_settings;
pub mod requests;
pub mod restore;
pub mod retention;
pub mod rollback;
pub mod runs;
pub mod salvage;
pub mod schema;
pub mod sent_messages;
pub mod sessions;
pub mod static_bindings;
pub mod stdin_outbox;
#[cfg(test)]
mod tests;
pub mod timeouts;
pub mod tokens;
pub mod tx;
pub mod value;
pub mod wal;
pub mod webhook_cursors;
pub mod writer;

pub use acp_core::config::Durability;
pub use error::StoreError;
pub use health::StoreHealth;
pub use identity::GatewayIdentity;
pub use postgres::PgAddress;
pub use tx::spawn::SpawnTx;
pub use writer::{Counts, GroupBounds, Tx};

use acp_core::api::{CellOwnerView, OwnerView};
use acp_shared::clock::Clock;
use acp_shared::ids::SessionKey;
use acp_shared::protocol::Marks;
use cell::plane::Plane;
use cell::{Owner, OwnerId};
use db::Db;
use health::HealthSender;
use lock::StateLock;
use notify::CommitNotifier;
use open::DatabaseFiles;
use parking_lot::Mutex;
use readers::{ReadPool, ReadSource, Readers};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use tokio::sync::{Semaphore, oneshot, watch};
use writer::{WriteJob, Writer, WriterCounters, WriterMessage};

/// Maximum number of write transactions queued or running; further callers wait for a permit.
const WRITES_MAX: usize = 1024;

/// Handle to the control plane's database. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    identity: GatewayIdentity,
    clock: Clock,
    times: OpeningTimes,
    // An unbounded channel; the permits of `places` bound it.
    queue: Sender<WriterMessage>,
    places: Arc<Semaphore>,
    readers: Readers,
    watches: Arc<CommitNotifier>,
    counters: Arc<WriterCounters>,
    health: HealthSender,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Renews the ownership of a cell.
    owner: Mutex<Option<Owner>>,
    /// Cell of this gateway, and the owner in the cell's row.
    owner_view: OnceLock<(String, CellOwnerView)>,
    /// Plane of the cell's database; not set for a control plane in a file.
    plane: OnceLock<Plane>,
}

/// Times when the store was opened.
#[derive(Debug, Clone, Copy)]
struct OpeningTimes {
    /// Time of the last row of the journal, or of the opening without one, in milliseconds since the Unix epoch.
    last_at_ms: u64,
    /// [`Clock::now_ms`].
    opened_ms: u64,
}

/// Parts of a store. [`Store::open`] makes them from a state directory; a simulation brings its own.
#[derive(Debug)]
pub struct StoreParts {
    /// State directory.
    pub dir: PathBuf,
    /// Identity of this start.
    pub identity: GatewayIdentity,
    /// Writing connection.
    pub db: Db,
    /// Reading connections.
    pub readers: Readers,
    /// Files of the database.
    pub files: DatabaseFiles,
    /// Lock of the state directory.
    pub lock: StateLock,
    /// Bounds of one group.
    pub bounds: GroupBounds,
    /// Source of time.
    pub clock: Clock,
}

impl StoreParts {
    /// Puts a store together. Its transactions wait for the writer, which the caller runs.
    pub fn assemble(self) -> (Store, Writer) {
        let Self { dir, identity, db, readers, files, lock, bounds, clock } = self;
        // An empty journal has no row that the wall clock could make old. If the time cannot be read, no row is old.
        let last_at_ms = events::last_at_ms(&db).map_or(0, |at_ms| at_ms.unwrap_or_else(|| clock.wall_ms()));
        let times = OpeningTimes { last_at_ms, opened_ms: clock.now_ms() };
        #[expect(clippy::disallowed_methods, reason = "bounded by `places`")]
        let (queue, jobs) = channel();
        let watches = Arc::new(CommitNotifier::default());
        let counters = Arc::new(WriterCounters::default());
        let health = HealthSender::default();
        let writer = Writer {
            db,
            queue: jobs,
            clock,
            watches: Arc::clone(&watches),
            counters: Arc::clone(&counters),
            bounds,
            health: health.clone(),
            place: files,
            lock,
            ahead: Default::default(),
        };
        let places = Arc::new(Semaphore::new(WRITES_MAX));
        let (thread, owner) = (Mutex::default(), Mutex::default());
        let inner = Inner {
            dir,
            identity,
            clock,
            times,
            queue,
            places,
            readers,
            watches,
            counters,
            health,
            thread,
            owner,
            owner_view: OnceLock::new(),
            plane: OnceLock::new(),
        };
        (Store { inner: Arc::new(inner) }, writer)
    }

    /// Puts a store together and starts the thread of its writer.
    fn start(self) -> Result<Store, StoreError> {
        let dir = self.dir.clone();
        let (store, writer) = self.assemble();
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| StoreError::file("start the writer thread for", dir, error))?;
        *store.inner.thread.lock() = Some(thread);
        Ok(store)
    }
}

impl Store {
    /// Locks the state directory (created if missing), opens and migrates the database, and starts the writer
    /// thread. Blocks: call it before serving.
    ///
    /// # Errors
    /// [`StoreError::Locked`] while another gateway uses the directory, [`StoreError::Cloned`] if the
    /// directory is a copy, [`StoreError::Missing`], [`StoreError::Damaged`], [`StoreError::Foreign`],
    /// [`StoreError::ReadOnly`], [`StoreError::Newer`], [`StoreError::Migration`], [`StoreError::File`],
    /// [`StoreError::Sqlite`]. After an error nothing was created or changed.
    pub fn open(dir: &Path, durability: Durability) -> Result<Self, StoreError> {
        #[expect(clippy::disallowed_methods, reason = "the clock of the machine, unless the caller has one")]
        let clock = Clock::start();
        Self::open_with(dir, durability, GroupBounds::default(), clock)
    }

    /// Opens the store like [`Store::open`], with explicit bounds for one group commit and a clock.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_with(
        dir: &Path,
        durability: Durability,
        bounds: GroupBounds,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let mut lock = StateLock::take(dir)?;
        open::before_open(dir, &lock)?;
        let db = open::open_writer(dir, durability)?;
        let identity = identity::establish(&db, dir)?;
        open::after_open(&db, &mut lock)?;
        let files = DatabaseFiles::of(dir)?;
        let readers = Readers::new(ReadSource::Dir(dir.to_owned()), ReadPool::Blocking, Arc::default());
        StoreParts { dir: dir.to_owned(), identity, db, readers, files, lock, bounds, clock }.start()
    }

    /// Locks the state directory (created if missing), takes the cell of a PostgreSQL server for this process and migrates it,
    /// and starts the writer thread. With `allow_loss`, the server may lack a synchronous standby. Blocks; not for an async
    /// context.
    ///
    /// # Errors
    /// [`StoreError::Locked`]; [`StoreError::CellTaken`] while another gateway serves the cell; [`StoreError::Server`];
    /// [`StoreError::Newer`]; [`StoreError::File`]; errors of the server. After an error nothing was created or changed.
    pub fn open_cell(
        dir: &Path,
        address: &PgAddress,
        allow_loss: bool,
        bounds: GroupBounds,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        Self::open_locked_cell(&mut Some(StateLock::take(dir)?), dir, address, allow_loss, bounds, clock)
    }

    /// Opens the store like [`Store::open_cell`], in a state directory that the caller has locked. The store takes the lock; after
    /// most errors the caller keeps it.
    ///
    /// # Errors
    /// As [`Store::open_cell`]; [`StoreError::Closed`] without a lock.
    pub fn open_locked_cell(
        held: &mut Option<StateLock>,
        dir: &Path,
        address: &PgAddress,
        allow_loss: bool,
        bounds: GroupBounds,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let lock = held.as_mut().ok_or(StoreError::Closed)?;
        if move_marks::of_file(dir)?.is_none() {
            open::refuse_file(dir)?;
        }
        let cell::open::OpenedCell { db, timeline } =
            cell::open::open_writer(address, allow_loss, lock.is_in_cell())?;
        move_rows::finish_at_start(&db, dir, lock, address)?;
        // The file of a finished move has another name by now: one that is left was moved elsewhere.
        open::refuse_file(dir)?;
        let owner = OwnerId::of(&db, address, allow_loss)?;
        let identity = identity::establish_in_cell(&db, dir, &timeline)?;
        lock.record_cell()?;
        let view = CellOwnerView {
            epoch: identity.epoch,
            since_ms: clock.wall_ms(),
            host: identity::host_name(),
            pid: std::process::id(),
            addresses: address.served_at.to_vec(),
        };
        cell::ownership::record(&db, owner, view.clone())?;
        let readers = Readers::new(ReadSource::Cell(address.clone()), ReadPool::Blocking, Arc::default());
        let files = DatabaseFiles::default();
        let lock = held.take().ok_or(StoreError::Closed)?;
        let parts = StoreParts { dir: dir.to_owned(), identity, db, readers, files, lock, bounds, clock };
        let store = parts.start()?;
        *store.inner.owner.lock() = Some(Owner::start(address, owner, store.inner.health.clone())?);
        // The store is new: nothing was set before.
        let _ = store.inner.owner_view.set((address.cell().to_owned(), view));
        let _ = store.inner.plane.set(Plane::new(address.clone(), owner));
        Ok(store)
    }

    /// Clock that the times of rows come from.
    pub fn clock(&self) -> Clock {
        self.inner.clock
    }

    /// Identity of this gateway: instance id, epoch and start id.
    pub fn identity(&self) -> &GatewayIdentity {
        &self.inner.identity
    }

    /// Returns the plane of the cell's database; `None` for a control plane in a file.
    pub fn plane(&self) -> Option<Plane> {
        self.inner.plane.get().cloned()
    }

    /// Gateway that serves the control plane: this one.
    pub fn owner(&self) -> OwnerView {
        let (cell, owner) = self.inner.owner_view.get().cloned().unzip();
        OwnerView { serves: true, cell, owner }
    }

    /// Durable progress of this gateway. The supervisor compares it with its own record.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn marks(&self, host: &str) -> Result<Marks, StoreError> {
        let (start_id, host) = (self.inner.identity.start_id, host.to_owned());
        self.read("marks", move |db| {
            let pending = identity::pending_admission(db, &host)?;
            let event_id = pending.map_or_else(|| events::last_id(db), |pending| Ok(pending.event_id))?;
            let accepts_loss = pending.is_some_and(|pending| pending.accepts_loss);
            Ok(Marks { start_id, event_id, offsets: leases::offsets(db)?, accepts_loss })
        })
        .await
    }

    /// Begins the admissions of this start by the supervisors of these hosts. Called before anything is written.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn begin_admissions(&self, hosts: Vec<String>) -> Result<(), StoreError> {
        self.write("begin_admissions", move |tx| identity::begin_admissions(tx, &hosts)).await
    }

    /// Records that the supervisor of a host has admitted this start, and removes the note about a refusal.
    ///
    /// # Errors
    /// As [`Store::write`]; [`StoreError::File`].
    pub async fn settle_admission(&self, host: &str) -> Result<(), StoreError> {
        let (host, of) = (host.to_owned(), host.to_owned());
        self.write("settle_admission", move |tx| identity::settle_admission(tx, &of)).await?;
        rollback::remove_record_of(self.dir(), &host)
    }

    /// True if the database is a file of the state directory.
    pub fn has_file(&self) -> bool {
        self.inner.readers.has_file()
    }

    /// Sizes of the database and of its log, in bytes. A cell of a PostgreSQL server has no log of its own.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn sizes(&self) -> Result<(u64, u64), StoreError> {
        if self.has_file() {
            return Ok(gauges::sizes(self.dir()));
        }
        self.read("size", |db| Ok((gauges::cell_size(db)?, 0))).await
    }

    /// Path of the state directory.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Runs a named transaction on the writer thread. When this returns, the transaction is durable as a
    /// whole or rolled back as a whole. Dropping the future does not cancel the transaction.
    ///
    /// # Errors
    /// Errors of `work`, in which case its writes were rolled back; or the error that prevented the group's
    /// commit.
    pub async fn write<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(&Tx<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.write_sized(name, 0, work).await
    }

    /// Runs a transaction like [`Store::write`], given the approximate number of content bytes it writes. The
    /// sum of these sizes bounds a group.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn write_sized<T: Send + 'static>(
        &self,
        name: &'static str,
        bytes: usize,
        work: impl FnOnce(&Tx<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.queue(name, bytes, None, work).await
    }

    /// Queues a transaction. `session` as of [`WriteJob`].
    pub(crate) async fn queue<T: Send + 'static>(
        &self,
        name: &'static str,
        bytes: usize,
        session: Option<SessionKey>,
        work: impl FnOnce(&Tx<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let place = Arc::clone(&self.inner.places).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let (reply, answer) = oneshot::channel();
        let mut job = WriteJob::new(name, bytes, place, work, reply);
        job.session = session;
        self.inner.queue.send(WriterMessage::Job(job)).map_err(|_| StoreError::Closed)?;
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Runs a read on a snapshot of the committed data.
    ///
    /// # Errors
    /// Errors of `work`; [`StoreError::Panicked`]; [`StoreError::Closed`].
    pub async fn read<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(&Db) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.inner.readers.read(name, work).await
    }

    /// Runs a read like [`Store::read`], on a new connection: the page caches of the others would hide damage of the
    /// file.
    ///
    /// # Errors
    /// Errors of opening and of `work`; [`StoreError::Panicked`].
    pub async fn read_on_new_connection<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(&Db) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.inner.readers.read_on_new_connection(name, work).await
    }

    /// Receiver of the session's last committed journal number, updated by commits. Only a hint: 0 until a
    /// commit while the session is watched. So subscribe first, then read the journal, then wait.
    pub fn watch(&self, session_key: &SessionKey) -> watch::Receiver<u64> {
        self.inner.watches.session(session_key)
    }

    /// Receiver that changes with every group commit. Only a hint.
    pub fn committed(&self) -> watch::Receiver<u64> {
        self.inner.watches.commits()
    }

    /// Removes and returns the sessions whose journal or bindings changed since the last call. For one caller, the
    /// delivery. Only a hint: empty after the start.
    pub fn take_changed(&self) -> HashSet<SessionKey> {
        self.inner.watches.take_changed()
    }

    /// Counter of commits that may have changed the set of bound conversations. It is incremented before the
    /// callers of those commits get their results. A cache of bindings reads the counter first and the table
    /// second: while the counter is unchanged, the cache is current except for commits whose callers have no
    /// result yet.
    pub fn bindings_changed(&self) -> watch::Receiver<u64> {
        self.inner.watches.bindings()
    }

    /// Receiver of the store's ability to commit. It changes when commits start to fail and when they work
    /// again, so callers know when to resume work. The writer probes for recovery on its own, without
    /// traffic.
    pub fn health(&self) -> watch::Receiver<StoreHealth> {
        self.inner.health.subscribe()
    }

    /// Counters of the writer.
    pub fn counters(&self) -> &WriterCounters {
        &self.inner.counters
    }

    /// Snapshot of the writer's counters.
    pub fn counts(&self) -> Counts {
        self.inner.counters.snapshot()
    }

    /// Commits the queued transactions, closes the database and unlocks the state directory. Later calls, on
    /// every clone, return [`StoreError::Closed`].
    pub async fn close(&self) {
        self.inner.places.close();
        self.inner.readers.close().await;
        // The send fails if the writer has ended already.
        drop(self.inner.queue.send(WriterMessage::Stop));
        let (thread, owner) = (self.inner.thread.lock().take(), self.inner.owner.lock().take());
        if let Some(thread) = thread
            && !matches!(tokio::task::spawn_blocking(move || thread.join()).await, Ok(Ok(())))
        {
            tracing::error!("store writer panicked");
        }
        // Last: without renewals another gateway could end commits that still wait for a standby.
        if let Some(owner) = owner
            && tokio::task::spawn_blocking(|| owner.stop()).await.is_err()
        {
            tracing::error!("end of the ownership failed");
        }
    }
}
