//! Marks of a move between the engines: a row of `acp_meta` in each database, with the id of the move. They say which of both
//! counts: decision 0340.

use crate::db::Db;
use crate::error::StoreError;
use crate::meta;
use crate::schema::{self, DB_FILE};
use std::path::{Path, PathBuf};

/// Mark of a cell whose rows were copied, until the original is marked as moved.
pub(crate) const INCOMING: &str = "move_incoming";
/// Mark of an original that was moved: id and target, divided by a blank.
pub(crate) const MOVED: &str = "move_done";
/// Name of the original's file after a move; followed by the id.
const ASIDE: &str = ".moved-";
/// Name of a copy's file before the original is marked; followed by the id.
const READY: &str = ".moving-";

/// Move of an original.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Id of the move.
    pub(crate) id: String,
    /// Target, for people.
    pub(crate) to: String,
}

/// Reads the mark of a moved original.
///
/// # Errors
/// Errors of the engine.
pub(crate) fn of(db: &Db) -> Result<Option<Mark>, StoreError> {
    let text = meta::get(db, MOVED)?;
    Ok(text.map(|text| {
        let (id, to) = text.split_once(' ').unwrap_or((&text, ""));
        Mark { id: id.to_owned(), to: to.to_owned() }
    }))
}

/// Marks the original as moved. The commit of this row is the moment from which the target counts.
///
/// # Errors
/// Errors of the engine.
pub(crate) fn set(db: &Db, id: &str, to: &str) -> Result<(), StoreError> {
    db.transaction(|| meta::set(db, MOVED, &format!("{id} {to}")))
}

/// Reads the mark of the database file in `dir`; `None` without a file or a mark.
///
/// # Errors
/// SQLite errors.
pub(crate) fn of_file(dir: &Path) -> Result<Option<Mark>, StoreError> {
    if !dir.join(DB_FILE).exists() {
        return Ok(None);
    }
    let db = schema::open_reader(dir)?;
    if schema::version(&db)? == 0 { Ok(None) } else { of(&db) }
}

/// Refuses a database file that was moved into a cell.
///
/// # Errors
/// [`StoreError::Moved`]; SQLite errors.
pub(crate) fn refuse_moved_file(db: &Db, dir: &Path) -> Result<(), StoreError> {
    let Some(Mark { to, .. }) = of(db)? else { return Ok(()) };
    let next = "set acp.control_plane.store = \"postgres\"";
    Err(StoreError::Moved { from: dir.join(DB_FILE).display().to_string(), to, next })
}

/// Path of the original's file after a move.
pub(crate) fn aside(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{DB_FILE}{ASIDE}{id}"))
}

/// Path of a finished copy before it takes the place of the database file.
pub(crate) fn ready(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{DB_FILE}{READY}{id}"))
}

/// Removes finished copies of moves that were not made.
pub(crate) fn remove_ready(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&format!("{DB_FILE}{READY}"))
            && let Err(error) = std::fs::remove_file(entry.path())
        {
            tracing::warn!(path = %entry.path().display(), %error, "copy of an interrupted move stays");
        }
    }
}
