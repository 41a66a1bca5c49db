//! Pool of read-only connections. Each read sees one snapshot of the committed data.

use crate::error::StoreError;
use crate::schema::open_reader;
use acp_shared::blocking;
use parking_lot::Mutex;
use rusqlite::Connection;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Maximum number of concurrent reads.
const READERS_MAX: usize = 4;

/// Read-only connections, opened on demand.
#[derive(Debug)]
pub struct Readers {
    dir: PathBuf,
    places: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Readers {
    /// Pool for the database in `dir`, with the given open connections.
    pub fn new(dir: PathBuf, idle: Arc<Mutex<Vec<Connection>>>) -> Self {
        Self { dir, places: Arc::new(Semaphore::new(READERS_MAX)), idle }
    }

    /// Runs `work` on a pooled connection, as a blocking task.
    ///
    /// # Errors
    /// Errors of `work`; [`StoreError::Panicked`]; [`StoreError::Closed`].
    pub async fn read<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let idle = Arc::clone(&self.idle);
        let dir = self.dir.clone();
        let task = blocking::run(move || {
            let pooled = idle.lock().pop();
            let db = pooled.map_or_else(|| open_reader(&dir), Ok)?;
            let result = snapshot(&db, name, work);
            if db.is_autocommit() && !matches!(result, Err(StoreError::Panicked { .. })) {
                idle.lock().push(db);
            }
            drop(place);
            result
        });
        task.await.unwrap_or(Err(StoreError::Panicked { name }))
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
    db: &Connection,
    name: &'static str,
    work: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    db.prepare_cached("BEGIN")?.execute([])?;
    let result = catch_unwind(AssertUnwindSafe(|| work(db))).unwrap_or(Err(StoreError::Panicked { name }));
    db.prepare_cached("ROLLBACK")?.execute([])?;
    result
}
