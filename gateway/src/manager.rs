//! The one way to act on sessions: every surface (API, console, commands) calls these methods and no other.
//! Each acting method takes an idempotency key: the same key gives the first answer again and has no second
//! effect.

use crate::bindings::{new_binding, to_be_made};
use crate::core::actor::{Answered, Command, Keyed};
use crate::core::binding::Placement;
use crate::core::event::EventKind;
use crate::core::options::{self, Setting};
use crate::core::policy::{Bind, BindingWindows, Policy, Scope};
use crate::core::recovery;
pub(crate) use crate::core::request::{
    Cancelled, CloseRequest, PromptAccepted, PromptRequest, SessionNow, SpawnRequest, Spawned,
};
use crate::core::rows::{
    BindingRow, ConversationRef, NonInteractive, PermissionMode, RunMode, RunRow, SessionOptions, SessionRow,
    TargetKind,
};
use crate::core::run::RunState;
use crate::core::session::SessionState;
use crate::core::ttl::Expiry;
use crate::error::Failure;
use crate::observe;
use crate::session_task::{Deps, Envelope, Lanes, Patience, run};
use crate::store::{AccountCap, SpawnTx, StoreError};
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, GatewayInstanceId, IdempotencyKey, RunId, SessionKey};
use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

/// Commands that may wait for one session.
const MAILBOX_MAX: usize = 64;
/// Cancels, closes and permission answers that may wait for one session.
const URGENT_MAX: usize = 16;

#[derive(Clone)]
struct Actor {
    mailbox: mpsc::Sender<Envelope>,
    urgent: mpsc::Sender<Envelope>,
}

/// Acts on sessions.
pub(crate) struct Manager {
    deps: Deps,
    /// Whose sessions these are.
    instance_id: GatewayInstanceId,
    actors: Mutex<HashMap<SessionKey, Actor>>,
    tasks: TaskTracker,
}

impl Manager {
    /// A manager without actors; they are made when somebody asks for them, or by [`Manager::resume`].
    pub(crate) fn new(deps: Deps, instance_id: GatewayInstanceId) -> Self {
        Self { deps, instance_id, actors: Mutex::default(), tasks: TaskTracker::new() }
    }

    /// Whether prompts reach agents.
    pub(crate) fn dispatch_enabled(&self) -> bool {
        self.deps.live.policy(&Scope::default()).may_prompt().is_ok()
    }

