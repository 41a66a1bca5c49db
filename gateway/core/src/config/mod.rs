//! Configuration of the gateway: one TOML file. Keys are those of the source document in snake case; keys
//! that the document does not have are marked "ours". Unknown keys and numbers out of bounds are refused, and
//! the origin of every value is known. `core/policy` computes the effective values of a conversation, an
//! account or an agent.
#![deny(clippy::indexing_slicing)]

pub mod agent;
pub mod bindings;
pub mod channels;
pub mod check;
pub mod load;
pub mod mcp;
pub mod northbound;
pub mod notify;
pub mod reload;
pub mod remote;
pub mod source;
pub mod stream;
#[cfg(test)]
mod tests;
mod tools;

pub use agent::{AcpxBackend, AgentConfig, Backend, Backends, ClientFs};
pub use bindings::{Binding, SessionMode};
pub use channels::{Channels, DiscordAccount, SessionConfig};
pub use mcp::{McpServer, McpTransport, Secret};
pub use northbound::{NorthboundConfig, ProxyConfig};
pub use notify::{NotifyEvent, NotifyTarget};
pub use remote::{HostConfig, RemoteConfig};
pub use stream::{DeliveryMode, Separator, Stream};
pub use tools::{SandboxConfig, SessionToolsConfig, ToolsConfig};

use crate::retention::RetentionPolicy;
use acp_shared::ids::AgentName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use utoipa::ToSchema;

/// Length of a day, in milliseconds.
const DAY_MS: u64 = 24 * 3_600_000;

/// Handling of an agent's permission requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PermissionMode {
    /// Every request is allowed.
    ApproveAll,
    /// Reading and searching are allowed; a person decides the rest.
    ApproveReads,
    /// Every request is denied.
    DenyAll,
    /// A person decides.
    Ask,
}

/// Outcome of a permission request without a person to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NonInteractive {
    /// The request is denied and the turn continues.
    Deny,
    /// The run ends with `PERMISSION_PROMPT_UNAVAILABLE`.
    Fail,
}

/// All configuration sections.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `acp.*`: sessions and the control plane.
    pub acp: Acp,
    /// `session.*`: timeouts of sessions and their bindings.
    pub session: SessionConfig,
    /// `journal.*`: retention of the journal (ours).
    pub journal: JournalConfig,
    /// `channels.*`: channels and their accounts.
    pub channels: Channels,
    /// `[[bindings]]`: static bindings of conversations to sessions. Default: none.
    pub bindings: Vec<Binding>,
    /// `acpx.*`: machine contract of acpx (ours).
    pub acpx: AcpxConfig,
    /// `backends.*`: settings for all agents of a runtime backend.
    pub backends: Backends,
    /// `agents.NAME`: agents beyond the built-in table, and settings of built-in ones. Default: none.
    pub agents: BTreeMap<AgentName, AgentConfig>,
    /// `[[mcp_servers]]`: MCP servers of every agent. Default: none.
    pub mcp_servers: Vec<McpServer>,
    /// `[[notify]]`: webhooks for events of sessions (ours). Default: none.
    pub notify: Vec<NotifyTarget>,
    /// `permission.*`: handling of permission requests.
    pub permission: PermissionConfig,
    /// `limits.*`: caps and watchdogs (ours).
    pub limits: LimitsConfig,
    /// `supervisor.*`: connection to the supervisor (ours).
    pub supervisor: SupervisorConfig,
    /// `remote.*`: other machines that run agents (ours).
    pub remote: RemoteConfig,
    /// `log.*`: log level and format (ours).
    pub log: Log,
    /// `metrics.*`: additional metrics endpoint (ours).
    pub metrics: Metrics,
    /// `northbound.*`: listeners of the API, and clients that speak ACP (ours).
    pub northbound: NorthboundConfig,
    /// `tools.*`: what agents may see and do with other sessions.
    pub tools: ToolsConfig,
    /// `sandbox.*`: limits of agents in a sandbox.
    pub sandbox: SandboxConfig,
}

/// `acpx.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AcpxConfig {
    /// Allows sessions whose agent is a command of the caller (`acpx --agent COMMAND`). `acp.allowed_agents` does not limit
    /// them. Default: false.
    pub allow_commands: bool,
}

