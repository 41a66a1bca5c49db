//! The bot itself: who it is, where its websocket is, which commands it has.

use super::model::{Application, Gateway, User, parse};
use super::{Call, Fault, Rest, Turn};
use crate::core::ids::Snowflake;
use crate::core::route::{Nature, Route};
use crate::core::schedule::Priority;
use crate::core::units;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

/// Commands are put once at a start: they have time.
const COMMANDS_PATIENCE: Duration = Duration::from_secs(60);

impl Rest {
    async fn ask<T: DeserializeOwned>(&self, route: Route) -> Result<T, Fault> {
        let name = route.name;
        parse(name, Nature::Read, self.json(Call::read(route)).await?)
    }

    /// Asks where the websocket is. An address that is not of the configured service is no answer.
    ///
    /// # Errors
    /// What is known of it.
    pub async fn gateway(&self) -> Result<Gateway, Fault> {
        let route = Route::gateway();
        let name = route.name;
        let gateway: Gateway = self.ask(route).await?;
        match self.base().gateway(&gateway.url) {
            Ok(url) => Ok(Gateway { url, ..gateway }),
            Err(why) => Err(Fault::not_sent(name, crate::core::errors::Meaning::Invalid, why.to_string())),
        }
    }

    /// Asks who the bot is.
    ///
    /// # Errors
    /// What is known of it.
    pub async fn me(&self) -> Result<User, Fault> {
        self.ask(Route::me()).await
    }

    /// Asks which application the bot belongs to.
    ///
    /// # Errors
    /// What is known of it.
    pub async fn application(&self) -> Result<Application, Fault> {
        self.ask(Route::application()).await
    }

    /// Says which slash commands there are, everywhere or in one server. Those that are not said are taken away.
    ///
    /// # Errors
    /// What is known of it.
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
