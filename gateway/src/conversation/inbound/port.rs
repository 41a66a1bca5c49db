//! The inbound port of channels: messages, edits and deletions, and changes of conversations.

use super::{InboundService, Inner};
use crate::channel::{
    BindingLookup, BoundConversation, BoxFuture, CallerReply, ConversationEvent, ConversationEventOutcome,
    ConversationRef, Inbound, InboundPort, IntakeOutcome, MessageChangeOutcome, PostedReply, QueuedMessage,
    ReserveOutcome, Suggestion, SuggestionKind,
};
use crate::runtime::agents;
use acp_core::command;
use acp_core::command::authorization::{ApprovalScope, Requester, RequesterRole};
use acp_core::elicitation::Elicitation;
use acp_core::failure::Failure;
use acp_core::nonce::nonce_of;
use acp_core::request::{CloseRequest, QueueEdit, QueueEditResult};
use acp_core::rows::{PermissionState, SessionRow};
use acp_shared::codes::Code;
use acp_shared::ids::{BindingId, IdempotencyKey, RunId, SessionKey};
use acp_store::command_queries;
use acp_store::inbox::{self, Outcome, ReplyRoute};
use acp_store::{StoreError, bindings, permissions, project_marks};
use std::time::Duration;
use tokio::sync::watch;

/// Maximum number of suggestions.
const SUGGESTIONS_MAX: usize = 25;
/// Maximum number of sessions searched for those of one person.
const SESSIONS_MAX: u32 = 1_000;
/// Reason for deferring a change to a message.
pub(super) const NOT_YET_PROCESSED: &str = "the message is stored and not processed yet";

/// Result of a message so far.
enum MessageProgress {
    /// Run of the message; true if the message is a command.
    Run(SessionKey, RunId, bool),
    /// Not executed yet, so the result is unknown. True if the message is a command.
    NotProcessed(bool),
    /// Nothing that could be changed.
    Nothing,
}

