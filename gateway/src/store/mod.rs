//! The control plane's database: the only place that names rusqlite.
//!
//! One thread writes, and commits in groups ([`writer`]); a few connections read ([`readers`]). Everything that
//! changes the database is a named transaction given to [`Store::write`]; what it returns is durable. One file
//! per table holds that table's SQL beside its row type; `tx/` holds the transactions that touch several.

pub(crate) mod backup;
pub(crate) mod bindings;
pub(crate) mod buttons;
#[cfg(test)]
pub(crate) mod by_hand;
pub(crate) mod cards;
pub(crate) mod check;
pub(crate) mod codec;
pub(crate) mod commands;
pub(crate) mod configured;
pub(crate) mod console;
pub(crate) mod delivery;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod guard;
pub(crate) mod health;
pub(crate) mod idempotency;
pub(crate) mod identity;
pub(crate) mod inbox;
pub(crate) mod leases;
pub(crate) mod levels;
pub(crate) mod lock;
pub(crate) mod meta;
pub(crate) mod outbox;
pub(crate) mod permissions;
pub(crate) mod readers;
pub(crate) mod replies;
pub(crate) mod requests;
pub(crate) mod restore;
pub(crate) mod rollback;
pub(crate) mod runs;
pub(crate) mod said;
pub(crate) mod salvage;
pub(crate) mod schema;
pub(crate) mod sessions;
pub(crate) mod styles;
#[cfg(test)]
mod tests;
pub(crate) mod tx;
pub(crate) mod watches;
pub(crate) mod writer;

pub(crate) use error::StoreError;
pub(crate) use health::Health;
pub(crate) use identity::Identity;
pub(crate) use schema::Durability;
pub(crate) use tx::spawn::SpawnTx;
pub(crate) use writer::{Counts, GroupBounds, Tx};

use acp_shared::ids::SessionKey;
use acp_shared::protocol::Marks;
use guard::Place;
use health::HealthSender;
use readers::Readers;
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, oneshot, watch};
use watches::Watches;
use writer::{Counters, Job, Message, Writer};

/// How many write transactions may wait or run; more callers wait for a place.
const WRITES_MAX: usize = 1024;

