//! Copies a database with SQLite's backup API: a snapshot, taken while a gateway keeps writing.
//!
//! The copy uses a connection of its own with one read transaction. So it never restarts however much is
//! committed meanwhile, and the database of a gateway that hangs can be backed up too. The price: the WAL
//! cannot shrink until the copy is complete. The copy gets its final name once it is complete, checked and
//! synced.

use crate::check;
use crate::db::Db;
use crate::error::StoreError;
use crate::lock::{StateLock, private_file};
use crate::schema::{self, DB_FILE};
use rusqlite::backup::{Backup, StepResult};
use rustix::fs::{CWD, RenameFlags};
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Suffix of the name of a file in the making; followed by the process id of its writer.
const PART: &str = ".part-";
/// Suffix of the name of a copy for an older version; followed by the version of its schema.
const SCHEMA: &str = ".schema-";
/// Number of pages copied between two progress reports.
const STEP_PAGES: i32 = 1_024;
/// Maximum number of attempts on a file locked by another program, and the pause between them in
/// milliseconds.
const BUSY_TRIES: u32 = 300;
const BUSY_MS: u64 = 20;

/// Progress of a long operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Progress {
    /// A copy.
    Copied {
        /// Number of copied pages.
        pages: u64,
        /// Number of all pages.
        pages_total: u64,
    },
    /// Pruning of the journal.
    Pruned {
        /// Number of deleted rows.
        rows: u64,
    },
    /// A move.
    Moved {
        /// Number of copied rows.
        rows_copied: u64,
        /// Number of all rows.
        rows_total: u64,
    },
}

/// Callback that gets the progress.
pub type BackupProgress<'a> = &'a mut dyn FnMut(Progress);

/// Completed backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CompletedBackup {
    /// Path of the backup file.
    #[serde(rename = "file")]
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// Violated rules of the data, copied from the original.
    pub broken: Vec<String>,
}

/// Writes a backup of the database in `dir` to `to`, mode 0600. An existing file is replaced only if
/// `replace`; anything else there (a device, a directory, a link) is never replaced.
///
/// # Errors
/// [`StoreError::Exists`]; [`StoreError::Damaged`] if the original is damaged; [`StoreError::Full`];
/// [`StoreError::File`]. After an error there is no new file at `to`.
pub fn backup(
    dir: &Path,
    to: &Path,
    replace: bool,
    progress: BackupProgress<'_>,
) -> Result<CompletedBackup, StoreError> {
    let from = dir.join(DB_FILE);
    let own = std::fs::metadata(&from).map_err(|error| StoreError::file("inspect", &from, error))?;
    match std::fs::symlink_metadata(to) {
        Ok(_) if !replace => return Err(StoreError::Exists { path: to.to_owned() }),
        Ok(there) if (there.dev(), there.ino()) == (own.dev(), own.ino()) => {
            let why = std::io::Error::other("it is the database itself; choose another path");
            return Err(StoreError::file("replace", to, why));
        }
        Ok(there) if !there.is_file() => {
            let why = std::io::Error::other("it exists and is not a regular file; choose another path");
            return Err(StoreError::file("replace", to, why));
        }
        Ok(_) | Err(_) => {}
    }
    let part = TempFile::create_next_to(to)?;
    copy(&from, &part.path, progress)?;
    let db = schema::open_to_read(&part.path)?;
    if let Some(why) = check::pages(&db, true)?.into_iter().next() {
        return Err(StoreError::Damaged { why });
    }
    let version = schema::version(&db)?;
    if version == 0 {
        return Err(StoreError::Damaged { why: "it has no tables".to_owned() });
    }
    let current = schema::is_current(version);
    let findings = if current { check::rules(&db)? } else { Vec::new() };
    drop(db);
    let broken = findings.iter().filter_map(check::CheckFinding::violation);
    let (broken, bytes) = (broken.collect(), sync(&part.path)?);
    part.rename_to(to, replace)?;
    Ok(CompletedBackup { path: to.to_owned(), bytes, broken })
}

/// Backs up a database of an older schema before its migration, as the way back.
///
/// # Errors
/// As [`backup`].
pub fn before_migration(dir: &Path, version: i64) -> Result<PathBuf, StoreError> {
    let to = dir.join(format!("{DB_FILE}{SCHEMA}{version}"));
    let made = backup(dir, &to, true, &mut |_| {})?;
    tracing::info!(path = %made.path.display(), "database backed up before schema migration");
    Ok(made.path)
}

