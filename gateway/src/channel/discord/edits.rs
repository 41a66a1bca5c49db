//! Edits and deletions of messages, and events of the conversation itself; retried until processed.
//!
//! Discord reports each change once. A change that was never received, or was lost when the gateway was
//! killed, is found when the queue is idle: each message whose turn has not begun is compared with the
//! current text. A REST response may be older than an event, so messages with recent events are compared
//! later.

use super::Inner;
use super::backfill::BACKFILL_BUDGET;
use crate::channel::discord::pending_checks::{CheckKind, CheckOutcome};
use crate::channel::discord::recent_events::is_too_new;
use crate::channel::discord::retry::{Retryable as _, retry_until_done};
use crate::channel::discord::workers::ConversationWorker;
use crate::channel::{ConversationEvent, ConversationEventOutcome, QueuedMessage};
use acp_discord::core::errors::{RejectionKind, ResourceKind};
use acp_discord::core::event::{Member, Message, MessageEdit, User};
use acp_discord::core::ids::Snowflake;
use acp_discord::rest::{History, RestError};
use acp_store::now_ms;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use tokio::time::Instant;

/// Result of comparing a message with the prompt.
#[derive(Debug, PartialEq, Eq)]
enum PromptComparison {
    /// No change.
    Same,
    /// Edited; contains the current text.
    Edited(String),
    /// Deleted.
    Deleted,
    /// Too new to decide.
    TooNew,
}

/// Returns the current message if the text differs from the prompt. An empty text is not an edit: the bot
/// lacks access to the content.
fn differs<'a>(prompt: Option<&str>, now: Option<&'a Message>) -> Option<&'a Message> {
    let prompt = prompt?;
    now.filter(|now| now.text != prompt && !now.text.trim().is_empty())
}

impl ConversationWorker {
    /// Applies an edit of a message. The author must currently be on the allow-list; if that cannot be
    /// determined now, the message is compared later.
    pub(super) async fn on_message_edited(&mut self, edit: MessageEdit) {
        let (Some(text), true) = (edit.text, edit.by_author) else { return };
        let is_program = |author: &User| author.bot || Some(author.id) == self.inner.cache.me();
        if edit.webhook.is_some() || edit.author.as_ref().is_some_and(is_program) {
            return;
        }
        let speaks = match &edit.author {
            Some(author) => self.inner.is_author_allowed(self.channel, author).await,
            None => Err(RestError::Uncertain { why: "the author is unknown".to_owned() }),
        };
        match speaks {
            Ok(true) => self.apply_edit(edit.id, text).await,
            Ok(false) => self.log_rejected_edit(edit.id),
            Err(fault) => {
                tracing::info!(message_id = %edit.id, %fault, "edit check deferred");
                self.schedule_comparison();
            }
        }
        self.recent_events.record(edit.id, Instant::now());
    }

    fn log_rejected_edit(&self, message: Snowflake) {
        let thread = self.channel;
        tracing::info!(message_id = %message, thread_id = %thread, "edit by unauthorized author ignored");
    }

