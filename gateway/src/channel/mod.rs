//! The channel port: where conversations live.
//!
//! The port is public: a program can run the gateway with channels of its own beside the built-in ones
//! ([`crate::cli::main_with`]). Everything else of a gateway is its own affair.

pub(crate) mod adapters;
pub(crate) mod console;
#[cfg(feature = "discord")]
pub(crate) mod discord;
mod health;
mod inbox;

pub(crate) use adapters::{Beside, Channels, NoAdapter};

pub use crate::core::binding::Capabilities;
pub use crate::core::command::gate::{Approves, Standing};
pub use crate::core::files::{Attachment, AttachmentContent};
pub use crate::core::project::PartKind;
pub use crate::core::project::actions::{Action, ActionStyle};
pub use crate::core::route::Destination;
pub use crate::core::rows::ConversationRef;
pub use crate::core::split::{Limit, Unit};
pub use crate::store::bindings::Place;
pub use crate::store::inbox::{Answer, Inbound};
pub use health::{Figure, Health};
pub use inbox::{
    Amended, AnswerShown, Change, Changed, Claim, Inbox, Kept, Offered, Placed, Said, Suggest, Suggestion,
    Waiting,
};

use crate::core::project::tag::tagged;
use acp_shared::ids::{RunId, SessionKey};
use bytes::Bytes;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// An answer of a channel on its way.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A channel adapter. Adapters are dumb: they send what they are given, in the order of the calls, and say
/// honestly what became of it; they bring in what people say, as often as they like.
///
/// Every answer comes in the end: an adapter has deadlines of its own, and what it does not know by then is
/// uncertain. A call may be dropped before its answer, when the gateway ends.
pub trait Channel: Send + Sync + 'static {
    /// Its name in conversations, e.g. `console`.
    fn id(&self) -> &'static str;

    /// The account of the channel that it serves, as conversations name it: `default` where there is only one.
    fn account_id(&self) -> &str {
        "default"
    }

    /// What can be done about bindings in one of its conversations.
    fn capabilities(&self, at: &ConversationRef) -> Capabilities {
        let _ = at;
        Capabilities { here: true, child: false, child_first: false }
    }

    /// Whether what it sends comes back to it under the same message ids. Then the gateway drops what it knows to be
    /// its own; an adapter that sees who wrote a message drops its own account's by itself.
    fn hears_itself(&self) -> bool {
        true
    }

    /// Whether the same conversation is called the same in all of its accounts, so that several of them may hear one
    /// message. Then a command that nobody is named in is done by one of them.
    fn shares_conversations(&self) -> bool {
        false
    }

    /// Why it does not hear what is said in one of its conversations just now, as far as it knows; `None` when it does.
    /// Where several accounts share a conversation, another one then says so in its place.
    fn deaf_to(&self, at: &ConversationRef) -> Option<String> {
        let _ = at;
        None
    }

    /// The most that one message may hold.
    fn limit(&self) -> Limit;

    /// The most bytes of a file that goes with a message. `None`: messages carry no files, and none is given.
    fn file_bytes_max(&self) -> Option<u64> {
        None
    }

    /// What it does with messages of conversations that are bound to nothing.
    fn normal(&self) -> Destination;

    /// What a person of that name may do with commands beyond what is theirs. A channel that cannot tell says nothing.
    fn standing(&self, _author: &str) -> Standing {
        Standing::Person
    }

    /// Sends one message. A message whose nonce the channel has seen is not sent again: its first id comes back.
    fn send<'a>(&'a self, to: &'a ConversationRef, message: &'a Outgoing) -> Reply<'a, SendOutcome>;

    /// Whether what agents say in one of its conversations is shown under their own names just now
    /// ([`Outgoing::persona`]). Then a nonce names nothing: what may have been sent so is only looked for until it
    /// cannot arrive any more.
    fn has_personas(&self, at: &ConversationRef) -> bool {
        let _ = at;
        false
    }

    /// Looks for a message whose sending had an uncertain end.
    fn lookup<'a>(&'a self, to: &'a ConversationRef, message: &'a Outgoing) -> Reply<'a, Lookup>;

    /// Makes a conversation below `parent` that begins with `starter`. The starter's nonce names it for ever: asked
    /// again with the same one, it is found again and no second is made (H13).
    fn open_child<'a>(&'a self, parent: &'a ConversationRef, starter: &'a Outgoing) -> Reply<'a, Opened> {
        let _ = (parent, starter);
        let why = format!("{} has no conversations below others", self.id());
        Box::pin(async move { Opened::Rejected { why, again: false } })
    }

    /// Whether it shows [`Signal`]s.
    fn can_signal(&self) -> bool {
        false
    }

    /// Shows something beside the messages, as well as it can.
    fn signal<'a>(&'a self, _to: &'a ConversationRef, _signal: &'a Signal) -> Reply<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// How long a message can be changed freely after it was sent, in milliseconds; the live card of a long turn goes
    /// on in another message then. `None`: for ever.
    fn edits_until_ms(&self) -> Option<u64> {
        None
    }

    /// How many buttons a message has at most. 0: there are none, and what they would say is said in words.
    fn buttons_max(&self) -> usize {
        0
    }

    /// Whether texts are read as Markdown, with fences around code and `-# ` before a line in small letters.
    fn reads_markdown(&self) -> bool {
        false
    }

    /// Who may answer what agents ask, as its people read it: at most 200 characters. `None` where nobody is named.
    fn approvers(&self) -> Option<String> {
        None
    }

    /// Whether the answer of a turn ends with a line about it: agent, time, tools, context, cost.
    fn shows_footer(&self) -> bool {
        false
    }

    /// What a text says that means one of its conversations.
    fn mention(&self, at: &ConversationRef) -> String {
        at.conversation_id.clone()
    }

    /// How it is. `None`: there is nothing that could be wrong with it.
    fn health(&self) -> Option<Health> {
        None
    }

    /// Whether a message that was sent can be given another text.
    fn can_edit(&self) -> bool {
        false
    }

    /// Gives a message that was sent another text and other buttons. Best effort: the last one that is given holds, and one that is
    /// lost is followed by others.
    fn edit<'a>(
        &'a self,
        _to: &'a ConversationRef,
        _message_id: &'a str,
        _message: &'a Outgoing,
    ) -> Reply<'a, EditOutcome> {
        Box::pin(async { EditOutcome::Gone { why: "messages here cannot be changed".to_owned() } })
    }

    /// Brings in what people say, until it is dropped when the gateway ends. Called once, after everything that
    /// was brought in before a restart is taken up. A channel without this is talked to in another way.
    fn listen(&self, inbox: Arc<dyn Inbox>) -> Reply<'_, ()> {
        drop(inbox);
        Box::pin(std::future::ready(()))
    }
}

