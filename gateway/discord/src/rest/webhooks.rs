//! Webhooks: messages under another name. They have no nonce, so that nobody can be sure of one whose answer was
//! lost.

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

/// Discord's code for a webhook that does not exist, whatever the token.
const UNKNOWN_WEBHOOK: u32 = 10015;
/// How many dead ones are remembered. Whoever has more has another problem.
const DEAD_MAX: usize = 10_000;

/// A webhook that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Its id.
    pub id: Snowflake,
    /// Its token: whoever has it can write in its channel.
    pub token: Secret,
}

impl Rest {
    /// Makes a webhook in a channel.
    ///
    /// # Errors
    /// What is known of it.
    pub async fn create_webhook(&self, channel: Snowflake, name: &str, turn: Turn) -> Result<Listed, Fault> {
        let route = Route::create_webhook(channel);
        let kind = route.name;
        message::webhook_name(name).map_err(|refused| Fault::invalid(kind, &refused))?;
        let answer = self.json(Call::new(route, turn).lane(channel).json(json!({"name": name}))).await?;
        parse(kind, Nature::Create, answer)
    }

    /// Lists the webhooks of a channel, with their tokens where the bot may know them: one that was given another
    /// token is found here.
    ///
    /// # Errors
    /// What is known of it.
    pub async fn webhooks(&self, channel: Snowflake) -> Result<Vec<Listed>, Fault> {
        let route = Route::list_webhooks(channel);
        let name = route.name;
        parse(name, Nature::Read, self.json(Call::read(route)).await?)
    }

    /// Sends a message through a webhook to its channel, or to a thread of it.
    ///
    /// # Errors
    /// [`Meaning::Gone`] for a webhook that is not there any more: it is never asked again.
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

    /// Gives a message of a webhook all that it shows anew.
    ///
    /// # Errors
    /// What is known of it.
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

    /// Takes a message of a webhook away. One that is gone already is taken away.
    ///
    /// # Errors
    /// What is known of it.
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

    /// Takes a webhook away. One that is gone already is taken away.
    ///
    /// # Errors
    /// What is known of it.
    pub async fn delete_webhook(&self, id: Snowflake, turn: Turn) -> Result<(), Fault> {
        gone_is_done(self.call(Call::new(Route::delete_webhook(id), turn)).await, What::Webhook)
    }

    /// Whether a webhook turned out not to be there any more under this token: it is not asked again.
    #[must_use]
    pub fn is_dead(&self, webhook: &Webhook) -> bool {
        let dead = self.dead();
        dead.contains(&(webhook.id, None)) || dead.contains(&(webhook.id, Some(webhook.token.clone())))
    }

    /// A webhook whose token was refused is listed with it all the same: it may be asked once more.
    pub fn revive(&self, webhook: &Webhook) {
        self.dead().remove(&(webhook.id, Some(webhook.token.clone())));
    }

    fn dead(&self) -> MutexGuard<'_, HashSet<(Snowflake, Option<Secret>)>> {
        self.0.dead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a webhook may be asked: Discord punishes whoever goes on asking one that is not there.
    fn alive(&self, webhook: &Webhook, route: &Route) -> Result<(), Fault> {
        if self.is_dead(webhook) {
            let why = format!("webhook {} is not there any more, or has another token", webhook.id);
            return Err(Fault::not_sent(route.name, Meaning::Gone(What::Webhook), why));
        }
        Ok(())
    }

    /// Remembers a webhook that turned out to be gone.
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
