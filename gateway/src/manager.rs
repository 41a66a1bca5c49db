//! The one way to act on sessions: every surface (API, console, commands) calls these methods and no other.
//! Each acting method takes an idempotency key: the same key gives the first answer again and has no second
//! effect.

mod mailbox;
mod spawn;

use crate::core::actor::{Answered, Command, Keyed};
use crate::core::configured::Made;
use crate::core::effect::{AccountCap, Caps};
use crate::core::options::Setting;
use crate::core::policy::{ACCOUNT_SESSIONS_MAX, Bind, BindingWindows, Policy, SESSIONS_MAX, Scope};
use crate::core::recovery;
pub(crate) use crate::core::request::{
    Cancelled, CloseRequest, PromptAccepted, PromptRequest, QueuedChange, QueuedNow, SessionNow,
    SpawnRequest, Spawned,
};
use crate::core::rows::{ConversationRef, NonInteractive, PermissionMode, SessionOptions};
use crate::core::session::Ending;
use crate::core::ttl::Expiry;
use crate::error::Failure;
use crate::lookup::look_up_soon;
use crate::session_task::{Deps, Patience, replay};
use crate::store::{StoreError, bindings, sessions};
use acp_shared::codes::Code;
use acp_shared::ids::{GatewayInstanceId, IdempotencyKey, RunId, SessionKey};
use mailbox::Actor;
pub(crate) use mailbox::ENDING;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Mutex;
use tokio_util::task::TaskTracker;

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
            self.actor(session_key);
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
        let keyed = keyed("prompt", session, &key, &request);
        let (policy, room) = self.room_to_wake(session).await?;
        let (caps, refused) = match (self.deps.live.policy(&Scope::default()).may_prompt(), room) {
            (Err(refusal), _) | (Ok(()), Err(refusal)) => (None, Some(refusal)),
            (Ok(()), Ok(caps)) => (caps.map(Box::new), None),
        };
        let command = Command::Prompt { run_id: RunId::mint(), request, key, caps };
        let answered = match refused {
            Some(refusal) => self.answered_before(&command, keyed.as_ref(), refusal).await,
            None => self.ask(session, command, keyed).await.map_err(|failure| at_cap(failure, &policy)),
        };
        match answered? {
            Answered::Prompt(accepted) => Ok(accepted),
            Answered::Cancel(_) | Answered::Queued(_) | Answered::Now(_) | Answered::Done => {
                Err(Failure::of(Code::Runtime))
            }
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
            Answered::Prompt(_) | Answered::Queued(_) | Answered::Now(_) | Answered::Done => {
                Err(Failure::of(Code::Runtime))
            }
        }
    }

    /// Changes a run that waits: drops it, says it into the running turn, or gives it another text. What has started is
    /// never changed, and that is the answer then.
    ///
    /// # Errors
    /// `NO_SESSION`, `ACP_LIMIT_REACHED` (the new text is too long), `ACP_STORE_UNAVAILABLE`.
    pub(crate) async fn queued(
        &self,
        session: &SessionKey,
        run_id: RunId,
        change: QueuedChange,
        key: IdempotencyKey,
    ) -> Result<QueuedNow, Failure> {
        let keyed = keyed("queued", session, &key, &(run_id, &change));
        match self.ask(session, Command::Queued { run_id, change }, keyed).await? {
            Answered::Queued(now) => Ok(now),
            Answered::Prompt(_) | Answered::Cancel(_) | Answered::Now(_) | Answered::Done => {
                Err(Failure::of(Code::Runtime))
            }
        }
    }

    /// Closes a session for good: its turn, its queue, its bindings and its process. Returns when it is
    /// committed; the process ends in the background.
    ///
    /// # Errors
    /// `NO_SESSION`, `ACP_STORE_UNAVAILABLE`. Closing a closed session is not an error.
    ///
    /// A reset of a session that the configuration binds is done in place (D15): the session and its bindings stay, and
    /// the agent begins a new conversation.
    pub(crate) async fn close(
        &self,
        session: &SessionKey,
        request: CloseRequest,
        key: IdempotencyKey,
    ) -> Result<SessionNow, Failure> {
        if request.ending == Ending::Reset && self.is_configured(session).await? {
            let now = self.new_conversation(session, key).await?;
            return Ok(SessionNow { discarded: request.discard.then_some(false), ..now });
        }
        let keyed = keyed("close", session, &key, &(request.ending, request.discard));
        self.ask_now(session, Command::Close(request), keyed).await
    }

    /// Whether the configuration binds a conversation to the session.
    async fn is_configured(&self, session: &SessionKey) -> Result<bool, Failure> {
        let key = session.clone();
        let found = self.deps.store.read("configured_of", move |db| bindings::of_session(db, &key)).await;
        let bindings = found.map_err(Failure::from)?;
        Ok(bindings.iter().any(|binding| Made::read(&binding.metadata).is_some()))
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
        let answered = match self.checked(session, setting.clone()).await {
            Ok(setting) => self.ask(session, Command::Set(setting), keyed).await,
            Err(refusal) => self.answered_before(&Command::Set(setting), keyed.as_ref(), refusal).await,
        };
        now_of(answered)
    }

    /// A setting with what only the file system knows.
    async fn checked(&self, session: &SessionKey, setting: Setting) -> Result<Setting, Failure> {
        let Setting::Cwd(asked) = setting else { return Ok(setting) };
        setting_cwd(&asked)?;
        let row = self.deps.store.session(session.clone()).await.map_err(Failure::from)?;
        let row = row.ok_or_else(|| Failure::of(Code::NoSession))?;
        let lookup = self.deps.profiles.lookup(&row.agent, Some(&asked), &[]);
        let found = look_up_soon(&self.deps.supervisor, &lookup).await?;
        Ok(Setting::Cwd(self.deps.profiles.cwd(&row.agent, Some(&asked), &found)?))
    }

    /// What would be refused today and was answered under the same key is answered again: whoever repeats a command
    /// wants to know what became of it (I5).
    ///
    /// # Errors
    /// `refusal` when it was never answered; `ACP_IDEMPOTENCY_CONFLICT`, `ACP_STORE_UNAVAILABLE`.
    async fn answered_before(
        &self,
        command: &Command,
        keyed: Option<&Keyed>,
        refusal: Failure,
    ) -> Result<Answered, Failure> {
        let Some(keyed) = keyed else { return Err(refusal) };
        let found = self.deps.store.remembered(keyed.scope.clone(), keyed.key.clone()).await;
        let (fingerprint, result) = found.map_err(Failure::from)?.ok_or(refusal)?;
        replay(command, keyed, &fingerprint, &result)
    }

    /// What holds for a session's account, and the caps that a prompt is held to when it wakes the session: one that
    /// rests does not count among those in use. The commit decides; that there is no room now is said without it.
    ///
    /// # Errors
    /// The store cannot be read. Inside: `ACP_LIMIT_REACHED`.
    async fn room_to_wake(
        &self,
        session: &SessionKey,
    ) -> Result<(Policy, Result<Option<Caps>, Failure>), Failure> {
        let key = session.clone();
        let rest = self.deps.store.read("rest", move |db| sessions::rest(db, &key)).await;
        let rest = rest.map_err(Failure::from)?;
        let account = rest.as_ref().and_then(|rest| rest.account.clone());
        let at = account.map(|(channel, account_id)| ConversationRef {
            channel,
            account_id,
            conversation_id: String::new(),
            parent_conversation_id: None,
        });
        let policy = self.deps.live.policy(&Scope::of(at.as_ref()));
        let Some(rest) = rest else { return Ok((policy, Ok(None))) };
        let caps = caps_of(&policy, at.as_ref());
        if !rest.asleep {
            return Ok((policy, Ok(Some(caps))));
        }
        let asked = caps.clone();
        let room = match self.deps.store.read("caps", move |db| sessions::check_caps(db, &asked)).await {
            Ok(()) => Ok(Some(caps)),
            Err(error @ StoreError::LimitReached { .. }) => Err(over_cap(error, &policy)),
            Err(error) => return Err(error.into()),
        };
        Ok((policy, room))
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
        now_of(self.ask(session, command, keyed).await)
    }
}

