//! `agents.NAME` and `backends.NAME`: start, environment and termination of agents.

use super::{McpServer, NonInteractive, PermissionMode};
use acp_shared::ids::AgentName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// `backends.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Backends {
    /// `backends.direct.*`: agents that speak ACP with the gateway directly. Their programs are
    /// `agents.NAME.command`.
    pub direct: Backend,
    /// `backends.acpx.*`: agents that are run by the command line of acpx.
    pub acpx: AcpxBackend,
}

/// `backends.acpx.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AcpxBackend {
    /// True if sessions may use this backend. Default: true.
    pub enabled: bool,
    /// Program of acpx and its arguments, found in the gateway's `PATH`. Default: `["acpx"]`.
    pub command: Vec<String>,
    /// Versions of acpx that are used, as a requirement of Cargo. Default: `">=0.19.1, <0.20"`, which this program knows.
    pub versions: String,
    /// Minimum of the time for an agent to open a session. Default: none, 180000.
    pub init_ms: Option<u64>,
    /// Minimum of the time between end of file on standard input and SIGTERM. Default: none, 20000.
    pub eof_ms: Option<u64>,
}

impl Default for AcpxBackend {
    fn default() -> Self {
        let (command, versions) = (vec!["acpx".to_owned()], ">=0.19.1, <0.20".to_owned());
        Self { enabled: true, command, versions, init_ms: None, eof_ms: None }
    }
}

impl Backends {
    /// Returns the section of a backend.
    pub fn get(&self, name: &str) -> Option<&Backend> {
        (name == "direct").then_some(&self.direct)
    }
}

/// `backends.NAME.*`: settings for all agents of a backend without their own. They override the built-in
/// table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Backend {
    /// Environment variables of the gateway passed to the backend's agents in addition to the usual ones.
    /// Default: none. Source: the backend's env allowlist.
    pub env_allow: Vec<String>,
    /// Maximum time for an agent to open a session. Default: none, the built-in table's or 60000. Source: the
    /// backend's startup timeout.
    pub init_ms: Option<u64>,
    /// Time between end of file on an agent's standard input and SIGTERM. Default: none, the built-in table's
    /// or 2000. Source: the backend's stop timeout.
    pub eof_ms: Option<u64>,
    /// Time between SIGTERM and SIGKILL. Default: none, the built-in table's or 3000.
    pub term_ms: Option<u64>,
    /// Time between SIGKILL and the report of surviving processes. Default: none, 5000.
    pub kill_ms: Option<u64>,
    /// Maximum number of unfinished runs per session. Default: none, `limits.queue_runs_max`. Source: the
    /// backend's max inflight runs per session.
    pub queue_runs_max: Option<u64>,
}

/// ACP file requests offered to an agent. An agent accesses files directly if they are not offered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientFs {
    /// No file requests.
    None,
    /// `fs/read_text_file`.
    Read,
    /// `fs/write_text_file`.
    Write,
    /// Both requests.
    #[default]
    Both,
}

impl ClientFs {
    /// True if `fs/read_text_file` is offered.
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Both)
    }

    /// True if `fs/write_text_file` is offered.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Both)
    }
}

/// `agents.NAME`: settings of one agent. Absent ones come from the section of the backend, then the built-in
/// table, then the defaults.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Agent")]
pub struct AgentConfig {
    /// Program and arguments; never a shell line. Default: none, the built-in agent of that name.
    pub command: Option<Vec<String>>,
    /// Runtime backend of new sessions with the agent. Default: none, `acp.backend`. Ours.
    pub backend: Option<String>,
    /// Additional environment variables of the agent. Default: none.
    pub env: BTreeMap<String, String>,
    /// Environment variables of the gateway passed to the agent in addition to the usual ones; `NAME*`
    /// matches a prefix. Default: none.
    pub env_allow: Vec<String>,
    /// Labels of the hosts that may run the agent; a new session starts on the host with the most room that has all of
    /// them. Default: none, the gateway's own machine, or any host without its supervisor. Ours.
    pub host_labels: Vec<String>,
    /// Directories that must contain the working directory of a session, within `acp.workspace_roots`; empty
    /// allows all. Default: empty.
    pub cwd_roots: Vec<PathBuf>,
    /// Permission mode. Default: none, `permission.mode`.
    pub permission: Option<PermissionMode>,
    /// Outcome of unattended permission requests. Default: none, `permission.non_interactive_permissions`.
    pub non_interactive_permissions: Option<NonInteractive>,
    /// ACP session mode to set after the session is open. Default: none, the built-in table's.
    pub mode: Option<String>,
    /// True if the agent requests permissions in every mode except known self-approving ones. Otherwise, and
    /// without the mode above, a session in permission mode `ask` or `approve-reads` reports that permission
    /// requests are not ensured. Default: none, the built-in table's. Ours.
    pub asks: Option<bool>,
    /// True if the agent runs in a sandbox: `sandbox.*` limits what it sees of other sessions. Default: false. Ours.
    pub sandboxed: bool,
    /// ACP config options to set after the session is open. Default: none.
    pub config: BTreeMap<String, String>,
    /// Id of the agent's sign-in method, used for `authenticate` each time its process starts. Default: none, the
    /// agent is expected to be signed in. Ours.
    pub auth_method: Option<String>,
    /// File requests offered to the agent. Default: none, the built-in table's or `both`.
    pub client_fs: Option<ClientFs>,
    /// MCP servers of this agent, after the global ones. Default: none.
    pub mcp_servers: Vec<McpServer>,
    /// Gives the agent the session tools: an MCP server through which it lists, reads, prompts and spawns sessions of
    /// this gateway. Default: false. Ours.
    pub session_tools: bool,
    /// Agents whose sessions may be spawned with the session tools. Default: only the agent itself. Ours.
    pub spawn_agents: Option<Vec<AgentName>>,
    /// Additional directories of its sessions, after `acp.additional_directories`. Default: empty.
    pub additional_directories: Vec<PathBuf>,
    /// Time between end of file on standard input and SIGTERM. Default: none, 2000 or the built-in table's.
    pub eof_ms: Option<u64>,
    /// Time between SIGTERM and SIGKILL. Default: none, 3000 or the built-in table's.
    pub term_ms: Option<u64>,
    /// Time between SIGKILL and the report of surviving processes. Default: none, 5000.
    pub kill_ms: Option<u64>,
    /// Maximum time for the agent to open a session. Default: none, 60000 or the built-in table's.
    pub init_ms: Option<u64>,
    /// Maximum number of unfinished runs per session. Default: none, `limits.queue_runs_max`.
    pub queue_runs_max: Option<u64>,
}
