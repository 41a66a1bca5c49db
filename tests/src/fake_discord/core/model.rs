//! Data of the service, as it is stored.
//!
//! Ids are numbers here and strings in responses and events. Times are milliseconds since 1970.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A snowflake: milliseconds since 2015 in the upper 42 bits.
pub type Id = u64;

/// Milliseconds since 1970 on the fake's own clock.
pub type Ms = u64;

/// The epoch of snowflakes, the first millisecond of 2015.
pub const DISCORD_EPOCH_MS: Ms = 1_420_070_400_000;

/// Channel types that are modelled.
pub mod channel_kind {
    /// A text channel of a guild.
    pub const TEXT: u8 = 0;
    /// Direct messages of a person with a bot.
    pub const DIRECT: u8 = 1;
    /// A public thread.
    pub const PUBLIC_THREAD: u8 = 11;
}

/// Message types that are modelled.
pub mod message_kind {
    /// A message of a user.
    pub const DEFAULT: u8 = 0;
    /// A thread was renamed.
    pub const CHANNEL_NAME_CHANGE: u8 = 4;
    /// The notice in the parent that a thread was created without a message.
    pub const THREAD_CREATED: u8 = 18;
    /// The response to a slash command.
    pub const CHAT_INPUT_COMMAND: u8 = 20;
    /// The first message of a thread that was created from a message.
    pub const THREAD_STARTER: u8 = 21;
}

/// Message flags that are modelled.
pub mod message_flag {
    /// A thread was created from this message; it has the same id.
    pub const HAS_THREAD: u64 = 1 << 5;
    /// Only the user of the interaction sees it.
    pub const EPHEMERAL: u64 = 1 << 6;
    /// A deferred response: "is thinking".
    pub const LOADING: u64 = 1 << 7;
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

/// A bot: its account, application and settings of the developer portal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bot {
    /// The id of its account.
    pub user_id: Id,
    /// The id of its application.
    pub application_id: Id,
    /// Its token in `Authorization: Bot …` and IDENTIFY.
    pub token: String,
    /// Privileged intents that the portal allows, as bits.
    pub privileged_intents: u64,
    /// Denied permissions by guild, channel or thread.
    #[serde(default)]
    pub denied: BTreeMap<Id, BTreeSet<String>>,
    /// IDENTIFYs of the current day.
    #[serde(default)]
    pub identifies: u64,
    /// When the count of IDENTIFYs restarts.
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
    /// Its owner.
    pub owner_id: Id,
    /// Roles besides `@everyone`.
    pub roles: Vec<Role>,
    /// Members by account.
    pub members: BTreeMap<Id, Member>,
    /// Not deleted.
    pub alive: bool,
}

/// Thread data of a channel.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Thread {
    /// Its creator.
    pub owner_id: Id,
    /// Whether it is archived.
    pub archived: bool,
    /// Whether MANAGE_THREADS is needed to unarchive it.
    pub locked: bool,
    /// Minutes without activity until it is archived.
    pub auto_archive_minutes: u64,
    /// Time of the last change of `archived` or of the auto-archive duration.
    pub archive_ms: Ms,
    /// Time of the last use: posts and unarchiving.
    pub active_ms: Ms,
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
    /// Its id; a thread that was created from a message has the id of that message.
    pub id: Id,
    /// Its guild; 0 for direct messages.
    pub guild_id: Id,
    /// See [`channel_kind`].
    pub kind: u8,
    /// Its name.
    pub name: String,
    /// For a thread: its parent channel.
    pub parent_id: Option<Id>,
    /// Its position in the list.
    pub position: u64,
    /// The newest message, deleted or not.
    pub last_message_id: Option<Id>,
    /// Set for threads.
    pub thread: Option<Thread>,
    /// For direct messages: the person and the bot.
    #[serde(default)]
    pub recipients: Vec<Id>,
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
    /// Its declared content type.
    pub content_type: Option<String>,
    /// Its description.
    pub description: Option<String>,
    /// Its size, in bytes.
    pub size: u64,
}

/// Users and roles that a message notified.
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
    /// Whether no user or role was notified.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.everyone && self.users.is_empty() && self.roles.is_empty()
    }
}

/// The interaction that a message responds to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Origin {
    /// The interaction.
    pub interaction_id: Id,
    /// Its type.
    pub kind: u8,
    /// The user of the interaction.
    pub user_id: Id,
    /// The name of the command.
    pub name: Option<String>,
}

/// A message.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Message {
    /// Its id.
    pub id: Id,
    /// Its channel.
    pub channel_id: Id,
    /// Its author; the webhook's id for a webhook's message.
    pub author_id: Id,
    /// The webhook that sent it.
    pub webhook_id: Option<Id>,
    /// The application behind an interaction or webhook.
    pub application_id: Option<Id>,
    /// The display name of a webhook's message.
    pub username: Option<String>,
    /// See [`message_kind`].
    pub kind: u8,
    /// The text.
    pub content: String,
    /// Its nonce.
    pub nonce: Option<Value>,
    /// Whether the nonce was enforced.
    pub enforce_nonce: bool,
    /// Components as sent.
    pub components: Vec<Value>,
    /// Files.
    pub attachments: Vec<Attachment>,
    /// See [`message_flag`].
    pub flags: u64,
    /// For a notice of the service: the thread or message that it refers to.
    pub refers_to: Option<Id>,
    /// Mentions that `allowed_mentions` permits.
    pub mentions: Pings,
    /// Users and roles that it notified, at its creation or by any edit.
    pub pinged: Pings,
    /// Users by emoji.
    pub reactions: BTreeMap<String, BTreeSet<Id>>,
    /// Set for interaction responses.
    pub origin: Option<Origin>,
    /// Time of its creation.
    pub created_ms: Ms,
    /// Time of its last edit.
    pub edited_ms: Option<Ms>,
    /// Number of edits.
    pub edits: u64,
    /// Time of its deletion. The message remains for the transcript.
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
    /// The last part of its URL.
    pub token: String,
    /// The application that created it.
    pub application_id: Option<Id>,
    /// Its creator.
    pub user_id: Id,
    /// Not deleted.
    pub alive: bool,
}

/// A command of an application.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Command {
    /// Its id.
    pub id: Id,
    /// Its application.
    pub application_id: Id,
    /// Its guild; `None` for a global command.
    pub guild_id: Option<Id>,
    /// Changes with each change.
    pub version: Id,
    /// The body of its registration.
    pub body: Value,
}

/// An interaction and its response.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Interaction {
    /// Its id.
    pub id: Id,
    /// Its token.
    pub token: String,
    /// Its application.
    pub application_id: Id,
    /// 2 command, 3 component, 4 autocompletion.
    pub kind: u8,
    /// Its channel.
    pub channel_id: Id,
    /// Its user.
    pub user_id: Id,
    /// The name of the command.
    pub name: Option<String>,
    /// The message whose component was used.
    pub message_id: Option<Id>,
    /// Time of its creation.
    pub created_ms: Ms,
    /// The first response.
    pub answered: Option<Answered>,
    /// The `@original` message.
    pub original_id: Option<Id>,
}

/// The first response to an interaction.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answered {
    /// Its type.
    pub kind: u8,
    /// Its time.
    pub at_ms: Ms,
    /// Its data, for example the choices.
    pub data: Value,
}