    /// Schedules a comparison of all messages whose turn has not begun.
    pub(super) fn schedule_comparison(&mut self) {
        self.uncompared = None;
        self.pending_checks.schedule(CheckKind::Waiting, Instant::now());
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

    /// Compares the messages whose turn has not begun with their current text. Reads one page of history for
    /// each group of adjacent messages, and none if no message waits. Stops as soon as `something` completes:
    /// changes found so far are applied, and the next call continues with the rest.
    ///
    /// # Errors
    /// [`RestError`] if some messages could not be compared.
    pub(super) async fn check_queued_edits(
        &mut self,
        something: impl Future<Output = ()>,
    ) -> Result<CheckOutcome, RestError> {
        let mut something = pin!(something);
        let Some(waiting) = self.inbox.queued_messages(self.conversation_ref()).await else {
            let why = "the queued messages of the conversation cannot be read".to_owned();
            return Err(RestError::Uncertain { why });
        };
        let mut waiting = self.select_uncompared(waiting);
        while let Some((first, _)) = waiting.first_key_value() {
            let before = Snowflake(first.0.saturating_sub(1));
            let page = tokio::select! {
                biased;
                page = self.inner.rest.history(self.channel, before, BACKFILL_BUDGET) => page?,
                () = &mut something => return Ok(CheckOutcome::Interrupted),
            };
            let beyond = match page.has_more {
                true => waiting.split_off(&Snowflake(page.newest_id.0.saturating_add(1))),
                false => BTreeMap::new(),
            };
            for (id, text) in std::mem::replace(&mut waiting, beyond) {
                let found = tokio::select! {
                    biased;
                    found = self.compare_message(id, text.as_deref(), &page) => found?,
                    () = &mut something => return Ok(CheckOutcome::Interrupted),
                };
                match found {
                    PromptComparison::Same => {}
                    PromptComparison::Edited(text) => self.apply_edit(id, text).await,
                    PromptComparison::Deleted => self.on_message_deleted(id).await,
                    PromptComparison::TooNew => continue,
                }
                self.uncompared.get_or_insert_default().remove(&id);
            }
        }
        let is_all = self.uncompared.as_ref().is_none_or(BTreeSet::is_empty);
        Ok(if is_all { CheckOutcome::Done } else { CheckOutcome::Partly })
    }

    /// Selects the messages whose turn has not begun and that are still to be compared. Messages with a
    /// recent event are left for later.
    fn select_uncompared(&mut self, waiting: Vec<QueuedMessage>) -> BTreeMap<Snowflake, Option<String>> {
        let known = |waiting: QueuedMessage| Some((waiting.message_id.parse().ok()?, waiting.text));
        let mut waiting: BTreeMap<Snowflake, Option<String>> =
            waiting.into_iter().filter_map(known).collect();
        let left = self.uncompared.get_or_insert_with(|| waiting.keys().copied().collect());
        left.retain(|id| waiting.contains_key(id));
        let now = Instant::now();
        waiting.retain(|id, _| left.contains(id) && !self.recent_events.has(*id, now));
        waiting
    }

    /// Determines the change of a message that is in the range of `page`.
    async fn compare_message(
        &self,
        id: Snowflake,
        prompt: Option<&str>,
        page: &History,
    ) -> Result<PromptComparison, RestError> {
        if page.is_absent(id) {
            return Ok(match is_too_new(id, now_ms()) {
                true => PromptComparison::TooNew,
                false if self.is_gone(id).await? => PromptComparison::Deleted,
                false => PromptComparison::Same,
            });
        }
        let Some(now) = differs(prompt, page.message(id)) else { return Ok(PromptComparison::Same) };
        if self.inner.is_author_allowed(self.channel, &now.author.user).await? {
            return Ok(PromptComparison::Edited(now.text.clone()));
        }
        self.log_rejected_edit(id);
        Ok(PromptComparison::Same)
    }

    /// True if a message missing from its page was deleted. An empty page is no proof: a bot without
    /// permission to read gets empty pages.
    async fn is_gone(&self, message: Snowflake) -> Result<bool, RestError> {
        let Err(fault) = self.inner.rest.message(self.channel, message).await else { return Ok(false) };
        match fault.rejection_kind() {
            Some(RejectionKind::Gone(ResourceKind::Message)) => Ok(true),
            _ if Err(fault.clone()).retry_reason().is_some() => Err(fault),
            _ => Ok(false),
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
        let mut who = Member { user: user.clone(), roles: Vec::new(), permissions: None };
        if access.guilds.is_empty() && access.is_allowed(&who) {
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
    fn changed_text_is_applied_only_to_its_prompt() {
        let says = |text: &str| {
            let author = json!({"id": "5", "username": "ann"});
            decode::message(&json!({"id": "7", "channel_id": "1", "content": text, "author": author}))
                .unwrap()
        };
        for (prompt, now, want) in [
            (Some("one"), Some(says("one")), None),
            (Some("one"), Some(says("two")), Some("two")),
            // A command, a missing message, and a message without visible content.
            (None, Some(says("/acp steer two")), None),
            (Some("one"), None, None),
            (Some("one"), Some(says(" ")), None),
        ] {
            let differs = differs(prompt, now.as_ref()).map(|now| now.text.as_str());
            assert_eq!(differs, want, "{prompt:?} {now:?}");
        }
    }
}
