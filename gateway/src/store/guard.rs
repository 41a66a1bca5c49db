//! What stands between a state directory and a fresh database in it: a database that was here and is not, and one
//! that goes away while it is used.

use crate::store::error::StoreError;
use crate::store::lock::{LOCK_FILE, StateLock};
use crate::store::restore;
use crate::store::schema::DB_FILE;
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
        Ok(_) => Ok(()),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::file("look at", path, error))
        }
        Err(_) if was_here => Err(StoreError::Missing { path, lock: dir.join(LOCK_FILE) }),
        Err(_) => Ok(()),
    }
}

/// Which files a database is, by their inodes.
#[derive(Debug)]
pub(crate) struct Place {
    files: Vec<(PathBuf, (u64, u64))>,
}

impl Place {
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
