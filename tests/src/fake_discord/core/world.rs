//! Everything that lasts, and what of it changed since it was last kept.

use super::error::ApiError;
use super::model::{
    Bot, Channel, Command, DISCORD_EPOCH_MS, Guild, Id, Interaction, Message, Ms, User, Webhook,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How far the milliseconds of a snowflake are shifted.
const ID_TIME_SHIFT: u32 = 22;

/// One row for the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A thing as JSON.
    Row {
        /// What kind of thing.
        kind: &'static str,
        /// Its id.
        id: Id,
        /// As JSON.
        json: String,
    },
    /// A row that is gone.
    Gone {
        /// What kind of thing.
        kind: &'static str,
        /// Its id.
        id: Id,
    },
    /// The bytes of a file.
    File {
        /// The attachment.
        id: Id,
        /// What is in it.
        bytes: Vec<u8>,
    },
}

/// Things by id, and which of them changed.
#[derive(Debug)]
pub struct Table<T> {
    kind: &'static str,
    rows: BTreeMap<Id, T>,
    dirty: BTreeSet<Id>,
}

impl<T: Serialize + DeserializeOwned> Table<T> {
    fn new(kind: &'static str) -> Self {
        Self { kind, rows: BTreeMap::new(), dirty: BTreeSet::new() }
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, id: Id) -> Option<&T> {
        self.rows.get(&id)
    }

    /// One of them, to be changed: it will be kept anew.
    pub fn edit(&mut self, id: Id) -> Option<&mut T> {
        let row = self.rows.get_mut(&id)?;
        self.dirty.insert(id);
        Some(row)
    }

    /// Adds or replaces one.
    pub fn put(&mut self, id: Id, row: T) {
        self.rows.insert(id, row);
        self.dirty.insert(id);
    }

    /// Takes one away.
    pub fn remove(&mut self, id: Id) -> Option<T> {
        self.dirty.insert(id);
        self.rows.remove(&id)
    }

    /// All of them, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.rows.values()
    }

    fn changes(&mut self) -> Vec<Change> {
        let kind = self.kind;
        let dirty = std::mem::take(&mut self.dirty);
        let row = |id| match self.rows.get(&id).map(serde_json::to_string) {
            Some(Ok(json)) => Change::Row { kind, id, json },
            _ => Change::Gone { kind, id },
        };
        dirty.into_iter().map(row).collect()
    }

    fn load(&mut self, id: Id, json: &str) -> Result<(), serde_json::Error> {
        self.rows.insert(id, serde_json::from_str(json)?);
        Ok(())
    }
}

/// Everything that lasts.
#[derive(Debug)]
pub struct World {
    /// Accounts.
    pub users: Table<User>,
    /// Bots by account.
    pub bots: Table<Bot>,
    /// Guilds.
    pub guilds: Table<Guild>,
    /// Channels and threads, the deleted ones too.
    pub channels: Table<Channel>,
    /// Messages, the deleted ones too.
    pub messages: Table<Message>,
    /// Webhooks.
    pub webhooks: Table<Webhook>,
    /// Commands.
    pub commands: Table<Command>,
    /// Interactions.
    pub interactions: Table<Interaction>,
    by_channel: HashMap<Id, BTreeSet<Id>>,
    by_nonce: HashMap<(Id, String), Id>,
    files: Vec<Change>,
    last_id: Id,
}

impl Default for World {
    fn default() -> Self {
        Self {
            users: Table::new("user"),
            bots: Table::new("bot"),
            guilds: Table::new("guild"),
            channels: Table::new("channel"),
            messages: Table::new("message"),
            webhooks: Table::new("webhook"),
            commands: Table::new("command"),
            interactions: Table::new("interaction"),
            by_channel: HashMap::new(),
            by_nonce: HashMap::new(),
            files: Vec::new(),
            last_id: 0,
        }
    }
}

impl World {
    /// Takes a row from the store.
    ///
    /// # Errors
    /// When the row makes no sense.
    pub fn load(&mut self, kind: &str, id: Id, json: &str) -> Result<(), serde_json::Error> {
        self.last_id = self.last_id.max(id);
        match kind {
            "user" => self.users.load(id, json),
            "bot" => self.bots.load(id, json),
            "guild" => self.guilds.load(id, json),
            "channel" => self.channels.load(id, json),
            "webhook" => self.webhooks.load(id, json),
            "command" => self.commands.load(id, json),
            "interaction" => self.interactions.load(id, json),
            "message" => {
                self.messages.load(id, json)?;
                self.index(id);
                Ok(())
            }
            // Other kinds are not the world's.
            _ => Ok(()),
        }
    }

