//! Requests to sessions and their results: plain values, shared by the manager, the API and the actors.

use crate::core::binding::Placement;
use crate::core::config::McpServer;
use crate::core::files::PromptFile;
use crate::core::rows::{ConversationRef, NonInteractive, PermissionMode, RunMode, SessionMode};
use crate::core::run::RunState;
use crate::core::session::{Ending, SessionState};
use acp_shared::ids::{AgentName, RunId, SessionKey};
use serde::{Deserialize, Serialize};

/// Request to create a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpawnRequest {
    /// Agent; `None` uses the configured default.
    pub(crate) agent: Option<AgentName>,
    /// Absolute working directory; `None` uses the configured default.
    pub(crate) cwd: Option<String>,
    /// Label given by a person.
    pub(crate) label: Option<String>,
    /// Intended lifetime of the session.
    pub(crate) mode: SessionMode,
    /// Overrides the agent's permission mode.
    pub(crate) permission: Option<PermissionMode>,
    /// Overrides the policy for permission requests if no person can be asked.
    pub(crate) non_interactive: Option<NonInteractive>,
    /// Conversation to bind in the same transaction.
    pub(crate) bind: Option<ConversationRef>,
    /// Placement of that binding: the conversation itself or a new child.
    #[serde(default)]
    pub(crate) placement: Placement,
    /// First prompt, in the same transaction.
    pub(crate) prompt: Option<String>,
    /// Name of the requester, for people.
    pub(crate) author: String,
    /// True if a person can be asked for permissions in the first run.
    pub(crate) interactive: bool,
    /// Session that spawns and then owns this one; `None` for a request of a person.
    #[serde(default)]
    pub(crate) spawned_by: Option<SessionKey>,
    /// MCP servers of this session, which take precedence over configured ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) mcp_servers: Vec<McpServer>,
    /// Additional directories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) additional_directories: Vec<String>,
    /// Further properties for a static binding; not available to other requesters.
    #[serde(skip)]
    pub(crate) configured: Option<StaticSessionParams>,
}

/// Properties of a session created for a static binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StaticSessionParams {
    /// Session key, derived from the conversation.
    pub(crate) session_key: SessionKey,
    /// Metadata for the row of the binding.
    pub(crate) metadata: String,
    /// Backend, overrides `acp.backend`.
    pub(crate) backend: Option<String>,
}

/// Request to close a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CloseRequest {
    /// Reason, for the journal and the conversation.
    pub(crate) reason: String,
    /// Kind of the ending.
    pub(crate) ending: Ending,
    /// True if the agent shall delete the conversation, where supported.
    pub(crate) discard: bool,
}

impl CloseRequest {
    /// Creates a request for an ordinary close.
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), ending: Ending::Closed, discard: false }
    }
}

/// Result of a `SpawnRequest`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpawnResult {
    /// Key of the session.
    pub(crate) session_key: SessionKey,
    /// First run, if a prompt was given.
    pub(crate) run_id: Option<RunId>,
}

/// Prompt or steer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PromptRequest {
    /// Text of the person.
    pub(crate) text: String,
    /// Turn or steer.
    pub(crate) mode: RunMode,
    /// Name of the author, for people.
    pub(crate) author: String,
    /// True if a person can be asked for permissions in this run.
    pub(crate) interactive: bool,
    /// Attached files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) files: Vec<PromptFile>,
    /// Id of the channel's message.
    pub(crate) requester_message_id: Option<String>,
    /// Conversation of the prompt, which gets the answer.
    #[serde(skip)]
    pub(crate) asked_in: Option<Box<ConversationRef>>,
    /// True to start a new agent conversation first, if the old one cannot be continued.
    pub(crate) new_conversation: bool,
}

/// Result of an accepted prompt, which is durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PromptAccepted {
    /// Id of the run.
    pub(crate) run_id: RunId,
    /// Number of the last journal row before the run; readers of the run start after this number.
    pub(crate) after_seq: u64,
    /// Number of runs ahead in the queue.
    pub(crate) queued_behind: u64,
    /// True for a steer into the running turn; false if queued as a prompt.
    pub(crate) steered: bool,
}

/// Result of a cancellation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CancelResult {
    /// Run to be cancelled; `None` if no run was running or queued.
    pub(crate) run_id: Option<RunId>,
    /// State of the run afterwards: `running` until the agent confirms.
    pub(crate) state: Option<RunState>,
}

/// Change of a queued run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum QueueEdit {
    /// Remove the run.
    Drop,
    /// Use the run as a steer into the running turn.
    Steer,
    /// Replace the text.
    Reword(String),
}

/// Result of the change of a queued run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum QueueEditResult {
    /// Changed as requested.
    Done,
    /// Nothing changed: the run has left the queue.
    TooLate,
    /// No turn that the agent allows to steer: the run stays queued.
    Unsteerable,
}

/// State of a session after a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionStatus {
    /// Key of the session.
    pub(crate) session_key: SessionKey,
    /// State of the session.
    pub(crate) state: SessionState,
    /// After a close with `discard`: true if the agent was asked to delete the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) discarded: Option<bool>,
    /// After a change of one of the agent's settings: the result of that change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) setting: Option<SettingResult>,
}

/// Result of changing one of the agent's settings. A refusal by the agent is an error instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SettingResult {
    /// True if the agent accepted the change; false if no agent runs, so that the change applies at the next
    /// start.
    pub(crate) is_applied: bool,
    /// The result as a sentence for people.
    pub(crate) text: String,
}
