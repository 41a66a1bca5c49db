//! What an actor is told, and what it is given to decide with.

use crate::config::{ClientFs, McpServer};
use crate::core::effect::Caps;
use crate::core::host::Inspection;
use crate::core::link::RpcError;
use crate::core::options::Setting;
use crate::core::request::{
    Cancelled, CloseRequest, PromptAccepted, PromptRequest, QueuedChange, QueuedNow, SessionNow,
};
use crate::core::rows::{NonInteractive, PermissionMode};
use crate::core::ttl::Expiry;
use crate::error::Failure;
use acp_shared::ids::{IdempotencyKey, LeaseId, RunId};
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Attached, Graces, RefusalCode, Spawn};

/// What a step cannot know by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ctx {
    /// Milliseconds since the Unix epoch; never goes back within one process.
    pub(crate) now_ms: u64,
    /// A lease id that nobody has used, should one be needed.
    pub(crate) fresh_lease: LeaseId,
}

/// Names a caller who waits for an answer; the driver keeps the caller.
pub(crate) type Ticket = u64;

/// The idempotency of a command: committed with its effects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Keyed {
    /// What the key is for.
    pub(crate) scope: String,
    /// The key.
    pub(crate) key: IdempotencyKey,
    /// Digest of the command.
    pub(crate) fingerprint: String,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// The actor was just made from the database.
    Started,
    /// A surface wants something.
    Command {
        /// Who waits for the answer.
        ticket: Ticket,
        /// What is wanted.
        command: Command,
        /// Under which key; commands without one are not repeated.
        keyed: Option<Keyed>,
    },
    /// News of the agent's process.
    News(LeaseNews),
    /// Something that the agent asked is done.
    RequestDone {
        /// Offset that names the request.
        at: u64,
        /// Result as JSON text, or the error.
        outcome: Result<String, RpcError>,
    },
    /// Result of [`super::Act::Inspect`].
    Inspected {
        /// Offset that names the request.
        at: u64,
        /// The target, or the error for the agent.
        found: Result<Inspection, RpcError>,
    },
    /// The look-up that a start waited for is done: [`super::Actor::configure`] has brought its outcome.
    LookedUp,
    /// The connection to the supervisor is gone; leases go on without us.
    Disconnected,
    /// A deadline of [`super::Actor::deadline_ms`] has come.
    Tick,
}

/// What a surface wants. See the manager's methods of the same names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// A prompt or a steer, under a run id that the manager minted.
    Prompt {
        /// The new run's id.
        run_id: RunId,
        /// What is asked.
        request: PromptRequest,
        /// Kept in the run's row.
        key: IdempotencyKey,
        /// How many sessions may be in use, if it wakes this one; `None` asks nothing.
        caps: Option<Box<Caps>>,
    },
    /// Stop a run.
    Cancel(Option<RunId>),
    /// Change a run that waits, if it still does.
    Queued {
        /// Which one.
        run_id: RunId,
        /// What is to be done.
        change: QueuedChange,
    },
    /// Close the session.
    Close(CloseRequest),
    /// A window ran out.
    Expire {
        /// Which one.
        expiry: Expiry,
        /// When the session, or the binding, had last been used when that was seen.
        seen_ms: u64,
        /// Whether the session is to be closed, rather than one binding ended.
        closes: bool,
    },
    /// Start the conversation anew.
    NewConversation,
    /// Change a setting.
    Set(Setting),
    /// Answer a permission.
    AnswerPermission {
        /// Which one.
        permission_id: String,
        /// With which option.
        option_id: String,
        /// Who answers.
        by: String,
    },
}

/// Answers to commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answered {
    /// To [`Command::Prompt`].
    Prompt(PromptAccepted),
    /// To [`Command::Cancel`].
    Cancel(Cancelled),
    /// To [`Command::Queued`].
    Queued(QueuedNow),
    /// To commands on the session as a whole.
    Now(SessionNow),
    /// To [`Command::AnswerPermission`].
    Done,
}

