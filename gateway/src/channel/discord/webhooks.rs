//! Agents under their own names: answers are sent through a webhook of the channel. The bot creates the
//! webhook and finds it again by a request, so that tokens stay in memory.
//!
//! Webhook messages have no nonce: the sender must search for a message before sending again. Names are
//! optional: if a webhook certainly did not send a message, the bot sends it under the bot's own name.

use super::render;
use super::{Inner, id};
use crate::channel::discord::state_cache::OptionalFeature;
use crate::channel::{ConversationRef, Outgoing, SendOutcome};
use acp_discord::core::errors::{RejectionKind, ResourceKind};
use acp_discord::core::ids::Snowflake;
use acp_discord::core::message::webhook_name;
use acp_discord::core::payload_limits::PayloadLimit;
use acp_discord::core::request_scheduler::Priority;
use acp_discord::rest::{QueueOptions, RestError, Webhook, model::WebhookObject};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Name of our webhooks.
const NAME: &str = "acp-host";
/// Maximum wait for the rate limiter of webhooks: a channel has a small budget for all webhooks, and the bot
/// a separate one.
const RATE_LIMIT_WAIT: Duration = Duration::from_secs(5);
/// Deadline for the start of a webhook request, measured from the start of the send. Delivery calculates the
/// latest arrival of a message from it.
const START_DEADLINE: Duration = Duration::from_secs(15);
/// Maximum number of webhook lookups per message: the cached webhook may be deleted or have another token.
const WEBHOOKS_MAX: u32 = 2;
/// Period without webhook requests for a channel after a temporary failure, so that answers do not wait.
const COOLDOWN: Duration = Duration::from_secs(30);

/// Webhook of a channel, once known.
type WebhookSlot = Arc<tokio::sync::Mutex<Option<Webhook>>>;

/// Known webhooks.
#[derive(Debug, Default)]
pub(super) struct Webhooks {
    slots: Mutex<HashMap<Snowflake, WebhookSlot>>,
    /// Channels with a recent failure, and the time until which no request is made.
    resting: Mutex<HashMap<Snowflake, Instant>>,
}

impl Webhooks {
    /// Returns the slot of a channel. Only the holder of the lock creates a webhook.
    fn slot(&self, channel: Snowflake) -> WebhookSlot {
        Arc::clone(self.slots.lock().entry(channel).or_default())
    }

    /// Records a temporary failure to get the webhook of a channel.
    fn start_cooldown(&self, channel: Snowflake, now: Instant) {
        let mut resting = self.resting.lock();
        resting.retain(|_, until| *until > now);
        resting.insert(channel, now + COOLDOWN);
    }

    fn is_cooling_down(&self, channel: Snowflake, now: Instant) -> bool {
        self.resting.lock().get(&channel).is_some_and(|until| *until > now)
    }
}

/// Reason for a channel without a usable webhook.
#[derive(Debug)]
enum WebhookError {
    /// Failed request.
    Fault(RestError),
    /// Discord lists a webhook of ours that cannot be used. No second one is created: repeated attempts would
    /// use up the webhooks of the channel.
    Unusable(Option<Webhook>),
}

impl From<RestError> for WebhookError {
    fn from(fault: RestError) -> Self {
        Self::Fault(fault)
    }
}

impl Inner {
    /// True if answers of agents in a conversation currently appear under the agents' names.
    pub(super) fn has_personas(&self, at: &ConversationRef) -> bool {
        let may = |id| {
            let home = self.cache.location(id).and_then(|spot| spot.parent).unwrap_or(id);
            self.cache.is_allowed(OptionalFeature::Persona, id, self.clock.wall_ms())
                && !self.webhooks.is_cooling_down(home, Instant::now())
        };
        self.settings().personas && id(&at.conversation_id).is_ok_and(may)
    }

