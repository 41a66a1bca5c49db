//! `acp_button_message`: messages that have buttons, or ask something, until what they are about is over.

use crate::core::project::PartKind;
use crate::core::project::actions::{About, Fate, amended};
use crate::core::rows::ConversationRef;
use crate::store::codec::{Word as _, all, first, id, json, run, to_json, word};
use crate::store::error::StoreError;
use crate::store::permissions;
use acp_shared::ids::{BindingId, SessionKey};
use rusqlite::{Connection, params};

/// How often a message is changed at most, when nobody knows whether it was.
const TRIES_MAX: u32 = 100;
/// The most messages that are looked at in one go.
const ROWS_MAX: u32 = 64;
/// The most conversations that are looked after in one go.
const BINDINGS_MAX: u32 = 1_000;

/// A message with buttons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ButtonMessage {
    /// The channel's id of it.
    pub(crate) message_id: String,
    /// What it is.
    pub(crate) kind: PartKind,
    /// What it says.
    pub(crate) text: String,
}

/// Keeps that a message has buttons.
///
/// # Errors
/// What SQLite says.
pub(crate) fn keep(
    db: &Connection,
    at: &ConversationRef,
    session: &SessionKey,
    message: &ButtonMessage,
    about: &About,
) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO acp_button_message (channel, account_id, conversation_id, message_id, session_key, \
        about_json, kind, text) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO NOTHING";
    let ButtonMessage { message_id, kind, text } = message;
    let keys = (&at.channel, &at.account_id, &at.conversation_id);
    run(
        db,
        SQL,
        params![keys.0, keys.1, keys.2, message_id, session.as_str(), to_json(about)?, kind.word(), text],
    )?;
    Ok(())
}

/// Whether a conversation has a message about this that will say what becomes of it.
///
/// # Errors
/// What SQLite says.
pub(crate) fn is_kept(db: &Connection, at: &ConversationRef, about: &About) -> Result<bool, StoreError> {
    const SQL: &str = "SELECT 1 FROM acp_button_message WHERE channel = ?1 AND account_id = ?2 \
        AND conversation_id = ?3 AND about_json = ?4";
    let keys = params![at.channel, at.account_id, at.conversation_id, to_json(about)?];
    Ok(first(db, SQL, keys, |_| Ok(()))?.is_some())
}

/// The messages of a conversation whose buttons mean nothing any more, with what they are to say from now on. Those
/// that could not be changed before come last: they hold up no other.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn over(
    db: &Connection,
    at: &ConversationRef,
    session: &SessionKey,
) -> Result<Vec<ButtonMessage>, StoreError> {
    const SQL: &str = "SELECT message_id, about_json, kind, text FROM acp_button_message WHERE session_key = ?1 \
        AND channel = ?2 AND account_id = ?3 AND conversation_id = ?4 ORDER BY tries, message_id LIMIT ?5";
    let keys = params![session.as_str(), at.channel, at.account_id, at.conversation_id, ROWS_MAX];
    let found = all(db, SQL, keys, |row| {
        let message = ButtonMessage {
            message_id: row.get("message_id")?,
            kind: word(row, "kind")?,
            text: row.get("text")?,
        };
        Ok((message, json::<About>(row, "about_json")?))
    })?;
    let mut out = Vec::new();
    for (message, about) in found {
        let text = match about {
            About::Permission(id) => {
                let row = permissions::get(db, &id)?;
                amended(&message.text, row.as_ref().map_or(Fate::Gone, Fate::Permission))
            }
            About::Queued(run_id) => {
                const RUN: &str = "SELECT mode, state FROM acp_runs WHERE run_id = ?1";
                let now = first(db, RUN, [run_id.to_string()], |row| {
                    Ok((word(row, "mode")?, word(row, "state")?))
                })?;
                amended(&message.text, now.map_or(Fate::Gone, |(mode, state)| Fate::Run(mode, state)))
            }
        };
        out.extend(text.map(|text| ButtonMessage { text, ..message }));
    }
    Ok(out)
}

/// The bindings whose conversations have such messages: of several the latest, and none that is parked.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn bindings(db: &Connection) -> Result<Vec<BindingId>, StoreError> {
    const SQL: &str = "SELECT b.binding_key AS binding_key, max(b.bound_at) FROM acp_button_message AS m \
        JOIN acp_bindings AS b ON b.session_key = m.session_key AND b.channel = m.channel \
        AND b.account_id = m.account_id AND b.thread_id = m.conversation_id \
        GROUP BY m.session_key, m.channel, m.account_id, m.conversation_id \
        HAVING b.status IN ('active','ending','ended') LIMIT ?1";
    all(db, SQL, [BINDINGS_MAX], |row| id(row, "binding_key"))
}

/// A message has no buttons any more, or nobody knows: then it is tried again, a few times.
///
/// # Errors
/// What SQLite says.
pub(crate) fn tried(
    db: &Connection,
    at: &ConversationRef,
    message_id: &str,
    done: bool,
) -> Result<(), StoreError> {
    const KEY: &str = "channel = ?1 AND account_id = ?2 AND conversation_id = ?3 AND message_id = ?4";
    let keys = params![at.channel, at.account_id, at.conversation_id, message_id];
    run(db, &format!("UPDATE acp_button_message SET tries = tries + 1 WHERE {KEY}"), keys)?;
    let over = if done { "1".to_owned() } else { format!("tries >= {TRIES_MAX}") };
    run(db, &format!("DELETE FROM acp_button_message WHERE {KEY} AND {over}"), keys)?;
    Ok(())
}
