//! `acp_stdin_outbox`: messages to agents, committed before they are sent (H6).

use crate::codec::to_json;
use crate::db::{Db, Row, params};
use crate::error::StoreError;
use acp_core::rows::OutboxRow;
use acp_shared::ids::LeaseId;
use sha2::{Digest, Sha256};

const INSERT: &str = "INSERT INTO acp_stdin_outbox (lease_id, seq, bytes, sha256, meaning_json, written, created_at) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

fn from_row(row: &Row<'_>) -> Result<OutboxRow, StoreError> {
    Ok(OutboxRow {
        lease_id: row.get("lease_id")?,
        seq: row.get("seq")?,
        bytes: row.get::<Option<Vec<u8>>>("bytes")?.unwrap_or_default().into(),
        kind: row.json("meaning_json")?,
        written: row.get("written")?,
    })
}

/// Inserts a message.
///
/// # Errors
/// [`StoreError::Numbering`] if its number is not the next one of the lease.
pub fn insert(db: &Db, row: &OutboxRow, now_ms: u64) -> Result<(), StoreError> {
    const LAST: &str = "SELECT coalesce(max(seq), 0) AS last FROM acp_stdin_outbox WHERE lease_id = ?1";
    let want = db.first(LAST, params![row.lease_id], |found| found.get("last"))?.unwrap_or(0) + 1;
    if row.seq != want {
        return Err(StoreError::Numbering {
            what: "the number of a message to an agent",
            want,
            got: row.seq,
        });
    }
    let hash: [u8; 32] = Sha256::digest(&row.bytes).into();
    let (bytes, hash) = (&*row.bytes, hash.as_slice());
    let kind = to_json(&row.kind)?;
    db.run(INSERT, params![row.lease_id, row.seq, bytes, hash, kind, row.written, now_ms]).map(drop)
}

/// Marks messages up to a number as written and drops their bytes; the hashes stay.
///
/// # Errors
/// SQLite errors.
pub fn written(db: &Db, lease_id: LeaseId, through_seq: u64) -> Result<(), StoreError> {
    const SQL: &str = "UPDATE acp_stdin_outbox SET written = 1, bytes = NULL \
                       WHERE lease_id = ?1 AND seq <= ?2 AND written = 0";
    db.run(SQL, params![lease_id, through_seq]).map(drop)
}

/// Messages of a lease whose write is not confirmed, in order.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn unwritten(db: &Db, lease_id: LeaseId) -> Result<Vec<OutboxRow>, StoreError> {
    const SQL: &str = "SELECT lease_id, seq, bytes, meaning_json, written FROM acp_stdin_outbox \
                       WHERE lease_id = ?1 AND written = 0 ORDER BY seq";
    db.all(SQL, params![lease_id], from_row)
}
