//! A session as clients see it, with its runs, bindings and questions.

use super::bodies::ConfigChoice;
use crate::core::agent_settings::AgentSettings;
use crate::core::link::{Asking, PermissionOption, Wanted};
use crate::core::mcp::McpServerView;
use crate::core::project::subject;
use crate::core::request::Spawned;
use crate::core::rows::{
    BindingRow, BindingStatus, NonInteractive, PermissionMode, PermissionRow, RunMode, RunRow, SessionMode,
    SessionRow,
};
use crate::core::run::RunState;
use crate::core::session::{Ending, SessionState};
use crate::core::ttl::Expiry;
use crate::error::Failure;
use crate::store::levels::Circumstances;
use acp_shared::ids::{AgentName, BindingId, RunId, SessionKey};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The answer to `POST /v1/sessions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpawnedView {
    /// The session and its first run.
    #[serde(flatten)]
    pub(crate) spawned: Spawned,
    /// The state of the agent's start; absent without a wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) opening: Option<Opening>,
    /// Reason of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<Failure>,
}

/// The state of an agent's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Opening {
    /// The agent has opened its session.
    Open,
    /// Still being started.
    Pending,
    /// Not started, or without a session of its own.
    Failed,
}

/// `GET /v1/sessions` and `GET /v1/sessions/{key}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SessionView {
    /// Its key.
    pub(crate) session_key: SessionKey,
    /// Which agent.
    pub(crate) agent: AgentName,
    /// Where it is in its life.
    pub(crate) state: SessionState,
    /// In which way it was closed; absent while it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ending: Option<Ending>,
    /// The session that owns it: itself, when a person spawned it.
    pub(crate) owner_session_key: SessionKey,
    /// The session that spawned it, if one did.
    pub(crate) spawned_by: Option<SessionKey>,
    /// The session above it, if any.
    pub(crate) parent_session_key: Option<SessionKey>,
    /// The gateway that made it.
    pub(crate) gateway_instance_id: String,
    /// What a person called it.
    pub(crate) label: Option<String>,
    /// Absolute working directory.
    pub(crate) cwd: String,
    /// How long it is meant to live.
    pub(crate) mode: SessionMode,
    /// Runtime backend.
    pub(crate) backend: String,
    /// The agent's own id of the conversation, once it has one.
    pub(crate) agent_session_id: Option<String>,
    /// Whether a lost process can be followed by another that goes on with the conversation.
    pub(crate) resumable: bool,
    /// The agent lease in use; absent while no process is wanted.
    pub(crate) lease_id: Option<String>,
    /// What happens when the agent asks for a permission.
    pub(crate) permission: PermissionMode,
    /// What happens when nobody can be asked.
    pub(crate) non_interactive_permissions: NonInteractive,
    /// Certainty of the agent's questions: `ensured`, `unknown` or `never`; absent before the first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) asking: Option<Asking>,
    /// ACP session mode that a person set.
    pub(crate) mode_id: Option<String>,
    /// Model that a person set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    /// How long a turn may take, in seconds, when a person set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_s: Option<u64>,
    /// ACP config options that a person set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) config: Vec<ConfigChoice>,
    /// The agent's modes, models and config options as last reported: current and possible values.
    #[serde(default)]
    pub(crate) agent_settings: AgentSettings,
    /// MCP servers given at the spawn, without their secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) mcp_servers: Vec<McpServerView>,
    /// Additional directories given at the spawn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) additional_directories: Vec<String>,
    /// Number of the last journal row.
    pub(crate) last_session_seq: u64,
    /// Milliseconds since the Unix epoch.
    pub(crate) created_at_ms: u64,
    /// Milliseconds since the Unix epoch.
    pub(crate) updated_at_ms: u64,
    /// Milliseconds since the Unix epoch.
    pub(crate) last_activity_at_ms: u64,
    /// Why it is in `error`, or what last went wrong.
    pub(crate) last_error: Option<Failure>,
    /// `agentInfo` and abilities as last received.
    pub(crate) agent_info: Option<Box<RawValue>>,
    /// The window that ends first, and which it is; only when one session was asked for, absent when none is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expiry: Option<Expiry>,
    /// The turn that runs.
    #[serde(default)]
    pub(crate) active_run: Option<RunId>,
    /// How many runs wait.
    #[serde(default)]
    pub(crate) queued_runs: u64,
    /// The conversations that it is bound to.
    #[serde(default)]
    pub(crate) bindings: Vec<BoundView>,
    /// Its newest runs, the oldest first; only when one session was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) runs: Option<Vec<RunView>>,
    /// Questions that wait for an answer; only when one session was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) permissions: Option<Vec<PermissionView>>,
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
            agent_session_id: row.agent_session_id,
            resumable: row.resumable,
            lease_id: row.lease_id.map(|id| id.to_string()),
            permission: row.options.permission,
            non_interactive_permissions: row.options.non_interactive,
            asking: row.options.asking,
            mode_id: row.options.mode_id,
            model: row.options.model,
            timeout_s: row.options.timeout_s,
            config: row.options.config.into_iter().map(|(id, value)| ConfigChoice { id, value }).collect(),
            agent_settings: row.options.agent,
            mcp_servers: row.options.mcp_servers.iter().map(McpServerView::from).collect(),
            additional_directories: row.options.additional_directories,
            last_session_seq: row.last_session_seq,
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
    /// The same with what goes on around it.
    pub(crate) fn within(mut self, around: &mut Circumstances) -> Self {
        self.active_run = around.running.remove(&self.session_key);
        self.queued_runs = around.queued.remove(&self.session_key).unwrap_or(0);
        let bindings = around.bindings.remove(&self.session_key).unwrap_or_default();
        self.bindings = bindings.into_iter().map(BoundView::from).collect();
        self
    }
}

