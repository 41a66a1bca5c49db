//! Responses about the gateway itself: health, status, backends and agents.

use acp_shared::ids::AgentName;
use serde::{Deserialize, Serialize};

/// `GET /v1/health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HealthView {
    /// True if the gateway answers.
    pub(crate) ok: bool,
    /// True if sessions can be started: all backends are healthy.
    #[serde(default)]
    pub(crate) ready: bool,
    /// Process id of the gateway.
    pub(crate) pid: u32,
    /// Package version of the gateway.
    pub(crate) version: String,
}

/// `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StatusView {
    /// Process id of the gateway.
    pub(crate) pid: u32,
    /// Package version of the gateway.
    pub(crate) version: String,
    /// Instance id of the gateway.
    pub(crate) gateway_instance_id: String,
    /// State directory.
    pub(crate) state_dir: String,
    /// Start time, milliseconds since the Unix epoch.
    pub(crate) started_at_ms: u64,
    /// Supervisor in use.
    pub(crate) supervisor: SupervisorView,
    /// True if prompts are sent to agents (`acp.dispatch.enabled`).
    pub(crate) dispatch_enabled: bool,
    /// Durability of commits: `full` or `normal`.
    pub(crate) durability: String,
    /// Live configuration; absent from older gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) config: Option<ConfigView>,
    /// Runtime backends.
    #[serde(default)]
    pub(crate) backends: Vec<BackendView>,
    /// Channel accounts that connect to a service.
    #[serde(default)]
    pub(crate) accounts: Vec<AccountView>,
    /// Database of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<StoreView>,
}

/// Configuration loaded by the gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConfigView {
    /// Path of the file; absent without one.
    pub(crate) file: Option<String>,
    /// SHA-256 of the file's text, in hexadecimal.
    pub(crate) sha256: Option<String>,
}

/// State of the control plane's database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreView {
    /// `well`, or the reason why commits fail: `full`, `read_only`, `gone`, `damaged`, `failing`.
    pub(crate) health: String,
    /// Size of the database, in bytes.
    pub(crate) bytes: u64,
    /// Size of the database's WAL, in bytes.
    pub(crate) log_bytes: u64,
    /// Number of sessions that are not closed.
    pub(crate) sessions_open: u64,
    /// Number of queued runs.
    pub(crate) runs_queued: u64,
    /// Number of unsettled inbox messages.
    pub(crate) inbox_waiting: u64,
    /// Number of active or parked bindings whose session is closed or missing.
    pub(crate) stale_bindings: u64,
    /// Stale bindings, at most 20: `console/default/room -> KEY (session-closed)`.
    #[serde(default)]
    pub(crate) stale: Vec<String>,
    /// Number of actors whose current step takes too long.
    pub(crate) actors_stuck: u64,
    /// Sessions and conversations blocked until the database is repaired, at most 20, each with its reason.
    #[serde(default)]
    pub(crate) still: Vec<String>,
}

/// State of a runtime backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackendView {
    /// Name of the backend in the configuration.
    pub(crate) id: String,
    /// True if the backend can be used.
    pub(crate) ok: bool,
    /// Description for people.
    pub(crate) details: String,
}

/// State of a channel account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AccountView {
    /// Channel, e.g. `discord`.
    pub(crate) channel: String,
    /// Name of the account in the configuration.
    pub(crate) account: String,
    /// True if the account can receive and send messages.
    pub(crate) ok: bool,
    /// Description for people.
    pub(crate) details: String,
}

/// State of the connection to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SupervisorView {
    /// Socket of the supervisor.
    pub(crate) socket: String,
    /// True while the connection is open.
    pub(crate) connected: bool,
    /// Process id of the supervisor, while connected.
    pub(crate) pid: Option<i32>,
    /// Description for people.
    pub(crate) detail: String,
}

/// `GET /v1/agents`: one configured or built-in agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentView {
    /// Name for a spawn.
    pub(crate) name: AgentName,
    /// Display name.
    pub(crate) title: String,
    /// `built-in` or `configured`.
    pub(crate) origin: String,
    /// Program and arguments of the agent process.
    pub(crate) command: Vec<String>,
    /// Path of the program; absent if the program is not installed.
    pub(crate) path: Option<String>,
    /// True if the program is installed.
    pub(crate) installed: bool,
    /// True if `acp.allowed_agents` permits the agent.
    pub(crate) allowed: bool,
    /// True for the default agent of a spawn.
    pub(crate) default: bool,
    /// Installation hint, or another remark.
    pub(crate) note: Option<String>,
}
