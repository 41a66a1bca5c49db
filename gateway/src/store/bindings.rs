//! `acp_bindings`: which conversation belongs to which session.

use crate::core::binding::{AtStart, Stale, at_start};
use crate::core::route::Target;
use crate::core::rows::{BindingRow, BindingStatus, ConversationRef, Verbosity};
use crate::store::codec::{Int, Word, all, first, id, int, int_opt, run, word, word_opt};
use crate::store::error::StoreError;
use crate::store::{Tx, delivery, sessions, styles};
use acp_shared::ids::{BindingId, SessionKey};
use rusqlite::{Connection, Row, named_params, params};

/// The columns that [`from_row`] reads.
pub(crate) const COLUMNS: &str = "binding_key, channel, account_id, thread_id, channel_id, session_key, target_kind, \
    status, bound_by, bound_at, last_activity_at, idle_ms, max_age_ms, metadata_json, end_reason, verbosity";

const INSERT: &str = "INSERT INTO acp_bindings (binding_key, channel, account_id, thread_id, channel_id, \
    session_key, target_kind, status, bound_by, bound_at, last_activity_at, idle_ms, max_age_ms, metadata_json, \
    end_reason, verbosity, backfilled_through) VALUES (:binding_key, :channel, :account_id, :thread_id, \
    :channel_id, :session_key, :target_kind, :status, :bound_by, :bound_at, :last_activity_at, :idle_ms, :max_age_ms, :metadata_json, :end_reason, :verbosity, \
    json_extract(:metadata_json, '$.since'))";

/// Reads a row of [`COLUMNS`].
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn from_row(row: &Row<'_>) -> Result<BindingRow, StoreError> {
    Ok(BindingRow {
        binding_id: id(row, "binding_key")?,
        conversation: ConversationRef {
            channel: row.get("channel")?,
            account_id: row.get("account_id")?,
            conversation_id: row.get("thread_id")?,
            parent_conversation_id: row.get("channel_id")?,
        },
        session_key: id(row, "session_key")?,
        target_kind: word(row, "target_kind")?,
        status: word(row, "status")?,
        bound_by: row.get("bound_by")?,
        bound_at_ms: int(row, "bound_at")?,
        last_activity_at_ms: int(row, "last_activity_at")?,
        idle_ms: int_opt(row, "idle_ms")?,
        max_age_ms: int_opt(row, "max_age_ms")?,
        metadata: row.get("metadata_json")?,
        end_reason: row.get("end_reason")?,
        verbosity: word_opt(row, "verbosity")?,
    })
}

/// Inserts a binding. One that the configuration made was read up to the message that had it made.
///
/// # Errors
/// [`StoreError::ConversationBound`] when it is active and the conversation has an active one.
pub(crate) fn insert(tx: &Tx<'_>, row: &BindingRow) -> Result<(), StoreError> {
    tx.rebinds();
    let inserted = run(
        tx,
        INSERT,
        named_params! {
            ":binding_key": row.binding_id.to_string(),
            ":channel": row.conversation.channel,
            ":account_id": row.conversation.account_id,
            ":thread_id": row.conversation.conversation_id,
            ":channel_id": row.conversation.parent_conversation_id,
            ":session_key": row.session_key.as_str(),
            ":target_kind": row.target_kind.word(),
            ":status": row.status.word(),
            ":bound_by": row.bound_by,
            ":bound_at": Int(row.bound_at_ms),
            ":last_activity_at": Int(row.last_activity_at_ms),
            ":idle_ms": row.idle_ms.map(Int),
            ":max_age_ms": row.max_age_ms.map(Int),
            ":metadata_json": row.metadata,
            ":end_reason": row.end_reason,
            ":verbosity": row.verbosity.map(Word::word),
        },
    );
    match inserted {
        Err(error) if error.is_unique_violation() => Err(StoreError::ConversationBound),
        other => other.map(drop),
    }
}

/// One binding, whatever its state.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn get(db: &Connection, binding_id: BindingId) -> Result<Option<BindingRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM acp_bindings WHERE binding_key = ?1");
    first(db, &sql, [binding_id.to_string()], from_row)
}

/// A binding that has not ended, as a look at all of them finds it: each for itself, so that one that cannot be read
/// hides no other.
#[derive(Debug)]
pub(crate) struct Live {
    /// Its key, as it stands there.
    pub(crate) key: String,
    /// What it is, with what is known of its session and how many of that one's runs have not ended.
    pub(crate) found: Result<(BindingRow, Target, u64), StoreError>,
}

