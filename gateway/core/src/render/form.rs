//! Text of an elicitation in a conversation: a form or a page.

use crate::elicitation::{Elicitation, ElicitationMode, FieldChoice, FieldKind, describe, url_warnings};
use crate::event::EventRow;
use crate::permission::short_id;
use crate::render::buttons;
use crate::render::escape::escape_name;
use crate::render::permission_prompt::{ANSWER_WITH, waiting_line};
use crate::render::style::Style;
use crate::render::tool_preview::escape_text;
use serde_json::Value;

/// Maximum length of a line of the agent, in characters.
const LINE_CHARS_MAX: usize = 300;
/// Maximum number of lines shown of a message.
const MESSAGE_LINES_MAX: usize = 20;
/// Maximum number of lines shown of a form.
const FORM_LINES_MAX: usize = 60;

/// Text of a question, in the style of its row.
pub(super) fn form_prompt(style: &Style, event: &EventRow, payload: &Value, form: &Elicitation) -> String {
    let shows = &style.shows;
    let message = message_lines(form, shows.markdown);
    let buttons = buttons::permission_buttons(payload, shows.buttons).map_or(0, |asks| asks.actions.len());
    let has_all = buttons >= form.options().len();
    let lines = if has_all && form.is_numbered() && !has_explanation(form) {
        String::new()
    } else {
        form_lines(form, shows.markdown)
    };
    let id = short_id(payload["permission_id"].as_str().unwrap_or_default());
    let hint = if has_all && is_answered_by_options(form) {
        String::new()
    } else {
        format!("\n{}", answer_hint(form, Some(&id)))
    };
    format!("The agent asks: {message}{lines}{hint}\n{}", waiting_line(style, event, payload))
}

/// True if an option is the whole answer: a choice, or a page.
fn is_answered_by_options(form: &Elicitation) -> bool {
    form.is_numbered() || form.fields().is_empty()
}

/// True if the lines of a form with one choice say more than its options.
fn has_explanation(form: &Elicitation) -> bool {
    let explains = |choice: &FieldChoice| choice.description.is_some();
    form.fields().iter().any(|field| {
        let choices = match &field.kind {
            FieldKind::Choice { choices } => choices.as_slice(),
            _ => &[],
        };
        field.title.is_some() || field.description.is_some() || choices.iter().any(explains)
    })
}

fn message_lines(form: &Elicitation, is_markdown: bool) -> String {
    let lines: Vec<String> = form
        .message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .take(MESSAGE_LINES_MAX)
        .map(|line| escape_text(line, LINE_CHARS_MAX, is_markdown))
        .collect();
    let mark = if is_markdown { "**" } else { "" };
    match lines.split_first() {
        None => "a question".to_owned(),
        Some((first, rest)) => {
            rest.iter().fold(format!("{mark}{first}{mark}"), |text, line| format!("{text}\n{line}"))
        }
    }
}

/// Lists the fields and choices of a form, or the address of a page, each line after a line break.
pub fn form_lines(form: &Elicitation, is_markdown: bool) -> String {
    let escaped = |text: &str| escape_text(text, LINE_CHARS_MAX, is_markdown);
    let mut lines = Vec::new();
    match &form.mode {
        ElicitationMode::Url { url, host, .. } => {
            let mark = if is_markdown { "`" } else { "" };
            lines.push(format!("Page on host {mark}{host}{mark}. The gateway does not open it:"));
            lines.push(format!("{mark}{url}{mark}"));
            lines.extend(url_warnings(url).into_iter().map(|warning| format!("Warning: {warning}")));
        }
        ElicitationMode::Form { fields } => {
            for field in fields {
                let label =
                    field.title.as_deref().map(|title| format!(": {}", escape_name(title, is_markdown)));
                let about = field.description.as_deref().map(|about| format!(" – {}", escaped(about)));
                let (label, about) = (label.unwrap_or_default(), about.unwrap_or_default());
                let name = escape_name(&field.name, is_markdown);
                lines.push(format!("- {name} ({}){label}{about}", escaped(&describe(field))));
                lines.extend(choice_lines(&field.kind, is_markdown));
            }
        }
    }
    let left = lines.len().saturating_sub(FORM_LINES_MAX);
    lines.truncate(FORM_LINES_MAX);
    if left > 0 {
        lines.push(format!("… and {left} more lines; `acp-gateway permissions list` shows all."));
    }
    lines.iter().map(|line| format!("\n{line}")).collect()
}

fn choice_lines(kind: &FieldKind, is_markdown: bool) -> Vec<String> {
    let choices = match kind {
        FieldKind::Choice { choices } | FieldKind::Choices { choices, .. } => choices.clone(),
        FieldKind::Boolean => ["Yes", "No"]
            .map(|value| FieldChoice { value: value.to_owned(), title: None, description: None })
            .to_vec(),
        _ => Vec::new(),
    };
    let line = |(number, choice): (u32, &FieldChoice)| {
        let about = choice.description.as_deref().map(|text| escape_text(text, LINE_CHARS_MAX, is_markdown));
        let about = about.map(|about| format!(" – {about}")).unwrap_or_default();
        format!("  {number}. {}{about}", escape_name(choice.label(), is_markdown))
    };
    (1..).zip(&choices).map(line).collect()
}

/// Returns the line that says how to answer by typing.
pub fn answer_hint(form: &Elicitation, id: Option<&str>) -> String {
    let id = id.map(|id| format!(" {id}")).unwrap_or_default();
    let answer = match form.fields() {
        _ if form.is_numbered() => format!("answer{id} NUMBER"),
        [] => format!("allow{id}"),
        [_] => format!("answer{id} VALUE"),
        [first, ..] => format!("answer{id} {}=VALUE …", escape_text(&first.name, LINE_CHARS_MAX, false)),
    };
    format!("{ANSWER_WITH} {answer}, or /acp deny{id}.")
}
