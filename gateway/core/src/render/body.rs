//! Visible output of a run: its text, interleaved with lines about updates, up to a maximum length.

use crate::config::Separator;
use crate::event::EventKind;
use crate::message_split::{head, resume_from_line};
use crate::render::effects::{AskedPermission, EffectLine};
use crate::render::event_text::{UNREADABLE, chunk_text};
use crate::render::lines::UpdateLines;
use crate::render::style::{MESSAGE, Style};
use crate::render::{OUTPUT_KINDS, parse};
use crate::sanitize::{self, line as one_line};
use serde_json::Value;
use std::collections::BTreeMap;

/// Maximum number of refusals shown beyond the maximum length.
const REFUSALS_MAX: usize = 20;
const THOUGHT: &str = "agent_thought_chunk";

/// Kind of the last visible item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastItem {
    Nothing,
    Text,
    Line,
}

/// Visible output of a run, built row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOutput {
    style: Style,
    out: String,
    chars: usize,
    is_cut: bool,
    /// First refusals beyond the maximum length, and the number of further ones.
    refusals: (Vec<String>, usize),
    is_text_hidden: bool,
    last: LastItem,
    /// True if a hidden tool call separates the last text from the next one.
    is_boundary: bool,
    /// Text of the current thought, shown as one line when it ends.
    thought: String,
    lines: UpdateLines,
    /// Permission requests that are not settled yet, by id.
    asked: BTreeMap<String, AskedPermission>,
}

impl RunOutput {
    /// Creates the empty output of a run in this style.
    pub fn new(style: Style) -> Self {
        Self {
            style,
            out: String::new(),
            chars: 0,
            is_cut: false,
            refusals: (Vec::new(), 0),
            is_text_hidden: false,
            last: LastItem::Nothing,
            is_boundary: false,
            thought: String::new(),
            lines: UpdateLines::default(),
            asked: BTreeMap::new(),
        }
    }

    /// Adds the next row of the run, in order. Returns the lines that it produced, if any.
    pub fn add(&mut self, kind: EventKind, payload: &str) -> Option<String> {
        if OUTPUT_KINDS.contains(&kind) { self.add_parsed(kind, &parse(payload)) } else { None }
    }

    /// Same as `add`, for a parsed payload.
    pub(super) fn add_parsed(&mut self, kind: EventKind, update: &Value) -> Option<String> {
        if !OUTPUT_KINDS.contains(&kind) {
            return None;
        }
        if let (EventKind::AgentThought, Some(text)) = (kind, chunk_text(update)) {
            self.add_thought(&text);
            return None;
        }
        let effect = self.effect_of(kind, update);
        let is_refusal = effect.as_ref().is_some_and(EffectLine::is_always_shown);
        let effect = effect.and_then(|effect| effect.shown_in(&self.style, true));
        let line = effect.or_else(|| self.line_of(kind, update));
        let is_asked = matches!(kind, EventKind::Permission | EventKind::PermissionSettled);
        // A permission request is not agent output. It ends the current thought only if a line is shown for
        // it.
        let thought = if is_asked && line.is_none() { None } else { self.end_thought() };
        if let (EventKind::AgentMessage, None) = (kind, &line) {
            self.add_text(&sanitize::text(&chunk_text(update).unwrap_or_default()));
        }
        if let Some(line) = &line {
            if is_refusal && (self.is_cut || line.chars().count() + 2 > self.room()) {
                self.add_refusal(line);
            } else {
                self.add_line(line);
            }
        }
        thought.into_iter().chain(line).reduce(|thought, line| format!("{thought}\n{line}"))
    }

    /// Returns the effect that a row reports, if any.
    fn effect_of(&mut self, kind: EventKind, update: &Value) -> Option<EffectLine> {
        let permission_id = update["permission_id"].as_str().unwrap_or_default();
        match kind {
            EventKind::Permission => {
                self.asked.insert(permission_id.to_owned(), AskedPermission::of(update));
                None
            }
            EventKind::PermissionSettled => self.asked.remove(permission_id)?.settled(&self.style, update),
            EventKind::HostRequest => EffectLine::of_host(&self.style, update),
            _ => None,
        }
    }

    /// Returns the line about any other row, if one is due.
    fn line_of(&mut self, kind: EventKind, update: &Value) -> Option<String> {
        match kind {
            EventKind::Permission | EventKind::PermissionSettled | EventKind::HostRequest => None,
            _ if update.is_null() => Some(UNREADABLE.to_owned()),
            EventKind::AgentMessage | EventKind::AgentThought => {
                chunk_text(update).is_none().then(|| UNREADABLE.to_owned())
            }
            EventKind::ToolCall => self.add_tool("tool_call", update),
            EventKind::ToolCallUpdate => self.add_tool("tool_call_update", update),
            EventKind::Plan => self.lines.other(&self.style, "plan", update),
            _ => {
                let tag = update["sessionUpdate"].as_str().unwrap_or("update");
                self.lines.other(&self.style, tag, update)
            }
        }
    }

