//! `acp_events`, the journal. Append-only: triggers refuse everything else.

use crate::core::event::{EventKind, EventRow};
use crate::store::Store;
use crate::store::codec::{Int, id, id_opt, int, int_opt, run};
use crate::store::error::StoreError;
use acp_shared::ids::SessionKey;
use rusqlite::{Connection, Row, params};

const INSERT: &str = "INSERT INTO acp_events (session_key, session_seq, run_id, seq, kind, payload_json, created_at) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

const AFTER: &str = "SELECT session_key, session_seq, run_id, seq, kind, payload_json, created_at FROM acp_events \
    WHERE session_key = ?1 AND session_seq > ?2 ORDER BY session_seq LIMIT ?3";

/// Reads a row of the journal.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn from_row(row: &Row<'_>) -> Result<EventRow, StoreError> {
    let kind: String = row.get("kind")?;
    Ok(EventRow {
        session_key: id(row, "session_key")?,
        session_seq: int(row, "session_seq")?,
        run_id: id_opt(row, "run_id")?,
        seq: int_opt(row, "seq")?,
        kind: EventKind::parse(&kind).ok_or_else(|| StoreError::Unreadable {
            column: "kind",
            why: format!("unknown kind {kind:?}"),
        })?,
        payload: row.get("payload_json")?,
        created_at_ms: int(row, "created_at")?,
    })
}

/// Appends a row. The caller has checked its numbers.
///
/// # Errors
/// What SQLite says.
pub(crate) fn append(db: &Connection, row: &EventRow) -> Result<(), StoreError> {
    run(
        db,
        INSERT,
        params![
            row.session_key.as_str(),
            Int(row.session_seq),
            row.run_id.map(|id| id.to_string()),
            row.seq.map(Int),
            row.kind.as_str(),
            row.payload,
            Int(row.created_at_ms)
        ],
    )?;
    Ok(())
}

/// Rows after a number, in order: at most `rows_max`, and no more once they hold `bytes_max` bytes of payload
/// (the first row comes whatever its size).
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn after(
    db: &Connection,
    key: &SessionKey,
    after_seq: u64,
    rows_max: u64,
    bytes_max: usize,
) -> Result<Vec<EventRow>, StoreError> {
    let mut statement = db.prepare_cached(AFTER)?;
    let mut rows = statement.query(params![key.as_str(), Int(after_seq), Int(rows_max)])?;
    let mut found = Vec::new();
    let mut bytes = 0;
    while bytes < bytes_max || found.is_empty() {
        let Some(row) = rows.next()? else { break };
        let event = from_row(row)?;
        bytes += event.payload.len();
        found.push(event);
    }
    Ok(found)
}

impl Store {
    /// The journal after a number: see [`after`].
    ///
    /// # Errors
    /// As [`Store::read`].
    pub(crate) async fn events_after(
        &self,
        key: SessionKey,
        after_seq: u64,
        rows_max: u64,
        bytes_max: usize,
    ) -> Result<Vec<EventRow>, StoreError> {
        self.read("events_after", move |db| after(db, &key, after_seq, rows_max, bytes_max)).await
    }
}
