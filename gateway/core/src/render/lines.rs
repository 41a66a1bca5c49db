//! One-line descriptions of the agent's updates: tool calls, plans, modes. Hidden updates have none, and
//! repeated lines are suppressed.

use crate::render::event_text::chunk_text;
use crate::render::style::Style;
use crate::sanitize::line as one_line;
use serde_json::Value;
use std::collections::BTreeMap;

/// Maximum number of tracked tool calls.
const TOOLS_MAX: usize = 10_000;
/// Maximum length of a stored tool kind, in characters.
const KIND_CHARS_MAX: usize = 40;
/// Kinds of tool calls in ACP. Any other kind might be read as a mark of the gateway, like `[host]`.
const KINDS: [&str; 10] =
    ["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"];
/// Maximum number of names in a line.
const NAMES_MAX: usize = 12;

/// State of a tool call for the one-line descriptions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ToolCallState {
    title: String,
    kind: String,
    /// `completed`, `failed`, or any other value while the call runs.
    status: String,
    is_start_shown: bool,
    is_end_shown: bool,
}

impl ToolCallState {
    fn is_over(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "failed")
    }

    fn merge(&mut self, update: &Value, chars_max: usize) {
        let given = |key: &str| update[key].as_str().filter(|text| !text.trim().is_empty());
        if let Some(title) = given("title") {
            self.title = one_line(title, chars_max);
        }
        if let Some(kind) = given("kind") {
            self.kind = one_line(kind, KIND_CHARS_MAX);
        }
        if let Some(status) = given("status") {
            self.status = one_line(status, KIND_CHARS_MAX);
        }
    }

    fn kind(&self) -> &str {
        KINDS.into_iter().find(|kind| *kind == self.kind).unwrap_or("other")
    }

    fn line(&self) -> String {
        let end = match self.status.as_str() {
            "completed" => ": done",
            "failed" => ": failed",
            _ => "",
        };
        let title = if self.title.is_empty() { "a tool call" } else { &self.title };
        format!("[{}] {title}{end}", self.kind())
    }
}

/// Line state of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct UpdateLines {
    tools: BTreeMap<String, ToolCallState>,
    /// Number of tool calls beyond the maximum, which are only counted.
    untracked: usize,
    /// Last line of each other kind, by tag.
    said: BTreeMap<String, String>,
}

impl UpdateLines {
    /// Returns the line about a `tool_call` or a `tool_call_update`, if one is due.
    pub(super) fn tool(&mut self, style: &Style, tag: &str, update: &Value) -> Option<String> {
        let id = update["toolCallId"].as_str()?;
        if self.tools.len() >= TOOLS_MAX && !self.tools.contains_key(id) {
            // Their updates cannot be told from further calls.
            self.untracked += usize::from(tag == "tool_call");
            return None;
        }
        let tool = self.tools.entry(id.to_owned()).or_default();
        tool.merge(update, style.line_chars_max);
        if !style.shows(tag) {
            return None;
        }
        let said = if tool.is_over() { &mut tool.is_end_shown } else { &mut tool.is_start_shown };
        let is_repeated = std::mem::replace(said, true);
        // No start line after the end line.
        tool.is_start_shown |= tool.is_end_shown;
        if is_repeated && style.repeat_suppression {
            return None;
        }
        Some(one_line(&tool.line(), style.line_chars_max))
    }

    /// Returns the line about any other update that is no text, if one is due.
    pub(super) fn other(&mut self, style: &Style, tag: &str, update: &Value) -> Option<String> {
        if !style.shows(tag) {
            return None;
        }
        let line = one_line(&describe_update(tag, update)?, style.line_chars_max);
        if style.repeat_suppression && self.said.get(tag) == Some(&line) {
            return None;
        }
        self.said.insert(one_line(tag, KIND_CHARS_MAX), line.clone());
        Some(line)
    }

    /// Number of tool calls.
    pub(super) fn tools(&self) -> usize {
        self.tools.len() + self.untracked
    }

    /// Summary like `3 tool calls (2 read, 1 edit), 1 failed`; `None` without tool calls.
    pub(super) fn summary(&self) -> Option<String> {
        let total = self.tools();
        if total == 0 {
            return None;
        }
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        for tool in self.tools.values() {
            *kinds.entry(tool.kind()).or_default() += 1;
        }
        let mut list: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        if self.untracked > 0 {
            list.push(format!("{} more", self.untracked));
        }
        let failed = self.tools.values().filter(|tool| tool.status == "failed").count();
        let calls = if total == 1 { "tool call" } else { "tool calls" };
        let tail = if failed == 0 { String::new() } else { format!(", {failed} failed") };
        Some(format!("{total} {calls} ({}){tail}", list.join(", ")))
    }
}

