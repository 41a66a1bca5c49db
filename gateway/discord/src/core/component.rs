//! Message components: rows of buttons.

use crate::core::payload_limits::{PayloadLimit, ValidationError};
use serde_json::{Value, json};
use std::collections::HashSet;

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

/// Button.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Button {
    /// Label.
    pub label: String,
    /// Style.
    pub style: ComponentStyle,
    /// Custom id, which comes back to the bot with a click.
    pub custom_id: String,
}

impl Button {
    fn to_json(&self) -> Value {
        let style = match self.style {
            ComponentStyle::Primary => 1,
            ComponentStyle::Secondary => 2,
            ComponentStyle::Success => 3,
            ComponentStyle::Danger => 4,
        };
        json!({
            "type": 2, "style": style, "label": self.label, "custom_id": self.custom_id, "disabled": false,
        })
    }
}

/// Checks the rows of a message.
///
/// # Errors
/// [`ValidationError`] if the rows exceed Discord's limits.
pub fn check(rows: &[Vec<Button>]) -> Result<(), ValidationError> {
    PayloadLimit::Rows.number(rows.len())?;
    let mut seen = HashSet::new();
    for buttons in rows {
        PayloadLimit::Buttons.number(buttons.len())?;
        for Button { label, custom_id, .. } in buttons {
            PayloadLimit::ButtonLabel.text(label)?;
            PayloadLimit::CustomId.text(custom_id)?;
            if !seen.insert(custom_id) {
                return Err(ValidationError::DuplicateCustomId(custom_id.clone()));
            }
        }
    }
    Ok(())
}

/// Converts rows to Discord's JSON.
#[must_use]
pub fn to_json(rows: &[Vec<Button>]) -> Value {
    let row = |buttons: &Vec<Button>| json!({"type": 1, "components": buttons.iter().map(Button::to_json).collect::<Vec<_>>()});
    rows.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::{Button, ComponentStyle, check, to_json};
    use serde_json::json;

    fn button(id: &str) -> Button {
        Button { label: "Allow".to_owned(), style: ComponentStyle::Success, custom_id: id.to_owned() }
    }

    #[test]
    fn component_rows_are_bounded() {
        let buttons = |n: usize| (0..n).map(|n| button(&format!("b{n}"))).collect::<Vec<_>>();
        let one = |change: &dyn Fn(&mut Button)| {
            let mut button = button("x");
            change(&mut button);
            vec![vec![button]]
        };
        for (row, rows, fits) in [
            ("five buttons", vec![buttons(5)], true),
            ("six buttons", vec![buttons(6)], false),
            ("no button", vec![buttons(0)], false),
            ("duplicate custom id", vec![buttons(1), buttons(1)], false),
            ("six rows", (0..6).map(|n| vec![button(&n.to_string())]).collect(), false),
            ("no label", one(&|b| b.label = String::new()), false),
            ("label", one(&|b| b.label = "x".repeat(80)), true),
            ("label", one(&|b| b.label = "x".repeat(81)), false),
            ("custom id", one(&|b| b.custom_id = "x".repeat(100)), true),
            ("custom id", one(&|b| b.custom_id = "x".repeat(101)), false),
            ("custom id", one(&|b| b.custom_id = String::new()), false),
        ] {
            assert_eq!(check(&rows).is_ok(), fits, "{row}");
        }
    }

    #[test]
    fn component_json_matches_documentation() {
        let rows = [vec![button("a"), Button { style: ComponentStyle::Danger, ..button("b") }]];
        let expected = json!([{"type": 1, "components": [
            {"type": 2, "style": 3, "label": "Allow", "custom_id": "a", "disabled": false},
            {"type": 2, "style": 4, "label": "Allow", "custom_id": "b", "disabled": false}]}]);
        assert_eq!(to_json(&rows), expected);
    }
}
