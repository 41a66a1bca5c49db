//! Responses about sessions, with their runs, bindings and permission requests.

use crate::agent_settings::AgentSettings;
use crate::api::is_zero;
use crate::api::requests::ConfigChoice;
use crate::backend::{AgentRequestKind, AskGuarantee, PermissionOption};
use crate::elicitation::Elicitation;
use crate::failure::Failure;
use crate::mcp::McpServerView;
use crate::permission::Voting;
use crate::render::subject;
use crate::request::{PromptAccepted, SpawnResult};
use crate::rows::SessionActivity;
use crate::rows::{
    BindingRow, BindingStatus, NonInteractive, PermissionMode, PermissionRow, RunMode, RunRow, SessionMode,
    SessionRow,
};
use crate::run::RunState;
use crate::session::{Ending, SessionState};
use crate::timeouts::Expiry;
use acp_shared::ids::{AgentName, BindingId, RunId, SessionKey};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// Response to `POST /v1/sessions`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SpawnedView {
    /// The session and its first run.
    #[serde(flatten)]
    pub spawned: SpawnResult,
    /// The state of the agent's start; absent without a wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opening: Option<Opening>,
    /// Reason of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// The new session at the end of a wait; only of a request with a name in the contract of acpx.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Box<SessionView>>,
}

/// `GET /v1/acpx/sessions`: a session with its name in the contract of acpx.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AcpxSessionView {
    /// Name; empty for the session without one.
    pub name: String,
    /// Directory in which the name holds.
    pub cwd: String,
    /// The session.
    pub session: SessionView,
}

/// Response to `POST /v1/acpx/prompt`; of a stream, the first event.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NamedPromptView {
    /// The session.
    pub session: AcpxSessionView,
    /// The accepted prompt.
    pub accepted: PromptAccepted,
}

/// State of an agent's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Opening {
    /// The agent has opened its session.
    Open,
    /// Still starting.
    Pending,
    /// The start or the opening of the agent's session failed.
    Failed,
}

/// `GET /v1/sessions` and `GET /v1/sessions/{key}`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// Session key.
    #[schema(value_type = String)]
    pub session_key: SessionKey,
    /// Agent.
    #[schema(value_type = String)]
    pub agent: AgentName,
    /// Lifecycle state.
    pub state: SessionState,
    /// Manner of closing; absent while the session is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
    /// Root of the session's tree; the session itself if a person spawned it. Null if it is unknown.
    #[schema(value_type = Option<String>)]
    pub owner_session_key: Option<SessionKey>,
    /// Direct parent: the session that spawned this one, if any.
    #[schema(value_type = Option<String>)]
    pub spawned_by: Option<SessionKey>,
    /// Parent session, if any.
    #[schema(value_type = Option<String>)]
    pub parent_session_key: Option<SessionKey>,
    /// Instance id of the gateway that created the session.
    pub gateway_instance_id: String,
    /// Label, if a person gave one.
    pub label: Option<String>,
    /// Absolute working directory.
    pub cwd: String,
    /// Lifetime of the session.
    pub mode: SessionMode,
    /// Runtime backend.
    pub backend: String,
    /// Host that runs the agent; absent for the gateway's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The agent's own id of the conversation, once known.
    pub agent_session_id: Option<String>,
    /// True if a new agent process can resume the conversation of a lost one.
    pub resumable: bool,
    /// Current agent lease; absent while no agent process is needed.
    pub lease_id: Option<String>,
    /// Permission mode.
    pub permission: PermissionMode,
    /// Outcome of unattended permission requests.
    pub non_interactive_permissions: NonInteractive,
    /// Who may answer the agent's questions.
    #[serde(default)]
    pub voting: Voting,
    /// Certainty of the agent's questions: `ensured`, `unknown` or `never`; absent before the first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asking: Option<AskGuarantee>,
    /// ACP session mode that a person set.
    pub mode_id: Option<String>,
    /// Model that a person set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Maximum duration of a turn in seconds, if a person set one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// ACP config options that a person set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<ConfigChoice>,
    /// The agent's modes, models and config options as last reported: current and possible values.
    #[serde(default)]
    pub agent_settings: AgentSettings,
    /// MCP servers given at the spawn, without their secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mcp_servers: Vec<McpServerView>,
    /// Additional directories given at the spawn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub additional_directories: Vec<String>,
    /// Number of the last journal row.
    pub last_session_seq: u64,
    /// Number of the last journal row that retention has pruned: earlier rows are gone. Absent if all rows are there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pruned_seq: u64,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Milliseconds since the Unix epoch.
    pub updated_at_ms: u64,
    /// Milliseconds since the Unix epoch.
    pub last_activity_at_ms: u64,
    /// Reason of state `error`, or the latest failure.
    pub last_error: Option<Failure>,
    /// `agentInfo` and capabilities as last received.
    #[schema(value_type = Option<Object>)]
    pub agent_info: Option<Box<RawValue>>,
    /// Timeout that ends first, and its kind; only in the response about one session, absent without a
    /// timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry: Option<Expiry>,
    /// Running turn.
    #[schema(value_type = Option<String>)]
    pub active_run: Option<RunId>,
    /// Number of queued runs.
    #[serde(default)]
    pub queued_runs: u64,
    /// Conversations bound to the session.
    #[serde(default)]
    pub bindings: Vec<BoundView>,
    /// Newest runs, oldest first; only in the response about one session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<Vec<RunView>>,
    /// Pending permission requests; only in the response about one session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Vec<PermissionView>>,
}

