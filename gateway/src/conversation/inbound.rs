//! Inbound: turns messages in conversations into prompts and commands, each exactly once.
//!
//! A message is committed to the inbox before it is processed. Its outcome is committed too, and then the
//! message counts as accepted. Then the reply is sent, which does not delay other messages, and the row is
//! settled. The message id is the root of all idempotency keys, so that processing resumes after a crash
//! between any two steps without a second effect.

mod port;
mod reply;
mod reservation;
mod retry;

use crate::channel::{Channels, SiblingAccount};
use crate::conversation::bindings::projects::OpenedSession;
use crate::conversation::bindings::router::InboundRoute;
use crate::conversation::bindings::{
    BoundDeliveryRouter, ProjectSessions, SessionBindingService, StaticBindings,
};
use crate::conversation::commands::Commands;
use crate::metrics::Metrics;
use crate::session::manager::{self, PromptRequest};
use crate::session::service::Service;
use acp_core::binding::StaleReason;
use acp_core::command;
use acp_core::command::authorization::RequesterRole;
use acp_core::failure::Failure;
use acp_core::files::PromptFile;
use acp_core::migrate;
use acp_core::nonce::nonce_of;
use acp_core::render::buttons::queued_buttons;
use acp_core::route::{Route, UnboundDestination};
use acp_core::rows::{BindingRow, ConversationRef, RunMode};
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, SessionKey};
use acp_store::command_queries;
use acp_store::inbox::{self, Inbound, InboxRow, MessageOwner, Outcome, ReplyRoute};
use acp_store::openclaw_import::imported_source;
use acp_store::sent_messages;
use acp_store::{Store, console};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

/// Scope under which the destination session of a message is stored.
const ROUTE_SCOPE: &str = "routed";
/// Maximum number of messages in progress; more are refused, and the channel may offer them again.
const IN_PROGRESS_MAX: usize = 256;
/// Maximum length of a message, in bytes.
const TEXT_BYTES_MAX: usize = 1024 * 1024;

/// Accepts messages of all channels. Cheap to clone.
#[derive(Clone)]
pub(crate) struct InboundService {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    channels: Channels,
    service: Arc<dyn Service>,
    metrics: Metrics,
    bindings: SessionBindingService,
    router: BoundDeliveryRouter,
    static_bindings: StaticBindings,
    projects: ProjectSessions,
    commands: Commands,
    /// Conversation queues: one message of a conversation at a time, in order of arrival.
    conversation_locks: parking_lot::Mutex<HashMap<ConversationRef, Arc<Mutex<()>>>>,
    permits: Arc<tokio::sync::Semaphore>,
    /// Notified when an inbox row failed and needs a retry.
    retry_needed: tokio::sync::Notify,
    /// Interactions whose adapter delivers the response itself.
    reservations: reservation::Reservations,
    /// Conversations whose replies are being sent, and replies that no one has started to send.
    reply_queue: retry::ReplyQueue,
}

impl std::fmt::Debug for InboundService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inlet").field("channels", &self.inner.channels).finish_non_exhaustive()
    }
}

impl InboundService {
    /// Creates the service, which replies through these channels.
    pub(crate) fn new(store: Store, channels: Channels, service: Arc<dyn Service>, metrics: Metrics) -> Self {
        let bindings = SessionBindingService::new(store.clone(), channels.clone(), metrics.clone());
        let router = BoundDeliveryRouter::new(store.clone(), channels.clone(), metrics.clone());
        let static_bindings = StaticBindings::new(store.clone(), bindings.clone(), Arc::clone(&service));
        let projects = ProjectSessions::new(store.clone(), bindings.clone(), Arc::clone(&service));
        let commands = Commands::new(store.clone(), bindings.clone(), router.clone(), Arc::clone(&service));
        let permits = Arc::new(tokio::sync::Semaphore::new(IN_PROGRESS_MAX));
        Self {
            inner: Arc::new(Inner {
                store,
                channels,
                service,
                metrics,
                bindings,
                router,
                static_bindings,
                projects,
                commands,
                conversation_locks: parking_lot::Mutex::default(),
                permits,
                retry_needed: tokio::sync::Notify::new(),
                reservations: reservation::Reservations::default(),
                reply_queue: retry::ReplyQueue::default(),
            }),
        }
    }

    /// Returns the binding service.
    pub(crate) fn bindings(&self) -> &SessionBindingService {
        &self.inner.bindings
    }

    /// Returns the router of messages.
    pub(crate) fn router(&self) -> &BoundDeliveryRouter {
        &self.inner.router
    }

