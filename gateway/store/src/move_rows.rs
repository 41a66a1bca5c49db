//! Move of a control plane between the database file of a state directory and a cell of a PostgreSQL server. All rows are
//! copied in one transaction of the target and checked before its commit. Then a mark in the original says that the target
//! counts. Neither is served in between; a repetition finishes a move that was killed. See decision 0340.

use crate::backup::{self, BackupProgress, Progress, TempFile};
use crate::cell::{Owner, OwnerId, open as cell};
use crate::db::{Db, Row, RowAppender, TxControl, Value, params};
use crate::error::StoreError;
use crate::health::HealthSender;
use crate::lock::StateLock;
use crate::move_marks::{self, INCOMING, MOVED};
use crate::postgres::PgAddress;
use crate::schema::{self, DB_FILE};
use crate::{Durability, check, identity, meta, open};
use acp_shared::ids::StartId;
use serde::Serialize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Tables in an order in which no row refers to a later table. `acp_ord` follows from their rows.
const TABLES: [&str; 25] = [
    "acp_meta",
    "acp_sessions",
    "acp_runs",
    "acp_bindings",
    "acp_events",
    "acp_delivery_checkpoint",
    "acp_binding_checkpoint",
    "acp_binding_style",
    "acp_delivery_card",
    "acp_delivery_part",
    "acp_button_message",
    "acp_idempotency",
    "acp_inbox",
    "acp_said",
    "acp_reply",
    "acp_leases",
    "acp_line_tail",
    "acp_stdin_outbox",
    "acp_agent_request",
    "acp_permission",
    "console_message",
    "acp_tokens",
    "acp_webhook",
    "acp_acpx_names",
    "acp_completions",
];
/// Tables whose order of insertion is the row id of SQLite, and a column `ord` of PostgreSQL: see its dialect.
const BY_ROWID: [&str; 2] = ["acp_acpx_names", "acp_completions"];
/// Tables and columns that count in the order of insertion over all tables.
const ORDERED: [(&str, &str); 8] = [
    ("acp_sessions", "ord"),
    ("acp_runs", "ord"),
    ("acp_bindings", "ord"),
    ("acp_leases", "ord"),
    ("acp_permission", "ord"),
    ("acp_inbox", "ord"),
    ("acp_acpx_names", "rowid"),
    ("acp_completions", "rowid"),
];
/// Columns that PostgreSQL numbers.
const NUMBERED: [(&str, &str); 3] =
    [("acp_events", "event_id"), ("acp_delivery_part", "part_id"), ("console_message", "id")];
/// Interval of progress reports, in rows.
const REPORT_ROWS: u64 = 1_000;

/// Rows of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableRows {
    /// Table.
    pub table: &'static str,
    /// Number of its rows.
    pub rows: u64,
}

/// Result of a move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MoveReport {
    /// Target: a server and its cell, or a file.
    pub to: String,
    /// True if nothing was moved.
    pub dry_run: bool,
    /// True if an earlier move was finished, which had copied the rows.
    pub finished_earlier: bool,
    /// Rows of each table.
    pub tables: Vec<TableRows>,
    /// File of the original, which no gateway uses.
    pub kept: Option<PathBuf>,
}

/// Server of a move.
#[derive(Debug, Clone, Copy)]
pub struct MoveCell<'a> {
    /// Server and cell.
    pub address: &'a PgAddress,
    /// Accepts a server without a synchronous standby.
    pub allow_loss: bool,
}

