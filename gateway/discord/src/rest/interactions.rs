//! Responses to commands and clicks. An interaction token is valid for fifteen minutes; the first
//! response is due within three seconds.

use super::messages::{SentMessage, ignore_gone};
use super::{Call, QueueOptions, RestClient, RestError};
use crate::core::endpoint::Route;
use crate::core::errors::ResourceKind;
use crate::core::ids::Snowflake;
use crate::core::message::{Callback, MessageBody};
use crate::core::request_scheduler::Priority;
use acp_shared::redact::Secret;
use std::time::Duration;

/// Maximum wait of a later response in the queue.
const MAX_WAIT: Duration = Duration::from_secs(20);
const LATER_OPTIONS: QueueOptions = QueueOptions::new(Priority::Permission, MAX_WAIT);

impl RestClient {
    /// Sends the first response to an interaction, by default within 2.5 seconds. No retry after a lost
    /// response.
    ///
    /// # Errors
    /// [`RestError`] if the request failed or its outcome is unknown, for example with
    /// [`RejectionKind::AlreadyAnswered`](crate::core::errors::RejectionKind::AlreadyAnswered) or
    /// [`RejectionKind::TooLate`](crate::core::errors::RejectionKind::TooLate).
    pub async fn callback(
        &self,
        id: Snowflake,
        token: &Secret,
        callback: &Callback,
    ) -> Result<(), RestError> {
        let route = Route::callback(id, token);
        let payload = callback.payload().map_err(|refused| RestError::invalid(route.name, &refused))?;
        let options = QueueOptions::new(Priority::Permission, self.0.settings.callback_timeout);
        self.call(Call::new(route, options).payload(payload)).await.map(|_| ())
    }

    /// Edits the first response, and returns its message id.
    ///
    /// # Errors
    /// [`RestError`] if the request failed or its outcome is unknown.
    pub async fn edit_original(
        &self,
        application: Snowflake,
        token: &Secret,
        body: &MessageBody,
    ) -> Result<SentMessage, RestError> {
        let route = Route::edit_original(application, token);
        let payload = body.edit().map_err(|refused| RestError::invalid(route.name, &refused))?;
        self.post(Call::new(route, LATER_OPTIONS).payload(payload)).await
    }

    /// Deletes the first response. Succeeds if it no longer exists.
    ///
    /// # Errors
    /// [`RestError`] if the request failed or its outcome is unknown.
    pub async fn delete_original(&self, application: Snowflake, token: &Secret) -> Result<(), RestError> {
        let call = Call::new(Route::delete_original(application, token), LATER_OPTIONS);
        ignore_gone(self.call(call).await, ResourceKind::Message)
    }

    /// Sends a further response. It has no nonce: a retry after a lost response may send it twice.
    ///
    /// # Errors
    /// [`RestError`] if the request failed or its outcome is unknown.
    pub async fn followup(
        &self,
        application: Snowflake,
        token: &Secret,
        body: &MessageBody,
    ) -> Result<SentMessage, RestError> {
        let route = Route::followup(application, token);
        let payload = body.webhook(None).map_err(|refused| RestError::invalid(route.name, &refused))?;
        self.post(Call::new(route, LATER_OPTIONS).payload(payload)).await
    }
}
