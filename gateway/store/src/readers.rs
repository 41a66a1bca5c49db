//! Pool of read-only connections. Each read sees one snapshot of the committed data.

use crate::cell;
use crate::db::{Db, TxControl};
use crate::error::StoreError;
use crate::postgres::PgAddress;
use crate::schema::open_reader;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Maximum number of concurrent reads.
const READERS_MAX: usize = 4;

/// Where reads run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPool {
    /// Tokio's pool for blocking work.
    Blocking,
    /// The calling thread, for simulations: a second one would make the order of events nondeterministic.
    Caller,
}

/// Database that readers connect to.
#[derive(Debug, Clone)]
pub enum ReadSource {
    /// SQLite's file in a state directory.
    Dir(PathBuf),
    /// A cell of a PostgreSQL server.
    Cell(PgAddress),
}

impl ReadSource {
    fn open(&self) -> Result<Db, StoreError> {
        match self {
            Self::Dir(dir) => open_reader(dir),
            Self::Cell(address) => cell::open::open_reader(address),
        }
    }
}

/// Read-only connections, opened on demand.
#[derive(Debug)]
pub struct Readers {
    source: ReadSource,
    pool: ReadPool,
    places: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Db>>>,
}

impl Readers {
    /// Readers of a database, with the given open connections.
    pub fn new(source: ReadSource, pool: ReadPool, idle: Arc<Mutex<Vec<Db>>>) -> Self {
        Self { source, pool, places: Arc::new(Semaphore::new(READERS_MAX)), idle }
    }

    /// True if the database is a file.
    pub const fn has_file(&self) -> bool {
        matches!(self.source, ReadSource::Dir(_))
    }

    async fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        match self.pool {
            ReadPool::Caller => work(),
            ReadPool::Blocking => {
                tokio::task::spawn_blocking(work).await.unwrap_or(Err(StoreError::Panicked { name }))
            }
        }
    }

    /// Runs `work` on a connection of its own, without the page caches of the others.
    ///
    /// # Errors
    /// Errors of opening and of `work`; [`StoreError::Panicked`].
    pub async fn read_on_new_connection<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(&Db) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let source = self.source.clone();
        self.run(name, move || work(&source.open()?)).await
    }

    /// Runs `work` on a pooled connection, as a blocking task.
    ///
    /// # Errors
    /// Errors of `work`; [`StoreError::Panicked`]; [`StoreError::Closed`].
    pub async fn read<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(&Db) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let idle = Arc::clone(&self.idle);
        let source = self.source.clone();
        let task = self.run(name, move || {
            let pooled = std::iter::from_fn(|| idle.lock().pop()).find(Db::is_alive);
            let db = pooled.map_or_else(|| source.open(), Ok)?;
            let result = snapshot(&db, name, work);
            if db.is_usable()
                && !db.is_in_transaction()
                && !matches!(result, Err(StoreError::Panicked { .. }))
            {
                idle.lock().push(db);
            }
            drop(place);
            result
        });
        task.await
    }

    /// Waits for running reads, rejects new ones and closes the connections.
    pub async fn close(&self) {
        let all = u32::try_from(READERS_MAX).unwrap_or(u32::MAX);
        let ended = self.places.acquire_many(all).await;
        self.places.close();
        drop(ended);
        self.idle.lock().clear();
    }
}

fn snapshot<T>(
    db: &Db,
    name: &'static str,
    work: impl FnOnce(&Db) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    db.control(TxControl::BeginRead)?;
    let result = catch_unwind(AssertUnwindSafe(|| work(db))).unwrap_or(Err(StoreError::Panicked { name }));
    db.control(TxControl::Rollback)?;
    result
}
