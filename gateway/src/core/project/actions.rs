//! Buttons as data: what a person can say about a message by one click, as the command that they could type.
//!
//! A button is nothing but its command, so that it means the same after a restart, whoever clicks it and however
//! often. What it is about is kept beside the message, so that it loses its buttons once that is over.

use crate::core::link::{PermissionOption, Wanted};
use crate::core::permission::kind_note;
use crate::core::project::question::{options_of, outcome, without_waiting};
use crate::core::project::short;
use crate::core::rows::{PermissionRow, PermissionState, RunMode, Settler};
use crate::core::run::RunState;
use acp_shared::ids::RunId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The longest command of a button, in bytes: chat services keep about 100 characters with a button.
pub(crate) const COMMAND_BYTES_MAX: usize = 90;
/// The longest label of a button, in characters.
const LABEL_CHARS_MAX: usize = 80;

/// One button.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// What a click says, as a person would type it: 90 bytes at most.
    pub command: String,
    /// What it shows.
    pub label: String,
    /// How it looks.
    pub style: ActionStyle,
}

/// How a button looks, by what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionStyle {
    /// What is done most often.
    Primary,
    /// One of several.
    Secondary,
    /// It allows.
    Success,
    /// It refuses, or stops something.
    Danger,
}

/// What a message with buttons is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum About {
    /// A permission of this id is asked for.
    Permission(String),
    /// A run waits in the queue.
    Queued(RunId),
}

/// The buttons of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asks {
    /// What they are about.
    pub(crate) about: About,
    /// The buttons, in order.
    pub(crate) actions: Vec<Action>,
}

fn action(command: String, label: &str, note: &str, style: ActionStyle) -> Option<Action> {
    let room = LABEL_CHARS_MAX.saturating_sub(note.chars().count());
    let label: String = short(label).trim().chars().take(room).collect();
    let is_usable = command.len() <= COMMAND_BYTES_MAX && !label.is_empty();
    is_usable.then_some(Action { command, label: format!("{label}{note}"), style })
}

/// What a question, or what became of one, is about; `None` where it has no name.
pub(super) fn about(payload: &Value) -> Option<About> {
    let id = payload["permission_id"].as_str();
    let id = id.filter(|id| !id.is_empty() && !id.contains(char::is_whitespace))?;
    Some(About::Permission(id.to_owned()))
}

/// The agent's own options, in its order, as many as there may be buttons. One that does not fit into a button is
/// answered by typing; a question without any button is changed all the same once it is over.
pub(super) fn of_permission(payload: &Value, buttons_max: usize) -> Option<Asks> {
    let about = about(payload)?;
    let About::Permission(id) = &about else { return None };
    let actions: Vec<Action> = (1..)
        .zip(options_of(payload))
        .filter_map(|(number, option)| {
            let name = option["name"].as_str().or_else(|| option["optionId"].as_str())?;
            let kind = option["kind"].as_str().unwrap_or_default();
            let style = match kind {
                "allow_once" => ActionStyle::Success,
                "allow_always" => ActionStyle::Primary,
                kind if kind.starts_with("reject") => ActionStyle::Danger,
                _ => ActionStyle::Secondary,
            };
            action(format!("/acp answer {id} {number}"), name, &kind_note(name, kind), style)
        })
        .take(buttons_max)
        .collect();
    Some(Asks { about, actions })
}

/// The button that stops the turn of a card, and no other one.
pub(crate) fn of_card(run_id: RunId) -> Vec<Action> {
    action(format!("/acp cancel --run {run_id}"), "Stop", "", ActionStyle::Danger).into_iter().collect()
}

/// The buttons of what is said about a message that waits. `may_steer`: it was not meant for the running turn already.
pub(crate) fn of_queued(run_id: RunId, may_steer: bool) -> Asks {
    let steer = action(format!("/acp steer --run {run_id}"), "Steer now", "", ActionStyle::Primary);
    let drop = action(format!("/acp drop {run_id}"), "Drop", "", ActionStyle::Secondary);
    Asks {
        about: About::Queued(run_id),
        actions: steer.filter(|_| may_steer).into_iter().chain(drop).collect(),
    }
}

/// What became of what a message with buttons is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate<'a> {
    /// The permission, as it is now.
    Permission(&'a PermissionRow),
    /// The run, as it is now.
    Run(RunMode, RunState),
    /// There is nothing of it.
    Gone,
}

/// What the message says once that is over; `None` while its buttons mean something.
pub(crate) fn amended(text: &str, fate: Fate<'_>, is_markdown: bool) -> Option<String> {
    let end = match fate {
        Fate::Permission(row) => match row.state {
            PermissionState::Pending => return None,
            PermissionState::Answered | PermissionState::Expired => settled_line(row, is_markdown),
        },
        Fate::Run(_, RunState::Queued) => return None,
        Fate::Run(RunMode::Steer, RunState::Failed) => {
            "It could not be said into the running turn.".to_owned()
        }
        Fate::Run(RunMode::Steer, _) => "It was said into the running turn.".to_owned(),
        Fate::Run(RunMode::Prompt, RunState::Cancelled) => "It was dropped, or stopped.".to_owned(),
        Fate::Run(RunMode::Prompt, RunState::Running | RunState::Completed | RunState::Failed) => {
            "It has started.".to_owned()
        }
        Fate::Gone => "It is over.".to_owned(),
    };
    Some(format!("{}\n{end}", without_waiting(text)))
}

/// Who settled a permission, and how.
pub(crate) fn settled_line(row: &PermissionRow, is_markdown: bool) -> String {
    let options: &[PermissionOption] = match &row.ask.what {
        Wanted::Permission { options, .. } => options,
        _ => &[],
    };
    let name = row.option_id.as_deref().map(|id| {
        let option = options.iter().find(|option| option.id == id);
        option.map_or(id, |option| option.name.as_str())
    });
    let nobody = Settler::Person(String::new());
    outcome(name, row.settled_by.as_ref().unwrap_or(&nobody), is_markdown)
}

#[cfg(test)]
#[path = "actions_tests.rs"]
mod tests;
