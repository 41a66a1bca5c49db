//! `acp_said`: ids of messages that the gateway sent to channels which deliver its own messages back to it.
//! An incoming message listed here is an echo, even after an unbind or a restart. Retention
//! (`gateway/src/ops/retention.rs`) deletes rows too old for any channel to deliver again.

use crate::db::{Db, params};
use crate::error::StoreError;
use crate::{Store, Tx};
use acp_core::rows::ConversationRef;

/// Records the id of a sent message.
///
/// # Errors
/// SQLite errors.
pub fn record_sent_message(tx: &Tx<'_>, at: &ConversationRef, message_id: &str) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO acp_said (channel, account_id, conversation_id, message_id, said_at) \
        VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING";
    let keys = params![at.channel, at.account_id, at.conversation_id, message_id, tx.now_ms()];
    tx.run(SQL, keys).map(drop)
}

/// True if the gateway itself sent the message.
///
/// # Errors
/// SQLite errors.
pub fn is_own_message(db: &Db, at: &ConversationRef, message_id: &str) -> Result<bool, StoreError> {
    const SQL: &str = "SELECT 1 FROM acp_said WHERE channel = ?1 AND account_id = ?2 AND conversation_id = ?3 \
        AND message_id = ?4";
    let keys = params![at.channel, at.account_id, at.conversation_id, message_id];
    Ok(db.first(SQL, keys, |_| Ok(()))?.is_some())
}

impl Store {
    /// Deletes at most `rows_max` message rows older than `before_ms`, oldest first, and as many replies.
    /// Returns the larger of the two numbers of deleted rows.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn delete_sent_messages(&self, before_ms: u64, rows_max: u64) -> Result<usize, StoreError> {
        const SQL: &str = "DELETE FROM acp_said WHERE (channel, account_id, conversation_id, message_id) IN \
            (SELECT channel, account_id, conversation_id, message_id FROM acp_said WHERE said_at < ?1 \
            ORDER BY said_at LIMIT ?2)";
        const REPLIES: &str = "DELETE FROM acp_reply WHERE nonce IN \
            (SELECT nonce FROM acp_reply WHERE said_at < ?1 ORDER BY said_at LIMIT ?2)";
        let forget = move |tx: &Tx<'_>| {
            let said = tx.run(SQL, params![before_ms, rows_max])?;
            Ok(said.max(tx.run(REPLIES, params![before_ms, rows_max])?))
        };
        self.write("forget_said", forget).await
    }
}