/// The control plane's database. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    identity: Identity,
    // Unbounded by itself; `places` bounds it.
    queue: Sender<Message>,
    places: Arc<Semaphore>,
    readers: Readers,
    watches: Arc<Watches>,
    counters: Arc<Counters>,
    health: HealthSender,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Store {
    /// Takes the state directory (made if there is none), opens and migrates the database, and starts the
    /// writer. Blocks: call it before serving.
    ///
    /// # Errors
    /// [`StoreError::Locked`] while another gateway runs on it, [`StoreError::Cloned`] when it is a copy,
    /// [`StoreError::Missing`], [`StoreError::Damaged`], [`StoreError::Foreign`], [`StoreError::ReadOnly`],
    /// [`StoreError::Newer`], [`StoreError::Migration`], [`StoreError::File`], [`StoreError::Sqlite`]: then nothing
    /// was made and nothing changed.
    pub(crate) fn open(dir: &Path, durability: Durability) -> Result<Self, StoreError> {
        Self::open_with(dir, durability, GroupBounds::default())
    }

    /// The same, with bounds of its own for one commit.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub(crate) fn open_with(
        dir: &Path,
        durability: Durability,
        bounds: GroupBounds,
    ) -> Result<Self, StoreError> {
        let mut lock = lock::StateLock::take(dir)?;
        guard::before_open(dir, &lock)?;
        let db = schema::open_writer(dir, durability)?;
        let identity = identity::establish(&db, dir)?;
        guard::after_open(&db, &mut lock)?;
        let place = Place::of(dir)?;
        #[expect(clippy::disallowed_methods, reason = "bounded by `places`")]
        let (queue, jobs) = channel();
        let watches = Arc::new(Watches::default());
        let counters = Arc::new(Counters::default());
        let health = HealthSender::default();
        let writer = Writer {
            db,
            queue: jobs,
            watches: Arc::clone(&watches),
            counters: Arc::clone(&counters),
            bounds,
            health: health.clone(),
            place,
            lock,
        };
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| StoreError::file("start the writer of", dir, error))?;
        let inner = Inner {
            dir: dir.to_owned(),
            identity,
            queue,
            places: Arc::new(Semaphore::new(WRITES_MAX)),
            readers: Readers::new(dir.to_owned()),
            watches,
            counters,
            health,
            thread: Mutex::new(Some(thread)),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Who this gateway is.
    pub(crate) fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// Durable progress of this gateway, which the supervisor compares with what it has on record.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub(crate) async fn marks(&self) -> Result<Marks, StoreError> {
        let start_id = self.inner.identity.start_id;
        self.read("marks", move |db| {
            let (event_id, offsets) = (events::last_id(db)?, leases::offsets(db)?);
            let accepts_loss = identity::has_accepted_loss(db)?;
            Ok(Marks { start_id, event_id, offsets, accepts_loss })
        })
        .await
    }

    /// Ends what is noted about a refusal of the supervisor, which has let this gateway in.
    ///
    /// # Errors
    /// As [`Store::write`]; [`StoreError::File`].
    pub(crate) async fn settle_loss(&self) -> Result<(), StoreError> {
        if self.read("accepted_loss", identity::has_accepted_loss).await? {
            self.write("settle_loss", |tx| identity::settle_loss(tx)).await?;
        }
        rollback::forget(self.dir())
    }

    /// The state directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Runs a named transaction on the writer. All of it or nothing is durable when this returns. A caller that
    /// goes away does not stop it.
    ///
    /// # Errors
    /// What `work` returns, and then nothing of it was written; or why the group could not be committed.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(&Tx<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.write_sized(name, 0, work).await
    }

    /// The same, saying about how many bytes of content it writes, which bounds a group.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub(crate) async fn write_sized<T: Send + 'static>(
        &self,
        name: &'static str,
        bytes: usize,
        work: impl FnOnce(&Tx<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let place = Arc::clone(&self.inner.places).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let (reply, answer) = oneshot::channel();
        let job = Job::new(name, bytes, place, work, reply);
        self.inner.queue.send(Message::Job(job)).map_err(|_| StoreError::Closed)?;
        answer.await.unwrap_or(Err(StoreError::Closed))
    }

    /// Runs a read on a snapshot of what is committed.
    ///
    /// # Errors
    /// What `work` returns; [`StoreError::Panicked`]; [`StoreError::Closed`].
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.inner.readers.read(name, work).await
    }

    /// The session's last committed number, as commits go by. A hint: 0 until the first commit that is seen, so
    /// subscribe first, then read the journal, then wait.
    pub(crate) fn watch(&self, session_key: &SessionKey) -> watch::Receiver<u64> {
        self.inner.watches.session(session_key)
    }

    /// Changes with every commit of anything. A hint.
    pub(crate) fn committed(&self) -> watch::Receiver<u64> {
        self.inner.watches.commits()
    }

    /// Counts up with each commit after which other conversations may be bound than before, before anybody learns that
    /// it is one. Whoever remembers what is bound takes the number first, then reads: as long as it stands, what was
    /// read holds, but for a commit that nobody was told of yet.
    pub(crate) fn bindings_changed(&self) -> watch::Receiver<u64> {
        self.inner.watches.bindings()
    }

    /// Whether what is asked for can be committed. Changes when it no longer can, and when it can again: whoever
    /// gave something up for that reason takes it up then. The store finds out by itself, without traffic.
    pub(crate) fn health(&self) -> watch::Receiver<Health> {
        self.inner.health.subscribe()
    }

    /// What the writer counts.
    pub(crate) fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// What the writer has done.
    pub(crate) fn counts(&self) -> Counts {
        self.inner.counters.look()
    }

    /// Commits what is queued, closes the database and frees the state directory. Later calls, on every clone,
    /// get [`StoreError::Closed`].
    pub(crate) async fn close(&self) {
        self.inner.places.close();
        self.inner.readers.close().await;
        // The writer may have ended already.
        drop(self.inner.queue.send(Message::Stop));
        let thread = self.inner.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && !matches!(tokio::task::spawn_blocking(move || thread.join()).await, Ok(Ok(())))
        {
            tracing::error!("the store's writer did not end in order");
        }
    }
}

/// Milliseconds since the Unix epoch: the store's stamp on what it writes.
pub(crate) fn now_ms() -> u64 {
    #[cfg(test)]
    if let Some(now_ms) = by_hand::now_ms() {
        return now_ms;
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
