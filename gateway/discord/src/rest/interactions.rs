//! Responses to commands, clicks and forms. An interaction token is valid for fifteen minutes; the first
//! response is due within three seconds.

use super::messages::{Posted, gone_is_done};
use super::{Call, Fault, Rest, Turn};
use crate::core::errors::What;
use crate::core::ids::Snowflake;
use crate::core::message::{Body, Callback, Persona};
use crate::core::route::Route;
use crate::core::schedule::Priority;
use acp_shared::redact::Secret;
use std::time::Duration;

/// Maximum wait of a later response in the queue.
const PATIENCE: Duration = Duration::from_secs(20);
const LATER: Turn = Turn::new(Priority::Permission, PATIENCE);

impl Rest {
    /// Sends the first response to an interaction, by default within 2.5 seconds. No retry after a lost
    /// response.
    ///
    /// # Errors
    /// [`Fault`] if the request failed or its outcome is unknown, for example with
    /// [`Meaning::AlreadyAnswered`](crate::core::errors::Meaning::AlreadyAnswered) or
    /// [`Meaning::TooLate`](crate::core::errors::Meaning::TooLate).
    pub async fn callback(&self, id: Snowflake, token: &Secret, callback: &Callback) -> Result<(), Fault> {
        let route = Route::callback(id, token);
        let payload = callback.payload().map_err(|refused| Fault::invalid(route.name, &refused))?;
        let turn = Turn::new(Priority::Permission, self.0.settings.callback);
        self.call(Call::new(route, turn).payload(payload)).await.map(|_| ())
    }

    /// Edits the first response, and returns its message id.
    ///
    /// # Errors
    /// [`Fault`] if the request failed or its outcome is unknown.
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

    /// Deletes the first response. Succeeds if it no longer exists.
    ///
    /// # Errors
    /// [`Fault`] if the request failed or its outcome is unknown.
    pub async fn delete_original(&self, application: Snowflake, token: &Secret) -> Result<(), Fault> {
        let call = Call::new(Route::delete_original(application, token), LATER);
        gone_is_done(self.call(call).await, What::Message)
    }

    /// Sends a further response. It has no nonce: a retry after a lost response may send it twice.
    ///
    /// # Errors
    /// [`Fault`] if the request failed or its outcome is unknown.
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
