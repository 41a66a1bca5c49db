//! Rows of the control plane as values, for the store and the actors.

use crate::agent_settings::AgentSettings;
use crate::backend::{AgentRequest, AskGuarantee, InputKind, SessionListing};
use crate::bearer::TokenDigest;
use crate::config::McpServer;
pub use crate::config::{NonInteractive, PermissionMode, SessionMode};
use crate::failure::Failure;
use crate::host::Grants;
use crate::permission::Voting;
use crate::principal::Principal;
use crate::run::RunState;
use crate::session::{Ending, SessionState};
use acp_shared::ids::{AgentName, BindingId, GatewayInstanceId, IdempotencyKey, LeaseId, RunId, SessionKey};
use acp_shared::protocol::Spawn;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use utoipa::ToSchema;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Settings of one session that a person can change; stored as JSON in the session's row and applied again
/// after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionOptions {
    /// Permission mode for the agent's requests.
    pub permission: PermissionMode,
    /// Policy for permission requests if no person can be asked.
    pub non_interactive: NonInteractive,
    /// Rule about who may answer the agent's questions.
    #[serde(default, skip_serializing_if = "is_default")]
    pub voting: Voting,
    /// ACP session mode to set, e.g. `default`; `None` uses the preset's.
    pub mode_id: Option<String>,
    /// Model of the agent, set through config option `model`; `None` keeps the agent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// True if `model` was given at the spawn: if the agent refuses it, the prompts that wait fail.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_model_required: bool,
    /// Timeout of a turn, in seconds; `None` uses the gateway's timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// ACP config options to set: id and value.
    pub config: Vec<(String, String)>,
    /// Settings as reported by the agent.
    #[serde(default)]
    pub agent: AgentSettings,
    /// Effects of the host allowed in advance. A change of permission mode or session mode clears the list.
    #[serde(default, skip_serializing_if = "Grants::is_empty")]
    pub grants: Grants,
    /// MCP servers given at the spawn. They replace configured ones with the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mcp_servers: Vec<McpServer>,
    /// Additional directories given at the spawn, canonical.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub additional_directories: Vec<String>,
    /// Sign-in method for `authenticate` before each opening; `None` uses the agent's configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_method: Option<String>,
    /// Program and arguments of the agent, given at the spawn; empty for an agent of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Host that runs the agent; `None` is the gateway's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Lists the agent's stored sessions instead of opening one; the session is then closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listing: Option<SessionListing>,
    /// Certainty that the agent asks, as of the last start; `None` before the first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asking: Option<AskGuarantee>,
}

impl SessionOptions {
    /// Creates settings with defaults for everything except permissions.
    pub fn new(permission: PermissionMode, non_interactive: NonInteractive) -> Self {
        Self {
            permission,
            non_interactive,
            voting: Voting::First,
            mode_id: None,
            model: None,
            is_model_required: false,
            timeout_s: None,
            config: Vec::new(),
            agent: AgentSettings::default(),
            grants: Grants::default(),
            mcp_servers: Vec::new(),
            additional_directories: Vec::new(),
            auth_method: None,
            command: Vec::new(),
            host: None,
            listing: None,
            asking: None,
        }
    }
}

/// Row of `acp_sessions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    /// Primary key.
    pub session_key: SessionKey,
    /// Runtime backend, e.g. `direct`.
    pub backend: String,
    /// Name of the agent.
    pub agent: AgentName,
    /// Intended lifetime of the session.
    pub mode: SessionMode,
    /// Absolute working directory.
    pub cwd: String,
    /// Label given by a person.
    pub label: Option<String>,
    /// State of the session.
    pub state: SessionState,
    /// Kind of the ending; `None` for an open session.
    pub ending: Option<Ending>,
    /// Cause of the state `error`, or the last failure.
    pub last_error: Option<Failure>,
    /// Root of the session's tree (this session itself unless another one spawned it); `None` if it is unknown.
    pub owner_session_key: Option<SessionKey>,
    /// Person who requested the session, by the name that the channel verified. This person owns the session,
    /// regardless of bindings. Empty if unknown.
    pub asked_by: String,
    /// Direct parent: the session that spawned this one, if any.
    pub spawned_by: Option<SessionKey>,
    /// Parent session, if any.
    pub parent_session_key: Option<SessionKey>,
    /// Gateway instance that created the session.
    pub gateway_instance_id: GatewayInstanceId,
    /// Agent's id of the conversation, once known.
    pub agent_session_id: Option<String>,
    /// True if a new process can resume or load that conversation.
    pub resumable: bool,
    /// `agentInfo` and capabilities as last received, JSON text.
    pub agent_info: Option<String>,
    /// Lease of the agent in use; `None` if no process is required.
    pub lease_id: Option<LeaseId>,
    /// Settings of the session.
    pub options: SessionOptions,
    /// Number of the last journal row.
    pub last_session_seq: u64,
    /// Number of the last journal row that retention has pruned; 0 if all rows are there.
    pub pruned_seq: u64,
    /// Time of creation, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Time of the last change, milliseconds since the Unix epoch.
    pub updated_at_ms: u64,
    /// Time of the last activity of a person or the agent, milliseconds since the Unix epoch.
    pub last_activity_at_ms: u64,
}

