//! Requests of agents through the session tools: what they take over from the turn in which they are made, and their limits.
//! A spawned session never has more than the one that spawned it.

use super::{Manager, caps_of};
use crate::runtime::profiles::Profiles;
use acp_core::binding::{Placement, agent_spawn_metadata};
use acp_core::config::Config;
use acp_core::failure::Failure;
use acp_core::mcp;
use acp_core::policy::{BindOrigin, BindingTimeouts, EffectivePolicy, PolicyScope};
use acp_core::request::{PromptRequest, SpawnRequest};
use acp_core::rows::{BindingRow, BindingStatus, ConversationRef, RunRow, SessionRow, TargetKind};
use acp_core::run::RunState;
use acp_core::secrets::Secrets;
use acp_core::session_tools::{CHAIN_MAX, CHILDREN_MAX, DEPTH_MAX};
use acp_core::widening::stricter;
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, BindingId, SessionKey};
use acp_store::db::Db;
use acp_store::{SpawnTx, bindings};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Maximum wait for the conversation of a spawned session before the session starts.
const CONVERSATION_WAIT: Duration = Duration::from_secs(5);

/// Session whose agent spawns another one.
pub(super) struct AgentParent {
    row: SessionRow,
    /// Its turn.
    turn: Option<RunRow>,
    /// Number of the new session's first run in its chain.
    chain: u64,
    /// Place of the new session's own conversation; `None` if it gets none.
    place: Option<ConversationPlace>,
}

/// Place of a spawned session's conversation, next to its parent's: people see and answer permission requests there.
struct ConversationPlace {
    /// Conversation above the new one.
    above: ConversationRef,
    /// Person who bound the parent's conversation, and controls the new binding, too.
    bound_by: String,
    windows: BindingTimeouts,
    /// Policy of that account and agent.
    policy: Arc<EffectivePolicy>,
}

fn limit(detail: &str, text: String) -> Failure {
    Failure::new(Code::LimitReached, text).detail(detail).origin("gateway")
}

/// Returns the number of the next run in the chain of a turn.
///
/// # Errors
/// `ACP_LIMIT_REACHED`.
fn next_in_chain(turn: Option<&RunRow>) -> Result<u64, Failure> {
    let chain = turn.map_or(0, |turn| turn.chain) + 1;
    if chain <= CHAIN_MAX {
        return Ok(chain);
    }
    let text = format!(
        "The turn was caused by {CHAIN_MAX} messages between sessions, each sent by the turn of the one before. It cannot \
         cause another one: answer, and let a person decide."
    );
    Err(limit("CHAIN_MAX", text))
}

/// True if a person can be asked in a turn.
fn is_interactive(turn: Option<&RunRow>) -> bool {
    turn.is_some_and(|turn| turn.state == RunState::Running && turn.interactive)
}

/// Returns the agents whose sessions an agent may spawn: its `spawn_agents`, or else itself. A sandboxed agent spawns none.
pub(crate) fn spawnable_agents(config: &Config, agent: &AgentName) -> Vec<AgentName> {
    if is_sandboxed(config, agent) {
        return Vec::new();
    }
    let listed = config.agents.get(agent).and_then(|settings| settings.spawn_agents.clone());
    listed.unwrap_or_else(|| vec![agent.clone()])
}

fn is_sandboxed(config: &Config, agent: &AgentName) -> bool {
    config.agents.get(agent).is_some_and(|settings| settings.sandboxed)
}

fn asked_by(turn: Option<&RunRow>) -> String {
    turn.map(|turn| turn.asked_by.clone()).unwrap_or_default()
}

impl Manager {
    /// Completes the prompt that an agent sends to another session: chain, and who can be asked, are those of its own turn,
    /// and a permission mode of that turn alone is not widened. The prompt of a person stays as it is.
    ///
    /// # Errors
    /// The store cannot be read. Inside: `USAGE` for a prompt to the own session; `ACP_LIMIT_REACHED`.
    pub(super) async fn complete_agent_prompt(
        &self,
        session: &SessionKey,
        request: &mut PromptRequest,
    ) -> Result<Result<(), Failure>, Failure> {
        let Some(sender) = request.sender.clone() else { return Ok(Ok(())) };
        if sender == *session {
            let text = "A session cannot send a message to itself.";
            return Ok(Err(Failure::new(Code::Usage, text).detail("SEND_TO_SELF").origin("client")));
        }
        let turn = self.deps.store.current_run(sender).await?;
        request.interactive = is_interactive(turn.as_ref());
        request.asked_by = asked_by(turn.as_ref());
        if let Some(mode) = turn.as_ref().and_then(|turn| turn.permissions.mode) {
            let target = self.deps.store.session(session.clone()).await?;
            request.permissions.mode =
                Some(target.map_or(mode, |row| stricter(mode, row.options.permission)));
        }
        Ok(next_in_chain(turn.as_ref()).map(|chain| request.chain = chain))
    }

