//! `acp_binding_checkpoint` and `acp_delivery_checkpoint`: journal rows up to which conversations and runs are
//! delivered.

use crate::Tx;
use crate::db::{Db, params};
use crate::error::StoreError;
use acp_shared::ids::{BindingId, RunId, SessionKey};

/// Journal number up to which a conversation's delivery is complete; 0 at first.
///
/// # Errors
/// SQLite errors.
pub fn checkpoint(db: &Db, binding_id: BindingId) -> Result<u64, StoreError> {
    const SQL: &str = "SELECT last_session_seq FROM acp_binding_checkpoint WHERE binding_key = ?1";
    let found = db.first(SQL, params![binding_id], |row| row.get("last_session_seq"))?;
    Ok(found.unwrap_or(0))
}

/// Moves the checkpoint of a conversation forward.
///
/// # Errors
/// SQLite errors.
pub fn advance(
    tx: &Tx<'_>,
    binding_id: BindingId,
    through: u64,
    message_id: Option<&str>,
) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO acp_binding_checkpoint (binding_key, last_session_seq, last_message_id, updated_at) \
        VALUES (?1, ?2, ?3, ?4) ON CONFLICT (binding_key) DO UPDATE SET \
        last_session_seq = max(acp_binding_checkpoint.last_session_seq, excluded.last_session_seq), \
        last_message_id = coalesce(excluded.last_message_id, acp_binding_checkpoint.last_message_id), updated_at = excluded.updated_at";
    tx.run(SQL, params![binding_id, through, message_id, tx.now_ms()]).map(drop)
}

/// Moves the checkpoint of a run forward to a journal row of its session.
///
/// # Errors
/// SQLite errors.
pub fn advance_run(
    tx: &Tx<'_>,
    session_key: &SessionKey,
    session_seq: u64,
    run_id: RunId,
    message_id: Option<&str>,
) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO acp_delivery_checkpoint (run_id, last_event_seq, last_discord_message_id, updated_at) \
        SELECT run_id, seq, ?3, ?4 FROM acp_events WHERE session_key = ?1 AND session_seq = ?2 AND run_id = ?5 \
        ON CONFLICT (run_id) DO UPDATE SET last_event_seq = max(acp_delivery_checkpoint.last_event_seq, excluded.last_event_seq), \
        last_discord_message_id = excluded.last_discord_message_id, updated_at = excluded.updated_at";
    tx.run(SQL, params![session_key, session_seq, message_id, tx.now_ms(), run_id]).map(drop)
}
