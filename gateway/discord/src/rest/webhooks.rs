//! Webhook requests: messages under another name. They have no nonce, so a lost response leaves their outcome
//! unknown.

use super::messages::SentMessage;
use super::model::{WebhookObject, parse};
use super::{Call, QueueOptions, RestClient, RestError};
use crate::core::endpoint::{RetrySafety, Route};
use crate::core::errors::{RejectionKind, ResourceKind};
use crate::core::ids::Snowflake;
use crate::core::message::{self, MessageBody};
use acp_shared::redact::Secret;
use parking_lot::MutexGuard;
use serde_json::json;
use std::collections::HashSet;

/// Discord's error code for a webhook that does not exist, whatever the token.
const UNKNOWN_WEBHOOK: u32 = 10015;
/// Maximum number of dead webhooks to remember; further ones are not recorded.
const DEAD_MAX: usize = 10_000;

/// Webhook with its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Webhook id.
    pub id: Snowflake,
    /// Token. It permits anyone to write to the channel.
    pub token: Secret,
}

impl RestClient {
    /// Creates a webhook in a channel.
    ///
    /// # Errors
    /// [`RestError`] if the name is invalid, or the request failed or has an unknown outcome.
    pub async fn create_webhook(
        &self,
        channel: Snowflake,
        name: &str,
        options: QueueOptions,
    ) -> Result<WebhookObject, RestError> {
        let route = Route::create_webhook(channel);
        let kind = route.name;
        message::webhook_name(name).map_err(|refused| RestError::invalid(kind, &refused))?;
        let answer =
            self.json(Call::new(route, options).channel(channel).json(json!({"name": name}))).await?;
        parse(kind, RetrySafety::Create, answer)
    }

    /// Lists the webhooks of a channel, with their tokens if the bot may know them. A changed token is found
    /// here.
    ///
    /// # Errors
    /// [`RestError`] if the request failed.
    pub async fn webhooks(&self, channel: Snowflake) -> Result<Vec<WebhookObject>, RestError> {
        self.fetch(Route::list_webhooks(channel)).await
    }

    /// Sends a message through a webhook to its channel, or to a thread of it, under this name or the webhook's own.
    ///
    /// # Errors
    /// [`RejectionKind::Gone`] for a webhook that no longer exists: further requests to it fail without being
    /// sent.
    pub async fn execute_webhook(
        &self,
        webhook: &Webhook,
        thread: Option<Snowflake>,
        channel: Snowflake,
        body: &MessageBody,
        name: Option<&str>,
        options: QueueOptions,
    ) -> Result<SentMessage, RestError> {
        let route = Route::execute_webhook(webhook.id, &webhook.token, thread);
        let payload = body.webhook(name).map_err(|refused| RestError::invalid(route.name, &refused))?;
        self.check_alive(webhook, &route)?;
        let call = Call::new(route, options).channel(thread.unwrap_or(channel)).payload(payload);
        self.mark_dead_if_gone(webhook, self.post(call).await)
    }

    /// True if the webhook is known not to exist under this token: requests to it are not sent.
    #[must_use]
    pub fn is_dead(&self, webhook: &Webhook) -> bool {
        let dead = self.dead();
        dead.contains(&(webhook.id, None)) || dead.contains(&(webhook.id, Some(webhook.token.clone())))
    }

    /// Allows requests to a webhook again, after Discord listed it with the refused token.
    pub fn mark_webhook_alive(&self, webhook: &Webhook) {
        self.dead().remove(&(webhook.id, Some(webhook.token.clone())));
    }

    fn dead(&self) -> MutexGuard<'_, HashSet<(Snowflake, Option<Secret>)>> {
        self.0.dead.lock()
    }

    /// Refuses requests to a dead webhook: Discord penalises clients that keep calling one that does not
    /// exist.
    fn check_alive(&self, webhook: &Webhook, route: &Route) -> Result<(), RestError> {
        if self.is_dead(webhook) {
            let why = format!("webhook {} no longer exists, or has another token", webhook.id);
            return Err(RestError::not_sent(route.name, RejectionKind::Gone(ResourceKind::Webhook), why));
        }
        Ok(())
    }

    /// Records the webhook of a failed request as dead if Discord refused it as missing. Returns the result
    /// unchanged.
    fn mark_dead_if_gone<T>(&self, webhook: &Webhook, result: Result<T, RestError>) -> Result<T, RestError> {
        if let Err(RestError::Rejected(rejection)) = &result
            && rejection.kind == RejectionKind::Gone(ResourceKind::Webhook)
        {
            let token = (rejection.code != Some(UNKNOWN_WEBHOOK)).then(|| webhook.token.clone());
            let mut dead = self.dead();
            if dead.len() < DEAD_MAX {
                dead.insert((webhook.id, token));
            }
        }
        result
    }
}
