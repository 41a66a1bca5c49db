//! Inputs of an actor: events, commands, configuration and limits.

use crate::bearer::BearerToken;
use crate::config::{ClientFs, McpServer};
use crate::elicitation::ElicitationAnswer;
use crate::failure::Failure;
use crate::host::Inspection;
use crate::jsonrpc::RpcError;
use crate::options::Setting;
use crate::permission::Voter;
use crate::request::{
    CancelResult, CloseRequest, PromptAccepted, PromptRequest, QueueEdit, QueueEditResult, SessionStatus,
};
use crate::rows::{NonInteractive, PermissionMode};
use crate::timeouts::Expiry;
use crate::writes::SessionLimits;
use acp_shared::ids::{IdempotencyKey, LeaseId, RunId};
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Attached, Graces, RefusalCode, Spawn};
use serde::Serialize;

/// Environment of a step: the clock and a source of fresh ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepContext {
    /// Milliseconds since the Unix epoch; never goes back within one process.
    pub now_ms: u64,
    /// Unused lease id, for a lease that the step may create.
    pub fresh_lease: LeaseId,
    /// Unused token for the session tools of that lease; `None` for a lease without them.
    pub fresh_token: Option<BearerToken>,
}

/// Id of a waiting caller; the driver maps the id to the caller.
pub type Ticket = u64;

/// Idempotency record of a command, committed with its effects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyRecord {
    /// Scope of the key, e.g. `prompt:<session key>`.
    pub scope: String,
    /// Key within the scope.
    pub key: IdempotencyKey,
    /// Digest of the command.
    pub fingerprint: String,
}

/// Event for an actor, processed in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "commands are the usual inputs, and each is moved once")]
pub enum ActorInput {
    /// The actor was just restored from the database.
    Started,
    /// A client sent a command.
    Command {
        /// Caller that waits for the reply.
        ticket: Ticket,
        /// Requested operation.
        command: ActorCommand,
        /// Idempotency record; `None` for commands that are never repeated.
        keyed: Option<IdempotencyRecord>,
    },
    /// Event of the agent's process.
    Lease(LeaseEvent),
    /// A request of the agent was completed.
    RequestDone {
        /// Offset that identifies the request.
        at: u64,
        /// Result as JSON text, or the error.
        outcome: Result<String, RpcError>,
    },
    /// Result of [`super::ActorEffect::Inspect`].
    Inspected {
        /// Offset that identifies the request.
        at: u64,
        /// State of the target file, or the error for the agent.
        found: Result<Inspection, RpcError>,
    },
    /// The look-up for a start is complete; [`super::Actor::configure`] has applied the outcome.
    LookedUp,
    /// The connection to the supervisor is lost; leases continue to run without the gateway.
    Disconnected,
    /// A deadline of [`super::Actor::deadline_ms`] has passed.
    Tick,
}

/// Command of a client. See the manager's methods of the same names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActorCommand {
    /// Submit a prompt or a steer, under a run id that the manager created.
    Prompt {
        /// Id of the new run.
        run_id: RunId,
        /// Prompt and its parameters.
        request: PromptRequest,
        /// Idempotency key, stored in the run's row.
        key: IdempotencyKey,
        /// Limits on sessions in use, checked when the prompt wakes a resting session; `None` for no check.
        caps: Option<Box<SessionLimits>>,
    },
    /// Stop a run.
    Cancel(Option<RunId>),
    /// Change a queued run, unless it has started.
    Queued {
        /// Run to change.
        run_id: RunId,
        /// Requested change.
        change: QueueEdit,
    },
    /// Close the session.
    Close(CloseRequest),
    /// Apply an idle or maximum-age timeout.
    Expire {
        /// Timeout that passed.
        expiry: Expiry,
        /// Last use of the session or the binding at the time of the check, milliseconds since the Unix
        /// epoch.
        seen_ms: u64,
        /// True to close the session; false to end one binding.
        closes: bool,
    },
    /// End the agent's process; the session stays.
    Release {
        /// Person who asks.
        by: String,
    },
    /// Set the label, or remove it.
    Label(Option<String>),
    /// Start a new conversation with the agent.
    NewConversation,
    /// Change a setting.
    Set(Setting),
    /// Answer a permission request.
    AnswerPermission {
        /// Permission request to answer.
        permission_id: String,
        /// The answer.
        answer: QuestionAnswer,
        /// Who answers.
        by: Voter,
    },
}

/// Answer of a person to a question of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum QuestionAnswer {
    /// The option with this id.
    Option(String),
    /// Answer to an elicitation.
    Elicitation(ElicitationAnswer),
    /// None: the question is settled as cancelled.
    Dismissed,
}

/// Result of a successful command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandReply {
    /// Result of [`ActorCommand::Prompt`].
    Prompt(PromptAccepted),
    /// Result of [`ActorCommand::Cancel`].
    Cancel(CancelResult),
    /// Result of [`ActorCommand::Queued`].
    Queued(QueueEditResult),
    /// Result of commands on the session as a whole.
    Session(SessionStatus),
    /// Result of [`ActorCommand::AnswerPermission`].
    Done,
}

