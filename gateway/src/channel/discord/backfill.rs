//! Backfill of a conversation from the mark on (the last message id read from history): after a start or gap,
//! before anything else; and after messages received as events, which advances the mark.

use super::Inner;
use crate::channel::discord::retry::RETRY_BACKOFF;
use crate::channel::discord::state_cache::Access;
use crate::channel::discord::workers::ConversationWorker;
use crate::channel::{BindingLookup, BoundConversation};
use acp_discord::core::errors::{RejectionKind, ResourceKind};
use acp_discord::core::event::Message;
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message_filter::{MessageClass, classify_message};
use acp_discord::core::request_scheduler::Priority;
use acp_discord::rest::{History, QueueOptions, RestError};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// Request budget of a backfill that queued messages wait for: priority of a notice.
const BACKFILL_BUDGET: QueueOptions = QueueOptions::new(Priority::Notice, Duration::from_secs(20));
/// Request budget of a backfill that nothing waits for: lowest priority.
const IDLE_BUDGET: QueueOptions = QueueOptions::new(Priority::Look, Duration::from_secs(60));

const fn budget(is_idle: bool) -> QueueOptions {
    if is_idle { IDLE_BUDGET } else { BACKFILL_BUDGET }
}

/// Maximum number of concurrent requests for first pages. With [`StateCache::should_attempt`] this limits the
/// refusals in a channel that cannot be read.
///
/// [`StateCache::should_attempt`]: crate::channel::discord::state_cache::StateCache::should_attempt
pub(super) const CONCURRENT_MAX: usize = 4;

/// Maximum age of messages that a backfill of a project's channel reads, in milliseconds. Short, because a mark may be from
/// a time before the channel ceased to be a project, and because each message would open a thread.
const PROJECT_WINDOW_MS: u64 = 15 * 60_000;

/// Result of a backfill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BackfillOutcome {
    /// Completed.
    Read,
    /// The bot has no access.
    Refused,
    /// Conversation deleted or unbound.
    Nothing,
}

/// Returns the id after which a conversation is to be read: the mark, or else the time of the binding.
fn backfill_mark(place: &BoundConversation) -> Snowflake {
    let since = Snowflake::from_ms(place.bound_at_ms);
    place.backfilled_through.as_deref().and_then(|id| id.parse().ok()).unwrap_or(since)
}

impl ConversationWorker {
    /// Reads possibly missed messages and passes them in; then fetches the queued messages once. Later
    /// messages
    /// wait in the queue until the backfill succeeds or proves impossible. If the queue was full, the
    /// backfill
    /// begins at `from` at the latest: a conversation bound by the configuration has no mark before the first
    /// message.
    pub(super) async fn backfill(&mut self, from: Option<Snowflake>) {
        self.missed = [self.missed, from].into_iter().flatten().min();
        let mut backoff = RETRY_BACKOFF;
        let outcome = loop {
            match self.read_history(false, std::future::pending()).await {
                Ok(outcome) => break outcome.unwrap_or(BackfillOutcome::Nothing),
                Err(fault) => tracing::warn!(thread_id = %self.channel, %fault, "backfill deferred"),
            }
            tokio::time::sleep(backoff.next_pause()).await;
        };
        self.read_at = None;
        self.project_limit = None;
        if outcome != BackfillOutcome::Refused {
            self.missed = None;
        }
        if outcome == BackfillOutcome::Read {
            self.refresh_queued().await;
        }
    }

    /// Reads the messages after the mark, to advance the mark and to find messages without an event. Stops if
    /// `something` completes before the first page arrives. A failed read is repeated later.
    pub(super) async fn read_when_idle(&mut self, something: impl Future<Output = ()>) {
        match self.read_history(true, something).await {
            Ok(None) => {}
            Ok(Some(_)) => {
                self.read_at = None;
                self.project_limit = None;
                self.idle_backoff.reset();
            }
            Err(fault) => {
                tracing::info!(thread_id = %self.channel, %fault, "conversation check deferred");
                self.read_at = Some(Instant::now() + self.idle_backoff.next_pause());
            }
        }
    }

