//! Requests about channels and threads, and about the members and roles of guilds.

use super::model::{self, ChannelObject, GuildMember, Role, StartedThread, parse};
use super::{Call, QueueOptions, RestClient, RestError};
use crate::core::endpoint::{RetrySafety, Route};
use crate::core::errors::RejectionKind;
use crate::core::ids::Snowflake;
use crate::core::payload_limits::{PayloadLimit, ValidationError};
use serde::Serialize;
use serde_json::json;

/// Allowed values for the inactivity, in minutes, after which Discord archives a thread.
pub const ARCHIVE_MINUTES: [u64; 4] = [60, 1440, 4320, 10080];

/// Changes to a channel or a thread. Fields that are `None` stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ChannelChanges {
    /// New name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// True to archive the thread, false to unarchive it. An archived thread accepts no other change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archived: Option<bool>,
    /// True if only moderators can unarchive the thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locked: Option<bool>,
    /// Inactivity, in minutes, after which Discord archives the thread: one of [`ARCHIVE_MINUTES`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_archive_duration: Option<u64>,
}

fn check(name: Option<&str>, minutes: Option<u64>) -> Result<(), ValidationError> {
    if let Some(name) = name {
        PayloadLimit::ThreadName.text(name)?;
    }
    match minutes {
        Some(minutes) if !ARCHIVE_MINUTES.contains(&minutes) => {
            Err(ValidationError::Form("auto_archive_duration must be 60, 1440, 4320 or 10080 minutes"))
        }
        _ => Ok(()),
    }
}

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
        check(Some(name), Some(archive_minutes)).map_err(|refused| RestError::invalid(kind, &refused))?;
        let body = json!({"name": name, "auto_archive_duration": archive_minutes});
        match self.json(Call::new(route, options).channel(channel).json(body)).await {
            Ok(answer) => {
                let thread = model::thread(kind, RetrySafety::Idempotent, &answer)?;
                Ok(StartedThread { id: thread.id, thread: Some(thread) })
            }
            Err(fault) if fault.rejection_kind() == Some(RejectionKind::AlreadyThere) => {
                Ok(StartedThread { id: message, thread: None })
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

    /// Changes a channel or a thread.
    ///
    /// # Errors
    /// [`RestError`] if the request failed or its outcome is unknown.
    pub async fn modify_channel(
        &self,
        channel: Snowflake,
        change: &ChannelChanges,
        options: QueueOptions,
    ) -> Result<ChannelObject, RestError> {
        let route = Route::modify_channel(channel);
        let kind = route.name;
        check(change.name.as_deref(), change.auto_archive_duration)
            .map_err(|refused| RestError::invalid(kind, &refused))?;
        let answer = self.json(Call::new(route, options).channel(channel).json(json!(change))).await?;
        parse(kind, RetrySafety::Idempotent, answer)
    }

    /// Reads a member of a guild.
    ///
    /// # Errors
    /// [`RestError`] if the request failed.
    pub async fn member(&self, guild: Snowflake, user: Snowflake) -> Result<GuildMember, RestError> {
        self.fetch(Route::member(guild, user)).await
    }

    /// Reads the roles of a guild.
    ///
    /// # Errors
    /// [`RestError`] if the request failed.
    pub async fn roles(&self, guild: Snowflake) -> Result<Vec<Role>, RestError> {
        self.fetch(Route::roles(guild)).await
    }
}
