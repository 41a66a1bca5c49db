//! Which sessions a requester may see and use. One pure rule over a session's row, for every list, stream and command.
//! What may not be seen is answered like what does not exist.

use crate::glob;
use crate::principal::Principal;
use crate::rows::SessionRow;
use serde::{Deserialize, Serialize};

/// How far an agent's session sees, from the narrowest: each includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// Only the session itself.
    SelfOnly,
    /// The session and those that it owns.
    #[default]
    Tree,
    /// In addition all sessions of its agent.
    Agent,
    /// In addition the sessions of other agents that [`AgentToAgent`] allows.
    All,
}

impl Visibility {
    /// All values, the narrowest first.
    pub const ALL: [Self; 4] = [Self::SelfOnly, Self::Tree, Self::Agent, Self::All];
}

/// Access between sessions of different agents.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentToAgent {
    /// True if such access is on.
    pub enabled: bool,
    /// Patterns that both agents must match; an empty list allows no pair.
    pub allow: Vec<String>,
    /// True if a message may be sent to an allowed agent's session below [`Visibility::All`], without list or history.
    pub send: bool,
}

impl AgentToAgent {
    fn allows(&self, one: &str, other: &str) -> bool {
        let matches = |agent| self.allow.iter().any(|pattern| glob::matches(pattern, agent));
        self.enabled && matches(one) && matches(other)
    }
}

/// What a requester wants to do with a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// See it in a list.
    List,
    /// Read its history.
    History,
    /// Send it a message.
    Send,
    /// Read its state.
    Status,
}

