//! What a test can order: one value for each, the same on both sides of the wire.

use crate::fake_discord::core::faults::{EventFault, RestFault};
use crate::fake_discord::core::model::{Id, Ms};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A file that a person sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersonFile {
    /// Its name.
    pub filename: String,
    /// What kind it is said to be.
    pub content_type: Option<String>,
    /// What is in it.
    pub bytes: Vec<u8>,
}

/// What is done to connections to the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketAct {
    /// TCP reset.
    Reset,
    /// The end of the connection inside of a message.
    Cut,
    /// Close in order, with a code.
    Close(u16),
    /// Opcode 7: please reconnect and resume.
    Reconnect,
    /// Opcode 9.
    InvalidSession {
        /// Whether RESUME may be tried.
        resumable: bool,
    },
}

/// What a test orders.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "order")]
pub enum Order {
    /// Changes settings: members of [`super::super::settings::Settings`].
    Configure {
        /// The members that change.
        settings: Value,
    },
    /// The settings as they are.
    Settings,
    /// A guild, with an owner.
    AddGuild {
        /// Its name.
        name: String,
    },
    /// A text channel.
    AddChannel {
        /// Where.
        guild: Id,
        /// Its name.
        name: String,
    },
    /// A person who is a member.
    AddUser {
        /// Where.
        guild: Id,
        /// The name.
        name: String,
    },
    /// A role.
    AddRole {
        /// Where.
        guild: Id,
        /// Its name.
        name: String,
        /// Whether anybody may ping it.
        mentionable: bool,
        /// Who has it.
        members: Vec<Id>,
    },
    /// A member gets a role, or loses it.
    GiveRole {
        /// Where.
        guild: Id,
        /// Who.
        user: Id,
        /// Which.
        role: Id,
        /// Whether they have it from now on.
        has: bool,
    },
    /// A bot with its application.
    AddBot {
        /// Its name.
        name: String,
        /// Its token.
        token: String,
        /// Where it is a member.
        guilds: Vec<Id>,
        /// Privileged intents that the portal allows.
        privileged_intents: u64,
    },
    /// An account becomes a member.
    AddMember {
        /// Where.
        guild: Id,
        /// Who.
        user: Id,
    },
    /// A member is gone; a bot hears GUILD_DELETE.
    RemoveMember {
        /// Where.
        guild: Id,
        /// Who.
        user: Id,
    },
    /// A guild cannot be reached for a while, or again: GUILD_DELETE with `unavailable`, GUILD_CREATE.
    GuildOutage {
        /// Which.
        guild: Id,
        /// Whether it begins.
        begins: bool,
    },
    /// What the portal allows changes.
    SetIntents {
        /// The bot.
        bot: Id,
        /// Privileged intents.
        privileged_intents: u64,
    },
    /// The token of a bot is another one; its connections end with 4004, and none of their sessions can be resumed.
    SetToken {
        /// The bot.
        bot: Id,
        /// The token.
        token: String,
    },
    /// Takes permissions away.
    Deny {
        /// From whom.
        bot: Id,
        /// In which guild, channel or thread.
        scope: Id,
        /// Names.
        permissions: Vec<String>,
    },
    /// Gives them back.
    Allow {
        /// To whom.
        bot: Id,
        /// In which guild, channel or thread.
        scope: Id,
        /// Names.
        permissions: Vec<String>,
    },
    /// Somebody writes.
    Post {
        /// Who.
        user: Id,
        /// Where.
        channel: Id,
        /// What.
        content: String,
        /// With it.
        files: Vec<PersonFile>,
        /// In answer to.
        reply_to: Option<Id>,
    },
    /// Somebody changes a message of theirs.
    Edit {
        /// Which.
        message: Id,
        /// The new text.
        content: String,
    },
    /// A message is deleted, whoever wrote it.
    Delete {
        /// Which.
        message: Id,
    },
    /// Somebody adds or takes away a reaction.
    React {
        /// Who.
        user: Id,
        /// To which message.
        message: Id,
        /// The emoji.
        emoji: String,
        /// Whether it is added.
        add: bool,
    },
    /// Somebody types.
    Type {
        /// Who.
        user: Id,
        /// Where.
        channel: Id,
    },
    /// Somebody presses a button, or chooses in a select.
    Click {
        /// Who.
        user: Id,
        /// At which message.
        message: Id,
        /// Which component.
        custom_id: String,
        /// What was chosen.
        values: Vec<String>,
        /// Whether the interaction lacks its `channel` object, as some do.
        without_channel: bool,
    },
    /// Somebody uses a command.
    Use {
        /// Who.
        user: Id,
        /// Where.
        channel: Id,
        /// Of which bot.
        bot: Id,
        /// Its name with groups and sub-commands, as `acp session close`.
        command: String,
        /// Options by name.
        options: Vec<(String, Value)>,
        /// The option that is being typed: then it is an autocompletion.
        focused: Option<String>,
    },
    /// Somebody sends off the modal that an interaction was answered with.
    Submit {
        /// The interaction that opened it.
        interaction: Id,
        /// Texts by custom id.
        values: Vec<(String, String)>,
    },
    /// Somebody makes a thread, from a message or without.
    MakeThread {
        /// Who.
        user: Id,
        /// In which channel.
        channel: Id,
        /// Its name.
        name: String,
        /// From which message.
        message: Option<Id>,
    },
    /// Somebody joins or leaves a thread, or is brought or thrown out.
    Membership {
        /// The thread.
        channel: Id,
        /// Who.
        user: Id,
        /// Whether they are in it from now on.
        inside: bool,
    },
    /// Somebody archives, locks, renames or otherwise changes a channel or thread: members of `PATCH /channels/{}`.
    Change {
        /// Which.
        channel: Id,
        /// The members that change.
        form: Value,
    },
    /// Somebody deletes a channel or thread.
    DeleteChannel {
        /// Which.
        channel: Id,
    },
    /// Somebody deletes a webhook.
    DeleteWebhook {
        /// Which.
        webhook: Id,
    },
    /// A webhook has another token from now on.
    RotateWebhook {
        /// Which.
        webhook: Id,
    },
    /// The fake's clock goes ahead.
    Advance {
        /// How far.
        ms: Ms,
    },
    /// A fault of requests.
    RestFault {
        /// Which.
        fault: RestFault,
    },
    /// A fault of events.
    EventFault {
        /// Which.
        fault: EventFault,
    },
    /// The answer to the next message that a bot makes is held back until its maker is gone, or until this is ordered
    /// again with `false`.
    HoldAnswer {
        /// Whether it is held back.
        on: bool,
    },
    /// What is on its way: [`super::super::underway::Underway`].
    Underway,
    /// No more faults, of any kind.
    ClearFaults,
    /// Heartbeats are acknowledged no more, or again.
    WithholdAcks {
        /// Whether they are withheld.
        on: bool,
    },
    /// The whole service is away, or back: 503 for requests, resets for connections.
    Away {
        /// Whether it is away.
        on: bool,
    },
    /// The next IDENTIFYs and RESUMEs are answered with "invalid session".
    InvalidSessions {
        /// So many.
        count: u64,
    },
    /// The next connections get no HELLO.
    WithholdHellos {
        /// How many.
        count: u64,
    },
    /// The next IDENTIFYs and RESUMEs get no answer, while heartbeats are acknowledged.
    Unanswered {
        /// How many.
        count: u64,
    },
    /// Does something to connections, of one bot or all.
    Sockets {
        /// Whose.
        bot: Option<Id>,
        /// What.
        act: SocketAct,
    },
    /// Forgets sessions, of one bot or all: RESUME fails.
    ForgetSessions {
        /// Whose.
        bot: Option<Id>,
    },
    /// Messages of one channel or of all, in the order in which they were made, the deleted ones too.
    Transcript {
        /// Which channel.
        channel: Option<Id>,
    },
    /// Channels and threads, the deleted ones too.
    Channels,
    /// Interactions with their answers.
    Interactions,
    /// Commands.
    Commands,
    /// Webhooks.
    Webhooks,
    /// Bots, with whether they are connected.
    Bots,
    /// Counts.
    Tally,
    /// The fake's time.
    Now,
}
