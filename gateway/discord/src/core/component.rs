//! Message components: rows of buttons.

use crate::core::payload_limits::{PayloadLimit, ValidationError};
use serde_json::{Value, json};
use std::collections::HashSet;

/// Row of components below a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActionRow {
    /// Up to five buttons.
    Buttons(Vec<Button>),
}

/// Style of a button, shown as its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComponentStyle {
    /// The most likely choice.
    Primary,
    /// Any other choice.
    Secondary,
    /// Confirmation.
    Success,
    /// Destructive choice.
    Danger,
}

/// Action of a button.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ButtonAction {
    /// Sends this custom id back to the bot.
    CustomId(String),
    /// Opens this URL.
    Url(String),
}

/// Button.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Button {
    /// Label.
    pub label: String,
    /// Style. Ignored for a button that opens a URL.
    pub style: ComponentStyle,
    /// Action.
    pub action: ButtonAction,
    /// True if the button cannot be pressed.
    pub disabled: bool,
}

impl Button {
    fn custom_id(&self) -> Option<&str> {
        match &self.action {
            ButtonAction::CustomId(id) => Some(id),
            ButtonAction::Url(_) => None,
        }
    }

    fn check(&self) -> Result<(), ValidationError> {
        PayloadLimit::ButtonLabel.text(&self.label)?;
        match &self.action {
            ButtonAction::CustomId(id) => PayloadLimit::CustomId.text(id),
            ButtonAction::Url(url) => {
                let web = ["http://", "https://", "discord://"].iter().any(|scheme| url.starts_with(scheme));
                if !web {
                    return Err(ValidationError::Form(
                        "the URL of a button must begin with http://, https:// or discord://",
                    ));
                }
                PayloadLimit::ButtonUrl.text(url)
            }
        }
    }

    fn to_json(&self) -> Value {
        let style = match self.style {
            ComponentStyle::Primary => 1,
            ComponentStyle::Secondary => 2,
            ComponentStyle::Success => 3,
            ComponentStyle::Danger => 4,
        };
        let (label, disabled) = (&self.label, self.disabled);
        match &self.action {
            ButtonAction::CustomId(id) => {
                json!({"type": 2, "style": style, "label": label, "custom_id": id, "disabled": disabled})
            }
            ButtonAction::Url(url) => {
                json!({"type": 2, "style": 5, "label": label, "url": url, "disabled": disabled})
            }
        }
    }
}

impl ActionRow {
    fn to_json(&self) -> Value {
        let Self::Buttons(buttons) = self;
        json!({"type": 1, "components": buttons.iter().map(Button::to_json).collect::<Vec<_>>()})
    }
}

/// Checks the rows of a message.
///
/// # Errors
/// [`ValidationError`] if the rows exceed Discord's limits.
pub fn check(rows: &[ActionRow]) -> Result<(), ValidationError> {
    PayloadLimit::Rows.number(rows.len())?;
    let mut seen = HashSet::new();
    for ActionRow::Buttons(buttons) in rows {
        PayloadLimit::Buttons.number(buttons.len())?;
        buttons.iter().try_for_each(Button::check)?;
        for id in buttons.iter().filter_map(Button::custom_id) {
            if !seen.insert(id) {
                return Err(ValidationError::DuplicateCustomId(id.to_owned()));
            }
        }
    }
    Ok(())
}

/// Converts rows to Discord's JSON.
#[must_use]
pub fn to_json(rows: &[ActionRow]) -> Value {
    rows.iter().map(ActionRow::to_json).collect()
}

#[cfg(test)]
mod tests {
    use super::{ActionRow, Button, ButtonAction, ComponentStyle, check, to_json};
    use serde_json::json;

    fn button(id: &str) -> Button {
        let action = ButtonAction::CustomId(id.to_owned());
        Button { label: "Allow".to_owned(), style: ComponentStyle::Success, action, disabled: false }
    }

    #[test]
    fn rows_have_bounds() {
        let buttons = |n: usize| ActionRow::Buttons((0..n).map(|n| button(&format!("b{n}"))).collect());
        let one = |change: &dyn Fn(&mut Button)| {
            let mut button = button("x");
            change(&mut button);
            vec![ActionRow::Buttons(vec![button])]
        };
        let url = |text: &str| ButtonAction::Url(text.to_owned());
        for (row, rows, fits) in [
            ("five buttons", vec![buttons(5)], true),
            ("six buttons", vec![buttons(6)], false),
            ("no button", vec![buttons(0)], false),
            ("the same twice", vec![buttons(1), buttons(1)], false),
            ("six rows", (0..6).map(|n| ActionRow::Buttons(vec![button(&n.to_string())])).collect(), false),
            ("no label", one(&|b| b.label = String::new()), false),
            ("label", one(&|b| b.label = "x".repeat(80)), true),
            ("label", one(&|b| b.label = "x".repeat(81)), false),
            ("custom id", one(&|b| b.action = ButtonAction::CustomId("x".repeat(100))), true),
            ("custom id", one(&|b| b.action = ButtonAction::CustomId("x".repeat(101))), false),
            ("custom id", one(&|b| b.action = ButtonAction::CustomId(String::new())), false),
            ("address", one(&|b| b.action = url("https://example.org")), true),
            ("address", one(&|b| b.action = url("javascript:x")), false),
            ("address", one(&|b| b.action = url(&format!("https://{}", "x".repeat(512)))), false),
        ] {
            assert_eq!(check(&rows).is_ok(), fits, "{row}");
        }
    }

    #[test]
    fn rows_are_as_discord_takes_them() {
        let link = Button { action: ButtonAction::Url("https://x.org".to_owned()), ..button("") };
        let rows = [ActionRow::Buttons(vec![button("a"), link])];
        let expected = json!([{"type": 1, "components": [
            {"type": 2, "style": 3, "label": "Allow", "custom_id": "a", "disabled": false},
            {"type": 2, "style": 5, "label": "Allow", "url": "https://x.org", "disabled": false}]}]);
        assert_eq!(to_json(&rows), expected);
    }
}
