//! `acp_delivery_card`: message ids of status cards, one per run and binding. The content comes from the
//! journal.

use crate::db::{Db, Row, params};
use crate::error::StoreError;
use crate::{Tx, events};
use acp_core::card::CardRecord;
use acp_core::event::EventRow;
use acp_core::render::is_rendered;
use acp_shared::ids::{BindingId, RunId, SessionKey};

/// Maximum number of journal rows read for a card in one step, and their maximum size in bytes.
const ROWS_MAX: u64 = 256;
const BYTES_MAX: usize = 1024 * 1024;

/// Maximum number of attempts to fold a card (show the end of its run).
const TRIES_MAX: u32 = 60;
/// Maximum number of attempts for a card whose message is absent; half a minute with the pauses.
const ABSENT_MAX: u32 = 6;
/// First and longest pause between attempts, in milliseconds.
const PAUSE_MS: u64 = 1_000;
const PAUSE_MS_MAX: u64 = 5 * 60_000;
/// Maximum number of bindings returned for one pass.
const BINDINGS_MAX: u32 = 1_000;

/// Status cards of a conversation for the next delivery pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusCards {
    /// Running turn of the session, and the number of the journal row before its first one.
    pub running: Option<(RunId, u64)>,
    /// Cards not folded yet: the run is still shown as unfinished.
    pub open: Vec<(RunId, CardRecord)>,
}

fn card_from_row(row: &Row<'_>) -> Result<CardRecord, StoreError> {
    Ok(CardRecord {
        message_id: row.get("message_id")?,
        number: row.get("number")?,
        through: row.get("through_session_seq")?,
        posted_at_ms: row.get("posted_at")?,
    })
}

/// Reads the status cards of a conversation that are due now.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn read_cards(
    db: &Db,
    binding_id: BindingId,
    key: &SessionKey,
    now_ms: u64,
) -> Result<StatusCards, StoreError> {
    const RUNNING: &str = "SELECT run_id FROM acp_runs WHERE session_key = ?1 AND state = 'running' \
        AND mode = 'prompt'";
    // Cards of finished runs only if their retry is due: see [`due_folds`].
    const OPEN: &str = "SELECT run_id, message_id, number, through_session_seq, posted_at FROM acp_delivery_card \
        WHERE binding_key = ?1 AND folded = 0 AND (tries = 0 OR run_id = ?2 \
        OR updated_at + min(?3, CAST(?4 AS BIGINT) << CAST(min(tries, 16) AS INTEGER)) <= ?5) ORDER BY through_session_seq, run_id";
    let running = db.first(RUNNING, params![key], |row| row.get("run_id"))?;
    let running = match running {
        Some(run_id) => Some((run_id, before(db, run_id)?)),
        None => None,
    };
    let run_id = running.map(|(run_id, _)| run_id);
    let keys = params![binding_id, run_id, PAUSE_MS_MAX, PAUSE_MS, now_ms];
    let open = db.all(OPEN, keys, |row| Ok((row.get("run_id")?, card_from_row(row)?)))?;
    Ok(StatusCards { running, open })
}

/// Number of the journal row before the first one of a run.
///
/// # Errors
/// SQLite errors.
pub fn before(db: &Db, run_id: RunId) -> Result<u64, StoreError> {
    const FIRST: &str = "SELECT session_seq FROM acp_events WHERE run_id = ?1 ORDER BY seq LIMIT 1";
    let found: Option<u64> = db.first(FIRST, params![run_id], |row| row.get("session_seq"))?;
    Ok(found.map_or(0, |seq| seq.saturating_sub(1)))
}

/// New rows of a session's journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewJournalRows {
    /// Rows of the requested run, in order.
    pub rows: Vec<EventRow>,
    /// Number of the last row read.
    pub through: u64,
    /// Number of the last row with a possible separate message; 0 without one.
    pub shown: u64,
    /// True if more rows may follow.
    pub is_more: bool,
}

/// Reads the rows of a session's journal after a number.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn read_journal_after(
    db: &Db,
    key: &SessionKey,
    run_id: RunId,
    after: u64,
) -> Result<NewJournalRows, StoreError> {
    let mut rows = events::after(db, key, events::position(after), ROWS_MAX, BYTES_MAX)?.rows;
    let shown = rows.iter().filter(|row| is_rendered(row)).map(|row| row.session_seq).max();
    let through = rows.last().map_or(after, |row| row.session_seq);
    let bytes: usize = rows.iter().map(|row| row.payload.len()).sum();
    let is_more = rows.len() as u64 >= ROWS_MAX || bytes >= BYTES_MAX;
    rows.retain(|row| row.run_id == Some(run_id));
    Ok(NewJournalRows { rows, through, shown: shown.unwrap_or(0), is_more })
}

/// Stores the message and position of a card that shows an unfinished run.
///
/// # Errors
/// SQLite errors.
pub fn store_card(
    tx: &Tx<'_>,
    binding_id: BindingId,
    run_id: RunId,
    known: &CardRecord,
) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO acp_delivery_card (binding_key, run_id, message_id, number, through_session_seq, \
        folded, updated_at, posted_at) VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, ?7) ON CONFLICT (binding_key, run_id) DO UPDATE SET \
        message_id = excluded.message_id, number = excluded.number, \
        through_session_seq = excluded.through_session_seq, folded = excluded.folded, \
        updated_at = excluded.updated_at, posted_at = excluded.posted_at";
    tx.run(
        SQL,
        params![
            binding_id,
            run_id,
            known.message_id,
            known.number,
            known.through,
            tx.now_ms(),
            known.posted_at_ms
        ],
    )
    .map(drop)
}

/// Outcome of an attempt to fold a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoldOutcome {
    /// Folded: the end of the run is shown.
    Yes,
    /// The message is absent. It may have been sent and appear later.
    Absent,
    /// Unknown.
    No,
}

/// Records an attempt to fold a card. An uncertain outcome is retried up to a maximum number of attempts.
///
/// # Errors
/// SQLite errors.
pub fn record_fold(
    tx: &Tx<'_>,
    binding_id: BindingId,
    run_id: RunId,
    known: &CardRecord,
    folded: FoldOutcome,
) -> Result<(), StoreError> {
    const SQL: &str = "UPDATE acp_delivery_card SET message_id = ?3, tries = tries + 1, updated_at = ?4, \
        folded = CASE WHEN tries + 1 >= ?5 THEN 1 ELSE 0 END WHERE binding_key = ?1 AND run_id = ?2";
    let tries = match folded {
        FoldOutcome::Yes => 0,
        FoldOutcome::Absent => ABSENT_MAX,
        FoldOutcome::No => TRIES_MAX,
    };
    tx.run(SQL, params![binding_id, run_id, known.message_id, tx.now_ms(), tries]).map(drop)
}

/// Bindings with unfolded cards of finished runs whose retry is due. The pauses between retries grow.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn due_folds(db: &Db, now_ms: u64) -> Result<Vec<BindingId>, StoreError> {
    const SQL: &str = "SELECT DISTINCT c.binding_key AS binding_key FROM acp_delivery_card AS c \
        JOIN acp_runs AS r ON r.run_id = c.run_id JOIN acp_bindings AS b ON b.binding_key = c.binding_key \
        WHERE c.folded = 0 AND r.state <> 'running' AND b.status <> 'parked' \
        AND c.updated_at + min(?1, CAST(?2 AS BIGINT) << CAST(min(c.tries, 16) AS INTEGER)) <= ?3 LIMIT ?4";
    db.all(SQL, params![PAUSE_MS_MAX, PAUSE_MS, now_ms, BINDINGS_MAX], |row| row.get("binding_key"))
}
