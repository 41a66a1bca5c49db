//! One step: the actor decides, the store commits, and only then are the effects executed. Also the recovery
//! from a failed commit.

use super::{ActorRequest, SessionTask, TaskEnded, record_blocked_session, refuse_waiting, trouble};
use crate::metrics::transitions;
use crate::runtime::agent_host::executor::AgentRequestExecutor;
use crate::session::lease_events::{acked, attached, closing, spawned, written};
use crate::session::restore::make;
use crate::supervisor::CallError;
use crate::util::random;
use acp_core::actor::{
    ActorCommand, ActorEffect, ActorInput, CommandReply, IdempotencyRecord, LeaseEvent, StepContext,
    StepOutput, Ticket,
};
use acp_core::bearer::BearerToken;
use acp_core::failure::Failure;
use acp_core::options::Setting;
use acp_core::rows::LeaseStatus;
use acp_core::transition::Transition;
use acp_core::writes::Write;
use acp_shared::codes::Code;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{Reply, Request, Spawn};
use acp_store::{StoreError, runs};
use futures_util::stream::FuturesUnordered;
use std::time::Duration;

/// Delay before an actor is rebuilt after a database failure, in milliseconds.
const REBUILD_MS: u64 = 250;

/// True if a command must act on the process even if nothing can be committed (H19).
pub(crate) const fn is_stop_command(command: &ActorCommand) -> bool {
    match command {
        ActorCommand::Cancel(_) => true,
        ActorCommand::Close(request) => request.if_idle_since_ms.is_none(),
        _ => false,
    }
}

/// Requests the end of a process, regardless of the database.
pub(super) async fn close_lease_now(deps: &super::Deps, lease_id: LeaseId) {
    let reason = "stopped while the control plane cannot be written".to_owned();
    drop(deps.host.supervisor.send(Request::CloseLease { lease_id, reason }).await);
}

impl SessionTask {
    /// Handles a command: repeats the stored response if its key was used, else runs one step.
    pub(super) async fn on_command(&mut self, request: ActorRequest) -> TaskEnded {
        let ActorRequest { command, keyed, reply } = request;
        if let Some(keyed) = &keyed {
            match self.deps.store.remembered(keyed.scope.clone(), keyed.key.clone()).await {
                Ok(None) => self.deps.metrics.idempotency(verb(&keyed.scope), "fresh"),
                Ok(Some((fingerprint, result))) => {
                    let same = fingerprint == keyed.fingerprint;
                    let result_is = if same { "replay" } else { "conflict" };
                    self.deps.metrics.idempotency(verb(&keyed.scope), result_is);
                    drop(reply.send(replay(&command, keyed, &fingerprint, &result)));
                    return TaskEnded::No;
                }
                Err(error) => {
                    if is_stop_command(&command) {
                        self.stop_process().await;
                    }
                    drop(reply.send(Err(Failure::from(error))));
                    return TaskEnded::No;
                }
            }
        }
        if matches!(command, ActorCommand::Prompt { .. }) {
            self.look_up_before_prompt().await;
        }
        if matches!(command, ActorCommand::Set(Setting::Host(_))) && self.is_agent_gone() {
            let ended = self.step(ActorInput::Lease(LeaseEvent::Unknown)).await;
            if ended == TaskEnded::Yes {
                return ended;
            }
        }
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        self.waiting.insert(ticket, reply);
        let stop = is_stop_command(&command);
        self.step_stopping(ActorInput::Command { ticket, command, keyed }, stop).await
    }

    /// True if the host of the agent is away for so long that the agent has ended.
    fn is_agent_gone(&self) -> bool {
        let left = self.deps.hosts.agents_end_in(&self.deps.host.name, self.actor.graces());
        self.feed.is_some() && left == Some(Duration::ZERO)
    }

    /// Runs one step that needs no action if the commit fails.
    pub(super) async fn step(&mut self, input: ActorInput) -> TaskEnded {
        self.step_stopping(input, false).await
    }

