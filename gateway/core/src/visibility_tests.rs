use super::*;
use crate::config::load::{Inputs, load};
use crate::principal::Scope;
use crate::rows::{NonInteractive, PermissionMode, SessionMode, SessionOptions};
use crate::session::SessionState;
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;

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
        owner_session_key: Some(key(name)),
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

fn configuration(text: &str) -> Config {
    load(Inputs { file: Some((Path::new("/g.toml"), text)), ..Inputs::default() }).unwrap().config
}

fn requester(row: &SessionRow) -> AgentRequester {
    AgentRequester::of_session(row, &Config::default())
}

/// Visibilities at which the session `me` of agent `one` may do this with the row.
fn seen_at(row: &SessionRow, between: &AgentToAgent, action: Action) -> Vec<Visibility> {
    let me = requester(&self::row("me", "one"));
    let sees = |at: &Visibility| can_see(Requester::Agent(&me), Some(row), *at, between, action);
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
            0 => row.owner_session_key = Some(key("me")),
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
        for not in [between(false, &["*"], false), between(true, &[], false), between(true, &["two"], true)] {
            assert_eq!(seen_at(&row("other", "two"), &not, action), []);
        }
    }
    let sending = between(true, &["*"], true);
    assert_eq!(seen_at(&row("other", "two"), &sending, Action::Send), Visibility::ALL);
    assert_eq!(seen_at(&row("other", "two"), &sending, Action::History), [All]);
}

/// F4: what is not known to be visible is not.
#[test]
fn missing_foreign_and_ownerless_sessions_are_seen_by_no_agent() {
    let open = between(true, &["*"], true);
    let child = SessionRow { spawned_by: Some(key("me")), ..row("child", "one") };
    let foreign =
        SessionRow { gateway_instance_id: GatewayInstanceId::parse(ELSEWHERE).unwrap(), ..child.clone() };
    let ownerless = SessionRow { owner_session_key: None, ..child };
    let me = row("me", "one");
    let foreign_self =
        SessionRow { gateway_instance_id: GatewayInstanceId::parse(ELSEWHERE).unwrap(), ..me.clone() };
    for action in Action::ALL {
        for row in [&foreign, &ownerless, &foreign_self] {
            assert_eq!(seen_at(row, &open, action), []);
        }
        let own = requester(&me);
        assert!(!can_see(Requester::Agent(&own), None, Visibility::All, &open, action));
    }
}

/// F6: a name or a label that looks like kinship is none.
#[test]
fn only_the_columns_of_a_row_make_kin() {
    let off = AgentToAgent::default();
    let near = |name: &str| SessionRow {
        label: Some("me".to_owned()),
        asked_by: "me".to_owned(),
        ..row(name, "two")
    };
    for name in ["ME", "me:child", "me2", "m"] {
        let named_after = SessionRow { spawned_by: Some(key(&format!("{name}x"))), ..near(name) };
        for row in [near(name), named_after] {
            for action in Action::ALL {
                assert_eq!(seen_at(&row, &off, action), [], "{name}");
            }
        }
    }
    // An agent without a session owns nothing, whatever a row names.
    let agent =
        AgentRequester { session: None, visibility: Visibility::Tree, ..requester(&row("me", "one")) };
    let child = SessionRow { spawned_by: Some(key("me")), ..row("child", "two") };
    assert!(!agent.sees(Some(&child), Action::List) && !agent.sees(Some(&row("one", "one")), Action::List));
    let agent = AgentRequester { visibility: Visibility::Agent, ..agent };
    assert!(agent.sees(Some(&row("x", "one")), Action::List) && !agent.sees(Some(&child), Action::List));
}

#[test]
fn principal_sees_sessions_of_its_agents() {
    let all = Principal::of_proxy_user("ann".to_owned(), Scope::Read);
    let limited = Principal { agents: vec!["tw*".to_owned()], ..all.clone() };
    let sees = |principal, agent| principal_sees(principal, &row("x", agent), Action::List);
    assert!(sees(&all, "one") && sees(&limited, "two") && !sees(&limited, "one"));
    let missing = Requester::Principal(&all);
    assert!(!can_see(missing, None, Visibility::All, &AgentToAgent::default(), Action::List));
    let agent = Principal::of_agent(requester(&row("x", "one")));
    assert!(sees(&agent, "two") && !agent.is_local_user() && agent.id == "session:x");
    // One that asks for an agent sees what both see.
    let mut requester = requester(&row("me", "one"));
    requester.visibility = Visibility::Agent;
    let acts_for = Some(Arc::new(requester));
    let acting = Principal { acts_for: acts_for.clone(), ..all.clone() };
    assert!(sees(&acting, "one") && !sees(&acting, "two") && acting.is_limited());
    let acting = Principal { acts_for, ..limited.clone() };
    assert!(!sees(&acting, "one") && !sees(&acting, "two"));
}

/// F5: the limit of a sandbox narrows, and never widens.
#[test]
fn sandbox_clamps_and_never_widens() {
    for configured in Visibility::ALL {
        for limit in Visibility::ALL {
            for sandboxed in [false, true] {
                let config = configuration(&format!(
                    "[tools.sessions]\nvisibility = \"{configured}\"\n[sandbox]\nsession_visibility = \"{limit}\"\n\
                     [tools.agent_to_agent]\nenabled = true\nallow = [\"*\"]\nsend = true\n\
                     [agents.one]\nsandboxed = {sandboxed}\n"
                ));
                let me = AgentRequester::of_session(&row("me", "one"), &config);
                let want = if sandboxed { configured.min(limit) } else { configured };
                assert_eq!((me.visibility, me.is_sandboxed), (want, sandboxed), "{configured} {limit}");
                let may_send = me.sees(Some(&row("other", "two")), Action::Send);
                assert_eq!(
                    may_send,
                    !sandboxed || want == Visibility::All,
                    "{configured} {limit} {sandboxed}"
                );
            }
        }
    }
    let default =
        AgentRequester::of_session(&row("me", "one"), &configuration("[agents.one]\nsandboxed = true\n"));
    assert_eq!(default.visibility, Visibility::Tree);
}

fn any_row() -> impl Strategy<Value = SessionRow> {
    let name = || prop::sample::select(vec!["me", "a", "b"]);
    let agent = prop::sample::select(vec!["one", "two"]);
    let instance = prop::sample::select(vec![HERE, ELSEWHERE]);
    (name(), agent, prop::option::of(name()), prop::option::of(name()), prop::option::of(name()), instance)
        .prop_map(|(name, agent, owner, spawner, parent, instance)| SessionRow {
            owner_session_key: owner.map(key),
            spawned_by: spawner.map(key),
            parent_session_key: parent.map(key),
            gateway_instance_id: GatewayInstanceId::parse(instance).unwrap(),
            ..row(name, agent)
        })
}

proptest! {
    /// F2: self ⊆ tree ⊆ agent ⊆ all.
    #[test]
    fn wider_visibility_sees_all_that_a_narrower_one_sees(
        own in any_row(),
        row in any_row(),
        enabled in any::<bool>(),
        allow in prop::sample::subsequence(vec!["one", "tw?", "*"], 0..3),
        send in any::<bool>(),
        action in prop::sample::select(Action::ALL.to_vec()),
    ) {
        let (between, own) = (between(enabled, &allow, send), requester(&own));
        let sees = |at| can_see(Requester::Agent(&own), Some(&row), at, &between, action);
        for pair in Visibility::ALL.windows(2) {
            prop_assert!(!sees(pair[0]) || sees(pair[1]), "{pair:?}");
        }
    }
}