impl From<SessionRow> for SessionView {
    fn from(row: SessionRow) -> Self {
        Self {
            session_key: row.session_key,
            agent: row.agent,
            state: row.state,
            ending: row.ending,
            owner_session_key: row.owner_session_key,
            spawned_by: row.spawned_by,
            parent_session_key: row.parent_session_key,
            gateway_instance_id: row.gateway_instance_id.to_string(),
            label: row.label,
            cwd: row.cwd,
            mode: row.mode,
            backend: row.backend,
            host: row.options.host.clone(),
            agent_session_id: row.agent_session_id,
            resumable: row.resumable,
            lease_id: row.lease_id.map(|id| id.to_string()),
            permission: row.options.permission,
            non_interactive_permissions: row.options.non_interactive,
            voting: row.options.voting,
            asking: row.options.asking,
            mode_id: row.options.mode_id,
            model: row.options.model,
            timeout_s: row.options.timeout_s,
            config: row.options.config.into_iter().map(|(id, value)| ConfigChoice { id, value }).collect(),
            agent_settings: row.options.agent,
            mcp_servers: row.options.mcp_servers.iter().map(McpServerView::from).collect(),
            additional_directories: row.options.additional_directories,
            last_session_seq: row.last_session_seq,
            pruned_seq: row.pruned_seq,
            created_at_ms: row.created_at_ms,
            updated_at_ms: row.updated_at_ms,
            last_activity_at_ms: row.last_activity_at_ms,
            last_error: row.last_error,
            agent_info: row.agent_info.and_then(|json| RawValue::from_string(json).ok()),
            expiry: None,
            active_run: None,
            queued_runs: 0,
            bindings: Vec::new(),
            runs: None,
            permissions: None,
        }
    }
}

impl SessionView {
    /// Adds the running turn, the queue length and the bindings.
    pub fn within(mut self, around: &mut SessionActivity) -> Self {
        self.active_run = around.running.remove(&self.session_key);
        self.queued_runs = around.queued.remove(&self.session_key).unwrap_or(0);
        let bindings = around.bindings.remove(&self.session_key).unwrap_or_default();
        self.bindings = bindings.into_iter().map(BoundView::from).collect();
        self
    }
}

/// Binding of a session to a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BoundView {
    /// Binding id, for `sessions unbind --binding`.
    #[schema(value_type = String)]
    pub binding_id: BindingId,
    /// Channel.
    pub channel: String,
    /// Account of the channel.
    pub account_id: String,
    /// Conversation id.
    pub conversation_id: String,
    /// `pending`, `active`, `parked` or `ending`.
    pub status: BindingStatus,
    /// Milliseconds since the Unix epoch.
    pub last_activity_at_ms: u64,
}

impl From<BindingRow> for BoundView {
    fn from(row: BindingRow) -> Self {
        Self {
            binding_id: row.binding_id,
            channel: row.conversation.channel,
            account_id: row.conversation.account_id,
            conversation_id: row.conversation.conversation_id,
            status: row.status,
            last_activity_at_ms: row.last_activity_at_ms,
        }
    }
}

/// Run of a session.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunView {
    /// Run id.
    #[schema(value_type = String)]
    pub run_id: RunId,
    /// Turn or steer.
    pub mode: RunMode,
    /// Lifecycle state.
    pub state: RunState,
    /// Position in the queue, from 1; only while queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Text of the prompt.
    pub text: String,
    /// Author of the prompt.
    pub author: String,
    /// ACP's stop reason; only for a run that ended with an answer.
    pub stop_reason: Option<String>,
    /// Reason of the failure.
    pub error: Option<Failure>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Time of leaving the queue, milliseconds since the Unix epoch.
    pub started_at_ms: Option<u64>,
    /// Time of the end, milliseconds since the Unix epoch.
    pub ended_at_ms: Option<u64>,
}

