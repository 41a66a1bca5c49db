//! Sources of OpenClaw: forms, and files that are damaged or hostile.

use crate::openclaw_import::{OpenclawImport, imported_source};
use crate::openclaw_source::read_openclaw;
use crate::{Durability, StoreError, open as opening, schema};
use acp_core::migrate::plan::ImportPlan;
use rusqlite::Connection;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const TABLES: &str =
    "CREATE TABLE acp_sessions (session_key TEXT PRIMARY KEY, agent TEXT, state TEXT, cwd BLOB);
    INSERT INTO acp_sessions VALUES ('a', 'codex', NULL, x'00');
    CREATE TABLE plugin_state_entries (plugin_id TEXT, entry_key TEXT, value_json TEXT);";

#[expect(clippy::disallowed_methods, reason = "a database of another program")]
fn database(dir: &Path, sql: &str) -> PathBuf {
    let path = dir.join("source.sqlite");
    let db = Connection::open(&path).unwrap();
    db.execute_batch(sql).unwrap();
    path
}

#[test]
fn known_columns_of_known_tables_are_read() {
    let (source, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = database(source.path(), TABLES);
    let before = std::fs::read(&path).unwrap();
    let tables = read_openclaw(&path, state.path()).unwrap();
    let want = serde_json::json!({ "session_key": "a", "agent": "codex", "cwd": null, "state": null });
    assert_eq!(tables.sessions, [want]);
    assert!(tables.bindings.is_empty() && tables.plugin.is_empty());
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(std::fs::read_dir(source.path()).unwrap().count(), 1, "nothing beside the source");
    assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0, "no copy is left");
}

/// A killed import leaves a copy: the next one replaces it.
#[test]
fn copy_of_killed_import_is_removed() {
    let (source, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = database(source.path(), TABLES);
    let left = state.path().join(".openclaw-copy");
    std::fs::create_dir(&left).unwrap();
    std::fs::write(left.join("copy.sqlite-wal"), "left by a kill").unwrap();
    assert!(read_openclaw(&path, state.path()).is_ok());
    assert!(!left.exists());
}

#[test]
fn rows_in_the_log_are_read_without_shared_memory() {
    let (source, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let live = source.path().join("live");
    std::fs::create_dir(&live).unwrap();
    let path = database(&live, "PRAGMA journal_mode = WAL;");
    #[expect(clippy::disallowed_methods, reason = "a database of another program")]
    let db = Connection::open(&path).unwrap();
    db.execute_batch(TABLES).unwrap();
    // As a killed program leaves them: without the shared memory.
    for name in ["source.sqlite", "source.sqlite-wal"] {
        std::fs::copy(live.join(name), source.path().join(name)).unwrap();
    }
    let tables = read_openclaw(&source.path().join("source.sqlite"), state.path()).unwrap();
    assert_eq!(tables.sessions.len(), 1);
    assert!(!source.path().join("source.sqlite-shm").exists());
}

#[test]
fn hostile_and_damaged_sources_are_refused() {
    let hostile = [
        ("CREATE VIEW acp_sessions AS SELECT 'a' AS session_key", "acp_sessions is not a table"),
        ("CREATE TABLE acp_sessions (a TEXT)", "no column session_key"),
        (
            "CREATE TABLE acp_sessions (session_key TEXT); INSERT INTO acp_sessions VALUES (replace(hex(zeroblob(5000000)), '0', 'a'))",
            "too big",
        ),
    ];
    for (sql, why) in hostile {
        let (source, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let refused = read_openclaw(&database(source.path(), sql), state.path()).unwrap_err();
        assert!(refused.contains(why), "{sql}: {refused}");
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0, "no copy is left");
    }
    let (source, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = source.path().join("source.sqlite");
    std::fs::write(&path, "no database, but long enough for a header of one".repeat(20)).unwrap();
    let refused = read_openclaw(&path, state.path()).unwrap_err();
    assert!(refused.contains("no database of SQLite") && !refused.contains("store check"), "{refused}");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(read_openclaw(&path, state.path()).unwrap_err().contains("regular file"));
}

#[test]
fn dry_run_without_a_database_creates_none() {
    let state = tempfile::tempdir().unwrap();
    let import = OpenclawImport::open(state.path(), true).unwrap();
    assert_eq!(import.rehearse(&ImportPlan::default(), 1).unwrap(), []);
    import.close().unwrap();
    assert!(!state.path().join(schema::DB_FILE).exists());
    let import = OpenclawImport::open(state.path(), false).unwrap();
    assert_eq!(import.rehearse(&ImportPlan::default(), 1).unwrap(), []);
    import.close().unwrap();
    let db = schema::open_reader(state.path()).unwrap();
    assert_eq!(imported_source(&db).unwrap(), None);
}

/// The rehearsal sees the migrated schema, and the file keeps the older one.
#[test]
fn dry_run_does_not_migrate_an_older_database() {
    let state = tempfile::tempdir().unwrap();
    for applied in [1, schema::MIGRATIONS.len() - 1] {
        let older = &schema::MIGRATIONS[..applied];
        opening::open_with(state.path(), Durability::Full, older).unwrap().close().unwrap();
        let files = || {
            let names = std::fs::read_dir(state.path()).unwrap().map(|entry| entry.unwrap().file_name());
            names.filter(|name| name.to_string_lossy().starts_with("gateway.db")).collect::<BTreeSet<_>>()
        };
        let seen = || {
            let db = schema::open_reader(state.path()).unwrap();
            (files(), schema::version(&db).unwrap(), schema::differences(&db).unwrap())
        };
        let before = seen();
        assert!(!before.2.is_empty());
        let import = OpenclawImport::open(state.path(), true).unwrap();
        assert_eq!(import.rehearse(&ImportPlan::default(), 1).unwrap(), []);
        import.close().unwrap();
        assert_eq!(seen(), before);
    }
    OpenclawImport::open(state.path(), false).unwrap().close().unwrap();
    let db = schema::open_reader(state.path()).unwrap();
    assert!(schema::is_current(schema::version(&db).unwrap()));
}

#[test]
fn dry_run_does_not_finish_an_interrupted_restore() {
    let state = tempfile::tempdir().unwrap();
    let prepared = state.path().join("gateway.db.restoring-1");
    opening::open_writer(state.path(), Durability::Full).unwrap().close().unwrap();
    std::fs::copy(state.path().join(schema::DB_FILE), &prepared).unwrap();
    let refused = OpenclawImport::open(state.path(), true).unwrap_err();
    assert!(matches!(refused, StoreError::Refused(_)), "{refused}");
    assert!(prepared.exists());
    OpenclawImport::open(state.path(), false).unwrap().close().unwrap();
    assert!(!prepared.exists());
}
