//! Opening of the store's file: creation, rejection, and read-only access.
//!
//! A file gets its name only when complete and synced (`.create_incomplete`, then `.new`, then the name). Therefore a
//! crash of this program never leaves an empty file, or a `-wal` without its database file.

use super::{STORE_FILE, StoreError};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use rusqlite_migration::{M, Migrations};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) const MIGRATIONS: &[M<'static>] = &[
    M::up(include_str!("migrations/0001_leases.sql")),
    M::up(include_str!("migrations/0002_time_namespace.sql")),
    M::up(include_str!("migrations/0003_progress.sql")),
];
/// Maximum wait for another program that has the file open.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Open file of the store.
pub(super) struct OpenedStore {
    pub(super) connection: Connection,
    /// Reason why the file must not be written, if so.
    pub(super) read_only: Option<String>,
    pub(super) warnings: Vec<String>,
    pub(super) fresh: bool,
}

impl OpenedStore {
    /// Treats unreadable content as empty in a newer program's file, and as damage in a file of our own.
    pub(super) fn unreadable<T: Default>(&self, error: StoreError) -> Result<T, StoreError> {
        match &self.read_only {
            Some(_) => {
                tracing::warn!(%error, "newer lease store partly unreadable");
                Ok(T::default())
            }
            None => Err(error),
        }
    }
}

/// Returns the path of the store's file in `dir`, with a suffix.
pub(super) fn file(dir: &Path, suffix: &str) -> PathBuf {
    dir.join(format!("{STORE_FILE}{suffix}"))
}

/// Returns device and inode of a path, which identify the file even if the path changes.
pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

fn io_context(what: &'static str) -> impl Fn(io::Error) -> StoreError {
    move |error| StoreError::File(format!("{what}: {error}"))
}

fn damaged(dir: &Path, why: impl Into<String>) -> StoreError {
    StoreError::Damaged { path: file(dir, ""), why: why.into() }
}

/// Maps SQLite errors during opening to store errors.
fn map_open_error(dir: &Path) -> impl Fn(rusqlite::Error) -> StoreError {
    let dir = dir.to_owned();
    move |error| match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => damaged(&dir, error.to_string()),
        _ => error.into(),
    }
}

/// Opens or creates the store in `dir`.
pub(super) fn open(dir: &Path) -> Result<OpenedStore, StoreError> {
    let mut warnings = Vec::new();
    if file(dir, ".new").exists() {
        warnings.push(
            "the lease store's file was removed while an earlier supervisor used it, and was written again"
                .into(),
        );
        move_aside(dir, &[])?;
        install(dir)?;
    }
    remove_incomplete(dir)?;
    let fresh = match std::fs::metadata(file(dir, "")) {
        Ok(meta) if meta.len() == 0 => return Err(damaged(dir, "it is empty")),
        Ok(_) => false,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if std::fs::metadata(file(dir, "-wal")).is_ok_and(|wal| wal.len() > 0) {
                return Err(damaged(dir, "it is missing, but its -wal exists"));
            }
            create(dir)?;
            true
        }
        Err(error) => return Err(io_context("read its metadata")(error)),
    };
    if let Some((connection, version)) = newer(dir)? {
        let why = format!(
            "{} was written by a newer version of this program (schema {version}, this one knows {}); use that one, or move the file away",
            file(dir, "").display(),
            MIGRATIONS.len()
        );
        return Ok(OpenedStore { connection, read_only: Some(why), warnings, fresh });
    }
    let mut connection = connect(dir)?;
    check_integrity(dir, &connection)?;
    migrate(&mut connection).map_err(|error| damaged(dir, error))?;
    Ok(OpenedStore { connection, read_only: None, warnings, fresh })
}

