//! One gateway per state directory (H15): an exclusive `flock` that is taken before the database is touched and
//! held until it is closed. The kernel drops it with the process, however that ends.

use crate::store::error::StoreError;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The lock file's name in the state directory.
pub(crate) const LOCK_FILE: &str = "gateway.lock";
const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_DIR: u32 = 0o700;
const TEXT_BYTES_MAX: u64 = 64;
/// The line that says that there is a database, and has been since a gateway first worked here.
const HAS_DATABASE: &str = "database";

/// Holds the state directory for as long as it lives.
#[derive(Debug)]
pub(crate) struct StateLock {
    // Closing it is the unlock.
    file: File,
    path: PathBuf,
    has_database: bool,
}

impl StateLock {
    /// Takes the state directory, which is made if there is none.
    ///
    /// # Errors
    /// [`StoreError::Locked`] when another process has it; [`StoreError::File`].
    pub(crate) fn take(dir: &Path) -> Result<Self, StoreError> {
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

    /// Whether a gateway that worked here made a database: then one that is not there was taken away.
    pub(crate) const fn has_database(&self) -> bool {
        self.has_database
    }

    /// From now on there is a database here.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub(crate) fn keep_in_mind(&mut self) -> Result<(), StoreError> {
        if std::mem::replace(&mut self.has_database, true) { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        let database = if self.has_database { format!("{HAS_DATABASE}\n") } else { String::new() };
        let text = format!("{}\n{database}", std::process::id());
        let written = write_whole(&mut self.file, text.as_bytes());
        written.map_err(|error| StoreError::file("write", &self.path, error))
    }
}

/// Opens a file for reading and writing that only its owner can use, and makes it if there is none. The
/// descriptor is close-on-exec, as all of std's are.
///
/// # Errors
/// [`StoreError::File`].
pub(crate) fn private_file(path: &Path) -> Result<File, StoreError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(PRIVATE_FILE)
        .open(path)
        .map_err(|error| StoreError::file("open", path, error))?;
    let meta = file.metadata().map_err(|error| StoreError::file("look at", path, error))?;
    if meta.permissions().mode() & 0o777 != PRIVATE_FILE {
        file.set_permissions(std::fs::Permissions::from_mode(PRIVATE_FILE))
            .map_err(|error| StoreError::file("make private", path, error))?;
    }
    Ok(file)
}

/// Writes over what is there before it cuts the rest off: a crash in between forgets nothing.
fn write_whole(file: &mut File, text: &[u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    file.write_all(text)?;
    file.set_len(text.len() as u64)
}

/// What a lock file says: who wrote it, and whether there is a database.
fn read(file: &mut File) -> (Option<i32>, bool) {
    let mut text = String::new();
    // What cannot be read says nothing.
    let _ = file.take(TEXT_BYTES_MAX).read_to_string(&mut text);
    let pid = text.lines().next().and_then(|line| line.trim().parse().ok());
    (pid, text.lines().any(|line| line == HAS_DATABASE))
}