    /// Runs one step: decide, commit, act. `stops` is true if the process must be ended even if nothing can
    /// be committed (H19).
    async fn step_stopping(&mut self, input: ActorInput, stops: bool) -> TaskEnded {
        let thread_id = asked_in(&input);
        let ctx = StepContext {
            now_ms: self.deps.clock.now_ms(),
            fresh_lease: LeaseId::mint(),
            fresh_token: fresh_token(),
        };
        let StepOutput { writes, effects, transitions, .. } = self.actor.step(&ctx, input);
        if !writes.is_empty() {
            let fence = self.fence.clone();
            let opens = writes
                .iter()
                .any(|write| matches!(write, Write::LeaseStatus { usage: LeaseStatus::Ready, .. }));
            if let Err(error) = self.deps.store.commit(fence, writes).await {
                let stops = stops || (opens && self.open_commit_timed_out(ctx.now_ms));
                return self.on_commit_failed(&error, effects, stops).await;
            }
        }
        self.log_transitions(&transitions, thread_id).await;
        self.follow_lease();
        self.perform_effects(effects).await;
        if self.actor.session().options.is_on(&self.deps.host.name) {
            TaskEnded::No
        } else {
            self.rebuild().await
        }
    }

    /// Logs and counts committed transitions. `thread_id` is the conversation of the prompt that this step accepted.
    async fn log_transitions(&mut self, transitions: &[Transition], thread_id: Option<String>) {
        for run in transitions.iter().filter_map(Transition::as_run) {
            let run_id = run.run_id;
            if run.from.is_none() {
                self.threads.insert(run_id, thread_id.clone());
            } else if run.to.is_ended() && !self.threads.contains_key(&run_id) {
                // Accepted before a restart, or with the spawn.
                let found = self.deps.store.read("run_origin", move |db| runs::origin(db, run_id)).await;
                let thread_id = found.ok().flatten().and_then(|origin| origin.thread_id);
                self.threads.insert(run_id, thread_id);
            }
        }
        transitions::committed(&self.deps.metrics, self.actor.session(), transitions, &self.threads);
        for run in transitions.iter().filter_map(Transition::as_run).filter(|run| run.to.is_ended()) {
            self.threads.remove(&run.run_id);
        }
    }

    /// Handles a failed commit of an opened session. The rebuilt actor reads the opening again from the
    /// process, for at most the time that an agent may take to open a session. Returns true if the process is
    /// to be ended.
    fn open_commit_timed_out(&mut self, now_ms: u64) -> bool {
        let Some(lease_id) = self.actor.session().lease_id else { return false };
        let since_ms = match self.unopened {
            Some((of, since_ms)) if of == lease_id => since_ms,
            _ => now_ms,
        };
        self.unopened = Some((lease_id, since_ms));
        let in_vain = now_ms.saturating_sub(since_ms) >= self.actor.init_ms();
        if in_vain {
            tracing::error!(session_key = %self.key, "agent session commit timed out; ending its process");
        }
        in_vain
    }

    /// Reports a failed commit to all callers, and rebuilds the actor from the last commit.
    async fn on_commit_failed(
        &mut self,
        error: &StoreError,
        effects: Vec<ActorEffect>,
        stop: bool,
    ) -> TaskEnded {
        let failure = Failure::from(error.clone());
        for act in effects {
            if let ActorEffect::Reply { ticket, .. } = act {
                self.reply(ticket, Err(failure.clone()));
            }
        }
        // The actor held the other pending replies in memory only.
        for (_, reply) in self.waiting.drain() {
            drop(reply.send(Err(failure.clone())));
        }
        if matches!(error, StoreError::Superseded { .. }) {
            return self.superseded();
        }
        if matches!(error, StoreError::LimitReached { .. }) {
            // Not an error: another session was woken meanwhile.
            tracing::info!(session_key = %self.key, %error, "session limit reached; session not woken");
            return self.rebuild().await;
        }
        if matches!(error, StoreError::LabelTaken { .. }) {
            tracing::info!(session_key = %self.key, %error, "label taken; session keeps its own");
            return self.rebuild().await;
        }
        if matches!(error, StoreError::SessionBound) {
            tracing::info!(session_key = %self.key, "session bound; not closed");
            return self.rebuild().await;
        }
        tracing::error!(session_key = %self.key, %error, "commit failed; rebuilding session actor");
        let reason = failure.detail_code.as_deref().unwrap_or("COMMIT_FAILED").to_ascii_lowercase();
        self.deps.metrics.actor_restarted(&reason);
        if stop {
            self.stop_process().await;
        }
        self.rebuild().await
    }