impl InboundPort for InboundService {
    fn offer(&self, message: Inbound) -> BoxFuture<'_, IntakeOutcome> {
        Box::pin(async move {
            let by_caller = message.answer == ReplyRoute::ByCaller;
            let is_private = command::parse(&message.text).is_some_and(|command| command.is_private());
            let failure = match self.accept_without_reply(message).await {
                Ok((outcome, _)) if by_caller => {
                    return IntakeOutcome::Accepted(caller_reply(&outcome, is_private));
                }
                Ok(_) => return IntakeOutcome::Accepted(CallerReply::default()),
                Err(failure) => failure,
            };
            let why = failure.to_string();
            match failure.code {
                Code::Usage | Code::IdempotencyConflict => IntakeOutcome::Refused { why },
                Code::LimitReached if !failure.retryable => IntakeOutcome::Refused { why },
                _ => IntakeOutcome::Later { why },
            }
        })
    }

    fn mark_replied(&self, message: Inbound, answer: Option<PostedReply>) -> BoxFuture<'_, bool> {
        Box::pin(self.record_caller_reply(message, answer))
    }

    fn reserve(&self, message: Inbound, patience: Duration) -> BoxFuture<'_, ReserveOutcome> {
        Box::pin(self.reserve_interaction(message, patience))
    }

    fn withdraw(&self, message: Inbound) -> BoxFuture<'_, bool> {
        Box::pin(self.withdraw_interaction(message))
    }

    fn on_message_edited(
        &self,
        at: ConversationRef,
        message_id: String,
        text: String,
    ) -> BoxFuture<'_, MessageChangeOutcome> {
        Box::pin(async move { self.change_queued(&at, &message_id, QueueEdit::Reword(text)).await })
    }

    fn on_message_deleted(
        &self,
        at: ConversationRef,
        message_id: String,
    ) -> BoxFuture<'_, MessageChangeOutcome> {
        Box::pin(async move { self.change_queued(&at, &message_id, QueueEdit::Drop).await })
    }

    fn queued_messages(&self, at: ConversationRef) -> BoxFuture<'_, Option<Vec<QueuedMessage>>> {
        Box::pin(async move {
            let read = move |db: &_| inbox::waiting(db, &at);
            let rows =
                self.inner.store.read("inbox_waiting", read).await.map_err(log("waiting messages")).ok()?;
            let said = |(message_id, said, text): (String, String, String)| {
                let is_command = command::parse(&said).is_some();
                QueuedMessage { message_id, text: (!is_command).then_some(text) }
            };
            Some(rows.into_iter().map(said).collect())
        })
    }

    fn on_conversation_event(
        &self,
        at: ConversationRef,
        change: ConversationEvent,
    ) -> BoxFuture<'_, ConversationEventOutcome> {
        Box::pin(async move {
            let done = match change {
                ConversationEvent::Archived { by_person: true } => self.inner.set_parked(&at, true).await,
                ConversationEvent::Unarchived => self.inner.set_parked(&at, false).await,
                ConversationEvent::Gone { why } => self.inner.on_conversation_gone(&at, &why).await,
                // Discord unarchives the thread automatically when a message is posted in it.
                ConversationEvent::Archived { by_person: false } | ConversationEvent::Renamed => {
                    Ok(ConversationEventOutcome::Nothing)
                }
            };
            done.unwrap_or_else(|failure| {
                let why = failure.to_string();
                if is_transient(&failure) {
                    return ConversationEventOutcome::Later { why };
                }
                tracing::warn!(thread_id = at.conversation_id, why, "conversation event not applied");
                ConversationEventOutcome::Nothing
            })
        })
    }

    fn bound_conversations(
        &self,
        channel: String,
        account_id: String,
    ) -> BoxFuture<'_, Option<Vec<BoundConversation>>> {
        Box::pin(async move {
            let read = move |db: &_| bindings::bound_conversations(db, &channel, &account_id);
            self.inner.store.read("places", read).await.map_err(log("bound conversations")).ok()
        })
    }

    fn lookup_binding(&self, at: ConversationRef) -> BoxFuture<'_, BindingLookup> {
        Box::pin(async move {
            let read = move |db: &_| bindings::bound_conversation(db, &at);
            match self.inner.store.read("place", read).await.map_err(log("bound conversation")) {
                Ok(Some(place)) => BindingLookup::Bound(place),
                Ok(None) => BindingLookup::Unbound,
                Err(_) => BindingLookup::Unknown,
            }
        })
    }

    fn project_mark(
        &self,
        at: ConversationRef,
        first: Option<String>,
    ) -> BoxFuture<'_, Result<Option<String>, String>> {
        Box::pin(async move {
            let begin = move |tx: &acp_store::Tx<'_>| project_marks::begin(tx, &at, first.as_deref());
            self.inner.store.write("project_mark", begin).await.map_err(|fault| fault.to_string())
        })
    }

    fn binding_change_counter(&self) -> watch::Receiver<u64> {
        self.inner.store.bindings_changed()
    }

    fn set_backfill_mark(&self, at: ConversationRef, through: String) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let write = move |tx: &acp_store::Tx<'_>| {
                bindings::advance_backfill_mark(tx, &at, &through)?;
                project_marks::advance(tx, &at, &through)
            };
            self.inner.store.write("caught_up", write).await.map_err(log("backfill mark")).is_ok()
        })
    }

    fn pending_form(&self, permission_id: String) -> BoxFuture<'_, Option<Elicitation>> {
        Box::pin(async move {
            let read = self.inner.store.read("pending_form", move |db| permissions::get(db, &permission_id));
            let row = read.await.map_err(log("form")).ok()??;
            let form = row.request.what.elicitation().cloned();
            form.filter(|_| row.state == PermissionState::Pending)
        })
    }

    fn suggest(
        &self,
        what: SuggestionKind,
        at: ConversationRef,
        author_id: String,
        prefix: String,
    ) -> BoxFuture<'_, Vec<Suggestion>> {
        Box::pin(async move {
            let found = self.inner.suggestions(what, &at, &author_id).await.unwrap_or_default();
            rank_suggestions(found, &prefix)
        })
    }
}

/// True if the failure may be temporary. A closed session, or an agent that is no longer allowed, fails the
/// same way again.
fn is_transient(failure: &Failure) -> bool {
    failure.retryable || matches!(failure.code, Code::StoreUnavailable | Code::BackendUnavailable)
}