acp_shared::named! {
    /// State of the completion of a spawned session, see [`crate::completion`].
    pub enum CompletionState {
        /// The run has not ended.
        Awaited = "awaited",
        /// The requester gets it.
        Due = "due",
        /// A conversation of the session shows it.
        Bound = "bound",
        /// The completion is a prompt of the requester.
        Delivered = "delivered",
        /// A call of the requester returned the end of the run.
        Taken = "taken",
        /// The requester is closed.
        Dropped = "dropped",
    }
}

/// Selection of sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionQuery {
    /// True to include closed sessions, except deleted ones.
    pub closed_too: bool,
    /// Only sessions in this state.
    pub state: Option<SessionState>,
    /// Only sessions of this agent.
    pub agent: Option<AgentName>,
    /// Only sessions that this principal may list; `None`: all.
    pub seen_by: Option<Principal>,
    /// Only sessions with this text in label, key or working directory, ignoring the case of ASCII letters.
    pub text: Option<String>,
    /// Only sessions without activity after this time, in milliseconds since the Unix epoch.
    pub idle_since_ms: Option<u64>,
    /// Only sessions created before the one with this number, in the order of creation, the newest first; `None` for the
    /// order of the last activity.
    pub before: Option<u64>,
    /// Maximum number of sessions.
    pub limit: u64,
}

/// Kind of a run: a turn, or input for the running turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunMode {
    /// A turn.
    #[default]
    Prompt,
    /// Input for the running turn (H11).
    Steer,
}

/// Permission settings of one run; `None` takes the session's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunPermissions {
    /// Permission mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<PermissionMode>,
    /// Policy for permission requests if no person can be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub non_interactive: Option<NonInteractive>,
}

impl RunPermissions {
    /// True if the session's settings hold.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Row of `acp_runs`. The identifying columns never change; the text changes only while the run is queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRow {
    /// Primary key.
    pub run_id: RunId,
    /// Session of the run.
    pub session_key: SessionKey,
    /// Turn or steer.
    pub mode: RunMode,
    /// State of the run.
    pub state: RunState,
    /// Text of the person.
    pub text: String,
    /// Attached files, JSON text of [`crate::files::PromptFile`]s.
    pub files: Option<Arc<str>>,
    /// Name of the author, for people; empty if unknown.
    pub author: String,
    /// Identity of the sender, see [`crate::permission::Voter::id`]; empty if unknown.
    pub asked_by: String,
    /// True if a person can be asked for permissions in this run.
    pub interactive: bool,
    /// Permission settings of this run alone.
    pub permissions: RunPermissions,
    /// Number of runs before this one in a chain of messages between sessions; 0 for the prompt of a person.
    pub chain: u64,
    /// Id of the channel's message.
    pub requester_message_id: Option<String>,
    /// Idempotency key of the request.
    pub idempotency_key: IdempotencyKey,
    /// Number of the last journal row within the run.
    pub last_seq: u64,
    /// Stop reason of ACP, after an end with an answer.
    pub stop_reason: Option<String>,
    /// `usage` of the result as received, JSON text.
    pub usage: Option<String>,
    /// Cause of the failure, if failed.
    pub error: Option<Failure>,
    /// Time of acceptance, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Time at which the run left the queue.
    pub started_at_ms: Option<u64>,
    /// Time of the end.
    pub ended_at_ms: Option<u64>,
}

/// State of a lease, as known to the gateway (H5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseStatus {
    /// Committed by the gateway. The supervisor may not have the lease yet.
    Intended,
    /// Confirmed by the supervisor. The agent is opening a session.
    Open,
    /// The agent has an open session.
    Ready,
    /// Close requested. The remaining output is read.
    Closing,
    /// Drained or abandoned: no further output.
    Ended,
}