/// Every binding that has not ended, the oldest first.
///
/// # Errors
/// What SQLite says.
pub(crate) fn live(db: &Connection) -> Result<Vec<Live>, StoreError> {
    let sql = format!(
        "SELECT {}, s.state AS state, (SELECT count(*) FROM acp_runs AS r WHERE r.session_key = b.session_key \
         AND r.state IN ('queued','running')) AS runs_due \
         FROM acp_bindings AS b LEFT JOIN acp_sessions AS s ON s.session_key = b.session_key \
         WHERE b.status <> 'ended' ORDER BY b.rowid",
        COLUMNS.split(", ").map(|column| format!("b.{column} AS {column}")).collect::<Vec<_>>().join(", ")
    );
    let read = |row: &Row<'_>| {
        let state = word_opt(row, "state")?;
        Ok((from_row(row)?, state.map_or(Target::Missing, Target::Known), int(row, "runs_due")?))
    };
    all(db, &sql, [], |row| Ok(Live { key: row.get("binding_key")?, found: read(row) }))
}

/// The bindings whose conversation is still to be made.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn pending(db: &Connection) -> Result<Vec<BindingId>, StoreError> {
    const SQL: &str = "SELECT binding_key FROM acp_bindings WHERE status = 'pending' ORDER BY rowid";
    all(db, SQL, [], |row| id(row, "binding_key"))
}

/// What is known of a session.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn target(db: &Connection, key: &SessionKey) -> Result<Target, StoreError> {
    const SQL: &str = "SELECT state FROM acp_sessions WHERE session_key = ?1";
    let state = first(db, SQL, [key.as_str()], |row| word(row, "state"))?;
    Ok(state.map_or(Target::Missing, Target::Known))
}

/// Ends a binding whose session is gone or closed and owes nothing more, as of this moment. Whether it did.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn end_stale(tx: &Tx<'_>, binding_id: BindingId) -> Result<Option<Stale>, StoreError> {
    const RUNS: &str =
        "SELECT count(*) AS runs FROM acp_runs WHERE session_key = ?1 AND state IN ('queued','running')";
    let Some(row) = get(tx, binding_id)?.filter(|row| row.status != BindingStatus::Ended) else {
        return Ok(None);
    };
    let runs = first(tx, RUNS, [row.session_key.as_str()], |row| int(row, "runs"))?;
    match at_start(row.status, Some(target(tx, &row.session_key)?), runs.unwrap_or(0)) {
        AtStart::End(stale) => {
            end(tx, binding_id, &format!("stale: {}", stale.as_str()))?;
            Ok(Some(stale))
        }
        AtStart::Keep | AtStart::Finish => Ok(None),
    }
}

/// The conversation of a pending binding is there: it is active from now on (H13).
///
/// # Errors
/// [`StoreError::UsedMeanwhile`] when it is not pending any more; [`StoreError::ConversationBound`]; what SQLite says.
pub(crate) fn activate(
    tx: &Tx<'_>,
    binding_id: BindingId,
    conversation_id: &str,
    now_ms: u64,
) -> Result<(), StoreError> {
    const SQL: &str = "UPDATE acp_bindings SET status = 'active', thread_id = ?2, last_activity_at = max(last_activity_at, ?3) \
        WHERE binding_key = ?1 AND status = 'pending'";
    tx.rebinds();
    let changed = run(tx, SQL, params![binding_id.to_string(), conversation_id, Int(now_ms)]);
    match changed {
        Err(error) if error.is_unique_violation() => Err(StoreError::ConversationBound),
        Err(error) => Err(error),
        Ok(0) => Err(StoreError::UsedMeanwhile),
        Ok(_) => Ok(()),
    }
}

/// Sets the windows of a binding, and when they began.
///
/// # Errors
/// What SQLite says.
pub(crate) fn set_windows(db: &Connection, row: &BindingRow) -> Result<(), StoreError> {
    const SQL: &str = "UPDATE acp_bindings SET idle_ms = ?2, max_age_ms = ?3, bound_at = ?4, last_activity_at = ?5 \
        WHERE binding_key = ?1 AND status <> 'ended'";
    let (idle, age) = (row.idle_ms.map(Int), row.max_age_ms.map(Int));
    let at =
        params![row.binding_id.to_string(), idle, age, Int(row.bound_at_ms), Int(row.last_activity_at_ms)];
    run(db, SQL, at)?;
    Ok(())
}

/// Sets how much the conversation of a binding is told beside answers; `None` is what the configuration says. It holds
/// for all that is journaled after this, whatever delivery is busy with.
///
/// # Errors
/// [`StoreError::NoSession`]; [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn set_verbosity(
    db: &Connection,
    binding: &BindingRow,
    verbosity: Option<Verbosity>,
) -> Result<(), StoreError> {
    const SQL: &str = "UPDATE acp_bindings SET verbosity = ?2 WHERE binding_key = ?1 AND status <> 'ended'";
    let BindingRow { binding_id, session_key, .. } = binding;
    run(db, SQL, params![binding_id.to_string(), verbosity.map(Word::word)])?;
    styles::choose(db, *binding_id, session_key, verbosity)
}