fn log(what: &'static str) -> impl FnOnce(StoreError) -> StoreError {
    move |error| {
        tracing::warn!(%error, subject = what, "control plane access failed");
        error
    }
}

fn caller_reply(outcome: &Outcome, is_private: bool) -> CallerReply {
    CallerReply {
        text: outcome.text().into_owned(),
        private: is_private || matches!(outcome, Outcome::Refused { .. }),
        actions: outcome.asks().map(|asks| asks.actions.clone()).unwrap_or_default(),
        shown: outcome.is_shown(),
    }
}

/// Returns the suggestions with this prefix first, then other matches.
fn rank_suggestions(found: Vec<Suggestion>, prefix: &str) -> Vec<Suggestion> {
    let wanted = prefix.trim().to_lowercase();
    let rank = |it: &Suggestion| {
        let (value, label) = (it.value.to_lowercase(), it.label.to_lowercase());
        if value.starts_with(&wanted) || label.starts_with(&wanted) {
            Some(0)
        } else {
            (value.contains(&wanted) || label.contains(&wanted)).then_some(1)
        }
    };
    let mut ranked: Vec<(u8, Suggestion)> =
        found.into_iter().filter_map(|it| Some((rank(&it)?, it))).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, it)| it).take(SUGGESTIONS_MAX).collect()
}

impl InboundService {
    /// Changes the queued prompt of a message. Runs in the conversation queue, after a message that is being
    /// processed.
    async fn change_queued(
        &self,
        at: &ConversationRef,
        message_id: &str,
        change: QueueEdit,
    ) -> MessageChangeOutcome {
        let amended = self.inner.in_order(at, self.inner.change_queued(at, message_id, change)).await;
        amended.unwrap_or_else(|failure| match failure.code {
            Code::LimitReached if !failure.retryable => MessageChangeOutcome::TooLate,
            _ if is_transient(&failure) => MessageChangeOutcome::Later { why: failure.to_string() },
            code => {
                tracing::info!(%code, %failure, message_id, "message change not applied");
                MessageChangeOutcome::TooLate
            }
        })
    }
}

impl Inner {
    async fn change_queued(
        &self,
        at: &ConversationRef,
        message_id: &str,
        change: QueueEdit,
    ) -> Result<MessageChangeOutcome, Failure> {
        // The prompt of a command differs from the text of its message.
        let is_no_word = |is_command| is_command && matches!(change, QueueEdit::Reword(_));
        let (session, run_id) = match self.message_progress(at, message_id).await? {
            MessageProgress::Run(_, _, is_command) | MessageProgress::NotProcessed(is_command)
                if is_no_word(is_command) =>
            {
                return Ok(MessageChangeOutcome::NotOurs);
            }
            MessageProgress::Run(session, run_id, _) => (session, run_id),
            MessageProgress::NotProcessed(_) => {
                return Ok(MessageChangeOutcome::Later { why: NOT_YET_PROCESSED.to_owned() });
            }
            MessageProgress::Nothing => return Ok(MessageChangeOutcome::NotOurs),
        };
        // Idempotent, so it needs no derived key.
        let now = self.service.queued(&session, run_id, change, IdempotencyKey::mint()).await?;
        Ok(match now {
            QueueEditResult::Done => MessageChangeOutcome::Done,
            QueueEditResult::TooLate | QueueEditResult::Unsteerable => MessageChangeOutcome::TooLate,
        })
    }

    /// Returns the result of a message. Call it in the conversation queue, so that a message in progress is
    /// complete.
    async fn message_progress(
        &self,
        at: &ConversationRef,
        message_id: &str,
    ) -> Result<MessageProgress, Failure> {
        let (at, id) = (at.clone(), message_id.to_owned());
        let Some(row) = self.store.read("inbox_row", move |db| inbox::get(db, &at, &id)).await? else {
            return Ok(MessageProgress::Nothing);
        };
        let is_command = command::parse(&row.inbound.text).is_some();
        Ok(match row.outcome {
            Some(Outcome::Prompted { session_key, run_id, .. }) => {
                MessageProgress::Run(session_key, run_id, is_command)
            }
            None if !row.settled && row.inbound.answer == ReplyRoute::ByMessage => {
                MessageProgress::NotProcessed(is_command)
            }
            _ => MessageProgress::Nothing,
        })
    }

