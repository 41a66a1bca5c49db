//! Short description of a tool call for the approver: changes, command or input. Source: ACP, "Tool calls"
//! and `session/request_permission`.
//!
//! The agent writes these texts, and a person decides by them. So they cannot end the surrounding code block,
//! mention anybody or hide anything: invisible characters and those that change the text direction are shown
//! as escapes.

use crate::host::{GrantTarget, command_line, shell_words};
use crate::message_split::{MessageLimit, Unit, head_within};
use crate::render::diff::proposed_diff;
use crate::render::event_text::content_text;
use crate::sanitize::{self, escape_hidden, is_hidden, line as one_line};
use serde_json::Value;
use std::borrow::Cow;

/// Maximum number of lines of an excerpt.
const LINES_MAX: usize = 24;
/// Maximum length of an excerpt, in the channel's unit.
const UNITS_MAX: usize = 1_000;
/// Maximum number of characters read of a line.
const LINE_CHARS_MAX: usize = 2 * UNITS_MAX;
/// Maximum length of a path, in characters.
const PATH_CHARS_MAX: usize = 200;
/// Maximum size of the targets that an answer may grant in advance, in bytes: small enough to be always shown
/// whole.
const WHOLE_BYTES_MAX: usize = 600;
/// Maximum number of lines of these targets.
const WHOLE_LINES_MAX: usize = 12;
/// Minimum room of a preview in a question, in bytes. Holds these targets and the surrounding code block.
const WHOLE_ROOM: usize = 900;
/// Note below a truncated excerpt.
const MORE: &str = "Truncated: `acp-gateway sessions history` shows all of it.";
/// Zero-width character that breaks up a sequence of backticks.
const ZERO_WIDTH_SPACE: char = '\u{200b}';

/// Effect of a tool call that a question shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolPreview {
    form: PreviewFormat,
    text: String,
    /// Targets granted in advance by an answer. Each appears in the part of the text that is always shown.
    targets: Vec<GrantTarget>,
}

/// Format of the text of a preview.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PreviewFormat {
    /// Command line.
    Command,
    /// Unified diff of file changes.
    Diff,
    /// Input of the tool call, as JSON.
    Input,
    /// Any other text of the agent.
    Text,
}

impl ToolPreview {
    /// Extracts the effect from the tool call of a permission request; `None` if the request does not
    /// describe one.
    pub(super) fn of(call: &Value) -> Option<Self> {
        Self::with_paths(call, PATH_CHARS_MAX)
    }

    /// Extracts the effect, with paths of at most this length.
    fn with_paths(call: &Value, path_chars_max: usize) -> Option<Self> {
        let given = &call["rawInput"];
        let preview = |form| move |text| Self { form, text, targets: Vec::new() };
        diff_preview(call, path_chars_max)
            .or_else(|| command_preview(given))
            .or_else(|| content_words(call).map(preview(PreviewFormat::Text)))
            .or_else(|| input_text(given).map(|(form, text)| preview(form)(text)))
            .or_else(|| locations_preview(call, path_chars_max))
    }

    /// Returns the command line, if the preview is one.
    pub(super) fn command(&self) -> Option<&str> {
        (self.form == PreviewFormat::Command).then_some(&self.text)
    }

    /// Language tag of the Markdown code block.
    const fn language(&self) -> &'static str {
        match self.form {
            PreviewFormat::Command => "sh",
            PreviewFormat::Diff => "diff",
            PreviewFormat::Input => "json",
            PreviewFormat::Text => "",
        }
    }

    /// Formats as much as `room` holds, but at least the part that shows targets granted by an answer whole.
    pub(super) fn render_in(&self, room: Option<MessageLimit>, is_markdown: bool) -> String {
        let is_enough = |room: &MessageLimit| room.minus(&" ".repeat(WHOLE_ROOM)).is_some();
        let room = room.filter(is_enough).unwrap_or(MessageLimit::new(Unit::Bytes, WHOLE_ROOM));
        let more = if is_markdown { format!("-# {MORE}") } else { format!("({MORE})") };
        self.render(room, is_markdown).unwrap_or(more)
    }

    /// Formats as much as `room` holds, in a code block, with a note if truncated; `None` without room.
    fn render(&self, room: MessageLimit, is_markdown: bool) -> Option<String> {
        let (before, indent, after) = if is_markdown {
            (format!("```{}\n", self.language()), "", "\n```")
        } else {
            (String::new(), "    ", "")
        };
        let more = if is_markdown { format!("\n-# {MORE}") } else { format!("\n({MORE})") };
        let room = room.minus(&format!("{before}{after}{more}"))?.within(UNITS_MAX);
        let mut lines = self.text.trim_end().lines();
        let mut read = Vec::new();
        let mut is_cut = false;
        for line in lines.by_ref().take(LINES_MAX) {
            let start: String = line.chars().take(LINE_CHARS_MAX).collect();
            is_cut |= start.len() < line.len();
            read.push(format!("{indent}{}", plain(&start, is_markdown)));
        }
        is_cut |= lines.next().is_some();
        let all = read.join("\n");
        let text = head_within(&all, room);
        is_cut |= text.len() < all.len();
        let text = text.trim_end();
        if text.is_empty() {
            return None;
        }
        Some(format!("{before}{text}{after}{}", if is_cut { more.as_str() } else { "" }))
    }
}

