//! `acp_events`, the journal. Append-only: triggers refuse everything else but the deletion of pruned rows.

use crate::Store;
use crate::db::{Db, Row, RowAppender, params};
use crate::error::StoreError;
use crate::meta;
use acp_core::event::{EventKind, EventRow};
use acp_core::intake::readable_payload;
use acp_shared::ids::{RunId, SessionKey};
use std::ops::ControlFlow;

const INSERT: &str = "INSERT INTO acp_events (session_key, session_seq, run_id, seq, kind, payload_json, created_at, \
    extra_json) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

/// Key of [`pruned_event_id`] in `acp_meta`.
const PRUNED_EVENT_ID: &str = "pruned_event_id";

/// Columns read by [`from_row`].
pub const COLUMNS: &str = "session_key, session_seq, run_id, seq, kind, payload_json, created_at, extra_json";

/// Reads a row of the journal.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn from_row(row: &Row<'_>) -> Result<EventRow, StoreError> {
    let kind = row.text("kind")?;
    Ok(EventRow {
        session_key: row.get("session_key")?,
        session_seq: row.get("session_seq")?,
        run_id: row.get("run_id")?,
        seq: row.get("seq")?,
        kind: EventKind::parse(&kind).ok_or_else(|| StoreError::Unreadable {
            column: "kind",
            why: format!("unknown kind {kind:?}"),
        })?,
        payload: readable_payload(&row.text("payload_json")?).into_owned(),
        extra: row.get("extra_json")?,
        created_at_ms: row.get("created_at")?,
    })
}

/// Appends rows to one session's journal. Binds the common columns once, since a streaming agent writes
/// hundreds of rows per transaction.
pub struct Appender<'a> {
    insert: RowAppender<'a>,
    /// Currently bound run.
    run_id: Option<RunId>,
}

impl<'a> Appender<'a> {
    /// Appender for rows of one session with one creation time.
    ///
    /// # Errors
    /// SQLite errors.
    pub fn new(db: &'a Db, key: &SessionKey, created_at_ms: u64) -> Result<Self, StoreError> {
        let mut insert = db.append(INSERT)?;
        insert.set(1, key)?;
        insert.set(7, &created_at_ms)?;
        Ok(Self { insert, run_id: None })
    }

    /// Appends a row, with its run and its number in that run, its payload and its `extra`. The caller has checked the numbers.
    ///
    /// # Errors
    /// SQLite errors.
    pub fn append(
        &mut self,
        session_seq: u64,
        run: Option<(RunId, u64)>,
        kind: EventKind,
        payload: &str,
        extra: Option<&str>,
    ) -> Result<(), StoreError> {
        let run_id = run.map(|(run_id, _)| run_id);
        if run_id != self.run_id {
            self.insert.set(3, &run_id)?;
            self.run_id = run_id;
        }
        self.insert.set(2, &session_seq)?;
        self.insert.set(4, &run.map(|(_, seq)| seq))?;
        self.insert.set(5, &kind.as_str())?;
        self.insert.set(6, &payload)?;
        self.insert.set(8, &extra)?;
        self.insert.append()
    }

    /// Inserts the rows that are not yet inserted.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn finish(self) -> Result<(), StoreError> {
        self.insert.finish()
    }
}

/// Highest event id; 0 if there are no events.
///
/// # Errors
/// SQLite errors.
pub fn last_id(db: &Db) -> Result<u64, StoreError> {
    const SQL: &str = "SELECT coalesce(max(event_id), 0) AS event_id FROM acp_events";
    Ok(db.first(SQL, &[], |row| row.get("event_id"))?.unwrap_or(0))
}

/// Time of the last row; `None` if there are no events.
///
/// # Errors
/// SQLite errors.
pub(crate) fn last_at_ms(db: &Db) -> Result<Option<u64>, StoreError> {
    const SQL: &str = "SELECT created_at FROM acp_events ORDER BY event_id DESC LIMIT 1";
    db.first(SQL, &[], |row| row.get("created_at"))
}

/// Highest event ids of the journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventBounds {
    /// Event id of the last pruned row; 0 if none is.
    pub pruned: u64,
    /// Event id of the last row.
    pub last: u64,
}

/// Number of the last row of a session that is pruned; 0 if none is.
///
/// # Errors
/// SQLite errors.
pub fn pruned_seq(db: &Db, key: &SessionKey) -> Result<u64, StoreError> {
    const SQL: &str = "SELECT pruned_seq FROM acp_sessions WHERE session_key = ?1";
    Ok(db.first(SQL, params![key], |row| row.get("pruned_seq"))?.unwrap_or(0))
}

/// Returns the position of a reader who names a cursor; 0 is none.
pub const fn position(cursor: u64) -> Option<u64> {
    if cursor > 0 { Some(cursor) } else { None }
}

