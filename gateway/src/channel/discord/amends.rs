//! What people change about what they said, and what happens to a conversation: kept, however long that takes.

use super::again::again;
use super::lanes::Lane;
use crate::channel::{Change, Changed};
use acp_discord::core::event::Edit;
use acp_discord::core::ids::Snowflake;

impl Lane {
    /// Somebody gave a message another text.
    pub(super) async fn edited(&self, edit: Edit) {
        let is_own = edit.author.as_ref().is_some_and(|author| Some(author.id) == self.inner.known.me());
        if let (Some(text), false, true) = (edit.text, is_own, edit.by_author) {
            let (at, id) = (self.here(), edit.id.to_string());
            let edit = || self.inbox.edited(at.clone(), id.clone(), text.clone());
            let amended = again("an edit", self.channel, edit).await;
            tracing::info!(message = id, ?amended, "an edit was taken");
        }
    }

    /// A message is gone.
    pub(super) async fn deleted(&self, message: Snowflake) {
        let (at, id) = (self.here(), message.to_string());
        let delete = || self.inbox.deleted(at.clone(), id.clone());
        let amended = again("a deletion", self.channel, delete).await;
        tracing::info!(message = id, ?amended, "a deletion was taken");
    }

    /// The conversation is not there any more.
    pub(super) async fn gone(&self, why: String) {
        let changed = self.changed(Change::Gone { why }).await;
        // Nothing of it is remembered.
        self.inner.rest.put_away(self.channel, false);
        self.inner.known.forget(self.channel);
        tracing::info!(thread_id = %self.channel, ?changed, "a conversation of Discord is gone");
    }

    /// Something happened to the conversation itself.
    pub(super) async fn changed(&self, change: Change) -> Changed {
        let at = self.inner.at(self.channel, None);
        let change = || self.inbox.changed(at.clone(), change.clone());
        again("what happened to a conversation", self.channel, change).await
    }
}
