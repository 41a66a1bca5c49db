//! What happens on Discord, as the gateway hears of it: plain data, no types of a library.
//!
//! Events come in the order of their connection; each may come never, once, or several times (gateway documentation),
//! so whoever takes them up keys what they do by the ids in here, and looks again after [`Event::Ready`] and
//! [`Event::Gap`].

use super::closes::Failure;
use super::ids::Snowflake;
use acp_shared::redact::Secret;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A new session of the gateway began. What happened before it and since the last one is not told: it is a gap,
    /// and everything that matters is to be read again.
    Ready(Ready),
    /// The connection broke and the session went on: what was missed comes, or came just before this.
    Resumed,
    /// Somebody wrote.
    Message(Box<Message>),
    /// A message has another text, or the service added something to it (a preview of a link, for instance).
    MessageEdited(Edit),
    /// Messages are gone.
    MessagesDeleted {
        /// Where they were.
        channel: Snowflake,
        /// Which ones.
        ids: Vec<Snowflake>,
    },
    /// A slash command.
    Command(Box<Command>),
    /// A button was clicked, or something chosen in a menu.
    Click(Box<Click>),
    /// Somebody types a slash command and wants suggestions.
    Autocomplete(Box<Command>),
    /// A form was sent.
    ModalSubmit(Box<ModalSubmit>),
    /// There is a thread: a new one, or one that the bot was added to.
    ThreadCreated(Thread),
    /// A thread was renamed, archived, unarchived, locked; or is one of those that came into sight with a channel.
    ThreadChanged(Thread),
    /// A thread is gone.
    ThreadDeleted {
        /// Its id.
        id: Snowflake,
        /// Where it was.
        parent: Option<Snowflake>,
    },
    /// A channel is another one than before, maybe in who may see it. Losing sight of its threads is told in no other
    /// way.
    ChannelChanged(Snowflake),
    /// A channel is gone, and its threads with it.
    ChannelDeleted(Snowflake),
    /// A guild is out of reach.
    GuildGone {
        /// Its id.
        id: Snowflake,
        /// Out of order for a while; otherwise the bot was removed from it.
        outage: bool,
    },
    /// A guild is within reach: at the start, after an outage, or because the bot was added.
    GuildBack(Snowflake),
    /// A role of a guild is another one, or gone: what the bot sees there may be, too.
    RightsChanged(Snowflake),
    /// The kind of an event that nobody here knows, the first time that it comes.
    Unknown {
        /// Its name, e.g. `SUBSCRIPTION_CREATE`.
        kind: String,
    },
    /// Something was missed: whatever is bound is to be read again. Clicks and commands that were missed are told by
    /// Discord itself to who made them.
    Gap {
        /// Why.
        why: Gap,
        /// How many events are known to be lost.
        lost: u64,
    },
    /// The connection is lost, and is being made anew.
    Disconnected {
        /// Why, for people.
        why: String,
    },
    /// So many sessions are begun that the service will soon refuse more.
    Alarm(String),
    /// It does not go on, since another attempt would end in the same way. Nothing follows.
    Failed(Failure),
}

/// How something was missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gap {
    /// Events came faster than they were taken.
    Overflow,
    /// An event that matters could not be read.
    Unreadable,
    /// The numbers of events jumped, or a frame was no event at all.
    Skipped,
}

/// A new session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// The bot's own user.
    pub me: User,
    /// The application that commands are registered for.
    pub application: Snowflake,
    /// The name of the session.
    pub session: String,
    /// Which shard of how many.
    pub shard: (u64, u64),
    /// Guilds that it is in; [`Event::GuildBack`] follows for each that is in order.
    pub guilds: Vec<Snowflake>,
}

/// Somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Who.
    pub id: Snowflake,
    /// The unique name.
    pub name: String,
    /// The name that others see, as far as it is set: in the guild, or in general.
    pub shown: Option<String>,
    /// A program.
    pub bot: bool,
}

/// Somebody in a guild, or in a direct message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Who.
    pub user: User,
    /// Roles there.
    pub roles: Vec<Snowflake>,
    /// What they may do in that channel, as bits; known for interactions in guilds.
    pub permissions: Option<u64>,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its id.
    pub id: Snowflake,
    /// The channel or thread.
    pub channel: Snowflake,
    /// The guild; `None` in direct messages, and where the message was read by a request.
    pub guild: Option<Snowflake>,
    /// Who wrote it. For a webhook the name that it gave itself.
    pub author: Member,
    /// The webhook that wrote it.
    pub webhook: Option<Snowflake>,
    /// The application that wrote it, or whose webhook did.
    pub application: Option<Snowflake>,
    /// What kind it is (message types of the documentation).
    pub kind: u64,
    /// Its text; empty without the message content intent.
    pub text: String,
    /// Files.
    pub attachments: Vec<Attachment>,
    /// Users that it mentions.
    pub mentions: Vec<Snowflake>,
    /// Roles that it mentions.
    pub mention_roles: Vec<Snowflake>,
    /// The message that it answers, or that it is about.
    pub reference: Option<Snowflake>,
    /// What its sender gave it to know it by; only in what the gateway says, and only for the bot's own messages.
    pub nonce: Option<String>,
    /// What its buttons carry; empty for those of others without the message content intent.
    pub buttons: Vec<String>,
    /// Its flags.
    pub flags: u64,
}

