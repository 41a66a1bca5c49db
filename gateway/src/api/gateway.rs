//! What the gateway says of itself: its health, its backends, its agents.

use acp_shared::ids::AgentName;
use serde::{Deserialize, Serialize};

/// `GET /v1/health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HealthView {
    /// Whether the gateway answers.
    pub(crate) ok: bool,
    /// True when sessions can be started: every backend is well.
    #[serde(default)]
    pub(crate) ready: bool,
    /// Its pid.
    pub(crate) pid: u32,
    /// Its package version.
    pub(crate) version: String,
}

/// `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StatusView {
    /// The gateway's pid.
    pub(crate) pid: u32,
    /// Its package version.
    pub(crate) version: String,
    /// Its instance id.
    pub(crate) gateway_instance_id: String,
    /// Its state directory.
    pub(crate) state_dir: String,
    /// When it started, milliseconds since the Unix epoch.
    pub(crate) started_at_ms: u64,
    /// The supervisor it uses.
    pub(crate) supervisor: SupervisorView,
    /// Whether prompts reach agents (`acp.dispatch.enabled`).
    pub(crate) dispatch_enabled: bool,
    /// The commit's durability: `full` or `normal`.
    pub(crate) durability: String,
    /// The configuration that holds; absent from older gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) config: Option<ConfigView>,
    /// The runtime backends.
    #[serde(default)]
    pub(crate) backends: Vec<BackendView>,
    /// The accounts of channels that have a service behind them.
    #[serde(default)]
    pub(crate) accounts: Vec<AccountView>,
    /// The control plane's database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<StoreView>,
}

/// The configuration that a gateway has loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConfigView {
    /// Path of the file; absent without one.
    pub(crate) file: Option<String>,
    /// SHA-256 of the file's text, in hexadecimal.
    pub(crate) sha256: Option<String>,
}

/// The control plane's database as the gateway sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreView {
    /// `well`, or why nothing can be committed: `full`, `read_only`, `gone`, `damaged`, `failing`.
    pub(crate) health: String,
    /// Size of the database.
    pub(crate) bytes: u64,
    /// Size of its log.
    pub(crate) log_bytes: u64,
    /// Sessions that are not closed.
    pub(crate) sessions_open: u64,
    /// Runs that wait for their turn.
    pub(crate) runs_queued: u64,
    /// Messages that something is still to be done about.
    pub(crate) inbox_waiting: u64,
    /// Active bindings that lead nowhere.
    pub(crate) stale_bindings: u64,
    /// Where they are, at most 20: `console/default/room -> KEY (session-closed)`.
    #[serde(default)]
    pub(crate) stale: Vec<String>,
    /// Actors that have been at one thing for too long.
    pub(crate) actors_stuck: u64,
    /// Sessions and conversations that stand still until the database is repaired, at most 20, each with its reason.
    #[serde(default)]
    pub(crate) still: Vec<String>,
}

/// A runtime backend as the gateway sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackendView {
    /// Its name in configuration.
    pub(crate) id: String,
    /// Whether it can be used.
    pub(crate) ok: bool,
    /// For people.
    pub(crate) details: String,
}

/// An account of a channel as the gateway sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AccountView {
    /// The channel, e.g. `discord`.
    pub(crate) channel: String,
    /// Its name in configuration.
    pub(crate) account: String,
    /// Whether it can hear and speak.
    pub(crate) ok: bool,
    /// For people.
    pub(crate) details: String,
}

/// The supervisor as the gateway sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SupervisorView {
    /// Its socket.
    pub(crate) socket: String,
    /// Whether the connection is open now.
    pub(crate) connected: bool,
    /// Its pid, while connected.
    pub(crate) pid: Option<i32>,
    /// What to know about it, in words.
    pub(crate) detail: String,
}

/// `GET /v1/agents`: one agent that is configured or built in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentView {
    /// The name to spawn it by.
    pub(crate) name: AgentName,
    /// What people call it.
    pub(crate) title: String,
    /// `built-in` or `configured`.
    pub(crate) origin: String,
    /// Program and arguments that would be started.
    pub(crate) command: Vec<String>,
    /// The program's file; absent when it is not installed here.
    pub(crate) path: Option<String>,
    /// Whether it could be started here.
    pub(crate) installed: bool,
    /// Whether `acp.allowed_agents` lets it be spawned.
    pub(crate) allowed: bool,
    /// Whether a spawn that names no agent takes it.
    pub(crate) default: bool,
    /// What to do when it is not installed, or what else to know.
    pub(crate) note: Option<String>,
}
