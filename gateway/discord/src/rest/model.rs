//! Models of Discord's responses, reduced to the fields in use.

use super::{RestError, unreadable};
use crate::core::decode;
use crate::core::endpoint::RetrySafety;
use crate::core::event::{Message, Thread};
use crate::core::ids::Snowflake;
use acp_shared::redact::Secret;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A channel or a thread.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ChannelObject {
    /// Channel id.
    pub id: Snowflake,
    /// Channel type of Discord's documentation: 0 text, 1 direct message, 5 announcement, 10 to 12 threads,
    /// 15 forum.
    #[serde(rename = "type")]
    pub kind: u64,
    /// Guild of the channel.
    pub guild_id: Option<Snowflake>,
    /// Parent channel of a thread, or category of a channel.
    pub parent_id: Option<Snowflake>,
    /// Id of the newest message, which may have been deleted.
    pub last_message_id: Option<Snowflake>,
    /// Metadata of a thread; `None` for other channels.
    pub thread_metadata: Option<ThreadState>,
}

impl ChannelObject {
    /// True if the channel is a thread.
    #[must_use]
    pub const fn is_thread(&self) -> bool {
        matches!(self.kind, 10..=12)
    }
}

/// Metadata of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ThreadState {
    /// True if the thread is archived. A new message unarchives it, unless it is locked.
    pub archived: bool,
    /// Inactivity, in minutes, after which Discord archives the thread.
    #[serde(default)]
    pub auto_archive_duration: u64,
    /// Time of the last change of the archive state or of the inactivity limit, as Discord writes it.
    pub archive_timestamp: Option<String>,
}

/// Member of a guild.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct GuildMember {
    /// Roles in the guild.
    #[serde(default)]
    pub roles: Vec<Snowflake>,
}

/// User of a bot.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BotUser {
    /// User id.
    pub id: Snowflake,
    /// Unique name.
    pub username: String,
}

/// Application of a bot.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ApplicationObject {
    /// Application id.
    pub id: Snowflake,
    /// Flags of the documentation's table "Application Flags".
    #[serde(default)]
    pub flags: u64,
}

impl ApplicationObject {
    /// Flags of the Message Content intent: approved, and switched on for a bot in few servers.
    const MESSAGE_CONTENT: u64 = 1 << 18 | 1 << 19;

    /// True if the Message Content intent is on.
    #[must_use]
    pub const fn has_message_content(&self) -> bool {
        self.flags & Self::MESSAGE_CONTENT != 0
    }
}

/// Guild of a bot.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct GuildSummary {
    /// Guild id.
    pub id: Snowflake,
    /// Name of the guild.
    pub name: String,
}

/// Thread that was requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartedThread {
    /// Thread id.
    pub id: Snowflake,
    /// Guild of the thread; `None` if the thread existed already.
    pub guild: Option<Snowflake>,
}

/// Webhook as Discord lists it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct WebhookObject {
    /// Webhook id.
    pub id: Snowflake,
    /// Token of the webhook, if the bot may know it.
    pub token: Option<Secret>,
    /// Application that created the webhook.
    pub application_id: Option<Snowflake>,
    /// Webhook name.
    pub name: Option<String>,
}

/// Parses a response.
pub(super) fn parse<T: DeserializeOwned>(
    route: &'static str,
    retry_safety: RetrySafety,
    answer: Value,
) -> Result<T, RestError> {
    // Serde's error text may quote values of the response: keep only its first words.
    serde_json::from_value(answer).map_err(|error| {
        let kind = error.to_string();
        let kind = kind.split(['`', '"', ':', ',']).next().unwrap_or_default();
        unreadable(route, retry_safety, kind.trim_end())
    })
}

pub(super) fn message(
    route: &'static str,
    retry_safety: RetrySafety,
    answer: &Value,
) -> Result<Message, RestError> {
    decode::message(answer).map_err(|error| unreadable(route, retry_safety, &error.0))
}

pub(super) fn thread(
    route: &'static str,
    retry_safety: RetrySafety,
    answer: &Value,
) -> Result<Thread, RestError> {
    decode::thread(answer).map_err(|error| unreadable(route, retry_safety, &error.0))
}
