//! Orders of tests, the same type on both sides of the connection.

use crate::fake_discord::core::faults::{EventFault, RestFault};
use crate::fake_discord::core::model::{Id, Ms};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A file that a person sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersonFile {
    /// Its name.
    pub filename: String,
    /// Its declared content type.
    pub content_type: Option<String>,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Action on gateway connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketAct {
    /// TCP reset.
    Reset,
    /// End of the connection within a message.
    Cut,
    /// Close with a code.
    Close(u16),
    /// Opcode 7: reconnect and resume.
    Reconnect,
    /// Opcode 9.
    InvalidSession {
        /// Whether RESUME may be tried.
        resumable: bool,
    },
}

/// An order of a test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "order")]
pub enum Order {
    /// Changes settings: members of [`super::super::settings::Settings`].
    Configure {
        /// The changed members.
        settings: Value,
    },
    /// Returns the settings.
    Settings,
    /// Adds a guild with an owner.
    AddGuild {
        /// Its name.
        name: String,
    },
    /// Adds a text channel.
    AddChannel {
        /// The guild.
        guild: Id,
        /// Its name.
        name: String,
    },
    /// Adds the channel of direct messages of a person with a bot.
    AddDirect {
        /// The person.
        user: Id,
        /// The bot.
        bot: Id,
    },
    /// Adds a person as a member.
    AddUser {
        /// The guild.
        guild: Id,
        /// The name.
        name: String,
    },
    /// Adds a role.
    AddRole {
        /// The guild.
        guild: Id,
        /// Its name.
        name: String,
        /// Whether anybody may ping it.
        mentionable: bool,
        /// Its members.
        members: Vec<Id>,
    },
    /// Adds a role to a member, or removes it.
    GiveRole {
        /// The guild.
        guild: Id,
        /// The user.
        user: Id,
        /// The role.
        role: Id,
        /// Whether the role is added.
        has: bool,
    },
    /// Adds a bot with its application.
    AddBot {
        /// Its name.
        name: String,
        /// Its token.
        token: String,
        /// The guilds that it joins.
        guilds: Vec<Id>,
        /// Privileged intents that the portal allows.
        privileged_intents: u64,
    },
    /// Adds an account to a guild.
    AddMember {
        /// The guild.
        guild: Id,
        /// The user.
        user: Id,
    },
    /// Removes a member; a bot gets GUILD_DELETE.
    RemoveMember {
        /// The guild.
        guild: Id,
        /// The user.
        user: Id,
    },
    /// Starts or ends an outage of a guild: GUILD_DELETE with `unavailable`, or GUILD_CREATE.
    GuildOutage {
        /// The guild.
        guild: Id,
        /// Whether the outage begins.
        begins: bool,
    },
    /// Changes the privileged intents that the developer portal allows.
    SetIntents {
        /// The bot.
        bot: Id,
        /// Privileged intents.
        privileged_intents: u64,
    },
    /// Changes the token of a bot; its connections are closed with 4004, and their sessions cannot be
    /// resumed.
    SetToken {
        /// The bot.
        bot: Id,
        /// The token.
        token: String,
    },
    /// Denies permissions.
    Deny {
        /// The bot.
        bot: Id,
        /// The guild, channel or thread.
        scope: Id,
        /// Names of the permissions.
        permissions: Vec<String>,
    },
    /// Allows permissions again.
    Allow {
        /// The bot.
        bot: Id,
        /// The guild, channel or thread.
        scope: Id,
        /// Names of the permissions.
        permissions: Vec<String>,
    },
    /// A person posts a message.
    Post {
        /// The user.
        user: Id,
        /// The channel.
        channel: Id,
        /// The text.
        content: String,
        /// The files.
        files: Vec<PersonFile>,
    },
    /// A person edits a message.
    Edit {
        /// The message.
        message: Id,
        /// The new text.
        content: String,
    },
    /// Deletes a message of any author.
    Delete {
        /// The message.
        message: Id,
    },
    /// A person clicks a button.
    Click {
        /// The user.
        user: Id,
        /// The message.
        message: Id,
        /// The custom id of the component.
        custom_id: String,
    },
    /// A person submits the modal that an interaction was answered with.
    Submit {
        /// The user.
        user: Id,
        /// The interaction.
        interaction: Id,
        /// Custom id and value of each input.
        values: Vec<(String, String)>,
    },
    /// A person uses a command.
    Use {
        /// The user.
        user: Id,
        /// The channel.
        channel: Id,
        /// The bot.
        bot: Id,
        /// Its name with groups and sub-commands, for example `acp session close`.
        command: String,
        /// Options by name.
        options: Vec<(String, Value)>,
        /// The option that is being typed, for an autocompletion.
        focused: Option<String>,
    },
    /// A person creates a thread, with or without a message.
    MakeThread {
        /// The user.
        user: Id,
        /// The parent channel.
        channel: Id,
        /// Its name.
        name: String,
        /// The message from which it is created.
        message: Option<Id>,
    },
    /// A person archives, locks, renames or otherwise changes a thread: members of `PATCH /channels/{}`.
    Change {
        /// The thread.
        channel: Id,
        /// The changed members.
        form: Value,
    },
    /// A person deletes a channel or thread.
    DeleteChannel {
        /// The channel or thread.
        channel: Id,
    },
    /// A person deletes a webhook.
    DeleteWebhook {
        /// The webhook.
        webhook: Id,
    },
    /// Changes the token of a webhook.
    RotateWebhook {
        /// The webhook.
        webhook: Id,
    },
    /// Advances the fake's clock.
    Advance {
        /// The time, in milliseconds.
        ms: Ms,
    },
    /// Adds a fault of requests.
    RestFault {
        /// The fault.
        fault: RestFault,
    },
    /// Adds a fault of events.
    EventFault {
        /// The fault.
        fault: EventFault,
    },
    /// Holds back the answer to the next message that a bot creates until the bot disconnects, or until this
    /// order with `false`.
    HoldAnswer {
        /// Whether it is held back.
        on: bool,
    },
    /// Returns operations in progress: [`super::super::underway::Underway`].
    Underway,
    /// Removes all faults.
    ClearFaults,
    /// Stops or resumes the acknowledgement of heartbeats.
    WithholdAcks {
        /// Whether acknowledgements are withheld.
        on: bool,
    },
    /// Makes the whole service unavailable, or available again: 503 for requests, resets for connections.
    Away {
        /// Whether it is unavailable.
        on: bool,
    },
    /// Answers the next IDENTIFYs and RESUMEs with "invalid session".
    InvalidSessions {
        /// Their number.
        count: u64,
    },
    /// Sends no HELLO to the next connections.
    WithholdHellos {
        /// Their number.
        count: u64,
    },
    /// Leaves the next IDENTIFYs and RESUMEs unanswered, while heartbeats are acknowledged.
    Unanswered {
        /// Their number.
        count: u64,
    },
    /// Applies an action to the connections of one bot or of all.
    Sockets {
        /// The bot; `None` for all.
        bot: Option<Id>,
        /// The action.
        act: SocketAct,
    },
    /// Returns the messages of one channel or of all, in order of creation, including deleted ones.
    Transcript {
        /// The channel; `None` for all.
        channel: Option<Id>,
    },
    /// Returns channels and threads, including deleted ones.
    Channels,
    /// Returns interactions with their responses.
    Interactions,
    /// Returns commands.
    Commands,
    /// Returns webhooks.
    Webhooks,
    /// Returns bots and whether they are connected.
    Bots,
    /// Returns counters.
    Tally,
    /// Returns the fake's time.
    Now,
}