/// Ends the bindings that `filter` means, and remembers how far each conversation is still to be told: up to now, and no
/// further. A parked one is told nothing more: that would bring back what a person put away. What it was still to be told
/// is settled with it: what nobody tried to send never comes, what was on its way may have come. How many ended.
fn end_where(
    tx: &Tx<'_>,
    filter: &str,
    with: &[&dyn rusqlite::ToSql],
    reason: &str,
) -> Result<usize, StoreError> {
    let untold = format!(
        "UPDATE acp_delivery_part SET state = CASE state WHEN 'sending' THEN 'uncertain' ELSE 'rejected' END \
         WHERE state IN ('planned','sending') AND binding_key IN (SELECT binding_key FROM acp_bindings \
         WHERE status = 'parked' AND {filter})"
    );
    tx.rebinds();
    run(tx, &untold, with)?;
    let end = format!(
        "UPDATE acp_bindings SET status = 'ended', end_reason = ?{}, metadata_json = json_set(metadata_json, \
         '$.end_session_seq', CASE status WHEN 'parked' THEN coalesce((SELECT last_session_seq FROM \
         acp_binding_checkpoint AS c WHERE c.binding_key = acp_bindings.binding_key), 0) ELSE (SELECT last_session_seq \
         FROM acp_sessions AS s WHERE s.session_key = acp_bindings.session_key) END) WHERE status <> 'ended' AND {filter}",
        with.len() + 1
    );
    let with: Vec<&dyn rusqlite::ToSql> = with.iter().copied().chain([&reason as _]).collect();
    run(tx, &end, with.as_slice())
}

/// Ends every binding of a session that has not ended.
///
/// # Errors
/// What SQLite says.
pub(crate) fn end_all(tx: &Tx<'_>, key: &SessionKey, reason: &str) -> Result<(), StoreError> {
    end_where(tx, "session_key = ?1", &[&key.as_str()], reason)?;
    Ok(())
}

/// Bindings of a session that have not ended, the oldest first.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn of_session(db: &Connection, key: &SessionKey) -> Result<Vec<BindingRow>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM acp_bindings WHERE session_key = ?1 AND status <> 'ended' ORDER BY rowid"
    );
    all(db, &sql, [key.as_str()], from_row)
}

/// The binding of a conversation that has not ended: the active one, or else the newest.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn of_conversation(
    db: &Connection,
    at: &ConversationRef,
) -> Result<Option<BindingRow>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM acp_bindings WHERE channel = ?1 AND account_id = ?2 AND thread_id = ?3 \
         AND status <> 'ended' ORDER BY status IN ('active','parked') DESC, rowid DESC LIMIT 1"
    );
    first(db, &sql, params![at.channel, at.account_id, at.conversation_id], from_row)
}

/// Binds a conversation to a session that exists already: what its journal holds so far is not shown again.
///
/// # Errors
/// [`StoreError::ConversationBound`], [`StoreError::NoSession`]; what SQLite says.
pub(crate) fn bind(tx: &Tx<'_>, row: &BindingRow) -> Result<(), StoreError> {
    let (_, end) = sessions::marks(tx, &row.session_key)?;
    insert(tx, row)?;
    delivery::advance(tx, row.binding_id, end, None)
}

/// Somebody spoke through a binding.
///
/// # Errors
/// What SQLite says.
pub(crate) fn touch(db: &Connection, binding_id: BindingId, now_ms: u64) -> Result<(), StoreError> {
    const SQL: &str =
        "UPDATE acp_bindings SET last_activity_at = max(last_activity_at, ?2) WHERE binding_key = ?1";
    run(db, SQL, params![binding_id.to_string(), Int(now_ms)])?;
    Ok(())
}

/// Somebody spoke through a binding: one that is parked is active again.
///
/// # Errors
/// What SQLite says.
pub(crate) fn resume(db: &Connection, binding_id: BindingId, now_ms: u64) -> Result<(), StoreError> {
    const SQL: &str =
        "UPDATE acp_bindings SET status = 'active' WHERE binding_key = ?1 AND status = 'parked'";
    run(db, SQL, [binding_id.to_string()])?;
    touch(db, binding_id, now_ms)
}

