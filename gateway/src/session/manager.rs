//! Operations on sessions: every interface (API, console, commands) uses these methods and no others. Each
//! modifying method takes an idempotency key: a repeated key returns the first response and has no second
//! effect.

mod agent_requests;
mod handle;
mod host_change;
mod spawn;

use crate::runtime::hosts::Host;
use crate::runtime::lookup::look_up_with_timeout;
use crate::session::task::{Deps, FreshSession, LoadRetry, replay};
use acp_core::actor::{ActorCommand, CommandReply, IdempotencyRecord, QuestionAnswer};
use acp_core::failure::Failure;
use acp_core::options::{self, Setting};
use acp_core::permission::Voter;
use acp_core::policy::{
    ACCOUNT_SESSIONS_MAX, BindOrigin, BindingTimeouts, EffectivePolicy, PolicyScope, SESSIONS_MAX,
};
use acp_core::recovery;
pub(crate) use acp_core::request::{
    CancelResult, CloseRequest, PromptAccepted, PromptRequest, QueueEdit, QueueEditResult, SessionStatus,
    SpawnRequest, SpawnResult,
};
use acp_core::rows::{ConversationRef, NonInteractive, PermissionMode, SessionOptions, SessionRow};
use acp_core::session::Ending;
use acp_core::static_binding::StaticSessionSpec;
use acp_core::timeouts::Expiry;
use acp_core::writes::{AccountLimit, SessionLimits};
use acp_shared::codes::Code;
use acp_shared::ids::{GatewayInstanceId, IdempotencyKey, RunId, SessionKey};
use acp_store::{StoreError, bindings, sessions};
pub(crate) use agent_requests::spawnable_agents;
use handle::ActorHandle;
pub(crate) use handle::ENDING;
use parking_lot::Mutex;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;
use tokio_util::task::TaskTracker;

/// Scope of the idempotency keys of prompts for sessions found by name. No session has this key.
const NAMED_PROMPTS: &str = "prompt:by-name";

/// Executes operations on sessions.
pub(crate) struct Manager {
    deps: Deps,
    /// Gateway instance that owns the sessions.
    instance_id: GatewayInstanceId,
    actors: Mutex<HashMap<SessionKey, ActorHandle>>,
    tasks: TaskTracker,
}

impl Manager {
    /// Creates a manager without actors; they are created on demand, or by [`Manager::resume`].
    pub(crate) fn new(deps: Deps, instance_id: GatewayInstanceId) -> Self {
        Self { deps, instance_id, actors: Mutex::default(), tasks: TaskTracker::new() }
    }

    /// True if prompts may be sent to agents.
    pub(crate) fn dispatch_enabled(&self) -> bool {
        self.deps.live.policy(&PolicyScope::default()).may_prompt().is_ok()
    }

