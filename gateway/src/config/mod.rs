//! The gateway's configuration: one TOML file. Keys are those of the source document in snake case; what the
//! document does not have is marked "ours". Unknown keys are refused, a number out of its bounds is refused rather
//! than bent, and for every value it is known where it came from. What holds for a conversation, an account or an
//! agent is worked out in `core/policy`. Keys that this version does not use are listed in [`unused`].

pub(crate) mod agent;
pub(crate) mod bindings;
pub(crate) mod channels;
pub(crate) mod check;
pub(crate) mod load;
pub(crate) mod mcp;
pub(crate) mod reload;
pub(crate) mod source;
pub(crate) mod stream;
#[cfg(test)]
mod tests;
pub(crate) mod unused;

pub(crate) use agent::{Agent, Backend, Backends, ClientFs};
pub(crate) use bindings::{Binding, SessionMode};
pub(crate) use channels::{Channels, DiscordAccount, Session};
pub(crate) use mcp::{McpServer, McpTransport, Secret};
pub(crate) use stream::{DeliveryMode, Separator, Stream};

use acp_shared::ids::AgentName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What happens when an agent asks for a permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PermissionMode {
    /// Everything is allowed.
    ApproveAll,
    /// Reading and searching is allowed, the rest is asked.
    ApproveReads,
    /// Everything is refused.
    DenyAll,
    /// A person is asked.
    Ask,
}

/// What happens when an agent asks and nobody can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NonInteractive {
    /// The permission is refused and the turn goes on.
    Deny,
    /// The run ends with `PERMISSION_PROMPT_UNAVAILABLE`.
    Fail,
}

/// Everything that can be configured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// `acp.*`: sessions and the control plane.
    pub(crate) acp: Acp,
    /// `session.*`: how long sessions and their bindings last.
    pub(crate) session: Session,
    /// `channels.*`: where conversations live.
    pub(crate) channels: Channels,
    /// `[[bindings]]`: conversations that the configuration binds to sessions. Default: none.
    pub(crate) bindings: Vec<Binding>,
    /// `backends.*`: what holds for all agents of a runtime backend.
    pub(crate) backends: Backends,
    /// `agents.NAME`: agents beyond the built-in table, and settings of built-in ones. Default: none.
    pub(crate) agents: BTreeMap<AgentName, Agent>,
    /// `[[mcp_servers]]`: MCP servers that every agent is given. Default: none.
    pub(crate) mcp_servers: Vec<McpServer>,
    /// `permission.*`: what happens when an agent asks.
    pub(crate) permission: Permission,
    /// `limits.*`: caps and watchdogs (ours).
    pub(crate) limits: Limits,
    /// `supervisor.*`: where the supervisor is (ours).
    pub(crate) supervisor: Supervisor,
    /// `log.*`: what is logged (ours).
    pub(crate) log: Log,
    /// `metrics.*`: who may scrape (ours).
    pub(crate) metrics: Metrics,
}

/// `acp.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Acp {
    /// Off, nothing is spawned, bound or said to an agent; what runs can be watched, cancelled and closed.
    /// Default: true. Source: `acp.enabled`.
    pub(crate) enabled: bool,
    /// `acp.dispatch.*`.
    pub(crate) dispatch: Dispatch,
    /// Runtime backend of new sessions. Default: `direct` (the source's is `acpx`). Source: `acp.backend`.
    pub(crate) backend: String,
    /// Agent of a spawn that names none. Default: none, such a spawn is refused. Source: `acp.defaultAgent`.
    pub(crate) default_agent: Option<AgentName>,
    /// Agents that may be spawned; empty allows all that are known. Default: empty. Source: `acp.allowedAgents`.
    pub(crate) allowed_agents: Vec<AgentName>,
    /// Working directory of a spawn that names none. Default: none, the home directory. Ours.
    pub(crate) default_cwd: Option<PathBuf>,
    /// Directories beneath which every session works, symbolic links followed; empty allows all.
    /// `agents.NAME.cwd_roots` narrows it further. Default: empty. Source: "restrict workspace roots".
    pub(crate) workspace_roots: Vec<PathBuf>,
    /// Variables of the gateway that every agent may see beside the usual ones; `NAME*` names all that begin so.
    /// Default: none. Source: "env allowlist passthrough".
    pub(crate) env_allow: Vec<String>,
    /// Additional directories of every session: roots for its files and commands. Default: empty. Ours.
    pub(crate) additional_directories: Vec<PathBuf>,
    /// Sessions that are in use at one time: closed ones do not count, nor those at rest or in error without a process.
    /// Default: 64. Source: `acp.maxConcurrentSessions`.
    pub(crate) max_concurrent_sessions: u64,
    /// The same for each account of a channel; a session belongs to the account it was first bound in. 0: no cap
    /// of its own. Default: 0. Source: "max concurrent ACP sessions per account".
    pub(crate) max_concurrent_sessions_per_account: u64,
    /// `acp.stream.*`.
    pub(crate) stream: Stream,
    /// `acp.runtime.*`.
    pub(crate) runtime: Runtime,
    /// `acp.control_plane.*`.
    pub(crate) control_plane: ControlPlane,
    /// `acp.idempotency.*`.
    pub(crate) idempotency: Idempotency,
}

