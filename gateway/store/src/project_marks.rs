//! Backfill marks of projects' channels, which have no binding: the message id up to which a channel was read completely.
//! Kept in `acp_meta`, a row for each channel.

use crate::db::Db;
use crate::error::StoreError;
use crate::{Tx, inbox, meta};
use acp_core::rows::ConversationRef;

fn key(at: &ConversationRef) -> String {
    format!("project_mark:{}:{}:{}", at.channel, at.account_id, at.conversation_id)
}

/// Returns the mark of a channel. Without one it is set: to the newest accepted message of the channel, which versions
/// without marks took for it, or else to `first`.
///
/// # Errors
/// SQLite errors.
pub fn begin(tx: &Tx<'_>, at: &ConversationRef, first: Option<&str>) -> Result<Option<String>, StoreError> {
    if let Some(mark) = meta::get(tx, &key(at))? {
        return Ok(Some(mark));
    }
    let mark = inbox::newest_message(tx, at)?.or_else(|| first.map(str::to_owned));
    if let Some(mark) = &mark {
        meta::set(tx, &key(at), mark)?;
    }
    Ok(mark)
}

/// Moves the mark of a channel forward to a message id, if the channel has one. Ids are numbers of any length.
///
/// # Errors
/// SQLite errors.
pub fn advance(db: &Db, at: &ConversationRef, through: &str) -> Result<(), StoreError> {
    let key = key(at);
    match meta::get(db, &key)? {
        Some(mark) if (mark.len(), mark.as_str()) < (through.len(), through) => meta::set(db, &key, through),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::tests::fixtures::reopen;

    #[tokio::test]
    async fn mark_is_set_once_and_never_goes_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = reopen(dir.path());
        let at = ConversationRef::new("discord", "main", "7");
        for (through, want) in [("90", "100"), ("99", "100"), ("101", "101"), ("100", "101")] {
            let (asked, through) = (at.clone(), through.to_owned());
            let mark = store.write("mark", move |tx| {
                begin(tx, &asked, Some("100"))?;
                advance(tx, &asked, &through)?;
                begin(tx, &asked, Some("5"))
            });
            assert_eq!(mark.await.unwrap().as_deref(), Some(want));
        }
        // Another channel has no mark to move.
        let mark = store.write("mark", |tx| {
            let other = ConversationRef::new("discord", "main", "8");
            advance(tx, &other, "50")?;
            Ok([begin(tx, &other, None)?, begin(tx, &other, Some("5"))?, begin(tx, &other, None)?])
        });
        assert_eq!(mark.await.unwrap().map(Option::unwrap_or_default), ["", "5", "5"]);
    }
}
