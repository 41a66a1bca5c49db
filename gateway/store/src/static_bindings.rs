//! State of a conversation for the decision on its static binding.

use crate::db::{Db, Row, params};
use crate::error::StoreError;
use crate::{bindings, runs};
use acp_core::binding::BoundSession;
use acp_core::config::Binding;
use acp_core::rows::{BindingRow, ConversationRef};
use acp_core::static_binding::{
    ConversationState, RetiredSession, StaticSession, StaticSessionSpec, find_entry, first_key, next_key,
};
use acp_shared::ids::SessionKey;

/// Bindings and sessions of one conversation, as stored.
#[derive(Debug)]
pub struct ConversationSnapshot {
    binding: Option<(BindingRow, BoundSession)>,
    busy: bool,
    under: Option<StaticSession>,
    /// Key of the next session that the entry would create; `None` if no entry matches the conversation.
    pub next: Option<SessionKey>,
}

impl ConversationSnapshot {
    /// View of this state for the decision in `core/configured.rs`.
    pub fn seen(&self) -> ConversationState<'_> {
        let binding = self.binding.as_ref().map(|(row, target)| (row, *target));
        ConversationState { binding, busy: self.busy, under: self.under.as_ref() }
    }

    /// The binding to be replaced; `None` if its session is `closed`, which ends the binding and notifies its
    /// conversation.
    pub fn before(&self, closed: Option<&RetiredSession>) -> Option<&BindingRow> {
        let (row, _) = self.binding.as_ref()?;
        Some(row).filter(|row| closed.is_none_or(|closed| closed.session_key != row.session_key))
    }
}

/// Reads the state of a conversation.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn read_conversation(
    db: &Db,
    table: &[Binding],
    at: &ConversationRef,
) -> Result<ConversationSnapshot, StoreError> {
    let mut look = ConversationSnapshot { binding: None, busy: false, under: None, next: None };
    if let Some(row) = bindings::of_conversation(db, at)? {
        let target = bindings::target(db, &row.session_key)?;
        look.busy = runs::has_unfinished(db, &row.session_key)?;
        look.binding = Some((row, target));
    }
    let Some(entry) = find_entry(table, at).map(|found| found.entry) else { return Ok(look) };
    let Some(agent) = &entry.agent else { return Ok(look) };
    let first = first_key(agent, &at.channel, &at.account_id, &entry.conversation);
    let first =
        first.map_err(|_| StoreError::Refused("no session key can be derived from the conversation"))?;
    let (newest, before) = newest_under_key(db, &first)?;
    look.under = newest;
    let next = next_key(&first, before);
    look.next =
        Some(next.map_err(|_| StoreError::Refused("no session key can be derived from the conversation"))?);
    Ok(look)
}

/// The newest session with this key or a numbered successor of it, and the number of such sessions.
fn newest_under_key(db: &Db, key: &SessionKey) -> Result<(Option<StaticSession>, u64), StoreError> {
    // ';' is the character after ':'.
    const UNDER: &str = "session_key = ?1 OR (session_key > ?1 || ':' AND session_key < ?1 || ';')";
    const MADE: &str = "SELECT metadata_json FROM acp_bindings WHERE session_key = ?1 ORDER BY ord";
    let count = format!("SELECT count(*) AS count FROM acp_sessions WHERE {UNDER}");
    let before = db.first(&count, params![key], |row| row.get("count"))?.unwrap_or(0);
    let newest =
        format!("SELECT session_key, state FROM acp_sessions WHERE {UNDER} ORDER BY ord DESC LIMIT 1");
    let read = |row: &Row<'_>| Ok((row.get::<SessionKey>("session_key")?, row.get("state")?));
    let Some((session_key, state)) = db.first(&newest, params![key], read)? else {
        return Ok((None, before));
    };
    let metadata = db.all(MADE, params![session_key], |row| row.get::<String>("metadata_json"))?;
    let made = metadata.iter().rev().find_map(|metadata| StaticSessionSpec::from_metadata(metadata));
    let busy = runs::has_unfinished(db, &session_key)?;
    Ok((Some(StaticSession { session_key, state, made, busy }), before))
}
