//! `agents.NAME` and `backends.NAME`: how agents are started, what they see and how they are ended.

use super::{McpServer, NonInteractive, PermissionMode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// `backends.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Backends {
    /// `backends.direct.*`: agents that are spoken with directly. Their programs are `agents.NAME.command`.
    pub(crate) direct: Backend,
}

impl Backends {
    /// The section of a backend.
    pub(crate) fn get(&self, name: &str) -> Option<&Backend> {
        (name == "direct").then_some(&self.direct)
    }
}

/// `backends.NAME.*`: what holds for every agent of a backend that does not say otherwise itself. It goes before what
/// the built-in table says of an agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Backend {
    /// Variables of the gateway that its agents may see beside the usual ones. Default: none.
    /// Source: the backend's env allowlist.
    pub(crate) env_allow: Vec<String>,
    /// How long an agent may take to open a session. Default: none, the built-in table's or 60000.
    /// Source: the backend's startup timeout.
    pub(crate) init_ms: Option<u64>,
    /// From end of file on an agent's standard input to SIGTERM. Default: none, the built-in table's or 2000.
    /// Source: the backend's stop timeout.
    pub(crate) eof_ms: Option<u64>,
    /// From SIGTERM to SIGKILL. Default: none, the built-in table's or 3000.
    pub(crate) term_ms: Option<u64>,
    /// From SIGKILL to naming the survivors. Default: none, 5000.
    pub(crate) kill_ms: Option<u64>,
    /// Runs that have not ended in one session. Default: none, `limits.queue_runs_max`.
    /// Source: the backend's max inflight runs per session.
    pub(crate) queue_runs_max: Option<u64>,
}

/// File requests of ACP offered to an agent, which reads and writes by itself where they are not offered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClientFs {
    /// Neither reads nor writes.
    None,
    /// `fs/read_text_file`.
    Read,
    /// `fs/write_text_file`.
    Write,
    /// Both.
    #[default]
    Both,
}

impl ClientFs {
    /// Offers `fs/read_text_file`.
    pub(crate) const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Both)
    }

    /// Offers `fs/write_text_file`.
    pub(crate) const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Both)
    }
}

/// `agents.NAME`: what is absent comes from its backend's section, then from the built-in table, then from the
/// defaults.
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
    /// Directories beneath which a session may work, within `acp.workspace_roots`; empty allows all. Default: empty.
    pub(crate) cwd_roots: Vec<PathBuf>,
    /// What happens when the agent asks for a permission. Default: none, `permission.mode`.
    pub(crate) permission: Option<PermissionMode>,
    /// What happens when nobody can be asked. Default: none, `permission.non_interactive_permissions`.
    pub(crate) non_interactive_permissions: Option<NonInteractive>,
    /// ACP session mode to set after the session is open. Default: none, the built-in table's.
    pub(crate) mode: Option<String>,
    /// True for an agent with questions in every mode except known self-approving ones. Without that, and without the
    /// mode above, a session in the permission mode `ask` or `approve-reads` reports that nothing ensures questions.
    /// Default: none, the built-in table's. Ours.
    pub(crate) asks: Option<bool>,
    /// ACP config options to set after the session is open. Default: none.
    pub(crate) config: BTreeMap<String, String>,
    /// File requests that the agent is offered. Default: none, the built-in table's or `both`.
    pub(crate) client_fs: Option<ClientFs>,
    /// MCP servers of this agent, after the global ones. Default: none.
    pub(crate) mcp_servers: Vec<McpServer>,
    /// Additional directories of its sessions, after `acp.additional_directories`. Default: empty.
    pub(crate) additional_directories: Vec<PathBuf>,
    /// From end of file on its standard input to SIGTERM. Default: none, 2000 or the built-in table's.
    pub(crate) eof_ms: Option<u64>,
    /// From SIGTERM to SIGKILL. Default: none, 3000 or the built-in table's.
    pub(crate) term_ms: Option<u64>,
    /// From SIGKILL to naming the survivors. Default: none, 5000.
    pub(crate) kill_ms: Option<u64>,
    /// How long the agent may take to open a session. Default: none, 60000 or the built-in table's.
    pub(crate) init_ms: Option<u64>,
    /// Runs that have not ended in one session. Default: none, `limits.queue_runs_max`.
    pub(crate) queue_runs_max: Option<u64>,
}