    /// At start: looks at everything that has not ended, plans, and makes the actors that the plan wants. Each of
    /// them does first what the plan says of its session.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) async fn resume(&self) -> Result<usize, StoreError> {
        let found = self.deps.store.found_sessions().await?;
        let eager_max = self.deps.live.at_start().acp.control_plane.recovery.eager_actors;
        let plan = recovery::plan(found, usize::try_from(eager_max).unwrap_or(usize::MAX));
        for (session_key, step) in &plan.now {
            tracing::info!(%session_key, ?step, "taken up after a start");
            self.actor_with(session_key, Patience::UntilStop);
        }
        for session_key in &plan.eager {
            self.actor_with(session_key, Patience::Once);
        }
        tracing::info!(
            now = plan.now.len(),
            eager = plan.eager.len(),
            lazy = plan.lazy,
            "sessions after a start"
        );
        Ok(plan.now.len())
    }

    /// Whether a person may bind a conversation to a session that is there, and for how long.
    ///
    /// # Errors
    /// `ACP_DISABLED`.
    pub(crate) fn may_focus(&self, at: &ConversationRef) -> Result<BindingWindows, Failure> {
        self.deps.live.policy(&Scope::of(Some(at))).may_bind(Bind::Focus)
    }

    /// Waits until every actor has stopped; the stop itself is asked through the token of [`Deps`].
    pub(crate) async fn stopped(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Makes a session (with binding and first run, all or nothing) and starts its agent.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED`, `ACP_CWD_NOT_ALLOWED`, `ACP_LIMIT_REACHED`, `ACP_DISABLED`, `ACP_DISPATCH_DISABLED`,
    /// `USAGE` (label), `NO_SESSION` (of the spawner),
    /// `ACP_STORE_UNAVAILABLE`, `ACP_IDEMPOTENCY_CONFLICT`: nothing was made.
    pub(crate) async fn spawn(&self, request: SpawnRequest, key: IdempotencyKey) -> Result<Spawned, Failure> {
        let policy = self.deps.live.policy(&Scope::of(request.bind.as_ref()));
        let spawned = self.spawn_once(request, key, &policy).await;
        if let Err(failure) = &spawned {
            self.deps.metrics.spawn(&policy.backend.value, failure.code.as_str());
        }
        spawned
    }

    async fn spawn_once(
        &self,
        request: SpawnRequest,
        key: IdempotencyKey,
        policy: &Policy,
    ) -> Result<Spawned, Failure> {
        let keyed = Keyed { scope: "spawn".to_owned(), key: key.clone(), fingerprint: fingerprint(&request) };
        if let Some(spawned) = self.spawned_before(&keyed).await? {
            return Ok(spawned);
        }
        policy.may_spawn(request.prompt.is_some())?;
        let windows =
            if request.bind.is_some() { policy.may_bind(Bind::Spawn)? } else { BindingWindows::default() };
        if let Some(label) = &request.label {
            options::check_label(label)?;
        }
        let backend = self.deps.registry.require(&policy.backend.value);
        backend.map_err(|failure| policy.without_backend(failure))?;
        let agent = match &request.agent {
            Some(agent) => agent.clone(),
            None => self.deps.profiles.default_agent()?,
        };
        self.check_spawner(request.spawned_by.as_ref()).await?;
        let tx = self.spawn_tx((agent, request, windows), key, keyed.clone(), policy)?;
        let spawned = Spawned {
            session_key: tx.session.session_key.clone(),
            run_id: tx.run.as_ref().map(|run| run.run_id),
        };
        let (session, run) = (tx.session.clone(), tx.run.clone());
        match self.deps.store.spawn_session(tx).await {
            Ok(()) => observe::spawned(&session, run.as_ref()),
            // The same key a moment ago, from another connection: its answer is ours.
            Err(StoreError::KeyTaken { .. }) => {
                let before = self.spawned_before(&keyed).await?;
                return before.ok_or_else(|| Failure::of(Code::IdempotencyConflict));
            }
            Err(StoreError::LimitReached { account: false, .. }) => return Err(policy.at_sessions_max()),
            Err(StoreError::LimitReached { account: true, .. }) => return Err(policy.at_account_max()),
            Err(error) => return Err(Failure::from(error)),
        }
        self.actor(&spawned.session_key);
        Ok(spawned)
    }

    /// Only an open session spawns another one.
    async fn check_spawner(&self, spawner: Option<&SessionKey>) -> Result<(), Failure> {
        let Some(spawner) = spawner else { return Ok(()) };
        let row = self.deps.store.session(spawner.clone()).await.map_err(Failure::from)?;
        if row.is_none_or(|row| row.state == SessionState::Closed) {
            let text =
                format!("The session {spawner} cannot spawn another one: it is closed, or there is none.");
            return Err(Failure::new(Code::NoSession, text).detail("NO_SPAWNER"));
        }
        Ok(())
    }

    async fn spawned_before(&self, keyed: &Keyed) -> Result<Option<Spawned>, Failure> {
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

    fn spawn_tx(
        &self,
        (agent, request, windows): (AgentName, SpawnRequest, BindingWindows),
        key: IdempotencyKey,
        keyed: Keyed,
        policy: &Policy,
    ) -> Result<SpawnTx, Failure> {
        let profile = self.deps.profiles.profile(&agent)?;
        let cwd = self.deps.profiles.cwd(&agent, request.cwd.as_deref())?;
        let now_ms = self.deps.clock.now_ms();
        let options = SessionOptions::new(
            request.permission.unwrap_or(profile.permission),
            request.non_interactive.unwrap_or(profile.non_interactive),
        );
        let backend = policy.backend.value.clone();
        let session = self.new_session((agent, backend), cwd, &request, options, now_ms);
        let session_key = session.session_key.clone();
        let kind = if session.spawned_by.is_some() { TargetKind::Subagent } else { TargetKind::Session };
        let binding = request.bind.map(|to| {
            let new = new_binding(to, &session_key, &request.author, windows, now_ms);
            let new = BindingRow { target_kind: kind, ..new };
            match request.placement {
                Placement::Here => new,
                Placement::Child => to_be_made(new),
            }
        });
        let account = binding.as_ref().zip(policy.account_sessions_max.value);
        let account_cap = account.map(|(binding, sessions_max)| AccountCap {
            channel: binding.conversation.channel.clone(),
            account_id: binding.conversation.account_id.clone(),
            sessions_max,
        });
        let run = request.prompt.map(|text| {
            let told = (text, request.author, request.interactive);
            first_run(told, &session_key, key, now_ms)
        });
        let events = run.iter().map(first_event).collect();
        let spawned = Spawned { session_key, run_id: run.as_ref().map(|run| run.run_id) };
        let result = serde_json::to_string(&spawned).map_err(|_| Failure::of(Code::Runtime))?;
        let idempotency = Some((keyed.scope, keyed.key, keyed.fingerprint, result));
        let sessions_max = policy.sessions_max.value;
        Ok(SpawnTx { session, binding, run, events, idempotency, sessions_max, account_cap })
    }

    fn new_session(
        &self,
        (agent, backend): (AgentName, String),
        cwd: String,
        request: &SpawnRequest,
        options: SessionOptions,
        now_ms: u64,
    ) -> SessionRow {
        let session_key = SessionKey::mint(&agent);
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
            owner_session_key: request.spawned_by.clone().unwrap_or(session_key),
            spawned_by: request.spawned_by.clone(),
            parent_session_key: request.spawned_by.clone(),
            gateway_instance_id: self.instance_id,
            agent_session_id: None,
            resumable: false,
            agent_info: None,
            lease_id: None,
            options,
            last_session_seq: 0,
            created_at_ms: now_ms,
            updated_at_ms: now_ms,
            last_activity_at_ms: now_ms,
        }
    }

    /// Accepts a prompt or a steer.
    ///
    /// # Errors
    /// `NO_SESSION`, `ACP_SESSION_CLOSED`, `ACP_LIMIT_REACHED` (queue or size), `ACP_RESUME_UNAVAILABLE`,
    /// `ACP_DISABLED`, `ACP_DISPATCH_DISABLED`, `ACP_STORE_UNAVAILABLE`, `ACP_IDEMPOTENCY_CONFLICT`: nothing was accepted.
    pub(crate) async fn prompt(
        &self,
        session: &SessionKey,
        request: PromptRequest,
        key: IdempotencyKey,
    ) -> Result<PromptAccepted, Failure> {
        self.deps.live.policy(&Scope::default()).may_prompt()?;
        let keyed = keyed("prompt", session, &key, &request);
        let command = Command::Prompt { run_id: RunId::mint(), request, key };
        match self.ask(session, command, keyed).await? {
            Answered::Prompt(accepted) => Ok(accepted),
            Answered::Cancel(_) | Answered::Now(_) | Answered::Done => Err(Failure::of(Code::Runtime)),
        }
    }

    /// Stops a run, queued or running; `None` means the running one, or else the one next in the queue. Touches
    /// no process.
    ///
    /// # Errors
    /// `NO_SESSION`, `ACP_STORE_UNAVAILABLE`.
    pub(crate) async fn cancel(
        &self,
        session: &SessionKey,
        run: Option<RunId>,
        key: IdempotencyKey,
    ) -> Result<Cancelled, Failure> {
        let keyed = keyed("cancel", session, &key, &run);
        match self.ask(session, Command::Cancel(run), keyed).await? {
            Answered::Cancel(cancelled) => Ok(cancelled),
            Answered::Prompt(_) | Answered::Now(_) | Answered::Done => Err(Failure::of(Code::Runtime)),
        }
    }

    /// Closes a session for good: its turn, its queue, its bindings and its process. Returns when it is
    /// committed; the process ends in the background.
    ///
    /// # Errors
    /// `NO_SESSION`, `ACP_STORE_UNAVAILABLE`. Closing a closed session is not an error.
    pub(crate) async fn close(
        &self,
        session: &SessionKey,
        request: CloseRequest,
        key: IdempotencyKey,
    ) -> Result<SessionNow, Failure> {
        let keyed = keyed("close", session, &key, &(request.ending, request.discard));
        self.ask_now(session, Command::Close(request), keyed).await
    }

    /// A window of a session ran out, as it was seen: it ends what it is about, unless that was used since.
    ///
    /// # Errors
    /// As [`Manager::close`].
    pub(crate) async fn expire(
        &self,
        session: &SessionKey,
        expiry: Expiry,
        seen_ms: u64,
        closes: bool,
    ) -> Result<SessionNow, Failure> {
        self.ask_now(session, Command::Expire { expiry, seen_ms, closes }, None).await
    }

    /// Starts the agent's conversation anew on the next prompt; the session and its journal stay.
    ///
    /// # Errors
    /// `NO_SESSION`, `ACP_SESSION_CLOSED`, `ACP_STORE_UNAVAILABLE`.
    pub(crate) async fn new_conversation(
        &self,
        session: &SessionKey,
        key: IdempotencyKey,
    ) -> Result<SessionNow, Failure> {
        let keyed = keyed("new", session, &key, &"");
        self.ask_now(session, Command::NewConversation, keyed).await
    }

    /// Changes one of a session's settings: told to its agent now if it runs, and kept for every later one.
    ///
    /// # Errors
    /// `NO_SESSION`, `ACP_SESSION_CLOSED`, `USAGE` (out of its limits, or not while a turn runs),
    /// `ACP_CWD_NOT_ALLOWED`, `ACP_RESUME_UNAVAILABLE`, `ACP_STORE_UNAVAILABLE`; what the agent says about it is in the
    /// journal.
    pub(crate) async fn set(
        &self,
        session: &SessionKey,
        setting: Setting,
        key: IdempotencyKey,
    ) -> Result<SessionNow, Failure> {
        let keyed = keyed("option", session, &key, &setting);
        let setting = match setting {
            Setting::Cwd(asked) => {
                setting_cwd(&asked)?;
                let row = self.deps.store.session(session.clone()).await.map_err(Failure::from)?;
                let row = row.ok_or_else(|| Failure::of(Code::NoSession))?;
                Setting::Cwd(self.deps.profiles.cwd(&row.agent, Some(&asked))?)
            }
            other => other,
        };
        self.ask_now(session, Command::Set(setting), keyed).await
    }

    /// Answers a pending permission with one of the agent's options. The first valid answer wins.
    ///
    /// # Errors
    /// `NO_SESSION`; `USAGE` when the permission is unknown, settled or expired, or the option is not one of its.
    pub(crate) async fn answer_permission(
        &self,
        session: &SessionKey,
        permission_id: &str,
        option_id: &str,
        by: &str,
        key: IdempotencyKey,
    ) -> Result<(), Failure> {
        let keyed = keyed("permission", session, &key, &(permission_id, option_id));
        let command = Command::AnswerPermission {
            permission_id: permission_id.to_owned(),
            option_id: option_id.to_owned(),
            by: by.to_owned(),
        };
        self.ask(session, command, keyed).await.map(|_| ())
    }

    async fn ask_now(
        &self,
        session: &SessionKey,
        command: Command,
        keyed: Option<Keyed>,
    ) -> Result<SessionNow, Failure> {
        match self.ask(session, command, keyed).await? {
            Answered::Now(now) => Ok(now),
            Answered::Prompt(_) | Answered::Cancel(_) | Answered::Done => Err(Failure::of(Code::Runtime)),
        }
    }

    /// Hands a command to the session's actor and waits for the answer.
    async fn ask(
        &self,
        session: &SessionKey,
        command: Command,
        keyed: Option<Keyed>,
    ) -> Result<Answered, Failure> {
        if self.deps.store.session(session.clone()).await.map_err(Failure::from)?.is_none() {
            return Err(Failure::of(Code::NoSession));
        }
        // An actor that went to rest just now drops the command unread: once more, with a new one.
        for _ in 0..3 {
            let actor = self.actor(session);
            let (reply, answer) = oneshot::channel();
            let envelope = Envelope { command: command.clone(), keyed: keyed.clone(), reply };
            let urgent = matches!(
                envelope.command,
                Command::Cancel(_) | Command::Close(_) | Command::AnswerPermission { .. }
            );
            let lane = if urgent { &actor.urgent } else { &actor.mailbox };
            match lane.try_send(envelope) {
                Ok(()) => {
                    if let Ok(result) = answer.await {
                        return result;
                    }
                }
                Err(mpsc::error::TrySendError::Full(_)) => {
                    self.deps.metrics.mailbox_full(if urgent { "urgent" } else { "mailbox" });
                    let text = "Too many commands wait for this session. Try again in a moment.";
                    return Err(Failure::new(Code::LimitReached, text).detail("MAILBOX_FULL").retryable());
                }
                Err(mpsc::error::TrySendError::Closed(_)) => {}
            }
            if self.deps.stop.is_cancelled() {
                break;
            }
            self.forget(session, &actor);
        }
        Err(Failure::of(Code::BackendUnavailable).detail("GATEWAY_ENDING").retryable())
    }

    /// The session's actor; made when there is none.
    fn actor(&self, key: &SessionKey) -> Actor {
        self.actor_with(key, Patience::Once)
    }

    fn actor_with(&self, key: &SessionKey, patience: Patience) -> Actor {
        let mut actors = self.actors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(actor) = actors.get(key).filter(|actor| !actor.mailbox.is_closed()) {
            return actor.clone();
        }
        actors.retain(|_, actor| !actor.mailbox.is_closed());
        let (mailbox, mailbox_lane) = mpsc::channel(MAILBOX_MAX);
        let (urgent, urgent_lane) = mpsc::channel(URGENT_MAX);
        let lanes = Lanes { mailbox: mailbox_lane, urgent: urgent_lane };
        let actor = Actor { mailbox, urgent };
        actors.insert(key.clone(), actor.clone());
        self.tasks.spawn(run(self.deps.clone(), key.clone(), lanes, patience));
        actor
    }

    fn forget(&self, key: &SessionKey, dead: &Actor) {
        let mut actors = self.actors.lock().unwrap_or_else(PoisonError::into_inner);
        if actors.get(key).is_some_and(|actor| actor.mailbox.same_channel(&dead.mailbox)) {
            actors.remove(key);
        }
    }
}

/// Whether a working directory could be one at all, before the file system is asked.
fn setting_cwd(asked: &str) -> Result<(), Failure> {
    let none = SessionOptions::new(PermissionMode::Ask, NonInteractive::Deny);
    Setting::Cwd(asked.to_owned()).check(&none)
}

/// The first run: what is said, by whom, and whether they can be asked.
fn first_run(
    (text, author, interactive): (String, String, bool),
    session: &SessionKey,
    key: IdempotencyKey,
    now_ms: u64,
) -> RunRow {
    RunRow {
        run_id: RunId::mint(),
        session_key: session.clone(),
        mode: RunMode::Prompt,
        state: RunState::Queued,
        text,
        author,
        interactive,
        requester_message_id: None,
        idempotency_key: key,
        last_seq: 0,
        stop_reason: None,
        usage: None,
        error: None,
        created_at_ms: now_ms,
        started_at_ms: None,
        ended_at_ms: None,
    }
}

fn first_event(run: &RunRow) -> (EventKind, String) {
    let payload = json!({ "text": run.text, "mode": run.mode, "author": run.author });
    (EventKind::Prompt, payload.to_string())
}

fn keyed(verb: &str, session: &SessionKey, key: &IdempotencyKey, asked: &impl Serialize) -> Option<Keyed> {
    Some(Keyed { scope: format!("{verb}:{session}"), key: key.clone(), fingerprint: fingerprint(asked) })
}

/// Tells whether two commands under one key ask for the same.
fn fingerprint(asked: &impl Serialize) -> String {
    let text = serde_json::to_string(asked).unwrap_or_default();
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[path = "manager_tests.rs"]
mod tests;