    /// Sends a message under a name; `None` if certainly not sent, so that the bot must send the message.
    /// `since` is the start of the send.
    pub(super) async fn send_via_webhook(
        &self,
        at: Snowflake,
        message: &Outgoing,
        name: &str,
        since: Instant,
    ) -> Option<SendOutcome> {
        let begun_by = since + START_DEADLINE;
        // The webhooks of a thread are those of its channel.
        let home = timeout_at(begun_by, self.location_of(at)).await.ok()?.ok()?.parent.unwrap_or(at);
        let thread = (home != at).then_some(at);
        let (body, name) = (render::message_body(message), webhook_display_name(name));
        let turn = QueueOptions::new(render::priority(message), RATE_LIMIT_WAIT);
        for _ in 0..WEBHOOKS_MAX {
            // A webhook created just as this times out is found by the next lookup.
            let webhook = match timeout_at(begun_by, self.webhook(home)).await {
                // A cached webhook may be too late as well.
                Ok(Ok(webhook)) if Instant::now() <= begun_by => webhook,
                Ok(Err(missing)) => {
                    self.record_webhook_error(home, &missing);
                    return None;
                }
                Ok(Ok(_)) | Err(_) => {
                    self.webhooks.start_cooldown(home, Instant::now());
                    tracing::info!(thread_id = %at, "webhook lookup timed out; sending as the bot");
                    return None;
                }
            };
            let sent = self.rest.execute_webhook(&webhook, thread, home, &body, name.as_deref(), turn).await;
            match sent {
                Ok(posted) => {
                    // The success of a webhook proves nothing about the bot's own permissions.
                    self.cache.record_message(at, posted.id);
                    return Some(SendOutcome::Sent { message_id: posted.id.to_string() });
                }
                Err(RestError::Uncertain { why }) => return Some(SendOutcome::Uncertain { why }),
                Err(fault) if fault.rejection_kind() == Some(RejectionKind::Gone(ResourceKind::Webhook)) => {
                    tracing::warn!(
                        channel = %home,
                        %fault,
                        "webhook gone or its token changed; looking it up again"
                    );
                    self.invalidate_webhook(home, &webhook).await;
                }
                Err(fault) => {
                    if matches!(
                        fault.rejection_kind(),
                        Some(RejectionKind::Forbidden | RejectionKind::LostAccess)
                    ) {
                        self.cache.deny(OptionalFeature::Persona, home, self.clock.wall_ms());
                    }
                    tracing::info!(thread_id = %at, %fault, "webhook send failed; sending as the bot");
                    return None;
                }
            }
        }
        None
    }

    /// Returns the webhook of a channel: the cached one, else one listed by Discord as ours, else a new one.
    async fn webhook(&self, channel: Snowflake) -> Result<Webhook, WebhookError> {
        let slot = self.webhooks.slot(channel);
        let mut slot = slot.lock().await;
        if let Some(webhook) = slot.as_ref() {
            return Ok(webhook.clone());
        }
        let application = self.application().await?;
        let listed = self.rest.webhooks(channel).await?;
        let found = select_webhook(listed, application, |webhook| self.rest.is_dead(webhook));
        let webhook = match found {
            OwnWebhooks::Usable(webhook) => webhook,
            OwnWebhooks::Unusable(webhook) => return Err(WebhookError::Unusable(webhook)),
            OwnWebhooks::None => {
                let made = self
                    .rest
                    .create_webhook(channel, NAME, QueueOptions::new(Priority::Final, RATE_LIMIT_WAIT))
                    .await?;
                tracing::info!(%channel, webhook = %made.id, "webhook created");
                let why = || "Discord created a webhook and did not return its token".to_owned();
                let token = made.token.ok_or_else(|| RestError::Uncertain { why: why() })?;
                Webhook { id: made.id, token }
            }
        };
        self.cache.add_own_webhook(webhook.id);
        *slot = Some(webhook.clone());
        Ok(webhook)
    }

    /// Returns the application id of the bot: as reported by the websocket, or else from a request.
    pub(super) async fn application(&self) -> Result<Snowflake, RestError> {
        match self.cache.identity() {
            Some(identity) => Ok(identity.application),
            None => self.rest.application().await,
        }
    }