/// `acp.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Acp {
    /// Allows spawns, bindings and prompts. If false, existing sessions can only be watched, cancelled and
    /// closed. Default: true. Source: `acp.enabled`.
    pub enabled: bool,
    /// `acp.dispatch.*`.
    pub dispatch: Dispatch,
    /// Runtime backend of new sessions. Default: `direct` (the source's is `acpx`). Source: `acp.backend`.
    pub backend: String,
    /// Agent of a spawn without one. Default: none, such a spawn is refused. Source: `acp.defaultAgent`.
    pub default_agent: Option<AgentName>,
    /// Agents that may be spawned; empty allows all known ones. Default: empty. Source: `acp.allowedAgents`.
    pub allowed_agents: Vec<AgentName>,
    /// Working directory of a spawn without one. Default: none, the home directory. Ours.
    pub default_cwd: Option<PathBuf>,
    /// Directories that must contain the working directory of a session, symbolic links resolved; empty
    /// allows all. `agents.NAME.cwd_roots` narrows them further. Default: empty. Source: "restrict workspace
    /// roots".
    pub workspace_roots: Vec<PathBuf>,
    /// Environment variables of the gateway passed to every agent in addition to the usual ones; `NAME*`
    /// matches a prefix. Default: none. Source: "env allowlist passthrough".
    pub env_allow: Vec<String>,
    /// Additional directories of every session: roots for its files and commands. Default: empty. Ours.
    pub additional_directories: Vec<PathBuf>,
    /// Maximum number of sessions in use: closed ones do not count, nor idle or failed ones without a
    /// process. Default: 64. Source: `acp.maxConcurrentSessions`.
    pub max_concurrent_sessions: u64,
    /// Maximum number of sessions in use per channel account. A session belongs to the account of its first
    /// binding. 0: no limit per account. Default: 0. Source: "max concurrent ACP sessions per account".
    pub max_concurrent_sessions_per_account: u64,
    /// `acp.stream.*`.
    pub stream: Stream,
    /// `acp.runtime.*`.
    pub runtime: Runtime,
    /// `acp.control_plane.*`.
    pub control_plane: ControlPlane,
    /// `acp.idempotency.*`.
    pub idempotency: Idempotency,
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
pub struct Dispatch {
    /// Sends prompts to agents. If false, sessions can be spawned and bound, and prompts are refused with an
    /// error message. Default: true (the source's first release: false). Source: `acp.dispatch.enabled`.
    pub enabled: bool,
}

impl Default for Dispatch {
    fn default() -> Self {
        Self { enabled: true }
    }
}

/// `acp.runtime.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Runtime {
    /// Idle time after which an agent process is ended; its session continues with the next prompt. 0: never.
    /// Agents with a conversation that cannot be resumed are exempt. Default: 30. Source:
    /// `acp.runtime.ttlMinutes`.
    pub ttl_minutes: u64,
    /// Installation command of the runtime backend, shown if the backend is missing. Default: none. Source:
    /// `acp.runtime.installCommand`.
    pub install_command: Option<String>,
}

impl Default for Runtime {
    fn default() -> Self {
        Self { ttl_minutes: 30, install_command: None }
    }
}

/// Storage of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreKind {
    /// SQLite in WAL mode.
    Sqlite,
    /// A cell of a PostgreSQL server.
    Postgres,
}

/// Durability of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// `synchronous=FULL`: survives a power loss.
    Full,
    /// `synchronous=NORMAL`: survives a crash of any process; a power loss may lose the last commits.
    Normal,
}

/// `acp.control_plane.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ControlPlane {
    /// Storage kind: `sqlite` or `postgres`. Default: `sqlite`. Source: `acp.controlPlane.store`.
    pub store: StoreKind,
    /// `acp.control_plane.postgres.*`: server and cell of the kind `postgres`.
    pub postgres: PostgresStore,
    /// Path of the database file: `gateway.db` in the state directory, next to its lock. A gateway refuses to
    /// start with another path. Default: none. Source: `acp.controlPlane.storePath`.
    pub store_path: Option<PathBuf>,
    /// Durability of a commit of SQLite. Default: `full`. Ours.
    pub durability: Durability,
    /// `acp.control_plane.recovery.*`.
    pub recovery: Recovery,
    /// `acp.control_plane.checkpoint.*`.
    pub checkpoint: Checkpoint,
}

impl Default for ControlPlane {
    fn default() -> Self {
        Self {
            store: StoreKind::Sqlite,
            postgres: PostgresStore::default(),
            store_path: None,
            durability: Durability::Full,
            recovery: Recovery::default(),
            checkpoint: Checkpoint::default(),
        }
    }
}

/// `acp.control_plane.postgres.*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PostgresStore {
    /// File with the connection URL of the server, for this user alone. Default: none, required by the kind `postgres`. Ours.
    pub address_file: Option<PathBuf>,
    /// Name of the cell: a schema `acp_NAME` of the database, served by one gateway at a time. Default: `main`. Ours.
    pub cell: String,
    /// Accepts a server without a synchronous standby, whose loss can lose acknowledged work. Default: false. Ours.
    pub allow_loss: bool,
    /// PEM file with the authority of the server's certificate. Default: none, the public authorities. Ours.
    pub ca_file: Option<PathBuf>,
}

impl Default for PostgresStore {
    fn default() -> Self {
        Self { address_file: None, cell: "main".to_owned(), allow_loss: false, ca_file: None }
    }
}

impl PostgresStore {
    /// Maximum length of the name of a cell: PostgreSQL's names have at most 63 bytes.
    pub const CELL_BYTES_MAX: usize = 40;

    /// True for the name of a cell: lower-case letters, digits and `_`.
    pub fn is_cell(name: &str) -> bool {
        let is_letter = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'_';
        !name.is_empty() && name.len() <= Self::CELL_BYTES_MAX && name.bytes().all(is_letter)
    }
}

