//! `acp_reply`: replies that the gateway sent outside of journal delivery. If the outcome of a send is
//! unknown, the message is searched for in the conversation by its text; so the ids of all other messages
//! that the gateway sent there must be known (H12). Deleted together with `acp_said`
//! (`gateway/src/ops/retention.rs`).

use crate::Tx;
use crate::db::{Db, params};
use crate::error::StoreError;
use acp_core::render::disambiguation_tag;
use acp_core::rows::ConversationRef;

/// Time span before a message within which other messages of the gateway are listed, in milliseconds. A
/// channel may search further back than the message's own time, to allow for clock differences.
pub const SEARCH_WINDOW_MS: u64 = 10 * 60_000;

/// Tag and other message ids, for finding a reply in its conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplySearchKey {
    /// Tag shown with the reply, if it needs one.
    pub tag: Option<String>,
    /// The channel's ids of other messages that the gateway sent to the conversation.
    pub others: Vec<String>,
}

/// Records a reply before it is sent, for the first time or as a retry. The reply gets a tag if another
/// message with the same text is on its way to the conversation with unknown outcome. Returns the tag and the
/// messages sent since `since_ms`.
///
/// # Errors
/// SQLite errors.
pub fn begin(
    tx: &Tx<'_>,
    at: &ConversationRef,
    nonce: &str,
    text: &str,
    since_ms: u64,
) -> Result<ReplySearchKey, StoreError> {
    const NEW: &str = "INSERT INTO acp_reply (nonce, channel, account_id, conversation_id, tag, print, said_at) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let kept =
        tx.first("SELECT tag FROM acp_reply WHERE nonce = ?1", params![nonce], |row| row.get("tag"))?;
    let tag = match kept {
        Some(tag) => tag,
        None => {
            let (tag, print) = disambiguation_tag::choose_tag(text, nonce, |print| {
                Ok::<bool, StoreError>(is_delivery_pending(tx, at, print)? || is_unknown(tx, at, print)?)
            })?;
            let keys = params![nonce, at.channel, at.account_id, at.conversation_id, tag, print, tx.now_ms()];
            tx.run(NEW, keys)?;
            tag
        }
    };
    Ok(ReplySearchKey { tag, others: ids_of_sent_messages(tx, at, since_ms)? })
}

/// True if a delivery part with this fingerprint may or may not be in the conversation.
fn is_delivery_pending(db: &Db, at: &ConversationRef, print: &str) -> Result<bool, StoreError> {
    const SQL: &str = "SELECT 1 FROM acp_delivery_part AS p JOIN acp_bindings AS b USING (binding_key) WHERE p.print = ?1 \
        AND p.state IN ('planned','sending','uncertain') AND b.channel = ?2 AND b.account_id = ?3 AND b.thread_id = ?4 \
        LIMIT 1";
    let keys = params![print, at.channel, at.account_id, at.conversation_id];
    Ok(db.first(SQL, keys, |_| Ok(()))?.is_some())
}

/// True if a reply with this fingerprint may or may not be in the conversation.
///
/// # Errors
/// SQLite errors.
pub fn is_unknown(db: &Db, at: &ConversationRef, print: &str) -> Result<bool, StoreError> {
    const SQL: &str = "SELECT 1 FROM acp_reply WHERE channel = ?1 AND account_id = ?2 AND conversation_id = ?3 \
        AND print = ?4 AND message_id IS NULL LIMIT 1";
    let keys = params![at.channel, at.account_id, at.conversation_id, print];
    Ok(db.first(SQL, keys, |_| Ok(()))?.is_some())
}

/// The channel's ids of all messages known to be sent to a conversation since `since_ms`: delivery parts of
/// any binding, and replies.
///
/// # Errors
/// SQLite errors.
pub fn ids_of_sent_messages(db: &Db, at: &ConversationRef, since_ms: u64) -> Result<Vec<String>, StoreError> {
    const SQL: &str = "SELECT p.message_id FROM acp_bindings AS b JOIN acp_delivery_part AS p USING (binding_key) \
        WHERE b.channel = ?1 AND b.account_id = ?2 AND b.thread_id = ?3 AND p.state = 'sent' AND p.updated_at >= ?4 \
        AND p.message_id IS NOT NULL \
        UNION ALL SELECT message_id FROM acp_reply WHERE channel = ?1 AND account_id = ?2 AND conversation_id = ?3 \
        AND said_at >= ?4 AND message_id IS NOT NULL";
    let keys = params![at.channel, at.account_id, at.conversation_id, since_ms];
    db.all(SQL, keys, |row| row.get("message_id"))
}

/// Records the outcome of a reply: sent with this message id, or `None` if it will never be sent.
///
/// # Errors
/// SQLite errors.
pub fn record_outcome(tx: &Tx<'_>, nonce: &str, message_id: Option<&str>) -> Result<(), StoreError> {
    match message_id {
        // Retention starts at the time of sending.
        Some(id) => tx.run(
            "UPDATE acp_reply SET message_id = ?2, said_at = ?3 WHERE nonce = ?1",
            params![nonce, id, tx.now_ms()],
        )?,
        None => tx.run("DELETE FROM acp_reply WHERE nonce = ?1", params![nonce])?,
    };
    Ok(())
}