    async fn invalidate_webhook(&self, channel: Snowflake, webhook: &Webhook) {
        let slot = self.webhooks.slot(channel);
        let mut slot = slot.lock().await;
        // Another task may have cached a different webhook meanwhile.
        if slot.as_ref() == Some(webhook) {
            *slot = None;
        }
    }

    /// Records that a channel has no usable webhook. Problems that only a person can fix suspend requests for
    /// longer than temporary ones.
    fn record_webhook_error(&self, channel: Snowflake, missing: &WebhookError) {
        match missing {
            WebhookError::Fault(fault) if fault.rejection_kind().is_some_and(is_permanent) => {
                self.cache.deny(OptionalFeature::Persona, channel, self.clock.wall_ms());
                tracing::warn!(
                    %channel,
                    %fault,
                    hint = "grant Manage Webhooks, or delete a webhook of the channel if it has fifteen",
                    "webhook unavailable; agents send as the bot"
                );
            }
            WebhookError::Fault(fault) => {
                self.webhooks.start_cooldown(channel, Instant::now());
                tracing::info!(%channel, %fault, "webhook unavailable for now; sending as the bot");
            }
            WebhookError::Unusable(webhook) => {
                // The refusal may have come from an intermediary: Discord lists the webhook.
                if let Some(webhook) = webhook {
                    self.rest.mark_webhook_alive(webhook);
                }
                self.cache.deny(OptionalFeature::Persona, channel, self.clock.wall_ms());
                tracing::warn!(
                    %channel,
                    hint = "retried in ten minutes; if it fails again, delete the webhook (Server Settings, \
                            Integrations), and another one is created",
                    "webhook listed but unusable; agents send as the bot"
                );
            }
        }
    }
}

/// True if the problem lasts until a person fixes the cause.
const fn is_permanent(kind: RejectionKind) -> bool {
    matches!(
        kind,
        RejectionKind::Forbidden
            | RejectionKind::LostAccess
            | RejectionKind::Full
            | RejectionKind::Invalid
            | RejectionKind::Gone(_)
    )
}

/// Our webhooks in a channel.
#[derive(Debug, PartialEq, Eq)]
enum OwnWebhooks {
    /// A usable webhook.
    Usable(Webhook),
    /// Only unusable ones: known to be deleted although listed, or listed without a token.
    Unusable(Option<Webhook>),
    /// No webhook.
    None,
}

/// Selects the webhook to use: created by our application, listed with a token, and not known to be deleted.
/// The choice among several is stable.
fn select_webhook(
    listed: Vec<WebhookObject>,
    application: Snowflake,
    is_dead: impl Fn(&Webhook) -> bool,
) -> OwnWebhooks {
    let mut ours: Vec<WebhookObject> =
        listed.into_iter().filter(|listed| listed.application_id == Some(application)).collect();
    if ours.is_empty() {
        return OwnWebhooks::None;
    }
    ours.sort_by_key(|listed| (listed.name.as_deref() != Some(NAME), listed.id));
    let with_token = |listed: WebhookObject| Some(Webhook { id: listed.id, token: listed.token? });
    let (dead, alive): (Vec<_>, Vec<_>) = ours.into_iter().filter_map(with_token).partition(is_dead);
    match alive.into_iter().next() {
        Some(webhook) => OwnWebhooks::Usable(webhook),
        None => OwnWebhooks::Unusable(dead.into_iter().next()),
    }
}

