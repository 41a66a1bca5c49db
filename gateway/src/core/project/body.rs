//! What a run shows of itself: its text with the lines about updates where they happened, up to a bound.

use crate::config::Separator;
use crate::core::event::EventKind;
use crate::core::project::lines::{Lines, content_text};
use crate::core::project::style::{MESSAGE, Style};
use crate::core::project::{DIGESTED, UNREADABLE, parse};
use crate::core::sanitize::{self, line as one_line};
use crate::core::split::{head, resumed_from};
use serde_json::Value;

const THOUGHT: &str = "agent_thought_chunk";

/// What stands at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Nothing,
    Text,
    Line,
}

/// What a run shows, as its rows come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Body {
    style: Style,
    out: String,
    chars: usize,
    is_cut: bool,
    is_text_hidden: bool,
    last: Last,
    /// A tool call that is not shown stands between the last text and what comes.
    is_boundary: bool,
    /// What the agent is thinking: one line when it has thought.
    thought: String,
    lines: Lines,
}

impl Body {
    /// Of a run, told in this style.
    pub(crate) fn new(style: Style) -> Self {
        Self {
            style,
            out: String::new(),
            chars: 0,
            is_cut: false,
            is_text_hidden: false,
            last: Last::Nothing,
            is_boundary: false,
            thought: String::new(),
            lines: Lines::default(),
        }
    }

    /// Takes the next row of the run, in order. The lines that it gave, if it gave any.
    pub(crate) fn add(&mut self, kind: EventKind, payload: &str) -> Option<String> {
        if DIGESTED.contains(&kind) { self.take(kind, &parse(payload)) } else { None }
    }

    /// The same of a row whose payload was read.
    pub(super) fn take(&mut self, kind: EventKind, update: &Value) -> Option<String> {
        if !DIGESTED.contains(&kind) {
            return None;
        }
        if kind == EventKind::AgentThought && !update.is_null() {
            self.add_thought(&content_text(&update["content"]));
            return None;
        }
        let thought = self.end_thought();
        let line = match kind {
            _ if update.is_null() => Some(UNREADABLE.to_owned()),
            EventKind::AgentMessage => {
                self.add_text(&sanitize::text(&content_text(&update["content"])));
                None
            }
            EventKind::ToolCall => self.add_tool("tool_call", update),
            EventKind::ToolCallUpdate => self.add_tool("tool_call_update", update),
            EventKind::Plan => self.lines.other(&self.style, "plan", update),
            EventKind::HostRequest => Lines::host_request(&self.style, update),
            _ => {
                let tag = update["sessionUpdate"].as_str().unwrap_or("update");
                self.lines.other(&self.style, tag, update)
            }
        };
        if let Some(line) = &line {
            self.add_line(line);
        }
        thought.into_iter().chain(line).reduce(|thought, line| format!("{thought}\n{line}"))
    }

    /// Text of the agent that is shown, with the lines, and nothing of what is not complete.
    pub(crate) fn text(&self) -> &str {
        &self.out
    }

    /// Whether text of the agent stands at the end, so that it may go on in the middle of a phrase.
    pub(crate) fn ends_in_text(&self) -> bool {
        self.last == Last::Text
    }

    /// Whether there was more than is shown.
    pub(crate) const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Whether the agent said something that is not shown because text is not.
    pub(crate) const fn is_text_hidden(&self) -> bool {
        self.is_text_hidden
    }

    /// How many tool calls there were.
    pub(crate) fn tools(&self) -> usize {
        self.lines.tools()
    }

    /// The tool calls in a few words; nothing without them.
    pub(crate) fn summary(&self) -> Option<String> {
        self.lines.summary()
    }

    /// The thought that was not followed by anything yet becomes a line.
    pub(crate) fn end_thought(&mut self) -> Option<String> {
        let thought = std::mem::take(&mut self.thought);
        let thought = thought.trim();
        if thought.is_empty() {
            return None;
        }
        let line = format!("> {}", one_line(thought, self.style.line_chars_max));
        self.add_line(&line);
        Some(line)
    }

    /// Forgets the start of what is shown, down to about `bytes` of its end.
    pub(crate) fn keep_end(&mut self, bytes: usize) {
        self.out = resumed_from(&self.out, self.out.len().saturating_sub(bytes), self.style.limit);
    }

    fn add_thought(&mut self, text: &str) {
        if self.style.shows(THOUGHT) {
            // More than a line holds is not kept.
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
            Last::Nothing => "",
            Last::Text if !is_boundary => "",
            Last::Text => self.gap(self.style.separator, text),
            Last::Line => self.gap(Separator::Paragraph, text),
        };
        self.push(gap);
        self.push(text);
        self.last = Last::Text;
    }

    fn add_line(&mut self, line: &str) {
        let gap = match self.last {
            Last::Nothing => "",
            Last::Text => self.gap(Separator::Paragraph, line),
            Last::Line => self.gap(Separator::Newline, line),
        };
        self.push(gap);
        self.push(line);
        self.last = Last::Line;
        self.is_boundary = false;
    }

    /// What must be added so that what comes is apart from what is there.
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
        let shown = head(text, self.style.output_chars_max.saturating_sub(self.chars));
        self.out.push_str(shown);
        self.chars += shown.chars().count();
        self.is_cut = shown.len() < text.len();
    }
}
