//! A gateway that cannot commit for a while.

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use std::path::Path;
use std::time::Duration;

/// Holds the write lock of a gateway's database: the gateway goes on reading and cannot commit. Writes nothing.
#[derive(Debug)]
pub struct Locked(Connection);

impl Locked {
    /// Takes the lock of this file, as soon as nobody else has it; none if that takes long.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "a lock that keeps the gateway from committing; nothing is written"
    )]
    pub fn take(path: &Path) -> Option<Self> {
        let db = Connection::open(path).ok()?;
        // Nor may its end tidy the log up.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).ok()?;
        db.busy_timeout(Duration::from_secs(5)).ok()?;
        db.execute_batch("BEGIN IMMEDIATE").ok()?;
        Some(Self(db))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Nothing was written: the end of the connection does the same.
        let _ = self.0.execute_batch("ROLLBACK");
    }
}
