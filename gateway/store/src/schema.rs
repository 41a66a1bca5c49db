//! Connections to database files: pragmas, migrations, and refusal of unsuitable files.

use crate::db::Db;
use crate::error::StoreError;
use acp_core::config::Durability;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags, ToSql};
use rusqlite_migration::{M, Migrations};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Name of the database in the state directory.
pub const DB_FILE: &str = "gateway.db";
/// Application id in the file header, "acpg": distinguishes the file from other databases.
const APPLICATION_ID: i64 = 0x6163_7067;
/// Maximum size of a file whose pages are checked before use, in bytes; a larger file is checked while in
/// use.
pub const CHECKED_FIRST_BYTES: u64 = 128 * 1024 * 1024;
/// Migrations in order; `user_version` is the number of applied ones. A released migration is never edited.
pub(crate) const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001_control_plane.sql"),
    include_str!("migrations/0002_order_and_rest.sql"),
    include_str!("migrations/0003_sessions_being_created.sql"),
    include_str!("migrations/0004_tokens.sql"),
    include_str!("migrations/0005_notify.sql"),
    include_str!("migrations/0006_senders.sql"),
    include_str!("migrations/0007_retention.sql"),
    include_str!("migrations/0008_acpx_names.sql"),
    concat!(include_str!("migrations/0009_completions.sql"), include_str!("owners.sql")),
    include_str!("migrations/0010_session_tools.sql"),
    include_str!("migrations/0011_bounded_checks.sql"),
];
const BUSY_MS: u64 = 5_000;
/// Maximum length of a value in a database of another program, in bytes.
const FOREIGN_VALUE_BYTES_MAX: i32 = 8 * 1024 * 1024;
const STATEMENTS_CACHED: usize = 128;
/// Page cache of the writer, in KiB. Changes of a transaction beyond this size are written to the WAL before
/// the commit, and again if a page changes again.
const WRITER_CACHE_KIB: i64 = 8 * 1024;
const WAL_FILE_BYTES_KEPT: i64 = 16 * 1024 * 1024;

/// Flags of a connection that may write to an existing file.
const READ_WRITE: OpenFlags = OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

#[expect(clippy::disallowed_methods, reason = "this is the store")]
fn connect(path: impl AsRef<Path>, flags: OpenFlags) -> Result<Db, StoreError> {
    Ok(Db::new(Connection::open_with_flags(path, flags)?))
}

/// Opens the only connection that writes to an existing file. `migrations` is the number of known ones.
///
/// # Errors
/// [`StoreError::Newer`], [`StoreError::Foreign`], [`StoreError::Damaged`], [`StoreError::ReadOnly`],
/// [`StoreError::Sqlite`].
pub(crate) fn open_to_write(
    path: &Path,
    durability: Durability,
    migrations: usize,
) -> Result<Db, StoreError> {
    let db = connect(path, READ_WRITE)?;
    db.sqlite()?.busy_timeout(Duration::from_millis(BUSY_MS))?;
    refuse_foreign(&db, path)?;
    refuse_newer_than(&db, migrations)?;
    settle(&db)?;
    set(&db, "journal_mode", "WAL")?;
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Normal => "NORMAL",
    };
    set(&db, "synchronous", synchronous)?;
    // The writer thread makes checkpoints, outside of commits.
    set(&db, "wal_autocheckpoint", 0)?;
    // Savepoint journals are a few pages; SQLite would create a file for each.
    set(&db, "temp_store", "MEMORY")?;
    set(&db, "cache_size", -WRITER_CACHE_KIB)?;
    set(&db, "journal_size_limit", WAL_FILE_BYTES_KEPT)?;
    Ok(db)
}

/// Opens an empty file as the target of a copy; the file is synced as a whole later.
///
/// # Errors
/// [`StoreError::Sqlite`].
pub fn open_empty(path: &Path) -> Result<Db, StoreError> {
    let db = connect(path, READ_WRITE)?;
    set(&db, "journal_mode", "OFF")?;
    set(&db, "synchronous", "OFF")?;
    Ok(db)
}

/// Opens the copy made by a restore, and migrates it to this program's schema.
///
/// # Errors
/// [`StoreError::Migration`]; [`StoreError::Sqlite`].
pub fn open_copy(path: &Path) -> Result<Db, StoreError> {
    let mut db = connect(path, READ_WRITE)?;
    settle(&db)?;
    // A single file, synced as a whole later.
    set(&db, "journal_mode", "DELETE")?;
    set(&db, "synchronous", "OFF")?;
    migrate(&mut db)?;
    Ok(db)
}

/// Opens a read-only connection.
///
/// # Errors
/// [`StoreError::Sqlite`].
pub fn open_reader(dir: &Path) -> Result<Db, StoreError> {
    open_to_read(&dir.join(DB_FILE))
}

