//! Requests about the bot itself: user, application, gateway URL and slash commands.

use super::model::{Application, GatewayInfo, UserObject};
use super::{Call, QueueOptions, RestClient, RestError};
use crate::core::endpoint::Route;
use crate::core::ids::Snowflake;
use crate::core::payload_limits;
use crate::core::request_scheduler::Priority;
use serde_json::Value;
use std::time::Duration;

/// Maximum wait of a command registration in the queue. It happens once per start and is not urgent.
const COMMANDS_MAX_WAIT: Duration = Duration::from_secs(60);

impl RestClient {
    /// Returns the gateway URL, the shard count and the session limit. Refuses a URL outside of the
    /// configured service.
    ///
    /// # Errors
    /// [`RestError`] if the request failed or
    /// [`BaseUrl::check_gateway_url`](crate::core::base_url::BaseUrl::check_gateway_url) refuses the URL.
    pub async fn gateway(&self) -> Result<GatewayInfo, RestError> {
        let route = Route::gateway();
        let name = route.name;
        let gateway: GatewayInfo = self.fetch(route).await?;
        match self.base().check_gateway_url(&gateway.url) {
            Ok(url) => Ok(GatewayInfo { url, ..gateway }),
            Err(why) => {
                Err(RestError::not_sent(name, crate::core::errors::RejectionKind::Invalid, why.to_string()))
            }
        }
    }

    /// Returns the user of the bot.
    ///
    /// # Errors
    /// [`RestError`] if the request failed.
    pub async fn me(&self) -> Result<UserObject, RestError> {
        self.fetch(Route::me()).await
    }

    /// Returns the application that the bot belongs to.
    ///
    /// # Errors
    /// [`RestError`] if the request failed.
    pub async fn application(&self) -> Result<Application, RestError> {
        self.fetch(Route::application()).await
    }

    /// Replaces all slash commands, global or of one guild. Commands that are not in the list are deleted.
    ///
    /// # Errors
    /// [`RestError`] if a command exceeds Discord's limits, or the request failed or has an unknown outcome.
    pub async fn put_commands(
        &self,
        application: Snowflake,
        guild: Option<Snowflake>,
        commands: &[Value],
    ) -> Result<(), RestError> {
        let route = Route::put_commands(application, guild);
        payload_limits::commands(commands).map_err(|refused| RestError::invalid(route.name, &refused))?;
        let options = QueueOptions::new(Priority::Notice, COMMANDS_MAX_WAIT);
        let call = Call::new(route, options).json(Value::Array(commands.to_vec()));
        self.call(call).await.map(|_| ())
    }
}
