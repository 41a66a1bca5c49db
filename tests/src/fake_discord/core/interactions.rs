//! Interactions: commands, buttons and autocompletion, from the person's action to the bot's responses.

use super::Machine;
use super::check::mentions::Default as Mentions;
use super::check::message::MessageForm;
use super::check::{commands, components};
use super::error::{ApiError, FormErrors, form_error};
use super::gateway::{Audience, Event};
use super::messages::Draft;
use super::model::{
    Answered, Bot, Channel, Id, Interaction, Message, Ms, Origin, message_flag, message_kind,
};
use super::render::{self, View};
use super::rest::{Ctx, Reply};
use super::settings::Rule;
use serde_json::{Value, json};

/// Types of interactions.
pub mod kind {
    /// A command.
    pub const COMMAND: u8 = 2;
    /// A button.
    pub const COMPONENT: u8 = 3;
    /// Typing into an option with autocompletion.
    pub const AUTOCOMPLETE: u8 = 4;
    /// Values of a modal.
    pub const MODAL_SUBMIT: u8 = 5;
}

const CHOICES_MAX: usize = 25;

/// An action of a person.
#[derive(Debug, Clone)]
pub struct Act {
    /// See [`kind`].
    pub kind: u8,
    /// The person.
    pub user_id: Id,
    /// The channel.
    pub channel_id: Id,
    /// The interaction's `data`.
    pub data: Value,
    /// The name of the command.
    pub name: Option<String>,
    /// The message with the component.
    pub message: Option<Message>,
}

impl Machine {
    /// Creates an interaction and sends it to the bot.
    ///
    /// # Errors
    /// 10003, or 10007 if the person is not a member.
    pub fn interact(&mut self, now: Ms, bot: &Bot, act: Act) -> Result<Interaction, ApiError> {
        let channel = self.world.channel(act.channel_id)?.clone();
        let bits = self.permission_bits(bot, &channel).to_string();
        let id = self.world.mint(now);
        let token =
            format!("aW50ZXJhY3Rpb246{:016x}{:016x}", self.faults.dice.number(), self.faults.dice.number());
        let mut data = json!({
            "id": render::id(id), "application_id": render::id(bot.application_id), "type": act.kind,
            "token": token, "version": 1, "channel_id": render::id(channel.id), "app_permissions": bits,
            "locale": "en-US", "entitlements": [], "attachment_size_limit": self.settings.file_max,
            "data": act.data,
        });
        self.add_invoker(&channel, act.user_id, &bits, &mut data)?;
        let mut rendered = self.render_channel(&channel, bot.user_id);
        rendered["permissions"] = json!(bits);
        data["channel"] = rendered;
        if let Some(message) = &act.message {
            let view = View { user_id: bot.user_id, with_nonce: false };
            data["message"] = self.render_message(message, view, now);
        }
        let interaction = Interaction {
            id,
            token,
            application_id: bot.application_id,
            kind: act.kind,
            channel_id: channel.id,
            user_id: act.user_id,
            name: act.name,
            message_id: act.message.map(|message| message.id),
            created_ms: now,
            answered: None,
            original_id: None,
        };
        self.world.interactions.put(id, interaction.clone());
        let audience = Audience::Bot { bot_id: bot.user_id, guild_id: channel.guild_id };
        self.emit(now, &Event::plain("INTERACTION_CREATE", audience, data));
        Ok(interaction)
    }

    /// Adds who acts and where: a member of a guild, or the user of direct messages with the bot (context 1).
    fn add_invoker(&self, channel: &Channel, user: Id, bits: &str, data: &mut Value) -> Result<(), ApiError> {
        if !channel.recipients.is_empty() {
            if !channel.recipients.contains(&user) {
                return Err(ApiError::missing_access());
            }
            data["user"] = self.world.users.get(user).map_or(Value::Null, render::user);
            data["context"] = json!(1);
            data["authorizing_integration_owners"] = json!({"0": "0"});
            return Ok(());
        }
        let guild = self.world.guild(channel.guild_id)?;
        let mut member = self.render_member(guild, user).ok_or_else(ApiError::unknown_member)?;
        member["permissions"] = json!(bits);
        data["member"] = member;
        data["guild_id"] = render::id(guild.id);
        data["guild"] = json!({"id": render::id(guild.id), "locale": "en-US", "features": []});
        data["guild_locale"] = json!("en-US");
        data["context"] = json!(0);
        data["authorizing_integration_owners"] = json!({"0": render::id(guild.id)});
        Ok(())
    }

    /// `POST /interactions/{}/{}/callback`.
    pub(super) fn post_callback(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let interaction = self.world.interactions.get(ctx.id(0)?).cloned();
        let interaction = interaction
            .filter(|interaction| interaction.token == ctx.text(1))
            .ok_or_else(ApiError::unknown_interaction)?;
        let waited = ctx.now.saturating_sub(interaction.created_ms);
        if interaction.answered.is_some() && self.holds(Rule::InteractionOnce) {
            return Err(ApiError::already_acknowledged());
        }
        if waited > self.settings.interaction_deadline_ms && self.holds(Rule::InteractionDeadline) {
            self.tally.late_responses += 1;
            return Err(ApiError::unknown_interaction());
        }
        let object = ctx.object()?;
        let response =
            object.get("type").and_then(Value::as_u64).and_then(|of| u8::try_from(of).ok()).unwrap_or(0);
        self.demand_response_fits(interaction.kind, response)?;
        let data = object.get("data").cloned().unwrap_or_else(|| json!({}));
        let original_id = self.respond(ctx, &interaction, response, &data)?;
        if let Some(kept) = self.world.interactions.edit(interaction.id) {
            kept.answered = Some(Answered { kind: response, at_ms: ctx.now, data });
            kept.original_id = original_id;
        }
        self.tally.response_ms.push(waited);
        Ok(Reply::Nothing)
    }