/// Row of `acp_leases`: an agent process of a session, with the committed positions of the streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRow {
    /// Primary key.
    pub lease_id: LeaseId,
    /// Session of the lease.
    pub session_key: SessionKey,
    /// Spawn request to the supervisor, stored as JSON. Repeated unchanged if the delivery is uncertain.
    pub spawn: Spawn,
    /// State of the lease.
    pub usage: LeaseStatus,
    /// First stdout byte that is not committed: everything before is in the journal or in the tail pieces.
    pub stdout_offset: u64,
    /// Number of the next message to stdin, from 1.
    pub next_stdin_seq: u64,
    /// State of the backend at `stdout_offset`, see [`crate::backend::BackendMachine::save`].
    pub link_state: String,
    /// True if the output is unusable (H2): it is discarded until the process is gone.
    pub broken: bool,
    /// Digest of the token of its agent's session tools; `None` if the agent has none.
    pub agent_token: Option<TokenDigest>,
}

impl LeaseRow {
    /// Row of a lease that is about to be requested from the supervisor.
    pub fn new(spawn: Spawn) -> Self {
        Self {
            lease_id: spawn.lease_id,
            session_key: spawn.session_key.clone(),
            spawn,
            usage: LeaseStatus::Intended,
            stdout_offset: 0,
            next_stdin_seq: 1,
            link_state: String::new(),
            broken: false,
            agent_token: None,
        }
    }
}

/// Row of `acp_stdin_outbox`: one message to an agent (H6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// Lease of the message, which is never sent to another lease.
    pub lease_id: LeaseId,
    /// Number within the lease, from 1, without gaps.
    pub seq: u64,
    /// Bytes of the message, newline included.
    pub bytes: Arc<[u8]>,
    /// Kind of the message.
    pub kind: InputKind,
    /// True if the supervisor confirmed the write of the last byte to the pipe.
    pub written: bool,
}

/// State of an agent's request (H3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestState {
    /// Journaled, and not processed yet.
    Received,
    /// The effect was started; the intent is recorded.
    Started,
    /// The answer is in the outbox, or no longer required.
    Answered,
}

/// Row of `acp_agent_request`, key (lease, stdout offset).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRequestRow {
    /// Lease of the agent.
    pub lease_id: LeaseId,
    /// Session, for queries.
    pub session_key: SessionKey,
    /// The request; `request.at` is the other half of the key.
    pub request: AgentRequest,
    /// State of the request.
    pub state: RequestState,
    /// Started effect: the SHA-256 of the new content in hex for a write, the lease id for a terminal.
    pub intent: Option<String>,
}

/// State of a permission request (H4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionState {
    /// Waits for the answer of a person.
    Pending,
    /// Resolved, by a person or by policy.
    Answered,
    /// No longer required: turn ended, cancelled, lease ended, deadline.
    Expired,
}

/// Resolver of a permission request. A separate variant for persons distinguishes a person named `policy`
/// from the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResolvedBy {
    /// Person with this name, which may be empty.
    Person(String),
    /// Cause other than a person.
    Auto(AutoResolution),
}

acp_shared::named! {
    /// Cause that resolves a permission request without a person, named as in the journal and in the row.
    pub enum AutoResolution {
        /// Permission mode of the session, without a question.
        Policy = "policy",
        /// No answer before the deadline.
        Deadline = "deadline",
        /// Cancellation of the turn.
        Cancel = "cancel",
        /// End of the turn.
        TurnEnded = "turn ended",
        /// End of the agent's process.
        LeaseEnded = "lease ended",
        /// Close of the session.
        SessionClosed = "session closed",
        /// Withdrawal by the agent.
        Agent = "agent",
        /// No person can be asked.
        Nobody = "nobody can be asked",
        /// Adoption of the state by another gateway.
        Adopted = "adopted",
    }
}

/// Row of `acp_permission`, key (lease, stdout offset).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionRow {
    /// Lease of the agent.
    pub lease_id: LeaseId,
    /// The session.
    pub session_key: SessionKey,
    /// The request; `request.at` is the other half of the key.
    pub request: AgentRequest,
    /// State of the permission request.
    pub state: PermissionState,
    /// Id of the chosen option.
    pub option_id: Option<String>,
    /// Resolver of the request.
    pub resolved_by: Option<ResolvedBy>,
    /// Time of the request, milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// Time at which the configured outcome applies, milliseconds since the Unix epoch; `None` never.
    pub deadline_at_ms: Option<u64>,
}

