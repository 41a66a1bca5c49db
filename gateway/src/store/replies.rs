//! `acp_reply`: what the gateway said in answer to messages, beside what is delivered from the journal. When nobody
//! knows whether a message of a conversation was sent it is looked for by what it says, so all of ours that are there
//! are known, whoever sent them (H12). Forgotten with `acp_said` (`gateway/src/forget.rs`).

use crate::core::project::tag;
use crate::core::rows::ConversationRef;
use crate::store::codec::{Int, all, first, run};
use crate::store::error::StoreError;
use crate::store::now_ms;
use rusqlite::{Connection, params};

/// How long before a message others are known from, in milliseconds: a channel may look further back than the message,
/// by as much as clocks differ.
pub(crate) const OTHERS_BEFORE_MS: u64 = 10 * 60_000;

/// What tells a reply from the other messages of its conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Apart {
    /// The tag that is shown with it, where it needs one.
    pub(crate) tag: Option<String>,
    /// The channel's ids of what was sent there by anybody else of ours.
    pub(crate) others: Vec<String>,
}

/// A reply is about to be sent, for the first time or again. It gets a tag when something of the same text is on its way
/// there, of which nobody knows yet whether it arrived. Messages since `since_ms` are known as others.
///
/// # Errors
/// What SQLite says.
pub(crate) fn begin(
    db: &Connection,
    at: &ConversationRef,
    (nonce, text): (&str, &str),
    since_ms: u64,
) -> Result<Apart, StoreError> {
    const NEW: &str = "INSERT INTO acp_reply (nonce, channel, account_id, conversation_id, tag, print, said_at) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let kept = first(db, "SELECT tag FROM acp_reply WHERE nonce = ?1", [nonce], |row| Ok(row.get("tag")?))?;
    let tag = match kept {
        Some(tag) => tag,
        None => {
            let (tag, print) = tag::choose(text, nonce, |print| {
                Ok::<bool, StoreError>(is_under_way(db, at, print)? || is_unknown(db, at, print)?)
            })?;
            let keys =
                params![nonce, at.channel, at.account_id, at.conversation_id, tag, print, Int(now_ms())];
            run(db, NEW, keys)?;
            tag
        }
    };
    Ok(Apart { tag, others: others(db, at, since_ms)? })
}

/// Whether a part of the conversation that says what this stands for may be there or not.
fn is_under_way(db: &Connection, at: &ConversationRef, print: &str) -> Result<bool, StoreError> {
    const SQL: &str = "SELECT 1 FROM acp_delivery_part AS p JOIN acp_bindings AS b USING (binding_key) WHERE p.print = ?1 \
        AND p.state IN ('planned','sending','uncertain') AND b.channel = ?2 AND b.account_id = ?3 AND b.thread_id = ?4 \
        LIMIT 1";
    let keys = params![print, at.channel, at.account_id, at.conversation_id];
    Ok(first(db, SQL, keys, |_| Ok(()))?.is_some())
}

/// Whether a reply that says what this stands for may be in the conversation or not.
///
/// # Errors
/// What SQLite says.
pub(crate) fn is_unknown(db: &Connection, at: &ConversationRef, print: &str) -> Result<bool, StoreError> {
    const SQL: &str = "SELECT 1 FROM acp_reply WHERE channel = ?1 AND account_id = ?2 AND conversation_id = ?3 \
        AND print = ?4 AND message_id IS NULL LIMIT 1";
    let keys = params![at.channel, at.account_id, at.conversation_id, print];
    Ok(first(db, SQL, keys, |_| Ok(()))?.is_some())
}

/// The channel's ids of what is known to have been sent to a conversation since then: parts under whichever binding, and
/// replies.
///
/// # Errors
/// What SQLite says.
pub(crate) fn others(
    db: &Connection,
    at: &ConversationRef,
    since_ms: u64,
) -> Result<Vec<String>, StoreError> {
    const SQL: &str = "SELECT p.message_id FROM acp_bindings AS b JOIN acp_delivery_part AS p USING (binding_key) \
        WHERE b.channel = ?1 AND b.account_id = ?2 AND b.thread_id = ?3 AND p.state = 'sent' AND p.updated_at >= ?4 \
        AND p.message_id IS NOT NULL \
        UNION ALL SELECT message_id FROM acp_reply WHERE channel = ?1 AND account_id = ?2 AND conversation_id = ?3 \
        AND said_at >= ?4 AND message_id IS NOT NULL";
    let keys = params![at.channel, at.account_id, at.conversation_id, Int(since_ms)];
    all(db, SQL, keys, |row| Ok(row.get("message_id")?))
}

/// What became of a reply: it is there under this id, or never will be.
///
/// # Errors
/// What SQLite says.
pub(crate) fn ended(db: &Connection, nonce: &str, message_id: Option<&str>) -> Result<(), StoreError> {
    match message_id {
        // It counts from when it was there.
        Some(id) => run(
            db,
            "UPDATE acp_reply SET message_id = ?2, said_at = ?3 WHERE nonce = ?1",
            params![nonce, id, Int(now_ms())],
        )?,
        None => run(db, "DELETE FROM acp_reply WHERE nonce = ?1", [nonce])?,
    };
    Ok(())
}
