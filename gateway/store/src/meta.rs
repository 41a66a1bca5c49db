//! `acp_meta`: key-value pairs about this database.

use crate::db::{Db, params};
use crate::error::StoreError;

const GET: &str = "SELECT value FROM acp_meta WHERE key = ?1";
const SET: &str = "INSERT INTO acp_meta (key, value) VALUES (?1, ?2) \
                   ON CONFLICT (key) DO UPDATE SET value = excluded.value";

/// Returns the value of `key`.
///
/// # Errors
/// SQLite errors.
pub fn get(db: &Db, key: &str) -> Result<Option<String>, StoreError> {
    db.first(GET, params![key], |row| row.only())
}

/// Removes `key`.
///
/// # Errors
/// SQLite errors.
pub fn remove(db: &Db, key: &str) -> Result<(), StoreError> {
    db.run("DELETE FROM acp_meta WHERE key = ?1", params![key]).map(drop)
}

/// Sets the value of `key`.
///
/// # Errors
/// SQLite errors.
pub fn set(db: &Db, key: &str, value: &str) -> Result<(), StoreError> {
    db.run(SET, params![key, value]).map(drop)
}