/// Returns a read-only connection and the schema version if the file is from a newer program.
#[expect(clippy::disallowed_methods, reason = "this is the store")]
pub(super) fn newer(dir: &Path) -> Result<Option<(Connection, i64)>, StoreError> {
    let connection = Connection::open_with_flags(file(dir, ""), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    connection.busy_timeout(BUSY_WAIT)?;
    let version: i64 =
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(map_open_error(dir))?;
    let known = usize::try_from(version).is_ok_and(|version| version <= MIGRATIONS.len());
    Ok((!known).then_some((connection, version)))
}

/// Opens an existing file for writing.
#[expect(clippy::disallowed_methods, reason = "this is the store")]
pub(super) fn connect(dir: &Path) -> Result<Connection, StoreError> {
    let path = file(dir, "");
    // SQLite gives the `-wal` and `-shm` files the same mode.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
        .map_err(io_context("set its mode"))?;
    let connection = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.busy_timeout(BUSY_WAIT)?;
    connection.pragma_update(None, "journal_mode", "WAL").map_err(map_open_error(dir))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // SQLite creates the WAL file at the first read. The file must exist before its identity is read.
    connection
        .pragma_query_value(None, "schema_version", |row| row.get::<_, i64>(0))
        .map_err(map_open_error(dir))?;
    Ok(connection)
}

/// Checks the integrity of the pages. Invalid rows are handled separately, by quarantine.
fn check_integrity(dir: &Path, connection: &Connection) -> Result<(), StoreError> {
    connection.pragma_update(None, "ignore_check_constraints", true)?;
    let said: String = connection
        .pragma_query_value(None, "quick_check", |row| row.get(0))
        .map_err(|error| damaged(dir, error.to_string()))?;
    connection.pragma_update(None, "ignore_check_constraints", false)?;
    if said == "ok" { Ok(()) } else { Err(damaged(dir, said)) }
}

fn migrate(connection: &mut Connection) -> Result<(), String> {
    Migrations::from_slice(MIGRATIONS).to_latest(connection).map_err(|error| error.to_string())
}

/// Creates an empty store.
#[expect(clippy::disallowed_methods, reason = "this is the store")]
fn create(dir: &Path) -> Result<(), StoreError> {
    let part = create_incomplete(dir)?;
    let mut connection = Connection::open_with_flags(&part, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    migrate(&mut connection).map_err(StoreError::Sqlite)?;
    connection.close().map_err(|(_, error)| error)?;
    mark_complete(dir)?;
    install(dir)
}

/// Removes incomplete files of a crash.
fn remove_incomplete(dir: &Path) -> Result<(), StoreError> {
    for suffix in [".part", ".part-journal"] {
        match std::fs::remove_file(file(dir, suffix)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_context("remove its temporary file")(error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Creates a new empty file with mode 0600 for incomplete content.
pub(super) fn create_incomplete(dir: &Path) -> Result<PathBuf, StoreError> {
    remove_incomplete(dir)?;
    let path = file(dir, ".part");
    OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(io_context("create it"))?;
    Ok(path)
}

/// Marks the `.create_incomplete` file as complete: it may now replace the store's file at any time.
pub(super) fn mark_complete(dir: &Path) -> Result<(), StoreError> {
    let part = file(dir, ".part");
    let synced = File::open(&part).and_then(|file| file.sync_all());
    synced.and_then(|()| std::fs::rename(&part, file(dir, ".new"))).map_err(io_context("write it"))
}

/// Renames files under the store's names that are not `ours`, or that were left without a database file.
pub(super) fn move_aside(dir: &Path, ours: &[(u64, u64)]) -> Result<(), StoreError> {
    for suffix in ["", "-wal"] {
        let path = file(dir, suffix);
        if identity(&path).is_some_and(|found| !ours.contains(&found)) {
            let aside = dir.join(format!("{STORE_FILE}.replaced{suffix}"));
            std::fs::rename(&path, aside).map_err(io_context("move another file away from its path"))?;
        }
    }
    Ok(())
}

/// Gives a complete new file its name. The old file must not be open.
pub(super) fn install(dir: &Path) -> Result<(), StoreError> {
    // The index of another file must not be used.
    drop(std::fs::remove_file(file(dir, "-shm")));
    let renamed = std::fs::rename(file(dir, ".new"), file(dir, ""));
    renamed.and_then(|()| File::open(dir)?.sync_all()).map_err(io_context("rename it"))
}
