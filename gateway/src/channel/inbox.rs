//! Inbound port: the interface through which channels pass incoming events to the gateway.

use super::{BoundConversation, BoxFuture, ConversationRef, Inbound, MessageButton};
use acp_core::elicitation::Elicitation;
use std::any::Any;
use std::time::Duration;
use tokio::sync::watch;

/// Entry point for events from channels. The same message (by id within the conversation) may be passed in
/// any number of times and is processed once. Dropping a returned future does not cancel the work.
pub trait InboundPort: Send + Sync + 'static {
    /// Passes in a message, a slash command or a click.
    fn offer(&self, message: Inbound) -> BoxFuture<'_, IntakeOutcome>;

    /// Records that the holder of the [`ReplyReservation`] has replied to the user, or that no reply was due;
    /// the gateway then sends none. `answer` is a reply with buttons that remains in the conversation as a
    /// message; the buttons are removed once obsolete. Returns false if the store failed: keep the
    /// reservation and call again, or the gateway replies too.
    fn mark_replied(&self, message: Inbound, answer: Option<PostedReply>) -> BoxFuture<'_, bool>;

    /// Commits an interaction that the caller replies to ([`ReplyRoute::ByCaller`](super::ReplyRoute::ByCaller)),
    /// without processing. A committed interaction may be acknowledged and is then passed to `offer`. A
    /// commit that has not begun within `patience` is cancelled.
    fn reserve(&self, message: Inbound, patience: Duration) -> BoxFuture<'_, ReserveOutcome>;

    /// Revokes a committed interaction that was never acknowledged: nothing is done about it. Returns true if
    /// revoked.
    fn withdraw(&self, message: Inbound) -> BoxFuture<'_, bool>;

    /// Applies the edit of a message by a person: a queued prompt changes with its message.
    fn on_message_edited(
        &self,
        at: ConversationRef,
        message_id: String,
        text: String,
    ) -> BoxFuture<'_, MessageChangeOutcome>;

    /// Applies the deletion of a message by a person: a queued prompt is dropped.
    fn on_message_deleted(
        &self,
        at: ConversationRef,
        message_id: String,
    ) -> BoxFuture<'_, MessageChangeOutcome>;

    /// Returns the known messages of a conversation whose turn has not begun: an edit or deletion of these
    /// still has an effect. `None` if the store cannot be read now.
    fn queued_messages(&self, at: ConversationRef) -> BoxFuture<'_, Option<Vec<QueuedMessage>>>;

    /// Processes an event of the conversation itself.
    fn on_conversation_event(
        &self,
        at: ConversationRef,
        change: ConversationEvent,
    ) -> BoxFuture<'_, ConversationEventOutcome>;

    /// Returns the bound conversations of an account, each with the backfill mark. `None` if the store cannot
    /// be read now.
    fn bound_conversations(
        &self,
        channel: String,
        account_id: String,
    ) -> BoxFuture<'_, Option<Vec<BoundConversation>>>;

    /// Returns the binding state of one conversation. The parent of `at` is ignored.
    fn lookup_binding(&self, at: ConversationRef) -> BoxFuture<'_, BindingLookup>;

    /// Returns the backfill mark of an unbound channel in which messages open conversations: that which is stored, else the
    /// newest accepted message of the channel, else `first`, which is then stored.
    ///
    /// # Errors
    /// The cause, if the store failed.
    fn project_mark(
        &self,
        at: ConversationRef,
        first: Option<String>,
    ) -> BoxFuture<'_, Result<Option<String>, String>> {
        let _ = at;
        Box::pin(std::future::ready(Ok(first)))
    }

    /// Returns a counter of binding changes. Each change increments the counter before the caller that made
    /// the change gets a response. Read the counter before a call of [`InboundPort::bound_conversations`]:
    /// the result is valid as long as the counter is unchanged. A binding that is being committed at that
    /// moment increments the counter right after.
    fn binding_change_counter(&self) -> watch::Receiver<u64>;

    /// Records that all messages of a conversation up to this id were passed in and accepted without a gap:
    /// by a completed backfill, or by a stream without gaps (H8). Returns false if the store failed.
    fn set_backfill_mark(&self, at: ConversationRef, through: String) -> BoxFuture<'_, bool>;

    /// Returns the form of a pending elicitation. Read-only.
    fn pending_form(&self, permission_id: String) -> BoxFuture<'_, Option<Elicitation>>;

    /// Returns completions of a command for a person who is typing: at most 25, best matches first, and only
    /// sessions of that person. Read-only.
    fn suggest(
        &self,
        what: SuggestionKind,
        at: ConversationRef,
        author_id: String,
        prefix: String,
    ) -> BoxFuture<'_, Vec<Suggestion>>;
}

