//! Gateway events as plain data, without types of a Discord library.
//!
//! Events arrive in the order of their connection. Each may arrive never, once or several times (gateway
//! documentation). Consumers must therefore key their work by the ids in the events, and backfill after
//! [`Event::Ready`] and [`Event::Gap`].

use super::ids::Snowflake;
use crate::core::close_codes::FatalGatewayError;
use acp_shared::redact::Secret;

/// Gateway event.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A new session began. Events between the last session and this one are lost: treat this as a gap and
    /// read all relevant state again.
    Ready(ReadyEvent),
    /// The session was resumed after a broken connection. Missed events arrive before or after this one.
    Resumed,
    /// New message.
    Message(Box<Message>),
    /// Edited message: its author changed it, or Discord added something (for example a link preview).
    MessageEdited(MessageEdit),
    /// Deleted messages.
    MessagesDeleted {
        /// Channel of the messages.
        channel: Snowflake,
        /// Message ids.
        ids: Vec<Snowflake>,
    },
    /// Slash command.
    Command(Box<SlashCommand>),
    /// Click on a button.
    Click(Box<Click>),
    /// Values that a user entered into a modal.
    Submit(Box<Submission>),
    /// Request for suggestions while a user types a slash command.
    Autocomplete(Box<SlashCommand>),
    /// New thread, or thread that the bot was added to.
    ThreadCreated(Thread),
    /// Thread that was renamed, archived, unarchived or locked, or that became visible with its channel.
    ThreadChanged(Thread),
    /// Deleted thread.
    ThreadDeleted(Snowflake),
    /// Changed channel, possibly in its permissions. Discord does not report separately if its threads became
    /// invisible.
    ChannelChanged(Snowflake),
    /// Deleted channel. Its threads are deleted as well.
    ChannelDeleted(Snowflake),
    /// Guild that became unreachable.
    GuildGone {
        /// Guild id.
        id: Snowflake,
        /// True for a temporary outage; false if the bot was removed from the guild.
        outage: bool,
    },
    /// Reachable guild: at the start, after an outage, or because the bot was added.
    GuildBack(Snowflake),
    /// Changed or deleted role of a guild: the channels visible to the bot may have changed.
    RightsChanged(Snowflake),
    /// Missed events: backfill all bound conversations. For missed clicks and commands, Discord itself shows
    /// a failure to the user.
    Gap {
        /// Reason.
        why: GapCause,
        /// Number of events known to be lost.
        lost: u64,
    },
    /// The connection is lost; the client reconnects.
    Disconnected {
        /// Reason, for people.
        why: String,
    },
    /// The client stops, since a new connection would end in the same way. No event follows.
    Failed(FatalGatewayError),
}

impl Event {
    /// Returns the guild of a message or of an interaction, `Some(None)` for direct messages; `None` for other events.
    #[must_use]
    pub fn conversation_guild(&self) -> Option<Option<Snowflake>> {
        match self {
            Self::Message(message) => Some(message.guild),
            Self::Command(command) | Self::Autocomplete(command) => Some(command.interaction.guild),
            Self::Click(click) => Some(click.interaction.guild),
            Self::Submit(submission) => Some(submission.interaction.guild),
            _ => None,
        }
    }
}

/// Cause of a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GapCause {
    /// Events arrived faster than they were taken.
    Overflow,
    /// A relevant event could not be parsed.
    Unreadable,
    /// Sequence numbers are missing, or a frame was not an event.
    Skipped,
}

/// Start of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyEvent {
    /// User of the bot.
    pub me: User,
    /// Application that commands are registered for.
    pub application: Snowflake,
    /// Session id.
    pub session: String,
    /// Shard of the session.
    pub shard: ShardId,
    /// Guilds of the bot; [`Event::GuildBack`] follows for each that is available.
    pub guilds: Vec<Snowflake>,
}

/// Position of a shard among the shards of a bot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardId {
    /// Number of the shard, from 0.
    pub number: u64,
    /// Number of shards.
    pub count: u64,
}

impl ShardId {
    /// Only shard of a bot.
    pub const ONLY: Self = Self { number: 0, count: 1 };
}

/// User of Discord.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub id: Snowflake,
    /// Unique name.
    pub name: String,
    /// Display name in the guild or in general, if one is set.
    pub display_name: Option<String>,
    /// True if the user is a bot.
    pub bot: bool,
}

/// Member of a guild, or participant of a direct message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// User.
    pub user: User,
    /// Roles in the guild.
    pub roles: Vec<Snowflake>,
}

/// Message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Message id.
    pub id: Snowflake,
    /// Channel or thread.
    pub channel: Snowflake,
    /// Guild; `None` in direct messages, and for messages read by a request.
    pub guild: Option<Snowflake>,
    /// Author. For a webhook, the name that it chose.
    pub author: Member,
    /// Webhook that wrote the message.
    pub webhook: Option<Snowflake>,
    /// Application of the bot or webhook that wrote the message.
    pub application: Option<Snowflake>,
    /// Message type of the documentation.
    pub kind: u64,
    /// Text; empty without the message content intent.
    pub text: String,
    /// Attached files.
    pub attachments: Vec<Attachment>,
    /// Mentioned users.
    pub mentions: Vec<Snowflake>,
    /// Nonce of the sender; present only in gateway events, and only for the bot's own messages.
    pub nonce: Option<String>,
    /// Custom ids of the buttons; empty for messages of others without the message content intent.
    pub buttons: Vec<String>,
}

