//! Creation of a session: the checks, and the single transaction.

use super::agent_requests::AgentParent;
use super::{Manager, at_cap, caps_of, fingerprint};
use crate::metrics::transitions;
use crate::runtime::hosts::Host;
use crate::runtime::lookup::{LookupResults, RecentLookup, look_up_with_timeout, no_supervisor};
use crate::session::restore::agent_profile;
use crate::session::task::{FreshSession, LoadRetry};
use acp_core::actor::{AgentProfile, IdempotencyRecord};
use acp_core::binding::Placement;
use acp_core::config::load::nearest_source;
use acp_core::config::remote::LOCAL;
use acp_core::config::source::Source;
use acp_core::event::{EventKind, prompt_payload};
use acp_core::failure::Failure;
use acp_core::policy::{BindOrigin, BindingTimeouts, Effective, EffectivePolicy, PolicyScope};
use acp_core::request::{CloseRequest, PromptRequest, SpawnRequest, SpawnResult};
use acp_core::rows::{BindingRow, SessionOptions, SessionRow, TargetKind};
use acp_core::runtime::{BackendHealth, Runtime, acpx, direct};
use acp_core::session::SessionState;
use acp_core::writes::{ActorFence, ActorSnapshot};
use acp_core::{mcp, options};
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, BindingId, IdempotencyKey, RunId, SessionKey};
use acp_store::{SpawnTx, StoreError, bindings};
use std::sync::Arc;
use std::time::Duration;

/// Maximum wait of a spawn for an unavailable backend.
const BACKEND_WAIT: Duration = Duration::from_secs(5);
/// Interval of its checks.
const HEALTH_EVERY: Duration = Duration::from_millis(100);

impl Manager {
    /// Creates a session (with binding and first run, all or nothing) and starts its agent.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED`, `ACP_CWD_NOT_ALLOWED`, `ACP_LIMIT_REACHED`, `ACP_DISABLED`,
    /// `ACP_DISPATCH_DISABLED`, `USAGE` (label), `NO_SESSION` (of the spawner), `ACP_STORE_UNAVAILABLE`,
    /// `ACP_IDEMPOTENCY_CONFLICT`: nothing was created.
    pub(crate) async fn spawn(
        &self,
        request: SpawnRequest,
        key: IdempotencyKey,
    ) -> Result<SpawnResult, Failure> {
        let scope = PolicyScope::of(request.bind.as_ref());
        let agent = request.agent.clone().or_else(|| self.deps.host.profiles.default_agent().ok());
        let scope = agent.iter().fold(scope, |scope, agent| scope.with_agent(agent));
        let mut policy = (*self.deps.live.policy(&scope)).clone();
        if let Some(backend) = request.backend.clone() {
            let key = "backend of the request".to_owned();
            policy.backend = Effective { value: backend, key, source: Source::Default, note: None };
        }
        if let Some(backend) = request.configured.as_ref().and_then(|it| it.backend.clone()) {
            let key = "backend of [[bindings]]".to_owned();
            let source = nearest_source(&["bindings".to_owned()], &self.deps.live.now().sources);
            policy.backend = Effective { value: backend, key, source, note: None };
        }
        let spawned = self.spawn_once(request, key, &policy).await;
        if let Err(failure) = &spawned {
            self.deps.metrics.spawn(&policy.backend.value, failure.code.as_str());
        }
        spawned
    }