    fn superseded(&self) -> TaskEnded {
        tracing::warn!(session_key = %self.key, "session actor superseded");
        self.deps.metrics.actor_restarted("superseded");
        TaskEnded::Yes
    }

    /// Ends the process of the last committed lease, although nothing can be committed now (H19).
    async fn stop_process(&mut self) {
        if let Some((lease_id, _)) = &self.feed {
            close_lease_now(&self.deps, *lease_id).await;
        }
    }

    /// Rebuilds the actor from the database once possible, unless another actor owns the session by then.
    pub(super) async fn rebuild(&mut self) -> TaskEnded {
        let mut lease_id = self.feed.as_ref().map(|(lease_id, _)| *lease_id);
        loop {
            tokio::select! {
                () = self.deps.stop.cancelled() => return TaskEnded::Yes,
                () = tokio::time::sleep(Duration::from_millis(REBUILD_MS)) => {}
            }
            let made = match self.deps.store.reclaim(self.fence.clone()).await {
                Ok((snapshot, fence)) => {
                    self.fence = fence;
                    self.deps = self.deps.on(snapshot.session.options.host_name());
                    make(&self.deps, snapshot)
                }
                Err(StoreError::Superseded { .. }) => return self.superseded(),
                Err(error) => Err(Failure::from(error)),
            };
            match made {
                Ok(actor) => {
                    self.deps.metrics.blocked_items().clear(&trouble(&self.key));
                    self.actor = actor;
                    self.recent = None;
                    self.link = self.deps.host.supervisor.status();
                    self.calls = FuturesUnordered::new();
                    self.lookup = None;
                    self.executor = AgentRequestExecutor::new(self.deps.host.supervisor.clone());
                    self.feed = None;
                    self.fresh = true;
                    return TaskEnded::No;
                }
                Err(failure) => {
                    if refuse_waiting(&mut self.queues, &failure)
                        && let Some(lease_id) = lease_id.take()
                    {
                        close_lease_now(&self.deps, lease_id).await;
                    }
                    if failure.needs_repair() {
                        tracing::error!(session_key = %self.key, %failure, "session actor rebuild failed");
                        record_blocked_session(&self.deps, &self.key, &failure);
                        return TaskEnded::Yes;
                    }
                }
            }
        }
    }

    /// Subscribes to the lease in use, before any request about it is sent.
    pub(super) fn follow_lease(&mut self) {
        let wanted = self.actor.session().lease_id;
        if self.feed.as_ref().map(|(lease_id, _)| *lease_id) != wanted {
            self.feed = wanted.map(|lease_id| (lease_id, self.deps.host.supervisor.feed(lease_id)));
        }
    }

    fn reply(&mut self, ticket: Ticket, result: Result<CommandReply, Failure>) {
        if let Some(reply) = self.waiting.remove(&ticket) {
            drop(reply.send(result));
        }
    }

    async fn perform_effects(&mut self, effects: Vec<ActorEffect>) {
        for act in effects {
            match act {
                ActorEffect::Spawn(_) | ActorEffect::Attach { .. } | ActorEffect::Input { .. }
                    if self.has_connection_changed() => {}
                ActorEffect::Spawn(spawn) => {
                    let lease_id = spawn.lease_id;
                    // Sent again if the supervisor may not have received an earlier request.
                    if self.starting.replace(lease_id) != Some(lease_id) {
                        transitions::starting(self.actor.session(), &spawn);
                    }
                    self.start(lease_id, *spawn).await;
                }
                ActorEffect::Attach { lease_id, from_offset } => {
                    self.call(lease_id, Request::Attach { lease_id, from_offset }, attached).await;
                }
                ActorEffect::Input { lease_id, seq, bytes } => {
                    let request = Request::Input { lease_id, seq, bytes: bytes.to_vec() };
                    self.call(lease_id, request, move |answer| written(seq, answer)).await;
                }
                ActorEffect::Ack { lease_id, offset } => {
                    // The events of this output and all earlier ones are committed by now.
                    let event_id = self.deps.store.counters().last_event_id();
                    self.call(lease_id, Request::AckSynced { lease_id, offset, event_id }, acked).await;
                }
                ActorEffect::CloseLease { lease_id, reason } => {
                    self.call(lease_id, Request::CloseLease { lease_id, reason }, closing).await;
                }
                ActorEffect::Release { lease_id } => {
                    self.call(lease_id, Request::Release { lease_id }, |_| None).await;
                }
                ActorEffect::Perform { row, again } => {
                    let (env, roots) = (self.actor.agent_env(), self.actor.agent_roots());
                    self.executor.perform(*row, again, roots, env);
                }
                ActorEffect::Inspect { row } => self.executor.inspect(*row, self.actor.agent_roots()),
                ActorEffect::Recall { at } => self.executor.recall(at),
                ActorEffect::DropRequest { at } => self.executor.forget(at),
                ActorEffect::Reply { ticket, result } => self.reply(ticket, result),
                ActorEffect::Log(note) => tracing::info!(session_key = %self.key, note, "session note"),
                ActorEffect::LineFault(what) => {
                    self.deps.metrics.line_fault(&self.actor.session().backend, what.as_str());
                }
            }
        }
    }

