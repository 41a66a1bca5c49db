//! Backfill of a conversation from the mark on (the last message id read from history): of possibly missed
//! messages, before anything else; and after messages received as events, to verify that none was missed.

use super::Inner;
use crate::channel::discord::backfill_schedule::BackfillOutcome;
use crate::channel::discord::pending_checks::CheckKind;
use crate::channel::discord::workers::{BACKOFF, ConversationWorker};
use crate::channel::{BindingLookup, BoundConversation};
use acp_discord::core::errors::{RejectionKind, ResourceKind};
use acp_discord::core::event::Message;
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message_filter::{MessageClass, classify_message};
use acp_discord::core::request_scheduler::Priority;
use acp_discord::rest::{History, QueueOptions, RestError};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use tokio::time::Instant;

/// Request budget of a backfill that queued messages wait for: priority of a notice.
pub(super) const BACKFILL_BUDGET: QueueOptions = QueueOptions::new(Priority::Notice, Duration::from_secs(20));
/// Request budget of a backfill that nothing waits for: lowest priority.
pub(super) const IDLE_BUDGET: QueueOptions = QueueOptions::new(Priority::Look, Duration::from_secs(60));

/// Idle time after the last message before the history is read.
const QUIET_PERIOD: Duration = Duration::from_secs(2);
/// Number of messages after which the history is read even under constant traffic.
const UNVERIFIED_MAX: usize = 100;
/// Maximum number of ids remembered as passed in, and as rejected. Messages beyond that are passed in again,
/// without effect, or checked again.
const REMEMBERED_MAX: usize = 10_000;

/// Remembers a message id; drops the oldest one at the limit.
pub(super) fn remember(ids: &mut BTreeSet<Snowflake>, id: Snowflake) {
    ids.insert(id);
    if ids.len() > REMEMBERED_MAX {
        ids.pop_first();
    }
}

/// Messages passed in from events that no history read has covered yet, and the time of the next read; no
/// I/O.
#[derive(Debug, Default)]
pub(super) struct UnverifiedMessages {
    ids: BTreeSet<Snowflake>,
    /// Number of failed reads since the last success.
    failures: u32,
    /// Time of the next read, unless more messages arrive; `None` if no read is necessary.
    due: Option<Instant>,
}

impl UnverifiedMessages {
    /// Records a message that was passed in from an event.
    pub(super) fn record(&mut self, id: Snowflake, now: Instant) {
        remember(&mut self.ids, id);
        self.due = Some(now + self.pause());
    }

    fn pause(&self) -> Duration {
        QUIET_PERIOD.saturating_mul(2_u32.saturating_pow(self.failures)).min(BACKOFF.1)
    }

    /// Returns the time of the next read, unless more messages arrive; `None` if no read is necessary.
    pub(super) const fn next_read_at(&self) -> Option<Instant> {
        self.due
    }

    /// True if the history is to be read now although more messages may arrive. The threshold doubles with
    /// every failed read.
    pub(super) fn is_over_threshold(&self) -> bool {
        let long = UNVERIFIED_MAX.saturating_mul(2_usize.saturating_pow(self.failures));
        let count = self.ids.len();
        count > 0 && count.is_multiple_of(long.min(REMEMBERED_MAX / 2))
    }

    fn has(&self, id: Snowflake) -> bool {
        self.ids.contains(&id)
    }

    fn record_failure(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.due = self.due.map(|_| now + self.pause());
    }

    /// Records that the history was read up to the mark.
    fn mark_read(&mut self, mark: Snowflake) {
        self.ids.retain(|id| *id > mark);
        self.due = self.due.filter(|_| !self.ids.is_empty());
    }

    /// Resets the state: no read is necessary.
    fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Returns the id after which a conversation is to be read: the mark, or else the time of the binding.
fn backfill_mark(place: &BoundConversation) -> Snowflake {
    let since = Snowflake::from_ms(place.bound_at_ms);
    place.backfilled_through.as_deref().and_then(|id| id.parse().ok()).unwrap_or(since)
}

impl ConversationWorker {
    /// Reads possibly missed messages and passes them in. Later messages wait in the queue until the backfill
    /// succeeds or proves impossible. If the queue was full, the backfill begins at `from` at the latest: a
    /// conversation bound by the configuration has no mark before the first message.
    pub(super) async fn backfill(&mut self, from: Option<Snowflake>) {
        let mut pause = BACKOFF.0;
        self.missed = [self.missed, from].into_iter().flatten().min();
        let missed = self.missed.map(|from| Snowflake(from.0.saturating_sub(1)));
        let outcome = loop {
            let begin = match self.inbox.lookup_binding(self.inner.at(self.channel, None)).await {
                BindingLookup::Unknown => None,
                BindingLookup::Bound(place) => {
                    let mark = backfill_mark(&place);
                    Some(missed.map_or(mark, |missed| missed.min(mark)))
                }
                BindingLookup::Unbound => match missed {
                    Some(missed) if self.inner.resolve_static_binding(self.channel).await => Some(missed),
                    _ => break BackfillOutcome::Nothing,
                },
            };
            match begin {
                None => {}
                Some(begin) => match self.read_all(begin).await {
                    Ok(()) => {
                        // Queued events run first: they are older than the data of these checks.
                        self.pending_checks.schedule(CheckKind::Thread, Instant::now());
                        self.schedule_comparison();
                        break BackfillOutcome::Read;
                    }
                    Err(fault) => match self.handle_permanent_fault(&fault).await {
                        Some(outcome) => break outcome,
                        None => {
                            tracing::warn!(thread_id = %self.channel, %fault, "backfill deferred");
                        }
                    },
                },
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACKOFF.1);
        };
        self.unverified.reset();
        if outcome != BackfillOutcome::Refused {
            self.missed = None;
        }
        self.inner.cache.record_backfill(self.channel, outcome);
    }