    /// Reads the history after the mark, and the archive state if unknown. Returns `None` if `something`
    /// completes before the first page arrives.
    ///
    /// # Errors
    /// [`RestError`] if the history could not be read, and a retry may succeed.
    async fn read_history(
        &mut self,
        is_idle: bool,
        something: impl Future<Output = ()>,
    ) -> Result<Option<BackfillOutcome>, RestError> {
        match self.inner.conversation_refusal(self.channel).await {
            Ok(None) => {}
            Ok(Some(why)) => {
                tracing::info!(thread_id = %self.channel, why, "conversation of another shard not read");
                return Ok(Some(BackfillOutcome::Nothing));
            }
            Err(fault) => return self.handle_permanent_fault(&fault).await.map(Some).ok_or(fault),
        }
        let missed = self.missed.map(|from| Snowflake(from.0.saturating_sub(1)));
        let mark = match self.inbox.lookup_binding(self.inner.at(self.channel, None)).await {
            BindingLookup::Unknown => {
                return Err(RestError::Uncertain { why: "the binding cannot be read".to_owned() });
            }
            BindingLookup::Bound(place) => Some(backfill_mark(&place)),
            BindingLookup::Unbound if self.inner.is_project(self.channel) => {
                match self.project_mark().await {
                    Ok(mark) => Some(mark),
                    Err(fault) => return self.handle_permanent_fault(&fault).await.map(Some).ok_or(fault),
                }
            }
            BindingLookup::Unbound
                if missed.is_some() && self.inner.resolve_static_binding(self.channel).await =>
            {
                None
            }
            BindingLookup::Unbound => return Ok(Some(BackfillOutcome::Nothing)),
        };
        let Some(mark) = [mark, missed].into_iter().flatten().min() else {
            return Ok(Some(BackfillOutcome::Nothing));
        };
        let first = tokio::select! {
            biased;
            page = self.first_page(mark, is_idle) => page,
            () = something => return Ok(None),
        };
        let read = match first {
            Ok(Some(page)) => self.read_from(mark, page, budget(is_idle)).await,
            Ok(None) => {
                self.inner.cache.assume_inaccessible(self.channel);
                return Ok(Some(BackfillOutcome::Refused));
            }
            Err(fault) => Err(fault),
        };
        if let Err(fault) = read {
            return self.handle_permanent_fault(&fault).await.map(Some).ok_or(fault);
        }
        // If this request fails, it is repeated before the next message is sent to the thread.
        if let Err(fault) = self.inner.ensure_archive_state(self.channel).await {
            tracing::info!(thread_id = %self.channel, %fault, "archive state unknown");
        }
        Ok(Some(BackfillOutcome::Read))
    }

    /// Returns the mark of a project's channel, at most [`PROJECT_WINDOW_MS`] before the first attempt. A channel without one
    /// begins after its newest message, or before the first message that waits in the queue.
    async fn project_mark(&mut self) -> Result<Snowflake, RestError> {
        let since_ms = self.inner.clock.wall_ms().saturating_sub(PROJECT_WINDOW_MS);
        let limit = *self.project_limit.get_or_insert(Snowflake::from_ms(since_ms));
        let mark = match self.stored_project_mark(None).await? {
            Some(mark) => mark,
            None => {
                // An id of Discord: the local clock may differ.
                let newest = self.inner.rest.channel(self.channel).await?.last_message_id;
                let waiting = self.queue.oldest_waiting().map(|from| Snowflake(from.0.saturating_sub(1)));
                let first = [newest.or(Some(self.channel)), waiting].into_iter().flatten().min();
                self.stored_project_mark(first).await?.unwrap_or(limit)
            }
        };
        Ok(mark.max(limit))
    }

    /// Returns the stored mark of a project's channel; without one, sets it to `first`.
    async fn stored_project_mark(&self, first: Option<Snowflake>) -> Result<Option<Snowflake>, RestError> {
        let first = first.map(|first| first.to_string());
        let mark = self.inbox.project_mark(self.inner.at(self.channel, None), first).await;
        let mark = mark.and_then(|mark| mark.map(|mark| mark.parse().map_err(|_| mark)).transpose());
        mark.map_err(|why| RestError::Uncertain { why: format!("mark of the project's channel: {why}") })
    }

    /// Handles faults that a retry does not fix: conversation deleted, or access refused. Returns `None` for
    /// other faults.
    async fn handle_permanent_fault(&self, fault: &RestError) -> Option<BackfillOutcome> {
        match fault.rejection_kind() {
            Some(RejectionKind::Gone(ResourceKind::Channel)) => {
                self.on_conversation_gone(fault.to_string()).await;
                Some(BackfillOutcome::Nothing)
            }
            Some(RejectionKind::LostAccess | RejectionKind::Forbidden) => {
                // D3: access may be restored. The mark stays, and the next backfill starts from there.
                if self.inner.cache.set_inaccessible(self.channel, true) {
                    tracing::warn!(
                        thread_id = %self.channel,
                        %fault,
                        hint = "grant View Channel and Read Message History",
                        "bound conversation unreadable"
                    );
                }
                Some(BackfillOutcome::Refused)
            }
            _ => None,
        }
    }

