//! A session's journal as messages for agents: prompts, replies and ends of turns; tool calls on request. Thoughts, plans and
//! replayed history are left out.

use crate::event::{EventKind, EventRow};
use crate::event_json::event_line;
use crate::render::delta_text;
use crate::sanitize::line;
use acp_shared::ids::RunId;
use serde_json::{Value, json};

/// Maximum length of a title or reason, in characters.
const LINE_CHARS_MAX: usize = 300;
/// Length to which a longer answer is cut while it is read, in bytes: more than a result has room for.
const ANSWER_BYTES_KEPT: usize = 256 * 1024;

/// Returns the messages of journal rows, oldest first. Pieces of one reply are one message, with the number of its last row.
#[must_use]
pub fn message_rows(rows: &[EventRow], include_tools: bool) -> Vec<Value> {
    let mut messages: Vec<Value> = Vec::new();
    // Last row of the reply that the last message is.
    let mut reply: Option<&EventRow> = None;
    for row in rows {
        let Ok(event) = serde_json::from_str::<Value>(&event_line(row)) else { continue };
        if row.kind == EventKind::AgentMessage {
            let text = delta_text(&event);
            if text.is_empty() {
                continue;
            }
            match messages.last_mut().filter(|_| reply.is_some_and(|before| before.run_id == row.run_id)) {
                Some(last) => {
                    if let Some(Value::String(before)) = last.get_mut("text") {
                        before.push_str(&text);
                    }
                    if let Some(seq) = last.get_mut("seq") {
                        *seq = row.session_seq.into();
                    }
                }
                None => messages.push(json!({ "seq": row.session_seq, "role": "agent", "text": text })),
            }
            reply = Some(row);
            continue;
        }
        let message = describe(row, &event, include_tools);
        if message.is_some() || row.kind == EventKind::ToolCall {
            reply = None;
        }
        messages.extend(message);
    }
    messages
}

fn describe(row: &EventRow, event: &Value, include_tools: bool) -> Option<Value> {
    let raw = |name: &str| event.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let short = |name: &str| raw(name).map(|text| line(text, LINE_CHARS_MAX));
    let of = |role: &str, text: String| json!({ "seq": row.session_seq, "role": role, "text": text });
    match row.kind {
        EventKind::Prompt => {
            let mut message = of("user", raw("text").unwrap_or_default().to_owned());
            if let (Some(author), Some(members)) = (short("author"), message.as_object_mut()) {
                members.insert("author".to_owned(), author.into());
            }
            Some(message)
        }
        EventKind::ToolCall if include_tools => Some(of("tool", short("title").or_else(|| short("name"))?)),
        EventKind::ToolCallUpdate if include_tools => {
            let status = raw("status").filter(|status| matches!(*status, "completed" | "failed"))?;
            let title = short("title").or_else(|| short("tool_call_id"))?;
            Some(of("tool", format!("{title}: {status}")))
        }
        EventKind::Permission => {
            Some(of("system", format!("permission requested: {}", short("title").unwrap_or_default())))
        }
        EventKind::Done => Some(of("system", format!("turn ended: {}", short("stop_reason")?))),
        EventKind::Error => {
            let (message, code) = (short("message").unwrap_or_default(), short("code").unwrap_or_default());
            Some(of("system", format!("turn failed: {message} ({code})")))
        }
        EventKind::Closed => Some(of("system", format!("closed: {}", short("reason").unwrap_or_default()))),
        EventKind::Gap => Some(of("system", short("text")?)),
        EventKind::ToolCall
        | EventKind::ToolCallUpdate
        | EventKind::PermissionSettled
        | EventKind::Status
        | EventKind::AgentMessage
        | EventKind::AgentThought
        | EventKind::Plan
        | EventKind::Update
        | EventKind::Extension
        | EventKind::Replay
        | EventKind::HostRequest => None,
    }
}

/// Reply of one turn, collected from the rows of its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerText {
    run: RunId,
    text: String,
    /// True after a row between two pieces of text.
    is_interrupted: bool,
    ended: bool,
}

impl AnswerText {
    /// Creates the empty reply of a turn.
    #[must_use]
    pub const fn new(run: RunId) -> Self {
        Self { run, text: String::new(), is_interrupted: false, ended: false }
    }

    /// Adds a row of the session.
    pub fn add(&mut self, row: &EventRow) {
        if row.run_id != Some(self.run) || row.kind == EventKind::Replay {
            return;
        }
        match row.kind {
            EventKind::AgentMessage => {
                let event: Value = serde_json::from_str(&event_line(row)).unwrap_or_default();
                let piece = delta_text(&event);
                if !piece.is_empty() && std::mem::take(&mut self.is_interrupted) && !self.text.is_empty() {
                    self.text.push_str("\n\n");
                }
                self.text.push_str(&piece);
                if self.text.len() > 2 * ANSWER_BYTES_KEPT {
                    let at = self.text.ceil_char_boundary(self.text.len() - ANSWER_BYTES_KEPT);
                    drop(self.text.drain(..at));
                }
            }
            EventKind::Done | EventKind::Error => self.ended = true,
            EventKind::AgentThought | EventKind::Update | EventKind::Plan => {}
            _ => self.is_interrupted = true,
        }
    }

    /// True once the turn has ended.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the text.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }
}
