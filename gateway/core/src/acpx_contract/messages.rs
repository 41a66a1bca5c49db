//! Rows of the journal as JSON-RPC messages. What the agent sent is copied, never parsed into a model.

use crate::event::EventKind;
use crate::jsonrpc::{ObjectMembers, quoted};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt::Write as _;

/// Row of the journal, as in `GET /v1/sessions/{key}/events?raw=true`.
#[derive(Debug, Deserialize)]
pub struct JournalLine<'a> {
    /// Number of the row in its session.
    pub session_seq: u64,
    /// Run of the row.
    #[serde(borrow)]
    pub run_id: Option<Cow<'a, str>>,
    /// Kind of the row.
    #[serde(borrow)]
    kind: Cow<'a, str>,
    /// Time of the commit, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// See [`crate::event::EventRow::extra`].
    #[serde(borrow)]
    extra: Option<&'a RawValue>,
    /// Payload; absent if it is not JSON.
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

impl<'a> JournalLine<'a> {
    /// Parses a line.
    ///
    /// # Errors
    /// The line is not a row of the journal.
    pub fn parse(line: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(line)
    }

    /// Returns the kind; `None` for one that this program does not know.
    pub fn kind(&self) -> Option<EventKind> {
        EventKind::parse(&self.kind)
    }

    /// Returns the text of a prompt.
    pub fn prompt_text(&self) -> Option<String> {
        self.text("text").map(Cow::into_owned)
    }

    /// Returns the payload, JSON text.
    pub(super) fn payload(&self) -> &'a str {
        self.payload.map_or("null", RawValue::get)
    }

    /// Returns a member of the payload, JSON text.
    pub(super) fn member(&self, name: &str) -> Option<&'a str> {
        ObjectMembers::parse(self.payload()).ok()?.get(name)
    }

    /// Returns a text of the payload.
    pub(super) fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        ObjectMembers::parse(self.payload()).ok()?.string(name)
    }
}

/// Message of a row: the members after `"jsonrpc":"2.0",`, and the further members of the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RowMessage {
    /// Type of the line.
    pub(super) kind: &'static str,
    /// Members of the JSON-RPC message.
    pub(super) rpc: String,
    /// Further members, with a comma before each.
    pub(super) beside: String,
}

/// Ids in the messages of a turn.
#[derive(Debug, Clone)]
pub(super) struct TurnIds {
    /// Session key.
    pub(super) session: String,
    /// The agent's id of the session, which the messages name.
    pub(super) agent_session: String,
}

impl TurnIds {
    /// Returns the message of a row; `None` for rows that are not told.
    pub(super) fn message(&self, row: &JournalLine<'_>) -> Option<RowMessage> {
        let kind = row.kind()?;
        match kind {
            EventKind::Prompt => Some(self.prompt(row)),
            EventKind::AgentMessage
            | EventKind::AgentThought
            | EventKind::ToolCall
            | EventKind::ToolCallUpdate
            | EventKind::Plan
            | EventKind::Update => Some(self.update(kind, row)),
            EventKind::Permission => {
                let (id, params) = (row.member("permission_id")?, row.member("params").unwrap_or("{}"));
                let rpc = format!(r#""id":{id},"method":"session/request_permission","params":{params}"#);
                let beside = format!(r#","permissionId":{id}"#);
                Some(RowMessage { kind: "permission", rpc, beside })
            }
            EventKind::PermissionSettled => {
                let id = row.member("permission_id")?;
                let outcome = match row.member("option_id").filter(|option| option.starts_with('"')) {
                    Some(option) => format!(r#"{{"outcome":"selected","optionId":{option}}}"#),
                    None => r#"{"outcome":"cancelled"}"#.to_owned(),
                };
                let rpc = format!(r#""id":{id},"result":{{"outcome":{outcome}}}"#);
                let beside = format!(r#","permissionId":{id}"#);
                Some(RowMessage { kind: "permission_settled", rpc, beside })
            }
            EventKind::Extension => {
                let mut rpc = format!(r#""method":{}"#, row.member("method")?);
                if let Some(params) = row.member("params") {
                    let _ = write!(rpc, r#","params":{params}"#);
                }
                Some(RowMessage { kind: "update", rpc, beside: String::new() })
            }
            EventKind::HostRequest | EventKind::Status | EventKind::Gap => {
                let rpc = format!(r#""method":"acpx/{}","params":{}"#, kind.as_str(), row.payload());
                Some(RowMessage { kind: "update", rpc, beside: String::new() })
            }
            EventKind::Replay | EventKind::Done | EventKind::Error | EventKind::Closed => None,
        }
    }

    fn prompt(&self, row: &JournalLine<'_>) -> RowMessage {
        let id = quoted(row.run_id.as_deref().unwrap_or_default());
        let (session, text) = (quoted(&self.agent_session), row.member("text").unwrap_or("\"\""));
        let block = format!(r#"{{"type":"text","text":{text}}}"#);
        let params = format!(r#"{{"sessionId":{session},"prompt":[{block}]}}"#);
        let rpc = format!(r#""id":{id},"method":"session/prompt","params":{params}"#);
        RowMessage { kind: "prompt", rpc, beside: String::new() }
    }

    fn update(&self, kind: EventKind, row: &JournalLine<'_>) -> RowMessage {
        let mut rpc = format!(
            r#""method":"session/update","params":{{"sessionId":{},"update":{}"#,
            quoted(&self.agent_session),
            row.payload()
        );
        let extra = row.extra.and_then(|extra| ObjectMembers::parse(extra.get()).ok()).unwrap_or_default();
        for (name, value) in extra.iter() {
            let _ = write!(rpc, ",{}:{value}", quoted(name));
        }
        rpc.push('}');
        let update = ObjectMembers::parse(row.payload()).unwrap_or_default();
        let (kind, names): (_, &[(&str, &str)]) = match kind {
            EventKind::AgentMessage => ("text", &[]),
            EventKind::AgentThought => ("thought", &[]),
            EventKind::ToolCall => ("tool_call", TOOL_MEMBERS),
            EventKind::ToolCallUpdate => ("tool_call_update", TOOL_MEMBERS),
            EventKind::Plan => ("plan", &[("entries", "entries")]),
            _ => match update.string("sessionUpdate").as_deref() {
                Some("current_mode_update") => ("mode", &[("currentModeId", "modeId")]),
                Some("usage_update") => ("usage", &[("used", "used"), ("size", "size"), ("cost", "cost")]),
                _ => ("update", &[]),
            },
        };
        let mut beside = String::new();
        if matches!(kind, "text" | "thought")
            && let Some(content) = update.get("content")
        {
            let _ = write!(beside, r#","content":{}"#, text_of(content).unwrap_or(content));
        }
        for (name, shown) in names {
            if let Some(value) = update.get(name) {
                let _ = write!(beside, r#","{shown}":{value}"#);
            }
        }
        RowMessage { kind, rpc, beside }
    }
}

/// Further members of the line of a tool call.
const TOOL_MEMBERS: &[(&str, &str)] =
    &[("toolCallId", "toolCallId"), ("title", "title"), ("status", "status"), ("kind", "toolKind")];

/// Returns the text of a content block, JSON text; `None` for another block.
fn text_of(content: &str) -> Option<&str> {
    let block = ObjectMembers::parse(content).ok()?;
    block.string("type").filter(|kind| kind == "text")?;
    block.get("text").filter(|text| text.starts_with('"'))
}
