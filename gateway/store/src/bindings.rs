//! `acp_bindings`: bindings of conversations to sessions.

use crate::codec::conversation;
use crate::db::{Db, Params, Row, ToValue, named_params, params};
use crate::error::StoreError;
use crate::render_settings;
use crate::{Tx, checkpoints, sessions};
use acp_core::binding::BoundSession;
use acp_core::binding::{StaleReason, StartupAction, placeholder_conversation, startup_action};
use acp_core::policy::BindingTimeouts;
use acp_core::rows::{BindingRow, BindingStatus, ConversationRef, TargetKind, Verbosity};
use acp_shared::ids::{BindingId, SessionKey};

/// Columns read by [`from_row`].
pub const COLUMNS: &str = "binding_key, channel, account_id, thread_id, channel_id, session_key, target_kind, \
    status, bound_by, bound_at, last_activity_at, idle_ms, max_age_ms, metadata_json, end_reason, verbosity";

const INSERT: &str = "INSERT INTO acp_bindings (binding_key, channel, account_id, thread_id, channel_id, \
    session_key, target_kind, status, bound_by, bound_at, last_activity_at, idle_ms, max_age_ms, metadata_json, \
    end_reason, verbosity, backfilled_through) VALUES (:binding_key, :channel, :account_id, :thread_id, \
    :channel_id, :session_key, :target_kind, :status, :bound_by, :bound_at, :last_activity_at, :idle_ms, :max_age_ms, :metadata_json, :end_reason, :verbosity, \
    json_extract(:metadata_json, '$.since'))";

/// Reads a row of [`COLUMNS`].
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn from_row(row: &Row<'_>) -> Result<BindingRow, StoreError> {
    Ok(BindingRow {
        binding_id: row.get("binding_key")?,
        conversation: conversation(row, "thread_id", "channel_id")?,
        session_key: row.get("session_key")?,
        target_kind: row.get("target_kind")?,
        status: row.get("status")?,
        bound_by: row.get("bound_by")?,
        bound_at_ms: row.get("bound_at")?,
        last_activity_at_ms: row.get("last_activity_at")?,
        idle_ms: row.get("idle_ms")?,
        max_age_ms: row.get("max_age_ms")?,
        metadata: row.get("metadata_json")?,
        end_reason: row.get("end_reason")?,
        verbosity: row.get("verbosity")?,
    })
}

/// Inserts a binding. The backfill mark of a static binding starts at the message that triggered the binding.
///
/// # Errors
/// [`StoreError::ConversationBound`] if the row is active and the conversation has an active binding.
pub fn insert(tx: &Tx<'_>, row: &BindingRow) -> Result<(), StoreError> {
    tx.rebinds();
    tx.rebound(row.session_key.clone());
    let inserted = tx.run_named(
        INSERT,
        named_params! {
            ":binding_key": row.binding_id,
            ":channel": row.conversation.channel,
            ":account_id": row.conversation.account_id,
            ":thread_id": row.conversation.conversation_id,
            ":channel_id": row.conversation.parent_conversation_id,
            ":session_key": row.session_key,
            ":target_kind": row.target_kind,
            ":status": row.status,
            ":bound_by": row.bound_by,
            ":bound_at": row.bound_at_ms,
            ":last_activity_at": row.last_activity_at_ms,
            ":idle_ms": row.idle_ms,
            ":max_age_ms": row.max_age_ms,
            ":metadata_json": row.metadata,
            ":end_reason": row.end_reason,
            ":verbosity": row.verbosity,
        },
    );
    match inserted {
        Err(error) if error.is_unique_violation() => Err(StoreError::ConversationBound),
        other => other.map(drop),
    }
}

/// Returns one binding, in any state.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn get(db: &Db, binding_id: BindingId) -> Result<Option<BindingRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM acp_bindings WHERE binding_key = ?1");
    db.first(&sql, params![binding_id], from_row)
}

/// A binding that has not ended, as listed by [`unsettled`]. Each row is parsed separately, so that an unreadable
/// one does not hide the others.
#[derive(Debug)]
pub struct OpenBinding {
    /// Key column as stored.
    pub key: String,
    /// The binding, the state of its session and the number of the session's unfinished runs.
    pub found: Result<(BindingRow, BoundSession, u64), StoreError>,
}

