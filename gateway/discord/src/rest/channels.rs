//! Requests about channels and threads, and about the members of guilds.

use super::model::{self, ChannelObject, GuildMember, StartedThread};
use super::{Call, QueueOptions, RestClient, RestError};
use crate::core::endpoint::{RetrySafety, Route};
use crate::core::errors::RejectionKind;
use crate::core::ids::Snowflake;
use crate::core::payload_limits::PayloadLimit;
use serde_json::json;

impl RestClient {
    /// Starts a thread from a message. The thread has the id of the message, so the request can be repeated:
    /// an existing thread counts as started.
    ///
    /// # Errors
    /// [`RestError`] if the request failed or its outcome is unknown.
    pub async fn thread_from_message(
        &self,
        channel: Snowflake,
        message: Snowflake,
        name: &str,
        archive_minutes: u64,
        options: QueueOptions,
    ) -> Result<StartedThread, RestError> {
        let route = Route::thread_from_message(channel, message);
        let kind = route.name;
        PayloadLimit::ThreadName.text(name).map_err(|refused| RestError::invalid(kind, &refused))?;
        let body = json!({"name": name, "auto_archive_duration": archive_minutes});
        match self.json(Call::new(route, options).channel(channel).json(body)).await {
            Ok(answer) => {
                let thread = model::thread(kind, RetrySafety::Idempotent, &answer)?;
                Ok(StartedThread { id: thread.id, guild: thread.guild })
            }
            Err(fault) if fault.rejection_kind() == Some(RejectionKind::AlreadyThere) => {
                Ok(StartedThread { id: message, guild: None })
            }
            Err(fault) => Err(fault),
        }
    }

    /// Reads a channel or a thread.
    ///
    /// # Errors
    /// [`RestError`] if the request failed.
    pub async fn channel(&self, channel: Snowflake) -> Result<ChannelObject, RestError> {
        self.fetch(Route::get_channel(channel)).await
    }

    /// Reads a member of a guild.
    ///
    /// # Errors
    /// [`RestError`] if the request failed.
    pub async fn member(&self, guild: Snowflake, user: Snowflake) -> Result<GuildMember, RestError> {
        self.fetch(Route::member(guild, user)).await
    }
}
