//! What surfaces ask of sessions, and what they are answered: plain values, shared by the manager, the API and
//! the actors.

use crate::config::McpServer;
use crate::core::binding::Placement;
use crate::core::files::File;
use crate::core::rows::{ConversationRef, NonInteractive, PermissionMode, RunMode, SessionMode};
use crate::core::run::RunState;
use crate::core::session::{Ending, SessionState};
use acp_shared::ids::{AgentName, RunId, SessionKey};
use serde::{Deserialize, Serialize};

/// What a new session should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpawnRequest {
    /// Which agent; `None` takes the configured default.
    pub(crate) agent: Option<AgentName>,
    /// Absolute working directory; `None` takes the configured default.
    pub(crate) cwd: Option<String>,
    /// What a person calls it.
    pub(crate) label: Option<String>,
    /// How long it is meant to live.
    pub(crate) mode: SessionMode,
    /// Overrides the agent's permission mode.
    pub(crate) permission: Option<PermissionMode>,
    /// Overrides what happens when nobody can be asked.
    pub(crate) non_interactive: Option<NonInteractive>,
    /// Binds this conversation in the same transaction.
    pub(crate) bind: Option<ConversationRef>,
    /// Where that binding goes: there, or into a conversation that is made below it.
    #[serde(default)]
    pub(crate) placement: Placement,
    /// First prompt, in the same transaction.
    pub(crate) prompt: Option<String>,
    /// Who asks, for people.
    pub(crate) author: String,
    /// Whether somebody can be asked for permissions in the first run.
    pub(crate) interactive: bool,
    /// The session that spawns this one, and owns it then; `None` when a person does.
    #[serde(default)]
    pub(crate) spawned_by: Option<SessionKey>,
    /// MCP servers of this session, before those of configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) mcp_servers: Vec<McpServer>,
    /// Additional directories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) additional_directories: Vec<String>,
    /// What the configuration says beyond that, when it makes the session; nobody else may.
    #[serde(skip)]
    pub(crate) configured: Option<Configured>,
}

/// What the configuration says of a session that it makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Configured {
    /// Its key, which follows from the conversation.
    pub(crate) session_key: SessionKey,
    /// For the row of its binding.
    pub(crate) metadata: String,
    /// The backend, instead of `acp.backend`.
    pub(crate) backend: Option<String>,
}

/// How a session is to be closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CloseRequest {
    /// Why, for the record and for the conversation.
    pub(crate) reason: String,
    /// In which way.
    pub(crate) ending: Ending,
    /// Whether the agent shall forget the conversation, where it can.
    pub(crate) discard: bool,
}

impl CloseRequest {
    /// To be done with it.
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), ending: Ending::Closed, discard: false }
    }
}

/// A new session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spawned {
    /// Its key.
    pub(crate) session_key: SessionKey,
    /// The first run, when a prompt was given.
    pub(crate) run_id: Option<RunId>,
}

/// A prompt or a steer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PromptRequest {
    /// What the person says.
    pub(crate) text: String,
    /// Turn or steer.
    pub(crate) mode: RunMode,
    /// Who says it, for people.
    pub(crate) author: String,
    /// Whether somebody can be asked for permissions in this run.
    pub(crate) interactive: bool,
    /// The files that came with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) files: Vec<File>,
    /// The channel message it came from.
    pub(crate) requester_message_id: Option<String>,
    /// The conversation that it came from; its answer belongs there.
    #[serde(skip)]
    pub(crate) asked_in: Option<Box<ConversationRef>>,
    /// Start a new conversation with the agent first, when the old one cannot be gone on with.
    pub(crate) new_conversation: bool,
}

/// A prompt was accepted: it is durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PromptAccepted {
    /// The run.
    pub(crate) run_id: RunId,
    /// Read the journal after this number to see everything of the run.
    pub(crate) after_seq: u64,
    /// How many runs are before it in the queue.
    pub(crate) queued_behind: u64,
    /// For a steer: whether it goes into the running turn (otherwise it was queued as a prompt).
    pub(crate) steered: bool,
}

/// What a cancel met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cancelled {
    /// The run that was asked to stop; `None` when nothing ran or waited.
    pub(crate) run_id: Option<RunId>,
    /// The run's state after it: `running` while the agent has not settled it yet.
    pub(crate) state: Option<RunState>,
}

/// What is to be done with a run that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum QueuedChange {
    /// It is not wanted any more.
    Drop,
    /// It is said into the running turn.
    Steer,
    /// It says this instead.
    Reword(String),
}

/// What became of a change to a run that waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum QueuedNow {
    /// It is done.
    Done,
    /// It does not wait any more: nothing was changed.
    TooLate,
    /// There is no turn that the agent lets be steered: it waits on.
    Unsteerable,
}

/// What a session is after a command on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionNow {
    /// Which one.
    pub(crate) session_key: SessionKey,
    /// Its state.
    pub(crate) state: SessionState,
    /// After a close with `discard`: whether the agent was asked to forget the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) discarded: Option<bool>,
    /// After a change of one of the agent's own settings: the result of that change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) setting: Option<SettingResult>,
}

/// The result of changing one of the agent's own settings. A refusal by the agent is an error instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SettingResult {
    /// True when the agent took the change; false when no agent runs and the next start asks for it.
    pub(crate) is_applied: bool,
    /// The same as a sentence for people.
    pub(crate) text: String,
}
