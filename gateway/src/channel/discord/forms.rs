//! Forms of agents as modals: a click on the button of a form opens a window with its fields; the submitted values
//! become the command that a person could type. Opening is read-only: only the submission is committed.

use super::Inner;
use crate::channel::InboundPort;
use acp_core::elicitation::{Elicitation, FieldKind, FormField, describe};
use acp_core::render::buttons::form_command;
use acp_core::sanitize;
use acp_discord::core::commands::quote;
use acp_discord::core::custom_id::{DecodedCustomId, decode, encode};
use acp_discord::core::event::{Interaction, Submission};
use acp_discord::core::message::Callback;
use acp_discord::core::modal::{LABEL_MAX, Modal, PLACEHOLDER_MAX, TextInput, VALUE_MAX};
use serde_json::Value;
use std::time::Duration;

/// Time limit for reading a form, so that the response to the click is in time.
const READ_DEADLINE: Duration = Duration::from_secs(1);
/// Reply for a form that can no longer be answered.
const NOT_PENDING: &str =
    "This form is no longer pending, or cannot be read now. /acp permissions lists what is.";
/// Maximum length of a text that gets an input of one line, in characters.
const LINE_CHARS_MAX: u64 = 100;

/// Returns the request whose form a button opens; `None` for any other command.
pub(super) fn form_id(command: &str) -> Option<&str> {
    command.strip_prefix(form_command("").as_str()).filter(|id| !id.is_empty())
}

impl Inner {
    /// Opens the form of a pending request.
    pub(super) async fn open_form(&self, inbox: &dyn InboundPort, at: &Interaction, id: &str) {
        let modal = pending_form(inbox, id).await.and_then(|form| modal(id, &form));
        let Some(modal) = modal else { return self.respond_denied(at, NOT_PENDING).await };
        if let Err(fault) = self.rest.callback(at.id, &at.token, &Callback::Modal(modal)).await {
            tracing::warn!(%fault, interaction = %at.id, "opening a form failed");
        }
    }

    /// Handles the values of a form.
    pub(super) async fn submit_form(&self, inbox: &dyn InboundPort, submission: Submission) {
        let at = &submission.interaction;
        if let Some(why) = self.denial_reason(at).await {
            return self.respond_denied(at, &why).await;
        }
        let id = match decode(&submission.custom_id) {
            DecodedCustomId::Text(text) => form_id(text),
            DecodedCustomId::OtherVersion(_) | DecodedCustomId::Foreign => None,
        };
        let Some(id) = id else {
            return self.respond_denied(at, "This form does not belong to this gateway.").await;
        };
        match pending_form(inbox, id).await {
            Some(form) => self.run_command(inbox, at, answer_line(id, &form, &submission.values)).await,
            None => self.respond_denied(at, NOT_PENDING).await,
        }
    }
}

async fn pending_form(inbox: &dyn InboundPort, id: &str) -> Option<Elicitation> {
    tokio::time::timeout(READ_DEADLINE, inbox.pending_form(id.to_owned())).await.ok()?
}

/// Builds the window of a form; `None` if it does not fit.
fn modal(id: &str, form: &Elicitation) -> Option<Modal> {
    let inputs = form.fields().iter().enumerate().map(|(at, field)| input(at, field)).collect();
    Some(Modal { custom_id: encode(&form_command(id)).ok()?, title: cut(&form.title(), LABEL_MAX), inputs })
}

fn input(at: usize, field: &FormField) -> TextInput {
    let label = field.title.as_deref().unwrap_or(&field.name);
    let (choices, has_lines) = match &field.kind {
        FieldKind::Choice { choices } | FieldKind::Choices { choices, .. } => {
            let listed: Vec<&str> = choices.iter().map(|choice| choice.value.as_str()).collect();
            (format!(": {}", listed.join(", ")), false)
        }
        FieldKind::String { format: None, max_length, .. } => {
            (String::new(), max_length.is_none_or(|max| max > LINE_CHARS_MAX))
        }
        _ => (String::new(), false),
    };
    let value = match &field.default {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(values)) => values.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
        Some(value) => value.to_string(),
    };
    TextInput {
        custom_id: at.to_string(),
        label: cut(label, LABEL_MAX),
        placeholder: cut(&format!("{}{choices}", describe(field)), PLACEHOLDER_MAX),
        // A value that was cut would be submitted unseen.
        value: if value.encode_utf16().count() <= VALUE_MAX { value } else { String::new() },
        required: field.required,
        has_lines,
    }
}