    /// Reads the messages after the mark, to find those without an event. Stops if `something` completes
    /// before the first page arrives. A failed read is repeated later.
    pub(super) async fn verify_history(&mut self, turn: QueueOptions, something: impl Future<Output = ()>) {
        let place = match self.inbox.lookup_binding(self.inner.at(self.channel, None)).await {
            BindingLookup::Bound(place) => place,
            BindingLookup::Unbound => return self.unverified.reset(),
            BindingLookup::Unknown => return self.unverified.record_failure(Instant::now()),
        };
        let mark = backfill_mark(&place);
        let first = tokio::select! {
            biased;
            page = self.page(mark, turn) => page,
            () = something => return,
        };
        let read = match first {
            Ok(page) => self.read_from(mark, page, turn).await,
            Err(fault) => Err(fault),
        };
        let fault = match read {
            Ok(false) => return,
            // The author unarchived the thread by writing, and that had no event either.
            Ok(true) => return self.pending_checks.schedule(CheckKind::Thread, Instant::now()),
            Err(fault) => fault,
        };
        if self.handle_permanent_fault(&fault).await.is_some() {
            self.unverified.reset();
        } else {
            tracing::info!(thread_id = %self.channel, %fault, "conversation check deferred");
            self.unverified.record_failure(Instant::now());
        }
    }

    /// Handles faults that a retry does not fix: conversation deleted, or access refused. Returns `None` for
    /// other faults.
    pub(super) async fn handle_permanent_fault(&self, fault: &RestError) -> Option<BackfillOutcome> {
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

    async fn read_all(&mut self, mark: Snowflake) -> Result<(), RestError> {
        let page = self.page(mark, BACKFILL_BUDGET).await?;
        self.read_from(mark, page, BACKFILL_BUDGET).await.map(drop)
    }

    /// Passes in all messages from a page on, page by page, and advances the mark with each page. Skips
    /// messages passed in before. Returns true if a person wrote a message without an event.
    async fn read_from(
        &mut self,
        mark: Snowflake,
        first: History,
        turn: QueueOptions,
    ) -> Result<bool, RestError> {
        let (mut mark, mut page) = (mark, first);
        let mut is_news = false;
        loop {
            page.messages.retain(|message| !self.unverified.has(message.id));
            for message in &page.messages {
                is_news |= self
                    .inner
                    .cache
                    .identity()
                    .is_some_and(|me| classify_message(&me, message) == MessageClass::User);
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
                self.unverified.mark_read(mark);
            }
            if !page.has_more {
                break;
            }
            page = self.page(mark, turn).await?;
        }
        if self.inner.cache.set_inaccessible(self.channel, false) {
            tracing::info!(thread_id = %self.channel, "bound conversation readable again");
        }
        self.unverified.reset();
        Ok(is_news)
    }

    /// Reads a page after a mark and completes the messages with server and roles.
    async fn page(&self, mark: Snowflake, turn: QueueOptions) -> Result<History, RestError> {
        let mut page = self.inner.rest.history(self.channel, mark, turn).await?;
        page.messages.iter().for_each(|message| self.inner.cache.record_message(self.channel, message.id));
        let is_new = |message: &&mut Message| !self.unverified.has(message.id);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(count: u64, failures: u32, now: Instant) -> UnverifiedMessages {
        let mut behind = UnverifiedMessages { failures, ..UnverifiedMessages::default() };
        (1..=count).for_each(|id| behind.record(Snowflake(id), now));
        behind
    }

    #[test]
    fn backfill_starts_after_delay_and_backs_off_on_failure() {
        let now = Instant::now();
        for (count, failures, seconds) in [
            (0, 0, None),
            (0, 5, None),
            (1, 0, Some(2)),
            (1, 1, Some(4)),
            (9, 3, Some(16)),
            (9, 40, Some(30)),
        ] {
            let due = seconds.map(|seconds| now + Duration::from_secs(seconds));
            assert_eq!(behind(count, failures, now).next_read_at(), due, "{count} {failures}");
        }
        for (count, failures, is_long) in [
            (0, 0, false),
            (99, 0, false),
            (100, 0, true),
            (101, 0, false),
            (100, 1, false),
            (200, 1, true),
            (5_000, 60, true),
        ] {
            assert_eq!(behind(count, failures, now).is_over_threshold(), is_long, "{count} {failures}");
        }
    }

    /// A failed read forgets nothing: the next read skips all messages already passed in.
    #[test]
    fn received_messages_are_remembered_until_backfill() {
        let now = Instant::now();
        let after = |seconds: u64| Some(now + Duration::from_secs(seconds));
        let mut behind = behind(3, 0, now);
        behind.record_failure(now + Duration::from_secs(2));
        assert!(behind.has(Snowflake(1)) && behind.next_read_at() == after(6));
        behind.record(Snowflake(7), now + Duration::from_secs(3));
        assert_eq!(behind.next_read_at(), after(7));
        behind.mark_read(Snowflake(3));
        assert!(!behind.has(Snowflake(3)) && behind.has(Snowflake(7)) && behind.next_read_at() == after(7));
        behind.reset();
        behind.record_failure(now);
        assert_eq!((behind.next_read_at(), behind.failures), (None, 1), "no message to verify");
        for id in 0..=u64::try_from(REMEMBERED_MAX).unwrap_or(0) {
            behind.record(Snowflake(id), now);
        }
        let (count, has_first) = (behind.ids.len(), behind.has(Snowflake(0)));
        assert_eq!((count, has_first), (REMEMBERED_MAX, false), "the oldest is dropped");
        behind.mark_read(Snowflake(u64::MAX));
        assert_eq!(behind.next_read_at(), None);
    }
}
