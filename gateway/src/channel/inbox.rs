//! Where channels bring what people say and do.

use super::{Action, ConversationRef, Inbound, Place, Reply};
use std::any::Any;
use std::time::Duration;
use tokio::sync::watch;

/// Where channels bring what people say and do. The same message (by its id in its conversation) may be brought any
/// number of times, and is acted on once. Whoever drops a call before its answer stops nothing.
pub trait Inbox: Send + Sync + 'static {
    /// Brings a message, a slash command or a click.
    fn offer(&self, message: Inbound) -> Reply<'_, Offered>;

    /// Whoever holds a [`Claim`] to this has told what came of it, as far as anything was to be told: nobody else says it.
    /// An answer with buttons stands in the conversation as a message of its own, and loses them once they mean nothing
    /// any more. Whether that is kept; until it is, the claim must be held, or the conversation is told too.
    fn told(&self, message: Inbound, answer: Option<AnswerShown>) -> Reply<'_, bool>;

    /// Keeps what somebody waits for an answer to ([`Answer::ByCaller`](super::Answer::ByCaller)), and does nothing about
    /// it yet: what is kept may be called taken, and is offered then. What is not kept within this time never is.
    fn keep_first(&self, message: Inbound, patience: Duration) -> Reply<'_, Kept>;

    /// Takes back what was just kept and was never called taken: nothing is done about it. Whether it is so.
    fn withdraw(&self, message: Inbound) -> Reply<'_, bool>;

    /// A person gave a message another text: while its prompt waits, the prompt changes with it.
    fn edited(&self, at: ConversationRef, message_id: String, text: String) -> Reply<'_, Amended>;

    /// A person took a message back: while its prompt waits, it is dropped.
    fn deleted(&self, at: ConversationRef, message_id: String) -> Reply<'_, Amended>;

    /// The messages of a conversation whose turn has not begun, as they are known: what is changed about one of them, or
    /// that it is gone, still counts. `None` when that cannot be read now.
    fn waiting(&self, at: ConversationRef) -> Reply<'_, Option<Vec<Waiting>>>;

    /// Something happened to a conversation itself.
    fn changed(&self, at: ConversationRef, change: Change) -> Reply<'_, Changed>;

    /// The bound conversations of an account, and how far each was read. `None` when that cannot be read now.
    fn bound(&self, channel: String, account_id: String) -> Reply<'_, Option<Vec<Place>>>;

    /// One conversation, as far as it is bound. Only its names in the channel matter.
    fn place(&self, at: ConversationRef) -> Reply<'_, Placed>;

    /// Counts up after each change of what is bound, before whoever binds learns that it is done. Taken before
    /// [`Inbox::bound`] is asked, what that says holds as long as the number stands; a binding that is being made at
    /// that moment counts up right after.
    fn bindings_changed(&self) -> watch::Receiver<u64>;

    /// Everything of a conversation up to this message id was brought in and taken, without a gap: by a completed
    /// look through its history, or by a stream that has none (H8). Whether that is kept.
    fn caught_up(&self, at: ConversationRef, through: String) -> Reply<'_, bool>;

    /// What may follow a command, while a person types: 25 at most, those that fit best first, and of sessions those
    /// that are theirs. Reads only.
    fn suggest(
        &self,
        what: Suggest,
        at: ConversationRef,
        author_id: String,
        prefix: String,
    ) -> Reply<'_, Vec<Suggestion>>;
}

/// Whether a conversation is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placed {
    /// It is, and was read so far.
    At(Place),
    /// It is not.
    Nowhere,
    /// That cannot be read now.
    Unknown,
}

/// What became of a message that was brought in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offered {
    /// It is kept, and was acted on: it need not be brought again.
    Taken(Said),
    /// It may not be kept: bring it again after a moment.
    Later {
        /// Why, for the log.
        why: String,
    },
    /// It is no message that can be taken.
    Refused {
        /// Why, for the log and for whoever waits for an answer.
        why: String,
    },
}

/// What became of something that was to be kept.
#[derive(Debug)]
pub enum Kept {
    /// It is kept, and is done once whatever happens now.
    Taken(Claim),
    /// It came before: it was done, or whoever brought it then is at it.
    Repeated,
    /// It is not kept, and nothing will be done about it.
    Not {
        /// Why, for whoever waits for an answer.
        why: String,
    },
    /// Nobody knows. If it is kept it is done, and told in the conversation.
    Unknown {
        /// Why, for the log.
        why: String,
    },
}

/// Whoever holds this says what came of something that was kept, and that it is said ([`Inbox::told`]). Once nobody
/// holds it, the gateway does what is left to be done, and tells the conversation what came of it.
#[derive(Debug)]
pub struct Claim {
    pub(crate) is_new: bool,
    pub(crate) _held: Box<dyn Any + Send + Sync>,
}

impl Claim {
    /// Whether it was not kept before, by this process or one before it.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        self.is_new
    }
}

/// What is to be said to whoever brought a message that is answered by its caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// What; empty when the gateway says it itself, or nothing is to be said.
    pub text: String,
    /// Whether it is for them alone.
    pub private: bool,
    /// Its buttons.
    pub actions: Vec<Action>,
    /// Whether the conversation shows the same by itself, in the message that was answered.
    pub shown: bool,
}

/// A message with buttons that answers another one, and stays in its conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerShown {
    /// The channel's id of it.
    pub message_id: String,
    /// What it says.
    pub text: String,
}

/// What became of a change to a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Amended {
    /// It is as the person wants it now.
    Done,
    /// Its turn has begun or is over: nothing was changed.
    TooLate,
    /// It is none that waits: not a prompt, or never brought in.
    NotOurs,
    /// Nothing was changed; it may be tried again.
    Later {
        /// Why, for the log.
        why: String,
    },
}

/// A message whose turn has not begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The channel's id of it.
    pub message_id: String,
    /// What it says, as far as that is what the agent will be told: none of a command.
    pub text: Option<String>,
}

/// What happened to a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It was put away.
    Archived {
        /// Whether a person did that, rather than the service after some time.
        by_person: bool,
    },
    /// It was taken out again.
    Unarchived,
    /// It has another name.
    Renamed,
    /// It is not there any more, or nobody here may see it again.
    Gone {
        /// Why, for the record.
        why: String,
    },
}

/// What followed from a change of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// Nothing is said there until somebody speaks there, or takes it out again.
    Parked,
    /// What waited is said.
    Resumed,
    /// It is bound no more.
    Ended,
    /// Nothing.
    Nothing,
    /// Nothing was done; it may be tried again.
    Later {
        /// Why, for the log.
        why: String,
    },
}

/// What is suggested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suggest {
    /// Agents that can be started.
    Agents,
    /// Sessions that are open.
    Sessions,
    /// The agent's options in this conversation.
    Options,
}

/// One suggestion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suggestion {
    /// What is put into the command.
    pub value: String,
    /// What people read.
    pub label: String,
}