/// Number of bindings that have not ended.
///
/// # Errors
/// SQLite errors.
pub fn count_open(db: &Db) -> Result<u64, StoreError> {
    const SQL: &str = "SELECT count(*) AS bindings FROM acp_bindings WHERE status <> 'ended'";
    Ok(db.first(SQL, &[], |row| row.only())?.unwrap_or(0))
}

/// Bindings that a start may end or finish, oldest first: they have not ended, and their session is closed or missing, or
/// their conversation still has to be created.
///
/// # Errors
/// SQLite errors.
pub fn unsettled(db: &Db) -> Result<Vec<OpenBinding>, StoreError> {
    let sql = format!(
        "SELECT {}, s.state AS state, (SELECT count(*) FROM acp_runs AS r WHERE r.session_key = b.session_key \
         AND r.state IN ('queued','running')) AS runs_due \
         FROM acp_bindings AS b LEFT JOIN acp_sessions AS s ON s.session_key = b.session_key \
         WHERE b.status <> 'ended' AND (b.status = 'pending' OR s.state IS NULL OR s.state = 'closed') ORDER BY b.ord",
        COLUMNS.split(", ").map(|column| format!("b.{column} AS {column}")).collect::<Vec<_>>().join(", ")
    );
    let read = |row: &Row<'_>| {
        let target = row.get::<Option<_>>("state")?.map_or(BoundSession::Missing, BoundSession::Known);
        Ok((from_row(row)?, target, row.get("runs_due")?))
    };
    db.all(&sql, &[], |row| Ok(OpenBinding { key: row.get("binding_key")?, found: read(row) }))
}

/// Query of [`pending`]. The first condition is that of the index.
pub(crate) fn pending_sql() -> String {
    format!(
        "SELECT {COLUMNS} FROM acp_bindings \
         WHERE status IN ('pending','active','ending') AND status = 'pending' ORDER BY ord"
    )
}

/// Bindings whose conversation still has to be created.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn pending(db: &Db) -> Result<Vec<BindingRow>, StoreError> {
    db.all(&pending_sql(), &[], from_row)
}

/// State of a session as the target of a binding.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn target(db: &Db, key: &SessionKey) -> Result<BoundSession, StoreError> {
    const SQL: &str = "SELECT state FROM acp_sessions WHERE session_key = ?1";
    let state = db.first(SQL, params![key], |row| row.get("state"))?;
    Ok(state.map_or(BoundSession::Missing, BoundSession::Known))
}

/// Ends a binding if its session is missing or closed and has no unfinished runs at this moment. Returns the
/// reason if it did.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn end_stale(tx: &Tx<'_>, binding_id: BindingId) -> Result<Option<StaleReason>, StoreError> {
    const RUNS: &str =
        "SELECT count(*) AS runs FROM acp_runs WHERE session_key = ?1 AND state IN ('queued','running')";
    let Some(row) = get(tx, binding_id)?.filter(|row| row.status != BindingStatus::Ended) else {
        return Ok(None);
    };
    let runs = tx.first(RUNS, params![row.session_key], |row| row.get("runs"))?;
    match startup_action(row.status, Some(target(tx, &row.session_key)?), runs.unwrap_or(0)) {
        StartupAction::End(stale) => {
            end(tx, binding_id, &format!("stale: {}", stale.as_str()))?;
            Ok(Some(stale))
        }
        StartupAction::Keep | StartupAction::Finish => Ok(None),
    }
}

/// Activates a pending binding once its conversation exists (H13).
///
/// # Errors
/// [`StoreError::UsedMeanwhile`] if the binding is not pending; [`StoreError::ConversationBound`]; SQLite
/// errors.
pub fn activate(
    tx: &Tx<'_>,
    binding_id: BindingId,
    conversation_id: &str,
    now_ms: u64,
) -> Result<(), StoreError> {
    const SQL: &str = "UPDATE acp_bindings SET status = 'active', thread_id = ?2, last_activity_at = max(last_activity_at, ?3) \
        WHERE binding_key = ?1 AND status = 'pending' RETURNING session_key";
    let with = params![binding_id, conversation_id, now_ms];
    tx.rebinds();
    match mark_rebound(tx, SQL, with) {
        Err(error) if error.is_unique_violation() => Err(StoreError::ConversationBound),
        Err(error) => Err(error),
        Ok(0) => Err(StoreError::UsedMeanwhile),
        Ok(_) => Ok(()),
    }
}