impl Action {
    /// All actions.
    pub const ALL: [Self; 4] = [Self::List, Self::History, Self::Send, Self::Status];
}

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub enum Requester<'a> {
    /// A person or program with a scope, perhaps limited to some agents.
    Principal(&'a Principal),
    /// The agent of a session, with how far it sees.
    Session(&'a SessionRow, Visibility),
}

/// True if the requester may do this with the session. `row` is `None` if the session could not be found.
#[must_use]
pub fn can_see(
    requester: Requester<'_>,
    row: Option<&SessionRow>,
    between: &AgentToAgent,
    action: Action,
) -> bool {
    let Some(row) = row else { return false };
    let (own, visibility) = match requester {
        Requester::Principal(principal) => return principal.may_use_agent(row.agent.as_str()),
        Requester::Session(own, visibility) => (own, visibility),
    };
    if row.gateway_instance_id != own.gateway_instance_id {
        return false;
    }
    if row.session_key == own.session_key {
        return true;
    }
    if is_owned_by(row, own) {
        return visibility >= Visibility::Tree;
    }
    if row.agent == own.agent {
        return visibility >= Visibility::Agent;
    }
    let may_reach = visibility == Visibility::All || (between.send && action == Action::Send);
    may_reach && between.allows(own.agent.as_str(), row.agent.as_str())
}

/// True if the row names `own` as its owner, its spawner or its parent. A grandchild is owned only if its row names `own` too.
fn is_owned_by(row: &SessionRow, own: &SessionRow) -> bool {
    let owners = [Some(&row.owner_session_key), row.spawned_by.as_ref(), row.parent_session_key.as_ref()];
    owners.contains(&Some(&own.session_key))
}

/// True if the principal may see and use the session.
#[must_use]
pub fn principal_sees(principal: &Principal, row: &SessionRow) -> bool {
    can_see(Requester::Principal(principal), Some(row), &AgentToAgent::default(), Action::List)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::principal::Scope;
    use crate::rows::{NonInteractive, PermissionMode, SessionMode, SessionOptions};
    use crate::session::SessionState;
    use acp_shared::ids::{AgentName, GatewayInstanceId, SessionKey};
    use proptest::prelude::*;

    const HERE: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
    const ELSEWHERE: &str = "01890a5d-ac96-774b-bcce-b302099a8058";

    fn key(name: &str) -> SessionKey {
        SessionKey::parse(name).unwrap()
    }

    fn row(name: &str, agent: &str) -> SessionRow {
        SessionRow {
            session_key: key(name),
            backend: "direct".to_owned(),
            agent: AgentName::parse(agent).unwrap(),
            mode: SessionMode::Persistent,
            cwd: "/".to_owned(),
            label: None,
            state: SessionState::Idle,
            ending: None,
            last_error: None,
            owner_session_key: key(name),
            asked_by: String::new(),
            spawned_by: None,
            parent_session_key: None,
            gateway_instance_id: GatewayInstanceId::parse(HERE).unwrap(),
            agent_session_id: None,
            resumable: true,
            agent_info: None,
            lease_id: None,
            options: SessionOptions::new(PermissionMode::Ask, NonInteractive::Deny),
            last_session_seq: 0,
            pruned_seq: 0,
            created_at_ms: 0,
            updated_at_ms: 0,
            last_activity_at_ms: 0,
        }
    }

    fn between(enabled: bool, allow: &[&str], send: bool) -> AgentToAgent {
        AgentToAgent { enabled, allow: allow.iter().map(|&pattern| pattern.to_owned()).collect(), send }
    }

    /// Visibilities that let the session `me` of agent `one` list the row.
    fn seen_at(row: &SessionRow, between: &AgentToAgent, action: Action) -> Vec<Visibility> {
        let me = self::row("me", "one");
        let sees = |at: &Visibility| can_see(Requester::Session(&me, *at), Some(row), between, action);
        Visibility::ALL.into_iter().filter(sees).collect()
    }

    #[test]
    fn visibility_follows_its_table() {
        use Visibility::{Agent, All, Tree};
        let off = AgentToAgent::default();
        let pair = between(true, &["ONE", "tw*"], false);
        let owned = |agent: &str, which: usize| {
            let mut row = row("child", agent);
            match which {
                0 => row.owner_session_key = key("me"),
                1 => row.spawned_by = Some(key("me")),
                _ => row.parent_session_key = Some(key("me")),
            }
            row
        };
        for action in Action::ALL {
            assert_eq!(seen_at(&row("me", "one"), &off, action), Visibility::ALL);
            for which in 0..3 {
                for agent in ["one", "two"] {
                    for between in [&off, &pair] {
                        assert_eq!(seen_at(&owned(agent, which), between, action), [Tree, Agent, All]);
                    }
                }
            }
            assert_eq!(seen_at(&row("other", "one"), &off, action), [Agent, All]);
            assert_eq!(seen_at(&row("other", "two"), &pair, action), [All]);
            for not in
                [between(false, &["*"], false), between(true, &[], false), between(true, &["two"], true)]
            {
                assert_eq!(seen_at(&row("other", "two"), &not, action), []);
            }
            let foreign = SessionRow {
                gateway_instance_id: GatewayInstanceId::parse(ELSEWHERE).unwrap(),
                ..owned("one", 0)
            };
            assert_eq!(seen_at(&foreign, &pair, action), []);
            let me = row("me", "one");
            assert!(!can_see(Requester::Session(&me, All), None, &pair, action));
        }
        let sending = between(true, &["*"], true);
        assert_eq!(seen_at(&row("other", "two"), &sending, Action::Send), Visibility::ALL);
        assert_eq!(seen_at(&row("other", "two"), &sending, Action::History), [All]);
    }

    #[test]
    fn principal_sees_sessions_of_its_agents() {
        let all = Principal::of_proxy_user("ann".to_owned(), Scope::Read);
        let limited = Principal { agents: vec!["tw*".to_owned()], ..all.clone() };
        let sees = |principal, agent| principal_sees(principal, &row("x", agent));
        assert!(sees(&all, "one") && sees(&limited, "two") && !sees(&limited, "one"));
        let missing = Requester::Principal(&all);
        assert!(!can_see(missing, None, &AgentToAgent::default(), Action::List));
    }

    fn any_row() -> impl Strategy<Value = SessionRow> {
        let name = || prop::sample::select(vec!["me", "a", "b"]);
        let agent = prop::sample::select(vec!["one", "two"]);
        let instance = prop::sample::select(vec![HERE, ELSEWHERE]);
        (name(), agent, name(), prop::option::of(name()), prop::option::of(name()), instance).prop_map(
            |(name, agent, owner, spawner, parent, instance)| SessionRow {
                owner_session_key: key(owner),
                spawned_by: spawner.map(key),
                parent_session_key: parent.map(key),
                gateway_instance_id: GatewayInstanceId::parse(instance).unwrap(),
                ..row(name, agent)
            },
        )
    }

    proptest! {
        /// self ⊆ tree ⊆ agent ⊆ all.
        #[test]
        fn wider_visibility_sees_all_that_a_narrower_one_sees(
            own in any_row(),
            row in any_row(),
            enabled in any::<bool>(),
            allow in prop::sample::subsequence(vec!["one", "tw?", "*"], 0..3),
            send in any::<bool>(),
            action in prop::sample::select(Action::ALL.to_vec()),
        ) {
            let between = between(enabled, &allow, send);
            let sees = |at| can_see(Requester::Session(&own, at), Some(&row), &between, action);
            for pair in Visibility::ALL.windows(2) {
                prop_assert!(!sees(pair[0]) || sees(pair[1]), "{pair:?}");
            }
        }
    }
}
