//! Message components: buttons, menus and forms.

use crate::core::payload_limits::{PayloadLimit, ValidationError};
use serde_json::{Value, json};
use std::collections::HashSet;

/// Row of components below a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActionRow {
    /// Up to five buttons.
    Buttons(Vec<Button>),
    /// One menu.
    Menu(SelectMenu),
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

/// Menu in which one option is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectMenu {
    /// Custom id, which comes back with the choice.
    pub custom_id: String,
    /// Text while nothing is chosen.
    pub placeholder: String,
    /// Options to choose from.
    pub options: Vec<MenuOption>,
    /// True if nothing can be chosen.
    pub disabled: bool,
}

/// Option of a menu.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MenuOption {
    /// Label.
    pub label: String,
    /// Value, which comes back when the option is chosen.
    pub value: String,
    /// Second line.
    pub description: String,
    /// True if the option is chosen initially.
    pub default: bool,
}

/// Form (modal) that a click or a command opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modal {
    /// Custom id, which comes back with the input.
    pub custom_id: String,
    /// Title.
    pub title: String,
    /// Input fields.
    pub inputs: Vec<TextInput>,
}

/// Input field of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextInput {
    /// Custom id, which comes back with the text.
    pub custom_id: String,
    /// Label.
    pub label: String,
    /// True if the input has several lines.
    pub is_multiline: bool,
    /// Text while the input is empty.
    pub placeholder: String,
    /// Initial text.
    pub value: String,
    /// True if the input may stay empty.
    pub optional: bool,
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

impl SelectMenu {
    fn check(&self) -> Result<(), ValidationError> {
        PayloadLimit::CustomId.text(&self.custom_id)?;
        PayloadLimit::Placeholder.text(&self.placeholder)?;
        PayloadLimit::Options.number(self.options.len())?;
        let mut values = HashSet::new();
        for option in &self.options {
            PayloadLimit::OptionLabel.text(&option.label)?;
            PayloadLimit::OptionValue.text(&option.value)?;
            PayloadLimit::OptionDescription.text(&option.description)?;
            if !values.insert(&option.value) {
                return Err(ValidationError::Form("two options of a menu have the same value"));
            }
        }
        if self.options.iter().filter(|option| option.default).count() > 1 {
            return Err(ValidationError::Form("a menu has more than one default option"));
        }
        Ok(())
    }

    fn to_json(&self) -> Value {
        let option = |option: &MenuOption| {
            let mut value = json!({"label": option.label, "value": option.value, "default": option.default});
            if !option.description.is_empty() {
                value["description"] = json!(option.description);
            }
            value
        };
        let options: Vec<Value> = self.options.iter().map(option).collect();
        let mut value =
            json!({"type": 3, "custom_id": self.custom_id, "options": options, "disabled": self.disabled});
        if !self.placeholder.is_empty() {
            value["placeholder"] = json!(self.placeholder);
        }
        value
    }
}

impl ActionRow {
    fn custom_ids(&self) -> Vec<&str> {
        match self {
            Self::Menu(menu) => vec![&menu.custom_id],
            Self::Buttons(buttons) => buttons.iter().filter_map(Button::custom_id).collect(),
        }
    }

    fn to_json(&self) -> Value {
        let inner: Vec<Value> = match self {
            Self::Buttons(buttons) => buttons.iter().map(Button::to_json).collect(),
            Self::Menu(menu) => vec![menu.to_json()],
        };
        json!({"type": 1, "components": inner})
    }
}