/// Sets the idle and maximum-age timeouts of a binding and the times they count from.
///
/// # Errors
/// SQLite errors.
pub fn set_windows(db: &Db, row: &BindingRow) -> Result<(), StoreError> {
    const SQL: &str = "UPDATE acp_bindings SET idle_ms = ?2, max_age_ms = ?3, bound_at = ?4, last_activity_at = ?5 \
        WHERE binding_key = ?1 AND status <> 'ended'";
    let (bound, active) = (row.bound_at_ms, row.last_activity_at_ms);
    db.run(SQL, params![row.binding_id, row.idle_ms, row.max_age_ms, bound, active]).map(drop)
}

/// Sets the verbosity of a binding's conversation; `None` takes the configured one. Applies to all rows
/// journaled after this, regardless of the progress of delivery.
///
/// # Errors
/// [`StoreError::NoSession`]; [`StoreError::Unreadable`]; SQLite errors.
pub fn set_verbosity(
    tx: &Tx<'_>,
    binding: &BindingRow,
    verbosity: Option<Verbosity>,
) -> Result<(), StoreError> {
    const SQL: &str = "UPDATE acp_bindings SET verbosity = ?2 WHERE binding_key = ?1 AND status <> 'ended'";
    let BindingRow { binding_id, session_key, .. } = binding;
    tx.run(SQL, params![binding_id, verbosity])?;
    tx.rebound(session_key.clone());
    render_settings::choose(tx, *binding_id, session_key, verbosity)
}

/// Ends the bindings selected by `filter` and records the last journal number to deliver to each: the current
/// end of the journal, or for a parked binding its checkpoint. A message would unarchive the conversation of
/// a parked binding, so its unsent parts become rejected and parts being sent become uncertain. Returns the
/// number of ended bindings.
fn end_where(tx: &Tx<'_>, filter: &str, with: Params<'_>, reason: &str) -> Result<usize, StoreError> {
    let untold = format!(
        "UPDATE acp_delivery_part SET state = CASE state WHEN 'sending' THEN 'uncertain' ELSE 'rejected' END \
         WHERE state IN ('planned','sending') AND binding_key IN (SELECT binding_key FROM acp_bindings \
         WHERE status = 'parked' AND {filter})"
    );
    tx.rebinds();
    tx.run(&untold, with)?;
    let end = format!(
        "UPDATE acp_bindings SET status = 'ended', end_reason = ?{}, metadata_json = json_set(metadata_json, \
         '$.end_session_seq', CASE status WHEN 'parked' THEN coalesce((SELECT last_session_seq FROM \
         acp_binding_checkpoint AS c WHERE c.binding_key = acp_bindings.binding_key), 0) ELSE (SELECT last_session_seq \
         FROM acp_sessions AS s WHERE s.session_key = acp_bindings.session_key) END) WHERE status <> 'ended' AND {filter} \
         RETURNING session_key",
        with.len() + 1
    );
    let with: Vec<&dyn ToValue> = with.iter().copied().chain([&reason as _]).collect();
    mark_rebound(tx, &end, &with)
}

/// Changes bindings by a statement that returns their `session_key`, and marks those sessions. Returns the number
/// of changed bindings.
fn mark_rebound(tx: &Tx<'_>, sql: &str, with: Params<'_>) -> Result<usize, StoreError> {
    let changed = tx.all(sql, with, |row| row.get::<SessionKey>("session_key"))?;
    let count = changed.len();
    changed.into_iter().for_each(|key| tx.rebound(key));
    Ok(count)
}

/// Ends every binding of a session that has not ended.
///
/// # Errors
/// SQLite errors.
pub fn end_all(tx: &Tx<'_>, key: &SessionKey, reason: &str) -> Result<(), StoreError> {
    end_where(tx, "session_key = ?1", params![key], reason)?;
    Ok(())
}