/// Moves the control plane of a state directory into a cell.
///
/// # Errors
/// [`StoreError::Locked`]; [`StoreError::CellTaken`]; [`StoreError::CellNotEmpty`]; [`StoreError::BadCopy`];
/// [`StoreError::Server`]; errors of opening the database. After an error nothing was moved, or a repetition finishes the move.
pub fn to_cell(dir: &Path, to: MoveCell<'_>, progress: BackupProgress<'_>) -> Result<MoveReport, StoreError> {
    let mut lock = StateLock::take(dir)?;
    let address = to.address;
    let target = cell::open_owner(address, to.allow_loss)?;
    let shown = address.to_string();
    let mut owner = None;
    if cell::has_schema(&target, address)? {
        target.transaction(|| cell::create(&target, address))?;
        if let Some(kept) = finish_to_cell(&target, dir, &mut lock)? {
            return Ok(MoveReport {
                to: shown,
                dry_run: false,
                finished_earlier: true,
                tables: Vec::new(),
                kept: Some(kept),
            });
        }
        // A copy may take longer than the time of an owner.
        let id = OwnerId::of(&target, address, to.allow_loss)?;
        owner = Some(Owner::start(address, id, HealthSender::default())?);
    }
    open::before_open(dir, &lock)?;
    let source = open_file(dir)?;
    let id = StartId::mint().to_string();
    let tables = target.transaction(|| {
        // Not again: it would lock the row that the owner renews. A new cell is seen by nobody before the commit.
        if owner.is_none() {
            cell::create(&target, address)?;
        }
        clear_incoming(&source, &target, address)?;
        let tables = snapshot(&source, || copy_checked(&source, &target, progress))?;
        for (table, column) in NUMBERED {
            let sql = format!(
                "SELECT setval(pg_get_serial_sequence('{table}', '{column}'), (SELECT max({column}) FROM {table}))"
            );
            target.first(&sql, &[], |_| Ok(()))?;
        }
        meta::set(&target, INCOMING, &id)?;
        Ok(tables)
    })?;
    if let Some(owner) = owner {
        owner.stop();
    }
    move_marks::set(&source, &id, &shown)?;
    source.close()?;
    let kept = finish_to_cell(&target, dir, &mut lock)?;
    Ok(MoveReport { to: shown, dry_run: false, finished_earlier: false, tables, kept })
}

/// Moves the control plane of a cell into the database file of a state directory.
///
/// # Errors
/// As [`to_cell`]; [`StoreError::InFile`] if there is a file already.
pub fn to_file(
    dir: &Path,
    from: MoveCell<'_>,
    progress: BackupProgress<'_>,
) -> Result<MoveReport, StoreError> {
    let mut lock = StateLock::take(dir)?;
    let address = from.address;
    let source = cell::open_writer(address, from.allow_loss, true)?.db;
    let to = dir.join(DB_FILE);
    let report = |finished_earlier, tables| MoveReport {
        to: to.display().to_string(),
        dry_run: false,
        finished_earlier,
        tables,
        kept: None,
    };
    if let Some(mark) = move_marks::of(&source)? {
        let ready = move_marks::ready(dir, &mark.id);
        if !ready.exists() {
            return Err(moved_cell(address, mark.to));
        }
        open::refuse_file(dir)?;
        put_in_place(&ready, &to, &mut lock)?;
        return Ok(report(true, Vec::new()));
    }
    if meta::get(&source, INCOMING)?.is_some() {
        return Err(StoreError::MoveUnfinished);
    }
    open::refuse_file(dir)?;
    backup::remove_unfinished(dir, &lock);
    move_marks::remove_ready(dir);
    // A copy may take longer than the time of an owner.
    let id = OwnerId::of(&source, address, from.allow_loss)?;
    let owner = Owner::start(address, id, HealthSender::default())?;
    let part = TempFile::create_next_to(&to)?;
    let target = schema::open_copy(&part.path)?;
    schema::set_application_id(&target)?;
    let tables = target.transaction(|| {
        let tables =
            without_triggers(&target, || snapshot(&source, || copy_checked(&source, &target, progress)))?;
        identity::settle_home(&target, dir)?;
        Ok(tables)
    })?;
    target.close()?;
    let _ = backup::sync(&part.path)?;
    let id = StartId::mint().to_string();
    let ready = move_marks::ready(dir, &id);
    part.rename_to(&ready, false)?;
    owner.stop();
    // A gateway that is started in between makes no new file.
    lock.record_cell()?;
    move_marks::set(&source, &id, &to.display().to_string())?;
    put_in_place(&ready, &to, &mut lock)?;
    Ok(report(false, tables))
}

/// Tells what [`to_cell`] or [`to_file`] would copy, and whether the server can be used. Changes nothing.
///
/// # Errors
/// As [`to_cell`].
pub fn preview(dir: &Path, with: MoveCell<'_>, to_cell: bool) -> Result<MoveReport, StoreError> {
    let address = with.address;
    let server = cell::open_owner(address, with.allow_loss)?;
    let exists = cell::has_schema(&server, address)?;
    server.run_all(&format!("SET search_path TO {}", address.schema()))?;
    let (source, to) = if to_cell {
        if exists && !is_empty(&server)? && meta::get(&server, INCOMING)?.is_none() {
            return Err(StoreError::CellNotEmpty { schema: address.schema() });
        }
        // A dry run does not make a missing file.
        let source = schema::open_reader(dir)?;
        schema::refuse_foreign(&source, &dir.join(DB_FILE))?;
        if !schema::is_current(schema::version(&source)?) {
            let why = "the database has the schema of another version: start the gateway once, or move without --dry-run";
            return Err(StoreError::Refused(why));
        }
        move_marks::refuse_moved_file(&source, dir)?;
        (source, address.to_string())
    } else {
        open::refuse_file(dir)?;
        (server, dir.join(DB_FILE).display().to_string())
    };
    let tables = snapshot(&source, || counts(&source))?;
    Ok(MoveReport { to, dry_run: true, finished_earlier: false, tables, kept: None })
}