    /// Accepts a message: commits it, executes it, and makes one attempt to send the reply. Dropping the
    /// future does not stop the work; a repeated message returns the same outcome.
    ///
    /// # Errors
    /// `ACP_LIMIT_REACHED`, `ACP_IDEMPOTENCY_CONFLICT` (the message id was used with another text), `USAGE`,
    /// `ACP_STORE_UNAVAILABLE`: the message was not accepted, or is retried later.
    pub(crate) async fn accept(&self, inbound: Inbound) -> Result<Outcome, Failure> {
        let (outcome, reply_task) = self.accept_without_reply(inbound).await?;
        if let Some(reply_task) = reply_task {
            drop(reply_task.await);
        }
        Ok(outcome)
    }

    /// Like `accept`, but does not wait for the reply, so that a channel that cannot send still
    /// delivers incoming messages. Also returns the task that sends the reply.
    async fn accept_without_reply(
        &self,
        inbound: Inbound,
    ) -> Result<(Outcome, Option<JoinHandle<usize>>), Failure> {
        validate(&inbound)?;
        if self.inner.is_echo(&inbound).await? {
            tracing::debug!(message_id = inbound.message_id, "echo of own message ignored");
            return Ok((Outcome::Ignored { reason: "own-echo".to_owned() }, None));
        }
        let permit = Arc::clone(&self.inner.permits).try_acquire_owned();
        let permit = permit.map_err(|_| {
            self.inner.metrics.mailbox_full("inbox");
            let text = format!(
                "{IN_PROGRESS_MAX} messages are already in progress. Send the message again in a moment."
            );
            Failure::new(Code::LimitReached, text).origin("gateway").retryable()
        })?;
        let inner = Arc::clone(&self.inner);
        let around = span(&inbound);
        let taking = async move {
            let _permit = permit;
            // If the caller goes away, the retry loop sends the reply.
            let (at, by_caller) = (inbound.conversation.clone(), inner.is_reply_by_caller(&inbound));
            match inner.process(inbound).await {
                Ok(outcome) => {
                    let reply_task = async move { inner.flush_replies(&at).await };
                    Ok((outcome, (!by_caller).then(|| tokio::spawn(reply_task))))
                }
                Err(failure) => {
                    inner.retry_needed.notify_one();
                    Err(failure)
                }
            }
        };
        let task = tokio::spawn(taking.instrument(around));
        task.await.unwrap_or_else(|error| {
            tracing::error!(%error, "message task panicked");
            Err(Failure::of(Code::Runtime).origin("gateway"))
        })
    }
}

/// Returns the span with the log fields of a message.
fn span(inbound: &Inbound) -> tracing::Span {
    let at = &inbound.conversation;
    let message_id = &inbound.message_id;
    tracing::info_span!("message", channel = at.channel, thread_id = at.conversation_id, message_id)
}

fn validate(inbound: &Inbound) -> Result<(), Failure> {
    let usage = |text: &str| Err(Failure::new(Code::Usage, text).origin("client"));
    if inbound.message_id.is_empty() || inbound.message_id.len() > acp_shared::ids::ID_BYTES_MAX {
        return usage("A message needs an id of 1 to 200 bytes.");
    }
    if inbound.text.trim().is_empty() && inbound.attachments.is_empty() {
        return usage("The message is empty.");
    }
    if inbound.text.len() > TEXT_BYTES_MAX {
        let text = format!("A message may have {TEXT_BYTES_MAX} bytes at most.");
        return Err(Failure::new(Code::LimitReached, text).origin("client"));
    }
    Ok(())
}

/// True if the failed operation can be retried later: the store is unavailable and recovers without a repair,
/// or the gateway is shutting down and the next one continues.
fn is_retryable(failure: &Failure) -> bool {
    let is_ending = failure.detail_code.as_deref() == Some(manager::ENDING);
    is_ending || (failure.code == Code::StoreUnavailable && !failure.needs_repair())
}

/// Returns the key of a conversation's queue, which does not depend on the optional parent.
fn queue_key(at: &ConversationRef) -> ConversationRef {
    ConversationRef { parent_conversation_id: None, ..at.clone() }
}

/// Returns the idempotency key from which all keys of a message are derived.
pub(crate) fn message_idempotency_key(inbound: &Inbound) -> Result<IdempotencyKey, Failure> {
    IdempotencyKey::parse(&format!("inbox:{}", message_nonce(inbound, "key")))
        .map_err(|error| Failure::new(Code::Runtime, error.to_string()))
}