    /// What changed since this was last asked.
    pub fn changes(&mut self) -> Vec<Change> {
        let mut changes = std::mem::take(&mut self.files);
        changes.extend(self.users.changes());
        changes.extend(self.bots.changes());
        changes.extend(self.guilds.changes());
        changes.extend(self.channels.changes());
        changes.extend(self.messages.changes());
        changes.extend(self.webhooks.changes());
        changes.extend(self.commands.changes());
        changes.extend(self.interactions.changes());
        changes
    }

    /// A fresh id; each is greater than all before it.
    pub fn mint(&mut self, now: Ms) -> Id {
        let by_time = now.saturating_sub(DISCORD_EPOCH_MS) << ID_TIME_SHIFT;
        self.last_id = by_time.max(self.last_id + 1);
        self.last_id
    }

    /// Keeps the bytes of a file.
    pub fn keep_file(&mut self, id: Id, bytes: Vec<u8>) {
        self.files.push(Change::File { id, bytes });
    }

    /// Adds a message.
    pub fn add_message(&mut self, message: Message) {
        let (id, channel_id) = (message.id, message.channel_id);
        self.messages.put(id, message);
        self.index(id);
        if let Some(channel) = self.channels.edit(channel_id) {
            channel.last_message_id = channel.last_message_id.max(Some(id));
            // A thread that was made from a message has its id; that message is not in it.
            if let Some(thread) = channel.thread.as_mut() {
                thread.total_sent += 1;
                thread.message_count += 1;
            }
        }
    }

    fn index(&mut self, id: Id) {
        let Some(message) = self.messages.get(id) else { return };
        self.by_channel.entry(message.channel_id).or_default().insert(id);
        if let Some(nonce) = &message.nonce {
            self.by_nonce.insert((message.author_id, nonce_text(nonce)), id);
        }
    }

    /// The message that an author sent last with this nonce, in whatever channel.
    #[must_use]
    pub fn by_nonce(&self, author_id: Id, nonce: &serde_json::Value) -> Option<&Message> {
        let id = self.by_nonce.get(&(author_id, nonce_text(nonce)))?;
        self.messages.get(*id)
    }

    /// Ids of a channel's messages, the deleted ones too, oldest first.
    pub fn messages_of(&self, channel_id: Id) -> impl DoubleEndedIterator<Item = &Message> {
        let ids = self.by_channel.get(&channel_id);
        ids.into_iter().flatten().filter_map(|id| self.messages.get(*id))
    }

    /// A channel that exists.
    ///
    /// # Errors
    /// 10003.
    pub fn channel(&self, id: Id) -> Result<&Channel, ApiError> {
        self.channels.get(id).filter(|channel| channel.alive).ok_or_else(ApiError::unknown_channel)
    }

    /// A guild that exists.
    ///
    /// # Errors
    /// 10004.
    pub fn guild(&self, id: Id) -> Result<&Guild, ApiError> {
        self.guilds.get(id).filter(|guild| guild.alive).ok_or_else(ApiError::unknown_guild)
    }

    /// A message of a channel that exists.
    ///
    /// # Errors
    /// 10008.
    pub fn message(&self, channel_id: Id, id: Id) -> Result<&Message, ApiError> {
        let is = |message: &&Message| message.channel_id == channel_id && message.deleted_ms.is_none();
        self.messages.get(id).filter(is).ok_or_else(ApiError::unknown_message)
    }

    /// The bot with a token.
    #[must_use]
    pub fn bot_with_token(&self, token: &str) -> Option<&Bot> {
        self.bots.iter().find(|bot| bot.token == token)
    }

    /// The bot of an application.
    #[must_use]
    pub fn bot_of(&self, application_id: Id) -> Option<&Bot> {
        self.bots.iter().find(|bot| bot.application_id == application_id)
    }

    /// Threads of a guild that are not archived.
    pub fn active_threads(&self, guild_id: Id) -> impl Iterator<Item = &Channel> {
        self.channels.iter().filter(move |channel| {
            channel.alive
                && channel.guild_id == guild_id
                && channel.thread.as_ref().is_some_and(|thread| !thread.archived)
        })
    }
}

/// A nonce as text: the number 1 and the string "1" are the same one.
fn nonce_text(nonce: &serde_json::Value) -> String {
    nonce.as_str().map_or_else(|| nonce.to_string(), str::to_owned)
}