impl From<RunRow> for RunView {
    fn from(row: RunRow) -> Self {
        Self {
            run_id: row.run_id,
            mode: row.mode,
            state: row.state,
            position: None,
            text: row.text,
            author: row.author,
            stop_reason: row.stop_reason,
            error: row.error,
            created_at_ms: row.created_at_ms,
            started_at_ms: row.started_at_ms,
            ended_at_ms: row.ended_at_ms,
        }
    }
}

/// Pending permission request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PermissionView {
    /// Id for the answer.
    pub permission_id: String,
    /// Run that waits for the answer.
    #[schema(value_type = Option<String>)]
    pub run_id: Option<RunId>,
    /// Title of the tool call.
    pub title: String,
    /// Subject of the tool call in one line: command, changed files or input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// ACP's tool kind, when given.
    pub kind: Option<String>,
    /// Tool call as ACP's JSON, with its content, input and locations.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub tool_call: serde_json::Value,
    /// The agent's options, in its order.
    pub options: Vec<OptionView>,
    /// Form or page of an elicitation; absent for a permission request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub form: Option<Elicitation>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Time at which the configured outcome applies, milliseconds since the Unix epoch; absent waits for
    /// ever.
    pub deadline_at_ms: Option<u64>,
}

/// Pending permission request of any session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PendingPermissionView {
    /// Session of the request.
    #[schema(value_type = String)]
    pub session_key: SessionKey,
    /// The request.
    #[serde(flatten)]
    pub permission: PermissionView,
}

/// `GET /v1/sessions/{key}/files`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FilesView {
    /// Directories of the session, the working directory first. Other files cannot be read.
    pub roots: Vec<String>,
    /// State of the file that was asked for; absent without a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileView>,
}

/// State of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileView {
    /// Path without links.
    pub path: String,
    /// True for a regular file; false for a directory and anything else.
    pub is_regular: bool,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of the content in hexadecimal; absent for large and unreadable files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// `GET /v1/sessions/{key}/files/entries`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EntriesView {
    /// Entries of the directory, by name.
    pub entries: Vec<EntryView>,
    /// True if there are others.
    pub more: bool,
}

/// Entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EntryView {
    /// Name without the directory.
    pub name: String,
    /// True for a directory.
    pub is_directory: bool,
    /// Size in bytes.
    pub size: u64,
}

/// `GET /v1/directories`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DirectoriesView {
    /// Absolute paths in which a session of the agent may start.
    pub directories: Vec<String>,
    /// True if there are others.
    pub more: bool,
}

/// `GET /v1/sessions/{key}/diff`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiffView {
    /// Run of the changes; absent for those of the whole session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub run_id: Option<RunId>,
    /// Unified diff; empty without changes. Changes that are too large are counted in a line that begins with `#`.
    pub diff: String,
    /// Source of the changes, always `tool_calls`: the diffs that the agent reported with completed tool calls. Changes that
    /// it made otherwise, such as by a command, are not among them.
    pub source: String,
    /// Number of the last row of the session that retention has pruned: changes in earlier rows are not among them. Absent if
    /// all rows are there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pruned_seq: u64,
}

/// Option of a permission request, named as in event lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OptionView {
    /// The agent's option id.
    pub option_id: String,
    /// Display name.
    pub name: Option<String>,
    /// `allow_once`, `allow_always`, `reject_once`, `reject_always`, or another value of the agent.
    pub kind: Option<String>,
}

impl From<PermissionOption> for OptionView {
    fn from(option: PermissionOption) -> Self {
        Self { option_id: option.id, name: Some(option.name), kind: Some(option.kind) }
    }
}

impl From<PermissionRow> for PermissionView {
    fn from(row: PermissionRow) -> Self {
        let permission_id = row.permission_id();
        let tool_call = row.tool_call();
        let (title, kind, options, form) = match row.request.what {
            AgentRequestKind::Permission { title, tool_kind, options } => (title, tool_kind, options, None),
            AgentRequestKind::Elicitation { title, options, form } => (title, None, options, Some(form)),
            // Only permission requests are stored as pending permissions. Without options nobody could answer the others.
            _ => (row.request.method, None, Vec::new(), None),
        };
        Self {
            permission_id,
            run_id: row.request.run_id,
            title,
            subject: subject(&tool_call),
            kind,
            tool_call,
            options: options.into_iter().map(OptionView::from).collect(),
            form,
            created_at_ms: row.created_at_ms,
            deadline_at_ms: row.deadline_at_ms,
        }
    }
}