/// Event of the lease in use. The driver drops events of other leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseEvent {
    /// The supervisor connection was established (again): resume the lease.
    Connected,
    /// The process was started.
    Spawned,
    /// The process could not be started; nothing of it remains.
    SpawnRefused {
        /// Refusal code.
        code: RefusalCode,
        /// Refusal message.
        message: String,
        /// Delay in milliseconds before another spawn of the same lease, if the supervisor named one.
        retry_after_ms: Option<u64>,
    },
    /// The streams are attached; output follows.
    Attached(Attached),
    /// The supervisor does not know the lease, or no longer; the state of its streams is unknown.
    Unknown,
    /// The supervisor cannot serve the streams at the moment; retry later.
    StreamsBusy,
    /// The supervisor has dropped output that is not committed here (H7).
    OffsetGone,
    /// Bytes of the agent's stdout.
    Output {
        /// Offset of the first byte.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A message was written to the agent's stdin.
    Written {
        /// Number of the message.
        seq: u64,
    },
    /// The supervisor refused a message.
    InputRefused {
        /// Number of the message.
        seq: u64,
        /// Refusal code.
        code: RefusalCode,
    },
    /// The adapter ended; its output is complete up to `end_offset`.
    Exited {
        /// Exit status.
        status: ExitStatus,
        /// End offset of its stdout.
        end_offset: u64,
        /// Highest number of a message written to stdin.
        stdin_written: u64,
    },
    /// The lease changed to one of its ended states.
    Changed,
}

/// Start parameters and treatment of the session's agent, from configuration and preset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentProfile {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// True once the program and the session's directories were looked up; no agent is started before.
    pub is_looked_up: bool,
    /// Complete environment of the process.
    pub env: Vec<(String, String)>,
    /// Time limits of the steps that end the process.
    pub graces: Graces,
    /// Time limit for opening a session, in milliseconds.
    pub init_ms: u64,
    /// True if the program is a package runner (`npx`) that may have to download the agent first.
    pub may_fetch: bool,
    /// Sign-in method to use before the session is opened; the session's own takes precedence.
    pub auth_method: Option<String>,
    /// Asking mode to set; a session's own mode takes precedence.
    pub mode: Option<String>,
    /// True for an agent that asks without an asking mode.
    pub asks: bool,
    /// Config options to set; the session's own values override them.
    pub options: Vec<(String, String)>,
    /// MCP servers; a session's own server replaces one of the same name.
    pub mcp_servers: Vec<McpServer>,
    /// Additional absolute directories; the session's own are appended.
    pub additional_directories: Vec<String>,
    /// Root of the spawn that stands for the session's private home directory, for a backend that uses one.
    pub private_home: Option<String>,
    /// File requests offered to the agent.
    pub client_fs: ClientFs,
    /// True if `terminal/*` is offered to the agent.
    pub offer_terminal: bool,
    /// Permission mode of new sessions.
    pub permission: PermissionMode,
    /// Non-interactive policy of new sessions, for requests without a person to ask.
    pub non_interactive: NonInteractive,
    /// Session tools of the agent; `None` if they are off.
    pub session_tools: Option<SessionTools>,
    /// Reason why the agent must not be started; only a running process is followed.
    pub refused: Option<Failure>,
}

/// Program and socket of an agent's session tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionTools {
    /// Program of the bridge.
    pub command: String,
    /// Socket that the bridge connects to.
    pub socket: String,
}

impl AgentProfile {
    /// Returns the profile of an agent that configuration no longer allows: enough to follow the running
    /// process, not to start another one.
    pub fn of_running_lease(spawn: Option<&Spawn>, refused: Failure) -> Self {
        Self {
            argv: spawn.map(|spawn| spawn.argv.clone()).unwrap_or_default(),
            is_looked_up: false,
            env: spawn.map(|spawn| spawn.env.clone()).unwrap_or_default(),
            graces: spawn.map(|spawn| spawn.graces).unwrap_or_default(),
            init_ms: 60_000,
            may_fetch: false,
            auth_method: None,
            mode: None,
            asks: false,
            options: Vec::new(),
            mcp_servers: Vec::new(),
            additional_directories: Vec::new(),
            private_home: None,
            client_fs: ClientFs::None,
            offer_terminal: false,
            permission: PermissionMode::DenyAll,
            non_interactive: NonInteractive::Deny,
            session_tools: None,
            refused: Some(refused),
        }
    }
}

/// Limits and deadlines common to all sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActorLimits {
    /// Maximum number of runs, running and queued.
    pub queue_runs_max: usize,
    /// Maximum size of a prompt, in bytes.
    pub prompt_bytes_max: usize,
    /// Maximum length of a line of agent output, in bytes (H2).
    pub line_bytes_max: usize,
    /// Time limit for an agent to confirm a cancel before its process is ended, in milliseconds.
    pub cancel_ms: u64,
    /// Wait for a cancelled turn before closing sends EOF, in milliseconds.
    pub close_wait_ms: u64,
    /// Time limit of a turn without a limit of its own, in milliseconds; 0 for none.
    pub turn_ms: u64,
    /// Time after which a running turn is failed if its agent cannot be reached again, in milliseconds.
    pub reconcile_ms: u64,
    /// Idle time after which a resumable agent is stopped, in milliseconds; 0 disables it.
    pub runtime_idle_ms: u64,
    /// Time without output in a turn after which the agent is reported as silent, in milliseconds.
    pub silent_ms: u64,
    /// Interval of liveness probes of an idle agent, in milliseconds; 0 disables them.
    pub probe_ms: u64,
    /// Time limit for the answer to a probe, in milliseconds.
    pub alive_ms: u64,
    /// Time limit for the answer to a permission request, in milliseconds; 0 for none.
    pub permission_ms: u64,
}