impl Default for Acp {
    fn default() -> Self {
        Self {
            enabled: true,
            dispatch: Dispatch::default(),
            backend: "direct".to_owned(),
            default_agent: None,
            allowed_agents: Vec::new(),
            default_cwd: None,
            workspace_roots: Vec::new(),
            env_allow: Vec::new(),
            additional_directories: Vec::new(),
            max_concurrent_sessions: 64,
            max_concurrent_sessions_per_account: 0,
            stream: Stream::default(),
            runtime: Runtime::default(),
            control_plane: ControlPlane::default(),
            idempotency: Idempotency::default(),
        }
    }
}

/// `acp.dispatch.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Dispatch {
    /// Whether prompts reach agents; off, sessions can be spawned and bound, and turns are refused aloud.
    /// Default: true (the source's first release: false). Source: `acp.dispatch.enabled`.
    pub(crate) enabled: bool,
}

impl Default for Dispatch {
    fn default() -> Self {
        Self { enabled: true }
    }
}

/// `acp.runtime.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Runtime {
    /// An agent process that was idle this long is ended; the session goes on with the next prompt. 0: never.
    /// An agent whose conversation cannot be resumed is left alone. Default: 0. Source: `acp.runtime.ttlMinutes`.
    pub(crate) ttl_minutes: u64,
    /// How the runtime backend is installed, said when it is missing. Default: none.
    /// Source: `acp.runtime.installCommand`.
    pub(crate) install_command: Option<String>,
}

/// What stores the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StoreKind {
    /// SQLite in WAL mode.
    Sqlite,
}

/// When a commit counts as durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Durability {
    /// `synchronous=FULL`: survives a loss of power.
    Full,
    /// `synchronous=NORMAL`: survives the death of any process; a loss of power may take the last moments.
    Normal,
}

/// `acp.control_plane.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ControlPlane {
    /// What stores it. Default: `sqlite`, the only one; another is refused. Source: `acp.controlPlane.store`.
    pub(crate) store: StoreKind,
    /// The database file. It is `gateway.db` in the state directory, beside its lock, and a gateway that is told
    /// another place refuses to start. Default: none. Source: `acp.controlPlane.storePath`.
    pub(crate) store_path: Option<PathBuf>,
    /// When a commit counts as durable. Default: `full`. Ours.
    pub(crate) durability: Durability,
    /// `acp.control_plane.recovery.*`.
    pub(crate) recovery: Recovery,
    /// `acp.control_plane.checkpoint.*`.
    pub(crate) checkpoint: Checkpoint,
}

impl Default for ControlPlane {
    fn default() -> Self {
        Self {
            store: StoreKind::Sqlite,
            store_path: None,
            durability: Durability::Full,
            recovery: Recovery::default(),
            checkpoint: Checkpoint::default(),
        }
    }
}