impl Message {
    /// Whether somebody is mentioned by it.
    #[must_use]
    pub fn mentions(&self, who: Snowflake) -> bool {
        self.mentions.contains(&who)
    }
}

/// What is known of a message that changed: only what the service says this time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// The message.
    pub id: Snowflake,
    /// Where it is.
    pub channel: Snowflake,
    /// Who wrote it.
    pub author: Option<User>,
    /// The webhook that wrote it.
    pub webhook: Option<Snowflake>,
    /// Its text now.
    pub text: Option<String>,
    /// Its files now.
    pub attachments: Option<Vec<Attachment>>,
    /// Whether its author changed it. Otherwise the service did, for instance by a preview of a link.
    pub by_author: bool,
}

/// A file of a message. Its address works for a while only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Its id.
    pub id: Snowflake,
    /// Its name.
    pub name: String,
    /// Where it can be read.
    pub url: String,
    /// In bytes.
    pub size: u64,
    /// Its media type, as far as the service tells.
    pub mime: Option<String>,
}

/// What every interaction has. It is to be answered within three seconds, by its id and token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interaction {
    /// Its id: what is done about it is keyed by this.
    pub id: Snowflake,
    /// The bot's application.
    pub application: Snowflake,
    /// Good for answers, for 15 minutes.
    pub token: Secret,
    /// The guild; `None` in direct messages.
    pub guild: Option<Snowflake>,
    /// The channel or thread.
    pub channel: Snowflake,
    /// The channel of the thread, where the service says so: a click often comes without.
    pub parent: Option<Snowflake>,
    /// Whether the channel is a thread, where the service says so.
    pub is_thread: Option<bool>,
    /// Who it was.
    pub who: Member,
    /// What the bot may do in that channel, as bits.
    pub app_permissions: Option<u64>,
    /// The language of who it was.
    pub locale: Option<String>,
    /// The largest file that an answer may hold, in bytes.
    pub attachment_limit: Option<u64>,
}

/// A slash command, done or still being typed.
#[derive(Debug, Clone, PartialEq)]
pub struct Command {
    /// Where and who.
    pub at: Interaction,
    /// Its name, e.g. `acp`.
    pub name: String,
    /// What was given to it, as a tree.
    pub options: Vec<Given>,
}

/// An option that somebody gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Value,
    /// It is the one being typed.
    pub focused: bool,
}

/// The value of an option.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A subcommand or a group of them, with what was given to it.
    Sub(Vec<Given>),
    /// A text. What is still being typed is always one.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A number.
    Number(f64),
    /// Yes or no.
    Bool(bool),
    /// A user, channel, role, or any of these.
    Id(Snowflake),
    /// A file.
    File(Attachment),
}

/// A click.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Click {
    /// Where and who.
    pub at: Interaction,
    /// What the button carries.
    pub custom_id: String,
    /// What was chosen, for menus.
    pub values: Vec<String>,
    /// The message that the button is in.
    pub message: Snowflake,
}

/// A form that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModalSubmit {
    /// Where and who.
    pub at: Interaction,
    /// What the form carries.
    pub custom_id: String,
    /// Its fields: the name of each and what was typed.
    pub fields: Vec<(String, String)>,
    /// The message whose button opened it.
    pub message: Option<Snowflake>,
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Its id. One that was made from a message has the id of that message.
    pub id: Snowflake,
    /// The guild.
    pub guild: Option<Snowflake>,
    /// Its channel.
    pub parent: Option<Snowflake>,
    /// Its name.
    pub name: String,
    /// Who made it.
    pub owner: Option<Snowflake>,
    /// Only for those who were added.
    pub private: bool,
    /// Put away: whoever writes in it takes it out again, unless it is locked.
    pub archived: bool,
    /// Only moderators can take it out of the archive.
    pub locked: bool,
    /// After how many minutes of silence it is archived.
    pub auto_archive_minutes: u64,
    /// When archived or locked last changed, as the service writes it.
    pub archived_at: Option<String>,
}
