//! `acp_button_message`: messages with buttons or questions, kept until their subject is settled.

use crate::codec::to_json;
use crate::db::{Db, params};
use crate::error::StoreError;
use crate::permissions;
use acp_core::render::PartKind;
use acp_core::render::buttons::{ButtonSubject, SubjectState, text_after_resolution};
use acp_core::rows::ConversationRef;
use acp_shared::ids::{BindingId, SessionKey};
use std::ops::ControlFlow;

/// Maximum number of messages amended in one step.
const SETTLED_MAX: usize = 64;
/// Maximum number of bindings returned for one pass.
const BINDINGS_MAX: u32 = 1_000;

/// Message with buttons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ButtonMessage {
    /// The channel's message id.
    pub message_id: String,
    /// Kind of the message.
    pub kind: PartKind,
    /// Text of the message.
    pub text: String,
}

/// Stores a message with buttons.
///
/// # Errors
/// SQLite errors.
pub fn insert_message(
    db: &Db,
    at: &ConversationRef,
    session: &SessionKey,
    message: &ButtonMessage,
    about: &ButtonSubject,
) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO acp_button_message (channel, account_id, conversation_id, message_id, session_key, \
        about_json, kind, text) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO NOTHING";
    let ButtonMessage { message_id, kind, text } = message;
    let keys = (&at.channel, &at.account_id, &at.conversation_id);
    db.run(SQL, params![keys.0, keys.1, keys.2, message_id, session, to_json(about)?, kind, text])?;
    Ok(())
}

/// True if the conversation has a message about this subject that will be amended with its result.
///
/// # Errors
/// SQLite errors.
pub fn has_message_about(db: &Db, at: &ConversationRef, about: &ButtonSubject) -> Result<bool, StoreError> {
    const SQL: &str = "SELECT 1 FROM acp_button_message WHERE channel = ?1 AND account_id = ?2 \
        AND conversation_id = ?3 AND about_json = ?4";
    let keys = params![at.channel, at.account_id, at.conversation_id, to_json(about)?];
    Ok(db.first(SQL, keys, |_| Ok(()))?.is_some())
}

/// Messages of a conversation with a settled subject, each with its new text.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn settled_messages(
    db: &Db,
    at: &ConversationRef,
    session: &SessionKey,
    is_markdown: bool,
) -> Result<Vec<ButtonMessage>, StoreError> {
    const SQL: &str = "SELECT message_id, about_json, kind, text FROM acp_button_message WHERE session_key = ?1 \
        AND channel = ?2 AND account_id = ?3 AND conversation_id = ?4 ORDER BY message_id";
    let mut out = Vec::new();
    // Skips unsettled messages within the query: many of them must not hide a settled one.
    db.visit(SQL, params![session, at.channel, at.account_id, at.conversation_id], |row| {
        let kept = ButtonMessage {
            message_id: row.get("message_id")?,
            kind: row.get("kind")?,
            text: row.get("text")?,
        };
        let text = settled_text(db, row.json("about_json")?, &kept.text, is_markdown)?;
        out.extend(text.map(|text| ButtonMessage { text, ..kept }));
        Ok(if out.len() < SETTLED_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(out)
}

/// New text of a message once its subject is settled; `None` before.
fn settled_text(
    db: &Db,
    about: ButtonSubject,
    text: &str,
    is_markdown: bool,
) -> Result<Option<String>, StoreError> {
    const RUN: &str = "SELECT mode, state FROM acp_runs WHERE run_id = ?1";
    let permission;
    let now = match about {
        ButtonSubject::Permission(id) => {
            permission = permissions::get(db, &id)?;
            permission.as_ref().map(SubjectState::Permission)
        }
        ButtonSubject::Queued(run_id) => {
            db.first(RUN, params![run_id], |row| Ok(SubjectState::Run(row.get("mode")?, row.get("state")?)))?
        }
    };
    Ok(text_after_resolution(text, now.unwrap_or(SubjectState::Gone), is_markdown))
}

/// Bindings of conversations with messages: the latest binding of each conversation and session, unless it is
/// parked.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn bindings(db: &Db) -> Result<Vec<BindingId>, StoreError> {
    const SQL: &str = "SELECT DISTINCT b.binding_key AS binding_key FROM acp_button_message AS m \
         JOIN acp_bindings AS b ON b.binding_key = (SELECT l.binding_key FROM acp_bindings AS l \
         WHERE l.session_key = m.session_key AND l.channel = m.channel AND l.account_id = m.account_id \
         AND l.thread_id = m.conversation_id ORDER BY l.bound_at DESC, l.ord DESC LIMIT 1) \
         WHERE b.status IN ('active','ending','ended') LIMIT ?1";
    db.all(SQL, params![BINDINGS_MAX], |row| row.get("binding_key"))
}

/// Removes a message that was amended or given up.
///
/// # Errors
/// SQLite errors.
pub fn remove(db: &Db, at: &ConversationRef, message_id: &str) -> Result<(), StoreError> {
    const SQL: &str = "DELETE FROM acp_button_message WHERE channel = ?1 AND account_id = ?2 \
        AND conversation_id = ?3 AND message_id = ?4";
    db.run(SQL, params![at.channel, at.account_id, at.conversation_id, message_id])?;
    Ok(())
}
