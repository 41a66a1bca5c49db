//! `acp_meta`: key-value pairs about this database.

use crate::codec::{execute, first};
use crate::error::StoreError;
use rusqlite::{Connection, params};

const GET: &str = "SELECT value FROM acp_meta WHERE key = ?1";
const SET: &str = "INSERT INTO acp_meta (key, value) VALUES (?1, ?2) \
                   ON CONFLICT (key) DO UPDATE SET value = excluded.value";

/// Returns the value of `key`.
///
/// # Errors
/// SQLite errors.
pub fn get(db: &Connection, key: &str) -> Result<Option<String>, StoreError> {
    first(db, GET, [key], |row| Ok(row.get(0)?))
}

/// Removes `key`.
///
/// # Errors
/// SQLite errors.
pub fn remove(db: &Connection, key: &str) -> Result<(), StoreError> {
    execute(db, "DELETE FROM acp_meta WHERE key = ?1", [key])
}

/// Sets the value of `key`.
///
/// # Errors
/// SQLite errors.
pub fn set(db: &Connection, key: &str, value: &str) -> Result<(), StoreError> {
    execute(db, SET, params![key, value])
}