    /// Reads all open work at start, plans the recovery, and creates the actors that the plan requires. Each
    /// actor starts with the planned step of its session.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) async fn resume(&self) -> Result<usize, StoreError> {
        let eager_max = self.deps.live.at_start().acp.control_plane.recovery.eager_actors;
        let (found, left_out) = self.deps.store.found_sessions(eager_max).await?;
        let plan = recovery::recovery_plan(found, usize::try_from(eager_max).unwrap_or(usize::MAX));
        for (session_key, step) in &plan.now {
            tracing::info!(%session_key, ?step, "session recovery started");
            self.actor(session_key);
        }
        for session_key in &plan.eager {
            self.actor_with(session_key, LoadRetry::Once, FreshSession::default());
        }
        tracing::info!(
            now = plan.now.len(),
            eager = plan.eager.len(),
            lazy = plan.lazy as u64 + left_out,
            "session recovery planned"
        );
        Ok(plan.now.len())
    }

    /// Checks that a conversation may be bound to an existing session. Returns the binding's timeouts.
    ///
    /// # Errors
    /// `ACP_DISABLED`.
    pub(crate) fn may_focus(&self, at: &ConversationRef) -> Result<BindingTimeouts, Failure> {
        self.deps.live.policy(&PolicyScope::of(Some(at))).may_bind(BindOrigin::Focus)
    }

    /// Waits until every actor has stopped; the stop itself is requested through the token of [`Deps`].
    pub(crate) async fn stopped(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Accepts a prompt or a steer.
    ///
    /// # Errors
    /// `NO_SESSION`, `ACP_SESSION_CLOSED`, `ACP_LIMIT_REACHED` (queue or size), `ACP_RESUME_UNAVAILABLE`,
    /// `ACP_DISABLED`, `ACP_DISPATCH_DISABLED`, `ACP_STORE_UNAVAILABLE`, `ACP_IDEMPOTENCY_CONFLICT`: nothing was accepted.
    pub(crate) async fn prompt(
        &self,
        session: &SessionKey,
        mut request: PromptRequest,
        key: IdempotencyKey,
    ) -> Result<PromptAccepted, Failure> {
        let keyed = match &request.found_by {
            // The name may belong to another session when the prompt is repeated: that is a conflict.
            Some(name) => Some(IdempotencyRecord {
                scope: format!("{NAMED_PROMPTS}:{}", fingerprint(name)),
                key: key.clone(),
                fingerprint: fingerprint(&(session, &request)),
            }),
            None => keyed("prompt", session, &key, &request),
        };
        let allowed = self.complete_agent_prompt(session, &mut request).await?;
        let allowed = allowed.and(self.deps.live.policy(&PolicyScope::default()).may_prompt());
        let (policy, room) = self.wake_limits(session).await?;
        let (caps, refused) = match (allowed, room) {
            (Err(refusal), _) | (Ok(()), Err(refusal)) => (None, Some(refusal)),
            (Ok(()), Ok(caps)) => (caps.map(Box::new), None),
        };
        // Limits exist for existing sessions only.
        let exists = caps.is_some();
        let command = ActorCommand::Prompt { run_id: RunId::mint(), request, key, caps };
        let answered = match refused {
            Some(refusal) => self.stored_response(&command, keyed.as_ref(), refusal).await,
            None => {
                let asked = if exists {
                    self.ask_existing(session, command, keyed).await
                } else {
                    self.ask(session, command, keyed).await
                };
                asked.map_err(|failure| at_cap(failure, &policy))
            }
        };
        let CommandReply::Prompt(accepted) = answered? else {
            return Err(Failure::of(Code::Runtime));
        };
        Ok(accepted)
    }

    /// Cancels a run, queued or running; `None` selects the running one, or else the next one in the queue.
    /// Does not end the agent's process.
    ///
    /// # Errors
    /// `NO_SESSION`, `ACP_STORE_UNAVAILABLE`.
    pub(crate) async fn cancel(
        &self,
        session: &SessionKey,
        run: Option<RunId>,
        key: IdempotencyKey,
    ) -> Result<CancelResult, Failure> {
        let keyed = keyed("cancel", session, &key, &run);
        let CommandReply::Cancel(cancelled) = self.ask(session, ActorCommand::Cancel(run), keyed).await?
        else {
            return Err(Failure::of(Code::Runtime));
        };
        Ok(cancelled)
    }

    /// Changes a queued run: drops it, steers it into the running turn, or replaces its text. A run that has
    /// started is not changed; the response is then `TooLate`.
    ///
    /// # Errors
    /// `NO_SESSION`, `ACP_LIMIT_REACHED` (the new text is too long), `ACP_STORE_UNAVAILABLE`.
    pub(crate) async fn queued(
        &self,
        session: &SessionKey,
        run_id: RunId,
        change: QueueEdit,
        key: IdempotencyKey,
    ) -> Result<QueueEditResult, Failure> {
        let keyed = keyed("queued", session, &key, &(run_id, &change));
        let CommandReply::Queued(now) =
            self.ask(session, ActorCommand::Queued { run_id, change }, keyed).await?
        else {
            return Err(Failure::of(Code::Runtime));
        };
        Ok(now)
    }

    /// Closes a session permanently, with its turn, queue, bindings and process. Returns once the close is
    /// committed; the process ends in the background.
    ///
    /// # Errors
    /// `NO_SESSION`, `ACP_STORE_UNAVAILABLE`; `USAGE` if the session is not idle as the request demands. Closing a closed
    /// session is not an error.
    ///
    /// Resetting a session with a static binding is done in place (D15): the session and its bindings stay,
    /// and the agent begins a new conversation.
    pub(crate) async fn close(
        &self,
        session: &SessionKey,
        request: CloseRequest,
        key: IdempotencyKey,
    ) -> Result<SessionStatus, Failure> {
        let is_certain = request.if_idle_since_ms.is_none();
        if request.ending == Ending::Reset && is_certain && self.is_configured(session).await? {
            let now = self.new_conversation(session, key).await?;
            return Ok(SessionStatus { discarded: request.discard.then_some(false), ..now });
        }
        let asked = (request.ending, request.discard);
        let keyed = match request.if_idle_since_ms {
            None => keyed("close", session, &key, &asked),
            Some(since_ms) => keyed("close", session, &key, &(asked, since_ms)),
        };
        session_now(self.ask(session, ActorCommand::Close(request), keyed).await)
    }

    /// True if the session has a static binding.
    async fn is_configured(&self, session: &SessionKey) -> Result<bool, Failure> {
        let key = session.clone();
        let bindings =
            self.deps.store.read("configured_of", move |db| bindings::of_session(db, &key)).await?;
        Ok(bindings.iter().any(|binding| StaticSessionSpec::from_metadata(&binding.metadata).is_some()))
    }

    /// Handles an expired timeout: ends the binding or session, unless it was used after `seen_ms`.
    ///
    /// # Errors
    /// As [`Manager::close`].
    pub(crate) async fn expire(
        &self,
        session: &SessionKey,
        expiry: Expiry,
        seen_ms: u64,
        closes: bool,
    ) -> Result<SessionStatus, Failure> {
        session_now(self.ask(session, ActorCommand::Expire { expiry, seen_ms, closes }, None).await)
    }

    /// Ends the process of a session's agent; the session stays, and its next prompt starts the agent again.
    ///
    /// # Errors
    /// `NO_SESSION`, `ACP_SESSION_CLOSED`, `USAGE` (while a turn runs or waits), `ACP_RESUME_UNAVAILABLE`,
    /// `ACP_STORE_UNAVAILABLE`.
    pub(crate) async fn release(
        &self,
        session: &SessionKey,
        by: String,
        key: IdempotencyKey,
    ) -> Result<SessionStatus, Failure> {
        let keyed = keyed("release", session, &key, &"");
        session_now(self.ask(session, ActorCommand::Release { by }, keyed).await)
    }

    /// Sets a session's label, or removes it.
    ///
    /// # Errors
    /// `NO_SESSION`, `ACP_SESSION_CLOSED`, `USAGE` (too long, or taken by another open session), `ACP_STORE_UNAVAILABLE`.
    pub(crate) async fn set_label(
        &self,
        session: &SessionKey,
        label: Option<String>,
        key: IdempotencyKey,
    ) -> Result<SessionStatus, Failure> {
        if let Some(label) = &label {
            options::check_label(label)?;
        }
        let keyed = keyed("label", session, &key, &label);
        let command = ActorCommand::Label(label.clone());
        // The commit refuses a taken label as well, but then the actor is rebuilt.
        if let Some(label) = label
            && self.deps.store.session_with_label(label.clone()).await?.is_some_and(|other| other != *session)
        {
            let taken = StoreError::LabelTaken { label };
            return session_now(self.stored_response(&command, keyed.as_ref(), taken.into()).await);
        }
        session_now(self.ask(session, command, keyed).await)
    }

    /// Starts a new conversation of the agent with the next prompt; the session and its journal stay.
    ///
    /// # Errors
    /// `NO_SESSION`, `ACP_SESSION_CLOSED`, `ACP_STORE_UNAVAILABLE`.
    pub(crate) async fn new_conversation(
        &self,
        session: &SessionKey,
        key: IdempotencyKey,
    ) -> Result<SessionStatus, Failure> {
        let keyed = keyed("new", session, &key, &"");
        session_now(self.ask(session, ActorCommand::NewConversation, keyed).await)
    }

    /// Changes one of a session's settings: sent to its agent now if it runs, and stored for later agents.
    ///
    /// # Errors
    /// `NO_SESSION`, `ACP_SESSION_CLOSED`, `USAGE` (out of its limits, or not while a turn runs),
    /// `ACP_CWD_NOT_ALLOWED`, `ACP_RESUME_UNAVAILABLE`, `ACP_STORE_UNAVAILABLE`; the agent's response is in
    /// the journal.
    pub(crate) async fn set(
        &self,
        session: &SessionKey,
        setting: Setting,
        key: IdempotencyKey,
    ) -> Result<SessionStatus, Failure> {
        let keyed = keyed("option", session, &key, &setting);
        let validated = match &keyed {
            // A repetition must not end another agent; its stored response needs no check.
            Some(keyed) if matches!(setting, Setting::Host(_)) && self.is_stored(keyed).await? => {
                Ok(setting.clone())
            }
            _ => self.validate_setting(session, setting.clone()).await,
        };
        let answered = match validated {
            Ok(setting) => self.ask(session, ActorCommand::Set(setting), keyed).await,
            Err(refusal) => self.stored_response(&ActorCommand::Set(setting), keyed.as_ref(), refusal).await,
        };
        session_now(answered)
    }

    /// Validates the part of a setting that needs the file system.
    async fn validate_setting(&self, session: &SessionKey, setting: Setting) -> Result<Setting, Failure> {
        let asked = match setting {
            Setting::Cwd(asked) => asked,
            Setting::Host(host) => {
                self.prepare_move(session, &host).await?;
                return Ok(Setting::Host(host));
            }
            other => return Ok(other),
        };
        setting_cwd(&asked)?;
        let row = self.row(session).await?;
        let Host { supervisor, profiles, .. } = self.deps.hosts.get(row.options.host_name());
        let lookup = profiles.lookup(&row.agent, Some(&asked), &[]);
        let found = look_up_with_timeout(&supervisor, &lookup).await?;
        Ok(Setting::Cwd(profiles.cwd(&row.agent, Some(&asked), &found)?))
    }

    async fn row(&self, session: &SessionKey) -> Result<SessionRow, Failure> {
        let row = self.deps.store.session(session.clone()).await.map_err(Failure::from)?;
        row.ok_or_else(|| Failure::of(Code::NoSession))
    }

    /// True if a command with this key was executed.
    async fn is_stored(&self, keyed: &IdempotencyRecord) -> Result<bool, Failure> {
        let found = self.deps.store.remembered(keyed.scope.clone(), keyed.key.clone()).await;
        Ok(found.map_err(Failure::from)?.is_some())
    }

    /// Returns the stored response of a command that would be refused now but was executed under the same
    /// key: a client that repeats a command needs its result (I5).
    ///
    /// # Errors
    /// `refusal` if no response is stored; `ACP_IDEMPOTENCY_CONFLICT`, `ACP_STORE_UNAVAILABLE`.
    async fn stored_response(
        &self,
        command: &ActorCommand,
        keyed: Option<&IdempotencyRecord>,
        refusal: Failure,
    ) -> Result<CommandReply, Failure> {
        let Some(keyed) = keyed else { return Err(refusal) };
        let found = self.deps.store.remembered(keyed.scope.clone(), keyed.key.clone()).await;
        let (fingerprint, result) = found.map_err(Failure::from)?.ok_or(refusal)?;
        replay(command, keyed, &fingerprint, &result)
    }

    /// Returns the policy of a session's account, and the limits for a prompt that wakes the session: an idle
    /// session does not count as active. The commit enforces them; a limit that is already reached is
    /// reported here.
    ///
    /// # Errors
    /// The store cannot be read. Inside: `ACP_LIMIT_REACHED`.
    async fn wake_limits(
        &self,
        session: &SessionKey,
    ) -> Result<(Arc<EffectivePolicy>, Result<Option<SessionLimits>, Failure>), Failure> {
        let key = session.clone();
        let rest = self.deps.store.read("rest", move |db| sessions::session_usage(db, &key)).await?;
        let account = rest.as_ref().and_then(|rest| rest.account.clone());
        let at = account.map(|(channel, account_id)| ConversationRef::new(channel, account_id, ""));
        let policy = self.deps.live.policy(&PolicyScope::of(at.as_ref()));
        let Some(rest) = rest else { return Ok((policy, Ok(None))) };
        let caps = caps_of(&policy, at.as_ref());
        if !rest.is_idle {
            return Ok((policy, Ok(Some(caps))));
        }
        let asked = caps.clone();
        let room = match self.deps.store.read("caps", move |db| sessions::check_caps(db, &asked)).await {
            Ok(()) => Ok(Some(caps)),
            Err(error @ StoreError::LimitReached { .. }) => Err(at_cap(error.into(), &policy)),
            Err(error) => return Err(error.into()),
        };
        Ok((policy, room))
    }

    /// Answers a pending permission request or elicitation. The first valid answer wins.
    ///
    /// # Errors
    /// `NO_SESSION`; `USAGE` if the request is unknown, settled or expired, or has no such option, or if a value does not
    /// fit the form.
    pub(crate) async fn answer_question(
        &self,
        session: &SessionKey,
        permission_id: &str,
        answer: QuestionAnswer,
        by: Voter,
        key: IdempotencyKey,
    ) -> Result<(), Failure> {
        let keyed = keyed("permission", session, &key, &(permission_id, &answer));
        let permission_id = permission_id.to_owned();
        let command = ActorCommand::AnswerPermission { permission_id, answer, by };
        self.ask(session, command, keyed).await.map(|_| ())
    }
}