/// Opens any database file read-only.
///
/// # Errors
/// [`StoreError::Damaged`] if the file is not a database; [`StoreError::Sqlite`].
pub fn open_to_read(path: &Path) -> Result<Db, StoreError> {
    let db = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    settle(&db)?;
    set(&db, "query_only", true)?;
    Ok(db)
}

/// Opens a copy of another program's database, whose content is not trusted, and reads its log. No shared memory is
/// created, so that the copy may be removed once it is open.
///
/// # Errors
/// [`StoreError::Damaged`] if the file is not a database; [`StoreError::Sqlite`].
pub fn open_foreign_copy(path: &Path) -> Result<Db, StoreError> {
    let db = connect(path, READ_WRITE)?;
    set(&db, "locking_mode", "EXCLUSIVE")?;
    settle(&db)?;
    set(&db, "cell_size_check", true)?;
    db.sqlite()?.set_limit(Limit::SQLITE_LIMIT_LENGTH, FOREIGN_VALUE_BYTES_MAX)?;
    // Opens the log.
    db.first("SELECT count(*) FROM sqlite_master", &[], |_| Ok(()))?;
    set(&db, "query_only", true)?;
    Ok(db)
}

/// Opens an empty in-memory database that other connections of this process can open by name.
///
/// # Errors
/// [`StoreError::Sqlite`].
pub fn open_in_memory(name: &str) -> Result<Db, StoreError> {
    let flags = READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_URI;
    let db = connect(format!("file:/{name}?vfs=memdb"), flags)?;
    settle(&db)?;
    Ok(db)
}

fn set(db: &Db, pragma: &str, value: impl ToSql) -> Result<(), StoreError> {
    Ok(db.sqlite()?.pragma_update(None, pragma, value)?)
}

fn settle(db: &Db) -> Result<(), StoreError> {
    db.sqlite()?.busy_timeout(Duration::from_millis(BUSY_MS))?;
    db.sqlite()?.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    set(db, "foreign_keys", true)?;
    // REPLACE fires delete triggers only with this pragma.
    set(db, "recursive_triggers", true)?;
    set(db, "trusted_schema", false)?;
    Ok(())
}

