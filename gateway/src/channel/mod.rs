//! Channel port: the interface between the gateway and the services in which conversations take place.
//!
//! The port is public: a program can run the gateway with channels of its own in addition to the built-in
//! ones ([`crate::cli::main_with`]). The rest of the gateway is internal.

#[cfg(feature = "discord")]
pub(crate) mod accounts;
#[cfg(not(feature = "discord"))]
#[path = "accounts_disabled.rs"]
pub(crate) mod accounts;
pub(crate) mod adapters;
pub(crate) mod console;
#[cfg(feature = "discord")]
pub(crate) mod discord;
mod health;
mod inbox;

pub(crate) use adapters::{Channels, NoAdapterError, SiblingAccount};

pub use acp_core::binding::{Capabilities, ConversationOrigin};
pub use acp_core::command::authorization::{ApprovalScope, RequesterRole};
pub use acp_core::files::{Attachment, AttachmentContent};
pub use acp_core::message_split::MessageLimit;
pub use acp_core::message_split::Unit;
pub use acp_core::render::PartKind;
pub use acp_core::render::buttons::{ButtonStyle, MessageButton};
pub use acp_core::route::UnboundDestination;
pub use acp_core::rows::ConversationRef;
pub use acp_store::bindings::BoundConversation;
pub use acp_store::inbox::Inbound;
pub use acp_store::inbox::ReplyRoute;
pub use health::ChannelHealth;
pub use health::ChannelMetric;
pub use inbox::{
    BindingLookup, CallerReply, ConversationEvent, ConversationEventOutcome, InboundPort, IntakeOutcome,
    MessageChangeOutcome, PostedReply, QueuedMessage, ReplyReservation, ReserveOutcome, Suggestion,
    SuggestionKind,
};

use acp_core::render::disambiguation_tag::with_tag;
use acp_shared::ids::{RunId, SessionKey};
use bytes::Bytes;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// Boxed future returned by channel adapters and by the inbound port.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Channel adapter. Adapters make no decisions: they send messages in the order of the calls, report each
/// outcome truthfully, and pass on incoming events, repeatedly if need be.
///
/// Every returned future completes: an adapter enforces deadlines of its own and reports an outcome that is
/// still unknown by then as uncertain. The gateway may drop a future before completion when it shuts down.
pub trait ChannelAdapter: Send + Sync + 'static {
    /// Name of the channel in conversations, e.g. `console`.
    fn id(&self) -> &'static str;

    /// Account of the channel that the adapter serves, as named in conversations; `default` for a channel
    /// with a single account.
    fn account_id(&self) -> &str {
        "default"
    }

    /// Returns the kinds of binding that a conversation supports.
    fn capabilities(&self, at: &ConversationRef) -> Capabilities {
        let _ = at;
        Capabilities { here: true, child: false, child_first: false }
    }

    /// Returns the fixed properties of the channel.
    fn properties(&self) -> ChannelProperties;

    /// Returns the reason if the adapter currently receives no messages from a conversation, as far as known,
    /// and `None` otherwise. If several accounts share the conversation, another account reports the reason.
    fn unavailable_reason(&self, at: &ConversationRef) -> Option<String> {
        let _ = at;
        None
    }

    /// Returns the rights that an author has on commands, beyond those on sessions of their own. A channel
    /// without such information keeps the default.
    fn author_role(&self, _author: &str) -> RequesterRole {
        RequesterRole::Person
    }

    /// Sends one message. If the channel has seen the nonce before, nothing is sent, and the id of the first
    /// message is returned.
    fn send<'a>(&'a self, to: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, SendOutcome>;

    /// True if answers of agents in a conversation currently appear under the agents' names
    /// ([`Outgoing::persona`]). A nonce does not identify such a message: after an uncertain send, delivery
    /// repeats the lookup until the message can no longer arrive, and only then sends again.
    fn has_personas(&self, at: &ConversationRef) -> bool {
        let _ = at;
        false
    }

    /// Searches for a message after a send with an uncertain outcome.
    fn lookup<'a>(&'a self, to: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, LookupOutcome>;

    /// Creates a conversation below `parent` that begins with `starter`, or with the message of a person that
    /// the starter names as its origin. The starter's nonce, or the origin, identifies the conversation: a
    /// repeated call finds the existing conversation and creates no second one (H13).
    fn open_child<'a>(
        &'a self,
        parent: &'a ConversationRef,
        starter: &'a Outgoing,
    ) -> BoxFuture<'a, OpenChildOutcome> {
        let _ = (parent, starter);
        let why = format!("channel {} has no child conversations", self.id());
        Box::pin(async move { OpenChildOutcome::Rejected { why, again: false } })
    }

    /// Shows a signal, best effort.
    fn signal<'a>(&'a self, _to: &'a ConversationRef, _signal: &'a Signal) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Returns the names of the people who may answer agents' requests, in the notation of the channel: at
    /// most 200 characters. `None` if no approvers are configured.
    fn approvers(&self) -> Option<String> {
        None
    }

    /// Returns the text that refers to a conversation within a message.
    fn mention(&self, at: &ConversationRef) -> String {
        at.conversation_id.clone()
    }

    /// Returns the health of the account. `None` if nothing can fail.
    fn health(&self) -> Option<ChannelHealth> {
        None
    }

    /// Replaces text and buttons of a sent message, best effort: the last edit wins, and later edits make up
    /// for a lost one.
    fn edit<'a>(
        &'a self,
        _to: &'a ConversationRef,
        _message_id: &'a str,
        _message: &'a Outgoing,
    ) -> BoxFuture<'a, EditOutcome> {
        Box::pin(async { EditOutcome::Gone { why: "messages of this channel cannot be edited".to_owned() } })
    }

    /// Passes incoming events to the inbound port until the future is dropped at shutdown. Called once, after
    /// all inbox rows left by earlier processes are taken up. A channel without event intake keeps the
    /// default.
    fn listen(&self, inbox: Arc<dyn InboundPort>) -> BoxFuture<'_, ()> {
        drop(inbox);
        Box::pin(std::future::ready(()))
    }
}