/// A conversation that a session is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BoundView {
    /// Its id, for `sessions unbind --binding`.
    pub(crate) binding_id: BindingId,
    /// The channel.
    pub(crate) channel: String,
    /// Its account.
    pub(crate) account_id: String,
    /// The conversation.
    pub(crate) conversation_id: String,
    /// `pending`, `active` or `ending`.
    pub(crate) status: BindingStatus,
    /// Milliseconds since the Unix epoch.
    pub(crate) last_activity_at_ms: u64,
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

/// A run of a session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RunView {
    /// Its id.
    pub(crate) run_id: RunId,
    /// Turn or steer.
    pub(crate) mode: RunMode,
    /// Where it is in its life.
    pub(crate) state: RunState,
    /// While it is queued: its place, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<u64>,
    /// What the person said.
    pub(crate) text: String,
    /// Who said it.
    pub(crate) author: String,
    /// ACP's stop reason, once it ended with an answer.
    pub(crate) stop_reason: Option<String>,
    /// Reason of the failure.
    pub(crate) error: Option<Failure>,
    /// Milliseconds since the Unix epoch.
    pub(crate) created_at_ms: u64,
    /// When it left the queue.
    pub(crate) started_at_ms: Option<u64>,
    /// When it ended.
    pub(crate) ended_at_ms: Option<u64>,
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

/// A question that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PermissionView {
    /// The name to answer it under.
    pub(crate) permission_id: String,
    /// The run that waits for it.
    pub(crate) run_id: Option<RunId>,
    /// What the agent wants to do.
    pub(crate) title: String,
    /// Subject of the tool call in one line: command, changed files or input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) subject: Option<String>,
    /// ACP's tool kind, when given.
    pub(crate) kind: Option<String>,
    /// Tool call as ACP's JSON, with its content, input and locations.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub(crate) tool_call: serde_json::Value,
    /// The agent's options, in its order.
    pub(crate) options: Vec<OptionView>,
    /// Milliseconds since the Unix epoch.
    pub(crate) created_at_ms: u64,
    /// When the configured outcome is taken; absent waits for ever.
    pub(crate) deadline_at_ms: Option<u64>,
}

/// One choice of a question, spelled as in event lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OptionView {
    /// The agent's id of it.
    pub(crate) option_id: String,
    /// What a person reads.
    pub(crate) name: Option<String>,
    /// `allow_once`, `allow_always`, `reject_once`, `reject_always`, or what the agent made up.
    pub(crate) kind: Option<String>,
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
        let (title, kind, options) = match row.ask.what {
            Wanted::Permission { title, tool_kind, options } => (title, tool_kind, options),
            // No other request is kept as a permission; an empty list of options cannot be answered.
            Wanted::FsRead { .. }
            | Wanted::FsWrite { .. }
            | Wanted::TerminalCreate { .. }
            | Wanted::TerminalOutput { .. }
            | Wanted::TerminalWait { .. }
            | Wanted::TerminalKill { .. }
            | Wanted::TerminalRelease { .. } => (row.ask.method, None, Vec::new()),
        };
        Self {
            permission_id,
            run_id: row.ask.run_id,
            title,
            subject: subject(&tool_call),
            kind,
            tool_call,
            options: options.into_iter().map(OptionView::from).collect(),
            created_at_ms: row.created_at_ms,
            deadline_at_ms: row.deadline_at_ms,
        }
    }
}
