//! Reads the database of OpenClaw: from a copy with its log, so that nothing is written next to the source. The copy is
//! removed as soon as it is open.

use crate::db::{Db, params};
use crate::error::StoreError;
use crate::schema;
use serde_json::Value;
use std::fs::{DirBuilder, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Maximum size of a source with its log, in bytes.
const SOURCE_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
/// Maximum number of rows of a table.
const ROWS_MAX: usize = 100_000;
/// Suffixes of the files that belong to a database. The shared memory is rebuilt.
const FILES: [&str; 3] = ["", "-wal", "-journal"];
/// Name of the copies' directory in the state directory.
const SCRATCH: &str = ".openclaw-copy";

const SESSIONS: (&str, &[&str]) = (
    "acp_sessions",
    &[
        "session_key",
        "session_id",
        "backend",
        "agent",
        "runtime_session_name",
        "identity_json",
        "mode",
        "runtime_options_json",
        "cwd",
        "state",
        "last_activity_at",
        "last_error",
    ],
);
const BINDINGS: (&str, &[&str]) = (
    "current_conversation_bindings",
    &[
        "binding_key",
        "target_session_key",
        "channel",
        "account_id",
        "parent_conversation_id",
        "conversation_id",
        "target_kind",
        "status",
        "bound_at",
        "expires_at",
        "metadata_json",
    ],
);
const PLUGIN: (&str, &[&str]) =
    ("plugin_state_entries", &["plugin_id", "namespace", "entry_key", "value_json", "expires_at"]);

/// Rows of the tables, as objects of JSON by column. A missing table has no rows.
#[derive(Debug, Default, PartialEq)]
pub struct OpenclawTables {
    /// `acp_sessions`.
    pub sessions: Vec<Value>,
    /// `current_conversation_bindings`.
    pub bindings: Vec<Value>,
    /// `plugin_state_entries`.
    pub plugin: Vec<Value>,
}

/// Reads a database. `state_dir` is the gateway's state directory, for the copy.
///
/// # Errors
/// The reason why the file cannot be read.
pub fn read_openclaw(path: &Path, state_dir: &Path) -> Result<OpenclawTables, String> {
    let scratch = state_dir.join(SCRATCH);
    let copied = copy(path, &scratch);
    let opened = copied.and_then(|copy| schema::open_foreign_copy(&copy).map_err(|error| reason(&error)));
    let removed = remove(&scratch);
    let db = opened?;
    removed?;
    let [sessions, bindings, plugin] =
        [SESSIONS, BINDINGS, PLUGIN].map(|(table, columns)| rows(&db, table, columns));
    Ok(OpenclawTables { sessions: sessions?, bindings: bindings?, plugin: plugin? })
}

/// Removes copies of an earlier import that was killed.
///
/// # Errors
/// The directory cannot be removed.
fn remove(scratch: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(scratch) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", scratch.display()))
        }
        _ => Ok(()),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Size, time and inode of a file, which differ after a change.
fn mark(meta: &Metadata) -> (u64, u64, i64, i64) {
    (meta.len(), meta.ino(), meta.mtime(), meta.mtime_nsec())
}

fn marks(path: &Path) -> Vec<Option<(u64, u64, i64, i64)>> {
    FILES
        .iter()
        .map(|suffix| std::fs::metadata(with_suffix(path, suffix)).ok().map(|meta| mark(&meta)))
        .collect()
}

fn copy(path: &Path, scratch: &Path) -> Result<PathBuf, String> {
    remove(scratch)?;
    let before = marks(path);
    if before.iter().flatten().map(|mark| mark.0).sum::<u64>() > SOURCE_BYTES_MAX {
        return Err(format!("it is larger than {SOURCE_BYTES_MAX} bytes"));
    }
    let failed = |what: &str, error: std::io::Error| format!("cannot {what}: {error}");
    DirBuilder::new()
        .mode(0o700)
        .create(scratch)
        .map_err(|error| failed("create a directory for a copy", error))?;
    let to = scratch.join("copy.sqlite");
    for suffix in FILES {
        let (from, to) = (with_suffix(path, suffix), with_suffix(&to, suffix));
        match std::fs::metadata(&from) {
            Ok(meta) if !meta.is_file() => return Err("it is not a regular file".to_owned()),
            Ok(_) => {
                std::fs::copy(&from, &to).map_err(|error| failed("copy it", error))?;
                let private = std::fs::Permissions::from_mode(0o600);
                std::fs::set_permissions(&to, private).map_err(|error| failed("copy it", error))?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("read it", error)),
        }
    }
    if marks(path) != before {
        return Err("it changed while it was read: stop OpenClaw and repeat the command".to_owned());
    }
    Ok(to)
}

/// Rows of a table as objects. Values of type BLOB count as null.
fn rows(db: &Db, table: &str, columns: &[&str]) -> Result<Vec<Value>, String> {
    let fail = |error: StoreError| reason(&error);
    // A view or a virtual table of that name could run code of the file.
    const IS_TABLE: &str = "SELECT count(*) AS found FROM sqlite_master WHERE name = ?1 AND type = 'table' AND sql LIKE 'CREATE TABLE %'";
    const NAMED: &str = "SELECT count(*) AS found FROM sqlite_master WHERE name = ?1";
    let count = |sql: &str| db.first(sql, params![table], |row| row.get::<u64>("found")).map_err(fail);
    if count(NAMED)?.unwrap_or(0) == 0 {
        return Ok(Vec::new());
    }
    if count(IS_TABLE)?.unwrap_or(0) != 1 {
        return Err(format!("{table} is not a table"));
    }
    const COLUMNS: &str = "SELECT name FROM pragma_table_info(?1)";
    let known = db.all(COLUMNS, params![table], |row| row.get::<String>("name")).map_err(fail)?;
    let is_known = |column: &&&str| known.iter().any(|known| known == *column);
    let found: Vec<&&str> = columns.iter().filter(is_known).collect();
    if !columns.first().is_some_and(|first| found.contains(&first)) {
        return Err(format!("{table} has another form: it has no column {}", columns.first().unwrap_or(&"")));
    }
    let members: Vec<String> =
        found.iter().map(|name| format!("'{name}', iif(typeof({name}) = 'blob', NULL, {name})")).collect();
    let sql =
        format!("SELECT json_object({}) AS line FROM {table} LIMIT {}", members.join(", "), ROWS_MAX + 1);
    let rows = db.all(&sql, &[], |row| row.json::<Value>("line")).map_err(fail)?;
    if rows.len() > ROWS_MAX {
        return Err(format!("{table} has more than {ROWS_MAX} rows"));
    }
    Ok(rows)
}

/// Reason of an error about the source: remedies for this gateway's database do not apply.
fn reason(error: &StoreError) -> String {
    match error {
        StoreError::Damaged { why } => format!("it is damaged, or no database of SQLite ({why})"),
        error => error.whole(),
    }
}
