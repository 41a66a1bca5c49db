//! A look at the file of the store, for `doctor`. Nothing is changed.

use super::StoreError;
use super::open::MIGRATIONS;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;

/// What a look at the file shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inspected {
    /// The version of its schema.
    pub version: usize,
    /// The newest version that this program knows.
    pub newest: usize,
    /// How many leases it holds.
    pub leases: usize,
}

/// Opens the file for reading, beside a supervisor that may use it, and closes it again.
///
/// # Errors
/// [`StoreError`]: it cannot be read, or is no lease store.
#[expect(clippy::disallowed_methods, reason = "this is the store")]
pub fn inspect(path: &Path) -> Result<Inspected, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(std::time::Duration::from_secs(1))?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let version = usize::try_from(version).map_err(|e| StoreError::Row(e.to_string()))?;
    let newest = MIGRATIONS.len();
    // What a newer version keeps in which tables is not known here.
    let leases = if version == 0 || version > newest {
        0
    } else {
        connection.query_row("SELECT count(*) FROM leases", [], |row| row.get::<_, i64>(0))?
    };
    Ok(Inspected { version, newest, leases: usize::try_from(leases).unwrap_or(0) })
}
