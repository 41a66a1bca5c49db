//! Read-only inspection of the store's file, for `doctor`.

use super::StoreError;
use super::open::MIGRATIONS;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;

/// Result of an inspection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreInspection {
    /// Schema version of the file.
    pub version: usize,
    /// Newest schema version known to this program.
    pub newest: usize,
    /// Number of stored leases.
    pub leases: usize,
}

/// Opens the file read-only, possibly while a supervisor uses it, and closes it again.
///
/// # Errors
/// [`StoreError`] if the file is unreadable or not a lease store.
#[expect(clippy::disallowed_methods, reason = "this is the store")]
pub fn inspect(path: &Path) -> Result<StoreInspection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(std::time::Duration::from_secs(1))?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let version = usize::try_from(version).map_err(|e| StoreError::Row(e.to_string()))?;
    let newest = MIGRATIONS.len();
    // The tables of a newer schema are unknown here.
    let leases = if version == 0 || version > newest {
        0
    } else {
        connection.query_row("SELECT count(*) FROM leases", [], |row| row.get::<_, i64>(0))?
    };
    Ok(StoreInspection { version, newest, leases: usize::try_from(leases).unwrap_or(0) })
}
