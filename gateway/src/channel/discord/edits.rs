//! Edits and deletions of messages, and events of the conversation itself; retried until processed.
//!
//! Discord reports each change once. A change without an event may be missed: only a prompt that waited across
//! a gap or restart has its message fetched once.

use super::Inner;
use crate::channel::discord::retry::retry_until_done;
use crate::channel::discord::workers::{ConversationWorker, without_mention};
use crate::channel::{ConversationEvent, ConversationEventOutcome};
use acp_discord::core::errors::{RejectionKind, ResourceKind};
use acp_discord::core::event::{Member, Message, MessageEdit, User};
use acp_discord::core::ids::Snowflake;
use acp_discord::rest::RestError;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum staleness of a REST response relative to events.
const STALENESS_MAX: Duration = Duration::from_secs(10);

/// Returns the current text, without a mention of the bot `me`, if it differs from the prompt. An empty text is not an edit:
/// the bot lacks access to the content.
fn changed_text(prompt: Option<&str>, now: &Message, me: Snowflake) -> Option<String> {
    let text = without_mention(&now.text, me);
    (prompt? != text && !text.trim().is_empty()).then_some(text)
}

/// Returns how long a message is too new for a REST response that lacks it to be a proof; `now_ms` is in
/// milliseconds since the Unix epoch.
fn too_new_for(id: Snowflake, now_ms: u64) -> Duration {
    let age = Duration::from_millis(now_ms.saturating_sub(id.created_at_ms()));
    STALENESS_MAX.saturating_sub(age)
}

impl ConversationWorker {
    /// Applies an edit of a message. The author must currently be on the allow-list.
    pub(super) async fn on_message_edited(&mut self, edit: MessageEdit) {
        let (Some(text), true) = (edit.text, edit.by_author) else { return };
        let text = self.inner.cache.me().map_or_else(|| text.clone(), |me| without_mention(&text, me));
        if text.trim().is_empty() {
            tracing::info!(message_id = %edit.id, thread_id = %self.channel, "edit without text ignored");
            return;
        }
        let is_program = |author: &User| author.bot || Some(author.id) == self.inner.cache.me();
        if edit.webhook.is_some() || edit.author.as_ref().is_some_and(is_program) {
            return;
        }
        let is_allowed = || async {
            let author = match &edit.author {
                Some(author) => author.clone(),
                None => self.inner.rest.message(self.channel, edit.id).await?.author.user,
            };
            self.inner.is_author_allowed(self.channel, &author).await
        };
        match retry_until_done("author of an edit", self.channel, is_allowed).await {
            Ok(true) => self.apply_edit(edit.id, text).await,
            Ok(false) => self.log_rejected_edit(edit.id),
            Err(fault) => tracing::info!(message_id = %edit.id, %fault, "edit ignored; author unknown"),
        }
        self.last_edit = Some((edit.id, Instant::now()));
    }

    fn log_rejected_edit(&self, message: Snowflake) {
        let thread = self.channel;
        tracing::info!(message_id = %message, thread_id = %thread, "edit by unauthorized author ignored");
    }

    async fn apply_edit(&self, message: Snowflake, text: String) {
        let (at, id) = (self.conversation_ref(), message.to_string());
        let edit = || self.inbox.on_message_edited(at.clone(), id.clone(), text.clone());
        let amended = retry_until_done("edit", self.channel, edit).await;
        tracing::info!(message_id = id, outcome = ?amended, "edit processed");
    }

    /// Applies the deletion of a message.
    pub(super) async fn on_message_deleted(&self, message: Snowflake) {
        let (at, id) = (self.conversation_ref(), message.to_string());
        let delete = || self.inbox.on_message_deleted(at.clone(), id.clone());
        let amended = retry_until_done("deletion", self.channel, delete).await;
        tracing::info!(message_id = id, outcome = ?amended, "deletion processed");
    }

    /// Fetches each message whose turn has not begun, once: the prompts waited across a gap or restart. A
    /// deleted message leaves the queue, an edited one changes the prompt; a failed request changes nothing.
    pub(super) async fn refresh_queued(&self) {
        let Some(queued) = self.inbox.queued_messages(self.conversation_ref()).await else {
            tracing::warn!(thread_id = %self.channel, "queued messages unreadable; not compared");
            return;
        };
        for prompt in queued {
            let Ok(id) = prompt.message_id.parse() else { continue };
            match self.fetch_queued(id).await {
                Ok(Some(message)) => self.refresh_prompt(prompt.text.as_deref(), &message).await,
                Ok(None) => self.on_message_deleted(id).await,
                Err(fault) => tracing::info!(message_id = %id, %fault, "queued message not compared"),
            }
        }
    }

