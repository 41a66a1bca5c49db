//! What a tool call would do, in a few lines for whoever has to allow it: what it would change, the command that it would
//! run, or what it was given. Source: ACP, "Tool calls" and `session/request_permission`.
//!
//! An agent writes these texts, and a person decides by them. So nothing in them ends the frame that they stand in, calls
//! anybody, or hides: characters that have no look of their own, or that turn the direction of what follows, are shown as
//! what they are.

use crate::core::host::shell_words;
use crate::core::project::changes::Changes;
use crate::core::project::lines::content_text;
use crate::core::sanitize::{is_hidden, line as one_line};
use crate::core::split::{Limit, Unit, head_within};
use serde_json::{Value, json};

/// The most lines of an excerpt.
const LINES_MAX: usize = 24;
/// The most of an excerpt, in the channel's own unit.
const UNITS_MAX: usize = 1_000;
/// The most of a line that is read, in characters.
const LINE_CHARS_MAX: usize = 2 * UNITS_MAX;
/// The most places that are named.
const PLACES_MAX: usize = 5;
/// The longest path, in characters.
const PATH_CHARS_MAX: usize = 200;
/// What is said below an excerpt that is not all of it.
const MORE: &str = "It goes on: `acp-gateway sessions history` shows all of it.";
/// Stands between the marks of code, so that they are none; it has no width.
const APART: char = '\u{200b}';

/// What a tool call would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Deed {
    /// A command line.
    Command(String),
    /// Changes of files, as a unified diff.
    Diff(String),
    /// What it was given, as JSON.
    Given(String),
    /// Anything else, in the agent's words.
    Words(String),
}

impl Deed {
    /// Of the tool call of a permission request; `None` when the request says nothing of it.
    pub(super) fn of(call: &Value) -> Option<Self> {
        let given = &call["rawInput"];
        diff(call)
            .map(Self::Diff)
            .or_else(|| command(given).map(Self::Command))
            .or_else(|| words(call).map(Self::Words))
            .or_else(|| input(given))
            .or_else(|| places(call).map(Self::Words))
    }

    /// The command line, if it is one.
    pub(super) fn command(&self) -> Option<&str> {
        if let Self::Command(text) = self { Some(text) } else { None }
    }

    fn text(&self) -> &str {
        match self {
            Self::Command(text) | Self::Diff(text) | Self::Given(text) | Self::Words(text) => text,
        }
    }

    /// How a reader of Markdown colours it.
    const fn language(&self) -> &'static str {
        match self {
            Self::Command(_) => "sh",
            Self::Diff(_) => "diff",
            Self::Given(_) => "json",
            Self::Words(_) => "",
        }
    }

    /// As much of it as `room` holds, framed; nothing where it has no room. With it a line where there is more.
    pub(super) fn shown(&self, room: Limit, is_markdown: bool) -> Option<String> {
        let (before, indent, after) = if is_markdown {
            (format!("```{}\n", self.language()), "", "\n```")
        } else {
            (String::new(), "    ", "")
        };
        let more = if is_markdown { format!("\n-# {MORE}") } else { format!("\n({MORE})") };
        let room = room.less(&format!("{before}{after}{more}"))?.within(UNITS_MAX);
        let mut lines = self.text().trim_end().lines();
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
pub(crate) fn subject(call: &Value) -> Option<String> {
    let changed = call["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    let changed: Vec<&str> = changed
        .iter()
        .filter(|block| block["type"] == "diff")
        .take(PLACES_MAX)
        .filter_map(|block| block["path"].as_str())
        .collect();
    let text = match Deed::of(call)? {
        Deed::Diff(_) if !changed.is_empty() => changed.join(", "),
        Deed::Given(_) => call["rawInput"].to_string(),
        deed => deed.text().trim().to_owned(),
    };
    Some(words_of(&text, PATH_CHARS_MAX, false)).filter(|text| !text.is_empty())
}

/// A few lines of plain text about a tool call, each indented by four spaces.
pub(crate) fn excerpt(call: &Value) -> Option<String> {
    Deed::of(call)?.shown(Limit::new(Unit::Bytes, 2 * UNITS_MAX), false)
}

/// The title of something, a name or a kind, in a line of our words: so many characters at most, hiding nothing, and where
/// Markdown is read without any of its marks.
pub(super) fn words_of(text: &str, chars_max: usize, is_markdown: bool) -> String {
    let line = one_line(text.trim(), chars_max);
    let (mut out, mut room) = (String::with_capacity(line.len()), chars_max);
    for c in line.chars() {
        let is_mark = is_markdown
            && matches!(c, '\\' | '`' | '*' | '_' | '~' | '|' | '<' | '>' | '@' | '[' | ']' | ':');
        let Some(left) = room.checked_sub(1 + usize::from(is_mark)).filter(|left| *left > 0) else {
            out.push('…');
            break;
        };
        room = left;
        out.extend(is_mark.then_some('\\'));
        out.push(c);
    }
    out
}

/// A line without anything that hides, and in a frame of Markdown without anything that ends it.
fn plain(line: &str, is_framed: bool) -> String {
    let mut out = String::with_capacity(line.len());
    let mut ticks = 0;
    for c in line.chars() {
        ticks = if c == '`' { ticks + 1 } else { 0 };
        if is_framed && ticks == 3 {
            out.push(APART);
            ticks = 1;
        }
        if is_hidden(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

fn diff(call: &Value) -> Option<String> {
    // What is asked for is shown as what it would be once it is done.
    let done = json!({"toolCallId": "asked", "status": "completed", "content": call["content"]});
    let mut changes = Changes::default();
    changes.add(&done);
    changes.unified(usize::MAX)
}

/// A command line as a shell would read it.
fn command(given: &Value) -> Option<String> {
    let found = ["command", "cmd"].into_iter().map(|key| &given[key]).find(|found| !found.is_null())?;
    let text = match found {
        Value::String(line) => line.clone(),
        Value::Array(words) => {
            let words: Option<Vec<&str>> = words.iter().map(Value::as_str).collect();
            shell_words(words?.into_iter())
        }
        _ => return None,
    };
    (!text.trim().is_empty()).then_some(text)
}

fn words(call: &Value) -> Option<String> {
    let blocks = call["content"].as_array()?;
    let texts = blocks.iter().filter(|block| block["type"] == "content");
    let texts: Vec<String> = texts.map(|block| content_text(&block["content"])).collect();
    Some(texts.join("\n")).filter(|text| !text.trim().is_empty())
}

fn input(given: &Value) -> Option<Deed> {
    match given {
        Value::String(text) if !text.trim().is_empty() => Some(Deed::Words(text.clone())),
        Value::Object(members) if !members.is_empty() => {
            serde_json::to_string_pretty(given).ok().map(Deed::Given)
        }
        _ => None,
    }
}

fn places(call: &Value) -> Option<String> {
    let places = call["locations"].as_array()?.iter().filter_map(|place| {
        let path = one_line(place["path"].as_str()?, PATH_CHARS_MAX);
        let line = place["line"].as_u64().map(|line| format!(":{line}")).unwrap_or_default();
        Some(format!("{path}{line}"))
    });
    let places: Vec<String> = places.take(PLACES_MAX).collect();
    (!places.is_empty()).then(|| places.join("\n"))
}

#[cfg(test)]
#[path = "excerpt_tests.rs"]
mod tests;