/// Runs before a gateway uses a cell: finishes a move into it whose original is marked in `dir`, and refuses a cell that a
/// move has not finished, or that was moved.
///
/// # Errors
/// [`StoreError::MoveUnfinished`]; [`StoreError::Moved`]; errors of the server; [`StoreError::File`].
pub(crate) fn finish_at_start(
    db: &Db,
    dir: &Path,
    lock: &mut StateLock,
    address: &PgAddress,
) -> Result<(), StoreError> {
    if let Some(mark) = move_marks::of(db)? {
        return Err(moved_cell(address, mark.to));
    }
    if meta::get(db, INCOMING)?.is_some() && finish_to_cell(db, dir, lock)?.is_none() {
        return Err(StoreError::MoveUnfinished);
    }
    Ok(())
}

fn moved_cell(address: &PgAddress, to: String) -> StoreError {
    let next = "set acp.control_plane.store = \"sqlite\"; if that file is missing, repeat `acp-gateway store move --to sqlite`";
    StoreError::Moved { from: address.to_string(), to, next }
}

/// Finishes a move into a cell if the original in `dir` is marked: renames the file, and frees the cell for use. Returns the
/// path of the file; `None` if the original is not marked with the id in the cell.
fn finish_to_cell(target: &Db, dir: &Path, lock: &mut StateLock) -> Result<Option<PathBuf>, StoreError> {
    let Some(id) = meta::get(target, INCOMING)? else { return Ok(None) };
    let (path, aside) = (dir.join(DB_FILE), move_marks::aside(dir, &id));
    let is_marked = move_marks::of_file(dir)?.is_some_and(|mark| mark.id == id);
    if !is_marked && !aside.exists() {
        return Ok(None);
    }
    // First: a file that was renamed is not missing.
    lock.record_cell()?;
    if is_marked {
        // Empties the log, whose file goes with the last connection.
        open_file_again(&path)?.close()?;
        let renamed = std::fs::rename(&path, &aside);
        renamed.map_err(|error| StoreError::file("rename the original to", &aside, error))?;
        backup::sync_dir(&aside)?;
    }
    target.transaction(|| meta::remove(target, INCOMING))?;
    Ok(Some(aside))
}

/// Opens a marked original.
fn open_file_again(path: &Path) -> Result<Db, StoreError> {
    let db = schema::open_to_write(path, Durability::Full, schema::MIGRATIONS.len())?;
    db.first("PRAGMA wal_checkpoint(TRUNCATE)", &[], |_| Ok(()))?;
    Ok(db)
}

/// Opens the original in a state directory that no gateway uses.
fn open_file(dir: &Path) -> Result<Db, StoreError> {
    let db = open::open_writer(dir, Durability::Full)?;
    match identity::location_mismatch(&db, dir)? {
        Some(why) => Err(StoreError::Cloned { dir: dir.to_owned(), why }),
        None => Ok(db),
    }
}

fn put_in_place(ready: &Path, to: &Path, lock: &mut StateLock) -> Result<(), StoreError> {
    let renamed = std::fs::rename(ready, to);
    renamed.map_err(|error| StoreError::file("rename the copy to", to, error))?;
    backup::sync_dir(to)?;
    lock.record_database()
}

/// Removes the rows of an interrupted move of the same control plane.
fn clear_incoming(source: &Db, target: &Db, address: &PgAddress) -> Result<(), StoreError> {
    // Rows of another original may be the only ones that count.
    let is_own = identity::instance_id(target)? == identity::instance_id(source)?;
    if is_own && meta::get(target, INCOMING)?.is_some() {
        return target.run_all(&format!("TRUNCATE {}", TABLES.join(", ")));
    }
    if is_empty(target)? { Ok(()) } else { Err(StoreError::CellNotEmpty { schema: address.schema() }) }
}

/// True for a cell that no gateway has used.
fn is_empty(db: &Db) -> Result<bool, StoreError> {
    let has_tables = db.first("SELECT to_regclass('acp_meta') IS NOT NULL", &[], |row| row.only::<bool>())?;
    Ok(has_tables != Some(true) || (count(db, "acp_meta")? == 0 && count(db, "acp_sessions")? == 0))
}

