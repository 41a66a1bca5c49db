//! Output of `chat`: a stream for scripts, and for a person lines above the one that is being edited.

use crate::cli::chat::input::Printer;
use crate::cli::follow::plan_lines;
use crate::cli::output::{CliResult, NAME_CHARS_MAX, Out, name};
use acp_core::elicitation::{Elicitation, form_of_event};
use acp_core::permission::{kind_note, short_id};
use acp_core::render::{
    answer_hint, delta_text, form_lines, host_effect_text, tool_preview, unreadable_text,
};
use acp_core::sanitize;
use serde_json::Value;

/// Maximum length of an output line, in characters; longer text is cut after a word.
const LINE_CHARS_MAX: usize = 78;

/// Joins streamed text into lines that can be shown one by one.
#[derive(Debug, Default)]
pub(crate) struct LineBuffer {
    open: String,
}

impl LineBuffer {
    /// Adds a piece of text. Returns the completed lines.
    pub(crate) fn push(&mut self, text: &str) -> Vec<String> {
        let mut lines = Vec::new();
        for c in text.chars() {
            if c == '\n' {
                lines.push(std::mem::take(&mut self.open));
                continue;
            }
            self.open.push(c);
            if self.open.chars().count() > LINE_CHARS_MAX {
                let at = self.open.rfind(' ').filter(|at| *at > 0).map_or(self.open.len(), |at| at + 1);
                let rest = self.open.split_off(at);
                lines.push(std::mem::replace(&mut self.open, rest).trim_end().to_owned());
            }
        }
        lines
    }

    /// Returns the incomplete last line, if any.
    pub(crate) fn end(&mut self) -> Option<String> {
        (!self.open.is_empty()).then(|| std::mem::take(&mut self.open))
    }
}

/// Output of the chat.
pub(crate) struct ChatScreen<'a> {
    out: &'a mut Out,
    printer: Option<Printer>,
    wrap: LineBuffer,
}

impl<'a> ChatScreen<'a> {
    /// Writes to standard output, or through the line editor's printer.
    pub(crate) fn new(out: &'a mut Out, printer: Option<Printer>) -> Self {
        Self { out, printer, wrap: LineBuffer::default() }
    }

    /// True if the output is JSON lines.
    pub(crate) const fn is_json(&self) -> bool {
        self.out.json
    }

    /// Shows streamed text of the agent.
    pub(crate) fn text(&mut self, text: &str) -> CliResult {
        if self.printer.is_none() {
            self.out.text(text)?;
            return self.out.flush();
        }
        for line in self.wrap.push(&sanitize::text(text)) {
            self.print(line)?;
        }
        Ok(())
    }

    /// Ends the streamed text, if any, and prints a line of its own.
    pub(crate) fn line(&mut self, text: &str) -> CliResult {
        self.end_text()?;
        if self.printer.is_none() {
            self.out.line(text)?;
            return self.out.flush();
        }
        self.print(text.to_owned())
    }

    /// Ends a line of streamed text.
    pub(crate) fn end_text(&mut self) -> CliResult {
        if self.printer.is_none() {
            self.out.end_line()?;
            return self.out.flush();
        }
        match self.wrap.end() {
            Some(line) => self.print(line),
            None => Ok(()),
        }
    }

    fn print(&mut self, line: String) -> CliResult {
        match &mut self.printer {
            Some(printer) => {
                // The line editor's printer does not sanitize.
                let line = sanitize::text(&line).into_owned();
                printer
                    .print(line + "\n")
                    .map_err(|error| crate::cli::inside("cannot write to the terminal", &error).into())
            }
            None => self.out.line(&line),
        }
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
        for (number, option) in (1..).zip(form.options()) {
            self.line(&format!("  {number}. {}", name(&option.name)))?;
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
        let options = event["options"].as_array().map(Vec::as_slice).unwrap_or_default();
        for (number, option) in (1..).zip(options) {
            let called = option["name"].as_str().or_else(|| option["option_id"].as_str()).unwrap_or_default();
            let note = kind_note(called, option["kind"].as_str().unwrap_or_default());
            self.line(&format!("  {number}. {}{note}", name(called)))?;
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

fn tool_line(event: &Value) -> String {
    let text = |key: &str| event[key].as_str().filter(|text| !text.is_empty());
    let what = text("title").or_else(|| text("name")).or_else(|| text("tool_call_id")).unwrap_or("tool");
    match text("status") {
        Some(status) => format!("[tool: {} ({})]", name(what), name(status)),
        None => format!("[tool: {}]", name(what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_buffered_into_lines() {
        let mut wrap = LineBuffer::default();
        assert_eq!(wrap.push("Hel"), Vec::<String>::new());
        assert_eq!(wrap.push("lo\n\nworld"), vec!["Hello".to_owned(), String::new()]);
        assert_eq!(wrap.end(), Some("world".to_owned()));
        assert_eq!(wrap.end(), None);
        let lines = wrap.push(&"word ".repeat(40));
        assert!(
            lines.iter().all(|line| line.chars().count() <= LINE_CHARS_MAX + 1 && line.ends_with("word"))
        );
        assert_eq!(wrap.push(&"é".repeat(LINE_CHARS_MAX + 1)).len(), 2);
    }

    #[test]
    fn wrapping_keeps_every_word() {
        let text = "one two\nthree ".repeat(30);
        let mut wrap = LineBuffer::default();
        let mut got = Vec::new();
        for piece in text.split_inclusive('e') {
            got.extend(wrap.push(piece));
        }
        got.extend(wrap.end());
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&got.join("\n")), words(&text));
    }
}