/// `acp.control_plane.recovery.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Recovery {
    /// Resting sessions whose actor is made at start rather than on first use, the ones used last; those with
    /// unfinished work or a living agent always are. Default: 16. Source: `acp.controlPlane.recovery.eagerActors`.
    pub(crate) eager_actors: u64,
    /// A run that runs, and whose agent is out of reach (after a start of the gateway, or without the supervisor), is
    /// given up after this long. Default: 30000. Source: `acp.controlPlane.recovery.reconcileRunningAfterMs`.
    pub(crate) reconcile_running_after_ms: u64,
}

impl Default for Recovery {
    fn default() -> Self {
        Self { eager_actors: 16, reconcile_running_after_ms: 30_000 }
    }
}

/// `acp.control_plane.checkpoint.*`: how much one group commit may hold. A commit takes what is ready and never waits
/// for more, so neither of these delays an answer: each follows its own commit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Checkpoint {
    /// A commit takes no more once it holds this many events of the journal. Default: 256.
    /// Source: `…checkpoint.flushEveryEvents`.
    pub(crate) flush_every_events: u64,
    /// A commit takes no more once it has been open this long. Default: 250. Source: `…checkpoint.flushEveryMs`.
    pub(crate) flush_every_ms: u64,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { flush_every_events: 256, flush_every_ms: 250 }
    }
}

/// `acp.idempotency.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Idempotency {
    /// How long the answer to a command is kept for a repetition. Default: 72. Source: `acp.idempotency.ttlHours`.
    pub(crate) ttl_hours: u64,
}

impl Default for Idempotency {
    fn default() -> Self {
        Self { ttl_hours: 72 }
    }
}

/// `permission.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Permission {
    /// What happens when an agent asks, unless the agent or the session says otherwise. Default: `ask`.
    pub(crate) mode: PermissionMode,
    /// What happens when nobody can be asked. Default: `deny`. Source: `nonInteractivePermissions`.
    pub(crate) non_interactive_permissions: NonInteractive,
    /// How long a question waits for an answer before it counts as refused; 0 waits for ever. Default: 600000. Ours.
    pub(crate) timeout_ms: u64,
}

impl Default for Permission {
    fn default() -> Self {
        Self {
            mode: PermissionMode::Ask,
            non_interactive_permissions: NonInteractive::Deny,
            timeout_ms: 600_000,
        }
    }
}

/// `limits.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Limits {
    /// Runs that have not ended in one session, unless the backend or the agent says otherwise. Default: 16.
    /// Source: the backend's max inflight runs per session.
    pub(crate) queue_runs_max: u64,
    /// Longest prompt. Default: 4 MiB.
    pub(crate) prompt_bytes_max: u64,
    /// Longest turn of a session without a timeout of its own; then the agent is asked to stop. Default: 172800000, two days.
    /// Source: timeout budgets.
    pub(crate) turn_ms: u64,
    /// A turn without any update for this long is said to be silent. Default: 120000.
    pub(crate) turn_silent_ms: u64,
    /// A cancelled turn that the agent has not ended after this long loses its process. Default: 30000.
    pub(crate) cancel_stuck_ms: u64,
    /// Connections to the local API at one time; three quarters of them may be event streams. Default: 128.
    pub(crate) connections_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_runs_max: 16,
            prompt_bytes_max: 4 * 1024 * 1024,
            turn_ms: 48 * 3_600_000,
            turn_silent_ms: 120_000,
            cancel_stuck_ms: 30_000,
            connections_max: 128,
        }
    }
}

/// `supervisor.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Supervisor {
    /// Its socket. Default: none, `supervisor/supervisor.sock` in the state directory.
    pub(crate) socket: Option<PathBuf>,
    /// The file with the secret that it wants to hear. Default: none, `secret` beside the socket.
    pub(crate) secret_file: Option<PathBuf>,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// `log.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Log {
    /// Which lines: `error`, `warn`, `info`, `debug`, `trace`, or directives such as
    /// `info,acp_gateway::http=debug`. Default: `info`.
    pub(crate) level: String,
    /// How they look. Default: `text`.
    pub(crate) format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::Text }
    }
}

/// `metrics.*`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Metrics {
    /// Address of this machine, e.g. `127.0.0.1:9464`, where `GET /metrics` is answered too, for collectors that
    /// cannot use the Unix socket. Any program of the machine may then read the numbers. Default: none. Ours.
    pub(crate) listen: Option<SocketAddr>,
}
