//! Requests to sessions and their results: plain values, shared by the manager, the API and the actors.

use crate::acpx_contract::AcpxNaming;
use crate::backend::SessionListing;
use crate::binding::{ConversationOrigin, Placement};
use crate::config::McpServer;
use crate::failure::Failure;
use crate::files::{self, PromptFile};
use crate::permission::Voting;
use crate::rows::{
    ConversationRef, NonInteractive, PermissionMode, RunMode, RunPermissions, RunRow, SessionMode,
};
use crate::run::RunState;
use crate::session::{Ending, SessionState};
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, IdempotencyKey, RunId, SessionKey};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Request to create a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnRequest {
    /// Agent; `None` uses the configured default.
    pub agent: Option<AgentName>,
    /// Absolute working directory; `None` uses the configured default.
    pub cwd: Option<String>,
    /// Label given by a person.
    pub label: Option<String>,
    /// Intended lifetime of the session.
    pub mode: SessionMode,
    /// Overrides the agent's permission mode.
    pub permission: Option<PermissionMode>,
    /// Overrides the policy for permission requests if no person can be asked.
    pub non_interactive: Option<NonInteractive>,
    /// Conversation to bind in the transaction that creates the session.
    pub bind: Option<ConversationRef>,
    /// Placement of that binding: the conversation itself or a new child.
    #[serde(default)]
    pub placement: Placement,
    /// First prompt, accepted in the transaction that creates the session; `None` if there is none.
    pub prompt: Option<String>,
    /// Model, set before the first prompt, which fails if the agent refuses it; `None` keeps the agent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Rule about who may answer the agent's questions; `None` for the first answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voting: Option<Voting>,
    /// Name of the requester, for people.
    pub author: String,
    /// Identity of the requester, see [`crate::permission::Voter::id`]; empty if unknown.
    #[serde(skip)]
    pub asked_by: String,
    /// True if a person can be asked for permissions in the first run.
    pub interactive: bool,
    /// Name in the contract of acpx: an open session with it is returned, or replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acpx: Option<AcpxNaming>,
    /// Session that spawns and then owns this one; `None` for a request of a person.
    pub spawned_by: Option<SessionKey>,
    /// True if the agent of that session asks: the new session then gets no more than that one has.
    #[serde(skip)]
    pub by_agent: bool,
    /// MCP servers of this session, which take precedence over configured ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mcp_servers: Vec<McpServer>,
    /// Additional directories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub additional_directories: Vec<String>,
    /// Sign-in method for `authenticate` before the session is opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_method: Option<String>,
    /// Program and arguments of the agent; empty for an agent of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Conversation of the agent to continue, by the agent's id; `None` begins a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
    /// Lists the agent's stored sessions instead of opening one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listing: Option<SessionListing>,
    /// Message from which the conversation of a child binding is created; `None` creates it from a notice.
    #[serde(skip)]
    pub origin: Option<ConversationOrigin>,
    /// Runtime backend; `None` uses the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Host for the agent; `None` chooses one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Further properties for a static binding; not available to other requesters.
    #[serde(skip)]
    pub configured: Option<StaticSessionParams>,
}

/// Properties of a session created for a static binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticSessionParams {
    /// Session key, derived from the conversation.
    pub session_key: SessionKey,
    /// Metadata for the row of the binding.
    pub metadata: String,
    /// Backend, overrides `acp.backend`.
    pub backend: Option<String>,
}

/// Request to close a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseRequest {
    /// Reason, for the journal and the conversation.
    pub reason: String,
    /// Kind of the ending.
    pub ending: Ending,
    /// True if the agent shall delete the conversation, where supported.
    pub discard: bool,
    /// Last activity up to which the session is closed, in milliseconds since the Unix epoch; a session in use, or used
    /// later, stays. `None` closes it in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_idle_since_ms: Option<u64>,
}

impl CloseRequest {
    /// Creates a request for an ordinary close.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), ending: Ending::Closed, discard: false, if_idle_since_ms: None }
    }

    /// Failure of a close with a condition that the session does not meet.
    pub fn refused(why: &str) -> Failure {
        let text = format!("The session stays open: {why}.");
        Failure::new(Code::Usage, text).detail("SESSION_IN_USE").origin("gateway")
    }
}

