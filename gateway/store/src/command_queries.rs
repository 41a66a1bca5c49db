//! Queries behind commands: sessions matching a name, owners, timeouts of bindings, and at-most-once
//! execution under an idempotency key.

use crate::bindings::{self, COLUMNS};
use crate::codec::to_json;
use crate::db::{Db, params};
use crate::error::StoreError;
use crate::{Tx, idempotency, sessions};
use acp_core::binding::{BindingTimeout, with_timeout};
use acp_core::command::session_ref::SessionCandidate;
use acp_core::rows::{BindingRow, ConversationRef};
use acp_shared::ids::{IdempotencyKey, SessionKey};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum number of candidates returned for one name.
const CANDIDATES_MAX: u64 = 64;
/// Number of journal rows, from the end, that are searched for the agent's options.
const OPTIONS_ROWS_MAX: u64 = 2_000;

/// Sessions that match a name, exact matches first. A closed session matches by its complete key only.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn candidates(db: &Db, name: &str) -> Result<Vec<SessionCandidate>, StoreError> {
    const SQL: &str = "SELECT session_key, agent_session_id, label FROM acp_sessions \
        WHERE lower(session_key) = ?3 OR (state <> 'closed' AND (label = ?1 OR agent_session_id = ?1 \
        OR instr(lower(session_key), ':' || ?3) > 0)) \
        ORDER BY (lower(session_key) = ?3) DESC, (lower(session_key) LIKE '%:' || ?3) DESC, \
        (agent_session_id IS NOT DISTINCT FROM ?1) DESC, (label IS NOT DISTINCT FROM ?1) DESC LIMIT ?2";
    db.all(SQL, params![name, CANDIDATES_MAX, name.to_ascii_lowercase()], |row| {
        Ok(SessionCandidate {
            session_key: row.get("session_key")?,
            agent_session_id: row.get("agent_session_id")?,
            label: row.get("label")?,
        })
    })
}

/// Owners of a session: its requester, the user of its first binding and the users of its current bindings.
///
/// # Errors
/// SQLite errors.
pub fn owners(db: &Db, key: &SessionKey) -> Result<Vec<String>, StoreError> {
    const SQL: &str = "SELECT bound_by FROM acp_bindings WHERE session_key = ?1 AND (status <> 'ended' \
        OR ord = (SELECT min(ord) FROM acp_bindings WHERE session_key = ?1)) \
        UNION SELECT asked_by FROM acp_sessions WHERE session_key = ?1 AND asked_by <> ''";
    db.all(SQL, params![key], |row| row.get("bound_by"))
}

/// Ended prompt of a session, for a usage report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedTurn {
    /// Session of the turn.
    pub session_key: SessionKey,
    /// Label of the session.
    pub label: Option<String>,
    /// Name of the person who sent the prompt.
    pub author: String,
    /// End of the turn, in milliseconds since the Unix epoch.
    pub ended_at_ms: u64,
    /// `usage` of the result as received, JSON text.
    pub usage: Option<String>,
}

/// Prompts that ended since a time, newest first, at most `limit`.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn ended_turns(db: &Db, since_ms: u64, limit: u32) -> Result<Vec<EndedTurn>, StoreError> {
    const SQL: &str = "SELECT r.session_key, s.label, r.author, r.ended_at, r.usage_json FROM acp_runs AS r \
        JOIN acp_sessions AS s ON s.session_key = r.session_key \
        WHERE r.mode = 'prompt' AND r.started_at IS NOT NULL AND r.ended_at >= ?1 ORDER BY r.ended_at DESC LIMIT ?2";
    db.all(SQL, params![since_ms, limit], |row| {
        Ok(EndedTurn {
            session_key: row.get("session_key")?,
            label: row.get("label")?,
            author: row.get("author")?,
            ended_at_ms: row.get("ended_at")?,
            usage: row.get("usage_json")?,
        })
    })
}

/// Bindings of a session that have not ended, in the same account as `at`; the binding of `at` itself first.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn bindings_in_account(
    db: &Db,
    key: &SessionKey,
    at: &ConversationRef,
) -> Result<Vec<BindingRow>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM acp_bindings WHERE session_key = ?1 AND status <> 'ended' AND channel = ?2 \
         AND account_id = ?3 ORDER BY thread_id = ?4 DESC, ord"
    );
    let keys = params![key, at.channel, at.account_id, at.conversation_id];
    db.all(&sql, keys, bindings::from_row)
}

/// Sets the idle or maximum-age timeout of a session's bindings in one account (`None`: no timeout) and
/// restarts it now (D4). Returns the changed bindings, that of the conversation itself first.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn set_window(
    tx: &Tx<'_>,
    key: &SessionKey,
    at: &ConversationRef,
    window: BindingTimeout,
    ms: Option<u64>,
) -> Result<Vec<BindingRow>, StoreError> {
    let now = tx.now_ms();
    let mut changed = Vec::new();
    for row in bindings_in_account(tx, key, at)? {
        let row = with_timeout(row, window, ms, now);
        bindings::set_windows(tx, &row)?;
        changed.push(row);
    }
    Ok(changed)
}

/// Config options of a conversation's agent as last reported, as id and name, after the two that every agent
/// has. Searches only the end of the journal.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn options_at(db: &Db, at: &ConversationRef) -> Result<Vec<(String, String)>, StoreError> {
    const SQL: &str = "SELECT payload_json FROM acp_events WHERE session_key = ?1 AND session_seq > ?2 \
        AND kind = 'update' AND json_extract(payload_json, '$.sessionUpdate') = 'config_option_update' \
        ORDER BY session_seq DESC LIMIT 1";
    let mut out =
        vec![("model".to_owned(), "model".to_owned()), ("cwd".to_owned(), "working directory".to_owned())];
    let Some(binding) = bindings::of_conversation(db, at)? else { return Ok(out) };
    let after = sessions::marks(db, &binding.session_key)?.1.saturating_sub(OPTIONS_ROWS_MAX);
    let keys = params![binding.session_key, after];
    let said = db.first(SQL, keys, |row| row.json::<serde_json::Value>("payload_json"))?;
    for option in said.iter().filter_map(|said| said["configOptions"].as_array()).flatten() {
        if let Some(id) = option["id"].as_str().filter(|id| out.iter().all(|(known, _)| known != id)) {
            out.push((id.to_owned(), option["name"].as_str().unwrap_or(id).to_owned()));
        }
    }
    Ok(out)
}

/// Returns the stored result of a key, if any.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn before<T: DeserializeOwned>(
    db: &Db,
    scope: &str,
    key: &IdempotencyKey,
) -> Result<Option<T>, StoreError> {
    let Some((_, result)) = idempotency::get(db, scope, key)? else { return Ok(None) };
    let read = serde_json::from_str(&result);
    read.map(Some).map_err(|_| StoreError::Refused("the stored response of a command cannot be parsed"))
}

/// Runs `work` at most once per key, within the transaction. A repetition returns the stored result.
///
/// # Errors
/// Errors of `work`; [`StoreError::Unreadable`]; SQLite errors.
pub fn run_once<T: Serialize + DeserializeOwned>(
    tx: &Tx<'_>,
    scope: &str,
    key: &IdempotencyKey,
    work: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    if let Some(answer) = before(tx, scope, key)? {
        return Ok(answer);
    }
    let answer = work()?;
    idempotency::insert(tx, scope, key, "", &to_json(&answer)?, tx.now_ms())?;
    Ok(answer)
}
