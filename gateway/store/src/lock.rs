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

/// Line in its place if the control plane is in a cell of a PostgreSQL server.
const IN_CELL: &str = "postgres";

/// Held lock of the state directory.
#[derive(Debug)]
pub struct StateLock {
    // Closing the file releases the lock.
    file: File,
    path: PathBuf,
    used: Option<&'static str>,
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
        let (_, used) = read(&mut file);
        let mut lock = Self { file, path, used };
        lock.write()?;
        Ok(lock)
    }

    /// True if a gateway created a database here. If the file is missing then, it was removed.
    pub fn has_database(&self) -> bool {
        self.used == Some(HAS_DATABASE)
    }

    /// True if the control plane of the directory is in a cell of a PostgreSQL server.
    pub fn is_in_cell(&self) -> bool {
        self.used == Some(IN_CELL)
    }

    /// Records the existence of a database.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn record_database(&mut self) -> Result<(), StoreError> {
        self.record(HAS_DATABASE)
    }

    /// Records that the control plane is in a cell of a PostgreSQL server.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn record_cell(&mut self) -> Result<(), StoreError> {
        self.record(IN_CELL)
    }

    fn record(&mut self, used: &'static str) -> Result<(), StoreError> {
        if self.used.replace(used) == Some(used) { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        let used = self.used.map(|line| format!("{line}\n")).unwrap_or_default();
        let text = format!("{}\n{used}", std::process::id());
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

/// True if the control plane of a state directory is in a cell of a PostgreSQL server.
pub fn is_in_cell(dir: &Path) -> bool {
    File::open(dir.join(LOCK_FILE)).is_ok_and(|mut file| read(&mut file).1 == Some(IN_CELL))
}

/// Reads the lock file: process id of the writer, and the line about the database.
fn read(file: &mut File) -> (Option<i32>, Option<&'static str>) {
    let mut text = String::new();
    // Unreadable text counts as empty.
    let _ = file.take(TEXT_BYTES_MAX).read_to_string(&mut text);
    let pid = text.lines().next().and_then(|line| line.trim().parse().ok());
    (pid, [HAS_DATABASE, IN_CELL].into_iter().find(|known| text.lines().any(|line| line == *known)))
}
