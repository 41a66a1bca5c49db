//! Texts of a turn for people, in acpx's formats `text` and `quiet`.

use super::lines::chunk_text;
use super::messages::JournalLine;
use crate::event::EventKind;
use serde_json::Value;
use std::collections::HashMap;

/// Maximum length of a thought, in characters.
const THOUGHT_CHARS_MAX: usize = 900;
/// Size of a thought from which on its rest is not kept, in bytes.
const THOUGHT_BYTES_MAX: usize = 64 * 1024;
/// Size of the updates of tool calls, in bytes, after which calls are forgotten if their members take half of it. A forgotten
/// call with further updates is shown as a new one.
const TOOLS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Maximum length of a summary within a line, in characters.
const INLINE_CHARS_MAX: usize = 220;
/// Maximum length of a tool's output, in characters.
const OUTPUT_CHARS_MAX: usize = 2_000;
/// Maximum number of lines of a tool's output.
const OUTPUT_LINES_MAX: usize = 28;
/// Maximum number of shown files of a tool call.
const FILES_MAX: usize = 5;

/// State of a tool call.
#[derive(Debug, Clone, Default)]
struct ToolState {
    /// Members of all updates so far; the last value counts.
    members: HashMap<String, Value>,
    /// True if the start was shown.
    is_started: bool,
    /// Last shown end.
    shown_end: String,
}

/// Text of a turn.
#[derive(Debug, Clone)]
pub struct TurnText {
    /// True for the format `quiet`: only the answer.
    is_quiet: bool,
    tools: HashMap<String, ToolState>,
    /// Size of the members in `tools`, and of the updates since, in bytes.
    tools_bytes: usize,
    thought: String,
    wrote_any: bool,
    in_line: bool,
}

impl TurnText {
    /// Text in the format `text`.
    pub fn full() -> Self {
        Self {
            is_quiet: false,
            tools: HashMap::new(),
            tools_bytes: 0,
            thought: String::new(),
            wrote_any: false,
            in_line: false,
        }
    }

    /// Text in the format `quiet`: the answer, ended by a line break.
    pub fn quiet() -> Self {
        Self { is_quiet: true, ..Self::full() }
    }

    /// Appends the text of a row.
    pub fn push(&mut self, row: &JournalLine<'_>, out: &mut String) {
        let Some(kind) = row.kind() else { return };
        if self.is_quiet {
            match kind {
                EventKind::AgentMessage => self.write(&chunk_text(row).unwrap_or_default(), out),
                EventKind::Done => self.flush(out),
                _ => {}
            }
            return;
        }
        match kind {
            EventKind::AgentThought if self.thought.len() >= THOUGHT_BYTES_MAX => {}
            EventKind::AgentThought => self.thought.push_str(&chunk_text(row).unwrap_or_default()),
            EventKind::AgentMessage => {
                self.flush_thought(out);
                self.write(&chunk_text(row).unwrap_or_default(), out);
            }
            EventKind::ToolCall | EventKind::ToolCallUpdate => {
                self.flush_thought(out);
                self.tool(row, out);
            }
            EventKind::Plan => {
                self.flush_thought(out);
                let plan: Value = serde_json::from_str(row.payload()).unwrap_or_default();
                self.section(out);
                self.line("[plan]", out);
                for entry in plan.get("entries").and_then(Value::as_array).into_iter().flatten() {
                    let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
                    self.line(&format!("  - [{}] {}", text("status"), text("content")), out);
                }
            }
            EventKind::Permission => {
                self.flush_thought(out);
                self.section(out);
                self.line("[client] session/request_permission (running)", out);
            }
            EventKind::Done => {
                let stop = row.text("stop_reason").unwrap_or_default();
                self.flush_thought(out);
                self.section(out);
                self.line(&format!("[done] {stop}"), out);
            }
            _ => {}
        }
    }

    /// Appends an error.
    pub fn error(&mut self, code: &str, message: &str, out: &mut String) {
        self.flush(out);
        if !self.is_quiet {
            self.section(out);
            self.line(&format!("[error] {code}: {message}"), out);
        }
    }

    /// Appends what is held back, and ends the line.
    pub fn flush(&mut self, out: &mut String) {
        self.flush_thought(out);
        if self.in_line || (self.is_quiet && !self.wrote_any) {
            self.write("\n", out);
        }
    }

    fn write(&mut self, text: &str, out: &mut String) {
        if !text.is_empty() {
            out.push_str(text);
            self.wrote_any = true;
            self.in_line = !text.ends_with('\n');
        }
    }

