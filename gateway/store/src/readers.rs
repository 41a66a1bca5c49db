//! Pool of read-only connections. Each read sees one snapshot of the committed data.

use crate::db::Db;
use crate::error::StoreError;
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

/// Read-only connections, opened on demand.
#[derive(Debug)]
pub struct Readers {
    dir: PathBuf,
    pool: ReadPool,
    places: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Db>>>,
}

impl Readers {
    /// Readers of the database in `dir`, with the given open connections.
    pub fn new(dir: PathBuf, pool: ReadPool, idle: Arc<Mutex<Vec<Db>>>) -> Self {
        Self { dir, pool, places: Arc::new(Semaphore::new(READERS_MAX)), idle }
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
        let dir = self.dir.clone();
        self.run(name, move || work(&open_reader(&dir)?)).await
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
        let dir = self.dir.clone();
        let task = self.run(name, move || {
            let pooled = idle.lock().pop();
            let db = pooled.map_or_else(|| open_reader(&dir), Ok)?;
            let result = snapshot(&db, name, work);
            if !db.is_in_transaction() && !matches!(result, Err(StoreError::Panicked { .. })) {
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
    db.run("BEGIN", &[])?;
    let result = catch_unwind(AssertUnwindSafe(|| work(db))).unwrap_or(Err(StoreError::Panicked { name }));
    db.run("ROLLBACK", &[])?;
    result
}
