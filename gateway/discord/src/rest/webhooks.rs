//! Webhook requests: messages under another name. They have no nonce, so a lost response leaves their outcome
//! unknown.

use super::messages::{Posted, gone_is_done};
use super::model::{Listed, parse};
use super::{Call, Fault, Rest, Turn, is_dead};
use crate::core::errors::{Asked, Meaning, What};
use crate::core::ids::Snowflake;
use crate::core::message::{self, Body, Persona};
use crate::core::route::{Nature, Route};
use crate::core::schedule::Sequence;
use acp_shared::redact::Secret;
use serde_json::json;
use std::collections::HashSet;
use std::sync::{MutexGuard, PoisonError};

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

impl Rest {
    /// Creates a webhook in a channel.
    ///
    /// # Errors
    /// [`Fault`] if the name is invalid, or the request failed or has an unknown outcome.
    pub async fn create_webhook(&self, channel: Snowflake, name: &str, turn: Turn) -> Result<Listed, Fault> {
        let route = Route::create_webhook(channel);
        let kind = route.name;
        message::webhook_name(name).map_err(|refused| Fault::invalid(kind, &refused))?;
        let answer = self.json(Call::new(route, turn).lane(channel).json(json!({"name": name}))).await?;
        parse(kind, Nature::Create, answer)
    }

    /// Lists the webhooks of a channel, with their tokens if the bot may know them. A changed token is found
    /// here.
    ///
    /// # Errors
    /// [`Fault`] if the request failed.
    pub async fn webhooks(&self, channel: Snowflake) -> Result<Vec<Listed>, Fault> {
        let route = Route::list_webhooks(channel);
        let name = route.name;
        parse(name, Nature::Read, self.json(Call::read(route)).await?)
    }

    /// Sends a message through a webhook to its channel, or to a thread of it.
    ///
    /// # Errors
    /// [`Meaning::Gone`] for a webhook that no longer exists: further requests to it fail without being sent.
    pub async fn execute_webhook(
        &self,
        webhook: &Webhook,
        thread: Option<Snowflake>,
        channel: Snowflake,
        body: &Body,
        persona: &Persona,
        turn: Turn,
    ) -> Result<Posted, Fault> {
        let route = Route::execute_webhook(webhook.id, &webhook.token, thread);
        let payload = body.webhook(persona).map_err(|refused| Fault::invalid(route.name, &refused))?;
        self.alive(webhook, &route)?;
        let call = Call::new(route, turn).lane(thread.unwrap_or(channel)).payload(payload);
        self.buried(webhook, self.post(call).await)
    }

    /// Replaces the content of a message of a webhook.
    ///
    /// # Errors
    /// [`Fault`] if the request failed or its outcome is unknown.
    pub async fn edit_webhook_message(
        &self,
        webhook: &Webhook,
        thread: Option<Snowflake>,
        message: Snowflake,
        body: &Body,
        turn: Turn,
    ) -> Result<(), Fault> {
        let route = Route::edit_webhook_message(webhook.id, &webhook.token, message, thread);
        let payload = body.edit().map_err(|refused| Fault::invalid(route.name, &refused))?;
        self.alive(webhook, &route)?;
        let mut call = Call::new(route, turn).sequence(Sequence::Edit(message)).payload(payload);
        call.lane = thread;
        self.buried(webhook, self.call(call).await).map(|_| ())
    }

    /// Deletes a message of a webhook. Succeeds if it no longer exists.
    ///
    /// # Errors
    /// [`Fault`] if the request failed or its outcome is unknown.
    pub async fn delete_webhook_message(
        &self,
        webhook: &Webhook,
        thread: Option<Snowflake>,
        message: Snowflake,
        turn: Turn,
    ) -> Result<(), Fault> {
        let route = Route::delete_webhook_message(webhook.id, &webhook.token, message, thread);
        self.alive(webhook, &route)?;
        let mut call = Call::new(route, turn).sequence(Sequence::Edit(message));
        call.lane = thread;
        gone_is_done(self.buried(webhook, self.call(call).await), What::Message)
    }

    /// Deletes a webhook. Succeeds if it no longer exists.
    ///
    /// # Errors
    /// [`Fault`] if the request failed or its outcome is unknown.
    pub async fn delete_webhook(&self, id: Snowflake, turn: Turn) -> Result<(), Fault> {
        gone_is_done(self.call(Call::new(Route::delete_webhook(id), turn)).await, What::Webhook)
    }

    /// True if the webhook is known not to exist under this token: requests to it are not sent.
    #[must_use]
    pub fn is_dead(&self, webhook: &Webhook) -> bool {
        let dead = self.dead();
        dead.contains(&(webhook.id, None)) || dead.contains(&(webhook.id, Some(webhook.token.clone())))
    }

    /// Allows requests to a webhook again, after Discord listed it with the refused token.
    pub fn revive(&self, webhook: &Webhook) {
        self.dead().remove(&(webhook.id, Some(webhook.token.clone())));
    }

    fn dead(&self) -> MutexGuard<'_, HashSet<(Snowflake, Option<Secret>)>> {
        self.0.dead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses requests to a dead webhook: Discord penalises clients that keep calling one that does not
    /// exist.
    fn alive(&self, webhook: &Webhook, route: &Route) -> Result<(), Fault> {
        if self.is_dead(webhook) {
            let why = format!("webhook {} is not there any more, or has another token", webhook.id);
            return Err(Fault::not_sent(route.name, Meaning::Gone(What::Webhook), why));
        }
        Ok(())
    }

    /// Records the webhook of a failed request as dead if Discord refused it as missing. Returns the result
    /// unchanged.
    fn buried<T>(&self, webhook: &Webhook, result: Result<T, Fault>) -> Result<T, Fault> {
        if let Err(Fault::Rejected(rejection)) = &result
            && is_dead(Asked::Webhook, rejection.meaning)
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
