//! Texts about single events that conversations and the readers on a terminal share: content of a chunk, rows
//! that cannot be read, effects of the host.

use crate::host::command_title;
use crate::sanitize::{self, line as one_line};
use serde_json::Value;
use std::borrow::Cow;

/// Placeholder for a row with an unreadable payload.
pub(super) const UNREADABLE: &str = "(Part of this session cannot be shown here: its record is unreadable.)";
/// Maximum length of the name of a type of content, in characters.
const KIND_CHARS_MAX: usize = 40;

/// Text of a content block, or a placeholder for other content.
pub(super) fn content_text(content: &Value) -> String {
    let kind = content["type"].as_str();
    let place = |holder: &Value| holder["uri"].as_str().map(|uri| format!("[{uri}]"));
    let text = |holder: &Value| holder["text"].as_str().map(str::to_owned);
    let found = match kind {
        _ if content.is_string() => content.as_str().map(str::to_owned),
        None | Some("text") => text(content),
        Some("resource_link") => place(content),
        Some("resource") => text(&content["resource"]).or_else(|| place(&content["resource"])),
        Some(_) => None,
    };
    found.unwrap_or_else(|| format!("[{}]", one_line(kind.unwrap_or("unknown content"), KIND_CHARS_MAX)))
}

/// Text of a message or thought of the agent; `None` if its row has no content.
pub(super) fn chunk_text(update: &Value) -> Option<String> {
    Some(&update["content"]).filter(|content| !content.is_null()).map(content_text)
}

/// Text of a `text_delta` event line, or a placeholder for other content.
pub fn delta_text(event: &Value) -> Cow<'_, str> {
    match event["text"].as_str() {
        Some(text) if !text.is_empty() => text.into(),
        _ => chunk_text(event).unwrap_or_default().into(),
    }
}

/// Placeholder for an event line whose row cannot be read; `None` for any other line.
pub fn unreadable_text(event: &Value) -> Option<String> {
    let is_raw = event.get("payload").or_else(|| event.get("payload_text")).is_some();
    is_raw.then(|| unreadable_row(event["session_seq"].as_u64().unwrap_or_default()))
}

/// Placeholder for an unreadable row with this number.
pub(super) fn unreadable_row(session_seq: u64) -> String {
    format!("{UNREADABLE} (event {session_seq})")
}

/// Describes a request for an effect of the host in one line of at most `chars_max` characters: effect, subject
/// and outcome. A long path keeps its end, which names the file.
pub fn host_effect_text(event: &Value, chars_max: usize) -> String {
    let text = |key: &str| event[key].as_str().unwrap_or_default();
    let (effect, outcome) = (text("effect"), text("outcome"));
    let room = chars_max.saturating_sub(format!("{effect} : {outcome}").chars().count());
    let subject = match event["path"].as_str() {
        Some(path) => sanitize::path(path, room),
        None => {
            let names = event["env"].as_array().map(Vec::as_slice).unwrap_or_default();
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            one_line(&command_title(text("command"), event["cwd"].as_str(), &names), room)
        }
    };
    format!("{effect} {subject}: {outcome}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn content_of_every_type_has_a_text() {
        for (content, want) in [
            (json!({"type": "text", "text": "hi"}), "hi"),
            (json!({"type": "text", "text": ""}), ""),
            (json!({"type": "text", "text": 7}), "[text]"),
            (json!({"text": "untyped"}), "untyped"),
            (json!("bare"), "bare"),
            (json!({"type": "image", "data": "AA=="}), "[image]"),
            (json!({"type": "resource_link", "uri": "file:///a"}), "[file:///a]"),
            (json!({"type": "resource_link"}), "[resource_link]"),
            (json!({"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}), "inside"),
            (json!({"type": "resource", "resource": {"uri": "file:///a", "blob": "AA=="}}), "[file:///a]"),
            (json!({"type": "resource"}), "[resource]"),
            (json!([1]), "[unknown content]"),
        ] {
            assert_eq!(content_text(&content), want, "{content}");
        }
    }

    #[test]
    fn an_effect_is_told_with_its_subject_and_outcome() {
        let long = format!("/w/{}/evil.sh", "d".repeat(500));
        for (event, want) in [
            (
                json!({"effect": "write", "path": "/w/a", "outcome": "allowed"}),
                "write /w/a: allowed".to_owned(),
            ),
            (
                json!({"effect": "run", "command": "make", "outcome": "refused", "env": ["A", "B"], "cwd": "/x"}),
                "run (sets A, B; in /x) make: refused".to_owned(),
            ),
            (
                json!({"effect": "write", "path": long, "outcome": "refused"}),
                format!("write /w/{}…{}/evil.sh: refused", "d".repeat(18), "d".repeat(55)),
            ),
            (
                json!({"effect": "run", "command": "x".repeat(500), "outcome": "refused"}),
                format!("run {}…: refused", "x".repeat(86)),
            ),
        ] {
            let told = host_effect_text(&event, 100);
            assert_eq!(told, want, "{event}");
            assert!(told.chars().count() <= 100);
        }
    }
}