/// Returns the number after which a reader continues. Without a position it begins with the rows that are there.
///
/// # Errors
/// [`StoreError::CursorPruned`] if the next rows after the position are pruned.
pub fn start(position: Option<u64>, pruned: u64) -> Result<u64, StoreError> {
    match position {
        Some(after) if after < pruned => Err(StoreError::CursorPruned { after, pruned }),
        position => Ok(position.unwrap_or(pruned)),
    }
}

/// Rows of a session's journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalRows {
    /// Number of the last pruned row of the session when the rows were read; 0 if none is.
    pub pruned_seq: u64,
    /// Rows, in order.
    pub rows: Vec<EventRow>,
}

/// Highest event id of a row that is pruned; 0 if none is.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn pruned_event_id(db: &Db) -> Result<u64, StoreError> {
    let Some(text) = meta::get(db, PRUNED_EVENT_ID)? else { return Ok(0) };
    text.parse().map_err(|error: std::num::ParseIntError| StoreError::Unreadable {
        column: PRUNED_EVENT_ID,
        why: error.to_string(),
    })
}

/// Notes that rows up to an event id are pruned.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub(crate) fn note_pruned(db: &Db, event_id: u64) -> Result<(), StoreError> {
    if event_id > pruned_event_id(db)? {
        meta::set(db, PRUNED_EVENT_ID, &event_id.to_string())?;
    }
    Ok(())
}

/// Journal rows after a position, in order, and the floor in the same snapshot: at most `rows_max` rows, and no more once they
/// hold `bytes_max` bytes of payload (the first row is returned whatever its size).
///
/// # Errors
/// [`StoreError::CursorPruned`]; [`StoreError::Unreadable`]; SQLite errors.
pub fn after(
    db: &Db,
    key: &SessionKey,
    position: Option<u64>,
    rows_max: u64,
    bytes_max: usize,
) -> Result<JournalRows, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM acp_events WHERE session_key = ?1 AND session_seq > ?2 ORDER BY session_seq LIMIT ?3"
    );
    let mut found = JournalRows { pruned_seq: pruned_seq(db, key)?, rows: Vec::new() };
    // Not 0: pruned rows may not be deleted yet.
    let after_seq = start(position, found.pruned_seq)?;
    let mut bytes = 0;
    db.visit(&sql, params![key, after_seq, rows_max], |row| {
        let event = from_row(row)?;
        bytes += event.payload.len() + event.extra.as_ref().map_or(0, String::len);
        found.rows.push(event);
        Ok(if bytes < bytes_max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(found)
}

/// Journal rows of all sessions after an event id, in order, each with its event id. Bounds as of [`after`]. `known` is
/// [`pruned_event_id`] when the reader began: rows that were pruned before are no loss to it.
///
/// # Errors
/// [`StoreError::CursorPruned`]; [`StoreError::Unreadable`]; SQLite errors.
pub fn all_after(
    db: &Db,
    after_id: u64,
    known: u64,
    rows_max: u64,
    bytes_max: usize,
) -> Result<Vec<(u64, EventRow)>, StoreError> {
    let pruned = pruned_event_id(db)?;
    if pruned > known {
        start(Some(after_id), pruned)?;
    }
    let sql =
        format!("SELECT event_id, {COLUMNS} FROM acp_events WHERE event_id > ?1 ORDER BY event_id LIMIT ?2");
    let mut found = Vec::new();
    let mut bytes = 0;
    db.visit(&sql, params![after_id, rows_max], |row| {
        let event = from_row(row)?;
        bytes += event.payload.len() + event.extra.as_ref().map_or(0, String::len);
        found.push((row.get("event_id")?, event));
        Ok(if bytes < bytes_max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(found)
}

impl Store {
    /// Journal rows of all sessions after an event id: see [`all_after`].
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn all_events_after(
        &self,
        after_id: u64,
        known: u64,
        rows_max: u64,
        bytes_max: usize,
    ) -> Result<Vec<(u64, EventRow)>, StoreError> {
        self.read("all_events_after", move |db| all_after(db, after_id, known, rows_max, bytes_max)).await
    }

    /// Highest event ids.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn event_bounds(&self) -> Result<EventBounds, StoreError> {
        let bounds = |db: &Db| Ok(EventBounds { pruned: pruned_event_id(db)?, last: last_id(db)? });
        self.read("event_bounds", bounds).await
    }

    /// Journal rows after a position: see [`after`].
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn events_after(
        &self,
        key: SessionKey,
        position: Option<u64>,
        rows_max: u64,
        bytes_max: usize,
    ) -> Result<JournalRows, StoreError> {
        self.read("events_after", move |db| after(db, &key, position, rows_max, bytes_max)).await
    }
}
