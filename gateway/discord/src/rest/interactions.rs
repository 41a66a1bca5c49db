//! Answers to commands, clicks and forms. Each has a token that is good for fifteen minutes, and three seconds for its
//! first answer.

use super::messages::{Posted, gone_is_done};
use super::{Call, Fault, Rest, Turn};
use crate::core::errors::What;
use crate::core::ids::Snowflake;
use crate::core::message::{Body, Callback, Persona};
use crate::core::route::Route;
use crate::core::schedule::Priority;
use acp_shared::redact::Secret;
use std::time::Duration;

/// How long a later answer may wait for its turn.
const PATIENCE: Duration = Duration::from_secs(20);
const LATER: Turn = Turn::new(Priority::Permission, PATIENCE);

impl Rest {
    /// Gives an interaction its first answer. It has two seconds and a half in all, and is not asked twice.
    ///
    /// # Errors
    /// What is known of it: [`Meaning::AlreadyAnswered`](crate::core::errors::Meaning::AlreadyAnswered) and
    /// [`Meaning::TooLate`](crate::core::errors::Meaning::TooLate) among it.
    pub async fn callback(&self, id: Snowflake, token: &Secret, callback: &Callback) -> Result<(), Fault> {
        let route = Route::callback(id, token);
        let payload = callback.payload().map_err(|refused| Fault::invalid(route.name, &refused))?;
        let turn = Turn::new(Priority::Permission, self.0.settings.callback);
        self.call(Call::new(route, turn).payload(payload)).await.map(|_| ())
    }

    /// Changes the first answer, and says which message that is.
    ///
    /// # Errors
    /// What is known of it.
    pub async fn edit_original(
        &self,
        application: Snowflake,
        token: &Secret,
        body: &Body,
    ) -> Result<Posted, Fault> {
        let route = Route::edit_original(application, token);
        let payload = body.edit().map_err(|refused| Fault::invalid(route.name, &refused))?;
        self.post(Call::new(route, LATER).payload(payload)).await
    }

    /// Takes the first answer away. One that is gone already is taken away.
    ///
    /// # Errors
    /// What is known of it.
    pub async fn delete_original(&self, application: Snowflake, token: &Secret) -> Result<(), Fault> {
        let call = Call::new(Route::delete_original(application, token), LATER);
        gone_is_done(self.call(call).await, What::Message)
    }

    /// Gives one more answer. It has no nonce: one whose answer is lost may come twice if it is sent again.
    ///
    /// # Errors
    /// What is known of it.
    pub async fn followup(
        &self,
        application: Snowflake,
        token: &Secret,
        body: &Body,
    ) -> Result<Posted, Fault> {
        let route = Route::followup(application, token);
        let payload =
            body.webhook(&Persona::default()).map_err(|refused| Fault::invalid(route.name, &refused))?;
        self.post(Call::new(route, LATER).payload(payload)).await
    }
}
