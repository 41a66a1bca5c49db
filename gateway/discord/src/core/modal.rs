//! Modals: windows with text inputs that answer an interaction. Source: Discord's reference, "Interaction Response
//! Object", "Modal", and "Components", "Text Input".

use crate::core::payload_limits::{PayloadLimit, ValidationError};
use serde_json::{Value, json};
use std::collections::HashSet;

/// Maximum number of inputs of a modal.
pub const INPUTS_MAX: usize = 5;
/// Maximum length of a label and of a title, in UTF-16 units.
pub const LABEL_MAX: usize = 45;
/// Maximum length of a placeholder, in UTF-16 units.
pub const PLACEHOLDER_MAX: usize = 100;
/// Maximum length of a value, in UTF-16 units.
pub const VALUE_MAX: usize = 4_000;

/// Modal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modal {
    /// Custom id, which comes back to the bot with the values.
    pub custom_id: String,
    /// Title of the window.
    pub title: String,
    /// Inputs, from one to five.
    pub inputs: Vec<TextInput>,
}

/// Text input of a modal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextInput {
    /// Custom id, which comes back to the bot with the value.
    pub custom_id: String,
    /// Label.
    pub label: String,
    /// Hint in an empty input.
    pub placeholder: String,
    /// Value at the start.
    pub value: String,
    /// True if the user must enter something.
    pub required: bool,
    /// True for several lines.
    pub has_lines: bool,
}

impl Modal {
    /// Builds the data of the response.
    ///
    /// # Errors
    /// [`ValidationError`] if the modal exceeds Discord's limits.
    pub fn to_json(&self) -> Result<Value, ValidationError> {
        PayloadLimit::CustomId.text(&self.custom_id)?;
        PayloadLimit::ModalLabel.text(&self.title)?;
        PayloadLimit::ModalInputs.number(self.inputs.len())?;
        let mut seen = HashSet::new();
        let rows: Vec<Value> = self
            .inputs
            .iter()
            .map(|input| {
                if seen.insert(&input.custom_id) {
                    Ok(json!({"type": 1, "components": [input.to_json()?]}))
                } else {
                    Err(ValidationError::DuplicateCustomId(input.custom_id.clone()))
                }
            })
            .collect::<Result<_, _>>()?;
        Ok(json!({"custom_id": self.custom_id, "title": self.title, "components": rows}))
    }
}

impl TextInput {
    fn to_json(&self) -> Result<Value, ValidationError> {
        PayloadLimit::CustomId.text(&self.custom_id)?;
        PayloadLimit::ModalLabel.text(&self.label)?;
        PayloadLimit::ModalPlaceholder.text(&self.placeholder)?;
        PayloadLimit::ModalValue.text(&self.value)?;
        let mut json = json!({
            "type": 4, "custom_id": self.custom_id, "label": self.label, "style": if self.has_lines { 2 } else { 1 },
            "required": self.required,
        });
        for (name, text) in [("placeholder", &self.placeholder), ("value", &self.value)] {
            if !text.is_empty() {
                json[name] = json!(text);
            }
        }
        Ok(json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modal(change: impl FnOnce(&mut Modal)) -> Modal {
        let input = TextInput { custom_id: "0".to_owned(), label: "Name".to_owned(), ..TextInput::default() };
        let mut modal =
            Modal { custom_id: "acp1:x".to_owned(), title: "Who?".to_owned(), inputs: vec![input] };
        change(&mut modal);
        modal
    }

    #[test]
    fn modal_json_matches_documentation() {
        let filled = modal(|modal| {
            let input = &mut modal.inputs[0];
            (input.placeholder, input.value) = ("text".to_owned(), "Ann".to_owned());
            (input.required, input.has_lines) = (true, true);
        });
        assert_eq!(
            filled.to_json(),
            Ok(json!({"custom_id": "acp1:x", "title": "Who?", "components": [{"type": 1, "components": [
                {"type": 4, "custom_id": "0", "label": "Name", "style": 2, "required": true,
                 "placeholder": "text", "value": "Ann"}]}]}))
        );
    }

    #[test]
    fn modals_are_bounded() {
        let long = |n: usize| "x".repeat(n);
        for (case, modal, fits) in [
            ("one input", modal(|_| ()), true),
            ("no input", modal(|modal| modal.inputs.clear()), false),
            ("duplicate id", modal(|modal| modal.inputs.push(modal.inputs[0].clone())), false),
            ("title", modal(|modal| modal.title = long(46)), false),
            ("no title", modal(|modal| modal.title = String::new()), false),
            ("label", modal(|modal| modal.inputs[0].label = long(45)), true),
            ("label", modal(|modal| modal.inputs[0].label = long(46)), false),
            ("placeholder", modal(|modal| modal.inputs[0].placeholder = long(101)), false),
            ("value", modal(|modal| modal.inputs[0].value = long(4_000)), true),
            ("value", modal(|modal| modal.inputs[0].value = long(4_001)), false),
            ("custom id", modal(|modal| modal.custom_id = long(101)), false),
        ] {
            assert_eq!(modal.to_json().is_ok(), fits, "{case}");
        }
        let six = modal(|modal| {
            modal.inputs = (0..6)
                .map(|n| TextInput {
                    custom_id: n.to_string(),
                    label: "x".to_owned(),
                    ..TextInput::default()
                })
                .collect();
        });
        assert!(six.to_json().is_err());
    }
}
