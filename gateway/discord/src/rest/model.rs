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
    #[serde(default)]
    pub guild_id: Option<Snowflake>,
    /// Parent channel of a thread, or category of a channel.
    #[serde(default)]
    pub parent_id: Option<Snowflake>,
    /// Channel name.
    #[serde(default)]
    pub name: Option<String>,
    /// Id of the newest message, which may have been deleted.
    #[serde(default)]
    pub last_message_id: Option<Snowflake>,
    /// User who created the channel.
    #[serde(default)]
    pub owner_id: Option<Snowflake>,
    /// Metadata of a thread; `None` for other channels.
    #[serde(default)]
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
    /// True if only moderators can unarchive the thread.
    #[serde(default)]
    pub locked: bool,
    /// Inactivity, in minutes, after which Discord archives the thread.
    #[serde(default)]
    pub auto_archive_duration: u64,
    /// Time of the last change of the archive state or of the inactivity limit, as Discord writes it.
    #[serde(default)]
    pub archive_timestamp: Option<String>,
}

/// Role of a guild.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Role {
    /// Role id; the `@everyone` role has the id of the guild.
    pub id: Snowflake,
    /// Role name.
    pub name: String,
    /// Permission bits.
    pub permissions: Snowflake,
}

/// Member of a guild.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct GuildMember {
    /// User, where Discord includes it.
    #[serde(default)]
    pub user: Option<UserObject>,
    /// Roles in the guild.
    #[serde(default)]
    pub roles: Vec<Snowflake>,
    /// Nickname in the guild.
    #[serde(default)]
    pub nick: Option<String>,
}

/// User of Discord.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct UserObject {
    /// User id.
    pub id: Snowflake,
    /// Unique name.
    pub username: String,
    /// True if the user is a bot.
    #[serde(default)]
    pub bot: bool,
}

/// Application that the bot belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Application {
    /// Application id.
    pub id: Snowflake,
    /// Application name.
    pub name: String,
}

/// Gateway of the service.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct GatewayInfo {
    /// Gateway URL. [`BaseUrl::check_gateway_url`](crate::core::base_url::BaseUrl::check_gateway_url) checks it.
    pub url: String,
    /// Recommended number of shards.
    pub shards: u64,
    /// Limit on new sessions.
    pub session_start_limit: SessionStartLimit,
}

/// Limit on new gateway sessions (IDENTIFY).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct SessionStartLimit {
    /// Sessions per day.
    pub total: u64,
    /// Sessions that remain now.
    pub remaining: u64,
    /// Milliseconds until the limit resets.
    pub reset_after: u64,
    /// Sessions that may be identified per five seconds.
    pub max_concurrency: u64,
}

/// Thread that was requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartedThread {
    /// Thread id.
    pub id: Snowflake,
    /// Details of the thread; `None` if it existed already.
    pub thread: Option<Thread>,
}

/// Webhook as Discord lists it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct WebhookObject {
    /// Webhook id.
    pub id: Snowflake,
    /// Token of the webhook, if the bot may know it.
    #[serde(default)]
    pub token: Option<Secret>,
    /// Channel of the webhook.
    #[serde(default)]
    pub channel_id: Option<Snowflake>,
    /// Application that created the webhook.
    #[serde(default)]
    pub application_id: Option<Snowflake>,
    /// Webhook name.
    #[serde(default)]
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