    async fn set_parked(
        &self,
        at: &ConversationRef,
        is_parked: bool,
    ) -> Result<ConversationEventOutcome, Failure> {
        let of = at.clone();
        let park = move |tx: &acp_store::Tx<'_>| bindings::park(tx, &of, is_parked);
        if !self.store.write("binding_park", park).await? {
            return Ok(ConversationEventOutcome::Nothing);
        }
        tracing::info!(
            channel = at.channel,
            thread_id = at.conversation_id,
            is_parked,
            "conversation parked or resumed"
        );
        Ok(if is_parked { ConversationEventOutcome::Parked } else { ConversationEventOutcome::Resumed })
    }

    /// Handles a deleted conversation: ends its binding, and closes a session without other bindings.
    async fn on_conversation_gone(
        &self,
        at: &ConversationRef,
        why: &str,
    ) -> Result<ConversationEventOutcome, Failure> {
        let of = at.clone();
        let found = self.store.read("binding_gone", move |db| {
            let Some(binding) = bindings::of_conversation(db, &of)? else { return Ok(None) };
            let all = bindings::of_session(db, &binding.session_key)?;
            Ok(Some((binding, all.len())))
        });
        let Some((binding, count)) = found.await? else { return Ok(ConversationEventOutcome::Nothing) };
        let reason = format!("its conversation is gone: {why}");
        let (id, session) = (binding.binding_id, binding.session_key);
        tracing::info!(
            session_key = %session,
            thread_id = at.conversation_id,
            why,
            "bound conversation gone"
        );
        if count > 1 {
            self.store.write("binding_gone", move |tx| bindings::end(tx, id, &reason)).await?;
        } else {
            self.service.close(&session, CloseRequest::new(reason), close_idempotency_key(id)?).await?;
        }
        Ok(ConversationEventOutcome::Ended)
    }

    async fn suggestions(
        &self,
        what: SuggestionKind,
        at: &ConversationRef,
        author_id: &str,
    ) -> Result<Vec<Suggestion>, Failure> {
        let one = |value: String, label: String| Suggestion { value, label };
        Ok(match what {
            SuggestionKind::Agents => {
                let names = agents::names(&self.service.config().config);
                names.into_iter().map(|name| one(name.to_string(), name.to_string())).collect()
            }
            SuggestionKind::Sessions => {
                let rows = self.visible_sessions(at, author_id).await?;
                let shown = |row: SessionRow| {
                    let key = row.session_key.to_string();
                    let name = row.label.clone().unwrap_or_else(|| key.clone());
                    one(key, format!("{name} ({}, {})", row.agent, row.state.as_str()))
                };
                rows.into_iter().map(shown).collect()
            }
            SuggestionKind::Options => {
                let at = at.clone();
                let read = self.store.read("options", move |db| command_queries::options_at(db, &at));
                read.await?.into_iter().map(|(id, name)| one(id, name)).collect()
            }
        })
    }

    /// Returns the open sessions that a person may see, last used first: the same as `/acp sessions` lists.
    async fn visible_sessions(
        &self,
        at: &ConversationRef,
        author_id: &str,
    ) -> Result<Vec<SessionRow>, Failure> {
        let rows = self.service.sessions(false, SESSIONS_MAX).await?;
        let standing =
            self.channels.get(at).map_or(RequesterRole::Person, |channel| channel.author_role(author_id));
        let name = author_id.to_owned();
        let read = self.store.read("suggest_sessions", move |db| {
            let by = Requester { name: &name, role: standing, approves: ApprovalScope::Nothing };
            let mut own = Vec::new();
            for row in rows {
                if by.owns(&command_queries::owners(db, &row.session_key)?) {
                    own.push(row);
                }
            }
            Ok(own)
        });
        Ok(read.await?)
    }
}

/// Returns the idempotency key for closing the session of a deleted conversation.
fn close_idempotency_key(id: BindingId) -> Result<IdempotencyKey, Failure> {
    IdempotencyKey::parse(&format!("gone:{}", nonce_of(&["gone", &id.to_string()])))
        .map_err(|error| Failure::new(Code::Runtime, error.to_string()))
}
