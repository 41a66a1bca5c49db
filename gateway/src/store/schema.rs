//! Opening the database file: pragmas, migrations, and the refusal of a newer one.

use crate::store::error::StoreError;
use crate::store::lock::private_file;
use rusqlite::{Connection, OpenFlags};
use rusqlite_migration::{M, Migrations};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The database's name in the state directory.
pub(crate) const DB_FILE: &str = "gateway.db";
/// Every migration in order; `user_version` counts them. One that was released is never edited.
const MIGRATIONS: &[&str] = &[include_str!("migrations/0001_control_plane.sql")];
const BUSY_MS: u64 = 5_000;
const STATEMENTS_CACHED: usize = 128;
const WAL_FILE_BYTES_KEPT: i64 = 16 * 1024 * 1024;

/// How much of a power cut a commit survives. Both survive the death of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// A commit is on the disk when it is acknowledged.
    Full,
    /// A power cut may take the last commits.
    Normal,
}

impl Durability {
    /// The value of the `synchronous` pragma.
    pub(crate) const fn pragma(self) -> &'static str {
        match self {
            Self::Full => "FULL",
            Self::Normal => "NORMAL",
        }
    }
}

/// Opens the one connection that writes, and migrates.
///
/// # Errors
/// [`StoreError::Newer`], [`StoreError::Migration`], [`StoreError::File`], [`StoreError::Sqlite`].
#[expect(clippy::disallowed_methods, reason = "this is the store")]
pub(crate) fn open_writer(dir: &Path, durability: Durability) -> Result<Connection, StoreError> {
    let path = dir.join(DB_FILE);
    // SQLite gives the log and the shared memory the mode of the database.
    drop(private_file(&path)?);
    let mut db = Connection::open_with_flags(
        &path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    refuse_newer(&db)?;
    settle(&db)?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "synchronous", durability.pragma())?;
    // Checkpoints are the writer thread's, off the path of commits.
    db.pragma_update(None, "wal_autocheckpoint", 0)?;
    db.pragma_update(None, "journal_size_limit", WAL_FILE_BYTES_KEPT)?;
    migrate(&mut db)?;
    Ok(db)
}

/// Opens a connection that can only read.
///
/// # Errors
/// [`StoreError::Sqlite`].
#[expect(clippy::disallowed_methods, reason = "this is the store")]
pub(crate) fn open_reader(dir: &Path) -> Result<Connection, StoreError> {
    let db = Connection::open_with_flags(
        dir.join(DB_FILE),
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    settle(&db)?;
    db.pragma_update(None, "query_only", true)?;
    Ok(db)
}

fn settle(db: &Connection) -> Result<(), StoreError> {
    db.busy_timeout(Duration::from_millis(BUSY_MS))?;
    db.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    db.pragma_update(None, "foreign_keys", true)?;
    // Without it, REPLACE would delete rows past the triggers.
    db.pragma_update(None, "recursive_triggers", true)?;
    db.pragma_update(None, "trusted_schema", false)?;
    Ok(())
}

fn refuse_newer(db: &Connection) -> Result<(), StoreError> {
    let found: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    if found > known { Err(StoreError::Newer { found, known }) } else { Ok(()) }
}

fn migrate(db: &mut Connection) -> Result<(), StoreError> {
    Migrations::new(MIGRATIONS.iter().map(|sql| M::up(sql)).collect())
        .to_latest(db)
        .map_err(|error| StoreError::Migration(Arc::new(error)))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::core::rows::{
        BindingStatus, LeaseUse, PermissionState, RequestState, RunMode, SessionMode, TargetKind,
    };
    use crate::core::run::RunState;
    use crate::core::session::{Ending, SessionState};
    use crate::store::codec::Word;

    const SCHEMA: &str = include_str!("schema.sql");

    fn objects(db: &Connection) -> Vec<(String, String, String, String)> {
        let mut statement = db
            .prepare(
                "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master \
                 WHERE name NOT LIKE 'sqlite_%' ORDER BY 1, 2",
            )
            .unwrap();
        let squeeze = |sql: String| sql.split_whitespace().collect::<Vec<_>>().join(" ");
        statement
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, squeeze(row.get(3)?))))
            .unwrap()
            .map(Result::unwrap)
            .collect()
    }

    #[test]
    fn migrations_end_in_the_schema_file() {
        let mut migrated = Connection::open_in_memory().unwrap();
        migrate(&mut migrated).unwrap();
        let direct = Connection::open_in_memory().unwrap();
        direct.execute_batch(SCHEMA).unwrap();
        assert_eq!(objects(&migrated), objects(&direct));
        assert!(objects(&direct).len() > 30, "the comparison must compare something");
    }

    #[test]
    fn every_table_is_strict() {
        let mut db = Connection::open_in_memory().unwrap();
        migrate(&mut db).unwrap();
        for (kind, name, _, sql) in objects(&db) {
            if kind == "table" {
                assert!(sql.contains(") STRICT"), "{name} is not STRICT");
            }
        }
    }

    /// The words of `CHECK (column IN (…))` in the definition of `table`.
    fn checked_words(db: &Connection, table: &str, column: &str) -> Vec<String> {
        let sql: String = db
            .query_row("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?1", [table], |row| {
                row.get(0)
            })
            .unwrap();
        let start = sql.find(&format!("CHECK ({column} IN (")).unwrap();
        let list = sql[start..].split_once("IN (").unwrap().1.split_once(')').unwrap().0;
        list.split(',').map(|word| word.trim().trim_matches('\'').to_owned()).collect()
    }

    fn assert_words<T: Word>(db: &Connection, table: &str, column: &str) {
        let want: Vec<String> = T::ALL.iter().map(|value| value.word().to_owned()).collect();
        assert_eq!(checked_words(db, table, column), want, "{table}.{column}");
    }

    #[test]
    fn checks_hold_exactly_the_states_of_the_code() {
        let mut db = Connection::open_in_memory().unwrap();
        migrate(&mut db).unwrap();
        assert_words::<SessionState>(&db, "acp_sessions", "state");
        assert_words::<Ending>(&db, "acp_sessions", "ending");
        assert_words::<SessionMode>(&db, "acp_sessions", "mode");
        assert_words::<RunState>(&db, "acp_runs", "state");
        assert_words::<RunMode>(&db, "acp_runs", "mode");
        assert_words::<LeaseUse>(&db, "acp_leases", "usage");
        assert_words::<RequestState>(&db, "acp_agent_request", "state");
        assert_words::<PermissionState>(&db, "acp_permission", "state");
        assert_words::<TargetKind>(&db, "acp_bindings", "target_kind");
        assert_words::<BindingStatus>(&db, "acp_bindings", "status");
    }

    #[test]
    fn a_newer_database_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let db = open_writer(dir.path(), Durability::Full).unwrap();
        db.pragma_update(None, "user_version", 99).unwrap();
        drop(db);
        let known = i64::try_from(MIGRATIONS.len()).unwrap();
        match open_writer(dir.path(), Durability::Full) {
            Err(StoreError::Newer { found: 99, known: k }) => assert_eq!(k, known),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pragmas_are_set() {
        let dir = tempfile::tempdir().unwrap();
        let db = open_writer(dir.path(), Durability::Full).unwrap();
        let number = |name| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
        let mode: String = db.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal");
        assert_eq!(number("synchronous"), 2);
        assert_eq!(number("foreign_keys"), 1);
        assert_eq!(number("wal_autocheckpoint"), 0);
        let reader = open_reader(dir.path()).unwrap();
        assert!(reader.execute("DELETE FROM acp_meta", []).is_err());
    }
}