    async fn spawn_once(
        &self,
        mut request: SpawnRequest,
        key: IdempotencyKey,
        policy: &EffectivePolicy,
    ) -> Result<SpawnResult, Failure> {
        let keyed = IdempotencyRecord { scope: "spawn".to_owned(), fingerprint: fingerprint(&request), key };
        if let Some(spawned) = self.stored_spawn(&keyed).await? {
            return Ok(spawned);
        }
        policy.may_spawn(request.prompt.is_some())?;
        check_stored(&request, &policy.backend.value)?;
        let windows = self.binding_timeouts(&request, policy)?;
        request.label.as_deref().map_or(Ok(()), options::check_label)?;
        request.model.as_deref().map_or(Ok(()), options::check_model)?;
        let agent = match &request.agent {
            Some(agent) => agent.clone(),
            None => self.deps.host.profiles.default_agent()?,
        };
        let root = self.root_of_spawner(request.spawned_by.as_ref()).await?;
        let parent = self.agent_parent(&mut request, &agent).await?;
        if let Some(parent) = &parent {
            // Its directories are on that host.
            request.host = Some(parent.host().to_owned());
        }
        let host = self.deps.hosts.place(request.host.as_deref(), &agent)?;
        let backend = backend_of(&host, policy).await?;
        let profile = agent_profile(host.profiles.as_ref(), &agent, &request.command, None)?;
        backend.check(&request, &profile)?;
        mcp::check_directories(&request.additional_directories)?;
        if let Some(named) = self.named_session(&agent, &request).await? {
            return Ok(SpawnResult { existing: true, ..SpawnResult::created(named, None) });
        }
        let directories = &request.additional_directories;
        let mut lookup = host.profiles.lookup(&agent, request.cwd.as_deref(), directories);
        lookup.programs.extend(request.command.first().cloned());
        let found = look_up_with_timeout(&host.supervisor, &lookup).await?;
        let mut tx = self.spawn_tx(&host, agent, request, windows, keyed.clone(), policy, &found)?;
        tx.session.owner_session_key = root.or(tx.session.owner_session_key);
        let of_account = parent.as_ref().and_then(AgentParent::account_policy);
        let (policy, is_by_agent) = (of_account.as_deref().unwrap_or(policy), parent.is_some());
        if let Some(parent) = parent {
            parent.narrow(&mut tx, host.profiles.as_ref())?;
        }
        let run_id = tx.run.as_ref().map(|run| run.run_id);
        let mut spawned = SpawnResult::created(tx.session.session_key.clone(), run_id);
        let (session, run) = (tx.session.clone(), tx.run.clone());
        let thread_id = tx.binding.as_ref().map(|binding| binding.conversation.conversation_id.clone());
        let own_binding = tx.binding.as_ref().filter(|_| is_by_agent).map(|binding| binding.binding_id);
        let claimed = match self.insert_spawn(tx, &mut spawned).await {
            Ok(claimed) => claimed,
            // Another connection used the same key just now: return its response.
            Err(StoreError::KeyTaken { .. }) => {
                let before = self.stored_spawn(&keyed).await?;
                return before.ok_or_else(|| Failure::of(Code::IdempotencyConflict));
            }
            // Another connection used the same name just now.
            Err(StoreError::NameTaken { session_key }) => {
                return Ok(SpawnResult { existing: true, ..SpawnResult::created(session_key, None) });
            }
            Err(error) => return Err(at_cap(error.into(), policy)),
        };
        transitions::spawned(&session, run.as_ref(), thread_id.as_deref());
        let fresh = FreshSession { claimed: Some(claimed), lookup: Some(RecentLookup::new(lookup, found)) };
        self.start_actor(&spawned.session_key, fresh, own_binding).await;
        Ok(spawned)
    }

    /// Creates the actor of a new session, once the conversation of its own binding exists.
    async fn start_actor(&self, key: &SessionKey, mut fresh: FreshSession, binding: Option<BindingId>) {
        if let Some(binding_id) = binding {
            self.await_conversation(binding_id).await;
            // The rows may have changed meanwhile.
            fresh.claimed = None;
        }
        self.actor_with(key, LoadRetry::UntilStop, fresh);
    }

    /// Returns the timeouts of the binding that the request asks for.
    ///
    /// # Errors
    /// `ACP_DISABLED`, if sessions may not be bound in that way.
    fn binding_timeouts(
        &self,
        request: &SpawnRequest,
        policy: &EffectivePolicy,
    ) -> Result<BindingTimeouts, Failure> {
        match (&request.bind, &request.configured) {
            (None, _) => Ok(BindingTimeouts::default()),
            // A project of the configuration allows spawns in its channel.
            (Some(at), None) if self.deps.live.now().config.channels.discord.project_of(at).is_some() => {
                policy.may_bind(BindOrigin::Focus)
            }
            (Some(_), None) => policy.may_bind(BindOrigin::Spawn),
            // Static bindings come from the operator's configuration: check only that bindings are enabled,
            // and apply no binding timeouts.
            (Some(_), Some(_)) => policy.may_bind(BindOrigin::Focus).map(|_| BindingTimeouts::default()),
        }
    }

    /// Returns the open session that has the name of the request, unless it is to be replaced.
    async fn named_session(
        &self,
        agent: &AgentName,
        request: &SpawnRequest,
    ) -> Result<Option<SessionKey>, Failure> {
        let Some(naming) = &request.acpx else { return Ok(None) };
        naming.check().map_err(|why| Failure::new(Code::Usage, why).origin("client"))?;
        if naming.replace {
            return Ok(None);
        }
        Ok(self.deps.store.acpx_session(agent.clone(), naming.clone()).await?)
    }