fn now_of(answered: Result<Answered, Failure>) -> Result<SessionNow, Failure> {
    match answered? {
        Answered::Now(now) => Ok(now),
        Answered::Prompt(_) | Answered::Cancel(_) | Answered::Queued(_) | Answered::Done => {
            Err(Failure::of(Code::Runtime))
        }
    }
}

/// How many sessions may be in use, in all and in a conversation's account.
fn caps_of(policy: &Policy, at: Option<&ConversationRef>) -> Caps {
    let account = at.zip(policy.account_sessions_max.value).map(|(at, sessions_max)| {
        let (channel, account_id) = (at.channel.clone(), at.account_id.clone());
        AccountCap { channel, account_id, sessions_max }
    });
    Caps { sessions_max: policy.sessions_max.value, account }
}

/// A refusal of a commit, said with the key that decides.
fn at_cap(failure: Failure, policy: &Policy) -> Failure {
    match failure.detail_code.as_deref() {
        Some(SESSIONS_MAX) => policy.at_sessions_max(),
        Some(ACCOUNT_SESSIONS_MAX) => policy.at_account_max(),
        _ => failure,
    }
}

/// A refusal of the store, said with the key that decides.
fn over_cap(error: StoreError, policy: &Policy) -> Failure {
    match error {
        StoreError::LimitReached { account: false, .. } => policy.at_sessions_max(),
        StoreError::LimitReached { account: true, .. } => policy.at_account_max(),
        error => Failure::from(error),
    }
}

/// Whether a working directory could be one at all, before the file system is asked.
fn setting_cwd(asked: &str) -> Result<(), Failure> {
    let none = SessionOptions::new(PermissionMode::Ask, NonInteractive::Deny);
    Setting::Cwd(asked.to_owned()).check(&none)
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