/// Returns a name that Discord accepts; `None` if nothing remains, and then the webhook's own name is shown.
fn webhook_display_name(name: &str) -> Option<String> {
    // Characters of mentions, tags and code cannot be part of a name.
    let plain = |c: char| if c.is_control() || matches!(c, '@' | '#' | ':' | '`') { ' ' } else { c };
    let mut name: String = name.chars().map(plain).collect();
    for word in ["discord", "clyde"] {
        while let Some(at) = name.to_ascii_lowercase().find(word) {
            name.replace_range(at..at + word.len(), " ");
        }
    }
    let words: Vec<&str> = name.split_whitespace().collect();
    let name = render::fit(&words.join(" "), PayloadLimit::WebhookName.bounds().1);
    webhook_name(&name).is_ok().then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use acp_shared::redact::Secret;

    const APP: Option<Snowflake> = Some(Snowflake(5));

    fn listed(id: u64, application_id: Option<Snowflake>, name: &str, token: Option<&str>) -> WebhookObject {
        WebhookObject {
            id: Snowflake(id),
            token: token.map(|token| Secret::new(token.to_owned())),
            application_id,
            name: Some(name.to_owned()),
        }
    }

    #[test]
    fn only_own_webhooks_are_selected() {
        let other = Some(Snowflake(6));
        let usable = |id| (Some(id), true);
        let unusable = |id| (id, false);
        for (webhooks, want) in [
            (vec![], None),
            (vec![listed(1, other, NAME, Some("t")), listed(2, None, NAME, Some("t"))], None),
            (vec![listed(9, APP, NAME, Some("t")), listed(3, APP, NAME, Some("t"))], Some(usable(3))),
            // A renamed webhook is used, but one with the original name is preferred.
            (vec![listed(3, APP, "renamed", Some("t"))], Some(usable(3))),
            (vec![listed(3, APP, "renamed", Some("t")), listed(4, APP, NAME, Some("t"))], Some(usable(4))),
            // A deleted webhook is not used, though listed, and causes no creation of another one.
            (vec![listed(1, APP, NAME, Some("dead")), listed(3, APP, NAME, Some("t"))], Some(usable(3))),
            (vec![listed(1, APP, NAME, Some("dead"))], Some(unusable(Some(1)))),
            (vec![listed(1, APP, NAME, None)], Some(unusable(None))),
        ] {
            let found = match select_webhook(webhooks.clone(), Snowflake(5), |webhook| {
                webhook.token.expose() == "dead"
            }) {
                OwnWebhooks::Usable(webhook) => Some((Some(webhook.id.0), true)),
                OwnWebhooks::Unusable(webhook) => Some((webhook.map(|webhook| webhook.id.0), false)),
                OwnWebhooks::None => None,
            };
            assert_eq!(found, want, "{webhooks:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn channel_without_webhook_cools_down() {
        let webhooks = Webhooks::default();
        let [channel, other] = [1, 2].map(Snowflake);
        let cooling_down =
            || [channel, other].map(|channel| webhooks.is_cooling_down(channel, Instant::now()));
        assert_eq!(cooling_down(), [false, false]);
        webhooks.start_cooldown(channel, Instant::now());
        assert_eq!(cooling_down(), [true, false]);
        tokio::time::advance(COOLDOWN).await;
        assert_eq!(cooling_down(), [false, false]);
    }

    #[test]
    fn display_names_are_valid_for_discord() {
        for (name, want) in [
            ("codex", Some("codex")),
            ("  fix: the #1 @bug `now`\n", Some("fix the 1 bug now")),
            ("Discord bot of Clyde", Some("bot of")),
            ("disDiscordcord", Some("dis cord")),
            ("DISCORD", None),
            ("", None),
            (" @ ", None),
        ] {
            assert_eq!(webhook_display_name(name).as_deref(), want, "{name:?}");
        }
        for text in ["x", "😀", "👩‍💻", "ä ", "\u{301}"] {
            let name = webhook_display_name(&text.repeat(200));
            assert!(name.as_deref().is_some_and(|name| webhook_name(name).is_ok()), "{name:?}");
        }
    }

    #[test]
    fn permanent_webhook_refusals_are_recognised() {
        for (kind, want) in [
            (RejectionKind::Forbidden, true),
            (RejectionKind::LostAccess, true),
            (RejectionKind::Full, true),
            (RejectionKind::Invalid, true),
            (RejectionKind::Temporary, false),
            (RejectionKind::NotSent, false),
            (RejectionKind::Unauthorized, false),
            (RejectionKind::Slow, false),
        ] {
            assert_eq!(is_permanent(kind), want, "{kind:?}");
        }
    }
}
