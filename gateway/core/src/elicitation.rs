//! Questions of an agent to a person (`elicitation/create`): a form of flat fields, or a page to open. Read once from
//! the agent's parameters into [`Elicitation`]; every client shows and answers that.
//!
//! An elicitation has options like a permission request, so that buttons and numbers answer the simple ones: each
//! choice of a form with one choice, the acceptance of a page, and the refusal.
#![deny(clippy::indexing_slicing)]

mod answer;
mod parse;
#[cfg(test)]
mod tests;
mod url;

pub use answer::{describe, parse_fields};
pub use parse::parse;
pub use url::url_warnings;

use crate::backend::PermissionOption;
use crate::sanitize;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value, json};

/// Method of the request.
pub const METHOD: &str = "elicitation/create";
/// Status of the journal row about a page whose interaction is complete.
pub const PAGE_COMPLETE: &str = "page_complete";
/// Detail code of an answer that does not fit the form.
pub const INVALID: &str = "ELICITATION_INVALID";
/// Option that accepts: opens the page, or submits the form's default values.
pub const ACCEPT: &str = "accept";
/// Option that refuses.
pub const DECLINE: &str = "decline";
/// Prefix of the options of a form with one choice; the number of the choice follows.
const CHOICE: &str = "choice-";
/// Maximum length of the name of an option, in characters.
const OPTION_CHARS_MAX: usize = 200;

/// Question of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elicitation {
    /// Text of the agent: what is needed, and why. As received.
    pub message: String,
    /// What is asked.
    #[serde(flatten)]
    pub mode: ElicitationMode,
}

/// What an elicitation asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum ElicitationMode {
    /// Values for fields.
    Form {
        /// Fields in the agent's order.
        fields: Vec<FormField>,
    },
    /// Consent to open a page. The gateway never opens it.
    Url {
        /// Whole address.
        url: String,
        /// Host of the address.
        host: String,
        /// The agent's id of the interaction, opaque.
        elicitation_id: String,
    },
}

/// Field of a form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormField {
    /// Name in the answer.
    pub name: String,
    /// Label for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Explanation for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// True if an answer needs the field.
    pub required: bool,
    /// Value of a field that an answer leaves out; always valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// Type and limits of the value.
    #[serde(flatten)]
    pub kind: FieldKind,
}

/// Type and limits of a field's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FieldKind {
    /// Text.
    String {
        /// Minimum length in characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min_length: Option<u64>,
        /// Maximum length in characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_length: Option<u64>,
        /// Pattern that the agent checks; shown only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pattern: Option<String>,
        /// Format of the text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        format: Option<TextFormat>,
    },
    /// Number.
    Number {
        /// Smallest value.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        minimum: Option<Number>,
        /// Largest value.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        maximum: Option<Number>,
    },
    /// Whole number.
    Integer {
        /// Smallest value.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        minimum: Option<i64>,
        /// Largest value.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        maximum: Option<i64>,
    },
    /// True or false.
    Boolean,
    /// One of several texts.
    Choice {
        /// Possible values.
        choices: Vec<FieldChoice>,
    },
    /// Any of several texts.
    Choices {
        /// Possible values.
        choices: Vec<FieldChoice>,
        /// Minimum number of values.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min_items: Option<u64>,
        /// Maximum number of values.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_items: Option<u64>,
    },
}

/// Possible value of a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldChoice {
    /// Value in the answer.
    pub value: String,
    /// Label for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Explanation for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

impl FieldChoice {
    /// Label, or else the value.
    pub fn label(&self) -> &str {
        self.title.as_deref().unwrap_or(&self.value)
    }
}

acp_shared::named! {
    /// Format of a text.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum TextFormat {
        /// E-mail address.
        Email = "email",
        /// Address with a scheme.
        Uri = "uri",
        /// Day, `2026-11-23`.
        Date = "date",
        /// Time of a day, `2026-11-23T10:00:00Z`.
        DateTime = "date-time",
    }
}

/// Answer of a person to an elicitation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum ElicitationAnswer {
    /// Submits values, or consents to open the page.
    Accept {
        /// Values by field name; none for a page.
        #[serde(default, skip_serializing_if = "Map::is_empty")]
        content: Map<String, Value>,
    },
    /// Refuses.
    Decline,
    /// Dismisses the question without a choice.
    Cancel,
}

/// Reads the member `form` of an event line; `None` for a permission request.
pub fn form_of_event(event: &Value) -> Option<Elicitation> {
    serde_json::from_value(event.get("form")?.clone()).ok()
}

impl ElicitationAnswer {
    /// Name of the action in the protocol.
    pub const fn action(&self) -> &'static str {
        match self {
            Self::Accept { .. } => "accept",
            Self::Decline => "decline",
            Self::Cancel => "cancel",
        }
    }
}

