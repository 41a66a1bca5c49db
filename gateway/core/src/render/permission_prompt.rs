//! Text of a permission request in a conversation, and of its resolution.

use crate::elicitation::form_of_event;
use crate::event::{EventKind, EventRow};
use crate::permission::{kind_note, short_id};
use crate::render::buttons;
use crate::render::escape::{escape_name, quote_name};
use crate::render::form::form_prompt;
use crate::render::style::Style;
use crate::render::tool_preview::{ToolPreview, escape_text};
use crate::render::{OPTIONS_MAX, parse};
use crate::rows::{AutoResolution, ResolvedBy};
use crate::timeouts::format_duration;
use serde_json::Value;
use std::fmt::Write as _;

/// Maximum length of the kind of a tool call, in characters.
const KIND_CHARS_MAX: usize = 32;
/// Beginning of the line that explains how to answer by typing.
pub(super) const ANSWER_WITH: &str = "Answer with /acp";
/// Beginning of the last line of a pending question.
const WAITS: &str = "Waits for an answer";
/// Markdown prefix of a line in small print.
pub(super) const SMALL: &str = "-# ";
/// Room reserved for the resolution of a question, in characters.
const END_CHARS: usize = 100;

/// Text of a question, in the style of its row.
pub(super) fn permission_prompt(style: &Style, event: &EventRow, payload: &Value) -> String {
    if let Some(form) = form_of_event(payload) {
        return form_prompt(style, event, payload, &form);
    }
    let shows = &style.shows;
    let (call, options) = (&payload["params"]["toolCall"], options_of(payload));
    let preview = ToolPreview::of(call);
    let head = head(call, preview.as_ref(), shows.markdown);
    let mut rest = String::new();
    let buttons = buttons::permission_buttons(payload, shows.buttons).map_or(0, |asks| asks.actions.len());
    if buttons < options.len() {
        for (number, option) in (1..).zip(options) {
            let (name, kind) = (name_of(option), option["kind"].as_str().unwrap_or_default());
            let shown = escape_text(name, buttons::LABEL_CHARS_MAX, shows.markdown);
            // Writing into a String cannot fail.
            let _ = write!(rest, "\n{number}. {shown}{}", kind_note(name, kind));
        }
        let _ = write!(rest, "\n{ANSWER_WITH} allow, /acp deny or /acp answer NUMBER.");
    }
    let _ = write!(rest, "\n{}", waiting_line(style, event, payload));
    let room = style.limit.minus(&format!("{head}\n{rest}{}", " ".repeat(END_CHARS)));
    let shown = preview.map(|preview| format!("\n{}", preview.render_in(room, shows.markdown)));
    let shown = shown.unwrap_or_default();
    format!("{head}{shown}{rest}")
}

/// First line: the action that the agent wants to perform.
fn head(call: &Value, preview: Option<&ToolPreview>, is_markdown: bool) -> String {
    let title = asked_title(call);
    // Text shown below is not repeated. A command after white space may not be shown.
    let bare = title.trim().trim_matches('`').trim();
    if preview.and_then(ToolPreview::command).is_some_and(|command| command.trim_end() == bare) {
        return "The agent asks for a permission to run this:".to_owned();
    }
    let kind = given(call, "kind").filter(|kind| *kind != "other" && *kind != title);
    let kind = kind.map(|kind| format!(" ({})", escape_text(kind, KIND_CHARS_MAX, is_markdown)));
    let title = escape_name(title, is_markdown);
    let mark = if is_markdown { "**" } else { "" };
    format!("The agent asks for a permission: {mark}{title}{mark}{}", kind.unwrap_or_default())
}

/// Title of the tool call of a request, or the best replacement.
pub(super) fn asked_title(call: &Value) -> &str {
    ["title", "kind", "toolCallId"].into_iter().find_map(|key| given(call, key)).unwrap_or("something")
}

/// Text member that is not blank.
fn given<'a>(call: &'a Value, key: &str) -> Option<&'a str> {
    call[key].as_str().filter(|text| !text.trim().is_empty())
}

/// Last line: the approvers, the remaining time and the id of the question.
pub(super) fn waiting_line(style: &Style, event: &EventRow, payload: &Value) -> String {
    let small = if style.shows.markdown { SMALL } else { "" };
    let who = style.shows.approvers.as_ref().map(|who| format!(" of {who}")).unwrap_or_default();
    let left_ms = payload["deadline_at_ms"].as_u64().map(|at| at.saturating_sub(event.created_at_ms));
    // Whole seconds are precise enough.
    let within = left_ms
        .map(|ms| format!(", within {}", format_duration((ms + 500) / 1_000 * 1_000)))
        .unwrap_or_default();
    let id = short_id(payload["permission_id"].as_str().unwrap_or_default());
    format!("{small}{WAITS}{who}{within} · id {id}")
}

