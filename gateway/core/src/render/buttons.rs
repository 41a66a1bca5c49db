//! Buttons as data: a click is equivalent to a command that the person could type.
//!
//! A button consists of its command only, so it has the same effect after a restart, for every person and on
//! every click. The subject of the buttons is stored with the message, so that they can be removed once it is
//! resolved.

use crate::elicitation::{Elicitation, form_of_event};
use crate::permission::kind_note;
use crate::render::permission_prompt::{options_of, resolution_text, strip_waiting_lines};
use crate::render::short_line;
use crate::rows::{PermissionRow, PermissionState, ResolvedBy, RunMode};
use crate::run::RunState;
use acp_shared::ids::RunId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Maximum length of a button's command, in bytes: chat services store about 100 characters with a button.
pub const COMMAND_BYTES_MAX: usize = 90;
/// Maximum number of fields of a form that has a button.
const FORM_FIELDS_MAX: usize = 5;
/// Maximum length of a button's label, and of an option's name in a list, in characters.
pub(super) const LABEL_CHARS_MAX: usize = 80;

/// One button.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageButton {
    /// Command sent by a click, as a person would type it; at most 90 bytes.
    pub command: String,
    /// Label of the button.
    pub label: String,
    /// Appearance of the button.
    pub style: ButtonStyle,
}

/// Appearance of a button, by its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ButtonStyle {
    /// Most frequent action.
    Primary,
    /// One of several actions.
    Secondary,
    /// Allows something.
    Success,
    /// Refuses or stops something.
    Danger,
}

/// Subject of a message with buttons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ButtonSubject {
    /// Pending permission request with this id.
    Permission(String),
    /// Queued run.
    Queued(RunId),
}

/// Buttons of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ButtonGroup {
    /// Subject of the buttons.
    pub about: ButtonSubject,
    /// Buttons in display order.
    pub actions: Vec<MessageButton>,
}

fn button(command: String, label: &str, note: &str, style: ButtonStyle) -> Option<MessageButton> {
    let room = LABEL_CHARS_MAX.saturating_sub(note.chars().count());
    let label: String = short_line(label).trim().chars().take(room).collect();
    let is_usable = command.len() <= COMMAND_BYTES_MAX && !label.is_empty();
    is_usable.then_some(MessageButton { command, label: format!("{label}{note}"), style })
}

/// Subject of a permission request or of its resolution; `None` without a usable id.
pub(super) fn subject_of(payload: &Value) -> Option<ButtonSubject> {
    let id = payload["permission_id"].as_str();
    let id = id.filter(|id| !id.is_empty() && !id.contains(char::is_whitespace))?;
    Some(ButtonSubject::Permission(id.to_owned()))
}

/// Buttons for the agent's options, in its order, up to the maximum. An option that does not fit into a
/// button is answered by typing; a question without buttons is still edited once it is resolved.
pub(super) fn permission_buttons(payload: &Value, buttons_max: usize) -> Option<ButtonGroup> {
    let about = subject_of(payload)?;
    let ButtonSubject::Permission(id) = &about else { return None };
    let fill_in = form_of_event(payload).filter(is_fillable);
    let fill_in = fill_in.and_then(|_| button(form_command(id), "Fill in", "", ButtonStyle::Primary));
    let options = (1..).zip(options_of(payload)).filter_map(|(number, option)| {
        let name = option["name"].as_str().or_else(|| option["optionId"].as_str())?;
        let kind = option["kind"].as_str().unwrap_or_default();
        let style = match kind {
            "allow_once" => ButtonStyle::Success,
            "allow_always" => ButtonStyle::Primary,
            "accept" => ButtonStyle::Success,
            kind if kind.starts_with("reject") || kind == "decline" => ButtonStyle::Danger,
            _ => ButtonStyle::Secondary,
        };
        let command = match kind {
            "accept" => format!("/acp allow {id}"),
            "decline" => format!("/acp deny {id}"),
            _ => format!("/acp answer {id} {number}"),
        };
        button(command, name, &kind_note(name, kind), style)
    });
    let actions = fill_in.into_iter().chain(options).take(buttons_max).collect();
    Some(ButtonGroup { about, actions })
}

/// Text of the button that opens a form. No command has this name: a channel shows the form instead.
pub fn form_command(permission_id: &str) -> String {
    format!("/acp form {permission_id}")
}

/// True for a form with fields to fill in, few enough for a window of a chat service.
fn is_fillable(form: &Elicitation) -> bool {
    (1..=FORM_FIELDS_MAX).contains(&form.fields().len()) && !form.is_numbered()
}

/// Button that stops the turn of a card, and no other turn.
pub fn card_buttons(run_id: RunId) -> Vec<MessageButton> {
    button(format!("/acp cancel --run {run_id}"), "Stop", "", ButtonStyle::Danger).into_iter().collect()
}

/// Buttons of the notice about a queued message. `may_steer` is false if it was already meant as a steer.
pub fn queued_buttons(run_id: RunId, may_steer: bool) -> ButtonGroup {
    let steer = button(format!("/acp steer --run {run_id}"), "Steer now", "", ButtonStyle::Primary);
    let drop = button(format!("/acp drop {run_id}"), "Drop", "", ButtonStyle::Secondary);
    ButtonGroup {
        about: ButtonSubject::Queued(run_id),
        actions: steer.filter(|_| may_steer).into_iter().chain(drop).collect(),
    }
}

/// Current state of the subject of a message with buttons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubjectState<'a> {
    /// Current row of the permission request.
    Permission(&'a PermissionRow),
    /// Current mode and state of the run.
    Run(RunMode, RunState),
    /// The subject no longer exists.
    Gone,
}

/// Returns the text of a message after its subject was resolved; `None` while the buttons are still valid.
pub fn text_after_resolution(text: &str, state: SubjectState<'_>, is_markdown: bool) -> Option<String> {
    let end = match state {
        SubjectState::Permission(row) => match row.state {
            PermissionState::Pending => return None,
            PermissionState::Answered | PermissionState::Expired => resolution_line(row, is_markdown),
        },
        SubjectState::Run(_, RunState::Queued) => return None,
        SubjectState::Run(RunMode::Steer, RunState::Failed) => {
            "It could not be sent into the running turn.".to_owned()
        }
        SubjectState::Run(RunMode::Steer, _) => "It was sent into the running turn.".to_owned(),
        SubjectState::Run(RunMode::Prompt, RunState::Cancelled) => "It was dropped or cancelled.".to_owned(),
        SubjectState::Run(RunMode::Prompt, RunState::Running | RunState::Completed | RunState::Failed) => {
            "It has started.".to_owned()
        }
        SubjectState::Gone => "It no longer exists.".to_owned(),
    };
    Some(format!("{}\n{end}", strip_waiting_lines(text)))
}

/// Describes by whom and how a permission request was resolved.
pub fn resolution_line(row: &PermissionRow, is_markdown: bool) -> String {
    let name = row.option_name().or_else(|| row.option_id.clone());
    let nobody = ResolvedBy::Person(String::new());
    resolution_text(name.as_deref(), row.resolved_by.as_ref().unwrap_or(&nobody), is_markdown)
}

#[cfg(test)]
#[path = "buttons_tests.rs"]
mod tests;