    /// Inserts the rows of a session. One that is to be replaced is closed first, after all checks of the new one.
    ///
    /// # Errors
    /// As [`acp_store::Store::spawn_session`].
    async fn insert_spawn(
        &self,
        mut tx: SpawnTx,
        spawned: &mut SpawnResult,
    ) -> Result<(ActorSnapshot, ActorFence), StoreError> {
        loop {
            if let Some((_, _, _, result)) = &mut tx.idempotency {
                *result = serde_json::to_string(spawned)
                    .map_err(|_| StoreError::Refused("the result cannot be stored"))?;
            }
            let old = match self.deps.store.spawn_session(tx.clone()).await {
                Err(StoreError::NameTaken { session_key }) if is_replacement(&tx) => session_key,
                other => return other,
            };
            let why = format!("replaced by {}", spawned.session_key);
            let closed = self.close(&old, CloseRequest::new(why), IdempotencyKey::mint()).await;
            closed.map_err(|failure| {
                tracing::warn!(session_key = %old, %failure, "session with a taken name cannot be closed");
                StoreError::NameTaken { session_key: old.clone() }
            })?;
            spawned.replaced = Some(old);
        }
    }

    /// Returns the root of the tree of the spawning session, which is that session itself if its own is unknown. Fails
    /// unless the session is open.
    async fn root_of_spawner(&self, spawner: Option<&SessionKey>) -> Result<Option<SessionKey>, Failure> {
        let Some(spawner) = spawner else { return Ok(None) };
        let row = self.deps.store.session(spawner.clone()).await.map_err(Failure::from)?;
        let Some(row) = row.filter(|row| row.state != SessionState::Closed) else {
            let text = format!(
                "The session {spawner} cannot spawn another session: it is closed or does not exist."
            );
            return Err(Failure::new(Code::NoSession, text).detail("NO_SPAWNER"));
        };
        Ok(row.owner_session_key.or(Some(row.session_key)))
    }