    fn line(&mut self, text: &str, out: &mut String) {
        self.write(&format!("{text}\n"), out);
    }

    /// Separates a section by an empty line.
    fn section(&mut self, out: &mut String) {
        if self.in_line {
            self.write("\n", out);
        }
        if self.wrote_any {
            self.write("\n", out);
        }
    }

    fn flush_thought(&mut self, out: &mut String) {
        let thought = std::mem::take(&mut self.thought).replace("\r\n", "\n");
        let thought = truncated(thought.trim(), THOUGHT_CHARS_MAX);
        if thought.is_empty() {
            return;
        }
        self.section(out);
        for (number, line) in thought.split('\n').enumerate() {
            let head = if number == 0 { "[thinking]" } else { "          " };
            self.line(&format!("{head} {line}"), out);
        }
    }

    fn tool(&mut self, row: &JournalLine<'_>, out: &mut String) {
        self.tools_bytes += row.payload().len();
        if self.tools_bytes > TOOLS_BYTES_MAX {
            self.tools_bytes = self.tools.values().map(ToolState::bytes).sum();
            if self.tools_bytes > TOOLS_BYTES_MAX / 2 {
                self.tools.clear();
                self.tools_bytes = 0;
            }
        }
        let update: Value = serde_json::from_str(row.payload()).unwrap_or_default();
        let id = update.get("toolCallId").and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut state = self.tools.remove(&id).unwrap_or_default();
        for (name, value) in update.as_object().into_iter().flatten() {
            let is_blank = name == "title" && value.as_str().is_none_or(|title| title.trim().is_empty());
            if !is_blank {
                state.members.insert(name.clone(), value.clone());
            }
        }
        let status = state.text("status").unwrap_or("unknown").to_owned();
        let is_final = matches!(status.as_str(), "completed" | "failed");
        let shown = state.lines(&id, &status, is_final);
        let is_new = if is_final { state.shown_end != shown.join("\n") } else { !state.is_started };
        if is_new {
            match is_final {
                true => state.shown_end = shown.join("\n"),
                false => state.is_started = true,
            }
            self.section(out);
            for line in shown {
                self.line(&line, out);
            }
        }
        self.tools.insert(id, state);
    }
}

impl ToolState {
    fn text(&self, name: &str) -> Option<&str> {
        self.members.get(name)?.as_str()
    }

    fn bytes(&self) -> usize {
        self.members.values().map(|value| value.to_string().len()).sum()
    }

    fn lines(&self, id: &str, status: &str, is_final: bool) -> Vec<String> {
        let label = if is_final || status == "pending" { status } else { "running" };
        let mut lines = vec![format!("[tool] {} ({label})", self.text("title").unwrap_or(id))];
        if is_final && let Some(kind) = self.text("kind") {
            lines.push(format!("  kind: {kind}"));
        }
        if let Some(input) = self.members.get("rawInput").and_then(input_summary) {
            lines.push(format!("  input: {input}"));
        }
        if let Some(files) = self.members.get("locations").and_then(files_summary) {
            lines.push(format!("  files: {files}"));
        }
        if is_final && let Some(output) = self.output() {
            lines.push("  output:".to_owned());
            lines.extend(limited(&output).split('\n').map(|line| format!("    {line}")));
        }
        lines
    }

    fn output(&self) -> Option<String> {
        let raw = self.members.get("rawOutput").and_then(|raw| output_text(raw, 0));
        let content = self.members.get("content").and_then(Value::as_array).into_iter().flatten();
        let parts: Vec<String> = content.filter_map(content_summary).collect();
        let content = (!parts.is_empty()).then(|| parts.join("\n\n"));
        let mut all: Vec<String> =
            raw.into_iter().chain(content).map(|part| part.trim().to_owned()).collect();
        all.retain(|part| !part.is_empty());
        all.dedup();
        (!all.is_empty()).then(|| all.join("\n\n"))
    }
}

/// Cuts a text to a number of characters.
fn truncated(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    let cut: String = text.chars().take(chars_max.saturating_sub(3)).collect();
    cut + "..."
}

fn inline(text: &str) -> String {
    truncated(&text.split_whitespace().collect::<Vec<_>>().join(" "), INLINE_CHARS_MAX)
}

fn first_text<'a>(value: &'a Value, names: &[&str]) -> Option<&'a str> {
    names.iter().filter_map(|name| value[*name].as_str()).map(str::trim).find(|text| !text.is_empty())
}