/// Binding state of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindingLookup {
    /// Bound; contains the backfill mark.
    Bound(BoundConversation),
    /// Not bound.
    Unbound,
    /// The store cannot be read now.
    Unknown,
}

/// Result of passing in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IntakeOutcome {
    /// Committed and processed: need not be passed in again.
    Accepted(CallerReply),
    /// Possibly not committed: pass in again after a pause.
    Later {
        /// Reason, for the log.
        why: String,
    },
    /// Not acceptable, now or later.
    Refused {
        /// Reason, for the log and for the person who waits for a reply.
        why: String,
    },
}

/// Result of committing an interaction.
#[derive(Debug)]
pub enum ReserveOutcome {
    /// Committed: the interaction is processed exactly once, even after a crash.
    Reserved(ReplyReservation),
    /// Duplicate: already processed, or being processed for an earlier caller.
    Duplicate,
    /// Not committed: nothing will be done.
    NotReserved {
        /// Reason, for the person who waits for a reply.
        why: String,
    },
    /// Unknown. If committed, the gateway processes the interaction and replies in the conversation.
    Unknown {
        /// Reason, for the log.
        why: String,
    },
}

/// Reservation of the reply to a committed interaction. The holder replies and records the reply
/// ([`InboundPort::mark_replied`]). After the reservation is dropped, the gateway does the remaining work and
/// replies in the conversation.
#[derive(Debug)]
pub struct ReplyReservation {
    pub(crate) is_new: bool,
    pub(crate) _held: Box<dyn Any + Send + Sync>,
}

impl ReplyReservation {
    /// True if neither this process nor an earlier one had committed the interaction before.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        self.is_new
    }
}

/// Reply for the caller to send, if the caller of a message is responsible for replies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallerReply {
    /// Text of the reply; empty if the gateway sends the reply or none is due.
    pub text: String,
    /// True if only the person addressed may see the reply.
    pub private: bool,
    /// Buttons of the reply.
    pub actions: Vec<MessageButton>,
    /// True if the answered message in the conversation shows the same result.
    pub shown: bool,
}

/// Reply with buttons that remains in the conversation as a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostedReply {
    /// Id of the message in the channel.
    pub message_id: String,
    /// Text of the message.
    pub text: String,
}

/// Result of an edit or deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageChangeOutcome {
    /// Applied.
    Done,
    /// Not applied: the turn has begun or is over.
    TooLate,
    /// Not a queued message: no prompt, or never passed in.
    NotOurs,
    /// Not applied; a retry may succeed.
    Later {
        /// Reason, for the log.
        why: String,
    },
}

/// Message whose turn has not begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedMessage {
    /// Id of the message in the channel.
    pub message_id: String,
    /// Text that the agent will get; `None` for a command.
    pub text: Option<String>,
}

/// Event of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConversationEvent {
    /// Archived.
    Archived {
        /// True if a person archived the conversation, false if the service did after inactivity.
        by_person: bool,
    },
    /// Unarchived.
    Unarchived,
    /// Renamed.
    Renamed,
    /// Deleted, or permanently inaccessible.
    Gone {
        /// Reason, recorded with the end of the binding.
        why: String,
    },
}

/// Effect of a conversation event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConversationEventOutcome {
    /// Delivery is paused until a person writes in the conversation or unarchives it.
    Parked,
    /// Pending messages are delivered.
    Resumed,
    /// The binding has ended.
    Ended,
    /// No effect.
    Nothing,
    /// No effect; a retry may succeed.
    Later {
        /// Reason, for the log.
        why: String,
    },
}

/// Kind of suggestion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuggestionKind {
    /// Agents that can be started.
    Agents,
    /// Open sessions.
    Sessions,
    /// Options of the agent in this conversation.
    Options,
}

/// Suggestion for a command argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suggestion {
    /// Value that is inserted into the command.
    pub value: String,
    /// Text that people see.
    pub label: String,
}
