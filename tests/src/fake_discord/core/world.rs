//! The persistent state, and its changes since the last write.

use super::error::ApiError;
use super::model::{
    Bot, Channel, Command, DISCORD_EPOCH_MS, Guild, Id, Interaction, Message, Ms, User, Webhook,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Shift of the milliseconds in a snowflake.
const ID_TIME_SHIFT: u32 = 22;

/// One row for the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A changed object.
    Row {
        /// Kind of the object.
        kind: &'static str,
        /// Its id.
        id: Id,
        /// As JSON.
        json: String,
    },
    /// A deleted object.
    Gone {
        /// Kind of the object.
        kind: &'static str,
        /// Its id.
        id: Id,
    },
    /// The bytes of a file.
    File {
        /// The attachment.
        id: Id,
        /// Its content.
        bytes: Vec<u8>,
    },
}

/// Objects by id, with the set of changed ones.
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

    /// Returns an object.
    #[must_use]
    pub fn get(&self, id: Id) -> Option<&T> {
        self.rows.get(&id)
    }

    /// Returns an object for editing and marks it as changed.
    pub fn edit(&mut self, id: Id) -> Option<&mut T> {
        let row = self.rows.get_mut(&id)?;
        self.dirty.insert(id);
        Some(row)
    }

    /// Adds or replaces an object.
    pub fn put(&mut self, id: Id, row: T) {
        self.rows.insert(id, row);
        self.dirty.insert(id);
    }

    /// Removes an object.
    pub fn remove(&mut self, id: Id) -> Option<T> {
        self.dirty.insert(id);
        self.rows.remove(&id)
    }

    /// All objects, oldest first.
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

/// The persistent state.
#[derive(Debug)]
pub struct World {
    /// Accounts.
    pub users: Table<User>,
    /// Bots by account.
    pub bots: Table<Bot>,
    /// Guilds.
    pub guilds: Table<Guild>,
    /// Channels and threads, including deleted ones.
    pub channels: Table<Channel>,
    /// Messages, including deleted ones.
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
    /// Loads a row from the store.
    ///
    /// # Errors
    /// When the row cannot be parsed.
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
            // Other kinds are not part of the world.
            _ => Ok(()),
        }
    }

    /// Takes the changes since the last call.
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

    /// Creates an id that is greater than all earlier ones.
    pub fn mint(&mut self, now: Ms) -> Id {
        let by_time = now.saturating_sub(DISCORD_EPOCH_MS) << ID_TIME_SHIFT;
        self.last_id = by_time.max(self.last_id + 1);
        self.last_id
    }

    /// Records the bytes of a file as a change.
    pub fn add_file(&mut self, id: Id, bytes: Vec<u8>) {
        self.files.push(Change::File { id, bytes });
    }

    /// Adds a message.
    pub fn add_message(&mut self, message: Message) {
        let (id, channel_id) = (message.id, message.channel_id);
        self.messages.put(id, message);
        self.index(id);
        if let Some(channel) = self.channels.edit(channel_id) {
            channel.last_message_id = channel.last_message_id.max(Some(id));
            // A thread that was created from a message has its id; that message is not in the thread.
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

    /// The last message of an author with this nonce, in any channel.
    #[must_use]
    pub fn by_nonce(&self, author_id: Id, nonce: &serde_json::Value) -> Option<&Message> {
        let id = self.by_nonce.get(&(author_id, nonce_text(nonce)))?;
        self.messages.get(*id)
    }

    /// A channel's messages, including deleted ones, oldest first.
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

/// A nonce as text: the number 1 and the string "1" are the same nonce.
fn nonce_text(nonce: &serde_json::Value) -> String {
    nonce.as_str().map_or_else(|| nonce.to_string(), str::to_owned)
}