/// `acp.control_plane.recovery.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recovery {
    /// Maximum number of idle sessions whose actors are created at start, the last used first; the others' on
    /// first use. Sessions with unfinished work or a live agent always get one. Default: 16. Source:
    /// `acp.controlPlane.recovery.eagerActors`.
    pub eager_actors: u64,
    /// Time after which a running run is given up while its agent is unreachable (after a start of the
    /// gateway, or without the supervisor). Default: 30000. Source:
    /// `acp.controlPlane.recovery.reconcileRunningAfterMs`.
    pub reconcile_running_after_ms: u64,
}

impl Default for Recovery {
    fn default() -> Self {
        Self { eager_actors: 16, reconcile_running_after_ms: 30_000 }
    }
}

/// `acp.control_plane.checkpoint.*`: bounds of one group commit. A group takes the transactions that are
/// ready and never waits for more, so these bounds do not delay results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// Number of journal events at which a group is closed. Default: 256. Source:
    /// `…checkpoint.flushEveryEvents`.
    pub flush_every_events: u64,
    /// Time since its start at which a group is closed. Default: 250. Source: `…checkpoint.flushEveryMs`.
    pub flush_every_ms: u64,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { flush_every_events: 256, flush_every_ms: 250 }
    }
}

/// `acp.idempotency.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Idempotency {
    /// Retention of stored results of commands. Default: 72. Source: `acp.idempotency.ttlHours`.
    pub ttl_hours: u64,
}

impl Default for Idempotency {
    fn default() -> Self {
        Self { ttl_hours: 72 }
    }
}

/// `journal.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Journal")]
pub struct JournalConfig {
    /// Age in days after which delivered journal rows of ended runs are pruned. 0: never. Default: 0. Ours.
    pub retention_days: u64,
    /// Number of turns that each session keeps, whatever their age. Default: 20. Ours.
    pub keep_turns: u64,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self { retention_days: 0, keep_turns: 20 }
    }
}

impl JournalConfig {
    /// Returns the limits at a time; `None` if the journal is kept for ever.
    pub fn policy(&self, now_ms: u64) -> Option<RetentionPolicy> {
        (self.retention_days > 0).then(|| self.policy_of_days(self.retention_days, now_ms))
    }

    /// Returns the limits at a time for rows of this age; 0 days are rows of any age.
    pub const fn policy_of_days(&self, days: u64, now_ms: u64) -> RetentionPolicy {
        let before_ms = now_ms.saturating_sub(days.saturating_mul(DAY_MS));
        RetentionPolicy { before_ms, keep_turns: self.keep_turns }
    }
}

/// `permission.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Permission")]
pub struct PermissionConfig {
    /// Permission mode, unless the agent or the session sets its own. Default: `ask`.
    pub mode: PermissionMode,
    /// Outcome of unattended permission requests. Default: `deny`. Source: `nonInteractivePermissions`.
    pub non_interactive_permissions: NonInteractive,
    /// Time after which an unanswered permission request is denied; 0 waits for ever. Default: 600000. Ours.
    pub timeout_ms: u64,
}

impl Default for PermissionConfig {
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
#[serde(default, deny_unknown_fields, expecting = "struct Limits")]
pub struct LimitsConfig {
    /// Maximum number of unfinished runs per session, unless the backend or the agent sets its own. Default:
    /// 16. Source: the backend's max inflight runs per session.
    pub queue_runs_max: u64,
    /// Maximum size of a prompt. Default: 4 MiB.
    pub prompt_bytes_max: u64,
    /// Maximum duration of a turn, in sessions without their own; then the agent is asked to stop. Default:
    /// 172800000, two days. Source: timeout budgets.
    pub turn_ms: u64,
    /// Time without updates after which a turn is reported as silent. Default: 120000.
    pub turn_silent_ms: u64,
    /// Time after which an unfinished cancelled turn loses its agent process. Default: 30000.
    pub cancel_stuck_ms: u64,
    /// Maximum number of connections to the local API; three quarters of them may be event streams. Default:
    /// 128.
    pub connections_max: u64,
}

impl Default for LimitsConfig {
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Supervisor")]
pub struct SupervisorConfig {
    /// Uses the supervisor of this machine. If false, agents run on the hosts of `remote.hosts` only. Default: true.
    pub enabled: bool,
    /// Socket of the supervisor. Default: none, `supervisor/supervisor.sock` in the state directory.
    pub socket: Option<PathBuf>,
    /// File with the secret for the supervisor. Default: none, `secret` next to the socket.
    pub secret_file: Option<PathBuf>,
}

impl Default for SupervisorConfig {
    fn default() -> Self {
        Self { enabled: true, socket: None, secret_file: None }
    }
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// `log.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Log level `error`, `warn`, `info`, `debug`, `trace`, or directives such as
    /// `info,acp_gateway::api=debug`. Default: `info`.
    pub level: String,
    /// Format of log lines. Default: `text`.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::Text }
    }
}

/// `metrics.*`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Loopback address for an additional `GET /metrics`, e.g. `127.0.0.1:9464`, for collectors that cannot
    /// use the Unix socket. Every process of the machine can then read the metrics. Default: none. Ours.
    pub listen: Option<SocketAddr>,
}
