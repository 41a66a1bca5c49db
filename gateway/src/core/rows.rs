//! The control plane's rows as values: what the store reads and writes, and what actors hold in memory.

use crate::config::McpServer;
pub(crate) use crate::config::{NonInteractive, PermissionMode, SessionMode};
use crate::core::agent_settings::AgentSettings;
use crate::core::host::Grants;
use crate::core::link::{Ask, Asking, Meaning};
use crate::core::project::subject;
use crate::core::run::RunState;
use crate::core::session::{Ending, SessionState};
use crate::error::Failure;
use acp_shared::ids::{AgentName, BindingId, GatewayInstanceId, IdempotencyKey, LeaseId, RunId, SessionKey};
use acp_shared::protocol::Spawn;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Settings of one session that a person may change; kept as JSON in its row and applied again after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionOptions {
    /// What happens when the agent asks for a permission.
    pub(crate) permission: PermissionMode,
    /// What happens when nobody can be asked.
    pub(crate) non_interactive: NonInteractive,
    /// ACP session mode to set, e.g. `default`; `None` leaves the preset's.
    pub(crate) mode_id: Option<String>,
    /// The agent's model, set through its config option `model`; `None` leaves the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    /// How long a turn may take, in seconds; `None` has the gateway's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_s: Option<u64>,
    /// ACP config options to set: id and value.
    pub(crate) config: Vec<(String, String)>,
    /// The agent's own view of its settings.
    #[serde(default)]
    pub(crate) agent: AgentSettings,
    /// Effects of the host allowed in advance. A change of permission mode or session mode clears them.
    #[serde(default, skip_serializing_if = "Grants::is_empty")]
    pub(crate) grants: Grants,
    /// MCP servers given at the spawn; they replace configured ones of the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) mcp_servers: Vec<McpServer>,
    /// Additional directories given at the spawn, canonical.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) additional_directories: Vec<String>,
    /// Certainty of the agent's questions as of the last start; `None` before the first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) asking: Option<Asking>,
}

impl SessionOptions {
    /// Nothing but how permissions are dealt with.
    pub(crate) fn new(permission: PermissionMode, non_interactive: NonInteractive) -> Self {
        Self {
            permission,
            non_interactive,
            mode_id: None,
            model: None,
            timeout_s: None,
            config: Vec::new(),
            agent: AgentSettings::new(),
            grants: Grants::default(),
            mcp_servers: Vec::new(),
            additional_directories: Vec::new(),
            asking: None,
        }
    }
}

/// A row of `acp_sessions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionRow {
    /// Primary key.
    pub(crate) session_key: SessionKey,
    /// Runtime backend, e.g. `direct`.
    pub(crate) backend: String,
    /// Which agent.
    pub(crate) agent: AgentName,
    /// How long it is meant to live.
    pub(crate) mode: SessionMode,
    /// Absolute working directory.
    pub(crate) cwd: String,
    /// What a person called it.
    pub(crate) label: Option<String>,
    /// Where it is in its life.
    pub(crate) state: SessionState,
    /// In which way it was closed; `None` while it is not.
    pub(crate) ending: Option<Ending>,
    /// Why it is in `error`, or what last went wrong.
    pub(crate) last_error: Option<Failure>,
    /// The session that owns it (itself, when a person spawned it).
    pub(crate) owner_session_key: SessionKey,
    /// Who asked for it, by the name that their channel vouches for: it is theirs, wherever it is bound. Empty where
    /// nobody is known.
    pub(crate) asked_by: String,
    /// The session that spawned it, if one did.
    pub(crate) spawned_by: Option<SessionKey>,
    /// The session above it, if any.
    pub(crate) parent_session_key: Option<SessionKey>,
    /// The gateway that made it.
    pub(crate) gateway_instance_id: GatewayInstanceId,
    /// The agent's own id of the conversation, once it has one.
    pub(crate) agent_session_id: Option<String>,
    /// Whether that conversation can be resumed or loaded by a new process.
    pub(crate) resumable: bool,
    /// `agentInfo` and abilities as last received, JSON text.
    pub(crate) agent_info: Option<String>,
    /// The agent lease in use; `None` while no process is wanted.
    pub(crate) lease_id: Option<LeaseId>,
    /// Settings.
    pub(crate) options: SessionOptions,
    /// Number of the last journal row.
    pub(crate) last_session_seq: u64,
    /// Milliseconds since the Unix epoch.
    pub(crate) created_at_ms: u64,
    /// Milliseconds since the Unix epoch.
    pub(crate) updated_at_ms: u64,
    /// Last time somebody or the agent said something, milliseconds since the Unix epoch.
    pub(crate) last_activity_at_ms: u64,
}

/// Whether a run is a turn of its own or goes into the running one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunMode {
    /// A turn.
    Prompt,
    /// A word into the running turn (H11).
    Steer,
}

