//! What the service knows: plain data, as it is kept in the store.
//!
//! Ids are numbers here and strings in everything that leaves. Times are milliseconds since 1970.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A snowflake: milliseconds since 2015 in the upper 42 bits.
pub type Id = u64;

/// Milliseconds since 1970 on the fake's own clock.
pub type Ms = u64;

/// The first millisecond of 2015, where snowflakes begin.
pub const DISCORD_EPOCH_MS: Ms = 1_420_070_400_000;

/// Channel types that are modelled.
pub mod channel_kind {
    /// A text channel of a guild.
    pub const TEXT: u8 = 0;
    /// A public thread.
    pub const PUBLIC_THREAD: u8 = 11;
    /// A private thread.
    pub const PRIVATE_THREAD: u8 = 12;
}

/// Message types that are modelled.
pub mod message_kind {
    /// What somebody wrote.
    pub const DEFAULT: u8 = 0;
    /// The notice in the parent that a thread was made without a message.
    pub const THREAD_CREATED: u8 = 18;
    /// A reply.
    pub const REPLY: u8 = 19;
    /// The answer to a slash command.
    pub const CHAT_INPUT_COMMAND: u8 = 20;
    /// The first message of a thread that was made from a message.
    pub const THREAD_STARTER: u8 = 21;
}

/// Message flags that are modelled.
pub mod message_flag {
    /// Embeds of links are not shown.
    pub const SUPPRESS_EMBEDS: u64 = 1 << 2;
    /// A thread was made from this message; it has the same id.
    pub const HAS_THREAD: u64 = 1 << 5;
    /// Only the person who acted sees it.
    pub const EPHEMERAL: u64 = 1 << 6;
    /// A deferred answer: "is thinking".
    pub const LOADING: u64 = 1 << 7;
    /// No notification.
    pub const SUPPRESS_NOTIFICATIONS: u64 = 1 << 12;
}

/// An account: a person or a bot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct User {
    /// Its id.
    pub id: Id,
    /// Its name.
    pub name: String,
    /// Whether it is a bot.
    pub bot: bool,
}

/// A bot: its account, application and switches of the developer portal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bot {
    /// The id of its account.
    pub user_id: Id,
    /// The id of its application.
    pub application_id: Id,
    /// What it shows in `Authorization: Bot …` and IDENTIFY.
    pub token: String,
    /// Privileged intents that the portal allows, as bits.
    pub privileged_intents: u64,
    /// What was taken away: by channel or guild, names of permissions.
    #[serde(default)]
    pub denied: BTreeMap<Id, BTreeSet<String>>,
    /// IDENTIFYs of the current day.
    #[serde(default)]
    pub identifies: u64,
    /// When the count of IDENTIFYs begins anew.
    #[serde(default)]
    pub identifies_reset_ms: Ms,
}

/// A role of a guild.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Role {
    /// Its id.
    pub id: Id,
    /// Its name.
    pub name: String,
    /// Whether anybody may ping it.
    pub mentionable: bool,
}

/// A member of a guild.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Member {
    /// Roles.
    pub roles: BTreeSet<Id>,
    /// When it joined.
    pub joined_ms: Ms,
}

/// A guild.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Guild {
    /// Its id, which is that of its `@everyone` role too.
    pub id: Id,
    /// Its name.
    pub name: String,
    /// Who owns it.
    pub owner_id: Id,
    /// Roles besides `@everyone`.
    pub roles: Vec<Role>,
    /// Members by account.
    pub members: BTreeMap<Id, Member>,
    /// Not deleted.
    pub alive: bool,
}

/// What makes a channel a thread.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Thread {
    /// Who made it.
    pub owner_id: Id,
    /// Whether it is archived.
    pub archived: bool,
    /// Whether only those with MANAGE_THREADS can unarchive it.
    pub locked: bool,
    /// Minutes without activity until it is archived.
    pub auto_archive_minutes: u64,
    /// When `archived` changed last, or activity was last seen.
    pub archive_ms: Ms,
    /// When it was last used: posts and unarchiving.
    pub active_ms: Ms,
    /// Whether non-moderators may add others (private threads).
    pub invitable: bool,
    /// Messages ever sent into it, without the first one.
    pub total_sent: u64,
    /// Messages in it now, without the first one.
    pub message_count: u64,
    /// Members, with the time at which they joined.
    pub members: BTreeMap<Id, Ms>,
}