/// Result of a `SpawnRequest`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SpawnResult {
    /// Key of the session.
    #[schema(value_type = String)]
    pub session_key: SessionKey,
    /// First run, if a prompt was given.
    #[schema(value_type = Option<String>)]
    pub run_id: Option<RunId>,
    /// True if the session existed before, under the name of the request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub existing: bool,
    /// Closed session, replaced by the new one of the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub replaced: Option<SessionKey>,
}

impl SpawnResult {
    /// Result for a session that did not exist before.
    pub fn created(session_key: SessionKey, run_id: Option<RunId>) -> Self {
        Self { session_key, run_id, existing: false, replaced: None }
    }
}

/// Prompt or steer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptRequest {
    /// Text of the person.
    pub text: String,
    /// Turn or steer.
    pub mode: RunMode,
    /// Name of the author, for people.
    pub author: String,
    /// Identity of the sender, see [`crate::permission::Voter::id`]; empty if unknown.
    #[serde(skip)]
    pub asked_by: String,
    /// True if a person can be asked for permissions in this run.
    pub interactive: bool,
    /// Permission settings of this run alone.
    #[serde(default, skip_serializing_if = "RunPermissions::is_empty")]
    pub permissions: RunPermissions,
    /// Attached files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PromptFile>,
    /// Id of the channel's message.
    pub requester_message_id: Option<String>,
    /// Conversation of the prompt, which gets the answer.
    #[serde(skip)]
    pub asked_in: Option<Box<ConversationRef>>,
    /// True to start a new agent conversation first, if the old one cannot be continued.
    pub new_conversation: bool,
    /// Name by which the session was found. The key of a repetition then counts for the name: it may belong to another
    /// session by then.
    #[serde(skip)]
    pub found_by: Option<String>,
    /// Run of another session whose completion the prompt tells.
    #[serde(skip)]
    pub completion_of: Option<RunId>,
    /// Session whose agent sends the prompt; `None` for a person.
    #[serde(skip)]
    pub sender: Option<SessionKey>,
    /// See [`RunRow::chain`].
    #[serde(skip)]
    pub chain: u64,
}

impl PromptRequest {
    /// Returns the row of the queued run.
    pub fn into_run(
        self,
        run_id: RunId,
        session_key: &SessionKey,
        idempotency_key: IdempotencyKey,
        now_ms: u64,
    ) -> RunRow {
        RunRow {
            run_id,
            session_key: session_key.clone(),
            mode: self.mode,
            state: RunState::Queued,
            text: self.text,
            files: files::serialize_files(&self.files),
            author: self.author,
            asked_by: self.asked_by,
            interactive: self.interactive,
            permissions: self.permissions,
            chain: self.chain,
            requester_message_id: self.requester_message_id,
            idempotency_key,
            last_seq: 0,
            stop_reason: None,
            usage: None,
            error: None,
            created_at_ms: now_ms,
            started_at_ms: None,
            ended_at_ms: None,
        }
    }
}

/// Result of an accepted prompt, which is durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PromptAccepted {
    /// Id of the run.
    #[schema(value_type = String)]
    pub run_id: RunId,
    /// Number of the last journal row before the run; readers of the run start after this number.
    pub after_seq: u64,
    /// Number of runs ahead in the queue.
    pub queued_behind: u64,
    /// True for a steer into the running turn; false if queued as a prompt.
    pub steered: bool,
}

/// Result of a cancellation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelResult {
    /// Run to be cancelled; `None` if no run was running or queued.
    #[schema(value_type = Option<String>)]
    pub run_id: Option<RunId>,
    /// State of the run afterwards: `running` until the agent confirms.
    pub state: Option<RunState>,
}

/// Change of a queued run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueEdit {
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
pub enum QueueEditResult {
    /// Changed as requested.
    Done,
    /// Nothing changed: the run has left the queue.
    TooLate,
    /// No turn that the agent allows to steer: the run stays queued.
    Unsteerable,
}

/// State of a session after a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionStatus {
    /// Key of the session.
    #[schema(value_type = String)]
    pub session_key: SessionKey,
    /// State of the session.
    pub state: SessionState,
    /// After a close with `discard`: true if the agent was asked to delete the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discarded: Option<bool>,
    /// After a change of one of the agent's settings: the result of that change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setting: Option<SettingResult>,
}

/// Result of changing one of the agent's settings. A refusal by the agent is an error instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SettingResult {
    /// True if the agent accepted the change; false if no agent runs, so that the change applies at the next
    /// start.
    pub is_applied: bool,
    /// The result as a sentence for people.
    pub text: String,
}
