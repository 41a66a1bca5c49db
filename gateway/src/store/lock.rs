//! One gateway per state directory (H15): an exclusive `flock` that is taken before the database is touched and
//! held until it is closed. The kernel drops it with the process, however that ends.

use crate::store::error::StoreError;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The lock file's name in the state directory.
pub(crate) const LOCK_FILE: &str = "gateway.lock";
const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_DIR: u32 = 0o700;
const PID_TEXT_BYTES_MAX: u64 = 32;

/// Holds the state directory for as long as it lives.
#[derive(Debug)]
pub(crate) struct StateLock {
    // Closing it is the unlock.
    _file: File,
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
                return Err(StoreError::Locked { pid: read_pid(&mut file), path });
            }
            Err(TryLockError::Error(error)) => return Err(StoreError::file("lock", path, error)),
        }
        write_pid(&mut file).map_err(|error| StoreError::file("write", path, error))?;
        Ok(Self { _file: file })
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

fn write_pid(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    writeln!(file, "{}", std::process::id())
}

fn read_pid(file: &mut File) -> Option<i32> {
    let mut text = String::new();
    file.take(PID_TEXT_BYTES_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