fn session_now(answered: Result<CommandReply, Failure>) -> Result<SessionStatus, Failure> {
    let CommandReply::Session(now) = answered? else { return Err(Failure::of(Code::Runtime)) };
    Ok(now)
}

/// Returns the limits of active sessions, in total and for a conversation's account.
fn caps_of(policy: &EffectivePolicy, at: Option<&ConversationRef>) -> SessionLimits {
    let account = at.zip(policy.account_sessions_max.value).map(|(at, sessions_max)| {
        let (channel, account_id) = (at.channel.clone(), at.account_id.clone());
        AccountLimit { channel, account_id, sessions_max }
    });
    SessionLimits { sessions_max: policy.sessions_max.value, account }
}

/// Names the configuration key in a limit failure of a commit.
fn at_cap(failure: Failure, policy: &EffectivePolicy) -> Failure {
    match failure.detail_code.as_deref() {
        Some(SESSIONS_MAX) => policy.at_sessions_max(),
        Some(ACCOUNT_SESSIONS_MAX) => policy.at_account_max(),
        _ => failure,
    }
}

/// Checks the syntax of a working directory, before the file system is used.
fn setting_cwd(asked: &str) -> Result<(), Failure> {
    let none = SessionOptions::new(PermissionMode::Ask, NonInteractive::Deny);
    Setting::Cwd(asked.to_owned()).check(&none)
}

fn keyed(
    verb: &str,
    session: &SessionKey,
    key: &IdempotencyKey,
    asked: &impl Serialize,
) -> Option<IdempotencyRecord> {
    Some(IdempotencyRecord {
        scope: format!("{verb}:{session}"),
        key: key.clone(),
        fingerprint: fingerprint(asked),
    })
}

/// Returns a hash of a command's content, to detect a different command under the same key.
fn fingerprint(asked: &impl Serialize) -> String {
    let text = serde_json::to_string(asked).unwrap_or_default();
    format!("{:x}", Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
#[path = "manager_tests.rs"]
mod tests;
