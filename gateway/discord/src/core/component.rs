//! Message components: buttons, menus and forms.

use crate::core::units::{Limit, Refused};
use serde_json::{Value, json};
use std::collections::HashSet;

/// Row of components below a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Row {
    /// Up to five buttons.
    Buttons(Vec<Button>),
    /// One menu.
    Menu(Menu),
}

/// Style of a button, shown as its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
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
pub enum Press {
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
    pub style: Style,
    /// Action.
    pub press: Press,
    /// True if the button cannot be pressed.
    pub disabled: bool,
}

/// Menu in which one option is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Menu {
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
    pub inputs: Vec<Input>,
}

/// Input field of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Custom id, which comes back with the text.
    pub custom_id: String,
    /// Label.
    pub label: String,
    /// True if the input has several lines.
    pub lines: bool,
    /// Text while the input is empty.
    pub placeholder: String,
    /// Initial text.
    pub value: String,
    /// True if the input may stay empty.
    pub optional: bool,
}

impl Button {
    fn custom_id(&self) -> Option<&str> {
        match &self.press {
            Press::CustomId(id) => Some(id),
            Press::Url(_) => None,
        }
    }

    fn check(&self) -> Result<(), Refused> {
        Limit::ButtonLabel.text(&self.label)?;
        match &self.press {
            Press::CustomId(id) => Limit::CustomId.text(id),
            Press::Url(url) => {
                let web = ["http://", "https://", "discord://"].iter().any(|scheme| url.starts_with(scheme));
                if !web {
                    return Err(Refused::Form("a button opens http, https or discord addresses"));
                }
                Limit::ButtonUrl.text(url)
            }
        }
    }

    fn to_json(&self) -> Value {
        let style = match self.style {
            Style::Primary => 1,
            Style::Secondary => 2,
            Style::Success => 3,
            Style::Danger => 4,
        };
        let (label, disabled) = (&self.label, self.disabled);
        match &self.press {
            Press::CustomId(id) => {
                json!({"type": 2, "style": style, "label": label, "custom_id": id, "disabled": disabled})
            }
            Press::Url(url) => {
                json!({"type": 2, "style": 5, "label": label, "url": url, "disabled": disabled})
            }
        }
    }
}

