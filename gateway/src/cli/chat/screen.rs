//! Output of `chat` for scripts: a stream of lines.

use crate::cli::follow::plan_lines;
use crate::cli::output::{CliResult, NAME_CHARS_MAX, Out, name};
use acp_core::elicitation::{Elicitation, form_of_event};
use acp_core::permission::{kind_note, short_id};
use acp_core::render::{
    answer_hint, delta_text, form_lines, host_effect_text, tool_preview, unreadable_text,
};
use serde_json::Value;

/// Output of the chat.
pub(crate) struct ChatScreen<'a> {
    out: &'a mut Out,
}

impl<'a> ChatScreen<'a> {
    /// Writes to standard output.
    pub(crate) fn new(out: &'a mut Out) -> Self {
        Self { out }
    }

    /// True if the output is JSON lines.
    pub(crate) const fn is_json(&self) -> bool {
        self.out.json
    }

    /// Shows streamed text of the agent.
    pub(crate) fn text(&mut self, text: &str) -> CliResult {
        self.out.text(text)?;
        self.out.flush()
    }

    /// Ends the streamed text, if any, and prints a line of its own.
    pub(crate) fn line(&mut self, text: &str) -> CliResult {
        self.out.line(text)?;
        self.out.flush()
    }

    /// Ends a line of streamed text.
    pub(crate) fn end_text(&mut self) -> CliResult {
        self.out.end_line()?;
        self.out.flush()
    }

    /// Shows one event of the session: the JSON line for programs, text for people. `is_next`: a typed number
    /// answers a permission request that is shown now.
    pub(crate) fn event(&mut self, line: &str, event: &Value, is_next: bool) -> CliResult {
        if self.out.json {
            self.out.line(line)?;
            return self.out.flush();
        }
        if let Some(notice) = unreadable_text(event) {
            return self.line(&notice);
        }
        let text = |key: &str| event[key].as_str().unwrap_or_default();
        let word = |key: &str| name(text(key));
        match text("type") {
            "text_delta" if text("stream") == "output" => self.text(&delta_text(event)),
            "tool_call" => self.line(&tool_line(event)),
            "tool_call_update" if matches!(text("status"), "completed" | "failed") => {
                self.line(&tool_line(event))
            }
            "plan" => {
                self.line("[plan]")?;
                plan_lines(event).try_for_each(|line| self.line(&format!("  {line}")))
            }
            "permission" => self.permission(event, is_next),
            "permission_settled" => {
                let choice = if word("option_id").is_empty() { word("outcome") } else { word("option_id") };
                let by = if word("by").is_empty() { word("without") } else { word("by") };
                if event["action"].is_null() {
                    return self.line(&format!("[permission: {choice} ({by})]"));
                }
                let choice = if word("option_name").is_empty() { choice } else { word("option_name") };
                self.line(&format!("[question: {choice} ({by})]"))
            }
            "host_request" => self.line(&format!("[host: {}]", host_effect_text(event, NAME_CHARS_MAX))),
            "status" => self.line(&format!("[{}]", text("text"))),
            "gap" => self.line(&format!("[output is missing here: {}]", text("text"))),
            "done" => match text("stop_reason") {
                "end_turn" => self.end_text(),
                reason => self.line(&format!("[ended: {}]", name(reason))),
            },
            "error" => self.line(&format!("[failed: {} ({})]", text("message"), text("code"))),
            "closed" => self.line(&format!("[session closed: {}]", word("reason"))),
            _ => Ok(()),
        }
    }

    fn form(&mut self, event: &Value, form: &Elicitation, is_next: bool) -> CliResult {
        self.line(&format!("[the agent asks: {}]", name(&form.message)))?;
        for line in form_lines(form, false).lines().filter(|line| !line.is_empty()) {
            self.line(&format!("  {line}"))?;
        }
        let id = short_id(event["permission_id"].as_str().unwrap_or_default());
        if !is_next || numbered_options(event) == 0 {
            return self.line(&format!("  {}", answer_hint(form, Some(&id))));
        }
        for line in option_lines(event) {
            self.line(&format!("  {line}"))?;
        }
        self.line("  Answer with a number.")
    }

    fn permission(&mut self, event: &Value, is_next: bool) -> CliResult {
        if let Some(form) = form_of_event(event) {
            return self.form(event, &form, is_next);
        }
        let title = event["title"].as_str().filter(|title| !title.trim().is_empty());
        self.line(&format!("[the agent asks: {}]", name(title.unwrap_or("a tool call"))))?;
        if let Some(excerpt) = tool_preview(&event["tool_call"], false) {
            for line in excerpt.lines() {
                self.line(line)?;
            }
        }
        for line in option_lines(event) {
            self.line(&format!("  {line}"))?;
        }
        if is_next {
            return self.line("  Answer with a number.");
        }
        let id = short_id(event["permission_id"].as_str().unwrap_or_default());
        self.line(&format!("  Answer with /acp answer {id} NUMBER."))
    }
}

/// Number of the options of a question that a typed number chooses; a form with fields has none.
pub(crate) fn numbered_options(event: &Value) -> usize {
    let has_fields =
        form_of_event(event).is_some_and(|form| !form.fields().is_empty() && !form.is_numbered());
    if has_fields { 0 } else { event["options"].as_array().map_or(0, Vec::len) }
}

/// Numbered options of a permission request or question, one line each.
pub(crate) fn option_lines(event: &Value) -> Vec<String> {
    let is_form = form_of_event(event).is_some();
    let options = event["options"].as_array().map(Vec::as_slice).unwrap_or_default();
    let line = |(number, option): (usize, &Value)| {
        let called = option["name"].as_str().or_else(|| option["option_id"].as_str()).unwrap_or_default();
        // The options of an elicitation have names, and no kinds with words.
        let kind = option["kind"].as_str().filter(|_| !is_form).unwrap_or_default();
        format!("{number}. {}{}", name(called), kind_note(called, kind))
    };
    (1..).zip(options).map(line).collect()
}

fn tool_line(event: &Value) -> String {
    let text = |key: &str| event[key].as_str().filter(|text| !text.is_empty());
    let what = text("title").or_else(|| text("name")).or_else(|| text("tool_call_id")).unwrap_or("tool");
    match text("status") {
        Some(status) => format!("[tool: {} ({})]", name(what), name(status)),
        None => format!("[tool: {}]", name(what)),
    }
}