/// Fixed properties of a channel, as its adapter serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelProperties {
    /// Maximum size of one message.
    pub limit: MessageLimit,
    /// Destination of messages from unbound conversations.
    pub unbound_destination: UnboundDestination,
    /// True if messages sent by the adapter come back as events with the same message ids. The gateway then
    /// drops its own messages. An adapter that sees the author of each message drops those of its account
    /// itself.
    pub receives_own_messages: bool,
    /// True if a conversation has the same id in all accounts of the channel, so that several accounts may
    /// receive one message. Only one account then runs a command that names no account.
    pub shares_conversations: bool,
    /// Maximum size of an attached file, in bytes. `None` if messages carry no files; the gateway then
    /// attaches none.
    pub file_bytes_max: Option<u64>,
    /// Maximum number of buttons of a message. 0 if the channel has no buttons; the text then lists the
    /// options.
    pub buttons_max: usize,
    /// True if texts are rendered as Markdown, with fenced code blocks and `-# ` before a line of small
    /// print.
    pub renders_markdown: bool,
    /// True if the answer of a turn ends with a summary line: agent, time, tools, context, cost.
    pub has_footer: bool,
    /// True if the channel shows [`Signal`]s.
    pub can_signal: bool,
    /// True if sent messages can be edited.
    pub can_edit: bool,
    /// Period after sending in which a message can be edited without restriction, in milliseconds. The status
    /// card of a longer turn continues in a new message. `None`: no restriction.
    pub edit_window_ms: Option<u64>,
}

impl ChannelProperties {
    /// Returns the properties of a channel that receives its own messages and has plain text only.
    #[must_use]
    pub const fn new(limit: MessageLimit, unbound_destination: UnboundDestination) -> Self {
        Self {
            limit,
            unbound_destination,
            receives_own_messages: true,
            shares_conversations: false,
            file_bytes_max: None,
            buttons_max: 0,
            renders_markdown: false,
            has_footer: false,
            can_signal: false,
            can_edit: false,
            edit_window_ms: None,
        }
    }
}

/// Result of creating a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenChildOutcome {
    /// The conversation exists and shows the starter.
    Made {
        /// Id of the conversation in the channel.
        conversation_id: String,
    },
    /// The conversation was certainly not created.
    Rejected {
        /// Reason, for the log.
        why: String,
        /// True if a later attempt may succeed.
        again: bool,
    },
    /// The outcome is unknown: the response was lost.
    Uncertain {
        /// Reason, for the log.
        why: String,
    },
}

/// Outgoing message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outgoing {
    /// Kind of the message.
    pub kind: PartKind,
    /// Visible text.
    pub text: String,
    /// Permanent identifier of the message; every resend carries the same nonce.
    pub nonce: String,
    /// Session that the message is about.
    pub session_key: Option<SessionKey>,
    /// Run that the message belongs to.
    pub run_id: Option<RunId>,
    /// Earliest possible time of the first send, in milliseconds since the Unix epoch; `None` if unknown.
    pub not_before_ms: Option<u64>,
    /// Ids of messages in this conversation that are known to be different ones; a lookup must not return any
    /// of them.
    pub others: Vec<String>,
    /// Buttons in order, at most [`ChannelProperties::buttons_max`]. Without buttons the text says the same.
    pub actions: Vec<MessageButton>,
    /// Short tag that distinguishes the message from another one of ours with the same text. Shown with the
    /// text if a lookup compares texts ([`Outgoing::tagged`]); unused by channels that identify messages by
    /// nonce (H12).
    pub tag: Option<String>,
    /// Name of the speaker, shown if the channel supports names ([`ChannelAdapter::has_personas`]).
    /// Otherwise, or if refused, the message is sent like any other. In a lookup: the message may have been
    /// sent under a name.
    pub persona: Option<String>,
    /// Message of a person that a new conversation is created from ([`ChannelAdapter::open_child`]); the
    /// message itself is then sent to that conversation.
    pub origin: Option<ConversationOrigin>,
    /// Attached files in order. A lookup gets the files too: their number and sizes distinguish the message
    /// from another one with the same text.
    pub files: Vec<OutgoingFile>,
}