/// News of the lease in use. The driver drops news of other leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeaseNews {
    /// The supervisor is there (again): go on with the lease.
    Connected,
    /// It runs.
    Spawned,
    /// It could not be started; nothing of it is left.
    SpawnRefused {
        /// Why.
        code: RefusalCode,
        /// In words.
        message: String,
        /// Whether the supervisor can be asked again for the same lease after this many milliseconds.
        retry_after_ms: Option<u64>,
    },
    /// Output will follow.
    Attached(Attached),
    /// The supervisor does not know it (any more): nothing can be said about its streams.
    Unknown,
    /// Its streams cannot be served just now; to be asked again.
    StreamsBusy,
    /// The supervisor has forgotten output that we have not committed (H7).
    OffsetGone,
    /// Bytes of its stdout.
    Output {
        /// Offset of the first one.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A message is in the pipe.
    Written {
        /// Its number.
        seq: u64,
    },
    /// A message was not taken.
    InputRefused {
        /// Its number.
        seq: u64,
        /// Why.
        code: RefusalCode,
    },
    /// The adapter ended and its output is complete.
    Exited {
        /// How.
        status: ExitStatus,
        /// Where its output ends.
        end_offset: u64,
        /// Highest number written.
        stdin_written: u64,
    },
    /// Its state changed to one of the ended ones.
    Changed,
}

/// How this session's agent is started and treated; from configuration and preset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Profile {
    /// Program and arguments.
    pub(crate) argv: Vec<String>,
    /// The program and the session's directories were looked up; no agent is started before.
    pub(crate) is_looked_up: bool,
    /// The whole environment.
    pub(crate) env: Vec<(String, String)>,
    /// How long each step of its end may take.
    pub(crate) graces: Graces,
    /// How long it may take to open a session.
    pub(crate) init_ms: u64,
    /// The mode to set, so that it asks; a session's own setting goes before.
    pub(crate) mode: Option<String>,
    /// True for an agent that asks without an asking mode.
    pub(crate) asks: bool,
    /// Config options to set; a session's own go on top.
    pub(crate) options: Vec<(String, String)>,
    /// MCP servers; a session's own go before those of the same name.
    pub(crate) mcp_servers: Vec<McpServer>,
    /// Additional absolute directories; a session's own follow.
    pub(crate) additional_directories: Vec<String>,
    /// File requests that are offered.
    pub(crate) client_fs: ClientFs,
    /// Whether `terminal/*` is offered.
    pub(crate) offer_terminal: bool,
    /// Permission mode of new sessions.
    pub(crate) permission: PermissionMode,
    /// What new sessions do when nobody can be asked.
    pub(crate) non_interactive: NonInteractive,
    /// Why the agent must not be started; only what runs is followed.
    pub(crate) refused: Option<Failure>,
}

impl Profile {
    /// What is left of a profile when configuration does not have it any more: enough to follow the process
    /// that runs, not to start another one.
    pub(crate) fn of_running(spawn: Option<&Spawn>, refused: Failure) -> Self {
        Self {
            argv: spawn.map(|spawn| spawn.argv.clone()).unwrap_or_default(),
            is_looked_up: false,
            env: spawn.map(|spawn| spawn.env.clone()).unwrap_or_default(),
            graces: spawn.map(|spawn| spawn.graces).unwrap_or_default(),
            init_ms: 60_000,
            mode: None,
            asks: false,
            options: Vec::new(),
            mcp_servers: Vec::new(),
            additional_directories: Vec::new(),
            client_fs: ClientFs::None,
            offer_terminal: false,
            permission: PermissionMode::DenyAll,
            non_interactive: NonInteractive::Deny,
            refused: Some(refused),
        }
    }
}

/// Bounds and deadlines of every session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Runs that may wait.
    pub(crate) queue_runs_max: usize,
    /// Bytes of one prompt.
    pub(crate) prompt_bytes_max: usize,
    /// Bytes of one line of an agent (H2).
    pub(crate) line_bytes_max: usize,
    /// How long an agent may take to settle a cancel before its process is ended.
    pub(crate) cancel_ms: u64,
    /// How long a closed session waits for its cancelled turn before EOF.
    pub(crate) close_wait_ms: u64,
    /// How long a turn may take that was given no time of its own; 0 has no limit.
    pub(crate) turn_ms: u64,
    /// After this long a turn is given up whose agent was not found again.
    pub(crate) reconcile_ms: u64,
    /// An agent that was idle this long is ended, if its conversation can be resumed; 0 never.
    pub(crate) runtime_idle_ms: u64,
    /// After this long without a word in a turn it is said to be silent.
    pub(crate) silent_ms: u64,
    /// How often an idle agent is asked whether it is there; 0 never asks.
    pub(crate) probe_ms: u64,
    /// How long it may take to answer that.
    pub(crate) alive_ms: u64,
    /// How long a permission waits for an answer; 0 waits for ever.
    pub(crate) permission_ms: u64,
}