fn message_nonce(inbound: &Inbound, what: &str) -> String {
    let at = &inbound.conversation;
    nonce_of(&[what, &at.channel, &at.account_id, &at.conversation_id, &inbound.message_id])
}

impl Inner {
    async fn process(&self, inbound: Inbound) -> Result<Outcome, Failure> {
        let at = inbound.conversation.clone();
        self.in_order(&at, self.process_in_order(inbound)).await
    }

    /// Does the work in the queue of a conversation, after everything that is in progress there.
    async fn in_order<T>(&self, at: &ConversationRef, work: impl Future<Output = T>) -> T {
        let at = queue_key(at);
        let lock = Arc::clone(self.conversation_locks.lock().entry(at.clone()).or_default());
        let turn = lock.lock().await;
        let done = work.await;
        drop(turn);
        drop(lock);
        let mut locks = self.conversation_locks.lock();
        if locks.get(&at).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(&at);
        }
        done
    }

    async fn process_in_order(&self, inbound: Inbound) -> Result<Outcome, Failure> {
        let Some((row, unavailable_account)) = self.commit(&inbound).await? else {
            tracing::debug!(message_id = inbound.message_id, "command ignored; another account handles it");
            return Ok(Outcome::Ignored { reason: "another-account".to_owned() });
        };
        if row.inbound.text != inbound.text {
            return Err(Failure::of(Code::IdempotencyConflict).origin("gateway"));
        }
        if let Some(outcome) = row.outcome {
            return Ok(outcome);
        }
        let outcome = match unavailable_account {
            Some(other) => other.refuse(),
            None => self.execute(&row.inbound, row.files).await?,
        };
        // From here on the message is accepted; its row stays until the reply is sent or cannot be sent.
        let caller_tells = self.is_reply_by_caller(&inbound);
        let (said, kept) = (row.inbound.clone(), outcome.clone());
        let record = move |tx: &acp_store::Tx<'_>| inbox::record(tx, &said, &kept, caller_tells);
        // Registered before the commit, so that the reply task finds the entry.
        self.reply_queue.mark_fresh(&row.inbound, !caller_tells);
        if let Err(error) = self.store.write("inbox_record", record).await {
            self.reply_queue.mark_fresh(&row.inbound, false);
            return Err(error.into());
        }
        self.acknowledge(&row.inbound, &outcome);
        Ok(outcome)
    }

    /// True if the gateway sent the message itself: it is then dropped before routing, even after an unbind
    /// or a restart (C13).
    async fn is_echo(&self, inbound: &Inbound) -> Result<bool, Failure> {
        if !self
            .channels
            .get(&inbound.conversation)
            .is_ok_and(|channel| channel.properties().receives_own_messages)
        {
            return Ok(false);
        }
        let (at, message_id) = (inbound.conversation.clone(), inbound.message_id.clone());
        let look = self.store.read("said", move |db| sent_messages::is_own_message(db, &at, &message_id));
        look.await.map_err(Failure::from)
    }

    /// Returns the other accounts that may receive the same message, if only one of all accounts may execute
    /// it: a typed command without a mention.
    fn competing_accounts(&self, inbound: &Inbound) -> Vec<SiblingAccount> {
        let at = &inbound.conversation;
        let is_typed = inbound.answer == ReplyRoute::ByMessage && command::parse(&inbound.text).is_some();
        let is_shared =
            || self.channels.get(at).is_ok_and(|channel| channel.properties().shares_conversations);
        if is_typed && is_shared() { self.channels.sibling_accounts(at) } else { Vec::new() }
    }

    /// Commits the message; on the console also as a line of the conversation. `None` if another account
    /// executes it. Also returns that other account if it cannot receive the message, since no other account
    /// would reply.
    async fn commit(&self, inbound: &Inbound) -> Result<Option<(InboxRow, Option<SiblingAccount>)>, Failure> {
        let said = inbound.clone();
        let shown = (said.conversation.channel == crate::channel::console::CONSOLE).then(|| {
            console::NewConsoleMessage {
                conversation_id: said.conversation.conversation_id.clone(),
                author: said.author.clone(),
                text: said.text.clone(),
                nonce: message_nonce(&said, "said"),
                kind: "person",
                session_key: None,
                run_id: None,
            }
        });
        let rivals = self.competing_accounts(inbound);
        let insert = move |tx: &acp_store::Tx<'_>| {
            let accounts: Vec<&str> = rivals.iter().map(|other| other.account_id.as_str()).collect();
            let other = match inbox::message_owner(tx, &said, &accounts)? {
                MessageOwner::Own => None,
                MessageOwner::Taken => return Ok(None),
                MessageOwner::Other { number, has_own } => match rivals.get(number) {
                    Some(other) if !has_own && other.unavailable_reason.is_none() => return Ok(None),
                    other => other.cloned(),
                },
            };
            let row = inbox::insert(tx, &said)?;
            if let Some(shown) = &shown {
                console::insert(tx, shown)?;
            }
            Ok(Some((row, other)))
        };
        self.store.write("inbox_insert", insert).await.map_err(Failure::from)
    }

    /// Executes the message. An error means: retry.
    async fn execute(&self, inbound: &Inbound, files: Vec<PromptFile>) -> Result<Outcome, Failure> {
        // Without an adapter the reply could not be sent, so the message waits for the adapter.
        self.channels.get(&inbound.conversation)?;
        let acted = match command::parse(&inbound.text) {
            Some(command) => self.commands.run(inbound, self.author_role(inbound), command).await,
            None => self.prompt(inbound, files).await,
        };
        match acted {
            Err(failure) if is_retryable(&failure) => Err(failure),
            Err(failure) => {
                let reason = failure.detail_code.clone().unwrap_or_else(|| failure.code.as_str().to_owned());
                tracing::info!(message_id = inbound.message_id, reason, "message refused");
                Ok(self.name_import(Outcome::Refused { failure, reason }).await)
            }
            Ok(outcome) => Ok(self.name_import(outcome).await),
        }
    }

    /// Names the import in a refusal for an unknown conversation or session, where sessions were imported before.
    async fn name_import(&self, outcome: Outcome) -> Outcome {
        let Outcome::Refused { failure, reason } = outcome else { return outcome };
        let was_imported = migrate::may_need_import(&failure)
            && matches!(self.store.read("openclaw_source", imported_source).await, Ok(Some(_)));
        let failure = if was_imported { migrate::with_import_hint(failure) } else { failure };
        Outcome::Refused { failure, reason }
    }

    /// Returns the author's role, as the channel reports it.
    fn author_role(&self, inbound: &Inbound) -> RequesterRole {
        let channel = self.channels.get(&inbound.conversation);
        let of_channel =
            || channel.map_or(RequesterRole::Person, |channel| channel.author_role(&inbound.author));
        inbound.standing.unwrap_or_else(of_channel)
    }

    async fn prompt(&self, inbound: &Inbound, files: Vec<PromptFile>) -> Result<Outcome, Failure> {
        let key = message_idempotency_key(inbound)?;
        let of = key.clone();
        let before: Option<SessionKey> =
            self.store.read("prompt_before", move |db| command_queries::before(db, ROUTE_SCOPE, &of)).await?;
        let told = self.static_bindings.ensure(inbound, &key, before.is_some()).await?;
        let outcome = match before {
            Some(session_key) => self.submit_prompt(inbound, &session_key, files).await?,
            None => self.route(inbound, files, key).await?,
        };
        Ok(outcome.after(told))
    }

    /// Submits a message to a session as a prompt.
    async fn submit_prompt(
        &self,
        inbound: &Inbound,
        session_key: &SessionKey,
        files: Vec<PromptFile>,
    ) -> Result<Outcome, Failure> {
        let service = self.service.as_ref();
        submit(service, inbound, session_key, RunMode::Prompt, inbound.text.clone(), files).await
    }

    /// Submits a message to the session bound to the conversation.
    async fn route(
        &self,
        inbound: &Inbound,
        files: Vec<PromptFile>,
        key: IdempotencyKey,
    ) -> Result<Outcome, Failure> {
        let at = &inbound.conversation;
        let InboundRoute { route, binding } = self.router.route_inbound(at).await?;
        match route {
            Route::Bound { binding_id, session_key, .. } => {
                // No prompt is submitted whose answer could not be delivered.
                let answer = self.router.resolve(&session_key, Some(at)).await?;
                if let Route::Refused { failure, reason } = answer {
                    return Ok(Outcome::Refused { failure, reason: reason.to_owned() });
                }
                // The destination stays fixed even if the conversation is bound elsewhere before that.
                let to = session_key.clone();
                let keep = move |tx: &acp_store::Tx<'_>| {
                    command_queries::run_once(tx, ROUTE_SCOPE, &key, || Ok(to)).map(drop)
                };
                self.bindings.touch(binding_id, self.store.clock().wall_ms(), keep).await?;
                self.submit_prompt(inbound, &session_key, files).await
            }
            Route::Unbound { destination, reason } => {
                if let Some(opened) = self.projects.open(inbound, &key).await? {
                    return self.submit_to_project(inbound, files, opened).await;
                }
                if destination != UnboundDestination::Hint {
                    return Ok(Outcome::Ignored { reason: reason.to_owned() });
                }

                Ok(Outcome::Refused { failure: Failure::of(Code::NotBound), reason: reason.to_owned() })
            }
            Route::Refused { failure, reason } => {
                let refused = Outcome::Refused { failure, reason: reason.to_owned() };
                let stale = binding.and_then(|(row, target)| Some((row, StaleReason::of(target)?)));
                let Some((row, _)) = stale else { return Ok(refused) };
                self.metrics.stale_binding(&at.channel);
                if !self.service.may_unbind_stale(at) {
                    return Ok(refused);
                }
                Ok(self.remove_stale(inbound, row).await?.unwrap_or(refused))
            }
        }
    }

    /// Submits a message of a project to its new session.
    async fn submit_to_project(
        &self,
        inbound: &Inbound,
        files: Vec<PromptFile>,
        opened: OpenedSession,
    ) -> Result<Outcome, Failure> {
        let OpenedSession { session_key, conversation, notice } = opened;
        let (service, text) = (self.service.as_ref(), inbound.text.clone());
        let at = conversation.as_ref().unwrap_or(&inbound.conversation);
        let outcome = submit_in(service, inbound, at, &session_key, RunMode::Prompt, text, files).await?;
        Ok(outcome.after(notice))
    }

    /// Removes a stale binding and records the refusal, in one transaction: a crash leaves both or neither.
    /// `None` if the binding is no longer stale, or its session still has something pending.
    async fn remove_stale(&self, inbound: &Inbound, row: BindingRow) -> Result<Option<Outcome>, Failure> {
        let binding = row.clone();
        let told = move |stale: StaleReason| Outcome::Refused {
            failure: stale.failure(&row, true),
            reason: stale.as_str().to_owned(),
        };
        let (said, outcome) = (inbound.clone(), told.clone());
        let record = move |tx: &acp_store::Tx<'_>, stale| inbox::record(tx, &said, &outcome(stale), false);
        let removed = self.bindings.remove_stale(&binding, record).await?;
        if removed.is_some() {
            self.metrics.stale_removed(&inbound.conversation.channel, "inbound");
        }
        Ok(removed.map(told))
    }
}