/// The conversation of an active binding was put away by a person, or (`is_parked` false) taken out again. Whether
/// that changed anything.
///
/// # Errors
/// What SQLite says.
pub(crate) fn park(db: &Connection, at: &ConversationRef, is_parked: bool) -> Result<bool, StoreError> {
    const SQL: &str = "UPDATE acp_bindings SET status = ?5 WHERE channel = ?1 AND account_id = ?2 AND thread_id = ?3 \
        AND status = ?4";
    let (from, to) = if is_parked {
        (BindingStatus::Active, BindingStatus::Parked)
    } else {
        (BindingStatus::Parked, BindingStatus::Active)
    };
    let keys = params![at.channel, at.account_id, at.conversation_id, from.word(), to.word()];
    Ok(run(db, SQL, keys)? > 0)
}

/// A bound conversation, and how far it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The conversation.
    pub conversation: ConversationRef,
    /// When it was bound, milliseconds since the Unix epoch: nothing before that is missing.
    pub bound_at_ms: u64,
    /// Everything up to this id was brought in (H8); `None` before the first time.
    pub backfilled_through: Option<String>,
}

const PLACE: &str = "SELECT channel, account_id, thread_id, channel_id, bound_at, backfilled_through \
    FROM acp_bindings WHERE channel = ?1 AND account_id = ?2 AND status IN ('active','parked')";

fn place_of(row: &Row<'_>) -> Result<Place, StoreError> {
    Ok(Place {
        conversation: ConversationRef {
            channel: row.get("channel")?,
            account_id: row.get("account_id")?,
            conversation_id: row.get("thread_id")?,
            parent_conversation_id: row.get("channel_id")?,
        },
        bound_at_ms: int(row, "bound_at")?,
        backfilled_through: row.get("backfilled_through")?,
    })
}

/// The conversations of an account that are bound, the oldest first.
///
/// # Errors
/// What SQLite says.
pub(crate) fn places(db: &Connection, channel: &str, account_id: &str) -> Result<Vec<Place>, StoreError> {
    all(db, &format!("{PLACE} ORDER BY rowid"), params![channel, account_id], place_of)
}

/// One of them, if it is bound.
///
/// # Errors
/// What SQLite says.
pub(crate) fn place(db: &Connection, at: &ConversationRef) -> Result<Option<Place>, StoreError> {
    let sql = format!("{PLACE} AND thread_id = ?3");
    first(db, &sql, params![at.channel, at.account_id, at.conversation_id], place_of)
}

/// Everything of a conversation up to a message id was brought in (H8). Ids of one channel grow: the mark never goes
/// back. Whether it moved.
///
/// # Errors
/// What SQLite says.
pub(crate) fn caught_up(db: &Connection, at: &ConversationRef, through: &str) -> Result<bool, StoreError> {
    const SQL: &str = "UPDATE acp_bindings SET backfilled_through = ?4 WHERE channel = ?1 AND account_id = ?2 \
        AND thread_id = ?3 AND status <> 'ended' AND (backfilled_through IS NULL \
        OR length(backfilled_through) < length(?4) \
        OR (length(backfilled_through) = length(?4) AND backfilled_through < ?4))";
    Ok(run(db, SQL, params![at.channel, at.account_id, at.conversation_id, through])? > 0)
}

/// Ends a binding that ran out, with the rest of its session's transaction.
///
/// # Errors
/// [`StoreError::UsedMeanwhile`] when it is not as it was seen; what SQLite says.
pub(crate) fn expire(
    tx: &Tx<'_>,
    key: &SessionKey,
    (binding_id, last_activity_at_ms): (BindingId, u64),
    reason: &str,
) -> Result<(), StoreError> {
    let filter =
        "binding_key = ?1 AND session_key = ?2 AND last_activity_at = ?3 AND status IN ('active','parked')";
    let with: [&dyn rusqlite::ToSql; 3] = [&binding_id.to_string(), &key.as_str(), &Int(last_activity_at_ms)];
    let ended = end_where(tx, filter, &with, reason)?;
    if ended == 1 { Ok(()) } else { Err(StoreError::UsedMeanwhile) }
}

/// Somebody or the agent spoke in the session of these bindings.
///
/// # Errors
/// What SQLite says.
pub(crate) fn touch_all(db: &Connection, key: &SessionKey, at_ms: u64) -> Result<(), StoreError> {
    const SQL: &str = "UPDATE acp_bindings SET last_activity_at = max(last_activity_at, ?2) \
                       WHERE session_key = ?1 AND status IN ('active','parked')";
    run(db, SQL, params![key.as_str(), Int(at_ms)])?;
    Ok(())
}

/// Ends one binding.
///
/// # Errors
/// What SQLite says.
pub(crate) fn end(tx: &Tx<'_>, binding_id: BindingId, reason: &str) -> Result<(), StoreError> {
    end_where(tx, "binding_key = ?1", &[&binding_id.to_string()], reason)?;
    Ok(())
}