/// Runs `work` on one snapshot of the source.
fn snapshot<T>(source: &Db, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    source.control(TxControl::BeginRead)?;
    let done = work();
    source.control(TxControl::Rollback)?;
    done
}

/// Runs `work` without the triggers of SQLite, which number and refuse rows of the program.
fn without_triggers<T>(target: &Db, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let sql = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'";
    let triggers = target.all(sql, &[], |row| Ok((row.get::<String>("name")?, row.get::<String>("sql")?)))?;
    for (name, _) in &triggers {
        target.run_all(&format!("DROP TRIGGER {name}"))?;
    }
    let done = work()?;
    for (_, sql) in &triggers {
        target.run_all(sql)?;
    }
    Ok(done)
}

/// Copies all rows and checks the copy: the number of rows of each table, and the rules about rows.
fn copy_checked(
    source: &Db,
    target: &Db,
    progress: BackupProgress<'_>,
) -> Result<Vec<TableRows>, StoreError> {
    let tables = counts(source)?;
    let rows_total = tables.iter().map(|table| table.rows).sum();
    let mut rows_copied = 0;
    for table in TABLES {
        copy_table(source, target, table, &mut || {
            rows_copied += 1;
            if rows_copied % REPORT_ROWS == 0 {
                progress(Progress::Moved { rows_copied, rows_total });
            }
        })?;
    }
    let mut last: u64 = source.first("SELECT last FROM acp_ord", &[], |row| row.only())?.unwrap_or(0);
    for (table, column) in ORDERED {
        let sql = format!("SELECT coalesce(max({column}), 0) FROM {table}");
        last = last.max(source.first(&sql, &[], |row| row.only())?.unwrap_or(0));
    }
    target.run("UPDATE acp_ord SET last = ?1", params![last])?;
    let copied = counts(target)?;
    let differences = tables.iter().zip(&copied).filter(|(one, other)| one != other);
    let differences: Vec<String> = differences
        .map(|(one, other)| format!("{} has {} rows, not {}", one.table, other.rows, one.rows))
        .collect();
    let rules = check::rules(target)?;
    let broken = rules.iter().filter_map(check::CheckFinding::violation);
    let faults: Vec<String> = differences.into_iter().chain(broken).collect();
    if faults.is_empty() { Ok(tables) } else { Err(StoreError::BadCopy { why: faults.join("; ") }) }
}

fn counts(db: &Db) -> Result<Vec<TableRows>, StoreError> {
    TABLES.iter().map(|table| Ok(TableRows { table, rows: count(db, table)? })).collect()
}

fn count(db: &Db, table: &str) -> Result<u64, StoreError> {
    let rows = if table == "acp_meta" {
        let sql = format!("SELECT count(*) FROM acp_meta WHERE key NOT IN ('{INCOMING}', '{MOVED}')");
        db.first(&sql, &[], |row| row.only())?
    } else {
        db.first(&format!("SELECT count(*) FROM {table}"), &[], |row| row.only())?
    };
    Ok(rows.unwrap_or(0))
}

/// Copies the rows of a table.
fn copy_table(source: &Db, target: &Db, table: &str, copied: &mut dyn FnMut()) -> Result<(), StoreError> {
    let sqlite = if source.is_sqlite() { source } else { target };
    let sql = "SELECT name FROM pragma_table_xinfo(?1) WHERE hidden = 0 ORDER BY cid";
    let names = sqlite.all(sql, params![table], |row| row.only::<String>())?;
    let mut columns: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    if BY_ROWID.contains(&table) {
        columns.push("rowid".to_owned());
    }
    let listed = columns.join(", ");
    let places: Vec<String> = (1..=columns.len()).map(|number| format!("?{number}")).collect();
    let filter = if table == "acp_meta" {
        format!(" WHERE key NOT IN ('{INCOMING}', '{MOVED}')")
    } else {
        String::new()
    };
    let select = format!("SELECT {listed} FROM {table}{filter}");
    let mut appender =
        target.append(&format!("INSERT INTO {table} ({listed}) VALUES ({})", places.join(", ")))?;
    source.visit(&select, &[], |row| {
        append_row(&mut appender, row, columns.len())?;
        copied();
        Ok(ControlFlow::Continue(()))
    })?;
    appender.finish()
}

fn append_row(appender: &mut RowAppender<'_>, row: &Row<'_>, columns: usize) -> Result<(), StoreError> {
    for index in 0..columns {
        let value: Value<'_> = row.at(index)?;
        appender.set(index + 1, &value)?;
    }
    appender.append()
}

#[cfg(test)]
#[path = "move_rows_tests.rs"]
mod tests;
