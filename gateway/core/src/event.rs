//! Rows of the journal: one row for each output of an agent and each event of a session.
//!
//! The payload keeps the agent's JSON as received, so that no information is lost for later readers.
//! [`EventKind`] determines the format. `core/view.rs` computes the view for clients from the rows.

use crate::rows::{ConversationRef, RunMode};
use acp_shared::ids::{RunId, SessionKey};
use serde_json::json;

acp_shared::named! {
    /// Kind of a journal row. The names are in databases: never change one.
    #[derive(Hash)]
    pub enum EventKind {
        /// Accepted prompt of a person. Payload: `{"text", "mode", "author"?, "asked_in"?}`.
        Prompt = "prompt",
        /// `agent_message_chunk`. Payload: the `update` object of the notification, as received.
        AgentMessage = "agent_message",
        /// `agent_thought_chunk`. Payload: the `update` object.
        AgentThought = "agent_thought",
        /// `tool_call`. Payload: the `update` object.
        ToolCall = "tool_call",
        /// `tool_call_update`. Payload: the `update` object.
        ToolCallUpdate = "tool_call_update",
        /// `plan`. Payload: the `update` object.
        Plan = "plan",
        /// Any other `session/update`, including unknown ones. Payload: the `update` object.
        Update = "update",
        /// Notification or request of the agent outside of ACP. Payload: `{"method", "params"?}`.
        Extension = "extension",
        /// Update repeated by the agent while loading an old conversation (H10): never shown.
        /// Payload: the `update` object.
        Replay = "replay",
        /// Permission request of the agent, or of the host before an effect.
        /// Payload: `{"permission_id", "params", "deadline_at_ms"?}`. The params are as received, except for the
        /// tool call, which is completed with data of earlier updates of the same call.
        Permission = "permission",
        /// Resolved permission request. `by` is the name of a person; `without` names another cause.
        /// Payload: `{"permission_id", "outcome", "option_id"?, "option_name"?, "by"?, "without"?}`.
        PermissionSettled = "permission_settled",
        /// Outcome of a request for an effect of the host: allowed, refused or failed. Payload:
        /// `{"request_id", "effect", "method", "path"? | "command"?, "cwd"?, "env"?, "outcome", "reason"?, "message"?}`.
        /// `cwd` is the directory of a command if different from the session's, `env` the names of its variables.
        HostRequest = "host_request",
        /// Change of the session or the agent. Payload: `{"status", "text", "conversation_text"?, …}`; the last
        /// one replaces `text` in conversations.
        Status = "status",
        /// Output of the agent is missing here (H7). Payload: `{"text"}`.
        Gap = "gap",
        /// End of a run with an answer, or by cancellation.
        /// Payload: `{"stop_reason", "usage"?, "result"?: <as received>}`.
        Done = "done",
        /// End of a run without an answer.
        /// Payload: `{"code", "message", "conversation_text"?, "retryable", "detail_code"?, "origin"?, "acp"?}`.
        Error = "error",
        /// Close of the session. Payload: `{"reason", "ending"?}`.
        Closed = "closed",
    }
}

impl EventKind {
    /// Parses a name from the database.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// Event to append to the journal. The actor assigns the numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// Run of the event; `None` between turns.
    pub run_id: Option<RunId>,
    /// Kind of the row; determines the format of the payload.
    pub kind: EventKind,
    /// Payload, JSON text.
    pub payload: String,
    /// Members of a notification's `params` other than `sessionId` and `update`, e.g. `_meta`: a JSON object with the
    /// values as received; `None` if there are none.
    pub extra: Option<String>,
}

/// Row of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRow {
    /// The session.
    pub session_key: SessionKey,
    /// Number within the session, from 1, without gaps: the resume cursor of every reader.
    pub session_seq: u64,
    /// Run of the event; `None` between turns.
    pub run_id: Option<RunId>,
    /// Number within the run, from 1, without gaps; `None` if and only if `run_id` is.
    pub seq: Option<u64>,
    /// Kind of the row; determines the format of the payload.
    pub kind: EventKind,
    /// Payload, JSON text.
    pub payload: String,
    /// See [`NewEvent::extra`].
    pub extra: Option<String>,
    /// Time of the commit, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
}

/// Returns the payload of a `prompt` row. `asked_in` is the conversation of the prompt; in other
/// conversations the answer gets a heading with the author.
pub fn prompt_payload(text: &str, mode: RunMode, author: &str, asked_in: Option<&ConversationRef>) -> String {
    let mut payload = json!({ "text": text, "mode": mode, "author": author });
    if let Some(at) = asked_in {
        payload["asked_in"] = json!({
            "channel": at.channel, "account_id": at.account_id, "conversation_id": at.conversation_id,
        });
    }
    payload.to_string()
}