/// Checks the rows of a message.
///
/// # Errors
/// [`ValidationError`] if the rows exceed Discord's limits.
pub fn check(rows: &[ActionRow]) -> Result<(), ValidationError> {
    PayloadLimit::Rows.number(rows.len())?;
    let mut seen = HashSet::new();
    for row in rows {
        match row {
            ActionRow::Menu(menu) => menu.check()?,
            ActionRow::Buttons(buttons) => {
                PayloadLimit::Buttons.number(buttons.len())?;
                buttons.iter().try_for_each(Button::check)?;
            }
        }
        for id in row.custom_ids() {
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

impl Modal {
    /// Checks the form.
    ///
    /// # Errors
    /// [`ValidationError`] if the form exceeds Discord's limits.
    pub fn check(&self) -> Result<(), ValidationError> {
        PayloadLimit::CustomId.text(&self.custom_id)?;
        PayloadLimit::ModalTitle.text(&self.title)?;
        PayloadLimit::ModalInputs.number(self.inputs.len())?;
        let mut seen = HashSet::new();
        for input in &self.inputs {
            PayloadLimit::CustomId.text(&input.custom_id)?;
            PayloadLimit::InputLabel.text(&input.label)?;
            PayloadLimit::InputPlaceholder.text(&input.placeholder)?;
            PayloadLimit::InputValue.text(&input.value)?;
            if !seen.insert(&input.custom_id) {
                return Err(ValidationError::DuplicateCustomId(input.custom_id.clone()));
            }
        }
        Ok(())
    }

    /// Converts the form to Discord's JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let row = |input: &TextInput| {
            let style = if input.is_multiline { 2 } else { 1 };
            let mut value = json!({"type": 4, "custom_id": input.custom_id, "label": input.label, "style": style,
                "required": !input.optional, "max_length": PayloadLimit::InputValue.bounds().1});
            for (key, text) in [("placeholder", &input.placeholder), ("value", &input.value)] {
                if !text.is_empty() {
                    value[key] = json!(text);
                }
            }
            json!({"type": 1, "components": [value]})
        };
        let rows: Vec<Value> = self.inputs.iter().map(row).collect();
        json!({"custom_id": self.custom_id, "title": self.title, "components": rows})
    }
}

#[cfg(test)]
mod tests {
    use super::{
        ActionRow, Button, ButtonAction, ComponentStyle, MenuOption, Modal, SelectMenu, TextInput, check,
        to_json,
    };
    use serde_json::json;

    fn button(id: &str) -> Button {
        let action = ButtonAction::CustomId(id.to_owned());
        Button { label: "Allow".to_owned(), style: ComponentStyle::Success, action, disabled: false }
    }

    fn option(value: &str) -> MenuOption {
        MenuOption {
            label: "l".to_owned(),
            value: value.to_owned(),
            description: String::new(),
            default: false,
        }
    }

    fn menu(options: Vec<MenuOption>) -> SelectMenu {
        SelectMenu { custom_id: "m".to_owned(), placeholder: String::new(), options, disabled: false }
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
        let options =
            |n: usize| vec![ActionRow::Menu(menu((0..n).map(|n| option(&n.to_string())).collect()))];
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
            ("options", options(25), true),
            ("options", options(26), false),
            ("options", options(0), false),
            ("same value", vec![ActionRow::Menu(menu(vec![option("a"), option("a")]))], false),
        ] {
            assert_eq!(check(&rows).is_ok(), fits, "{row}");
        }
    }

    #[test]
    fn rows_are_as_discord_takes_them() {
        let link = Button { action: ButtonAction::Url("https://x.org".to_owned()), ..button("") };
        let rows = [ActionRow::Buttons(vec![button("a"), link]), ActionRow::Menu(menu(vec![option("v")]))];
        let expected = json!([
            {"type": 1, "components": [
                {"type": 2, "style": 3, "label": "Allow", "custom_id": "a", "disabled": false},
                {"type": 2, "style": 5, "label": "Allow", "url": "https://x.org", "disabled": false}]},
            {"type": 1, "components": [{"type": 3, "custom_id": "m", "disabled": false,
                "options": [{"label": "l", "value": "v", "default": false}]}]}
        ]);
        assert_eq!(to_json(&rows), expected);
    }

    #[test]
    fn forms_have_bounds() {
        let input = |id: &str| TextInput {
            custom_id: id.to_owned(),
            label: "l".to_owned(),
            is_multiline: true,
            placeholder: String::new(),
            value: "v".to_owned(),
            optional: true,
        };
        let modal =
            |title: &str, inputs| Modal { custom_id: "m".to_owned(), title: title.to_owned(), inputs };
        for (modal, fits) in [
            (modal("t", vec![input("a"), input("b")]), true),
            (modal("t", vec![input("a"), input("a")]), false),
            (modal("t", Vec::new()), false),
            (modal(&"t".repeat(46), vec![input("a")]), false),
            (modal("t", vec![TextInput { value: "x".repeat(4001), ..input("a") }]), false),
        ] {
            assert_eq!(modal.check().is_ok(), fits, "{modal:?}");
        }
        let expected = json!({"custom_id": "m", "title": "t", "components": [{"type": 1, "components": [{"type": 4,
            "custom_id": "a", "label": "l", "style": 2, "required": false, "max_length": 4000, "value": "v"}]}]});
        assert_eq!(modal("t", vec![input("a")]).to_json(), expected);
    }
}