/// A row of `acp_runs`. The text and what identifies it never change after the insert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunRow {
    /// Primary key.
    pub(crate) run_id: RunId,
    /// Its session.
    pub(crate) session_key: SessionKey,
    /// Turn or steer.
    pub(crate) mode: RunMode,
    /// Where it is in its life.
    pub(crate) state: RunState,
    /// What the person said.
    pub(crate) text: String,
    /// The files that came with it, JSON text of [`crate::core::files::File`]s.
    pub(crate) files: Option<Arc<str>>,
    /// Who said it, for people; empty when unknown.
    pub(crate) author: String,
    /// Whether somebody can be asked for permissions in this run.
    pub(crate) interactive: bool,
    /// The channel message it came from.
    pub(crate) requester_message_id: Option<String>,
    /// The key under which it was asked.
    pub(crate) idempotency_key: IdempotencyKey,
    /// Number of its last journal row.
    pub(crate) last_seq: u64,
    /// ACP's stop reason, once it ended with an answer.
    pub(crate) stop_reason: Option<String>,
    /// `usage` of the result as received, JSON text.
    pub(crate) usage: Option<String>,
    /// Reason of the failure.
    pub(crate) error: Option<Failure>,
    /// Milliseconds since the Unix epoch.
    pub(crate) created_at_ms: u64,
    /// When it left the queue.
    pub(crate) started_at_ms: Option<u64>,
    /// When it ended.
    pub(crate) ended_at_ms: Option<u64>,
}

/// What the gateway knows of a lease it asked for (design §9, H5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LeaseUse {
    /// Committed here; the supervisor may or may not have it.
    Intended,
    /// The supervisor confirmed it; its agent is being brought to a session.
    Open,
    /// Its agent has an open session.
    Ready,
    /// Its end was asked for; what it still says is read.
    Closing,
    /// Drained to its end, or given up; nothing more comes from it.
    Ended,
}

/// A row of `acp_leases`: an agent process of a session, and how far its streams are committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaseRow {
    /// Primary key.
    pub(crate) lease_id: LeaseId,
    /// Its session.
    pub(crate) session_key: SessionKey,
    /// What was asked of the supervisor, as JSON: sent again, unchanged, when it is not known whether it arrived.
    pub(crate) spawn: Spawn,
    /// What is known of it.
    pub(crate) usage: LeaseUse,
    /// First stdout byte that is not committed: everything before is in the journal or in the tail pieces.
    pub(crate) stdout_offset: u64,
    /// Number of the next message to its stdin, from 1.
    pub(crate) next_stdin_seq: u64,
    /// State of the link's machine at `stdout_offset`, see [`crate::core::link::Link::save`].
    pub(crate) link_state: String,
    /// Whether its output is of no use any more (H2): it is drained unread until its process is gone.
    pub(crate) broken: bool,
}

/// A row of `acp_stdin_outbox`: one message to an agent (design §9, H6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutboxRow {
    /// The lease; a message is never sent into another one.
    pub(crate) lease_id: LeaseId,
    /// Its number there, from 1, without gaps.
    pub(crate) seq: u64,
    /// The bytes, newline included.
    pub(crate) bytes: Vec<u8>,
    /// What it means.
    pub(crate) meaning: Meaning,
    /// Whether the supervisor confirmed that its last byte is in the pipe.
    pub(crate) written: bool,
}

/// Where a request of the agent is (design §9, H3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RequestState {
    /// Journaled; nothing was done about it.
    Received,
    /// What has an effect was begun; its intent is recorded.
    Started,
    /// Its answer is in the outbox, or none is wanted any more.
    Answered,
}

/// A row of `acp_agent_request`, key (lease, stdout offset).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgentRequestRow {
    /// The lease whose agent asked.
    pub(crate) lease_id: LeaseId,
    /// The session, for queries.
    pub(crate) session_key: SessionKey,
    /// What was asked; `ask.at` is the other half of the key.
    pub(crate) ask: Ask,
    /// Where it is.
    pub(crate) state: RequestState,
    /// What was begun: for a write the SHA-256 of the new content in hex, for a terminal its lease id.
    pub(crate) intent: Option<String>,
}

/// Where a permission request is (design §9, H4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PermissionState {
    /// Somebody is asked.
    Pending,
    /// Settled, by a person or by policy.
    Answered,
    /// No answer is wanted any more: turn ended, cancelled, lease ended, deadline.
    Expired,
}

/// Who or what settled a permission. Whatever a person is called, they are one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Settler {
    /// A person of this name, which may be empty.
    Person(String),
    /// Something else.
    Without(Without),
}

/// What settles a permission without a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Without {
    /// The session's setting: nobody was asked.
    Policy,
    /// Nobody answered in time.
    Deadline,
    /// The turn was stopped.
    Cancel,
    /// The turn came to its end.
    TurnEnded,
    /// The agent's process ended.
    LeaseEnded,
    /// The session was closed.
    SessionClosed,
    /// The agent took it back.
    Agent,
    /// There is nobody to be asked.
    Nobody,
    /// The state was taken over by another gateway.
    Adopted,
}

