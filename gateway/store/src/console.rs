//! `console_message`: messages of the built-in console channel.

use crate::Tx;
use crate::db::{Db, Row, params};
use crate::error::StoreError;
use acp_shared::ids::{RunId, SessionKey};
use serde::{Deserialize, Serialize};

const INSERT: &str = "INSERT INTO console_message (conversation_id, author, text, nonce, kind, created_at, session_key, \
    run_id, revision) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, \
    (SELECT coalesce(max(revision), 0) + 1 FROM console_message)) ON CONFLICT (nonce) DO NOTHING";
const EDIT: &str = "UPDATE console_message SET text = ?3, \
    revision = (SELECT max(revision) + 1 FROM console_message) WHERE conversation_id = ?1 AND id = ?2";

/// A message to insert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewConsoleMessage {
    /// Conversation id.
    pub conversation_id: String,
    /// Author; empty for the gateway.
    pub author: String,
    /// Text of the message.
    pub text: String,
    /// Permanent unique name of the message, for idempotent inserts.
    pub nonce: String,
    /// `person` or the name of a part's kind.
    pub kind: &'static str,
    /// Session that the message belongs to.
    pub session_key: Option<SessionKey>,
    /// Run that the message belongs to.
    pub run_id: Option<RunId>,
}

/// Row of `console_message`, as clients see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsoleMessage {
    /// Message number, in the order of arrival. A client shows one message per number: the latest revision.
    pub id: u64,
    /// Number of the last change, increasing over all messages. Clients use it as their cursor.
    pub revision: u64,
    /// Conversation id.
    pub conversation_id: String,
    /// Author; empty for the gateway.
    pub author: String,
    /// Text of the message.
    pub text: String,
    /// `person`, `final`, `notice`, `permission`, `error` or `card`.
    pub kind: String,
    /// Creation time, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Session that the message belongs to.
    pub session_key: Option<SessionKey>,
    /// Run that the message belongs to.
    pub run_id: Option<RunId>,
}

fn from_row(row: &Row<'_>) -> Result<ConsoleMessage, StoreError> {
    Ok(ConsoleMessage {
        id: row.get("id")?,
        revision: row.get("revision")?,
        conversation_id: row.get("conversation_id")?,
        author: row.get("author")?,
        text: row.get("text")?,
        kind: row.get("kind")?,
        created_at_ms: row.get("created_at")?,
        session_key: row.get("session_key")?,
        run_id: row.get("run_id")?,
    })
}

/// Inserts a message and returns its number. If the nonce exists already, returns the existing message's
/// number.
///
/// # Errors
/// SQLite errors.
pub fn insert(tx: &Tx<'_>, new: &NewConsoleMessage) -> Result<u64, StoreError> {
    tx.run(
        INSERT,
        params![
            new.conversation_id,
            new.author,
            new.text,
            new.nonce,
            new.kind,
            tx.now_ms(),
            new.session_key,
            new.run_id
        ],
    )?;
    id_of(tx, &new.nonce)?.ok_or(StoreError::Refused("an inserted console message has no row"))
}

/// Number of the message with this nonce.
///
/// # Errors
/// SQLite errors.
pub fn id_of(db: &Db, nonce: &str) -> Result<Option<u64>, StoreError> {
    db.first("SELECT id FROM console_message WHERE nonce = ?1", params![nonce], |row| row.get("id"))
}

/// Replaces the text of a message. Returns false if the message does not exist.
///
/// # Errors
/// SQLite errors.
pub fn edit(db: &Db, conversation_id: &str, id: u64, text: &str) -> Result<bool, StoreError> {
    Ok(db.run(EDIT, params![conversation_id, id, text])? == 1)
}

/// Messages of a conversation inserted or changed after a revision, in that order, at most `rows_max`.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn after(
    db: &Db,
    conversation_id: &str,
    after: u64,
    rows_max: u64,
) -> Result<Vec<ConsoleMessage>, StoreError> {
    const SQL: &str = "SELECT id, conversation_id, author, text, kind, created_at, session_key, run_id, revision \
        FROM console_message WHERE conversation_id = ?1 AND revision > ?2 ORDER BY revision LIMIT ?3";
    db.all(SQL, params![conversation_id, after, rows_max], from_row)
}
