//! `acp_binding_style`: display styles of a conversation, each valid from a journal row on.

use crate::codec::to_json;
use crate::db::{Db, params};
use crate::error::StoreError;
use crate::{Tx, sessions};
use acp_core::render::{Style, StyleHistory};
use acp_core::rows::Verbosity;
use acp_shared::ids::{BindingId, SessionKey};

const RECORD: &str = "INSERT INTO acp_binding_style (binding_key, from_session_seq, style_json, created_at) \
    VALUES (?1, ?2, ?3, ?4) ON CONFLICT (binding_key, from_session_seq) DO UPDATE SET \
    style_json = excluded.style_json, created_at = excluded.created_at";

/// Recorded styles of a conversation.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn of(db: &Db, binding_id: BindingId) -> Result<StyleHistory, StoreError> {
    const SQL: &str = "SELECT from_session_seq, style_json FROM acp_binding_style WHERE binding_key = ?1 \
        ORDER BY from_session_seq";
    let rows = db.all(SQL, params![binding_id], |row| {
        Ok((row.get("from_session_seq")?, row.json::<Style>("style_json")?))
    })?;
    Ok(StyleHistory::new(rows))
}

/// Records a style for a single row; later rows keep the previous style. Overrides the configuration.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn record_row(
    tx: &Tx<'_>,
    binding_id: BindingId,
    session_seq: u64,
    how: impl FnOnce(Style) -> Style,
) -> Result<StyleHistory, StoreError> {
    const AFTER: &str = "INSERT INTO acp_binding_style (binding_key, from_session_seq, style_json, created_at) \
        VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING";
    let Some(before) = of(tx, binding_id)?.at(session_seq).cloned() else { return of(tx, binding_id) };
    // A style recorded for the next row stays in force; otherwise restore the previous style there.
    tx.run(AFTER, params![binding_id, session_seq + 1, to_json(&before)?, tx.now_ms()])?;
    tx.run(RECORD, params![binding_id, session_seq, to_json(&how(before))?, tx.now_ms()])?;
    of(tx, binding_id)
}

/// Records a person's choice of verbosity, from the next journal row on. Without a recorded style nothing was
/// delivered yet: delivery then starts with the chosen verbosity.
///
/// # Errors
/// [`StoreError::NoSession`]; [`StoreError::Unreadable`]; SQLite errors.
pub fn choose(
    tx: &Tx<'_>,
    binding_id: BindingId,
    key: &SessionKey,
    verbosity: Option<Verbosity>,
) -> Result<(), StoreError> {
    if let Some(last) = of(tx, binding_id)?.last().cloned() {
        record(tx, binding_id, key, &last.with_verbosity(verbosity))?;
    }
    Ok(())
}

/// Records a style for a conversation, from the next journal row on, or from the start if none was recorded
/// before. Returns all recorded styles.
///
/// # Errors
/// [`StoreError::NoSession`]; [`StoreError::Unreadable`]; SQLite errors.
pub fn record(
    tx: &Tx<'_>,
    binding_id: BindingId,
    key: &SessionKey,
    style: &Style,
) -> Result<StyleHistory, StoreError> {
    let known = of(tx, binding_id)?;
    let from = match known.last() {
        None => 0,
        Some(last) if last == style => return Ok(known),
        // A second change without a row in between replaces the first, which was never displayed.
        Some(_) => sessions::marks(tx, key)?.1 + 1,
    };
    tx.run(RECORD, params![binding_id, from, to_json(style)?, tx.now_ms()])?;
    of(tx, binding_id)
}