/// A channel or thread.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Channel {
    /// Its id; a thread that was made from a message has the id of that message.
    pub id: Id,
    /// Its guild.
    pub guild_id: Id,
    /// See [`channel_kind`].
    pub kind: u8,
    /// Its name.
    pub name: String,
    /// The topic of a channel.
    pub topic: Option<String>,
    /// Of a thread: the channel it is in.
    pub parent_id: Option<Id>,
    /// Where it is in the list.
    pub position: u64,
    /// Seconds between two messages of one person.
    pub slowmode_s: u64,
    /// The newest message, deleted or not.
    pub last_message_id: Option<Id>,
    /// Of a thread.
    pub thread: Option<Thread>,
    /// Not deleted.
    pub alive: bool,
}

/// A file of a message. Its bytes are in the store, under the same id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Its id.
    pub id: Id,
    /// Its name.
    pub filename: String,
    /// What kind it is said to be.
    pub content_type: Option<String>,
    /// What it shows.
    pub description: Option<String>,
    /// Bytes.
    pub size: u64,
}

/// Who was notified by a message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pings {
    /// `@everyone` or `@here`.
    pub everyone: bool,
    /// People.
    pub users: BTreeSet<Id>,
    /// Roles.
    pub roles: BTreeSet<Id>,
}

impl Pings {
    /// Whether nobody was notified.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.everyone && self.users.is_empty() && self.roles.is_empty()
    }
}

/// The use of a command or component that a message answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Origin {
    /// The interaction.
    pub interaction_id: Id,
    /// Its type.
    pub kind: u8,
    /// Who acted.
    pub user_id: Id,
    /// The name of the command.
    pub name: Option<String>,
}

/// A message.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Message {
    /// Its id.
    pub id: Id,
    /// Where it is.
    pub channel_id: Id,
    /// Who wrote it; the webhook's id where a webhook did.
    pub author_id: Id,
    /// The webhook that wrote it.
    pub webhook_id: Option<Id>,
    /// The application behind an interaction or webhook.
    pub application_id: Option<Id>,
    /// The name that a webhook gave itself.
    pub username: Option<String>,
    /// See [`message_kind`].
    pub kind: u8,
    /// The text.
    pub content: String,
    /// The nonce it came with.
    pub nonce: Option<Value>,
    /// Whether that nonce was to be enforced.
    pub enforce_nonce: bool,
    /// Embeds as sent.
    pub embeds: Vec<Value>,
    /// Components as sent.
    pub components: Vec<Value>,
    /// Files.
    pub attachments: Vec<Attachment>,
    /// See [`message_flag`].
    pub flags: u64,
    /// The message it answers.
    pub replied_to: Option<Id>,
    /// Who is mentioned, as far as `allowed_mentions` let it.
    pub mentions: Pings,
    /// Who was notified by it, at its creation or by any edit.
    pub pinged: Pings,
    /// By emoji, who reacted.
    pub reactions: BTreeMap<String, BTreeSet<Id>>,
    /// Of an answer to an interaction.
    pub origin: Option<Origin>,
    /// When it was made.
    pub created_ms: Ms,
    /// When it was last edited.
    pub edited_ms: Option<Ms>,
    /// How often it was edited.
    pub edits: u64,
    /// When it was deleted. It stays for the transcript.
    pub deleted_ms: Option<Ms>,
}

/// A webhook.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Webhook {
    /// Its id.
    pub id: Id,
    /// Its channel.
    pub channel_id: Id,
    /// Its name.
    pub name: String,
    /// What its URL ends with.
    pub token: String,
    /// The application that made it.
    pub application_id: Option<Id>,
    /// Who made it.
    pub user_id: Id,
    /// Not deleted.
    pub alive: bool,
}

/// A command of an application.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Command {
    /// Its id.
    pub id: Id,
    /// Whose it is.
    pub application_id: Id,
    /// Where it is, if not everywhere.
    pub guild_id: Option<Id>,
    /// Changes with each change.
    pub version: Id,
    /// As it was sent.
    pub body: Value,
}

/// What became of an interaction.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Interaction {
    /// Its id.
    pub id: Id,
    /// What answers it.
    pub token: String,
    /// Whose it is.
    pub application_id: Id,
    /// 2 command, 3 component, 4 autocompletion, 5 modal.
    pub kind: u8,
    /// Where.
    pub channel_id: Id,
    /// Who.
    pub user_id: Id,
    /// The name of the command.
    pub name: Option<String>,
    /// The message whose component was used.
    pub message_id: Option<Id>,
    /// When.
    pub created_ms: Ms,
    /// The type of the first response, when it came, and its body.
    pub answered: Option<Answered>,
    /// The message that is `@original`.
    pub original_id: Option<Id>,
}

/// The first response to an interaction.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answered {
    /// Its type.
    pub kind: u8,
    /// When it came.
    pub at_ms: Ms,
    /// Its data: the modal, the choices.
    pub data: Value,
}