    /// Checks that the agent of a session may spawn one of `agent`. `None` for the request of a person.
    ///
    /// # Errors
    /// `NO_SESSION`, `ACP_AGENT_NOT_ALLOWED`, `ACP_LIMIT_REACHED`; the store cannot be read.
    pub(super) async fn agent_parent(
        &self,
        request: &mut SpawnRequest,
        agent: &AgentName,
    ) -> Result<Option<AgentParent>, Failure> {
        let Some(parent) = request.spawned_by.clone().filter(|_| request.by_agent) else { return Ok(None) };
        let row = self.deps.store.session(parent.clone()).await?;
        let row = row.ok_or_else(|| Failure::of(Code::NoSession))?;
        self.may_spawn_agent(&row, agent)?;
        if self.generations_above(&row).await? >= DEPTH_MAX {
            let text =
                format!("A session may have {DEPTH_MAX} generations of spawned sessions beneath it at most.");
            return Err(limit("DEPTH_MAX", text));
        }
        let turn = self.deps.store.current_run(parent.clone()).await?;
        let chain = next_in_chain(turn.as_ref())?;
        request.cwd.get_or_insert_with(|| row.cwd.clone());
        request.interactive = is_interactive(turn.as_ref());
        request.asked_by = asked_by(turn.as_ref());
        let place = self.conversation_place(parent, agent).await?;
        Ok(Some(AgentParent { row, turn, chain, place }))
    }

    /// Returns the place of the conversation of a new session: next to the oldest conversation of its parent whose channel has
    /// child conversations and whose policy allows it. A parked conversation does not count: a person has left it.
    async fn conversation_place(
        &self,
        parent: SessionKey,
        agent: &AgentName,
    ) -> Result<Option<ConversationPlace>, Failure> {
        let read = move |db: &Db| bindings::of_session(db, &parent);
        let bound = self.deps.store.read("conversations_of_parent", read).await?;
        Ok(bound.into_iter().find_map(|binding| {
            if !matches!(binding.status, BindingStatus::Active | BindingStatus::Pending) {
                return None;
            }
            let above = binding.conversation.parent().unwrap_or(binding.conversation);
            let channel = self.deps.channels.get(&above).ok()?;
            if !channel.capabilities(&above).allow(Placement::Child) {
                return None;
            }
            let policy = self.deps.live.policy(&PolicyScope::of(Some(&above)).with_agent(agent));
            let windows = policy.may_bind(BindOrigin::AgentSpawn).ok()?;
            Some(ConversationPlace { above, bound_by: binding.bound_by, windows, policy })
        }))
    }

    /// Waits until the conversation of a spawned session exists, so that people see the session from its beginning. A wait
    /// that takes too long ends: the conversation then gets all rows once it exists.
    pub(super) async fn await_conversation(&self, binding_id: BindingId) {
        let mut changed = self.deps.store.bindings_changed();
        let is_made = async {
            loop {
                let read = self.deps.store.read("conversation_made", move |db| bindings::get(db, binding_id));
                match read.await {
                    Ok(Some(row)) if row.status == BindingStatus::Pending => {}
                    Ok(_) => return,
                    Err(error) => {
                        tracing::warn!(%binding_id, %error, "binding of a spawned session cannot be read");
                        return;
                    }
                }
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = self.deps.stop.cancelled() => {}
            waited = tokio::time::timeout(CONVERSATION_WAIT, is_made) => if waited.is_err() {
                tracing::warn!(%binding_id, "spawned session starts before its conversation exists");
            }
        }
    }

    fn may_spawn_agent(&self, parent: &SessionRow, agent: &AgentName) -> Result<(), Failure> {
        let loaded = self.deps.live.now();
        let config = &loaded.config;
        if is_sandboxed(config, &parent.agent) {
            let text = format!("The agent {} runs in a sandbox and may not spawn sessions.", parent.agent);
            return Err(Failure::new(Code::NotOwner, text).detail("SANDBOXED").origin("gateway"));
        }
        if spawnable_agents(config, &parent.agent).contains(agent) {
            return Ok(());
        }
        let text = format!("The agent {} may not spawn sessions of {agent}.", parent.agent);
        Err(Failure::new(Code::AgentNotAllowed, text).detail("SPAWN_AGENTS").origin("gateway"))
    }

    /// Returns the secrets of a session's agent.
    pub(crate) fn secrets(&self, session: &SessionRow) -> Secrets {
        let host = self.deps.hosts.get(session.options.host_name());
        let Ok(profile) = host.profiles.configured(&session.agent) else { return Secrets::default() };
        let servers =
            mcp::merge_servers([profile.mcp_servers.as_slice(), session.options.mcp_servers.as_slice()]);
        Secrets::new(&profile.env, &servers)
    }

    /// Returns the number of sessions above this one, [`DEPTH_MAX`] at most.
    async fn generations_above(&self, row: &SessionRow) -> Result<usize, Failure> {
        let mut above = row.spawned_by.clone();
        for generations in 0..DEPTH_MAX {
            let Some(key) = above else { return Ok(generations) };
            above = self.deps.store.session(key).await?.and_then(|row| row.spawned_by);
        }
        Ok(DEPTH_MAX)
    }
}

impl AgentParent {
    /// Returns the host of the spawning session.
    pub(super) fn host(&self) -> &str {
        self.row.options.host_name()
    }

