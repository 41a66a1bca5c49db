//! Reads the sessions and bindings of a damaged database that a gateway refuses to use. Read-only, uses no
//! index, and skips damaged pages.

use crate::db::Db;
use crate::error::StoreError;
use crate::schema::{self, DB_FILE};
use rusqlite::Row;
use rusqlite::types::ValueRef;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Session as stored, even if this program would reject the row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SalvagedSession {
    /// Session key.
    pub session_key: String,
    /// Agent.
    pub agent: String,
    /// State.
    pub state: String,
    /// Label.
    pub label: Option<String>,
    /// Working directory.
    pub cwd: String,
    /// Last error, as JSON.
    pub last_error: Option<String>,
    /// Last number of the journal.
    pub last_session_seq: u64,
    /// Time of the last use, milliseconds since the Unix epoch.
    pub last_activity_at_ms: u64,
    /// Bound conversations: channel, account and id.
    pub bound: Vec<String>,
}

/// Result of a salvage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Salvage {
    /// Readable sessions, in the order of creation.
    pub sessions: Vec<SalvagedSession>,
    /// Descriptions of the unreadable parts; empty if everything was read.
    pub unread: Vec<String>,
}

const SESSIONS: &str = "SELECT rowid, session_key, agent, state, label, cwd, last_error, last_session_seq, \
    last_activity_at FROM acp_sessions NOT INDEXED";
const BINDINGS: &str =
    "SELECT rowid, session_key, channel, account_id, thread_id, status FROM acp_bindings NOT INDEXED";

/// Reads all reachable rows.
///
/// # Errors
/// [`StoreError::File`] without a database, [`StoreError::Newer`], [`StoreError::Foreign`]. Damage is not an
/// error: see `Salvage::unread`.
pub fn salvage(dir: &Path) -> Result<Salvage, StoreError> {
    let path = dir.join(DB_FILE);
    std::fs::metadata(&path).map_err(|error| StoreError::file("inspect", &path, error))?;
    let mut found = Salvage::default();
    match read(&path, &mut found) {
        Ok(()) => {}
        Err(StoreError::Damaged { why }) => found.unread.push(format!("the file as a whole: {why}")),
        Err(error) => return Err(error),
    }
    Ok(found)
}

fn read(path: &Path, found: &mut Salvage) -> Result<(), StoreError> {
    let db = schema::open_to_read(path)?;
    // One snapshot, even while a gateway writes.
    db.run("BEGIN", &[])?;
    schema::refuse_foreign(&db, path)?;
    schema::refuse_newer(&db)?;
    let mut sessions = rows(&db, "acp_sessions", SESSIONS, session, &mut found.unread);
    let bound = rows(&db, "acp_bindings", BINDINGS, binding, &mut found.unread);
    for (session_key, place) in bound.into_values().flatten() {
        if let Some(saved) = sessions.values_mut().find(|saved| saved.session_key == session_key) {
            saved.bound.push(place);
        }
    }
    found.sessions = sessions.into_values().collect();
    Ok(())
}

/// Reads a table from both ends up to the first damage; reports the rows in between as unread.
fn rows<T>(
    db: &Db,
    table: &str,
    sql: &str,
    from_row: fn(&Row<'_>) -> rusqlite::Result<T>,
    unread: &mut Vec<String>,
) -> BTreeMap<i64, T> {
    let mut read = BTreeMap::new();
    let mut why = BTreeSet::new();
    for order in ["ASC", "DESC"] {
        let sql = format!("{sql} ORDER BY rowid {order}");
        if let Err(error) = up_to_damage(db, &sql, from_row, &mut read) {
            why.insert(error.to_string());
        } else {
            return read;
        }
    }
    let why: Vec<String> = why.into_iter().collect();
    unread.push(format!(
        "rows of {table}, between or next to the {} readable ones: {}",
        read.len(),
        why.join("; ")
    ));
    read
}

fn up_to_damage<T>(
    db: &Db,
    sql: &str,
    from_row: fn(&Row<'_>) -> rusqlite::Result<T>,
    read: &mut BTreeMap<i64, T>,
) -> rusqlite::Result<()> {
    let Ok(sqlite) = db.sqlite() else { return Ok(()) };
    let mut statement = sqlite.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let rowid = row.get(0)?;
        let value = from_row(row)?;
        read.entry(rowid).or_insert(value);
    }
    Ok(())
}

fn session(row: &Row<'_>) -> rusqlite::Result<SalvagedSession> {
    Ok(SalvagedSession {
        session_key: text(row, 1)?.unwrap_or_default(),
        agent: text(row, 2)?.unwrap_or_default(),
        state: text(row, 3)?.unwrap_or_default(),
        label: text(row, 4)?,
        cwd: text(row, 5)?.unwrap_or_default(),
        last_error: text(row, 6)?,
        last_session_seq: number(row, 7)?,
        last_activity_at_ms: number(row, 8)?,
        bound: Vec::new(),
    })
}

/// Session key and conversation of a binding; `None` if the binding has ended.
fn binding(row: &Row<'_>) -> rusqlite::Result<Option<(String, String)>> {
    let column = |at| text(row, at).map(Option::unwrap_or_default);
    if column(5)? == "ended" {
        return Ok(None);
    }
    Ok(Some((column(1)?, format!("{} {} {}", column(2)?, column(3)?, column(4)?))))
}

/// Text as stored; `None` for other types.
fn text(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<String>> {
    Ok(match row.get_ref(column)? {
        ValueRef::Text(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) | ValueRef::Blob(_) => None,
    })
}

fn number(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(match row.get_ref(column)? {
        ValueRef::Integer(number) => u64::try_from(number).unwrap_or(0),
        ValueRef::Null | ValueRef::Text(_) | ValueRef::Real(_) | ValueRef::Blob(_) => 0,
    })
}