impl Message {
    /// True if the message mentions this user.
    #[must_use]
    pub fn mentions(&self, user: Snowflake) -> bool {
        self.mentions.contains(&user)
    }
}

/// Changed fields of a message; `None` for fields that the event leaves out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageEdit {
    /// Message id.
    pub id: Snowflake,
    /// Channel or thread.
    pub channel: Snowflake,
    /// Author.
    pub author: Option<User>,
    /// Webhook that wrote the message.
    pub webhook: Option<Snowflake>,
    /// New text.
    pub text: Option<String>,
    /// New list of files.
    pub attachments: Option<Vec<Attachment>>,
    /// True if the author edited the message; false if Discord did, for example to add a link preview.
    pub by_author: bool,
}

/// File of a message. Its URL expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// File name.
    pub name: String,
    /// Download URL.
    pub url: String,
    /// Size in bytes.
    pub size: u64,
    /// Media type, if Discord reports it.
    pub mime: Option<String>,
}

/// Common part of all interactions. The first response, by id and token, is due within three seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interaction {
    /// Interaction id, which is the key of its processing.
    pub id: Snowflake,
    /// Application of the bot.
    pub application: Snowflake,
    /// Token for responses, valid for 15 minutes.
    pub token: Secret,
    /// Guild; `None` in direct messages.
    pub guild: Option<Snowflake>,
    /// Channel or thread.
    pub channel: Snowflake,
    /// Parent channel of the thread, if Discord reports one; clicks often have none.
    pub parent: Option<Snowflake>,
    /// True if the channel is a thread; `None` if Discord does not report its type.
    pub is_thread: Option<bool>,
    /// User who caused the interaction.
    pub member: Member,
}

/// Slash command, submitted or still being typed.
#[derive(Debug, Clone, PartialEq)]
pub struct SlashCommand {
    /// Common part of the interaction.
    pub interaction: Interaction,
    /// Command name, e.g. `acp`.
    pub name: String,
    /// Options with their values, as a tree.
    pub options: Vec<GivenOption>,
}

/// Option that the user gave.
#[derive(Debug, Clone, PartialEq)]
pub struct GivenOption {
    /// Option name.
    pub name: String,
    /// Value.
    pub value: Value,
    /// True if the user is typing this option.
    pub focused: bool,
}

/// Value of an option.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Subcommand or group, with its options.
    Sub(Vec<GivenOption>),
    /// Text. An option that is still being typed is always a text.
    Text(String),
    /// Integer.
    Integer(i64),
    /// Boolean.
    Bool(bool),
    /// Value of a type that no command of this bot has.
    Other,
}

/// Click on a button.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Click {
    /// Common part of the interaction.
    pub interaction: Interaction,
    /// Custom id of the button.
    pub custom_id: String,
    /// Message that holds the button.
    pub message: Snowflake,
}

/// Values that a user entered into a modal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// Common part of the interaction.
    pub interaction: Interaction,
    /// Custom id of the modal.
    pub custom_id: String,
    /// Custom id and value of each input.
    pub values: Vec<(String, String)>,
}

/// Thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Thread id. A thread that was started from a message has the id of the message.
    pub id: Snowflake,
    /// Guild.
    pub guild: Option<Snowflake>,
    /// Parent channel.
    pub parent: Option<Snowflake>,
    /// True if the thread is archived. A new message unarchives it, unless it is locked.
    pub archived: bool,
    /// Inactivity, in minutes, after which Discord archives the thread.
    pub auto_archive_minutes: u64,
    /// Time of the last change of the archive state, as Discord writes it.
    pub archived_at: Option<String>,
}

/// Values with nothing but ids, as the base of those in tests.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    pub(crate) fn member(user: u64, bot: bool) -> Member {
        let user = User { id: Snowflake(user), name: "ann".to_owned(), display_name: None, bot };
        Member { user, roles: Vec::new() }
    }

    pub(crate) fn message(id: u64, author: Member) -> Message {
        Message {
            id: Snowflake(id),
            channel: Snowflake(1),
            guild: None,
            author,
            webhook: None,
            application: None,
            kind: 0,
            text: String::new(),
            attachments: Vec::new(),
            mentions: Vec::new(),
            nonce: None,
            buttons: Vec::new(),
        }
    }

    pub(crate) fn interaction(id: u64) -> Interaction {
        Interaction {
            id: Snowflake(id),
            application: Snowflake(2),
            token: Secret::new("hunter2".to_owned()),
            guild: None,
            channel: Snowflake(3),
            parent: None,
            is_thread: None,
            member: member(9, false),
        }
    }
}
