//! The fake's state in a SQLite file that survives a killed process. It need not survive a power failure.

use super::core::model::Id;
use super::core::settings::Settings;
use super::core::world::{Change, World};
use rusqlite::{Connection, OptionalExtension as _, params};
use std::path::Path;

/// The database.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
}

/// Any error of the store.
pub type StoreError = Box<dyn std::error::Error + Send + Sync>;

const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = OFF;
    CREATE TABLE IF NOT EXISTS thing (kind TEXT NOT NULL, id INTEGER NOT NULL, json TEXT NOT NULL, PRIMARY KEY (kind, id)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS file (id INTEGER PRIMARY KEY, bytes BLOB NOT NULL);
";
const SETTINGS: &str = "settings";

/// Ids stay below 2^63 until the year 2084.
fn key(id: Id) -> i64 {
    i64::try_from(id).unwrap_or(i64::MAX)
}

impl Store {
    /// Opens a database file, or a database in memory.
    ///
    /// # Errors
    /// When SQLite fails.
    #[expect(clippy::disallowed_methods, reason = "the rule is for the stores of the product")]
    pub fn open(file: Option<&Path>) -> Result<Self, StoreError> {
        let connection = match file {
            Some(file) => Connection::open(file)?,
            None => Connection::open_in_memory()?,
        };
        connection.execute_batch(SCHEMA)?;
        Ok(Self { connection })
    }

    /// Loads the whole state.
    ///
    /// # Errors
    /// When a row cannot be read.
    pub fn load(&self) -> Result<(World, Settings), StoreError> {
        let (mut world, mut settings) = (World::default(), Settings::default());
        let mut rows = self.connection.prepare("SELECT kind, id, json FROM thing ORDER BY kind, id")?;
        let rows = rows.query_map([], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, String>(2)?))
        })?;
        for row in rows {
            let (kind, id, json) = row?;
            if kind == SETTINGS {
                settings = serde_json::from_str(&json)?;
            } else {
                world.load(&kind, Id::try_from(id)?, &json)?;
            }
        }
        Ok((world, settings))
    }

    /// Stores changes in one transaction.
    ///
    /// # Errors
    /// When SQLite fails.
    pub fn store_changes(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        let transaction = self.connection.transaction()?;
        for change in changes {
            match change {
                Change::Row { kind, id, json } => {
                    let mut put = transaction.prepare_cached(
                        "INSERT OR REPLACE INTO thing (kind, id, json) VALUES (?1, ?2, ?3)",
                    )?;
                    put.execute(params![kind, key(*id), json])?;
                }
                Change::Gone { kind, id } => {
                    let mut gone =
                        transaction.prepare_cached("DELETE FROM thing WHERE kind = ?1 AND id = ?2")?;
                    gone.execute(params![kind, key(*id)])?;
                }
                Change::File { id, bytes } => {
                    let mut put = transaction
                        .prepare_cached("INSERT OR REPLACE INTO file (id, bytes) VALUES (?1, ?2)")?;
                    put.execute(params![key(*id), bytes])?;
                }
            }
        }
        transaction.commit()?;
        Ok(())
    }

    /// Stores the settings.
    ///
    /// # Errors
    /// When SQLite fails.
    pub fn store_settings(&mut self, settings: &Settings) -> Result<(), StoreError> {
        let json = serde_json::to_string(settings)?;
        self.store_changes(&[Change::Row { kind: SETTINGS, id: 0, json }])
    }

    /// The bytes of a file.
    ///
    /// # Errors
    /// When SQLite fails.
    pub fn file(&self, id: Id) -> Result<Option<Vec<u8>>, StoreError> {
        let mut find = self.connection.prepare_cached("SELECT bytes FROM file WHERE id = ?1")?;
        Ok(find.query_row([key(id)], |row| row.get(0)).optional()?)
    }
}
