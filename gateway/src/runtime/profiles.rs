//! Interface between session tasks and the configured agents.

use crate::runtime::lookup::{LookupRequest, LookupResults};
use acp_core::actor::{ActorLimits, AgentProfile};
use acp_core::failure::Failure;
use acp_shared::ids::AgentName;

/// Decisions about agents, from the configuration and the results of lookups.
pub(crate) trait Profiles: Send + Sync {
    /// Returns the programs and directories to look up before `agent` is started in these directories.
    /// Without a `cwd`, the default working directory is included.
    fn lookup(&self, agent: &AgentName, cwd: Option<&str>, directories: &[String]) -> LookupRequest;

    /// Returns the profile of `agent` from the configuration alone. Its program is not looked up yet, so it
    /// cannot start an agent.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED`: unknown, or not on the allow-list; with a message for people.
    fn configured(&self, agent: &AgentName) -> Result<AgentProfile, Failure>;

    /// Returns the profile to start `agent` with.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED`: unknown, not on the allow-list, or not installed; the message says which.
    fn profile(&self, agent: &AgentName, found: &LookupResults) -> Result<AgentProfile, Failure>;

    /// Returns the profile of an agent whose command a caller gave, from the configuration alone or to start it.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED` if `acpx.allow_commands` is off, or if the program does not exist.
    fn of_command(
        &self,
        agent: &AgentName,
        command: &[String],
        found: Option<&LookupResults>,
    ) -> Result<AgentProfile, Failure>;

    /// Returns the default agent, for requests that name none.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED` if no default is configured.
    fn default_agent(&self) -> Result<AgentName, Failure>;

    /// Returns the canonical working directory for `agent`; `None` selects the configured default, or else
    /// the home directory.
    ///
    /// # Errors
    /// `ACP_CWD_NOT_ALLOWED` if it does not exist, is not an absolute path, or lies outside of the roots of
    /// the gateway or of the agent.
    fn cwd(&self, agent: &AgentName, asked: Option<&str>, found: &LookupResults) -> Result<String, Failure>;

    /// Returns the canonical path of an additional directory of a session of `agent`.
    ///
    /// # Errors
    /// `ACP_CWD_NOT_ALLOWED`, as for the working directory.
    fn directory(&self, agent: &AgentName, asked: &str, found: &LookupResults) -> Result<String, Failure>;

    /// Returns the limits and deadlines of the agent's sessions.
    fn limits(&self, agent: &AgentName) -> ActorLimits;
}