/// Options offered by the agent, up to the maximum number listed.
pub(super) fn options_of(payload: &Value) -> &[Value] {
    let options = payload["form"]["options"].as_array().or_else(|| payload["params"]["options"].as_array());
    let options = options.map(Vec::as_slice).unwrap_or_default();
    options.get(..OPTIONS_MAX).unwrap_or(options)
}

fn name_of(option: &Value) -> &str {
    option["name"].as_str().or_else(|| option["optionId"].as_str()).unwrap_or_default()
}

/// Removes the lines of a question that apply only while it is pending.
pub(super) fn strip_waiting_lines(text: &str) -> &str {
    let mut text = text.trim_end();
    while let Some((rest, last)) = text.rsplit_once('\n') {
        let last = last.strip_prefix(SMALL).unwrap_or(last);
        if !last.starts_with(WAITS) && !last.starts_with(ANSWER_WITH) {
            break;
        }
        text = rest.trim_end();
    }
    text
}

/// True if the next row resolves the question by policy, without asking anybody.
pub(super) fn is_resolved_by_policy(asked: &Value, next: &EventRow) -> bool {
    let settled = parse(&next.payload);
    next.kind == EventKind::PermissionSettled
        && settled["permission_id"] == asked["permission_id"]
        && resolved_by(&settled) == ResolvedBy::Auto(AutoResolution::Policy)
}

/// Notice about the resolution of a question; `None` if the question's own message is edited to show it.
pub(super) fn resolution_notice(style: &Style, payload: &Value) -> Option<String> {
    let by = resolved_by(payload);
    if by == ResolvedBy::Auto(AutoResolution::Policy)
        || (style.shows.changes && buttons::subject_of(payload).is_some())
    {
        return None;
    }
    let option = payload["option_name"].as_str().or_else(|| payload["option_id"].as_str());
    Some(format!(
        "{} is resolved. {}",
        if payload["action"].is_null() { "The permission request" } else { "The question" },
        resolution_text(option, &by, style.shows.markdown)
    ))
}

/// Returns the person or rule that resolved a permission, from its journal row.
pub(super) fn resolved_by(payload: &Value) -> ResolvedBy {
    let word = payload["without"].as_str();
    let without = word.and_then(|word| AutoResolution::ALL.into_iter().find(|known| known.as_str() == word));
    let named = || ResolvedBy::Person(payload["by"].as_str().unwrap_or_default().to_owned());
    without.map_or_else(named, ResolvedBy::Auto)
}

/// Describes the resolution of a permission: the chosen option, if any, and the person or rule. Names are
/// quoted; rules never are.
pub fn resolution_text(option: Option<&str>, by: &ResolvedBy, is_markdown: bool) -> String {
    let option = option.map(|name| quote_name(name, is_markdown));
    let by_name = |name: &str| match name.trim() {
        "" => "by unknown".to_owned(),
        name => format!("by {}", quote_name(name, is_markdown)),
    };
    let why = match (option, by) {
        (Some(option), ResolvedBy::Auto(AutoResolution::Deadline)) => {
            return format!("Nobody answered in time: {option}.");
        }
        (None, ResolvedBy::Auto(AutoResolution::Deadline)) => {
            return "Nobody answered in time: refused.".to_owned();
        }
        (Some(option), ResolvedBy::Person(name)) => {
            return format!("Answered: {option} ({}).", by_name(name));
        }
        (Some(option), ResolvedBy::Auto(without)) => {
            return format!("Answered: {option} ({}).", without.as_str());
        }
        (None, ResolvedBy::Person(name)) => by_name(name),
        (None, ResolvedBy::Auto(without)) => match without {
            AutoResolution::Cancel => "the turn was stopped",
            AutoResolution::TurnEnded => "the turn has ended",
            AutoResolution::LeaseEnded => "the agent has ended",
            AutoResolution::SessionClosed => "the session was closed",
            AutoResolution::Agent => "the agent withdrew it",
            AutoResolution::Adopted => "another gateway took over",
            AutoResolution::Nobody => "no approver was available",
            AutoResolution::Policy | AutoResolution::Deadline => without.as_str(),
        }
        .to_owned(),
    };
    format!("Closed without an answer ({why}).")
}

#[cfg(test)]
#[path = "permission_prompt_tests.rs"]
mod tests;