/// Submits a message to a session.
///
/// # Errors
/// As [`Service::prompt`].
pub(crate) async fn submit(
    service: &dyn Service,
    inbound: &Inbound,
    session_key: &SessionKey,
    mode: RunMode,
    text: String,
    files: Vec<PromptFile>,
) -> Result<Outcome, Failure> {
    submit_in(service, inbound, &inbound.conversation, session_key, mode, text, files).await
}

/// Like `submit`, for a message shown together with its answer in the conversation `at`.
async fn submit_in(
    service: &dyn Service,
    inbound: &Inbound,
    at: &ConversationRef,
    session_key: &SessionKey,
    mode: RunMode,
    text: String,
    files: Vec<PromptFile>,
) -> Result<Outcome, Failure> {
    let request = PromptRequest {
        text,
        mode,
        author: inbound.author.clone(),
        asked_by: inbound.sender_id(),
        interactive: true,
        files,
        requester_message_id: Some(inbound.message_id.clone()),
        asked_in: Some(Box::new(at.clone())),
        ..PromptRequest::default()
    };
    let accepted = service.prompt(session_key, request, message_idempotency_key(inbound)?).await?;
    let text = match (mode, accepted.steered, accepted.queued_behind) {
        (RunMode::Steer, true, _) => "Added to the running turn.".to_owned(),
        (RunMode::Steer, false, 0) => {
            "No turn can be steered: the message starts a turn of its own.".to_owned()
        }
        (RunMode::Steer, false, n) => format!("This turn cannot be steered: queued as a prompt behind {n}."),
        (RunMode::Prompt, _, 0) => String::new(),
        (RunMode::Prompt, _, n) => format!("The agent is busy: queued behind {n}."),
    };
    let is_queued = !accepted.steered && accepted.queued_behind > 0;
    Ok(Outcome::Prompted {
        session_key: session_key.clone(),
        run_id: accepted.run_id,
        after_seq: accepted.after_seq,
        queued_behind: accepted.queued_behind,
        text,
        asks: is_queued.then(|| queued_buttons(accepted.run_id, mode == RunMode::Prompt)),
    })
}

#[cfg(test)]
mod tests;
