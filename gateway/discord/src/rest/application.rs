//! Requests about the bot itself: user, application and slash commands.

use super::messages::IdOnly;
use super::model::{ApplicationObject, BotUser, GuildSummary};
use super::{Call, QueueOptions, RestClient, RestError};
use crate::core::endpoint::Route;
use crate::core::ids::Snowflake;
use crate::core::request_scheduler::Priority;
use serde_json::Value;
use std::time::Duration;

/// Maximum wait of a command registration in the queue. It happens once per start and is not urgent.
const COMMANDS_MAX_WAIT: Duration = Duration::from_secs(60);

impl RestClient {
    /// Returns the user id of the bot.
    ///
    /// # Errors
    /// [`RestError`] if the request failed.
    pub async fn me(&self) -> Result<Snowflake, RestError> {
        self.fetch::<IdOnly>(Route::me()).await.map(|me| me.id)
    }

    /// Returns the id of the application that the bot belongs to.
    ///
    /// # Errors
    /// [`RestError`] if the request failed.
    pub async fn application(&self) -> Result<Snowflake, RestError> {
        self.fetch::<IdOnly>(Route::application()).await.map(|application| application.id)
    }

    /// Reads the user of the bot.
    ///
    /// # Errors
    /// [`RestError`] if the request failed.
    pub async fn bot_user(&self) -> Result<BotUser, RestError> {
        self.fetch(Route::me()).await
    }

    /// Reads the application of the bot.
    ///
    /// # Errors
    /// [`RestError`] if the request failed.
    pub async fn application_object(&self) -> Result<ApplicationObject, RestError> {
        self.fetch(Route::application()).await
    }

    /// Lists the guilds of the bot, at most 200.
    ///
    /// # Errors
    /// [`RestError`] if the request failed.
    pub async fn guilds(&self) -> Result<Vec<GuildSummary>, RestError> {
        self.fetch(Route::guilds()).await
    }

    /// Replaces all slash commands, global or of one guild, by a [registration](crate::core::commands::registration).
    /// Commands that are not in the list are deleted.
    ///
    /// # Errors
    /// [`RestError`] if the request failed or its outcome is unknown.
    pub async fn put_commands(
        &self,
        application: Snowflake,
        guild: Option<Snowflake>,
        commands: &[Value],
    ) -> Result<(), RestError> {
        let route = Route::put_commands(application, guild);
        let options = QueueOptions::new(Priority::Notice, COMMANDS_MAX_WAIT);
        let call = Call::new(route, options).json(Value::Array(commands.to_vec()));
        self.call(call).await.map(|_| ())
    }
}
