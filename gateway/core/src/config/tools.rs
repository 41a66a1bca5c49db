//! `tools.*` and `sandbox.*`: what agents may see and do with other sessions.

use crate::visibility::{AgentToAgent, Visibility};
use serde::{Deserialize, Serialize};

/// `tools.*`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Tools")]
pub struct ToolsConfig {
    /// `tools.sessions.*`.
    pub sessions: SessionToolsConfig,
    /// `tools.agent_to_agent.*`.
    pub agent_to_agent: AgentToAgent,
}

/// `tools.sessions.*`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct SessionTools")]
pub struct SessionToolsConfig {
    /// How far the agent of a session sees other sessions: `self`, `tree`, `agent` or `all`. Default: `tree`. Source:
    /// `tools.sessions.visibility`.
    pub visibility: Visibility,
}

/// `sandbox.*`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Sandbox")]
pub struct SandboxConfig {
    /// Upper limit of `tools.sessions.visibility` for agents with `sandboxed`. Default: `tree`. Source:
    /// `agents.defaults.sandbox.sessionToolsVisibility`.
    pub session_visibility: Visibility,
}