    async fn stored_spawn(&self, keyed: &IdempotencyRecord) -> Result<Option<SpawnResult>, Failure> {
        let found = self.deps.store.remembered(keyed.scope.clone(), keyed.key.clone()).await;
        let metrics = &self.deps.metrics;
        match found.map_err(Failure::from)? {
            None => {
                metrics.idempotency("spawn", "fresh");
                Ok(None)
            }
            Some((fingerprint, _)) if fingerprint != keyed.fingerprint => {
                metrics.idempotency("spawn", "conflict");
                Err(Failure::of(Code::IdempotencyConflict).origin("client"))
            }
            Some((_, result)) => {
                metrics.idempotency("spawn", "replay");
                let spawned = serde_json::from_str(&result).map_err(|_| Failure::of(Code::Runtime))?;
                Ok(Some(spawned))
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the results of all checks of a spawn")]
    fn spawn_tx(
        &self,
        host: &Host,
        agent: AgentName,
        request: SpawnRequest,
        windows: BindingTimeouts,
        keyed: IdempotencyRecord,
        policy: &EffectivePolicy,
        found: &LookupResults,
    ) -> Result<SpawnTx, Failure> {
        let profile = agent_profile(host.profiles.as_ref(), &agent, &request.command, Some(found))?;
        let cwd = host.profiles.cwd(&agent, request.cwd.as_deref(), found)?;
        let now_ms = self.deps.clock.now_ms();
        let directory = |asked: &String| host.profiles.directory(&agent, asked, found);
        let directories: Vec<String> =
            request.additional_directories.iter().map(directory).collect::<Result<_, _>>()?;
        let options = SessionOptions {
            host: (*host.name != *LOCAL).then(|| host.name.to_string()),
            additional_directories: mcp::merge_directories(&cwd, [directories.as_slice()]),
            ..requested_options(&request, &profile)
        };
        let backend = policy.backend.value.clone();
        let session = self.new_session(agent, backend, cwd, &request, options, now_ms);
        let session_key = session.session_key.clone();
        let kind = if session.spawned_by.is_some() { TargetKind::Subagent } else { TargetKind::Session };
        let binding = request.bind.map(|to| {
            let new = bindings::new_row(to, &session_key, &request.author, windows, now_ms);
            let metadata = match (&request.configured, &request.origin) {
                (Some(configured), _) => configured.metadata.clone(),
                (None, Some(origin)) => origin.metadata(),
                (None, None) => new.metadata.clone(),
            };
            let new = BindingRow { target_kind: kind, metadata, ..new };
            match request.placement {
                Placement::Here => new,
                Placement::Child => bindings::into_pending(new),
            }
        });
        let caps = caps_of(policy, binding.as_ref().map(|binding| &binding.conversation));
        let run = request.prompt.map(|text| {
            let (author, asked_by, interactive) = (request.author, request.asked_by, request.interactive);
            let first = PromptRequest { text, author, asked_by, interactive, ..PromptRequest::default() };
            first.into_run(RunId::mint(), &session_key, keyed.key.clone(), now_ms)
        });
        let events = run
            .iter()
            .map(|run| (EventKind::Prompt, prompt_payload(&run.text, run.mode, &run.author, None)))
            .collect();
        let spawned = SpawnResult::created(session_key, run.as_ref().map(|run| run.run_id));
        let result = serde_json::to_string(&spawned).map_err(|_| Failure::of(Code::Runtime))?;
        let idempotency = Some((keyed.scope, keyed.key, keyed.fingerprint, result));
        Ok(SpawnTx {
            session,
            naming: request.acpx,
            binding,
            run,
            events,
            idempotency,
            caps,
            children_max: None,
        })
    }

    fn new_session(
        &self,
        agent: AgentName,
        backend: String,
        cwd: String,
        request: &SpawnRequest,
        options: SessionOptions,
        now_ms: u64,
    ) -> SessionRow {
        let session_key = match &request.configured {
            Some(configured) => configured.session_key.clone(),
            None => SessionKey::mint(&agent),
        };
        SessionRow {
            session_key: session_key.clone(),
            backend,
            agent,
            mode: request.mode,
            cwd,
            label: request.label.clone(),
            state: SessionState::Creating,
            ending: None,
            last_error: None,
            owner_session_key: Some(session_key),
            asked_by: request.author.clone(),
            spawned_by: request.spawned_by.clone(),
            parent_session_key: request.spawned_by.clone(),
            gateway_instance_id: self.instance_id,
            // The agent itself decides whether the conversation exists.
            resumable: request.resume.is_some(),
            agent_session_id: request.resume.clone(),
            agent_info: None,
            lease_id: None,
            options,
            last_session_seq: 0,
            pruned_seq: 0,
            created_at_ms: now_ms,
            updated_at_ms: now_ms,
            last_activity_at_ms: now_ms,
        }
    }
}

/// Returns the options that a request sets, without host and directories.
fn requested_options(request: &SpawnRequest, profile: &AgentProfile) -> SessionOptions {
    SessionOptions {
        voting: request.voting.unwrap_or_default(),
        model: request.model.clone(),
        is_model_required: request.model.is_some(),
        mcp_servers: request.mcp_servers.clone(),
        auth_method: request.auth_method.clone(),
        command: request.command.clone(),
        listing: request.listing,
        ..SessionOptions::new(
            request.permission.unwrap_or(profile.permission),
            request.non_interactive.unwrap_or(profile.non_interactive),
        )
    }
}

/// Returns the backend of a new session on this host; waits for a supervisor that is being restarted.
///
/// # Errors
/// `ACP_BACKEND_MISSING`; `ACP_BACKEND_UNAVAILABLE` when the wait takes too long.
async fn backend_of(host: &Host, policy: &EffectivePolicy) -> Result<Arc<dyn Runtime>, Failure> {
    let backend = host.registry.require(&policy.backend.value);
    let backend = backend.map_err(|failure| policy.explain_missing_backend(failure))?;
    let mut status = host.supervisor.status();
    let is_well = async {
        while !backend.health().ok {
            // Programs are looked up without a change of the supervisor's status.
            let changed = tokio::time::timeout(HEALTH_EVERY, status.changed()).await;
            if matches!(changed, Ok(Err(_))) {
                std::future::pending::<()>().await;
            }
        }
    };
    if tokio::time::timeout(BACKEND_WAIT, is_well).await.is_ok() {
        return Ok(backend);
    }
    let BackendHealth { details, .. } = backend.health();
    tracing::warn!(backend = policy.backend.value, details, "session refused: backend unavailable");
    if host.supervisor.outage().is_none() && backend.id() == acpx::ID {
        let text = format!("{} {details}", Code::BackendUnavailable.text());
        let failure = Failure::new(Code::BackendUnavailable, text).detail("NOT_INSTALLED");
        return Err(policy.explain_missing_backend(failure.origin("gateway")));
    }
    Err(policy.explain_missing_backend(no_supervisor("starts agents")))
}

/// Checks a request about conversations that the agent has stored.
///
/// # Errors
/// `USAGE`.
fn check_stored(request: &SpawnRequest, backend: &str) -> Result<(), Failure> {
    let usage = |text: &str| Err(Failure::new(Code::Usage, text).origin("client"));
    if request.resume.is_none() && request.listing.is_none() {
        return Ok(());
    }
    if backend != direct::ID {
        return usage("stored conversations of an agent need the backend direct: acpx keeps its own");
    }
    if request.listing.is_some() && (request.resume.is_some() || request.prompt.is_some()) {
        return usage("a list of the stored sessions takes neither a prompt nor a session to continue");
    }
    match &request.resume {
        Some(id) if !direct::is_session_id(id) => {
            usage("the id of the conversation to continue is empty or longer than 1024 bytes")
        }
        _ => Ok(()),
    }
}

/// True if an open session with the same name is to be closed.
fn is_replacement(tx: &SpawnTx) -> bool {
    tx.naming.as_ref().is_some_and(|naming| naming.replace)
}