/// Subject of a tool call in one line of plain text: command, changed files or input.
pub fn subject(call: &Value) -> Option<String> {
    let changed = call["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    let changed: Vec<String> = changed
        .iter()
        .filter(|block| block["type"] == "diff")
        .filter_map(|block| block["path"].as_str())
        .map(|path| sanitize::path(path, PATH_CHARS_MAX))
        .collect();
    // Files are named without a comparison of their texts.
    let text = if changed.is_empty() {
        let preview = ToolPreview::of(call)?;
        match preview.form {
            PreviewFormat::Input => call["rawInput"].to_string(),
            PreviewFormat::Command | PreviewFormat::Diff | PreviewFormat::Text => {
                preview.text.trim().to_owned()
            }
        }
    } else {
        changed.join(", ")
    };
    Some(escape_text(&text, PATH_CHARS_MAX, false)).filter(|text| !text.is_empty())
}

/// A few lines about a tool call: a code block, or plain text indented by four spaces.
pub fn tool_preview(call: &Value, is_markdown: bool) -> Option<String> {
    ToolPreview::of(call)?.render(MessageLimit::new(Unit::Bytes, 2 * UNITS_MAX), is_markdown)
}

/// Everything that a preview of a tool call shows a part of, each line indented by four spaces.
pub fn whole_tool_call(call: &Value) -> Option<String> {
    let preview = ToolPreview::with_paths(call, usize::MAX)?;
    let lines: Vec<String> =
        preview.text.trim_end().lines().map(|line| format!("    {}", escape_hidden(line))).collect();
    Some(lines.join("\n"))
}

/// Targets that the answer to a question about a tool call may grant in advance: only what the question
/// shows.
pub fn shown_targets(call: &Value) -> Vec<GrantTarget> {
    ToolPreview::of(call).map(|preview| preview.targets).unwrap_or_default()
}

/// Prepares a title, name or kind for use in a line of the gateway: limited to `chars_max` characters,
/// without hidden characters, and with Markdown escaped if `is_markdown`.
pub(super) fn escape_text(text: &str, chars_max: usize, is_markdown: bool) -> String {
    let line = one_line(text.trim(), chars_max);
    let (mut out, mut room) = (String::with_capacity(line.len()), chars_max);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let is_mark = is_markdown
            && matches!(c, '\\' | '`' | '*' | '_' | '~' | '|' | '<' | '>' | '@' | '[' | ']' | ':');
        let width = 1 + usize::from(is_mark);
        // Any character but the last one leaves room for the mark of a cut.
        if width + usize::from(chars.peek().is_some()) > room {
            out.push('…');
            break;
        }
        room -= width;
        out.extend(is_mark.then_some('\\'));
        out.push(c);
    }
    out
}

/// Escapes hidden characters in a line and, inside a Markdown code block, breaks up sequences that would end
/// it.
fn plain(line: &str, is_framed: bool) -> Cow<'_, str> {
    let line = escape_hidden(line);
    if !is_framed || !line.contains("```") {
        return line;
    }
    let mut out = String::with_capacity(line.len() + 16);
    let mut ticks = 0;
    for c in line.chars() {
        ticks = if c == '`' { ticks + 1 } else { 0 };
        if ticks == 3 {
            out.push(ZERO_WIDTH_SPACE);
            ticks = 1;
        }
        out.push(c);
    }
    Cow::Owned(out)
}