/// Returns a line about the input of a tool: the command, the file, the query, or the whole input.
fn input_summary(input: &Value) -> Option<String> {
    match input {
        Value::Null => None,
        Value::String(text) => Some(inline(text)),
        Value::Object(_) => {
            if let Some(command) = first_text(input, &["command", "cmd", "program"]) {
                let args = ["args", "arguments"].iter().find_map(|name| input[*name].as_array());
                let args = args.into_iter().flatten().filter_map(Value::as_str);
                return Some(inline(&std::iter::once(command).chain(args).collect::<Vec<_>>().join(" ")));
            }
            let place = first_text(input, &["path", "file", "filePath", "filepath", "target", "uri", "url"]);
            let query = || first_text(input, &["query", "pattern", "text", "search"]);
            Some(place.or_else(query).map_or_else(|| inline(&input.to_string()), inline))
        }
        other => Some(inline(&other.to_string())),
    }
}

fn files_summary(locations: &Value) -> Option<String> {
    let mut files: Vec<String> = Vec::new();
    for location in locations.as_array()? {
        let Some(path) = location["path"].as_str().map(str::trim).filter(|path| !path.is_empty()) else {
            continue;
        };
        let file = match location["line"].as_i64() {
            Some(line) => format!("{path}:{}", line.max(1)),
            None => path.to_owned(),
        };
        if !files.contains(&file) {
            files.push(file);
        }
    }
    let hidden = files.len().saturating_sub(FILES_MAX);
    files.truncate(FILES_MAX);
    let shown = files.join(", ");
    match (files.is_empty(), hidden) {
        (true, _) => None,
        (false, 0) => Some(shown),
        (false, more) => Some(format!("{shown}, +{more} more")),
    }
}

fn content_summary(entry: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match entry["type"].as_str()? {
        "content" => block_text(&entry["content"]).filter(|text| !text.trim().is_empty()),
        "diff" => {
            let lines = |value: &Value| {
                value.as_str().filter(|text| !text.is_empty()).map_or(0, |text| text.split('\n').count())
            };
            let new = entry["newText"].as_str().unwrap_or_default().split('\n').count();
            let path = text(&entry["path"]);
            Some(
                match i64::try_from(new).unwrap_or(0) - i64::try_from(lines(&entry["oldText"])).unwrap_or(0) {
                    0 => format!("diff {path} (line count unchanged)"),
                    delta => format!("diff {path} ({delta:+} lines)"),
                },
            )
        }
        "terminal" => Some(format!("[terminal] {}", text(&entry["terminalId"]))),
        _ => None,
    }
}

fn block_text(block: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match block["type"].as_str()? {
        "text" => text(&block["text"]),
        "resource_link" => ["title", "name", "uri"].iter().find_map(|name| text(&block[*name])),
        "resource" => block.pointer("/resource/text").and_then(text).or_else(|| {
            Some(format!("[resource] {}", block.pointer("/resource/uri").and_then(text).unwrap_or_default()))
        }),
        kind @ ("image" | "audio") => {
            Some(format!("[{kind}] {}", text(&block["mimeType"]).unwrap_or_default()))
        }
        _ => None,
    }
}

/// Returns the text of a tool's raw output.
fn output_text(value: &Value, depth: usize) -> Option<String> {
    const PREFERRED: [&str; 9] =
        ["stdout", "stderr", "output", "content", "text", "message", "result", "response", "value"];
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.trim_end().to_owned()).filter(|text| !text.is_empty()),
        Value::Array(list) if depth < 4 => {
            let parts: Vec<String> = list.iter().filter_map(|one| output_text(one, depth + 1)).collect();
            (!parts.is_empty()).then(|| parts.join("\n"))
        }
        Value::Object(members) if depth < 4 => {
            let named = PREFERRED.iter().filter_map(|name| members.get(*name));
            let parts: Vec<String> = named.filter_map(|one| output_text(one, depth + 1)).collect();
            if !parts.is_empty() {
                return Some(parts.join("\n"));
            }
            let whole = serde_json::to_string_pretty(value).ok()?;
            (whole != "{}").then_some(whole)
        }
        Value::Array(_) | Value::Object(_) => None,
        scalar => Some(scalar.to_string()),
    }
}

fn limited(output: &str) -> String {
    let output = output.replace("\r\n", "\n");
    let lines: Vec<&str> = output.trim().split('\n').collect();
    let hidden = lines.len().saturating_sub(OUTPUT_LINES_MAX);
    let mut shown = lines.into_iter().take(OUTPUT_LINES_MAX).collect::<Vec<_>>().join("\n");
    if hidden > 0 {
        shown.push_str(&format!("\n... ({hidden} more lines)"));
    }
    truncated(&shown, OUTPUT_CHARS_MAX)
}