/// Schema version of a file; 0 for a new one.
///
/// # Errors
/// SQLite errors.
pub fn version(db: &Db) -> Result<i64, StoreError> {
    Ok(db.sqlite()?.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

/// True if a file of this version has this program's schema.
pub fn is_current(version: i64) -> bool {
    usize::try_from(version).is_ok_and(|version| version == MIGRATIONS.len())
}

/// Refuses a database of a later version of this program.
///
/// # Errors
/// [`StoreError::Newer`].
pub fn refuse_newer(db: &Db) -> Result<(), StoreError> {
    refuse_newer_than(db, MIGRATIONS.len())
}

fn refuse_newer_than(db: &Db, known: usize) -> Result<(), StoreError> {
    let found = version(db)?;
    let known = i64::try_from(known).unwrap_or(i64::MAX);
    if found > known { Err(StoreError::Newer { found, known }) } else { Ok(()) }
}

/// Refuses a database of another program. A database without an application id is accepted if it is empty or
/// has this program's tables.
///
/// # Errors
/// [`StoreError::Foreign`].
pub fn refuse_foreign(db: &Db, path: &Path) -> Result<(), StoreError> {
    let foreign = |why: String| Err(StoreError::Foreign { path: path.to_owned(), why });
    let mark: i64 = db.sqlite()?.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if mark == APPLICATION_ID {
        return Ok(());
    }
    if mark != 0 {
        return foreign(format!("its application id is {mark:#x}"));
    }
    let ours = "SELECT count(*) = 0 OR count(*) FILTER (WHERE name IN ('acp_meta','acp_sessions','acp_events')) = 3 \
                FROM sqlite_master WHERE type = 'table'";
    let is_ours = db.first(ours, &[], |row| row.only())?.unwrap_or(false);
    if is_ours { Ok(()) } else { foreign("it has other tables".to_owned()) }
}

/// Differences of tables, indexes and triggers from this program's schema: missing, changed and unknown ones.
///
/// # Errors
/// [`StoreError::Migration`]; SQLite errors.
pub fn differences(db: &Db) -> Result<Vec<String>, StoreError> {
    let mut fresh = Db::new(Connection::open_in_memory()?);
    migrate(&mut fresh)?;
    let (want, found) = (objects(&fresh)?, objects(db)?);
    let mut list = Vec::new();
    for (name, sql) in &want {
        match found.get(name) {
            None => list.push(format!("{name} is missing")),
            Some(other) if other != sql => list.push(format!("{name} differs")),
            Some(_) => {}
        }
    }
    list.extend(
        found.keys().filter(|name| !want.contains_key(*name)).map(|name| format!("{name} is unknown")),
    );
    Ok(list)
}

/// Objects of a schema by type and name, with their SQL in normalized white space.
fn objects(db: &Db) -> Result<BTreeMap<String, String>, StoreError> {
    let sql = "SELECT type || ' ' || name AS name, coalesce(sql, '') AS text FROM sqlite_master \
        WHERE name NOT LIKE 'sqlite_%'";
    let found = db.all(sql, &[], |row| {
        let text = row.text("text")?.split_whitespace().collect::<Vec<_>>().join(" ");
        Ok((row.get("name")?, text))
    })?;
    Ok(found.into_iter().collect())
}

/// Brings the database to this program's schema.
///
/// # Errors
/// [`StoreError::Migration`].
pub fn migrate(db: &mut Db) -> Result<(), StoreError> {
    migrate_with(db, MIGRATIONS)
}

/// Applies those of the migrations that the database lacks.
///
/// # Errors
/// [`StoreError::Migration`].
pub(crate) fn migrate_with(db: &mut Db, migrations: &[&str]) -> Result<(), StoreError> {
    Migrations::new(migrations.iter().map(|sql| M::up(sql)).collect())
        .to_latest(db.sqlite_mut()?)
        .map_err(|error| StoreError::Migration(Arc::new(error)))
}

/// Applies the migrations that the database lacks in the open transaction, and leaves the version as it is.
///
/// # Errors
/// SQLite errors.
pub(crate) fn migrate_uncommitted(db: &Db) -> Result<(), StoreError> {
    let applied = usize::try_from(version(db)?).unwrap_or(usize::MAX);
    for sql in MIGRATIONS.iter().skip(applied) {
        db.sqlite()?.execute_batch(sql)?;
    }
    Ok(())
}

/// Marks a new file as a database of this program.
///
/// # Errors
/// SQLite errors.
pub(crate) fn set_application_id(db: &Db) -> Result<(), StoreError> {
    match db.sqlite()?.pragma_query_value(None, "application_id", |row| row.get::<_, i64>(0))? {
        0 => set(db, "application_id", APPLICATION_ID),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::codec::SqlEnum;
    use crate::open::{open_with, open_writer};
    use acp_core::principal::Scope;
    use acp_core::rows::{
        BindingStatus, CompletionState, LeaseStatus, NonInteractive, PermissionMode, PermissionState,
        RequestState, RunMode, SessionMode, TargetKind,
    };
    use acp_core::run::RunState;
    use acp_core::session::{Ending, SessionState};

    fn migrated() -> Db {
        let mut db = Db::new(Connection::open_in_memory().unwrap());
        migrate_with(&mut db, MIGRATIONS).unwrap();
        db
    }

    #[test]
    fn every_table_is_strict() {
        let objects = objects(&migrated()).unwrap();
        assert!(objects.len() > 30, "tables exist: {objects:?}");
        for (name, sql) in objects {
            if name.starts_with("table ") {
                assert!(sql.contains(") STRICT"), "{name} is not STRICT");
            }
        }
    }

    /// Returns the words of `CHECK (column IN (…))` in the definition of `table`.
    fn checked_words(db: &Db, table: &str, column: &str) -> Vec<String> {
        let sql: String = db
            .sqlite()
            .unwrap()
            .query_row("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?1", [table], |row| {
                row.get(0)
            })
            .unwrap();
        let start = sql.find(&format!("CHECK ({column} IN (")).unwrap();
        let list = sql[start..].split_once("IN (").unwrap().1.split_once(')').unwrap().0;
        list.split(',').map(|word| word.trim().trim_matches('\'').to_owned()).collect()
    }

    fn assert_words<T: SqlEnum>(db: &Db, table: &str, column: &str) {
        let want: Vec<String> = T::ALL.iter().map(|value| value.word().to_owned()).collect();
        assert_eq!(checked_words(db, table, column), want, "{table}.{column}");
    }

    #[test]
    fn check_constraints_match_states_in_code() {
        let db = migrated();
        assert_words::<SessionState>(&db, "acp_sessions", "state");
        assert_words::<Ending>(&db, "acp_sessions", "ending");
        assert_words::<SessionMode>(&db, "acp_sessions", "mode");
        assert_words::<RunState>(&db, "acp_runs", "state");
        assert_words::<RunMode>(&db, "acp_runs", "mode");
        assert_words::<LeaseStatus>(&db, "acp_leases", "usage");
        assert_words::<RequestState>(&db, "acp_agent_request", "state");
        assert_words::<PermissionState>(&db, "acp_permission", "state");
        assert_words::<TargetKind>(&db, "acp_bindings", "target_kind");
        assert_words::<BindingStatus>(&db, "acp_bindings", "status");
        assert_words::<CompletionState>(&db, "acp_completions", "state");
        assert_words::<Scope>(&db, "acp_tokens", "scope");
        assert_words::<PermissionMode>(&db, "acp_runs", "permission");
        assert_words::<NonInteractive>(&db, "acp_runs", "non_interactive");
    }

    #[test]
    fn older_database_is_backed_up_before_migration() {
        let dir = tempfile::tempdir().unwrap();
        drop(open_writer(dir.path(), Durability::Full).unwrap());
        assert!(!dir.path().join("gateway.db.schema-1").exists(), "a new database is not backed up");
        let next = [MIGRATIONS, &["CREATE TABLE acp_more (a TEXT) STRICT;"]].concat();
        let db = open_with(dir.path(), Durability::Full, &next).unwrap();
        assert_eq!(version(&db).unwrap(), i64::try_from(next.len()).unwrap());
        drop(db);
        let kept = dir.path().join(format!("gateway.db.schema-{}", MIGRATIONS.len()));
        assert!(is_current(version(&open_to_read(&kept).unwrap()).unwrap()));
        // This program restores the backup and refuses the newer database.
        assert!(matches!(open_writer(dir.path(), Durability::Full), Err(StoreError::Newer { .. })));
        crate::restore::restore(dir.path(), &kept, 1, &mut |_| {}).unwrap();
        drop(open_writer(dir.path(), Durability::Full).unwrap());
    }

    #[test]
    fn rows_of_the_first_schema_keep_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let db = open_with(dir.path(), Durability::Full, &MIGRATIONS[..1]).unwrap();
        let insert = |db: &Db, key: &str| {
            let sql = "INSERT INTO acp_sessions (session_key, backend, agent, mode, cwd, state, owner_session_key, \
                gateway_instance_id, resumable, options_json, last_session_seq, created_at, updated_at, last_activity_at) \
                VALUES (?1, 'direct', 'demo', 'persistent', '/', 'idle', ?1, '', 0, '{}', 0, 0, 0, 0)";
            db.sqlite().unwrap().execute(sql, [key]).unwrap();
            let sql = "INSERT INTO acp_bindings (binding_key, channel, account_id, thread_id, session_key, target_kind, \
                status, bound_by, bound_at, last_activity_at, metadata_json) \
                VALUES (?1, 'console', 'default', ?1, ?1, 'session', 'active', '', 0, 0, '{}')";
            db.sqlite().unwrap().execute(sql, [key]).unwrap();
        };
        ["c", "a"].into_iter().for_each(|key| insert(&db, key));
        drop(db);
        let db = open_writer(dir.path(), Durability::Full).unwrap();
        assert!(dir.path().join("gateway.db.schema-1").exists());
        assert_eq!(differences(&db).unwrap(), Vec::<String>::new());
        insert(&db, "b");
        for table in ["acp_sessions", "acp_bindings"] {
            let sql = format!("SELECT session_key FROM {table} ORDER BY ord");
            let mut statement = db.sqlite().unwrap().prepare(&sql).unwrap();
            let keys = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
            assert_eq!(keys.map(Result::unwrap).collect::<Vec<_>>(), ["c", "a", "b"], "{table}");
        }
        let last: i64 =
            db.sqlite().unwrap().query_row("SELECT last FROM acp_ord", [], |row| row.get(0)).unwrap();
        assert_eq!(last, 4, "two rows of each table were numbered from 1, then one of each followed");
    }

    #[test]
    fn changed_schema_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let db = open_writer(dir.path(), Durability::Full).unwrap();
        assert_eq!(differences(&db).unwrap(), Vec::<String>::new());
        db.sqlite()
            .unwrap()
            .execute_batch("DROP TRIGGER acp_events_never_updated; CREATE TABLE more (a)")
            .unwrap();
        let want = ["trigger acp_events_never_updated is missing", "table more is unknown"];
        assert_eq!(differences(&db).unwrap(), want);
    }

    #[test]
    fn pragmas_are_set() {
        let dir = tempfile::tempdir().unwrap();
        let db = open_writer(dir.path(), Durability::Full).unwrap();
        let number =
            |name| db.sqlite().unwrap().pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
        let mode: String =
            db.sqlite().unwrap().pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal");
        assert_eq!(number("synchronous"), 2);
        assert_eq!(number("foreign_keys"), 1);
        assert_eq!(number("wal_autocheckpoint"), 0);
        let reader = open_reader(dir.path()).unwrap();
        assert!(reader.sqlite().unwrap().execute("DELETE FROM acp_meta", []).is_err());
    }
}