impl Without {
    /// Every one.
    pub(crate) const ALL: [Self; 9] = [
        Self::Policy,
        Self::Deadline,
        Self::Cancel,
        Self::TurnEnded,
        Self::LeaseEnded,
        Self::SessionClosed,
        Self::Agent,
        Self::Nobody,
        Self::Adopted,
    ];

    /// The word in the journal and in the row.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Deadline => "deadline",
            Self::Cancel => "cancel",
            Self::TurnEnded => "turn ended",
            Self::LeaseEnded => "lease ended",
            Self::SessionClosed => "session closed",
            Self::Agent => "agent",
            Self::Nobody => "nobody can be asked",
            Self::Adopted => "adopted",
        }
    }
}

/// A row of `acp_permission`, key (lease, stdout offset).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PermissionRow {
    /// The lease whose agent asked.
    pub(crate) lease_id: LeaseId,
    /// The session.
    pub(crate) session_key: SessionKey,
    /// What was asked; `ask.at` is the other half of the key.
    pub(crate) ask: Ask,
    /// Where it is.
    pub(crate) state: PermissionState,
    /// The chosen option.
    pub(crate) option_id: Option<String>,
    /// Who or what settled it.
    pub(crate) settled_by: Option<Settler>,
    /// Milliseconds since the Unix epoch.
    pub(crate) created_at_ms: u64,
    /// When the configured outcome is taken; `None` waits for ever.
    pub(crate) deadline_at_ms: Option<u64>,
}

impl PermissionRow {
    /// The name that clients use: lease and offset.
    pub(crate) fn permission_id(&self) -> String {
        format!("{}:{}", self.lease_id, self.ask.at)
    }

    /// Tool call of the question as ACP's JSON; null where there is none.
    pub(crate) fn tool_call(&self) -> serde_json::Value {
        let params: Option<serde_json::Value> = serde_json::from_str(&self.ask.params).ok();
        params.and_then(|mut params| Some(params.get_mut("toolCall")?.take())).unwrap_or_default()
    }

    /// One line about the tool call: command, changed files or input.
    pub(crate) fn subject(&self) -> Option<String> {
        subject(&self.tool_call())
    }
}

/// Where a conversation is: a channel's thread, DM or console name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConversationRef {
    /// Channel, e.g. `console`, `discord`.
    pub channel: String,
    /// Account of the channel; `default` where there is only one.
    pub account_id: String,
    /// The conversation itself.
    pub conversation_id: String,
    /// The conversation around it, e.g. the channel of a thread.
    pub parent_conversation_id: Option<String>,
}

/// What a binding points at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TargetKind {
    /// A session of its own.
    Session,
    /// A session that another one spawned.
    Subagent,
}

/// Where a binding is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BindingStatus {
    /// Committed; the conversation is being made (H13).
    Pending,
    /// Messages of the conversation go to the session, and the session's answers go there.
    Active,
    /// A person put its conversation away: messages go to the session and bring it back; nothing is said there until
    /// then, since that would bring it back unasked.
    Parked,
    /// Being ended.
    Ending,
    /// Over.
    Ended,
}

impl BindingStatus {
    /// Whether messages of the conversation go to the session.
    pub(crate) const fn is_live(self) -> bool {
        matches!(self, Self::Active | Self::Parked)
    }
}

/// How much a conversation is told of a turn beside its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verbosity {
    /// A live card, and a line about each tool call.
    Full,
    /// A card that says how far it is, and nothing else.
    Compact,
    /// Answers, questions and errors alone.
    None,
}

impl Verbosity {
    /// Every one.
    pub(crate) const ALL: [Self; 3] = [Self::Full, Self::Compact, Self::None];

    /// The name in commands and in the database.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Compact => "compact",
            Self::None => "none",
        }
    }
}

/// A row of `acp_bindings`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BindingRow {
    /// Primary key (`binding_key` in the database).
    pub(crate) binding_id: BindingId,
    /// The conversation.
    pub(crate) conversation: ConversationRef,
    /// The session.
    pub(crate) session_key: SessionKey,
    /// What the target is.
    pub(crate) target_kind: TargetKind,
    /// Where it is in its life.
    pub(crate) status: BindingStatus,
    /// Who asked for it.
    pub(crate) bound_by: String,
    /// Milliseconds since the Unix epoch.
    pub(crate) bound_at_ms: u64,
    /// Milliseconds since the Unix epoch.
    pub(crate) last_activity_at_ms: u64,
    /// Ends after this long without a message; `None` never.
    pub(crate) idle_ms: Option<u64>,
    /// Ends after this long in any case; `None` never.
    pub(crate) max_age_ms: Option<u64>,
    /// How much it is told beside answers; `None` what the configuration says.
    pub(crate) verbosity: Option<Verbosity>,
    /// Free for the channel, JSON text.
    pub(crate) metadata: String,
    /// Why it ended.
    pub(crate) end_reason: Option<String>,
}