impl Outgoing {
    /// Returns the text with the tag, which adds at most 30 characters.
    #[must_use]
    pub fn tagged(&self) -> String {
        with_tag(&self.text, self.tag.as_deref())
    }
}

/// File attached to a message.
#[derive(Clone, PartialEq, Eq)]
pub struct OutgoingFile {
    /// File name without a path.
    pub name: String,
    /// Media type, e.g. `text/markdown`.
    pub content_type: String,
    /// Short description of the content.
    pub description: String,
    /// Content of the file.
    pub bytes: Bytes,
}

impl fmt::Debug for OutgoingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OutgoingFile({}, {} bytes)", self.name, self.bytes.len())
    }
}

/// Progress indication outside of messages, such as a reaction or a typing indicator. Best effort: no caller
/// waits for a signal, and signals may be lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// The message of a person was passed to the agent.
    Received {
        /// Id of the message.
        message_id: String,
    },
    /// The message waits for the end of another turn.
    Queued {
        /// Id of the message.
        message_id: String,
    },
    /// The turn of the message is over, and the answer is in the conversation.
    Done {
        /// Id of the message.
        message_id: String,
    },
    /// The turn of the message failed, and the conversation shows the failure.
    Failed {
        /// Id of the message.
        message_id: String,
    },
    /// The agent is working and waits for nobody. Repeated every [`WORKING_MS`] in this state.
    Working,
}

/// Interval between repeated [`Signal::Working`] signals, in milliseconds.
pub const WORKING_MS: u64 = 8_000;

/// Result of sending a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendOutcome {
    /// The message is in the conversation.
    Sent {
        /// Id of the message in the channel.
        message_id: String,
    },
    /// The message is certainly not in the conversation.
    Rejected {
        /// Reason, for the log.
        why: String,
        /// True if the same message may be accepted later.
        again: bool,
    },
    /// The message is certainly not in the conversation: the channel refused the attached files. For a
    /// message without files this is an ordinary rejection.
    FilesRefused {
        /// Reason, for the log.
        why: String,
        /// True if the same message may soon be accepted with the files. After several such refusals, or at
        /// once if false, delivery sends the content without files.
        again: bool,
    },
    /// The message is certainly not in the conversation: the channel accepts no messages for now.
    Limited {
        /// Time until the same message may be sent again, in milliseconds.
        retry_after_ms: u64,
    },
    /// The outcome is unknown: the response was lost.
    Uncertain {
        /// Reason, for the log.
        why: String,
    },
}

impl SendOutcome {
    /// Turns a refusal of files into a plain rejection if the message has no files.
    pub(crate) fn of(self, message: &Outgoing) -> Self {
        match self {
            Self::FilesRefused { why, again } if message.files.is_empty() => Self::Rejected { why, again },
            outcome => outcome,
        }
    }

    /// Returns the label of the outcome in metrics.
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::Sent { .. } => "sent",
            Self::Rejected { again: false, .. } => "rejected",
            Self::Rejected { again: true, .. } => "again",
            Self::FilesRefused { .. } => "files_refused",
            Self::Limited { .. } => "limited",
            Self::Uncertain { .. } => "uncertain",
        }
    }
}

/// Result of editing a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EditOutcome {
    /// The message shows the new text.
    Edited,
    /// The edit may or may not have been applied; the same edit may be repeated.
    Failed {
        /// Reason, for the log.
        why: String,
    },
    /// The message is unchanged: the channel accepts no edits for now.
    Limited {
        /// Time until the edit may be repeated, in milliseconds.
        retry_after_ms: u64,
    },
    /// The message does not exist or can no longer be edited.
    Gone {
        /// Reason, for the log.
        why: String,
    },
    /// The message is unchanged, and the channel will never accept this edit.
    Refused {
        /// Reason, for the log.
        why: String,
    },
}

/// Result of searching for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LookupOutcome {
    /// The message exists.
    Found {
        /// Id of the message in the channel.
        message_id: String,
    },
    /// The message certainly does not exist and may be sent again with the same nonce.
    Absent,
    /// The search cannot decide.
    Unknown {
        /// Reason, for the log.
        why: String,
    },
    /// The channel could not be queried. The search is repeated as often as necessary.
    Later {
        /// Reason, for the log.
        why: String,
        /// Time until the next search, in milliseconds.
        retry_after_ms: u64,
    },
}
