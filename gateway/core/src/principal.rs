//! Who makes a request, and what they may do.

use crate::glob;
use crate::permission::Voter;
use crate::visibility::AgentRequester;
use acp_shared::ids::IdempotencyKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use utoipa::ToSchema;

/// What a principal may do. Each scope includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Lists and reads sessions.
    Read,
    /// Starts sessions, sends prompts and stops them.
    Prompt,
    /// Answers permission requests, and widens what an agent may do unasked.
    Approve,
    /// Starts programs of their own choice on the host, and manages tokens.
    Admin,
}

impl Scope {
    /// All scopes, the smallest first.
    pub const ALL: [Self; 4] = [Self::Read, Self::Prompt, Self::Approve, Self::Admin];

    /// Name in command lines, JSON and the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Prompt => "prompt",
            Self::Approve => "approve",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|scope| scope.as_str() == text);
        found.ok_or_else(|| format!("unknown scope {text:?}; use read, prompt, approve or admin"))
    }
}

/// Prefix of the identity of a local process.
const LOCAL_USER: &str = "user:";
/// Prefix of the identity of a console that a local user opened.
const CONSOLE: &str = "console:";

/// Prefix of the identity of a session's agent.
const AGENT_USER: &str = "session:";

/// Who makes a request: the user of a local process, the holder of a token, or a user whom a trusted proxy names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    /// Identity: `user:NAME` of a local process, `console:NAME` of a console that it opened, `token:ID` of a token,
    /// `proxy:NAME` of a proxy's user, `session:KEY` of a session's agent. Two principals are the same if this is equal.
    pub id: String,
    /// Name that is shown as author of prompts and of answers: the user's or the token's.
    pub name: String,
    /// What this principal may do.
    pub scope: Scope,
    /// True if the kernel reports a peer on this machine for this request.
    pub local: bool,
    /// Patterns of the agents whose sessions this principal may see and use; empty: all agents.
    pub agents: Vec<String>,
    /// Agent that the principal acts for, with the permissions common to both; `None` if it acts for itself.
    pub acts_for: Option<Arc<AgentRequester>>,
}

impl Principal {
    /// Creates the principal of a process on the gateway's own Unix socket, which admits the gateway's user and root.
    #[must_use]
    pub fn of_local_user(name: String) -> Self {
        let id = format!("{LOCAL_USER}{name}");
        Self { id, name, scope: Scope::Admin, local: true, agents: Vec::new(), acts_for: None }
    }

    /// Creates the principal of a console that a local user opened.
    #[must_use]
    pub fn of_console(user: String, scope: Scope, local: bool) -> Self {
        Self { id: format!("{CONSOLE}{user}"), name: user, scope, local, agents: Vec::new(), acts_for: None }
    }

    /// Creates the principal of a user whom a trusted proxy names.
    #[must_use]
    pub fn of_proxy_user(name: String, scope: Scope) -> Self {
        Self { id: format!("proxy:{name}"), name, scope, local: false, agents: Vec::new(), acts_for: None }
    }

    /// Creates the principal of an agent that asks for itself, with a token of its lease.
    #[must_use]
    pub fn of_agent(agent: AgentRequester) -> Self {
        let name = agent.session.as_ref().map_or_else(|| agent.agent.to_string(), ToString::to_string);
        let (id, acts_for) = (format!("{AGENT_USER}{name}"), Some(Arc::new(agent)));
        Self { id, name, scope: Scope::Prompt, local: true, agents: Vec::new(), acts_for }
    }

    /// True for a process on the gateway's own Unix socket. Only such a principal may speak for other people, and
    /// manage tokens.
    #[must_use]
    pub fn is_local_user(&self) -> bool {
        self.id.starts_with(LOCAL_USER)
    }

    /// True for a console that a local user opened.
    #[must_use]
    pub fn is_console(&self) -> bool {
        self.id.starts_with(CONSOLE)
    }

    /// Returns the principal as one who answers a question.
    #[must_use]
    pub fn voter(&self) -> Voter {
        Voter { name: self.name.clone(), id: self.id.clone(), is_local: self.local }
    }

    /// True if the principal may see and use sessions of this agent.
    #[must_use]
    pub fn may_use_agent(&self, agent: &str) -> bool {
        self.agents.is_empty() || self.agents.iter().any(|pattern| glob::matches(pattern, agent))
    }

