//! What the journal holds: one row for each thing that an agent said or that happened to a session.
//!
//! A row keeps the agent's JSON exactly as it came (`payload`), so that nothing a later reader may need is lost;
//! [`EventKind`] says how to read it. What clients see is computed from rows by `core/view.rs`.

use crate::core::rows::{ConversationRef, RunMode};
use acp_shared::ids::{RunId, SessionKey};
use serde_json::json;

macro_rules! kinds {
    ($($(#[$doc:meta])+ $name:ident = $text:literal,)+) => {
        /// What a journal row is about. The names are in databases: never change one.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(crate) enum EventKind { $($(#[$doc])+ $name,)+ }

        impl EventKind {
            /// Every kind.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The name in the database.
            pub(crate) const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// Reads the name back.
            pub(crate) fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|kind| kind.as_str() == text)
            }
        }
    };
}

kinds! {
    /// A person's prompt as it was accepted. Payload: `{"text", "mode", "author"?}`.
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
    /// Any other `session/update`, known to the lens or not. Payload: the `update` object.
    Update = "update",
    /// A notification or request of the agent that is not ACP's. Payload: `{"method", "params"?}`.
    Extension = "extension",
    /// An update that repeats old conversation while it is loaded (H10): never shown. Payload: the `update`.
    Replay = "replay",
    /// The agent asks for a permission, or the host asks before an effect. Payload: `{"permission_id", "params",
    /// "deadline_at_ms"?}`; the params are as received, except that their tool call is completed with what an earlier
    /// update of the same call said.
    Permission = "permission",
    /// A permission was settled. Payload: `{"permission_id", "outcome", "option_id"?, "option_name"?, "by"?, "without"?}`:
    /// the name of a person, or what settled it without one (`policy`, `deadline` …).
    PermissionSettled = "permission_settled",
    /// Outcome of a request for an effect of the host: allowed, refused or failed. Payload: `{"request_id", "effect",
    /// "method", "path"? | "command"?, "outcome", "reason"?, "message"?}`.
    HostRequest = "host_request",
    /// Something happened to the session or its agent. Payload: `{"status", "text", …}`.
    Status = "status",
    /// Output of the agent is missing here (H7). Payload: `{"text"}`.
    Gap = "gap",
    /// The run ended with an answer, or cancelled. Payload: `{"stop_reason", "usage"?, "result"?: <as received>}`.
    Done = "done",
    /// The run ended without an answer. Payload: `{"code", "message", "retryable", "detail_code"?, "origin"?, "acp"?}`.
    Error = "error",
    /// The session was closed. Payload: `{"reason", "ending"?}`.
    Closed = "closed",
}

/// An event on its way into the journal; its numbers are given by the actor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewEvent {
    /// The run it belongs to; `None` between turns.
    pub(crate) run_id: Option<RunId>,
    /// How to read the payload.
    pub(crate) kind: EventKind,
    /// JSON text.
    pub(crate) payload: String,
}

/// A row of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EventRow {
    /// The session.
    pub(crate) session_key: SessionKey,
    /// Number within the session, from 1, without gaps: the resume cursor of every reader.
    pub(crate) session_seq: u64,
    /// The run it belongs to; `None` between turns.
    pub(crate) run_id: Option<RunId>,
    /// Number within the run, from 1, without gaps; `None` exactly when `run_id` is.
    pub(crate) seq: Option<u64>,
    /// How to read the payload.
    pub(crate) kind: EventKind,
    /// JSON text.
    pub(crate) payload: String,
    /// When it was committed, milliseconds since the Unix epoch.
    pub(crate) created_at_ms: u64,
}

/// The payload of a `prompt` row. A prompt of a conversation names it: only there an answer is told as its own.
pub(crate) fn prompt_payload(
    text: &str,
    mode: RunMode,
    author: &str,
    asked_in: Option<&ConversationRef>,
) -> String {
    let mut payload = json!({ "text": text, "mode": mode, "author": author });
    if let Some(at) = asked_in {
        payload["asked_in"] = json!({
            "channel": at.channel, "account_id": at.account_id, "conversation_id": at.conversation_id,
        });
    }
    payload.to_string()
}
