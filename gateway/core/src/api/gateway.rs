//! Responses about the gateway itself: health, status, backends and agents.

use super::HostView;
use acp_shared::ids::AgentName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthView {
    /// True if the gateway answers.
    pub ok: bool,
    /// True if sessions can be started: all backends are healthy.
    #[serde(default)]
    pub ready: bool,
    /// Process id of the gateway.
    pub pid: u32,
    /// Package version of the gateway.
    pub version: String,
}

/// `GET /v1/capabilities`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CapabilitiesView {
    /// Package version of the gateway.
    pub version: String,
    /// Version of the event lines.
    pub event_version: u32,
    /// Path of the OpenAPI document.
    pub openapi: String,
    /// Types of events, as in event lines and in the filter `kind`.
    pub event_types: Vec<String>,
    /// Limits of requests.
    pub limits: LimitsView,
}

/// Limits of requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitsView {
    /// Maximum size of a request body, in bytes.
    pub body_bytes_max: u64,
    /// Maximum number of connections; three quarters of them may be event streams.
    pub connections_max: u64,
    /// Maximum number of sessions in one list.
    pub sessions_max: u64,
    /// Maximum size of a file that can be read, in bytes.
    pub file_bytes_max: u64,
}

/// `GET /v1/owner`: the gateway that serves the control plane. At a gateway that does not serve it, status 503 and the members
/// of an error come with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnerView {
    /// True at the gateway that serves.
    pub serves: bool,
    /// Cell of the control plane; absent if it is a file of this gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<String>,
    /// Gateway with the cell; null if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<CellOwnerView>,
}

/// Description of the gateway with the cell, written by the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CellOwnerView {
    /// Number of starts on the cell: each owner has a higher one.
    pub epoch: u64,
    /// Time when it took the cell, milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// Name of its machine.
    pub host: String,
    /// Process id on that machine.
    pub pid: u32,
    /// TCP addresses of its API.
    pub addresses: Vec<String>,
}

/// `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StatusView {
    /// Process id of the gateway.
    pub pid: u32,
    /// Package version of the gateway.
    pub version: String,
    /// Instance id of the gateway.
    pub gateway_instance_id: String,
    /// State directory.
    pub state_dir: String,
    /// Start time, milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// Supervisor in use.
    pub supervisor: SupervisorView,
    /// True if prompts are sent to agents (`acp.dispatch.enabled`).
    pub dispatch_enabled: bool,
    /// Durability of commits: `full` or `normal`.
    pub durability: String,
    /// Live configuration; absent from older gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ConfigView>,
    /// Runtime backends.
    #[serde(default)]
    pub backends: Vec<BackendView>,
    /// Channel accounts that connect to a service.
    #[serde(default)]
    pub accounts: Vec<AccountView>,
    /// Machines that run agents; empty if only the gateway's own does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostView>,
    /// Listeners of the API besides the socket in the state directory.
    #[serde(default)]
    pub listeners: Vec<ListenerView>,
    /// Database of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreView>,
}

/// State of a listener of the API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListenerView {
    /// Address, or path of a socket.
    pub address: String,
    /// True if connections are accepted.
    pub ok: bool,
    /// True if tokens and prompts can be read on the way.
    pub plaintext: bool,
    /// Description for people.
    pub details: String,
}

/// Configuration loaded by the gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConfigView {
    /// Path of the file; absent without one.
    pub file: Option<String>,
    /// SHA-256 of the file's text, in hexadecimal.
    pub sha256: Option<String>,
}

/// State of the control plane's database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreView {
    /// `well`, or the reason why commits fail: `full`, `read_only`, `gone`, `damaged`, `failing`.
    pub health: String,
    /// Size of the database, in bytes.
    pub bytes: u64,
    /// Size of the database's WAL, in bytes.
    pub log_bytes: u64,
    /// Number of sessions that are not closed.
    pub sessions_open: u64,
    /// Number of queued runs.
    pub runs_queued: u64,
    /// Number of unsettled inbox messages.
    pub inbox_waiting: u64,
    /// Number of active or parked bindings whose session is closed or missing.
    pub stale_bindings: u64,
    /// Stale bindings, at most 20: `console/default/room -> KEY (session-closed)`.
    #[serde(default)]
    pub stale: Vec<String>,
    /// Number of actors whose current step takes too long.
    pub actors_stuck: u64,
    /// Sessions and conversations blocked until the database is repaired, at most 20, each with its reason.
    #[serde(default)]
    pub still: Vec<String>,
}

/// State of a runtime backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackendView {
    /// Name of the backend in the configuration.
    pub id: String,
    /// True if the backend can be used.
    pub ok: bool,
    /// Description for people.
    pub details: String,
}

/// State of a channel account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccountView {
    /// Channel, e.g. `discord`.
    pub channel: String,
    /// Name of the account in the configuration.
    pub account: String,
    /// True if the account can receive and send messages.
    pub ok: bool,
    /// Description for people.
    pub details: String,
}

/// State of the connection to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SupervisorView {
    /// Socket of the supervisor.
    pub socket: String,
    /// True while the connection is open.
    pub connected: bool,
    /// Process id of the supervisor, while connected.
    pub pid: Option<i32>,
    /// Description for people.
    pub detail: String,
}

/// `GET /v1/agents`: one configured or built-in agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentView {
    /// Name for a spawn.
    #[schema(value_type = String)]
    pub name: AgentName,
    /// Display name.
    pub title: String,
    /// `built-in` or `configured`.
    pub origin: String,
    /// Program and arguments of the agent process.
    pub command: Vec<String>,
    /// Path of the program; absent if the program is not installed.
    pub path: Option<String>,
    /// True if the program is installed.
    pub installed: bool,
    /// True if `acp.allowed_agents` permits the agent.
    pub allowed: bool,
    /// True for the default agent of a spawn.
    pub default: bool,
    /// Installation hint, or another remark.
    pub note: Option<String>,
}
