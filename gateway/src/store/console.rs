//! `console_message`: the conversations of the built-in channel.

use crate::store::codec::{Int, all, first, id_opt, int, run};
use crate::store::error::StoreError;
use crate::store::now_ms;
use acp_shared::ids::{RunId, SessionKey};
use rusqlite::{Connection, Row, params};
use serde::{Deserialize, Serialize};

const INSERT: &str = "INSERT INTO console_message (conversation_id, author, text, nonce, kind, created_at, session_key, \
    run_id, revision) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, \
    (SELECT coalesce(max(revision), 0) + 1 FROM console_message)) ON CONFLICT (nonce) DO NOTHING";
const EDIT: &str = "UPDATE console_message SET text = ?3, \
    revision = (SELECT max(revision) + 1 FROM console_message) WHERE conversation_id = ?1 AND id = ?2";

/// A message that is to be inserted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewConsoleMessage {
    /// The conversation.
    pub(crate) conversation_id: String,
    /// Who says it; empty for the gateway.
    pub(crate) author: String,
    /// What is said.
    pub(crate) text: String,
    /// Names it for ever.
    pub(crate) nonce: String,
    /// `person` or the name of a part's kind.
    pub(crate) kind: &'static str,
    /// The session that it is about.
    pub(crate) session_key: Option<SessionKey>,
    /// The run that it belongs to.
    pub(crate) run_id: Option<RunId>,
}

/// A row of `console_message`, as clients see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConsoleMessage {
    /// Number, in the order in which messages came. Whoever shows the conversation keeps one message per number.
    pub(crate) id: u64,
    /// Number of the last change of any message, growing: the cursor of every viewer.
    pub(crate) revision: u64,
    /// The conversation.
    pub(crate) conversation_id: String,
    /// Who says it; empty for the gateway.
    pub(crate) author: String,
    /// What is said.
    pub(crate) text: String,
    /// `person`, `final`, `notice`, `permission`, `error` or `card`.
    pub(crate) kind: String,
    /// Milliseconds since the Unix epoch.
    pub(crate) created_at_ms: u64,
    /// The session that it is about.
    pub(crate) session_key: Option<SessionKey>,
    /// The run that it belongs to.
    pub(crate) run_id: Option<RunId>,
}

fn from_row(row: &Row<'_>) -> Result<ConsoleMessage, StoreError> {
    Ok(ConsoleMessage {
        id: int(row, "id")?,
        revision: int(row, "revision")?,
        conversation_id: row.get("conversation_id")?,
        author: row.get("author")?,
        text: row.get("text")?,
        kind: row.get("kind")?,
        created_at_ms: int(row, "created_at")?,
        session_key: id_opt(row, "session_key")?,
        run_id: id_opt(row, "run_id")?,
    })
}

/// Inserts a message and returns its number; the one that has this nonce already, if there is one.
///
/// # Errors
/// What SQLite says.
pub(crate) fn insert(db: &Connection, new: &NewConsoleMessage) -> Result<u64, StoreError> {
    run(
        db,
        INSERT,
        params![
            new.conversation_id,
            new.author,
            new.text,
            new.nonce,
            new.kind,
            Int(now_ms()),
            new.session_key.as_ref().map(SessionKey::as_str),
            new.run_id.map(|id| id.to_string())
        ],
    )?;
    id_of(db, &new.nonce)?.ok_or(StoreError::Refused("a console message without a row"))
}

/// The number of the message with this nonce.
///
/// # Errors
/// What SQLite says.
pub(crate) fn id_of(db: &Connection, nonce: &str) -> Result<Option<u64>, StoreError> {
    first(db, "SELECT id FROM console_message WHERE nonce = ?1", [nonce], |row| int(row, "id"))
}

/// Gives a message another text; whether it is there.
///
/// # Errors
/// What SQLite says.
pub(crate) fn edit(db: &Connection, conversation_id: &str, id: u64, text: &str) -> Result<bool, StoreError> {
    Ok(run(db, EDIT, params![conversation_id, Int(id), text])? == 1)
}

/// Messages of a conversation that came or changed after a revision, in that order, at most `rows_max`.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn after(
    db: &Connection,
    conversation_id: &str,
    after: u64,
    rows_max: u64,
) -> Result<Vec<ConsoleMessage>, StoreError> {
    const SQL: &str = "SELECT id, conversation_id, author, text, kind, created_at, session_key, run_id, revision \
        FROM console_message WHERE conversation_id = ?1 AND revision > ?2 ORDER BY revision LIMIT ?3";
    all(db, SQL, params![conversation_id, Int(after), Int(rows_max)], from_row)
}