impl Menu {
    fn check(&self) -> Result<(), Refused> {
        Limit::CustomId.text(&self.custom_id)?;
        Limit::Placeholder.text(&self.placeholder)?;
        Limit::Options.number(self.options.len())?;
        let mut values = HashSet::new();
        for option in &self.options {
            Limit::OptionLabel.text(&option.label)?;
            Limit::OptionValue.text(&option.value)?;
            Limit::OptionDescription.text(&option.description)?;
            if !values.insert(&option.value) {
                return Err(Refused::Form("two options of a menu have the same value"));
            }
        }
        if self.options.iter().filter(|option| option.default).count() > 1 {
            return Err(Refused::Form("more than one option of a menu is chosen already"));
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

impl Row {
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
/// [`Refused`] if the rows exceed Discord's limits.
pub fn check(rows: &[Row]) -> Result<(), Refused> {
    Limit::Rows.number(rows.len())?;
    let mut seen = HashSet::new();
    for row in rows {
        match row {
            Row::Menu(menu) => menu.check()?,
            Row::Buttons(buttons) => {
                Limit::Buttons.number(buttons.len())?;
                buttons.iter().try_for_each(Button::check)?;
            }
        }
        for id in row.custom_ids() {
            if !seen.insert(id) {
                return Err(Refused::SameCustomId(id.to_owned()));
            }
        }
    }
    Ok(())
}

/// Converts rows to Discord's JSON.
#[must_use]
pub fn to_json(rows: &[Row]) -> Value {
    rows.iter().map(Row::to_json).collect()
}

impl Modal {
    /// Checks the form.
    ///
    /// # Errors
    /// [`Refused`] if the form exceeds Discord's limits.
    pub fn check(&self) -> Result<(), Refused> {
        Limit::CustomId.text(&self.custom_id)?;
        Limit::ModalTitle.text(&self.title)?;
        Limit::ModalInputs.number(self.inputs.len())?;
        let mut seen = HashSet::new();
        for input in &self.inputs {
            Limit::CustomId.text(&input.custom_id)?;
            Limit::InputLabel.text(&input.label)?;
            Limit::InputPlaceholder.text(&input.placeholder)?;
            Limit::InputValue.text(&input.value)?;
            if !seen.insert(&input.custom_id) {
                return Err(Refused::SameCustomId(input.custom_id.clone()));
            }
        }
        Ok(())
    }

    /// Converts the form to Discord's JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let row = |input: &Input| {
            let style = if input.lines { 2 } else { 1 };
            let mut value = json!({"type": 4, "custom_id": input.custom_id, "label": input.label, "style": style,
                "required": !input.optional, "max_length": Limit::InputValue.bounds().1});
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
    use super::{Button, Input, Menu, MenuOption, Modal, Press, Row, Style, check, to_json};
    use serde_json::json;

    fn button(id: &str) -> Button {
        let press = Press::CustomId(id.to_owned());
        Button { label: "Allow".to_owned(), style: Style::Success, press, disabled: false }
    }

    fn option(value: &str) -> MenuOption {
        MenuOption {
            label: "l".to_owned(),
            value: value.to_owned(),
            description: String::new(),
            default: false,
        }
    }

    fn menu(options: Vec<MenuOption>) -> Menu {
        Menu { custom_id: "m".to_owned(), placeholder: String::new(), options, disabled: false }
    }

    #[test]
    fn rows_have_bounds() {
        let buttons = |n: usize| Row::Buttons((0..n).map(|n| button(&format!("b{n}"))).collect());
        let one = |change: &dyn Fn(&mut Button)| {
            let mut button = button("x");
            change(&mut button);
            vec![Row::Buttons(vec![button])]
        };
        let url = |text: &str| Press::Url(text.to_owned());
        let options = |n: usize| vec![Row::Menu(menu((0..n).map(|n| option(&n.to_string())).collect()))];
        for (row, rows, fits) in [
            ("five buttons", vec![buttons(5)], true),
            ("six buttons", vec![buttons(6)], false),
            ("no button", vec![buttons(0)], false),
            ("the same twice", vec![buttons(1), buttons(1)], false),
            ("six rows", (0..6).map(|n| Row::Buttons(vec![button(&n.to_string())])).collect(), false),
            ("no label", one(&|b| b.label = String::new()), false),
            ("label", one(&|b| b.label = "x".repeat(80)), true),
            ("label", one(&|b| b.label = "x".repeat(81)), false),
            ("custom id", one(&|b| b.press = Press::CustomId("x".repeat(100))), true),
            ("custom id", one(&|b| b.press = Press::CustomId("x".repeat(101))), false),
            ("custom id", one(&|b| b.press = Press::CustomId(String::new())), false),
            ("address", one(&|b| b.press = url("https://example.org")), true),
            ("address", one(&|b| b.press = url("javascript:x")), false),
            ("address", one(&|b| b.press = url(&format!("https://{}", "x".repeat(512)))), false),
            ("options", options(25), true),
            ("options", options(26), false),
            ("options", options(0), false),
            ("same value", vec![Row::Menu(menu(vec![option("a"), option("a")]))], false),
        ] {
            assert_eq!(check(&rows).is_ok(), fits, "{row}");
        }
    }

    #[test]
    fn rows_are_as_discord_takes_them() {
        let link = Button { press: Press::Url("https://x.org".to_owned()), ..button("") };
        let rows = [Row::Buttons(vec![button("a"), link]), Row::Menu(menu(vec![option("v")]))];
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
        let input = |id: &str| Input {
            custom_id: id.to_owned(),
            label: "l".to_owned(),
            lines: true,
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
            (modal("t", vec![Input { value: "x".repeat(4001), ..input("a") }]), false),
        ] {
            assert_eq!(modal.check().is_ok(), fits, "{modal:?}");
        }
        let expected = json!({"custom_id": "m", "title": "t", "components": [{"type": 1, "components": [{"type": 4,
            "custom_id": "a", "label": "l", "style": 2, "required": false, "max_length": 4000, "value": "v"}]}]});
        assert_eq!(modal("t", vec![input("a")]).to_json(), expected);
    }
}