    /// Returns the policy of the account in which the new session gets a conversation.
    pub(super) fn account_policy(&self) -> Option<Arc<EffectivePolicy>> {
        self.place.as_ref().map(|place| Arc::clone(&place.policy))
    }

    /// Limits the rows of the new session to what its parent has, and adds the binding of its conversation.
    ///
    /// # Errors
    /// `ACP_CWD_NOT_ALLOWED` if a directory lies outside of the parent's.
    pub(super) fn narrow(self, tx: &mut SpawnTx, profiles: &dyn Profiles) -> Result<(), Failure> {
        let Self { row: parent, turn, chain, place } = self;
        let configured = |agent: &AgentName| profiles.configured(agent).map(|it| it.additional_directories);
        let own = parent.options.additional_directories.as_slice();
        let of_agent = configured(&parent.agent)?;
        let roots = mcp::merge_directories("", [std::slice::from_ref(&parent.cwd), of_agent.as_slice(), own]);
        let child = &mut tx.session;
        let wanted = [child.cwd.clone()].into_iter().chain(configured(&child.agent)?);
        for directory in wanted.chain(child.options.additional_directories.iter().cloned()) {
            if !roots.iter().any(|root| Path::new(&directory).starts_with(root)) {
                let text = format!(
                    "The directory {directory} lies outside of the directories of the session {}.",
                    parent.session_key
                );
                return Err(Failure::new(Code::CwdNotAllowed, text)
                    .detail("OUTSIDE_OF_PARENT")
                    .origin("gateway"));
            }
        }
        let options = &mut child.options;
        options.permission = stricter(options.permission, parent.options.permission);
        if let Some(mode) = turn.as_ref().and_then(|turn| turn.permissions.mode) {
            options.permission = stricter(options.permission, mode);
        }
        options.voting = parent.options.voting;
        if child.agent == parent.agent {
            options.mode_id = parent.options.mode_id;
            options.config = parent.options.config;
            options.model = parent.options.model;
        }
        child.asked_by = parent.asked_by;
        if let Some(run) = &mut tx.run {
            run.chain = chain;
            // The prompt about the end of the session is limited by it.
            run.permissions.mode = turn.and_then(|turn| turn.permissions.mode).map(|_| options.permission);
        }
        tx.children_max = Some(CHILDREN_MAX);
        if let Some(place) = place {
            place.bind(tx);
        }
        Ok(())
    }
}

impl ConversationPlace {
    /// Adds the binding of a conversation that is created after the commit. The session then counts for the account.
    fn bind(self, tx: &mut SpawnTx) {
        let Self { above, bound_by, windows, policy } = self;
        let SessionRow { session_key, created_at_ms, .. } = &tx.session;
        let row = bindings::new_row(above, session_key, &bound_by, windows, *created_at_ms);
        tx.caps = caps_of(&policy, Some(&row.conversation));
        tx.binding = Some(bindings::into_pending(BindingRow {
            target_kind: TargetKind::Subagent,
            metadata: agent_spawn_metadata(),
            ..row
        }));
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use acp_shared::ids::{IdempotencyKey, RunId};

    fn turn(chain: u64, state: RunState, interactive: bool) -> RunRow {
        let request = PromptRequest { chain, interactive, ..PromptRequest::default() };
        let session = SessionKey::parse("agent:demo:acp:1").unwrap();
        RunRow { state, ..request.into_run(RunId::mint(), &session, IdempotencyKey::mint(), 1) }
    }

    #[test]
    fn chain_of_messages_has_five_links() {
        assert_eq!(next_in_chain(None), Ok(1));
        for chain in 0..CHAIN_MAX {
            assert_eq!(next_in_chain(Some(&turn(chain, RunState::Running, true))), Ok(chain + 1));
        }
        let refused = next_in_chain(Some(&turn(CHAIN_MAX, RunState::Completed, true))).unwrap_err();
        assert_eq!((refused.code, refused.detail_code.as_deref()), (Code::LimitReached, Some("CHAIN_MAX")));
    }

    #[test]
    fn agent_spawns_its_list_or_its_own_and_a_sandboxed_one_none() {
        let name = |text: &str| AgentName::parse(text).unwrap();
        let toml = "[agents.listed]\nspawn_agents = [\"other\"]\n[agents.boxed]\nsandboxed = true\nspawn_agents = [\"other\"]";
        let config: Config = toml::from_str(toml).unwrap();
        for (agent, want) in [("listed", vec!["other"]), ("plain", vec!["plain"]), ("boxed", vec![])] {
            let want: Vec<AgentName> = want.into_iter().map(name).collect();
            assert_eq!(spawnable_agents(&config, &name(agent)), want, "{agent}");
        }
    }

    #[test]
    fn person_can_be_asked_in_a_running_interactive_turn_only() {
        for (state, interactive, want) in [
            (RunState::Running, true, true),
            (RunState::Running, false, false),
            (RunState::Completed, true, false),
        ] {
            assert_eq!(is_interactive(Some(&turn(0, state, interactive))), want, "{state:?} {interactive}");
        }
        assert!(!is_interactive(None));
    }
}