    /// Fetches a message; `None` if deleted. If Discord does not know a new message, it is asked once more when
    /// the message is older.
    async fn fetch_queued(&self, id: Snowflake) -> Result<Option<Message>, RestError> {
        loop {
            let age_needed = too_new_for(id, self.inner.clock.wall_ms());
            match self.inner.rest.message(self.channel, id).await {
                Ok(message) => return Ok(Some(message)),
                Err(fault) if fault.rejection_kind() != Some(RejectionKind::Gone(ResourceKind::Message)) => {
                    return Err(fault);
                }
                Err(_) if age_needed.is_zero() => return Ok(None),
                Err(_) => tokio::time::sleep(age_needed).await,
            }
        }
    }

    async fn refresh_prompt(&self, prompt: Option<&str>, message: &Message) {
        let Some(me) = self.inner.cache.me() else { return };
        let Some(text) = changed_text(prompt, message, me) else { return };
        let is_known = |(id, at): (Snowflake, Instant)| id == message.id && at.elapsed() < STALENESS_MAX;
        if self.last_edit.is_some_and(is_known) {
            return;
        }
        match self.inner.is_author_allowed(self.channel, &message.author.user).await {
            Ok(true) => self.apply_edit(message.id, text).await,
            Ok(false) => self.log_rejected_edit(message.id),
            Err(fault) => tracing::info!(message_id = %message.id, %fault, "edit ignored; author unknown"),
        }
    }

    /// Processes the deletion of the conversation.
    pub(super) async fn on_conversation_gone(&self, why: String) {
        let changed = self.report_event(ConversationEvent::Gone { why }).await;
        // All cached state of the conversation is dropped.
        self.inner.rest.set_archived(self.channel, false);
        self.inner.cache.remove_conversation(self.channel);
        tracing::info!(thread_id = %self.channel, outcome = ?changed, "Discord conversation gone");
    }

    /// Reports an event of the conversation to the inbound port.
    pub(super) async fn report_event(&self, change: ConversationEvent) -> ConversationEventOutcome {
        let at = self.inner.at(self.channel, None);
        let change = || self.inbox.on_conversation_event(at.clone(), change.clone());
        retry_until_done("conversation", self.channel, change).await
    }
}

impl Inner {
    /// True if a user may currently speak to agents in a conversation.
    async fn is_author_allowed(&self, channel: Snowflake, user: &User) -> Result<bool, RestError> {
        let settings = self.settings();
        let access = &settings.access;
        let mut who = Member { user: user.clone(), roles: Vec::new() };
        if access.guilds.is_empty() && access.shards.is_none() && access.is_allowed(&who) {
            return Ok(true);
        }
        let guild = self.guild_of(channel).await?;
        if access.uses_roles()
            && let Some(guild) = guild
        {
            who.roles = self.roles(guild, user.id).await?;
        }
        Ok(access.is_guild_allowed(guild) && access.is_allowed(&who))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use acp_discord::core::decode;
    use serde_json::json;

    #[test]
    fn changed_text_replaces_prompts_only() {
        let message = |text: &str| {
            let author = json!({"id": "5", "username": "ann"});
            decode::message(&json!({"id": "7", "channel_id": "1", "content": text, "author": author}))
                .unwrap()
        };
        for (prompt, now, want) in [
            (Some("one"), "one", None),
            (Some("one"), "two", Some("two")),
            (Some("one"), "<@9> one", None),
            (Some("one"), "<@9> two", Some("two")),
            (None, "/acp steer two", None),
            (Some("one"), " ", None),
        ] {
            let changed = changed_text(prompt, &message(now), Snowflake(9));
            assert_eq!(changed.as_deref(), want, "{prompt:?} {now:?}");
        }
    }

    #[test]
    fn recent_message_is_not_treated_as_deleted() {
        let made_ms = 1_795_338_000_000;
        let id = Snowflake::from_ms(made_ms);
        for (now_ms, want_ms) in
            [(made_ms, 10_000), (made_ms + 9_999, 1), (made_ms + 10_000, 0), (made_ms - 60_000, 10_000)]
        {
            assert_eq!(too_new_for(id, now_ms), Duration::from_millis(want_ms), "{now_ms}");
        }
    }
}
