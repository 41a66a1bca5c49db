//! Keeps a gateway from committing for a while.

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use std::path::Path;
use std::time::Duration;

/// Holds the write lock of a gateway's database: the gateway can still read but not commit. Writes nothing.
#[derive(Debug)]
pub struct DatabaseLock(Connection);

impl DatabaseLock {
    /// Takes the write lock of this database file as soon as it is free; `None` after a timeout.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "a lock that keeps the gateway from committing; nothing is written"
    )]
    pub fn acquire(path: &Path) -> Option<Self> {
        let db = Connection::open(path).ok()?;
        // Closing this connection must not checkpoint the write-ahead log either.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).ok()?;
        db.busy_timeout(Duration::from_secs(5)).ok()?;
        db.execute_batch("BEGIN IMMEDIATE").ok()?;
        Some(Self(db))
    }
}

impl Drop for DatabaseLock {
    fn drop(&mut self) {
        // Nothing was written: if this fails, closing the connection has the same effect.
        let _ = self.0.execute_batch("ROLLBACK");
    }
}
