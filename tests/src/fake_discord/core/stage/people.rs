//! Actions of people: messages, clicks and commands.

use super::{Order, Outcome, PersonFile, as_json, id};
use crate::fake_discord::core::Machine;
use crate::fake_discord::core::check::mentions::Default as Mentions;
use crate::fake_discord::core::check::message::MessageForm;
use crate::fake_discord::core::error::{ApiError, form_error};
use crate::fake_discord::core::interactions::{Act, kind};
use crate::fake_discord::core::messages::Draft;
use crate::fake_discord::core::model::{Bot, Id, Ms};
use crate::fake_discord::core::render;
use crate::fake_discord::core::rest::Upload;
use serde_json::{Value, json};

impl Machine {
    /// Executes orders about messages.
    pub(super) fn person_writes(&mut self, now: Ms, order: Order) -> Outcome {
        match order {
            Order::Post { user, channel, content, files } => {
                let form = MessageForm {
                    content: Some(Some(content)),
                    uploads: files.into_iter().zip(0..).map(upload).collect(),
                    ..MessageForm::default()
                };
                return Ok(id(self.create(now, Draft::plain(user, channel, form))?.id));
            }
            Order::Edit { message, content } => {
                let message = self.world.messages.get(message).filter(|message| message.deleted_ms.is_none());
                let message = message.cloned().ok_or_else(ApiError::unknown_message)?;
                let channel = self.world.channel(message.channel_id)?.clone();
                let form = MessageForm { content: Some(Some(content)), ..MessageForm::default() };
                self.edit(now, &channel, message, form, Mentions::Everything)?;
            }
            Order::Delete { message } => self.remove(now, message),
            // Other orders are executed elsewhere.
            _ => {}
        }
        Ok(Value::Null)
    }

    /// Executes orders that create interactions.
    pub(super) fn person_acts(&mut self, now: Ms, order: Order) -> Outcome {
        match order {
            Order::Click { user, message, custom_id } => self.click(now, user, message, &custom_id),
            Order::Submit { user, interaction, values } => self.submit(now, user, interaction, &values),
            Order::Use { user, channel, bot, command, options, focused } => {
                self.use_command(now, user, channel, bot, &command, &options, focused.as_deref())
            }
            // Other orders are executed elsewhere.
            _ => Ok(Value::Null),
        }
    }

    fn click(&mut self, now: Ms, user_id: Id, message: Id, custom_id: &str) -> Outcome {
        let message = self.world.messages.get(message).filter(|message| message.deleted_ms.is_none());
        let message = message.cloned().ok_or_else(ApiError::unknown_message)?;
        let component = message
            .components
            .iter()
            .filter_map(|row| row.get("components").and_then(Value::as_array))
            .flatten()
            .find(|component| component.get("custom_id").and_then(Value::as_str) == Some(custom_id))
            .ok_or_else(|| {
                form_error("custom_id", "COMPONENT_VALIDATION_FAILED", "There is no such component")
            })?;
        if component.get("disabled").and_then(Value::as_bool) == Some(true) {
            return Err(form_error("custom_id", "COMPONENT_DISABLED", "The component is disabled"));
        }
        let data = json!({"custom_id": custom_id, "component_type": component.get("type"), "id": 1});
        let bot = message.application_id.and_then(|id| self.world.bot_of(id));
        let bot = bot.or_else(|| self.world.bots.get(message.author_id)).cloned();
        let bot = bot.ok_or_else(ApiError::unknown_application)?;
        let act = Act {
            kind: kind::COMPONENT,
            user_id,
            channel_id: message.channel_id,
            data,
            name: None,
            message: Some(message),
        };
        as_json(self.interact(now, &bot, act)?)
    }

    fn submit(&mut self, now: Ms, user_id: Id, of: Id, values: &[(String, String)]) -> Outcome {
        let opened = self.world.interactions.get(of).cloned().ok_or_else(ApiError::unknown_interaction)?;
        let modal = opened.answered.filter(|answered| answered.kind == 9 && opened.user_id == user_id);
        let modal = modal.ok_or_else(ApiError::unknown_interaction)?.data;
        let rows = modal.get("components").and_then(Value::as_array).cloned().unwrap_or_default();
        let mut filled = Vec::new();
        for row in &rows {
            let input = row.pointer("/components/0").unwrap_or(&Value::Null);
            let id = input.get("custom_id").and_then(Value::as_str).unwrap_or_default();
            let preset = input.get("value").and_then(Value::as_str).unwrap_or_default();
            let value =
                values.iter().find(|(name, _)| name == id).map_or(preset, |(_, value)| value.as_str());
            if value.is_empty() && input.get("required") == Some(&Value::Bool(true)) {
                return Err(form_error("value", "BASE_TYPE_REQUIRED", "This field is required"));
            }
            filled.push(json!({"type": 1, "components": [{"type": 4, "custom_id": id, "value": value}]}));
        }
        let message = opened.message_id.and_then(|id| self.world.messages.get(id)).cloned();
        let bot =
            self.world.bot_of(opened.application_id).cloned().ok_or_else(ApiError::unknown_application)?;
        let data = json!({"custom_id": modal["custom_id"], "components": filled});
        let (kind, channel_id) = (kind::MODAL_SUBMIT, opened.channel_id);
        as_json(self.interact(now, &bot, Act { kind, user_id, channel_id, data, name: None, message })?)
    }

