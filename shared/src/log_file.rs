//! Log file of a service with a bounded size.
//!
//! A full file is copied to `NAME.1` and then emptied, not renamed: the standard error of the service may be the same
//! file, opened for appending by whoever started it, and stays so.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Maximum size of a file, in bytes.
const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Number of older files that are kept.
const OLDER_FILES: usize = 3;

/// File for whole lines, readable by its owner only.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
    bytes_max: u64,
}

impl LogFile {
    /// Opens a file for appending, or creates it.
    ///
    /// # Errors
    /// The file cannot be opened, or its mode cannot be set.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_with(path, FILE_BYTES_MAX)
    }

    fn open_with(path: &Path, bytes_max: u64) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        Ok(Self { path: path.to_owned(), file, bytes_max })
    }

    fn older(&self, number: usize) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    /// Copies the file to the newest of the older ones, and empties it.
    fn rotate(&self) -> io::Result<()> {
        for number in (1..OLDER_FILES).rev() {
            // Missing until the log was rotated often enough.
            drop(std::fs::rename(self.older(number), self.older(number + 1)));
        }
        // Without space for a copy the lines are dropped: a log must not fill the disk.
        drop(std::fs::copy(&self.path, self.older(1)));
        self.file.set_len(0)
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The size is read each time, because others may append to the same file.
        let size = self.file.metadata()?.len();
        if size > 0 && size.saturating_add(bytes.len() as u64) > self.bytes_max {
            self.rotate()?;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn full_log_keeps_three_older_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let mut log = LogFile::open_with(&path, 12).unwrap();
        let mut same = OpenOptions::new().append(true).open(&path).unwrap();
        for number in 1..=6 {
            log.write_all(format!("line {number}\n").as_bytes()).unwrap();
        }
        same.write_all(b"err\n").unwrap();
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(
            ["a.log", "a.log.1", "a.log.2", "a.log.3"].map(read),
            ["line 6\nerr\n", "line 5\n", "line 4\n", "line 3\n"]
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4);
        for name in ["a.log", "a.log.1"] {
            let mode = std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }
}