impl PermissionRow {
    /// Returns the id for clients: lease and offset.
    pub fn permission_id(&self) -> String {
        format!("{}:{}", self.lease_id, self.request.at)
    }

    /// Returns the name of the chosen option, as the agent or the form calls it.
    pub fn option_name(&self) -> Option<String> {
        let id = self.option_id.as_deref()?;
        let option = self.request.what.options().iter().find(|option| option.id == id);
        let of_form = || self.request.what.elicitation().map(|form| form.option_name(id));
        option.map(|option| option.name.clone()).or_else(of_form)
    }

    /// Returns the tool call of the request as ACP's JSON; null if absent.
    pub fn tool_call(&self) -> serde_json::Value {
        let params: Option<serde_json::Value> = serde_json::from_str(&self.request.params).ok();
        params.and_then(|mut params| Some(params.get_mut("toolCall")?.take())).unwrap_or_default()
    }
}

/// Address of a conversation: a channel's thread, DM or console name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConversationRef {
    /// Channel, e.g. `console`, `discord`.
    pub channel: String,
    /// Account of the channel; `default` if the channel has only one.
    pub account_id: String,
    /// Id of the conversation in the channel.
    pub conversation_id: String,
    /// Id of the parent conversation, e.g. the channel of a thread.
    pub parent_conversation_id: Option<String>,
}

impl ConversationRef {
    /// Creates the address of a conversation without a known parent.
    pub fn new(
        channel: impl Into<String>,
        account_id: impl Into<String>,
        conversation_id: impl Into<String>,
    ) -> Self {
        let conversation_id = conversation_id.into();
        Self {
            channel: channel.into(),
            account_id: account_id.into(),
            conversation_id,
            parent_conversation_id: None,
        }
    }

    /// Returns the address of the parent conversation, if known.
    pub fn parent(&self) -> Option<Self> {
        let parent = self.parent_conversation_id.as_ref()?;
        Some(Self::new(&self.channel, &self.account_id, parent))
    }
}

/// Kind of a binding's target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    /// Independent session.
    Session,
    /// Session spawned by another session.
    Subagent,
}

/// State of a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BindingStatus {
    /// Committed; the conversation is being created (H13).
    Pending,
    /// Messages of the conversation go to the session, and answers of the session to the conversation.
    Active,
    /// A person archived the conversation. Messages still go to the session and reopen the conversation;
    /// until then nothing is sent, since a message of the gateway would reopen the conversation unasked.
    Parked,
    /// End in progress.
    Ending,
    /// Ended.
    Ended,
}

impl BindingStatus {
    /// True if messages of the conversation go to the session.
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Active | Self::Parked)
    }
}

acp_shared::named! {
    /// Amount of output of a turn in a conversation, in addition to the answer. Named as in commands and in the
    /// database.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Verbosity {
        /// Status card, and a line about each tool call.
        Full = "full",
        /// Status card with the progress only.
        Compact = "compact",
        /// Answers, questions and errors only.
        None = "none",
    }
}

/// Row of `acp_bindings`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindingRow {
    /// Primary key (`binding_key` in the database).
    pub binding_id: BindingId,
    /// The conversation.
    pub conversation: ConversationRef,
    /// The session.
    pub session_key: SessionKey,
    /// Kind of the target.
    pub target_kind: TargetKind,
    /// State of the binding.
    pub status: BindingStatus,
    /// Name of the requester.
    pub bound_by: String,
    /// Start of the maximum age, milliseconds since the Unix epoch.
    pub bound_at_ms: u64,
    /// Start of the idle timeout, milliseconds since the Unix epoch.
    pub last_activity_at_ms: u64,
    /// Idle timeout in milliseconds; `None` never ends the binding.
    pub idle_ms: Option<u64>,
    /// Maximum age in milliseconds; `None` never ends the binding.
    pub max_age_ms: Option<u64>,
    /// Verbosity of the conversation; `None` uses the configuration.
    pub verbosity: Option<Verbosity>,
    /// Additional data, JSON text.
    pub metadata: String,
    /// Reason of the end.
    pub end_reason: Option<String>,
}

/// Runs and bindings of the sessions that are not closed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionActivity {
    /// Running turn of each session.
    pub running: HashMap<SessionKey, RunId>,
    /// Number of queued runs of each session.
    pub queued: HashMap<SessionKey, u64>,
    /// Bindings of each session that have not ended.
    pub bindings: HashMap<SessionKey, Vec<BindingRow>>,
}