fn diff_preview(call: &Value, path_chars_max: usize) -> Option<ToolPreview> {
    let blocks = call["content"].as_array()?.iter().filter(|block| block["type"] == "diff");
    let mut paths: Vec<&str> = Vec::new();
    for path in blocks.clone().filter_map(|block| block["path"].as_str()) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    let changed = proposed_diff(blocks, path_chars_max);
    // Notes of an excerpt stand between the blocks, and in a block without its change.
    let notes = call["content"].as_array().into_iter().flatten();
    let notes = notes.filter_map(|block| block.as_str().or_else(|| block["note"].as_str()));
    let notes: String = notes.map(|note| format!("# {}\n", one_line(note, LINE_CHARS_MAX))).collect();
    // Names several files first, as the diff may be truncated; also a file without a visible change.
    let is_named = paths.len() == 1 && notes.is_empty() && changed.starts_with("---");
    let named = paths
        .iter()
        .filter(|_| !is_named)
        .map(|path| format!("# {}\n", sanitize::path(path, path_chars_max)));
    let text = named.collect::<String>() + &notes + &changed;
    let targets = if is_whole(&paths.join("\n")) { file_targets(&paths) } else { Vec::new() };
    (!paths.is_empty()).then_some(ToolPreview { form: PreviewFormat::Diff, text, targets })
}

/// Files that an answer allows to be written: absolute paths in canonical spelling.
fn file_targets(paths: &[&str]) -> Vec<GrantTarget> {
    let is_canonical = |path: &str| {
        path.strip_prefix('/')
            .is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")))
    };
    let is_shown = |path: &str| one_line(path.trim(), PATH_CHARS_MAX) == path;
    let paths = paths.iter().filter(|path| is_canonical(path) && is_shown(path));
    paths.map(|path| GrantTarget::File((*path).to_owned())).collect()
}

/// True for a text that every question shows whole and unchanged.
fn is_whole(text: &str) -> bool {
    let is_seen = |c: char| c == '\n' || !is_hidden(c);
    text.len() <= WHOLE_BYTES_MAX
        && text.lines().count() <= WHOLE_LINES_MAX
        && text.chars().all(is_seen)
        && !text.contains("```")
}

/// Extracts a command line in shell syntax.
fn command_preview(given: &Value) -> Option<ToolPreview> {
    let found = ["command", "cmd"].into_iter().map(|key| &given[key]).find(|found| !found.is_null())?;
    let (text, line) = match found {
        Value::String(line) => (line.clone(), line.clone()),
        Value::Array(words) => {
            let words: Option<Vec<String>> =
                words.iter().map(|word| word.as_str().map(str::to_owned)).collect();
            let words = words?;
            let (program, args) = words.split_first()?;
            (shell_words(words.iter().map(String::as_str)), command_line(program, args))
        }
        _ => return None,
    };
    let is_granted = is_whole(&text) && !line.trim().is_empty();
    let targets = if is_granted { vec![GrantTarget::Command(line)] } else { Vec::new() };
    (!text.trim().is_empty()).then_some(ToolPreview { form: PreviewFormat::Command, text, targets })
}

fn content_words(call: &Value) -> Option<String> {
    let blocks = call["content"].as_array()?;
    let texts = blocks.iter().filter(|block| block["type"] == "content" || block.is_string());
    let texts: Vec<String> = texts.map(|block| content_text(block.get("content").unwrap_or(block))).collect();
    Some(texts.join("\n")).filter(|text| !text.trim().is_empty())
}

fn input_text(given: &Value) -> Option<(PreviewFormat, String)> {
    match given {
        Value::String(text) if !text.trim().is_empty() => Some((PreviewFormat::Text, text.clone())),
        Value::Object(members) if !members.is_empty() => {
            serde_json::to_string_pretty(given).ok().map(|text| (PreviewFormat::Input, text))
        }
        _ => None,
    }
}

fn locations_preview(call: &Value, path_chars_max: usize) -> Option<ToolPreview> {
    let list = call["locations"].as_array()?.iter();
    let places: Vec<(&str, &Value)> =
        list.filter_map(|place| Some((place["path"].as_str()?, &place["line"]))).collect();
    let shown = places.iter().map(|(path, line)| {
        let line = line.as_u64().map(|line| format!(":{line}")).unwrap_or_default();
        format!("{}{line}", sanitize::path(path, path_chars_max))
    });
    let text = shown.collect::<Vec<_>>().join("\n");
    let paths: Vec<&str> = places.iter().map(|(path, _)| *path).collect();
    let targets = if call["kind"] == "edit" && is_whole(&text) { file_targets(&paths) } else { Vec::new() };
    (!text.is_empty()).then_some(ToolPreview { form: PreviewFormat::Text, text, targets })
}

#[cfg(test)]
#[path = "tool_preview_tests.rs"]
mod tests;
