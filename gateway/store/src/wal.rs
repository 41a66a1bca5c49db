//! SQLite's log (WAL): when it is moved into the database file, and what follows.

use crate::db::{Db, TxControl};
use crate::meta;
use std::time::Instant;

/// Growth of the WAL at which a checkpoint is made without an idle phase, in bytes.
const LOG_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Key of `acp_meta` that [`begin_log`] sets and removes in one transaction.
const NEW_LOG: &str = "new_log";

/// Decides when a WAL that is written without idle phases is due for a checkpoint, by the length of its file.
/// After a complete checkpoint SQLite restarts the file from its beginning and truncates it. While a reader
/// holds an older snapshot, SQLite appends instead.
#[derive(Debug, Default)]
pub struct CheckpointTrigger {
    /// Length at the last checkpoint, in bytes.
    pub moved_bytes: u64,
}

impl CheckpointTrigger {
    /// True if a checkpoint is due at this length of the file.
    pub fn is_due(&mut self, bytes: u64) -> bool {
        self.moved_bytes = self.moved_bytes.min(bytes);
        bytes - self.moved_bytes >= LOG_BYTES_MAX
    }
}

/// Moves SQLite's log into the database file. Returns true if the next transaction begins a new log.
pub fn checkpoint(db: &Db) -> bool {
    let begun = Instant::now();
    let done = db.first("PRAGMA wal_checkpoint(PASSIVE)", &[], |row| {
        Ok((row.get::<u64>("log")?, row.get::<u64>("checkpointed")?))
    });
    match done {
        Ok(pages) => {
            let (pages, moved) = pages.unwrap_or_default();
            let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            tracing::debug!(pages, moved, took_us, "checkpoint");
            pages > 0 && pages == moved
        }
        Err(error) => {
            tracing::warn!(%error, "checkpoint failed");
            false
        }
    }
}

/// Begins a new log with a transaction that changes nothing. SQLite syncs the header of a log before its first transaction;
/// nobody waits for this one.
pub fn begin_log(db: &Db) {
    let begun = db
        .control(TxControl::BeginWrite)
        .and_then(|()| meta::set(db, NEW_LOG, ""))
        .and_then(|()| meta::remove(db, NEW_LOG))
        .and_then(|()| db.control(TxControl::Commit));
    let Err(error) = begun else { return };
    tracing::debug!(%error, "new log not begun");
    if db.is_in_transaction()
        && let Err(error) = db.control(TxControl::Rollback)
    {
        tracing::error!(%error, "rollback of a transaction without changes failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoint_is_due_after_wal_growth_by_limit() {
        const MAX: u64 = LOG_BYTES_MAX;
        const CUT: u64 = 16 * 1024 * 1024;
        // Length at the last checkpoint, length now, due.
        for (moved_bytes, bytes, due) in [
            (0, 0, false),
            (0, MAX - 1, false),
            (0, MAX, true),
            // A reader is active: the log grows at its end.
            (MAX, MAX + 1, false),
            (MAX, 2 * MAX, true),
            // The log was restarted and truncated.
            (MAX, CUT, false),
            (CUT, CUT + MAX, true),
        ] {
            let mut log = CheckpointTrigger { moved_bytes };
            assert_eq!(log.is_due(bytes), due, "{moved_bytes} {bytes}");
        }
        // Growth counts from the truncated length.
        let mut log = CheckpointTrigger { moved_bytes: 3 * MAX };
        let seen = [CUT, CUT + MAX - 1, CUT + MAX].map(|bytes| log.is_due(bytes));
        assert_eq!(seen, [false, false, true]);
    }
}
