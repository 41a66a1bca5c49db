//! Lines about effects for an agent: file and terminal requests to the host, and permission requests
//! settled by
//! policy. Unlike tool calls these are facts of the gateway: nobody else tells that they happened.

use crate::elicitation::form_of_event;
use crate::render::event_text::host_effect_text;
use crate::render::permission_prompt::{asked_title, resolved_by};
use crate::render::style::Style;
use crate::render::tool_preview::{escape_text, subject};
use crate::rows::{AutoResolution, ResolvedBy};
use crate::sanitize::line as one_line;
use serde_json::Value;

/// Line about an effect.
pub(super) struct EffectLine {
    text: String,
    shown: Visibility,
}

/// Conversations that show a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Visibility {
    /// All, at every verbosity.
    Always,
    /// Those that show this kind of update.
    Tag(&'static str),
}

impl EffectLine {
    /// Returns the line about a request to the host. Reads that were allowed, and writes without a change,
    /// have
    /// none.
    pub(super) fn of_host(style: &Style, event: &Value) -> Option<Self> {
        const MARK: &str = "[host] ";
        let text = |key: &str| event[key].as_str().unwrap_or_default();
        let shown = match (text("outcome"), text("effect"), text("reason")) {
            ("refused", ..) => Visibility::Always,
            ("allowed", "read", _) | ("allowed", _, "unchanged") => return None,
            // The conversation has the question and its answer.
            ("allowed", _, "answer") => Visibility::Tag("tool_call"),
            _ => Visibility::Tag("host_request"),
        };
        let told = host_effect_text(event, style.line_chars_max.saturating_sub(MARK.len()));
        Some(Self { text: format!("{MARK}{}", escape_text(&told, usize::MAX, style.shows.markdown)), shown })
    }

    /// True for a line that every conversation shows.
    pub(super) fn is_always_shown(&self) -> bool {
        self.shown == Visibility::Always
    }

    /// Returns the text for a conversation that shows the line. `in_turn`: the line is part of an answer.
    pub(super) fn shown_in(self, style: &Style, in_turn: bool) -> Option<String> {
        let is_shown = match self.shown {
            Visibility::Always => true,
            Visibility::Tag(tag) if in_turn => style.shows(tag),
            Visibility::Tag(tag) => style.shows_notice(tag),
        };
        is_shown.then_some(self.text)
    }
}

/// Title, kind and allowing options of a pending permission request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AskedPermission {
    title: String,
    is_read: bool,
    /// Ids of the options that allow the request.
    allowing: Vec<String>,
}

impl AskedPermission {
    /// Reads the payload of a permission request.
    pub(super) fn of(payload: &Value) -> Self {
        if let Some(form) = form_of_event(payload) {
            let (title, allowing) = (one_line(&form.title(), super::TITLE_CHARS_MAX), Vec::new());
            return Self { title, is_read: false, allowing };
        }
        let call = &payload["params"]["toolCall"];
        let title = asked_title(call);
        let about = subject(call).filter(|about| about != title).map(|about| format!(" ({about})"));
        let options = payload["params"]["options"].as_array().map(Vec::as_slice).unwrap_or_default();
        let allows = |option: &&Value| option["kind"].as_str().is_some_and(|kind| kind.starts_with("allow"));
        let allowing = options.iter().filter(allows);
        Self {
            title: one_line(title.trim(), super::TITLE_CHARS_MAX) + &about.unwrap_or_default(),
            is_read: matches!(call["kind"].as_str(), Some("read" | "search")),
            allowing: allowing.filter_map(|option| option["optionId"].as_str().map(str::to_owned)).collect(),
        }
    }

    /// Returns the line about the resolution; `None` if a person or a rule about questions settled the
    /// request,
    /// which has a notice of its own.
    pub(super) fn settled(&self, style: &Style, settled: &Value) -> Option<EffectLine> {
        let is_form = !settled["action"].is_null();
        let mark = if is_form { "[question] " } else { "[permission] " };
        if resolved_by(settled) != ResolvedBy::Auto(AutoResolution::Policy) {
            return None;
        }
        let is_allowed =
            settled["option_id"].as_str().is_some_and(|id| self.allowing.iter().any(|it| it == id));
        let (outcome, shown) = match (is_allowed, self.is_read) {
            _ if is_form => (": declined, nobody can be asked", Visibility::Always),
            (true, true) => (": allowed by policy", Visibility::Tag("tool_call")),
            (true, false) => (": allowed by policy", Visibility::Tag("permission")),
            (false, _) => (": refused by policy", Visibility::Always),
        };
        let room = style.line_chars_max.saturating_sub(mark.len() + outcome.len());
        let title = escape_text(&one_line(&self.title, room), usize::MAX, style.shows.markdown);
        Some(EffectLine { text: format!("{mark}{title}{outcome}"), shown })
    }
}
