//! Which sessions a requester may see and use. One pure rule over a session's row, for every list, stream and command.
//! What may not be seen is answered like what does not exist. The answers of the rule are in
//! `docs/design/visibility.md`.

use crate::config::Config;
use crate::glob;
use crate::principal::Principal;
use crate::rows::SessionRow;
use acp_shared::ids::{AgentName, GatewayInstanceId, SessionKey};
use serde::{Deserialize, Serialize};

acp_shared::named! {
    /// How far an agent's session sees, from the narrowest: each includes the ones before it.
    #[derive(PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Visibility {
        /// Only the session itself.
        #[serde(rename = "self")]
        SelfOnly = "self",
        /// The session and those that it owns.
        #[default]
        Tree = "tree",
        /// In addition all sessions of its agent.
        Agent = "agent",
        /// In addition the sessions of other agents that [`AgentToAgent`] allows.
        All = "all",
    }
}

/// `tools.agent_to_agent.*`: access between sessions of different agents.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentToAgent {
    /// Allows such access. Default: false. Source: `tools.agentToAgent.enabled`.
    pub enabled: bool,
    /// Patterns of agents, both of which must match; an empty list allows no pair. Default: empty. Source:
    /// `tools.agentToAgent.allow`.
    pub allow: Vec<String>,
    /// Allows messages to an allowed agent's session below visibility `all`, without its history. Default: false. Ours.
    pub send: bool,
}

impl AgentToAgent {
    fn allows(&self, one: &AgentName, other: &AgentName) -> bool {
        let matches =
            |agent: &AgentName| self.allow.iter().any(|pattern| glob::matches(pattern, agent.as_str()));
        self.enabled && matches(one) && matches(other)
    }
}

acp_shared::named! {
    /// Action of a requester on a session.
    #[derive(Hash)]
    pub enum Action {
        /// See it in a list.
        List = "list",
        /// Read its history.
        History = "history",
        /// Send it a message.
        Send = "send",
        /// Read its state.
        Status = "status",
    }
}

/// Agent as the requester of an operation on sessions, with its settings of visibility.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AgentRequester {
    /// Session of the agent; `None` for an agent without one, which owns nothing.
    pub session: Option<SessionKey>,
    /// The agent.
    pub agent: AgentName,
    /// Gateway instance of the session.
    pub gateway_instance_id: GatewayInstanceId,
    /// True if the agent runs in a sandbox.
    pub is_sandboxed: bool,
    /// How far it sees; for a sandboxed agent within `sandbox.session_visibility`.
    pub visibility: Visibility,
    /// Access to sessions of other agents.
    pub between: AgentToAgent,
}

impl AgentRequester {
    /// Creates the requester of a session's agent, with the settings of the configuration.
    #[must_use]
    pub fn of_session(row: &SessionRow, config: &Config) -> Self {
        let agent = Self::of_agent(row.agent.clone(), row.gateway_instance_id, config);
        Self { session: Some(row.session_key.clone()), ..agent }
    }

    /// Creates the requester of an agent without a session.
    #[must_use]
    pub fn of_agent(agent: AgentName, gateway_instance_id: GatewayInstanceId, config: &Config) -> Self {
        let is_sandboxed = config.agents.get(&agent).is_some_and(|settings| settings.sandboxed);
        let configured = config.tools.sessions.visibility;
        let limit = if is_sandboxed { config.sandbox.session_visibility } else { Visibility::All };
        let between = config.tools.agent_to_agent.clone();
        Self {
            session: None,
            agent,
            gateway_instance_id,
            is_sandboxed,
            visibility: configured.min(limit),
            // `send` reaches sessions beyond the visibility, which the sandbox limits.
            between: AgentToAgent { send: between.send && !is_sandboxed, ..between },
        }
    }

    /// Answers [`can_see`] with the settings of the requester.
    #[must_use]
    pub fn sees(&self, row: Option<&SessionRow>, action: Action) -> bool {
        can_see(Requester::Agent(self), row, self.visibility, &self.between, action)
    }
}

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub enum Requester<'a> {
    /// A person or program with a scope, perhaps limited to some agents. Visibility does not apply.
    Principal(&'a Principal),
    /// An agent.
    Agent(&'a AgentRequester),
}

/// True if the requester may do this with the session. `row` is `None` if the session could not be found.
#[must_use]
pub fn can_see(
    requester: Requester<'_>,
    row: Option<&SessionRow>,
    visibility: Visibility,
    between: &AgentToAgent,
    action: Action,
) -> bool {
    let Some(row) = row else { return false };
    let own = match requester {
        Requester::Principal(principal) => return principal.may_use_agent(row.agent.as_str()),
        Requester::Agent(own) => own,
    };
    if row.gateway_instance_id != own.gateway_instance_id {
        return false;
    }
    if own.session.as_ref() == Some(&row.session_key) {
        return true;
    }
    if row.owner_session_key.is_none() {
        return false;
    }
    if own.session.as_ref().is_some_and(|own| is_owned_by(row, own)) {
        return visibility >= Visibility::Tree;
    }
    if row.agent == own.agent {
        return visibility >= Visibility::Agent;
    }
    let may_reach = visibility == Visibility::All || (between.send && action == Action::Send);
    may_reach && between.allows(&own.agent, &row.agent)
}

/// True if the row names `own` as its owner, its spawner or its parent. A grandchild is owned only if its row names `own` too.
fn is_owned_by(row: &SessionRow, own: &SessionKey) -> bool {
    let owners = [row.owner_session_key.as_ref(), row.spawned_by.as_ref(), row.parent_session_key.as_ref()];
    owners.contains(&Some(own))
}

/// True if the principal may do this with the session: by its own rights, and by those of the agent for which it asks.
#[must_use]
pub fn principal_sees(principal: &Principal, row: &SessionRow, action: Action) -> bool {
    let requester = Requester::Principal(principal);
    can_see(requester, Some(row), Visibility::All, &AgentToAgent::default(), action)
        && principal.acts_for.as_ref().is_none_or(|agent| agent.sees(Some(row), action))
}

#[cfg(test)]
#[path = "visibility_tests.rs"]
mod tests;