/// What became of a conversation that was to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// It is there, and shows its starter.
    Made {
        /// Its name in the channel.
        conversation_id: String,
    },
    /// It was provably not made.
    Rejected {
        /// Why, for the log.
        why: String,
        /// Whether it may be made later.
        again: bool,
    },
    /// Nobody knows: the answer was lost.
    Uncertain {
        /// Why, for the log.
        why: String,
    },
}

/// A message on its way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// What it is.
    pub kind: PartKind,
    /// What is shown.
    pub text: String,
    /// Names it for ever.
    pub nonce: String,
    /// The session that it is about.
    pub session_key: Option<SessionKey>,
    /// The run that it belongs to.
    pub run_id: Option<RunId>,
    /// Nothing of it was sent before this, milliseconds since the Unix epoch; `None` where nobody knows.
    pub not_before_ms: Option<u64>,
    /// Messages of this conversation that are known to be others: none of them is looked for.
    pub others: Vec<String>,
    /// Its buttons, in order, as many as the channel has at most ([`Channel::buttons_max`]). Where there are none, the text
    /// says the same.
    pub actions: Vec<Action>,
    /// A few letters that tell it from another message of ours that says the same: shown with the text where a look for
    /// it compares texts ([`Outgoing::tagged`]); no affair of a channel that knows its messages by their nonces (H12).
    pub tag: Option<String>,
    /// The name of who says it, to be shown where the channel can ([`Channel::has_personas`]); else, and where that is
    /// refused, it is said as everything else is. Of a look for it: it may have gone so.
    pub persona: Option<String>,
    /// Files that go with it, in order. A look for the message is given them too: by their number and sizes it is told
    /// from another one with the same text.
    pub files: Vec<OutgoingFile>,
}