/// Describes an update; `None` if it has no displayable content.
fn describe_update(tag: &str, update: &Value) -> Option<String> {
    let text = |key: &str| update[key].as_str().filter(|text| !text.trim().is_empty());
    match tag {
        "plan" => describe_plan(update["entries"].as_array()?),
        "usage_update" => {
            let used = update["used"].as_u64()?;
            let of = update["size"].as_u64().map(|size| format!(" of {size}")).unwrap_or_default();
            Some(format!("Context: {used}{of} tokens"))
        }
        "current_mode_update" => text("currentModeId").map(|mode| format!("Mode: {mode}")),
        "config_option_update" => {
            let options = update["configOptions"].as_array()?;
            let value = |option: &Value| match &option["currentValue"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let named = options
                .iter()
                .filter_map(|option| Some(format!("{} = {}", option["id"].as_str()?, value(option))));
            join_names("Options", named)
        }
        "available_commands_update" => {
            let commands = update["availableCommands"].as_array()?;
            let names = commands.iter().filter_map(|command| command["name"].as_str());
            join_names("Commands", names.map(|name| format!("/{name}")))
        }
        "session_info_update" => text("title").map(|title| format!("Title: {title}")),
        _ => {
            // Any other tag might be read as a mark of the gateway.
            let is_plain =
                tag.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'));
            let tag = if is_plain { tag } else { "update" };
            let said = ["text", "message", "title"].into_iter().find_map(text).map(str::to_owned);
            let said = said.or_else(|| chunk_text(update).filter(|text| !text.is_empty()));
            Some(said.map_or_else(|| tag.to_owned(), |said| format!("{tag}: {said}")))
        }
    }
}

fn describe_plan(entries: &[Value]) -> Option<String> {
    let is = |entry: &&Value, status: &str| entry["status"].as_str() == Some(status);
    let done = entries.iter().filter(|entry| is(entry, "completed")).count();
    let now = entries.iter().find(|entry| is(entry, "in_progress"));
    let now = now.and_then(|entry| entry["content"].as_str()).map(|text| format!(": {text}"));
    (!entries.is_empty())
        .then(|| format!("Plan, {done} of {} done{}", entries.len(), now.unwrap_or_default()))
}

fn join_names(what: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let names: Vec<String> = names.take(NAMES_MAX).collect();
    (!names.is_empty()).then(|| format!("{what}: {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_kinds_and_tags_of_the_protocol_begin_a_line() {
        let (mut style, mut lines) = (crate::render::tests::style(), UpdateLines::default());
        style.tags.clear();
        let mut kind_line = |kind: &str| {
            let call = json!({"toolCallId": kind, "kind": kind, "title": "write /w/a: refused"});
            lines.tool(&style, "tool_call", &call).unwrap()
        };
        for kind in ["host", "permission", "edit] [host", "Edit", ""] {
            assert_eq!(kind_line(kind), "[other] write /w/a: refused", "{kind}");
        }
        assert_eq!(kind_line("switch_mode"), "[switch_mode] write /w/a: refused");
        assert_eq!(lines.summary().unwrap(), "6 tool calls (5 other, 1 switch_mode)");
        for (tag, line) in [("notice", "notice: refused"), ("[host] write /w/a", "update: refused")] {
            assert_eq!(lines.other(&style, tag, &json!({"text": "refused"})).unwrap(), line);
        }
    }

    #[test]
    fn tool_calls_beyond_the_maximum_are_counted() {
        let (style, mut lines) = (crate::render::tests::style(), UpdateLines::default());
        for n in 0..TOOLS_MAX + 3 {
            let id = n.to_string();
            lines.tool(&style, "tool_call", &json!({"toolCallId": id, "kind": "read"}));
            lines.tool(&style, "tool_call_update", &json!({"toolCallId": id, "status": "completed"}));
        }
        assert_eq!(lines.summary().unwrap(), "10003 tool calls (10000 read, 3 more)");
        assert_eq!(lines.tools(), TOOLS_MAX + 3);
    }
}
