//! Opening of the database that a gateway writes. No empty new database takes the place of a lost one: a database
//! file that is missing at start, or disappears while in use, is detected.

use crate::db::{Db, TxControl};
use crate::error::StoreError;
use crate::lock::{LOCK_FILE, StateLock, private_file};
use crate::schema::{self, CHECKED_FIRST_BYTES, DB_FILE, MIGRATIONS};
use crate::{backup, check, move_marks, restore};
use acp_core::config::Durability;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const LOG_SUFFIX: &str = "-wal";

/// Opens the only connection that writes, and migrates. A database of an older schema is backed up first.
///
/// # Errors
/// [`StoreError::Newer`], [`StoreError::Foreign`], [`StoreError::Damaged`], [`StoreError::ReadOnly`],
/// [`StoreError::Migration`], [`StoreError::File`], [`StoreError::Sqlite`]. After an error nothing was
/// changed.
pub fn open_writer(dir: &Path, durability: Durability) -> Result<Db, StoreError> {
    open_with(dir, durability, MIGRATIONS)
}

/// Opens the writing connection like [`open_writer`], with other migrations.
///
/// # Errors
/// As [`open_writer`].
pub(crate) fn open_with(dir: &Path, durability: Durability, migrations: &[&str]) -> Result<Db, StoreError> {
    let mut db = open_checked(dir, durability, migrations.len())?;
    let found = schema::version(&db)?;
    if found > 0 {
        move_marks::refuse_moved_file(&db, dir)?;
    }
    if found > 0 && usize::try_from(found).is_ok_and(|found| found < migrations.len()) {
        backup::before_migration(dir, found)?;
    }
    schema::migrate_with(&mut db, migrations)?;
    schema::set_application_id(&db)?;
    Ok(db)
}

/// Opens the only connection that writes, in a transaction that has migrated the database. Nothing is committed: the end
/// of the connection rolls it back.
///
/// # Errors
/// As [`open_writer`].
pub fn open_uncommitted(dir: &Path) -> Result<Db, StoreError> {
    let db = open_checked(dir, Durability::Full, MIGRATIONS.len())?;
    db.control(TxControl::BeginWrite)?;
    schema::migrate_uncommitted(&db)?;
    Ok(db)
}

fn open_checked(dir: &Path, durability: Durability, known: usize) -> Result<Db, StoreError> {
    let path = dir.join(DB_FILE);
    // SQLite creates the WAL and shared-memory files with the mode of the database.
    let bytes = private_file(&path)?.metadata().map_or(0, |meta| meta.len());
    let db = schema::open_to_write(&path, durability, known)?;
    if bytes <= CHECKED_FIRST_BYTES
        && let Some(why) = check::pages(&db, true)?.into_iter().next()
    {
        return Err(StoreError::Damaged { why });
    }
    Ok(db)
}

/// Refuses the use of a cell of a PostgreSQL server in a state directory that has a database file: one of both would be stale.
///
/// # Errors
/// [`StoreError::InFile`]; [`StoreError::File`].
pub(crate) fn refuse_file(dir: &Path) -> Result<(), StoreError> {
    let path = dir.join(DB_FILE);
    match path.try_exists() {
        Ok(false) => Ok(()),
        Ok(true) => Err(StoreError::InFile { path }),
        Err(error) => Err(StoreError::file("inspect", path, error)),
    }
}

/// Runs before the database is opened: removes unfinished copies, finishes an interrupted restore, and refuses to create a new
/// database where one is missing or in a cell.
///
/// # Errors
/// [`StoreError::InCell`], [`StoreError::Missing`], [`StoreError::Damaged`], [`StoreError::File`].
pub fn before_open(dir: &Path, lock: &StateLock) -> Result<(), StoreError> {
    backup::remove_unfinished(dir, lock);
    restore::finish(dir)?;
    let path = dir.join(DB_FILE);
    let log = dir.join(format!("{DB_FILE}{LOG_SUFFIX}"));
    let was_here = lock.has_database() || std::fs::metadata(log).is_ok_and(|log| log.len() > 0);
    match std::fs::metadata(&path) {
        Ok(meta) if meta.len() == 0 && was_here => {
            Err(StoreError::Damaged { why: format!("{} is empty", path.display()) })
        }
        // The tables were on disk before the lock file recorded the database, so they are lost.
        Ok(_) if lock.has_database() && has_no_tables(&path) => {
            Err(StoreError::Damaged { why: format!("{} has lost its tables", path.display()) })
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::file("inspect", path, error))
        }
        Err(_) if lock.is_in_cell() => Err(StoreError::InCell { dir: dir.to_owned() }),
        Err(_) if was_here => Err(StoreError::Missing { path, lock: dir.join(LOCK_FILE) }),
        Err(_) => Ok(()),
    }
}

/// Runs after the database is open and migrated: records in the lock file that a database exists, so that its
/// loss is detected. The first time, checkpoints the WAL into the file before that.
///
/// # Errors
/// [`StoreError::File`]; SQLite errors.
pub fn after_open(db: &Db, lock: &mut StateLock) -> Result<(), StoreError> {
    if !lock.has_database() {
        db.first("PRAGMA wal_checkpoint(TRUNCATE)", &[], |_| Ok(()))?;
    }
    lock.record_database()
}

/// True if the database has no schema. An unreadable file counts as false: opening it reports the error.
fn has_no_tables(path: &Path) -> bool {
    schema::open_to_read(path).and_then(|db| schema::version(&db)).is_ok_and(|version| version == 0)
}

/// Identity of the database files, by device and inode. By default there are none, as of a database in memory.
#[derive(Debug, Default)]
pub struct DatabaseFiles {
    files: Vec<(PathBuf, (u64, u64))>,
}

impl DatabaseFiles {
    /// Files of the open database in `dir`, including the WAL.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn of(dir: &Path) -> Result<Self, StoreError> {
        let paths = ["", LOG_SUFFIX].map(|suffix| dir.join(format!("{DB_FILE}{suffix}")));
        let files = paths.into_iter().map(|path| match file_id(&path) {
            Ok(id) => Ok((path, id)),
            Err(error) => Err(StoreError::file("inspect", path, error)),
        });
        Ok(Self { files: files.collect::<Result<_, _>>()? })
    }

    /// Length of the WAL file in bytes; 0 if its metadata cannot be read.
    pub fn log_bytes(&self) -> u64 {
        let log = self.files.iter().find(|(path, _)| path.to_string_lossy().ends_with(LOG_SUFFIX));
        log.and_then(|(path, _)| std::fs::metadata(path).ok()).map_or(0, |meta| meta.len())
    }

    /// Returns an error for the first file that was removed or replaced. Writes to it would be lost.
    pub fn replaced_file_error(&self) -> Option<StoreError> {
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
