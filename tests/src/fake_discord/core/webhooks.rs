//! Webhooks, and the routes that interactions share with them.

use super::Machine;
use super::check::mentions::Default as Mentions;
use super::check::message::MessageForm;
use super::error::{ApiError, form_error};
use super::model::{Channel, Id, Interaction, Message, Webhook};
use super::permissions as may;
use super::render::{self, View};
use super::rest::{Ctx, Reply};
use super::settings::Rule;
use super::{check, error::FormErrors, messages::Draft};
use serde_json::Value;

const NAME_MAX: usize = 80;

impl Machine {
    fn webhooks_of(&self, channel_id: Id) -> impl Iterator<Item = &Webhook> {
        self.world.webhooks.iter().filter(move |hook| hook.alive && hook.channel_id == channel_id)
    }

    fn render_webhook(&self, hook: &Webhook) -> Value {
        let guild_id = self.world.channels.get(hook.channel_id).map_or(0, |channel| channel.guild_id);
        render::webhook(hook, guild_id, self.world.users.get(hook.user_id))
    }

    /// `POST /channels/{}/webhooks`.
    pub(super) fn post_webhook(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let bot = ctx.bot()?;
        let channel = self.seen_channel(bot, ctx.id(0)?)?;
        if channel.thread.is_some() {
            return Err(ApiError::wrong_channel_type());
        }
        self.demand(bot, &channel, may::MANAGE_WEBHOOKS)?;
        let object = ctx.object()?;
        let mut errors = FormErrors::default();
        let name =
            check::bounded(&object, "name", "", (1, NAME_MAX), &mut errors).unwrap_or_default().to_owned();
        let lower = name.to_lowercase();
        if lower.contains("clyde") || lower.contains("discord") {
            errors.add(
                "name",
                "USERNAME_INVALID_CONTAINS",
                "Username cannot contain \"discord\" or \"clyde\"",
            );
        }
        errors.finish()?;
        if self.webhooks_of(channel.id).count() >= self.settings.webhooks_max
            && self.holds(Rule::WebhookCount)
        {
            return Err(ApiError::max_webhooks());
        }
        let id = self.world.mint(ctx.now);
        let token = self.draw_webhook_token();
        let hook = Webhook {
            id,
            channel_id: channel.id,
            name,
            token,
            application_id: Some(bot.application_id),
            user_id: bot.user_id,
            alive: true,
        };
        let rendered = self.render_webhook(&hook);
        self.world.webhooks.put(id, hook);
        Ok(Reply::Ok(rendered))
    }

    fn draw_webhook_token(&mut self) -> String {
        (0..4).map(|_| format!("{:016x}", self.faults.dice.number())).collect()
    }

    /// `GET /channels/{}/webhooks`.
    pub(super) fn get_channel_webhooks(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let bot = ctx.bot()?;
        let channel = self.seen_channel(bot, ctx.id(0)?)?;
        self.demand(bot, &channel, may::MANAGE_WEBHOOKS)?;
        let render = |hook: &Webhook| {
            let mut rendered = self.render_webhook(hook);
            // Only the application that created the webhook gets its token.
            if hook.application_id != Some(bot.application_id)
                && let Some(members) = rendered.as_object_mut()
            {
                members.remove("token");
            }
            rendered
        };
        Ok(Reply::Ok(self.webhooks_of(channel.id).map(render).collect()))
    }

    fn webhook_by_token(&self, ctx: &Ctx<'_>) -> Result<&Webhook, ApiError> {
        let hook = self.world.webhooks.get(ctx.id(0)?).filter(|hook| hook.alive);
        let hook = hook.ok_or_else(ApiError::unknown_webhook)?;
        if hook.token == ctx.text(1) { Ok(hook) } else { Err(ApiError::bad_webhook_token()) }
    }

    /// Deletes a webhook: later requests with it return 10015.
    pub fn delete_webhook_by_force(&mut self, id: Id) {
        if let Some(hook) = self.world.webhooks.edit(id) {
            hook.alive = false;
        }
    }

    /// Changes the token of a webhook: later requests with the old one return 50027.
    pub fn rotate_webhook_by_force(&mut self, id: Id) {
        let token = self.draw_webhook_token();
        if let Some(hook) = self.world.webhooks.edit(id) {
            hook.token = token;
        }
    }

    /// `POST /webhooks/{}/{}`: a webhook's message, or a follow-up to an interaction.
    pub(super) fn execute_webhook(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        if self.world.bot_of(ctx.id(0)?).is_some() {
            return self.post_followup(ctx);
        }
        let hook = self.webhook_by_token(ctx)?.clone();
        let object = ctx.object()?;
        // Webhooks have no nonce: the service ignores it.
        let mut form = MessageForm::read(&object, &ctx.call.body, &self.settings)?;
        form.nonce = None;
        form.enforce_nonce = false;
        if form.is_empty() && self.holds(Rule::NotEmpty) {
            return Err(ApiError::empty_message());
        }
        let mut errors = FormErrors::default();
        let username = check::bounded(&object, "username", "", (0, NAME_MAX), &mut errors).map(str::to_owned);
        errors.finish()?;
        let channel_id = self.target(ctx, &hook)?;
        let draft = Draft {
            default: Mentions::People,
            webhook_id: Some(hook.id),
            application_id: hook.application_id,
            username,
            ..Draft::plain(hook.id, channel_id, form)
        };
        let message = self.create(ctx.now, draft)?;
        if !ctx.flag("wait") {
            return Ok(Reply::Nothing);
        }
        Ok(Reply::Ok(self.render_message(&message, View { user_id: 0, with_nonce: false }, ctx.now)))
    }

    /// The channel of a webhook, or the thread of it that the query names.
    fn target(&self, ctx: &Ctx<'_>, hook: &Webhook) -> Result<Id, ApiError> {
        let Some(thread_id) = ctx.query_id("thread_id")? else { return Ok(hook.channel_id) };
        let channel = self.world.channel(thread_id)?;
        if channel.parent_id == Some(hook.channel_id) && channel.thread.is_some() {
            Ok(thread_id)
        } else {
            Err(form_error(
                "thread_id",
                "CHANNEL_NOT_IN_PARENT",
                "Thread does not belong to the webhook's channel",
            ))
        }
    }

    pub(super) fn patch_through_webhook(
        &mut self,
        ctx: &Ctx<'_>,
        channel: &Channel,
        message: Message,
    ) -> Result<Reply, ApiError> {
        self.demand_unarchived(channel)?;
        let form = MessageForm::read(&ctx.object()?, &ctx.call.body, &self.settings)?;
        let edited = self.edit(ctx.now, channel, message, form, Mentions::People)?;
        Ok(Reply::Ok(self.render_message(&edited, View { user_id: 0, with_nonce: false }, ctx.now)))
    }

    /// The interaction whose token is in the path, while the token is valid.
    pub(super) fn living_interaction(&self, ctx: &Ctx<'_>) -> Result<&Interaction, ApiError> {
        let application_id = ctx.id(0)?;
        let token = ctx.text(1);
        let found = self
            .world
            .interactions
            .iter()
            .rev()
            .find(|interaction| interaction.application_id == application_id && interaction.token == token)
            .ok_or_else(ApiError::unknown_webhook)?;
        let old = ctx.now.saturating_sub(found.created_ms) >= self.settings.interaction_life_ms;
        if old && self.holds(Rule::InteractionTokenEnds) {
            return Err(ApiError::bad_webhook_token());
        }
        Ok(found)
    }
}
