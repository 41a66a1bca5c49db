//! What answers say, as far as it is used.

use super::{Fault, unreadable};
use crate::core::event::{Message, Thread};
use crate::core::ids::Snowflake;
use crate::core::read;
use crate::core::route::Nature;
use acp_shared::redact::Secret;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A channel or a thread.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Channel {
    /// Its id.
    pub id: Snowflake,
    /// What kind it is (channel types of the documentation): 0 text, 1 direct, 5 news, 10 to 12 threads, 15 forum.
    #[serde(rename = "type")]
    pub kind: u64,
    /// Its server.
    #[serde(default)]
    pub guild_id: Option<Snowflake>,
    /// The channel of a thread, or the category of a channel.
    #[serde(default)]
    pub parent_id: Option<Snowflake>,
    /// Its name.
    #[serde(default)]
    pub name: Option<String>,
    /// Its newest message, which may be deleted by now.
    #[serde(default)]
    pub last_message_id: Option<Snowflake>,
    /// Who made it.
    #[serde(default)]
    pub owner_id: Option<Snowflake>,
    /// What only threads have.
    #[serde(default)]
    pub thread_metadata: Option<ThreadState>,
}

impl Channel {
    /// Whether it is a thread.
    #[must_use]
    pub const fn is_thread(&self) -> bool {
        matches!(self.kind, 10..=12)
    }
}

/// What only threads have.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ThreadState {
    /// Put away: whoever writes in it takes it out again, unless it is locked.
    pub archived: bool,
    /// Only moderators can take it out of the archive.
    #[serde(default)]
    pub locked: bool,
    /// After how many minutes of silence it is archived.
    #[serde(default)]
    pub auto_archive_duration: u64,
    /// When it was last archived, taken out, or given another of these durations, as the service writes it.
    #[serde(default)]
    pub archive_timestamp: Option<String>,
}

/// A role of a server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Role {
    /// Its id; that of the server is everybody's.
    pub id: Snowflake,
    /// Its name.
    pub name: String,
    /// What it allows, as bits.
    pub permissions: Snowflake,
}

/// A member of a server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Member {
    /// Who.
    #[serde(default)]
    pub user: Option<User>,
    /// Roles there.
    #[serde(default)]
    pub roles: Vec<Snowflake>,
    /// The name there.
    #[serde(default)]
    pub nick: Option<String>,
}

/// Somebody.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct User {
    /// Who.
    pub id: Snowflake,
    /// The unique name.
    pub username: String,
    /// A program.
    #[serde(default)]
    pub bot: bool,
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Guild {
    /// Its id.
    pub id: Snowflake,
    /// Its name.
    pub name: String,
    /// Who owns it.
    pub owner_id: Snowflake,
    /// Its roles.
    #[serde(default)]
    pub roles: Vec<Role>,
}

/// The application that the bot belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Application {
    /// Its id.
    pub id: Snowflake,
    /// Its name.
    pub name: String,
    /// Its flags, which say among others whether it may read messages.
    #[serde(default)]
    pub flags: u64,
}

impl Application {
    /// Whether it may read what messages say: switched on in the portal, or granted after a review.
    #[must_use]
    pub const fn reads_messages(&self) -> bool {
        const GRANTED: u64 = 1 << 18;
        const SWITCHED_ON: u64 = 1 << 19;
        self.flags & (GRANTED | SWITCHED_ON) != 0
    }
}

/// Where the websocket is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Gateway {
    /// Its address. [`Base::gateway`](crate::core::base::Base::gateway) judges it.
    pub url: String,
    /// How many shards there should be.
    pub shards: u64,
    /// How many sessions may be begun.
    pub session_start_limit: Starts,
}

/// How many sessions may be begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Starts {
    /// In a day.
    pub total: u64,
    /// Of these, now.
    pub remaining: u64,
    /// Milliseconds until there are all again.
    pub reset_after: u64,
    /// In five seconds.
    pub max_concurrency: u64,
}

/// A thread that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// Its id.
    pub id: Snowflake,
    /// What is known of it; none where it was there already.
    pub thread: Option<Thread>,
}

/// A webhook as Discord lists it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Listed {
    /// Its id.
    pub id: Snowflake,
    /// Its token, where the bot may know it.
    #[serde(default)]
    pub token: Option<Secret>,
    /// Its channel.
    #[serde(default)]
    pub channel_id: Option<Snowflake>,
    /// The application that made it.
    #[serde(default)]
    pub application_id: Option<Snowflake>,
    /// Its name.
    #[serde(default)]
    pub name: Option<String>,
}

/// The threads of a server that are not archived.
#[derive(Deserialize)]
pub(super) struct Threads {
    pub(super) threads: Vec<Value>,
}

/// Reads an answer.
pub(super) fn parse<T: DeserializeOwned>(
    route: &'static str,
    nature: Nature,
    answer: Value,
) -> Result<T, Fault> {
    // What serde says may hold what was in the answer.
    serde_json::from_value(answer).map_err(|error| {
        let kind = error.to_string();
        let kind = kind.split(['`', '"', ':', ',']).next().unwrap_or_default();
        unreadable(route, nature, kind.trim_end())
    })
}

pub(super) fn message(route: &'static str, nature: Nature, answer: &Value) -> Result<Message, Fault> {
    read::message(answer).map_err(|error| unreadable(route, nature, &error.0))
}

pub(super) fn thread(route: &'static str, nature: Nature, answer: &Value) -> Result<Thread, Fault> {
    read::thread(answer).map_err(|error| unreadable(route, nature, &error.0))
}