/// Copies a snapshot of a database page by page into the empty file `to`.
///
/// # Errors
/// [`StoreError::Full`]; SQLite errors.
pub(super) fn copy(from: &Path, to: &Path, progress: BackupProgress<'_>) -> Result<(), StoreError> {
    let source = schema::open_to_read(from)?;
    schema::refuse_foreign(&source, from)?;
    // Starts the snapshot: later commits are not in the copy.
    source.run("BEGIN", &[])?;
    source.first("SELECT count(*) FROM sqlite_master", &[], |_| Ok(()))?;
    let mut target = schema::open_empty(to)?;
    copy_pages(&source, &mut target, progress)?;
    source.run("ROLLBACK", &[])?;
    // One file without a WAL, readable on any file system.
    target.sqlite()?.pragma_update(None, "journal_mode", "DELETE")?;
    target.close()
}

/// Copies all pages of a database.
///
/// # Errors
/// [`StoreError::Refused`] while another program has locked it; SQLite errors.
pub fn copy_pages(source: &Db, target: &mut Db, progress: BackupProgress<'_>) -> Result<(), StoreError> {
    let copying = Backup::new(source.sqlite()?, target.sqlite_mut()?)?;
    let mut tries = 0;
    loop {
        let step = copying.step(STEP_PAGES)?;
        let at = copying.progress();
        let number = |pages: i32| u64::try_from(pages).unwrap_or(0);
        let pages = number(at.pagecount.saturating_sub(at.remaining));
        progress(Progress::Copied { pages, pages_total: number(at.pagecount) });
        match step {
            StepResult::Done => return Ok(()),
            StepResult::Busy | StepResult::Locked if tries >= BUSY_TRIES => {
                return Err(StoreError::Refused("another program has locked the database"));
            }
            StepResult::Busy | StepResult::Locked => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(BUSY_MS));
            }
            _ => {}
        }
    }
}

/// Removes copies of the database that a killed process left: of a restore, a compaction or a migration, which all hold
/// the lock of the state directory.
pub(super) fn remove_unfinished(dir: &Path, _lock: &StateLock) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if !is_unfinished(&entry.file_name().to_string_lossy()) {
            continue;
        }
        match std::fs::remove_file(&path) {
            Ok(()) => tracing::info!(path = %path.display(), "unfinished copy of the database removed"),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "unfinished copy of the database stays");
            }
        }
    }
}

/// True for the name of a copy in the making, and of SQLite's files next to it.
fn is_unfinished(name: &str) -> bool {
    let of = name.strip_prefix(DB_FILE).and_then(|rest| rest.split_once(PART));
    of.is_some_and(|(of, _)| of.is_empty() || of.starts_with(SCHEMA))
}

/// Temporary file; removed on drop unless renamed to its target.
#[derive(Debug)]
pub(super) struct TempFile {
    pub(super) path: PathBuf,
}

impl TempFile {
    /// Creates an empty private file in the directory of `to`.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub(super) fn create_next_to(to: &Path) -> Result<Self, StoreError> {
        let mut name = to.file_name().unwrap_or_default().to_owned();
        name.push(format!("{PART}{}", std::process::id()));
        let path = to.with_file_name(name);
        drop(private_file(&path)?.set_len(0));
        Ok(Self { path })
    }

    /// Renames the file to its target and syncs the directory.
    ///
    /// # Errors
    /// [`StoreError::Exists`]; [`StoreError::File`].
    pub(super) fn rename_to(self, to: &Path, replace: bool) -> Result<(), StoreError> {
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        match rustix::fs::renameat_with(CWD, &self.path, CWD, to, flags) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => return Err(StoreError::Exists { path: to.to_owned() }),
            Err(error) => return Err(StoreError::file("rename the new file to", to, error.into())),
        }
        sync_dir(to)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // Fails if the file was renamed to its target.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Syncs a file to disk. Returns its size in bytes.
pub(super) fn sync(path: &Path) -> Result<u64, StoreError> {
    let synced = File::open(path).and_then(|file| {
        file.sync_all()?;
        Ok(file.metadata()?.len())
    });
    synced.map_err(|error| StoreError::file("sync", path, error))
}

/// Syncs the directory of `path`, which makes its names durable.
pub(super) fn sync_dir(path: &Path) -> Result<(), StoreError> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|error| StoreError::file("sync", dir, error))
}