/// Bindings of a session that have not ended, oldest first.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn of_session(db: &Db, key: &SessionKey) -> Result<Vec<BindingRow>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM acp_bindings WHERE session_key = ?1 AND status <> 'ended' ORDER BY ord"
    );
    db.all(&sql, params![key], from_row)
}

/// Binding of a conversation that has not ended: the active or parked one, otherwise the newest.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn of_conversation(db: &Db, at: &ConversationRef) -> Result<Option<BindingRow>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM acp_bindings WHERE channel = ?1 AND account_id = ?2 AND thread_id = ?3 \
         AND status <> 'ended' ORDER BY status IN ('active','parked') DESC, ord DESC LIMIT 1"
    );
    db.first(&sql, params![at.channel, at.account_id, at.conversation_id], from_row)
}

/// Binds a conversation to an existing session. Earlier journal rows of the session are not delivered to it.
///
/// # Errors
/// [`StoreError::ConversationBound`], [`StoreError::NoSession`]; SQLite errors.
pub fn bind(tx: &Tx<'_>, row: &BindingRow) -> Result<(), StoreError> {
    let (_, end) = sessions::marks(tx, &row.session_key)?;
    insert(tx, row)?;
    checkpoints::advance(tx, row.binding_id, end, None)
}

/// Sets the time of a binding's last activity after a message through it.
///
/// # Errors
/// SQLite errors.
pub fn touch(db: &Db, binding_id: BindingId, now_ms: u64) -> Result<(), StoreError> {
    const SQL: &str =
        "UPDATE acp_bindings SET last_activity_at = max(last_activity_at, ?2) WHERE binding_key = ?1";
    db.run(SQL, params![binding_id, now_ms]).map(drop)
}

/// Sets the time of a binding's last activity after a message through it, and activates it if it is parked.
///
/// # Errors
/// SQLite errors.
pub fn resume(tx: &Tx<'_>, binding_id: BindingId, now_ms: u64) -> Result<(), StoreError> {
    const SQL: &str = "UPDATE acp_bindings SET status = 'active' WHERE binding_key = ?1 AND status = 'parked' RETURNING session_key";
    mark_rebound(tx, SQL, params![binding_id])?;
    touch(tx, binding_id, now_ms)
}

/// Parks the active binding of a conversation that a person archived, or (`is_parked` false) activates a
/// parked one. Returns true if a binding changed.
///
/// # Errors
/// SQLite errors.
pub fn park(tx: &Tx<'_>, at: &ConversationRef, is_parked: bool) -> Result<bool, StoreError> {
    const SQL: &str = "UPDATE acp_bindings SET status = ?5 WHERE channel = ?1 AND account_id = ?2 AND thread_id = ?3 \
        AND status = ?4 RETURNING session_key";
    let (from, to) = if is_parked {
        (BindingStatus::Active, BindingStatus::Parked)
    } else {
        (BindingStatus::Parked, BindingStatus::Active)
    };
    let keys = params![at.channel, at.account_id, at.conversation_id, from, to];
    Ok(mark_rebound(tx, SQL, keys)? > 0)
}

/// A bound conversation and its backfill mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundConversation {
    /// The conversation.
    pub conversation: ConversationRef,
    /// Time of the binding, milliseconds since the Unix epoch. Earlier messages are not backfilled.
    pub bound_at_ms: u64,
    /// Message id up to which the conversation was backfilled (H8); `None` before the first backfill.
    pub backfilled_through: Option<String>,
}

const PLACE: &str = "SELECT channel, account_id, thread_id, channel_id, bound_at, backfilled_through \
    FROM acp_bindings WHERE channel = ?1 AND account_id = ?2 AND status IN ('active','parked')";

fn bound_conversation_from_row(row: &Row<'_>) -> Result<BoundConversation, StoreError> {
    Ok(BoundConversation {
        conversation: conversation(row, "thread_id", "channel_id")?,
        bound_at_ms: row.get("bound_at")?,
        backfilled_through: row.get("backfilled_through")?,
    })
}

