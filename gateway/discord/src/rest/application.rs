//! Requests about the bot itself: user, application, gateway URL and slash commands.

use super::model::{Application, Gateway, User, parse};
use super::{Call, Fault, Rest, Turn};
use crate::core::ids::Snowflake;
use crate::core::route::{Nature, Route};
use crate::core::schedule::Priority;
use crate::core::units;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

/// Maximum wait of a command registration in the queue. It happens once per start and is not urgent.
const COMMANDS_PATIENCE: Duration = Duration::from_secs(60);

impl Rest {
    async fn ask<T: DeserializeOwned>(&self, route: Route) -> Result<T, Fault> {
        let name = route.name;
        parse(name, Nature::Read, self.json(Call::read(route)).await?)
    }

    /// Returns the gateway URL, the shard count and the session limit. Refuses a URL outside of the
    /// configured service.
    ///
    /// # Errors
    /// [`Fault`] if the request failed or [`Base::gateway`](crate::core::base::Base::gateway) refuses the
    /// URL.
    pub async fn gateway(&self) -> Result<Gateway, Fault> {
        let route = Route::gateway();
        let name = route.name;
        let gateway: Gateway = self.ask(route).await?;
        match self.base().gateway(&gateway.url) {
            Ok(url) => Ok(Gateway { url, ..gateway }),
            Err(why) => Err(Fault::not_sent(name, crate::core::errors::Meaning::Invalid, why.to_string())),
        }
    }

    /// Returns the user of the bot.
    ///
    /// # Errors
    /// [`Fault`] if the request failed.
    pub async fn me(&self) -> Result<User, Fault> {
        self.ask(Route::me()).await
    }

    /// Returns the application that the bot belongs to.
    ///
    /// # Errors
    /// [`Fault`] if the request failed.
    pub async fn application(&self) -> Result<Application, Fault> {
        self.ask(Route::application()).await
    }

    /// Replaces all slash commands, global or of one guild. Commands that are not in the list are deleted.
    ///
    /// # Errors
    /// [`Fault`] if a command exceeds Discord's limits, or the request failed or has an unknown outcome.
    pub async fn put_commands(
        &self,
        application: Snowflake,
        guild: Option<Snowflake>,
        commands: &[Value],
    ) -> Result<(), Fault> {
        let route = Route::put_commands(application, guild);
        units::commands(commands).map_err(|refused| Fault::invalid(route.name, &refused))?;
        let turn = Turn::new(Priority::Notice, COMMANDS_PATIENCE);
        let call = Call::new(route, turn).json(Value::Array(commands.to_vec()));
        self.call(call).await.map(|_| ())
    }
}
