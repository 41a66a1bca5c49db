//! A session's journal as Markdown, for people who read or keep it. Prompts and replies are complete; tool calls, permission
//! requests and ends of runs have a line each; thoughts, plans and replayed history are left out.

use crate::event::{EventKind, EventRow};
use crate::event_json::event_line;
use crate::render::delta_text;
use crate::sanitize::line;
use serde_json::Value;
use std::fmt::Write as _;

/// Maximum length of a title, name or reason in one line, in characters.
const LINE_CHARS_MAX: usize = 300;

/// Writer of a transcript, row by row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transcript {
    /// True after a piece of a reply, which the next piece continues.
    in_reply: bool,
}

impl Transcript {
    /// Appends the text of a row.
    pub fn write(&mut self, row: &EventRow, out: &mut String) {
        if row.kind == EventKind::Replay {
            return;
        }
        let Ok(event) = serde_json::from_str::<Value>(&event_line(row)) else { return };
        if row.kind == EventKind::AgentMessage {
            out.push_str(&delta_text(&event));
            self.in_reply = true;
            return;
        }
        let Some(text) = describe(row.kind, &event) else { return };
        if std::mem::take(&mut self.in_reply) {
            out.push_str("\n\n");
        }
        // Writing into a String cannot fail.
        let _ = write!(out, "{text}\n\n");
    }
}

/// Returns the paragraph of a row that is not a reply; `None` if it has none.
fn describe(kind: EventKind, event: &Value) -> Option<String> {
    let raw = |name: &str| event.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let text = |name: &str| raw(name).map(|text| line(text, LINE_CHARS_MAX));
    match kind {
        EventKind::Prompt => {
            let author = text("author").unwrap_or_else(|| "unknown".to_owned());
            Some(format!("## {author}\n\n{}\n\n## Agent", raw("text").unwrap_or_default()))
        }
        EventKind::ToolCall => Some(format!("- tool call: {}", text("title").or_else(|| text("name"))?)),
        EventKind::ToolCallUpdate => {
            let status = raw("status").filter(|status| matches!(*status, "completed" | "failed"))?;
            Some(format!("- tool call {}: {status}", text("title").or_else(|| text("tool_call_id"))?))
        }
        EventKind::Permission => {
            Some(format!("- permission requested: {}", text("title").unwrap_or_default()))
        }
        EventKind::PermissionSettled => {
            let by = text("by").or_else(|| text("without")).map(|by| format!(" by {by}")).unwrap_or_default();
            Some(format!("- permission: {}{by}", text("option_name").or_else(|| text("outcome"))?))
        }
        EventKind::Status | EventKind::Gap => Some(format!("*{}*", text("text")?)),
        EventKind::Done => Some(format!("*Ended: {}*", text("stop_reason")?)),
        EventKind::Error => {
            let message = text("message").unwrap_or_default();
            Some(format!("**Error: {message} ({})**", text("code").unwrap_or_default()))
        }
        EventKind::Closed => Some(format!(
            "*Closed{}*",
            text("reason").map(|reason| format!(": {reason}")).unwrap_or_default()
        )),
        EventKind::AgentMessage
        | EventKind::AgentThought
        | EventKind::Plan
        | EventKind::Update
        | EventKind::Extension
        | EventKind::Replay
        | EventKind::HostRequest => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::event;
    use serde_json::json;

    #[test]
    fn transcript_has_prompts_replies_and_a_line_for_each_other_event() {
        let message = |text: &str| json!({"content": {"type": "text", "text": text}});
        let rows = [
            (EventKind::Prompt, json!({"text": "hi\nthere", "mode": "prompt", "author": "ann"})),
            (EventKind::AgentThought, message("hm")),
            (EventKind::AgentMessage, message("Hel")),
            (EventKind::AgentMessage, message("lo.")),
            (EventKind::ToolCall, json!({"toolCallId": "t", "title": "Read\na"})),
            (EventKind::ToolCallUpdate, json!({"toolCallId": "t", "status": "in_progress"})),
            (EventKind::ToolCallUpdate, json!({"toolCallId": "t", "status": "completed"})),
            (EventKind::Replay, message("old")),
            (EventKind::PermissionSettled, json!({"permission_id": "p", "outcome": "selected", "by": "bo"})),
            (EventKind::Done, json!({"stop_reason": "end_turn"})),
            (EventKind::Error, json!({"code": "ACP_RUNTIME", "message": "broken", "retryable": false})),
            (EventKind::Closed, json!({"reason": "by hand"})),
        ];
        let (mut transcript, mut text) = (Transcript::default(), String::new());
        rows.iter().for_each(|(kind, payload)| transcript.write(&event(*kind, payload), &mut text));
        assert_eq!(
            text,
            "## ann\n\nhi\nthere\n\n## Agent\n\nHello.\n\n- tool call: Read a\n\n- tool call t: completed\n\n\
             - permission: selected by bo\n\n*Ended: end_turn*\n\n**Error: broken (ACP_RUNTIME)**\n\n\
             *Closed: by hand*\n\n"
        );
    }
}
