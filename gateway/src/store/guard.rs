//! What stands between a state directory and a fresh database in it: a database that was here and is not, and one
//! that goes away while it is used.

use crate::store::error::StoreError;
use crate::store::lock::{LOCK_FILE, StateLock};
use crate::store::restore;
use crate::store::schema::{self, DB_FILE};
use rusqlite::Connection;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const LOG_SUFFIX: &str = "-wal";

/// Before the database is opened: finishes a restore that was interrupted, and refuses to make a new database where
/// there was one.
///
/// # Errors
/// [`StoreError::Missing`], [`StoreError::Damaged`], [`StoreError::File`].
pub(crate) fn before_open(dir: &Path, lock: &StateLock) -> Result<(), StoreError> {
    restore::finish(dir)?;
    let path = dir.join(DB_FILE);
    let log = dir.join(format!("{DB_FILE}{LOG_SUFFIX}"));
    let was_here = lock.has_database() || std::fs::metadata(log).is_ok_and(|log| log.len() > 0);
    match std::fs::metadata(&path) {
        Ok(meta) if meta.len() == 0 && was_here => {
            Err(StoreError::Damaged { why: format!("{} is empty", path.display()) })
        }
        // It was on the disk before this was noted: without its tables it lost them.
        Ok(_) if lock.has_database() && has_no_tables(&path) => {
            Err(StoreError::Damaged { why: format!("{} has lost its tables", path.display()) })
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::file("look at", path, error))
        }
        Err(_) if was_here => Err(StoreError::Missing { path, lock: dir.join(LOCK_FILE) }),
        Err(_) => Ok(()),
    }
}

/// Once the database is open and has its tables: from now on its loss is noticed. The first time, the tables are
/// brought from the log into the file before that is noted.
///
/// # Errors
/// [`StoreError::File`]; what SQLite says.
pub(crate) fn after_open(db: &Connection, lock: &mut StateLock) -> Result<(), StoreError> {
    if !lock.has_database() {
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    }
    lock.keep_in_mind()
}

/// Whether it is a database without anything in it. What cannot be read is judged when it is opened.
fn has_no_tables(path: &Path) -> bool {
    schema::open_to_read(path).and_then(|db| schema::version(&db)).is_ok_and(|version| version == 0)
}

/// Which files a database is, by their inodes.
#[derive(Debug)]
pub(crate) struct Place {
    files: Vec<(PathBuf, (u64, u64))>,
}

impl Place {
    /// Of a database that is in no file.
    #[cfg(test)]
    pub(super) const fn nowhere() -> Self {
        Self { files: Vec::new() }
    }

    /// The files of the open database in `dir`, its log included.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub(crate) fn of(dir: &Path) -> Result<Self, StoreError> {
        let paths = ["", LOG_SUFFIX].map(|suffix| dir.join(format!("{DB_FILE}{suffix}")));
        let files = paths.into_iter().map(|path| match file_id(&path) {
            Ok(id) => Ok((path, id)),
            Err(error) => Err(StoreError::file("look at", path, error)),
        });
        Ok(Self { files: files.collect::<Result<_, _>>()? })
    }

    /// How long the log's file is; 0 when it cannot be looked at.
    pub(crate) fn log_bytes(&self) -> u64 {
        let log = self.files.iter().find(|(path, _)| path.to_string_lossy().ends_with(LOG_SUFFIX));
        log.and_then(|(path, _)| std::fs::metadata(path).ok()).map_or(0, |meta| meta.len())
    }

    /// The first file that is not where it was; what is written to it would be lost.
    pub(crate) fn left(&self) -> Option<StoreError> {
        let gone = self.files.iter().find(|(path, id)| match file_id(path) {
            Ok(now) => now != *id,
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        });
        gone.map(|(path, _)| StoreError::Gone { path: path.clone() })
    }
}

fn file_id(path: &Path) -> std::io::Result<(u64, u64)> {
    std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()))
}