    #[expect(clippy::too_many_arguments, reason = "one for each part of what a person does")]
    fn use_command(
        &mut self,
        now: Ms,
        user_id: Id,
        channel_id: Id,
        bot: Id,
        words: &str,
        options: &[(String, Value)],
        focused: Option<&str>,
    ) -> Outcome {
        let bot: Bot = self.world.bots.get(bot).cloned().ok_or_else(ApiError::unknown_user)?;
        let channel = self.world.channel(channel_id)?.clone();
        self.demand_unarchived(&channel)?;
        let mut words = words.split(' ');
        let name = words.next().unwrap_or_default().to_owned();
        let command = self
            .command_named(bot.application_id, channel.guild_id, &name)
            .ok_or_else(ApiError::unknown_command)?;
        let path: Vec<&str> = words.collect();
        let options = filled(&command.body, &path, options, focused)?;
        let mut data = json!({"id": render::id(command.id), "name": name, "type": 1, "options": options});
        if let Some(guild_id) = command.guild_id {
            data["guild_id"] = render::id(guild_id);
        }
        let act = Act {
            kind: if focused.is_some() { kind::AUTOCOMPLETE } else { kind::COMMAND },
            user_id,
            channel_id,
            data,
            name: Some(std::iter::once(name.as_str()).chain(path).collect::<Vec<_>>().join(" ")),
            message: None,
        };
        as_json(self.interact(now, &bot, act)?)
    }
}

fn upload((file, n): (PersonFile, u64)) -> Upload {
    Upload { n, filename: file.filename, content_type: file.content_type, bytes: file.bytes }
}

/// The options of an interaction: nested below their groups, with their types. Unregistered options and
/// missing required ones are errors.
fn filled(
    command: &Value,
    path: &[&str],
    options: &[(String, Value)],
    focused: Option<&str>,
) -> Result<Value, ApiError> {
    let none = Vec::new();
    let known = command.get("options").and_then(Value::as_array).unwrap_or(&none);
    let named = |name: &str| {
        let unknown = || {
            let message = format!("There is no option {name:?}");
            form_error("options", "APPLICATION_COMMAND_UNKNOWN_OPTION", &message)
        };
        let is = |option: &&Value| option.get("name").and_then(Value::as_str) == Some(name);
        known.iter().find(is).ok_or_else(unknown)
    };
    if let Some((name, rest)) = path.split_first() {
        let option = named(name)?;
        let inner = filled(option, rest, options, focused)?;
        return Ok(json!([{"name": name, "type": option.get("type"), "options": inner}]));
    }
    let kind = |option: &Value| option.get("type").and_then(Value::as_u64).unwrap_or(0);
    if known.iter().any(|option| kind(option) <= 2) {
        return Err(form_error("options", "APPLICATION_COMMAND_INCOMPLETE", "A sub-command must be named"));
    }
    let missing = known.iter().find(|option| {
        let required = option.get("required").and_then(Value::as_bool).unwrap_or(false);
        let name = option.get("name").and_then(Value::as_str).unwrap_or_default();
        required && focused.is_none() && !options.iter().any(|(given, _)| given == name)
    });
    if let Some(missing) = missing {
        let message = format!("{} is required", missing["name"]);
        return Err(form_error("options", "APPLICATION_COMMAND_OPTION_MISSING", &message));
    }
    let mut filled = Vec::new();
    for (name, value) in options {
        let option = named(name)?;
        let mut given = json!({"name": name, "type": kind(option), "value": value});
        if focused == Some(name) {
            if option.get("autocomplete").and_then(Value::as_bool) != Some(true) {
                let message = format!("{name} has no autocompletion");
                return Err(form_error("options", "NO_AUTOCOMPLETE", &message));
            }
            given["focused"] = json!(true);
        }
        filled.push(given);
    }
    Ok(Value::Array(filled))
}