    /// True if the principal sees only some sessions: those of some agents, or those that an agent sees.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        !self.agents.is_empty() || self.acts_for.is_some()
    }

    /// Returns the name under which the principal acts: its own, or for a local user the one it gives.
    ///
    /// # Errors
    /// A sentence for the client if another principal gives a name that is not its own.
    pub fn acts_as(&self, given: Option<String>) -> Result<String, String> {
        match given {
            None => Ok(self.name.clone()),
            Some(name) if self.is_local_user() || name == self.name => Ok(name),
            Some(_) => Err(format!(
                "requests of {} carry its name as author: leave out `author` and `by`, or set them to {:?}",
                self.id, self.name
            )),
        }
    }

    /// Returns the key under which a command with this key is remembered: another one for each principal, so that none
    /// gets the response to a command of another, or learns that there was one. Local users share theirs.
    #[must_use]
    pub fn own_key(&self, given: IdempotencyKey) -> IdempotencyKey {
        if self.is_local_user() {
            return given;
        }
        let text = format!("{}\0{given}", self.id);
        // A digest is always a valid key.
        IdempotencyKey::parse(&format!("{:x}", Sha256::digest(text.as_bytes()))).unwrap_or(given)
    }

    /// True if the principal has this scope or a larger one.
    #[must_use]
    pub fn may(&self, scope: Scope) -> bool {
        self.scope >= scope
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scope_includes_the_smaller_ones() {
        for (place, scope) in Scope::ALL.into_iter().enumerate() {
            let principal = Principal { scope, ..Principal::of_local_user("ann".to_owned()) };
            let allowed: Vec<Scope> = Scope::ALL.into_iter().filter(|asked| principal.may(*asked)).collect();
            assert_eq!(allowed, Scope::ALL[..=place]);
        }
    }

    #[test]
    fn only_local_users_speak_for_others() {
        let local = Principal::of_local_user("ann".to_owned());
        let proxied = Principal::of_proxy_user("ann".to_owned(), Scope::Admin);
        let named = |name: &str| Some(name.to_owned());
        assert_eq!(local.acts_as(named("bob")), Ok("bob".to_owned()));
        for principal in [&local, &proxied] {
            assert_eq!(principal.acts_as(None), Ok("ann".to_owned()));
            assert_eq!(principal.acts_as(named("ann")), Ok("ann".to_owned()));
        }
        let refused = proxied.acts_as(named("bob")).unwrap_err();
        assert!(refused.contains("proxy:ann") && refused.contains("\"ann\""), "{refused}");
        assert!(local.is_local_user() && !proxied.is_local_user());
        // A proxy's user cannot take the identity of a local one.
        assert!(!Principal::of_proxy_user("user:root".to_owned(), Scope::Read).is_local_user());
        // Nor does a console speak for others.
        let console = Principal::of_console("ann".to_owned(), Scope::Admin, true);
        assert!(console.is_console() && !console.is_local_user() && !local.is_console());
        assert!(console.acts_as(named("bob")).is_err());
    }

    #[test]
    fn keys_of_principals_differ_except_those_of_local_users() {
        let key = |text: &str| IdempotencyKey::parse(text).unwrap();
        let of = |name: &str, text: &str| {
            Principal::of_proxy_user(name.to_owned(), Scope::Admin).own_key(key(text))
        };
        let local = |name: &str| Principal::of_local_user(name.to_owned()).own_key(key("k"));
        assert_eq!((local("ann"), local("root")), (key("k"), key("k")));
        assert_eq!(of("ann", "k"), of("ann", "k"));
        let all =
            [of("ann", "k"), of("bob", "k"), of("ann", "l"), of("ann:k", "k"), of("ann", "k:k"), key("k")];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{one}");
        }
    }

    #[test]
    fn limited_principal_uses_matching_agents_only() {
        let of = |agents: &[&str]| Principal {
            agents: agents.iter().map(|&pattern| pattern.to_owned()).collect(),
            ..Principal::of_proxy_user("ann".to_owned(), Scope::Admin)
        };
        for (agents, agent, want) in [
            (vec![], "demo", true),
            (vec!["demo"], "demo", true),
            (vec!["demo"], "demo2", false),
            (vec!["qwen", "dem*"], "demo", true),
            (vec!["qwen"], "demo", false),
        ] {
            assert_eq!(of(&agents).may_use_agent(agent), want, "{agents:?} {agent}");
        }
    }

    #[test]
    fn scope_names_parse_to_their_scope() {
        for scope in Scope::ALL {
            assert_eq!(scope.to_string().parse(), Ok(scope));
        }
        let error = Err("unknown scope \"root\"; use read, prompt, approve or admin".to_owned());
        assert_eq!("root".parse::<Scope>(), error);
    }
}
