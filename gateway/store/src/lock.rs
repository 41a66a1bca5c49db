//! Lock of the state directory, for one gateway only (H15): an exclusive `flock`, taken before the database
//! is opened and held until it is closed. The kernel releases the lock when the process ends, in any way.

use crate::error::StoreError;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Name of the lock file in the state directory.
pub const LOCK_FILE: &str = "gateway.lock";
const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_DIR: u32 = 0o700;
const TEXT_BYTES_MAX: u64 = 64;
/// Line in the lock file that records the existence of a database, since a gateway first opened one here.
const HAS_DATABASE: &str = "database";

/// Held lock of the state directory.
#[derive(Debug)]
pub struct StateLock {
    // Closing the file releases the lock.
    file: File,
    path: PathBuf,
    has_database: bool,
}

impl StateLock {
    /// Locks the state directory, creating it if missing.
    ///
    /// # Errors
    /// [`StoreError::Locked`] if another process holds the lock; [`StoreError::File`].
    pub fn take(dir: &Path) -> Result<Self, StoreError> {
        DirBuilder::new()
            .recursive(true)
            .mode(PRIVATE_DIR)
            .create(dir)
            .map_err(|error| StoreError::file("create the state directory", dir, error))?;
        let path = dir.join(LOCK_FILE);
        let mut file = private_file(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::Locked { pid: read(&mut file).0, path });
            }
            Err(TryLockError::Error(error)) => return Err(StoreError::file("lock", path, error)),
        }
        let (_, has_database) = read(&mut file);
        let mut lock = Self { file, path, has_database };
        lock.write()?;
        Ok(lock)
    }

    /// True if a gateway created a database here. If the file is missing then, it was removed.
    pub const fn has_database(&self) -> bool {
        self.has_database
    }

    /// Records the existence of a database.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn record_database(&mut self) -> Result<(), StoreError> {
        if std::mem::replace(&mut self.has_database, true) { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        let database = if self.has_database { format!("{HAS_DATABASE}\n") } else { String::new() };
        let text = format!("{}\n{database}", std::process::id());
        let written = write_whole(&mut self.file, text.as_bytes());
        written.map_err(|error| StoreError::file("write", &self.path, error))
    }
}

/// Opens a file for reading and writing with mode 0600, creating it if missing. The descriptor is
/// close-on-exec, like all of std's.
///
/// # Errors
/// [`StoreError::File`].
pub fn private_file(path: &Path) -> Result<File, StoreError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(PRIVATE_FILE)
        .open(path)
        .map_err(|error| StoreError::file("open", path, error))?;
    let meta = file.metadata().map_err(|error| StoreError::file("inspect", path, error))?;
    if meta.permissions().mode() & 0o777 != PRIVATE_FILE {
        file.set_permissions(std::fs::Permissions::from_mode(PRIVATE_FILE))
            .map_err(|error| StoreError::file("set the private mode of", path, error))?;
    }
    Ok(file)
}

/// Overwrites the content before truncating: a crash in between loses nothing.
fn write_whole(file: &mut File, text: &[u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    file.write_all(text)?;
    file.set_len(text.len() as u64)
}

/// Reads the lock file: process id of the writer, and true if it records a database.
fn read(file: &mut File) -> (Option<i32>, bool) {
    let mut text = String::new();
    // Unreadable text counts as empty.
    let _ = file.take(TEXT_BYTES_MAX).read_to_string(&mut text);
    let pid = text.lines().next().and_then(|line| line.trim().parse().ok());
    (pid, text.lines().any(|line| line == HAS_DATABASE))
}
