//! The gateway's configuration: one TOML file. Keys are those of the source document in snake case; what the
//! document does not have is marked "ours". Unknown keys are refused, every number is bounded, and for every
//! value it is known where it came from. Keys that this version does not use are listed in [`unused`].

pub(crate) mod check;
pub(crate) mod load;
pub(crate) mod source;
#[cfg(test)]
mod tests;
pub(crate) mod unused;

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
    /// `channels.*`: where conversations live.
    pub(crate) channels: Channels,
    /// `agents.NAME`: agents beyond the built-in table, and settings of built-in ones. Default: none.
    pub(crate) agents: BTreeMap<AgentName, Agent>,
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
    /// Whether sessions can be spawned at all. Default: true. Source: `acp.enabled`.
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
    /// Sessions that are not closed. Default: 64. Source: `acp.maxConcurrentSessions`.
    pub(crate) max_concurrent_sessions: u64,
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
            max_concurrent_sessions: 64,
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

/// `acp.stream.*`: how channels group what an agent says. The journal keeps every chunk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Stream {
    /// A channel shows text after this long without more of it. Not used in this version: conversations get whole
    /// answers. Default: 350. Source: `acp.stream.coalesceIdleMs`.
    pub(crate) coalesce_idle_ms: u64,
    /// Longest part of a message in a channel, in characters. Not used in this version: each channel has its own.
    /// Default: 1800. Source: `acp.stream.maxChunkChars`.
    pub(crate) max_chunk_chars: u64,
}

impl Default for Stream {
    fn default() -> Self {
        Self { coalesce_idle_ms: 350, max_chunk_chars: 1_800 }
    }
}

/// `acp.runtime.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Runtime {
    /// An agent process that was idle this long is ended; the session goes on with the next prompt. 0: never.
    /// Not used in this version: never. Default: 0. Source: `acp.runtime.ttlMinutes`.
    pub(crate) ttl_minutes: u64,
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
    /// What stores it. Default: `sqlite`, the only one: there is nothing to choose. Source: `acp.controlPlane.store`.
    pub(crate) store: StoreKind,
    /// The database file. Not used in this version: it is `gateway.db` in the state directory, beside its lock.
    /// Default: none. Source: `acp.controlPlane.storePath`.
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
    /// Idle sessions whose actor is made at start rather than on first use. Not used in this version: sessions with
    /// unfinished work or a living agent always are, and an idle one costs nothing until it is used. Default: 16. Source: `acp.controlPlane.recovery.eagerActors`.
    pub(crate) eager_actors: u64,
    /// A run found running at start is given up when its agent has not been found again after this long. Not used
    /// in this version: the supervisor says what became of the agent, and nothing is guessed before. Default: 30000. Source: `acp.controlPlane.recovery.reconcileRunningAfterMs`.
    pub(crate) reconcile_running_after_ms: u64,
}

impl Default for Recovery {
    fn default() -> Self {
        Self { eager_actors: 16, reconcile_running_after_ms: 30_000 }
    }
}

/// `acp.control_plane.checkpoint.*`: how far a live message in a channel may lag behind the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Checkpoint {
    /// Written after this many events at the latest. Not used in this version: a checkpoint is committed with the
    /// message that it is about. Default: 64. Source: `…checkpoint.flushEveryEvents`.
    pub(crate) flush_every_events: u64,
    /// Written after this long at the latest. Not used in this version, as above. Default: 250. Source: `…checkpoint.flushEveryMs`.
    pub(crate) flush_every_ms: u64,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { flush_every_events: 64, flush_every_ms: 250 }
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

/// `channels.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Channels {
    /// `channels.discord.*`.
    pub(crate) discord: Discord,
}

/// `channels.discord.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Discord {
    /// `channels.discord.thread_bindings.*`.
    pub(crate) thread_bindings: ThreadBindings,
}

/// `channels.discord.thread_bindings.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ThreadBindings {
    /// Whether `/acp spawn` may bind a session to a thread. Not used in this version: there is no Discord channel.
    /// Default: false.
    /// Source: `channels.discord.threadBindings.spawnAcpSessions`.
    pub(crate) spawn_acp_sessions: bool,
    /// Whether an agent's own spawn may bind to a thread. Not used in this version, as above. Default: false.
    /// Source: `channels.discord.threadBindings.spawnSubagentSessions`.
    pub(crate) spawn_subagent_sessions: bool,
}

/// `agents.NAME`: what is absent comes from the built-in table, then from the defaults.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Agent {
    /// Program and arguments; never a shell line. Default: none, the built-in agent of that name.
    pub(crate) command: Option<Vec<String>>,
    /// Added to the agent's environment. Default: none.
    pub(crate) env: BTreeMap<String, String>,
    /// Variables of the gateway that the agent may see beside the usual ones; `NAME*` names all that begin so.
    /// Default: none.
    pub(crate) env_allow: Vec<String>,
    /// Directories beneath which a session may work; empty allows all. Default: empty.
    pub(crate) cwd_roots: Vec<PathBuf>,
    /// What happens when the agent asks for a permission. Default: none, `permission.mode`.
    pub(crate) permission: Option<PermissionMode>,
    /// What happens when nobody can be asked. Default: none, `permission.non_interactive_permissions`.
    pub(crate) non_interactive_permissions: Option<NonInteractive>,
    /// ACP session mode to set after the session is open. Default: none, the built-in table's.
    pub(crate) mode: Option<String>,
    /// ACP config options to set after the session is open. Default: none.
    pub(crate) config: BTreeMap<String, String>,
    /// From end of file on its standard input to SIGTERM. Default: none, 2000 or the built-in table's.
    pub(crate) eof_ms: Option<u64>,
    /// From SIGTERM to SIGKILL. Default: none, 3000 or the built-in table's.
    pub(crate) term_ms: Option<u64>,
    /// From SIGKILL to naming the survivors. Default: none, 5000 or the built-in table's.
    pub(crate) kill_ms: Option<u64>,
    /// How long the agent may take to open a session. Default: none, 60000 or the built-in table's.
    pub(crate) init_ms: Option<u64>,
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
    /// Runs that wait in one session. Default: 16. Source: the backend's max inflight runs per session.
    pub(crate) queue_runs_max: u64,
    /// Longest prompt. Default: 4 MiB.
    pub(crate) prompt_bytes_max: u64,
    /// A turn without any update for this long is said to be silent. Default: 120000.
    pub(crate) turn_silent_ms: u64,
    /// A cancelled turn that the agent has not ended after this long loses its process. Default: 30000.
    pub(crate) cancel_stuck_ms: u64,
    /// Connections to the local API at one time. Default: 128.
    pub(crate) connections_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_runs_max: 16,
            prompt_bytes_max: 4 * 1024 * 1024,
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
