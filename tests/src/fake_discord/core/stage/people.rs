//! Actions of people: messages, clicks, commands and modals.

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
    /// Executes orders about messages, reactions and typing.
    pub(super) fn person_writes(&mut self, now: Ms, order: Order) -> Outcome {
        match order {
            Order::Post { user, channel, content, files, reply_to } => {
                let form = MessageForm {
                    content: Some(Some(content)),
                    replied_to: reply_to,
                    fail_if_not_exists: true,
                    uploads: files.into_iter().zip(0..).map(upload).collect(),
                    ..MessageForm::default()
                };
                Ok(id(self.create(now, Draft::plain(user, channel, form))?.id))
            }
            Order::Edit { message, content } => {
                let message = self.world.messages.get(message).filter(|message| message.deleted_ms.is_none());
                let message = message.cloned().ok_or_else(ApiError::unknown_message)?;
                let channel = self.world.channel(message.channel_id)?.clone();
                let form = MessageForm { content: Some(Some(content)), ..MessageForm::default() };
                self.edit(now, &channel, message, form, Mentions::Everything)?;
                Ok(Value::Null)
            }
            Order::Delete { message } => {
                self.remove(now, message);
                Ok(Value::Null)
            }
            Order::React { user, message, emoji, add } => {
                self.react(now, message, user, &emoji, add);
                Ok(Value::Null)
            }
            Order::Type { user, channel } => {
                let channel = self.world.channel(channel)?.clone();
                self.typing(now, &channel, user);
                Ok(Value::Null)
            }
            // Other orders are executed elsewhere.
            _ => Ok(Value::Null),
        }
    }

    /// Executes orders that create interactions.
    pub(super) fn person_acts(&mut self, now: Ms, order: Order) -> Outcome {
        match order {
            Order::Click { user, message, custom_id, values, without_channel } => {
                self.click(now, user, message, &custom_id, &values, without_channel)
            }
            Order::Use { user, channel, bot, command, options, focused } => {
                self.use_command(now, user, channel, bot, &command, &options, focused.as_deref())
            }
            Order::Submit { interaction, values } => self.submit(now, interaction, &values),
            // Other orders are executed elsewhere.
            _ => Ok(Value::Null),
        }
    }

    fn click(
        &mut self,
        now: Ms,
        user_id: Id,
        message: Id,
        custom_id: &str,
        values: &[String],
        without_channel: bool,
    ) -> Outcome {
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
        let mut data = json!({
            "custom_id": custom_id, "component_type": component.get("type"), "id": 1,
        });
        if component.get("type").and_then(Value::as_u64) != Some(2) {
            data["values"] = json!(values);
        }
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
            without_channel,
        };
        as_json(self.interact(now, &bot, act)?)
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
            without_channel: false,
        };
        as_json(self.interact(now, &bot, act)?)
    }

    fn submit(&mut self, now: Ms, interaction: Id, values: &[(String, String)]) -> Outcome {
        let opened =
            self.world.interactions.get(interaction).cloned().ok_or_else(ApiError::unknown_interaction)?;
        let modal = opened.answered.as_ref().filter(|answered| answered.kind == 9);
        let modal =
            modal.ok_or_else(|| form_error("interaction", "NO_MODAL", "It was not answered with a modal"))?;
        let bot =
            self.world.bot_of(opened.application_id).cloned().ok_or_else(ApiError::unknown_application)?;
        let rows = modal.data.get("components").and_then(Value::as_array).cloned().unwrap_or_default();
        let rows: Vec<Value> = rows.into_iter().map(|row| filled_row(row, values)).collect();
        let data = json!({"custom_id": modal.data.get("custom_id"), "components": rows});
        let message = opened.message_id.and_then(|id| self.world.messages.get(id)).cloned();
        let act = Act {
            kind: kind::MODAL,
            user_id: opened.user_id,
            channel_id: opened.channel_id,
            data,
            name: None,
            message,
            without_channel: false,
        };
        as_json(self.interact(now, &bot, act)?)
    }
}

fn upload((file, n): (PersonFile, u64)) -> Upload {
    Upload { n, filename: file.filename, content_type: file.content_type, bytes: file.bytes }
}

/// A row of a submitted modal: ids and values.
fn filled_row(row: Value, values: &[(String, String)]) -> Value {
    let fill = |input: &Value| {
        let custom_id = input.get("custom_id").and_then(Value::as_str).unwrap_or_default();
        let typed = values.iter().find(|(id, _)| id == custom_id).map(|(_, text)| text.as_str());
        let text = typed.or_else(|| input.get("value").and_then(Value::as_str)).unwrap_or_default();
        json!({"type": 4, "id": 2, "custom_id": custom_id, "value": text})
    };
    match row.get("component") {
        Some(input) => json!({"type": 18, "id": 1, "component": fill(input)}),
        None => {
            let inputs = row.get("components").and_then(Value::as_array).cloned().unwrap_or_default();
            json!({"type": 1, "id": 1, "components": inputs.iter().map(fill).collect::<Vec<_>>()})
        }
    }
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
        known.iter().find(|option| option.get("name").and_then(Value::as_str) == Some(name)).ok_or_else(
            || {
                form_error(
                    "options",
                    "APPLICATION_COMMAND_UNKNOWN_OPTION",
                    &format!("There is no option {name:?}"),
                )
            },
        )
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
                return Err(form_error(
                    "options",
                    "NO_AUTOCOMPLETE",
                    &format!("{name} has no autocompletion"),
                ));
            }
            given["focused"] = json!(true);
        }
        filled.push(given);
    }
    Ok(Value::Array(filled))
}