    /// Checks that the type of a response is valid for the interaction. Type 7 (update of the button's message) is not
    /// modelled and refused.
    fn demand_response_fits(&self, of: u8, response: u8) -> Result<(), ApiError> {
        let fits = match of {
            kind::AUTOCOMPLETE => response == 8,
            kind::COMMAND => matches!(response, 4 | 5 | 9),
            kind::COMPONENT => matches!(response, 4..=6 | 9),
            // A modal may not answer a modal.
            kind::MODAL_SUBMIT => matches!(response, 4..=6),
            _ => response == 1,
        };
        if fits || (!self.holds(Rule::ResponseTypes) && (1..=9).contains(&response)) {
            return Ok(());
        }
        Err(form_error(
            "type",
            "INTERACTION_APPLICATION_COMMAND_INVALID_RESPONSE_TYPE",
            "Invalid response type for this interaction",
        ))
    }

    /// Executes a first response; returns the `@original` message.
    fn respond(
        &mut self,
        ctx: &Ctx<'_>,
        interaction: &Interaction,
        response: u8,
        data: &Value,
    ) -> Result<Option<Id>, ApiError> {
        match response {
            4 => self.answer(ctx, interaction, data).map(Some),
            5 => {
                let flags = data.get("flags").and_then(Value::as_u64).unwrap_or(0) & message_flag::EPHEMERAL;
                let draft = self.draft(interaction, MessageForm::default(), flags | message_flag::LOADING)?;
                Ok(Some(self.create(ctx.now, draft)?.id))
            }
            6 => Ok(interaction.message_id),
            9 => {
                let mut errors = FormErrors::default();
                components::of_modal(data, &mut errors);
                errors.finish().map(|()| None)
            }
            8 => {
                let choices = data.get("choices").and_then(Value::as_array).cloned().unwrap_or_default();
                let mut errors = FormErrors::default();
                if choices.len() > CHOICES_MAX {
                    errors.too_long("data.choices", CHOICES_MAX);
                }
                commands::check_choices(&choices, "data.choices", &mut errors);
                errors.finish().map(|()| None)
            }
            _ => Ok(None),
        }
    }

    fn answer(&mut self, ctx: &Ctx<'_>, interaction: &Interaction, data: &Value) -> Result<Id, ApiError> {
        let form = MessageForm::read(data, &ctx.call.body, &self.settings)?;
        if form.is_empty() && self.holds(Rule::NotEmpty) {
            return Err(ApiError::empty_message());
        }
        let draft = self.draft(interaction, form, 0)?;
        Ok(self.create(ctx.now, draft)?.id)
    }

    fn draft(&self, interaction: &Interaction, mut form: MessageForm, flags: u64) -> Result<Draft, ApiError> {
        let bot = self.world.bot_of(interaction.application_id).ok_or_else(ApiError::unknown_application)?;
        // Responses have no nonce.
        form.nonce = None;
        form.enforce_nonce = false;
        let command = interaction.kind == kind::COMMAND;
        Ok(Draft {
            default: Mentions::People,
            webhook_id: Some(interaction.application_id),
            application_id: Some(interaction.application_id),
            kind: if command { message_kind::CHAT_INPUT_COMMAND } else { message_kind::DEFAULT },
            origin: Some(Origin {
                interaction_id: interaction.id,
                kind: interaction.kind,
                user_id: interaction.user_id,
                name: interaction.name.clone(),
            }),
            flags,
            ..Draft::plain(bot.user_id, interaction.channel_id, form)
        })
    }

    /// A follow-up: `POST /webhooks/{application}/{token}`.
    pub(super) fn post_followup(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let interaction = self.living_interaction(ctx)?.clone();
        if interaction.answered.is_none() {
            return Err(ApiError::unknown_webhook());
        }
        // The first follow-up after "is thinking" replaces that message.
        let thinking = interaction.original_id.and_then(|id| self.world.messages.get(id));
        if let Some(original) = thinking
            .filter(|original| original.flags & message_flag::LOADING != 0 && original.deleted_ms.is_none())
        {
            let (channel, original) = (self.world.channel(original.channel_id)?.clone(), original.clone());
            return self.patch_through_webhook(ctx, &channel, original);
        }
        let id = self.answer(ctx, &interaction, &ctx.object()?)?;
        if let Some(message) = self.world.messages.edit(id) {
            message.kind = message_kind::DEFAULT;
        }
        let message = self.world.messages.get(id).ok_or_else(ApiError::unknown_message)?;
        Ok(Reply::Ok(self.render_message(message, View { user_id: 0, with_nonce: false }, ctx.now)))
    }

    fn original(&self, ctx: &Ctx<'_>) -> Result<(Channel, Message), ApiError> {
        let id = self.living_interaction(ctx)?.original_id.ok_or_else(ApiError::unknown_message)?;
        let message = self.world.messages.get(id).filter(|message| message.deleted_ms.is_none());
        let message = message.ok_or_else(ApiError::unknown_message)?;
        Ok((self.world.channel(message.channel_id)?.clone(), message.clone()))
    }

    /// `PATCH /webhooks/{}/{}/messages/@original`.
    pub(super) fn patch_original(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let (channel, message) = self.original(ctx)?;
        self.patch_through_webhook(ctx, &channel, message)
    }

    /// `DELETE /webhooks/{}/{}/messages/@original`.
    pub(super) fn delete_original(&mut self, ctx: &Ctx<'_>) -> Result<Reply, ApiError> {
        let (_, message) = self.original(ctx)?;
        self.remove(ctx.now, message.id);
        Ok(Reply::Nothing)
    }
}
