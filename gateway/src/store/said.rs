//! `acp_said`: the messages that the gateway itself sent into conversations of channels that hear themselves. What is
//! in here and comes in as a message is an echo, also after an unbind and after a restart.

use crate::core::rows::ConversationRef;
use crate::store::codec::{first, run};
use crate::store::error::StoreError;
use rusqlite::{Connection, params};

/// Remembers a message that was sent.
///
/// # Errors
/// What SQLite says.
pub(crate) fn remember(db: &Connection, at: &ConversationRef, message_id: &str) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO acp_said (channel, account_id, conversation_id, message_id) VALUES (?1, ?2, ?3, ?4) \
        ON CONFLICT DO NOTHING";
    run(db, SQL, params![at.channel, at.account_id, at.conversation_id, message_id])?;
    Ok(())
}

/// Whether the gateway itself said that.
///
/// # Errors
/// What SQLite says.
pub(crate) fn is_own(db: &Connection, at: &ConversationRef, message_id: &str) -> Result<bool, StoreError> {
    const SQL: &str = "SELECT 1 FROM acp_said WHERE channel = ?1 AND account_id = ?2 AND conversation_id = ?3 \
        AND message_id = ?4";
    let keys = params![at.channel, at.account_id, at.conversation_id, message_id];
    Ok(first(db, SQL, keys, |_| Ok(()))?.is_some())
}