impl Outgoing {
    /// The text with the tag, which takes 30 characters at most beside it.
    #[must_use]
    pub fn tagged(&self) -> String {
        tagged(&self.text, self.tag.as_deref())
    }
}

/// A file that goes with a message.
#[derive(Clone, PartialEq, Eq)]
pub struct OutgoingFile {
    /// Its name, without a path.
    pub name: String,
    /// What it is, e.g. `text/markdown`.
    pub content_type: String,
    /// What it shows, in a few words.
    pub description: String,
    /// What is in it.
    pub bytes: Bytes,
}

impl fmt::Debug for OutgoingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OutgoingFile({}, {} bytes)", self.name, self.bytes.len())
    }
}

/// What a conversation is shown beside messages, as well as it can be: nobody waits for it, and it may be lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// A person's message was given to the agent.
    Received {
        /// The message.
        message_id: String,
    },
    /// It waits until another turn is over.
    Queued {
        /// The message.
        message_id: String,
    },
    /// Its turn is over, and the answer stands in the conversation.
    Done {
        /// The message.
        message_id: String,
    },
    /// Its turn failed, and that stands in the conversation.
    Failed {
        /// The message.
        message_id: String,
    },
    /// The agent works, and waits for nobody. Given again every [`WORKING_MS`] as long as that is so.
    Working,
}

/// How often [`Signal::Working`] is given, in milliseconds.
pub const WORKING_MS: u64 = 8_000;

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendOutcome {
    /// It is in the conversation.
    Sent {
        /// The channel's id of it.
        message_id: String,
    },
    /// It is provably not in the conversation.
    Rejected {
        /// Why, for the log.
        why: String,
        /// Whether the same message may be taken later.
        again: bool,
    },
    /// It is provably not in the conversation, and it is not taken with its files. Of a message without files it is a
    /// plain refusal.
    FilesRefused {
        /// Why, for the log.
        why: String,
        /// Whether the same message may be taken in a moment, with its files. After a few times of that, and at once
        /// where this is false, it is told in another way.
        again: bool,
    },
    /// It is provably not in the conversation: the channel takes no more for now.
    Limited {
        /// When the same message may be sent again, in milliseconds from now.
        retry_after_ms: u64,
    },
    /// Nobody knows: the answer was lost.
    Uncertain {
        /// Why, for the log.
        why: String,
    },
}

impl SendOutcome {
    /// The same, of a message that has files or has none: where there are none, none were refused.
    pub(crate) fn of(self, message: &Outgoing) -> Self {
        match self {
            Self::FilesRefused { why, again } if message.files.is_empty() => Self::Rejected { why, again },
            outcome => outcome,
        }
    }

    /// The word in metrics.
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

/// What became of an edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EditOutcome {
    /// The message has the text now.
    Edited,
    /// It may have it or not; the same edit may be made again.
    Failed {
        /// Why, for the log.
        why: String,
    },
    /// It has the text it had: the channel takes no more for now.
    Limited {
        /// When the edit may be made again, in milliseconds from now.
        retry_after_ms: u64,
    },
    /// There is no such message, or it cannot be changed any more.
    Gone {
        /// Why, for the log.
        why: String,
    },
    /// The message stands as it is, and the channel will never take this change of it.
    Refused {
        /// Why, for the log.
        why: String,
    },
}

/// What a look for a message came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// It is there.
    Found {
        /// The channel's id of it.
        message_id: String,
    },
    /// It is provably not there: it may be sent again with the same nonce.
    Absent,
    /// Nobody knows.
    Unknown {
        /// Why, for the log.
        why: String,
    },
    /// The channel could not be asked just now: the message is looked for again, however often that takes.
    Later {
        /// Why, for the log.
        why: String,
        /// After how long, in milliseconds from now.
        retry_after_ms: u64,
    },
}