    /// True if the connection has changed since the actor was last notified, e.g. during a commit. Requests
    /// decided for the previous connection are not sent: the actor is notified next and then requests
    /// everything again. If sent twice, a start could be refused first and then succeed, and its process
    /// would be orphaned.
    fn has_connection_changed(&self) -> bool {
        self.link.has_changed().unwrap_or(false)
    }

    /// Requests the start of the agent, and counts a refusal.
    async fn start(&mut self, lease_id: LeaseId, spawn: Spawn) {
        let (metrics, backend) = (self.deps.metrics.clone(), self.actor.session().backend.clone());
        let read = move |answer: Result<Reply, CallError>| {
            if let Err(CallError::Refused(refusal)) = &answer {
                metrics.spawn_refused(&backend, refusal.code.as_str());
            }
            spawned(answer)
        };
        self.call(lease_id, Request::Spawn(spawn), read).await;
    }

    async fn call(
        &mut self,
        lease_id: LeaseId,
        request: Request,
        read: impl FnOnce(Result<Reply, CallError>) -> Option<LeaseEvent> + Send + 'static,
    ) {
        let answer = self.deps.host.supervisor.send(request).await;
        self.calls.push(Box::pin(async move {
            let answer = answer.await.unwrap_or(Err(CallError::Disconnected));
            read(answer).map(|news| (lease_id, news))
        }));
    }
}

/// Returns the conversation of a prompt from a channel.
fn asked_in(input: &ActorInput) -> Option<String> {
    let ActorInput::Command { command: ActorCommand::Prompt { request, .. }, .. } = input else {
        return None;
    };
    request.asked_in.as_ref().map(|at| at.conversation_id.clone())
}

/// Returns the verb of an idempotency scope.
fn verb(scope: &str) -> &str {
    scope.split(':').next().unwrap_or(scope)
}

/// Returns the stored response of a repeated command (I5).
pub(crate) fn replay(
    command: &ActorCommand,
    keyed: &IdempotencyRecord,
    fingerprint: &str,
    result: &str,
) -> Result<CommandReply, Failure> {
    if keyed.fingerprint != fingerprint {
        return Err(Failure::of(Code::IdempotencyConflict).origin("client"));
    }
    let parsed = match command {
        ActorCommand::Prompt { .. } => serde_json::from_str(result).map(CommandReply::Prompt),
        ActorCommand::Cancel(_) => serde_json::from_str(result).map(CommandReply::Cancel),
        ActorCommand::Queued { .. } => serde_json::from_str(result).map(CommandReply::Queued),
        ActorCommand::Close(_)
        | ActorCommand::Expire { .. }
        | ActorCommand::Release { .. }
        | ActorCommand::Label(_)
        | ActorCommand::NewConversation
        | ActorCommand::Set(_) => serde_json::from_str(result).map(CommandReply::Session),
        ActorCommand::AnswerPermission { .. } => Ok(CommandReply::Done),
    };
    parsed.map_err(|_| Failure::of(Code::Runtime).origin("gateway"))
}

/// Returns an unused token; `None` if the kernel gives no random bytes, and then an agent gets no session tools.
fn fresh_token() -> Option<BearerToken> {
    let secret = random::secret();
    secret
        .inspect_err(|error| tracing::error!(%error, "reading random bytes failed"))
        .ok()
        .map(BearerToken::new)
}