/// Bound conversations of an account, oldest first.
///
/// # Errors
/// SQLite errors.
pub fn bound_conversations(
    db: &Db,
    channel: &str,
    account_id: &str,
) -> Result<Vec<BoundConversation>, StoreError> {
    db.all(&format!("{PLACE} ORDER BY ord"), params![channel, account_id], bound_conversation_from_row)
}

/// A bound conversation, if `at` is one.
///
/// # Errors
/// SQLite errors.
pub fn bound_conversation(db: &Db, at: &ConversationRef) -> Result<Option<BoundConversation>, StoreError> {
    let sql = format!("{PLACE} AND thread_id = ?3");
    db.first(&sql, params![at.channel, at.account_id, at.conversation_id], bound_conversation_from_row)
}

/// Moves the backfill mark of a conversation forward to a message id (H8). Ids within a channel increase, so
/// the mark never goes back. Returns true if it moved.
///
/// # Errors
/// SQLite errors.
pub fn advance_backfill_mark(db: &Db, at: &ConversationRef, through: &str) -> Result<bool, StoreError> {
    const SQL: &str = "UPDATE acp_bindings SET backfilled_through = ?4 WHERE channel = ?1 AND account_id = ?2 \
        AND thread_id = ?3 AND status <> 'ended' AND (backfilled_through IS NULL \
        OR length(backfilled_through) < length(?4) \
        OR (length(backfilled_through) = length(?4) AND backfilled_through < ?4))";
    Ok(db.run(SQL, params![at.channel, at.account_id, at.conversation_id, through])? > 0)
}

/// Ends an expired binding, within the transaction of its session.
///
/// # Errors
/// [`StoreError::UsedMeanwhile`] if the binding changed since it was read; SQLite errors.
pub fn expire(
    tx: &Tx<'_>,
    key: &SessionKey,
    binding_id: BindingId,
    last_activity_at_ms: u64,
    reason: &str,
) -> Result<(), StoreError> {
    let filter =
        "binding_key = ?1 AND session_key = ?2 AND last_activity_at = ?3 AND status IN ('active','parked')";
    let ended = end_where(tx, filter, params![binding_id, key, last_activity_at_ms], reason)?;
    if ended == 1 { Ok(()) } else { Err(StoreError::UsedMeanwhile) }
}

/// Sets the last activity of a session's active and parked bindings after a message of a person or the agent.
///
/// # Errors
/// SQLite errors.
pub fn touch_all(db: &Db, key: &SessionKey, at_ms: u64) -> Result<(), StoreError> {
    const SQL: &str = "UPDATE acp_bindings SET last_activity_at = max(last_activity_at, ?2) \
                       WHERE session_key = ?1 AND status IN ('active','parked')";
    db.run(SQL, params![key, at_ms]).map(drop)
}

/// Ends one binding.
///
/// # Errors
/// SQLite errors.
pub fn end(tx: &Tx<'_>, binding_id: BindingId, reason: &str) -> Result<(), StoreError> {
    end_where(tx, "binding_key = ?1", params![binding_id], reason)?;
    Ok(())
}

/// Builds a new binding of a conversation to a session.
pub fn new_row(
    conversation: ConversationRef,
    session: &SessionKey,
    by: &str,
    windows: BindingTimeouts,
    now_ms: u64,
) -> BindingRow {
    BindingRow {
        binding_id: BindingId::mint(),
        conversation,
        session_key: session.clone(),
        target_kind: TargetKind::Session,
        status: BindingStatus::Active,
        bound_by: by.to_owned(),
        bound_at_ms: now_ms,
        last_activity_at_ms: now_ms,
        idle_ms: windows.idle_ms,
        max_age_ms: windows.max_age_ms,
        metadata: "{}".to_owned(),
        verbosity: None,
        end_reason: None,
    }
}

/// Turns a binding into a pending one, for a conversation still to be created below its own (H13).
pub fn into_pending(binding: BindingRow) -> BindingRow {
    BindingRow {
        conversation: placeholder_conversation(&binding.conversation, binding.binding_id),
        status: BindingStatus::Pending,
        ..binding
    }
}