    /// Visible text and lines, without an unfinished thought.
    pub fn text(&self) -> &str {
        &self.out
    }

    /// True if the agent's text is last, so that the next chunk may continue in the middle of a phrase.
    pub fn ends_in_text(&self) -> bool {
        self.last == LastItem::Text
    }

    /// True if output beyond the maximum length was dropped.
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Refusals beyond the maximum length, and the number of those that are not listed; `None` if there are none.
    pub(super) fn refusals(&self) -> Option<String> {
        let (listed, rest) = &self.refusals;
        let more = (*rest > 0)
            .then(|| format!("({rest} more refusals; `acp-gateway sessions history` shows them.)"));
        let lines = listed.iter().cloned().chain(more);
        lines.reduce(|lines, line| format!("{lines}\n{line}"))
    }

    /// True if the agent sent text that is hidden by the settings.
    pub const fn is_text_hidden(&self) -> bool {
        self.is_text_hidden
    }

    /// Number of tool calls.
    pub fn tools(&self) -> usize {
        self.lines.tools()
    }

    /// Short summary of the tool calls; `None` if there are none.
    pub fn summary(&self) -> Option<String> {
        self.lines.summary()
    }

    /// Turns an unfinished thought into a line.
    pub fn end_thought(&mut self) -> Option<String> {
        let thought = std::mem::take(&mut self.thought);
        let thought = thought.trim();
        if thought.is_empty() {
            return None;
        }
        let line = format!("> {}", one_line(thought, self.style.line_chars_max));
        self.add_line(&line);
        Some(line)
    }

    /// Drops the beginning of the output, down to about `bytes` from its end.
    pub fn trim_start_to(&mut self, bytes: usize) {
        self.out = resume_from_line(&self.out, self.out.len().saturating_sub(bytes), self.style.limit);
    }

    fn add_thought(&mut self, text: &str) {
        if self.style.shows(THOUGHT) {
            // Store no more than fits into a line.
            let room = (self.style.line_chars_max + 1).saturating_sub(self.thought.chars().count());
            self.thought.push_str(head(text, room));
        }
    }

    fn add_tool(&mut self, tag: &str, update: &Value) -> Option<String> {
        let line = self.lines.tool(&self.style, tag, update);
        self.is_boundary |= line.is_none() && update["toolCallId"].is_string();
        line
    }

    fn add_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if !self.style.shows(MESSAGE) {
            self.is_text_hidden = true;
            return;
        }
        let is_boundary = std::mem::take(&mut self.is_boundary);
        let gap = match self.last {
            LastItem::Nothing => "",
            LastItem::Text if !is_boundary => "",
            LastItem::Text => self.gap(self.style.separator, text),
            LastItem::Line => self.gap(Separator::Paragraph, text),
        };
        self.push(gap);
        self.push(text);
        self.last = LastItem::Text;
    }

    fn add_line(&mut self, line: &str) {
        let gap = match self.last {
            LastItem::Nothing => "",
            LastItem::Text => self.gap(Separator::Paragraph, line),
            LastItem::Line => self.gap(Separator::Newline, line),
        };
        self.push(gap);
        self.push(line);
        self.last = LastItem::Line;
        self.is_boundary = false;
    }

    /// Adds a refusal beyond the maximum length.
    fn add_refusal(&mut self, line: &str) {
        self.is_cut = true;
        let (listed, rest) = &mut self.refusals;
        if listed.len() < REFUSALS_MAX {
            listed.push(line.to_owned());
        } else {
            *rest += 1;
        }
    }

    /// Number of characters up to the maximum length.
    const fn room(&self) -> usize {
        self.style.output_chars_max.saturating_sub(self.chars)
    }

    /// Returns the text to insert so that `separator` divides the existing output from `next`.
    fn gap(&self, separator: Separator, next: &str) -> &'static str {
        let ends = |with: &str| self.out.is_empty() || self.out.ends_with(with);
        match separator {
            Separator::None => "",
            Separator::Space if self.out.ends_with(char::is_whitespace) => "",
            Separator::Space if next.starts_with(char::is_whitespace) => "",
            Separator::Space => " ",
            Separator::Newline if ends("\n") => "",
            Separator::Newline => "\n",
            Separator::Paragraph if ends("\n\n") => "",
            Separator::Paragraph if ends("\n") => "\n",
            Separator::Paragraph => "\n\n",
        }
    }

    fn push(&mut self, text: &str) {
        if self.is_cut {
            return;
        }
        let shown = head(text, self.room());
        self.out.push_str(shown);
        self.chars += shown.chars().count();
        self.is_cut = shown.len() < text.len();
    }
}