/// Sanitizes a text, and cuts it to a length in UTF-16 units.
fn cut(text: &str, units_max: usize) -> String {
    let line = sanitize::line(text, units_max);
    let mut room = units_max;
    line.chars()
        .take_while(|c| {
            let fits = c.len_utf16() <= room;
            room = room.saturating_sub(c.len_utf16());
            fits
        })
        .collect()
}

/// Returns the command that submits these values. An input that was left empty counts as left out, unless that would
/// bring a default back.
fn answer_line(id: &str, form: &Elicitation, values: &[(String, String)]) -> String {
    let words: Vec<String> = form
        .fields()
        .iter()
        .enumerate()
        .filter_map(|(at, field)| {
            let value = values.iter().find(|(input, _)| *input == at.to_string());
            let value = value.map(|(_, value)| value.as_str()).unwrap_or_default();
            let is_given = !value.is_empty() || field.default.is_some();
            is_given.then(|| quote(&format!("{}={value}", field.name)))
        })
        .collect();
    // Without words, the id alone would be read as the value of an only field.
    if words.is_empty() {
        format!("/acp allow {id}")
    } else {
        format!("/acp answer -- {id} {}", words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use acp_core::command::{self, ChatCommand, PermissionChoice, SessionAction};
    use acp_core::elicitation::{parse, parse_fields};
    use serde_json::json;

    fn form() -> Elicitation {
        let params = json!({ "mode": "form", "message": "Who are you?", "requestedSchema": { "required": ["name"],
            "properties": {
                "name": { "type": "string", "title": "Your name", "maxLength": 40 },
                "colour": { "type": "string", "enum": ["red", "green"], "default": "red" },
                "note": { "type": "string" },
            } } });
        parse(&params.to_string()).unwrap()
    }

    #[test]
    fn modal_has_an_input_for_each_field() {
        let id = "0190a000-0000-7000-8000-000000000001:12345678901";
        let modal = modal(id, &form()).unwrap();
        assert_eq!(modal.custom_id, format!("acp1:/acp form {id}"));
        assert_eq!(modal.title, "Who are you?");
        let shown = |it: &TextInput| {
            (it.label.clone(), it.placeholder.clone(), it.value.clone(), it.required, it.has_lines)
        };
        let text = str::to_owned;
        let want = [
            (text("colour"), text("one of, default red: red, green"), text("red"), false, false),
            (text("Your name"), text("text, at most 40 characters"), String::new(), true, false),
            (text("note"), text("text, optional"), String::new(), false, true),
        ];
        assert_eq!(modal.inputs.iter().map(shown).collect::<Vec<_>>(), want);
        assert!(modal.to_json().is_ok());
    }

    #[test]
    fn submitted_values_are_the_command_that_a_person_could_type() {
        let values = [("0", "2"), ("1", "Ann \"the\" B=C\n--X"), ("2", "")];
        let values = values.map(|(id, value)| (id.to_owned(), value.to_owned()));
        let line = answer_line("7", &form(), &values);
        let Some(ChatCommand::On { act: SessionAction::Answer(args), .. }) = command::parse(&line) else {
            panic!("{line}")
        };
        assert_eq!(args.permission.as_deref(), Some("7"));
        let PermissionChoice::Fields(words) = args.verdict else { panic!("{line}") };
        let content = parse_fields(&form(), &words).map(Value::from);
        assert_eq!(content, Ok(json!({ "colour": "green", "name": "Ann \"the\" B=C\n--X" })));
    }

    #[test]
    fn submission_without_values_accepts_the_form_as_it_is() {
        let params = json!({ "mode": "form", "message": "m", "requestedSchema": { "properties": { "note": { "type": "string" } } } });
        let form = parse(&params.to_string()).unwrap();
        assert_eq!(answer_line("7", &form, &[("0".to_owned(), String::new())]), "/acp allow 7");
    }

    #[test]
    fn only_the_button_of_a_form_opens_one() {
        for (command, want) in [("/acp form 7", Some("7")), ("/acp form ", None), ("/acp answer 7 1", None)] {
            assert_eq!(form_id(command), want, "{command}");
        }
    }
}