impl Elicitation {
    /// Title in lists: the first line of the message.
    pub fn title(&self) -> String {
        let line = self.message.lines().find(|line| !line.trim().is_empty()).unwrap_or("a question");
        sanitize::line(line.trim(), OPTION_CHARS_MAX)
    }

    /// The agent's id of the page, if one is to be opened.
    pub fn page_id(&self) -> Option<&str> {
        match &self.mode {
            ElicitationMode::Url { elicitation_id, .. } => Some(elicitation_id),
            ElicitationMode::Form { .. } => None,
        }
    }

    /// Fields of a form; none for a page.
    pub fn fields(&self) -> &[FormField] {
        match &self.mode {
            ElicitationMode::Form { fields } => fields,
            ElicitationMode::Url { .. } => &[],
        }
    }

    /// Options that answer without typing: the choices of a form with one choice, the acceptance, the refusal.
    pub fn options(&self) -> Vec<PermissionOption> {
        let option = |id: String, name: &str, kind: &str| PermissionOption {
            id,
            name: sanitize::line(name, OPTION_CHARS_MAX),
            kind: kind.to_owned(),
        };
        let mut options: Vec<PermissionOption> = (1..)
            .zip(self.single_values())
            .map(|(number, (label, _))| option(format!("{CHOICE}{number}"), &label, "choice"))
            .collect();
        match &self.mode {
            ElicitationMode::Url { .. } => {
                options.push(option(ACCEPT.to_owned(), "I will open the page", ACCEPT));
            }
            ElicitationMode::Form { .. } if options.is_empty() && self.check(&self.defaults()).is_ok() => {
                let name =
                    if self.defaults().is_empty() { "Submit without values" } else { "Submit the defaults" };
                options.push(option(ACCEPT.to_owned(), name, ACCEPT));
            }
            ElicitationMode::Form { .. } => {}
        }
        options.push(option(DECLINE.to_owned(), "Decline", DECLINE));
        options
    }

    /// Labels and values of a form whose only field is one choice or a boolean.
    fn single_values(&self) -> Vec<(String, Value)> {
        let [field] = self.fields() else { return Vec::new() };
        let note = |value: &Value| if field.default.as_ref() == Some(value) { " (default)" } else { "" };
        let labelled = |label: &str, value: Value| (format!("{label}{}", note(&value)), value);
        match &field.kind {
            FieldKind::Choice { choices } => {
                choices.iter().map(|it| labelled(it.label(), Value::from(it.value.as_str()))).collect()
            }
            FieldKind::Boolean => {
                vec![labelled("Yes", Value::from(true)), labelled("No", Value::from(false))]
            }
            _ => Vec::new(),
        }
    }

    /// True if numbers answer the form: its only field is one choice or a boolean.
    pub fn is_numbered(&self) -> bool {
        !self.single_values().is_empty()
    }

    /// Values of the fields that have a default.
    fn defaults(&self) -> Map<String, Value> {
        let of = |field: &FormField| Some((field.name.clone(), field.default.clone()?));
        self.fields().iter().filter_map(of).collect()
    }

    /// Returns the answer that an option stands for; `None` for an unknown option.
    pub fn answer_of(&self, option_id: &str) -> Option<ElicitationAnswer> {
        match option_id {
            DECLINE => Some(ElicitationAnswer::Decline),
            ACCEPT => Some(ElicitationAnswer::Accept { content: self.defaults() }),
            _ => {
                let number: usize = option_id.strip_prefix(CHOICE)?.parse().ok()?;
                let (_, value) = self.single_values().into_iter().nth(number.checked_sub(1)?)?;
                let name = self.fields().first()?.name.clone();
                Some(ElicitationAnswer::Accept { content: Map::from_iter([(name, value)]) })
            }
        }
    }

    /// Returns the option that stands for an answer, or else the general one; `None` for a dismissal.
    pub fn option_of(&self, answer: &ElicitationAnswer) -> Option<String> {
        match answer {
            ElicitationAnswer::Cancel => None,
            ElicitationAnswer::Decline => Some(DECLINE.to_owned()),
            ElicitationAnswer::Accept { content } => {
                let mut values = self.single_values().into_iter();
                let at = values.position(|(_, value)| content.values().eq([&value]));
                Some(at.map_or_else(|| ACCEPT.to_owned(), |at| format!("{CHOICE}{}", at + 1)))
            }
        }
    }

    /// Returns the name of an option for people: a form that was filled in has no option of its own.
    pub fn option_name(&self, option_id: &str) -> String {
        let known = self.options().into_iter().find(|option| option.id == option_id);
        known.map_or_else(|| "Submitted".to_owned(), |option| option.name)
    }
}

/// Returns the result of the request, JSON text.
pub fn result(answer: &ElicitationAnswer) -> String {
    let action = answer.action();
    match answer {
        ElicitationAnswer::Accept { content } if !content.is_empty() => {
            json!({ "action": action, "content": content })
        }
        _ => json!({ "action": action }),
    }
    .to_string()
}