    /// Passes in all messages from a page on, page by page, and advances the mark with each page. Skips
    /// messages passed in before.
    async fn read_from(
        &mut self,
        mark: Snowflake,
        first: History,
        turn: QueueOptions,
    ) -> Result<(), RestError> {
        let (mut mark, mut page) = (mark, first);
        loop {
            page.messages.retain(|message| !self.seen.contains(&message.id));
            for message in &page.messages {
                let me = self.inner.cache.identity();
                if me.is_some_and(|me| classify_message(&me, message) == MessageClass::User) {
                    // The author may have unarchived the thread by writing, and that had no event either.
                    self.inner.cache.invalidate_archive_state(self.channel);
                }
                if !self.submit_message(message).await {
                    let why = "the bot's user id is not known yet".to_owned();
                    return Err(RestError::Uncertain { why });
                }
            }
            if page.newest_id > mark {
                mark = page.newest_id;
                let at = self.inner.at(self.channel, self.inner.cache.parent(self.channel));
                // If the mark is not committed, the next read repeats these messages without effect.
                self.inbox.set_backfill_mark(at, mark.to_string()).await;
            }
            if !page.has_more {
                break;
            }
            page = self.page(mark, turn).await?;
        }
        if self.inner.cache.set_inaccessible(self.channel, false) {
            tracing::info!(thread_id = %self.channel, "bound conversation readable again");
        }
        self.inner.cache.record_access(Access::Read, self.channel, false);
        Ok(())
    }

    /// Reads the first page; `None` if the channel is denied and another conversation tries for it.
    async fn first_page(&self, mark: Snowflake, is_idle: bool) -> Result<Option<History>, RestError> {
        // A read that nothing waits for may take long, and few happen at once.
        let _permit = match is_idle {
            true => None,
            false => self.inner.backfill_permits.acquire().await.ok(),
        };
        if !self.inner.cache.should_attempt(Access::Read, self.channel, self.inner.clock.wall_ms()) {
            return Ok(None);
        }
        let page = self.page(mark, budget(is_idle)).await;
        let rejected = page.as_ref().err().and_then(RestError::rejection_kind);
        if matches!(rejected, Some(RejectionKind::LostAccess | RejectionKind::Forbidden)) {
            self.inner.cache.record_access(Access::Read, self.channel, true);
        }
        page.map(Some)
    }

    /// Reads a page after a mark and completes the messages with server and roles.
    async fn page(&self, mark: Snowflake, turn: QueueOptions) -> Result<History, RestError> {
        let mut page = self.inner.rest.history(self.channel, mark, turn).await?;
        page.messages.iter().for_each(|message| self.inner.cache.record_message(self.channel, message.id));
        let is_new = |message: &&mut Message| !self.seen.contains(&message.id);
        self.inner.add_guild_and_roles(self.channel, page.messages.iter_mut().filter(is_new)).await?;
        Ok(page)
    }
}

impl Inner {
    /// Adds the data that events contain and REST responses lack: the server of a message, and the roles of
    /// the author.
    async fn add_guild_and_roles<'a>(
        &self,
        channel: Snowflake,
        messages: impl Iterator<Item = &'a mut Message>,
    ) -> Result<(), RestError> {
        let mut messages = messages.peekable();
        if messages.peek().is_none() {
            return Ok(());
        }
        let Some(guild) = self.guild_of(channel).await? else { return Ok(()) };
        let by_role = self.settings().access.uses_roles();
        let mut known: HashMap<Snowflake, Vec<Snowflake>> = HashMap::new();
        for message in messages {
            message.guild = message.guild.or(Some(guild));
            let author = &mut message.author;
            if !by_role || author.user.bot || message.webhook.is_some() || !author.roles.is_empty() {
                continue;
            }
            let roles = match known.get(&author.user.id) {
                Some(roles) => roles.clone(),
                None => self.roles(guild, author.user.id).await?,
            };
            known.insert(author.user.id, roles.clone());
            author.roles = roles;
        }
        Ok(())
    }

    /// Returns the roles of a user; none for a former member.
    pub(super) async fn roles(&self, guild: Snowflake, user: Snowflake) -> Result<Vec<Snowflake>, RestError> {
        match self.rest.member(guild, user).await {
            Ok(member) => Ok(member.roles),
            Err(RestError::Rejected(why)) if !why.is_retryable() => Ok(Vec::new()),
            Err(fault) => Err(fault),
        }
    }
}
