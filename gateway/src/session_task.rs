//! Drives one session's actor: feeds it what happens, commits what it decides, and only then does it.
//!
//! There is no decision in here. When a commit fails, the actor's memory is no longer what the database says:
//! the actor is dropped and made again from the database (design §9, H19).

use crate::clock::Clock;
use crate::core::actor::{
    Act, Actor, Answered, Batch, Command, Ctx, Input, Keyed, LeaseNews, Limits, Profile, Ticket,
};
use crate::core::effect::Fence;
use crate::error::Failure;
use crate::metrics::{Metrics, Pulse};
use crate::observe;
use crate::requests::{Performed, Performer};
use crate::runtime::Registry;
use crate::store::{Store, StoreError};
use crate::supervisor::{CallError, FeedItem, LeaseFeed, LinkStatus, Supervisor};
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, LeaseId, SessionKey};
use acp_shared::protocol::{RefusalCode, Reply, Request};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// How long a failing database is left alone before the actor is made again, in milliseconds.
const REBUILD_MS: u64 = 250;
/// How long a quiet actor is kept, in milliseconds.
const QUIET_MS: u64 = 60_000;

/// What every session task needs.
#[derive(Clone)]
pub(crate) struct Deps {
    pub(crate) store: Store,
    pub(crate) supervisor: Supervisor,
    pub(crate) registry: Arc<Registry>,
    pub(crate) clock: Clock,
    pub(crate) limits: Limits,
    pub(crate) profiles: Arc<dyn Profiles>,
    pub(crate) metrics: Metrics,
    pub(crate) stop: CancellationToken,
}

/// What configuration says about agents.
pub(crate) trait Profiles: Send + Sync {
    /// How to start and treat `agent`.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED`, in words for people.
    fn profile(&self, agent: &AgentName) -> Result<Profile, Failure>;

    /// The agent to take when none was named.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED` when there is no default.
    fn default_agent(&self) -> Result<AgentName, Failure>;

    /// The working directory to use for `agent`, canonical; `None` takes the default one.
    ///
    /// # Errors
    /// `ACP_CWD_NOT_ALLOWED` when it does not exist or lies outside of the agent's roots.
    fn cwd(&self, agent: &AgentName, asked: Option<&str>) -> Result<String, Failure>;
}

/// A command on its way to the actor.
pub(crate) struct Envelope {
    /// What is wanted.
    pub(crate) command: Command,
    /// Under which key.
    pub(crate) keyed: Option<Keyed>,
    /// Where the answer goes.
    pub(crate) reply: oneshot::Sender<Result<Answered, Failure>>,
}

/// The two ways in: `urgent` is for cancel, close and permissions, so that a full mailbox cannot hold them up
/// (design §9, H18).
pub(crate) struct Lanes {
    /// For everything that may wait.
    pub(crate) mailbox: mpsc::Receiver<Envelope>,
    /// For what must not.
    pub(crate) urgent: mpsc::Receiver<Envelope>,
}

enum Wake {
    Command(Envelope),
    Call(Option<(LeaseId, LeaseNews)>),
    Feed(VecDeque<FeedItem>),
    Performed(Performed),
    Link,
    Start,
    Tick,
    Quiet,
    Stop,
}

/// Why a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Yes,
    No,
}

type Call = BoxFuture<'static, Option<(LeaseId, LeaseNews)>>;

struct Task {
    deps: Deps,
    key: SessionKey,
    actor: Actor,
    fence: Fence,
    lanes: Lanes,
    link: watch::Receiver<LinkStatus>,
    feed: Option<(LeaseId, LeaseFeed)>,
    calls: FuturesUnordered<Call>,
    performer: Performer,
    waiting: HashMap<Ticket, oneshot::Sender<Result<Answered, Failure>>>,
    next_ticket: Ticket,
    /// Whether the actor was just made and has not been told so.
    fresh: bool,
    /// Says when it works and when it waits.
    pulse: Pulse,
    /// The lease whose start the log has.
    starting: Option<LeaseId>,
}

/// Serves one session until it is quiet, superseded, or the gateway stops.
pub(crate) async fn run(deps: Deps, key: SessionKey, lanes: Lanes) {
    let pulse = deps.metrics.actors().enter(key.as_str());
    pulse.begin();
    let (actor, fence) = match load(&deps, &key).await {
        Ok(loaded) => loaded,
        Err(failure) => {
            refuse_all(&deps, &key, lanes, &failure).await;
            return;
        }
    };
    let link = deps.supervisor.status();
    let performer = Performer::new(deps.supervisor.clone());
    let calls = FuturesUnordered::new();
    let mut task = Task {
        deps,
        key,
        actor,
        fence,
        lanes,
        link,
        feed: None,
        calls,
        performer,
        waiting: HashMap::new(),
        next_ticket: 0,
        fresh: true,
        pulse,
        starting: None,
    };
    task.serve().await;
}

async fn refuse_all(deps: &Deps, key: &SessionKey, mut lanes: Lanes, failure: &Failure) {
    lanes.mailbox.close();
    lanes.urgent.close();
    if refuse_waiting(&mut lanes, failure)
        && let Ok(Some(session)) = deps.store.session(key.clone()).await
        && let Some(lease_id) = session.lease_id
    {
        stop_lease(deps, lease_id).await;
    }
}

/// Refuses every command that waits; whether one of them was to stop the process.
fn refuse_waiting(lanes: &mut Lanes, failure: &Failure) -> bool {
    let mut stop = false;
    for lane in [&mut lanes.urgent, &mut lanes.mailbox] {
        while let Ok(Envelope { command, reply, .. }) = lane.try_recv() {
            stop |= stops(&command);
            drop(reply.send(Err(failure.clone())));
        }
    }
    stop
}

/// Whether a command must act on the process even if nothing can be committed (H19).
const fn stops(command: &Command) -> bool {
    matches!(command, Command::Cancel(_) | Command::Close { .. })
}

async fn stop_lease(deps: &Deps, lease_id: LeaseId) {
    let reason = "stopped while the control plane cannot be written".to_owned();
    drop(deps.supervisor.send(Request::CloseLease { lease_id, reason }).await);
}

/// Makes the actor from the database; from now on no earlier one of this session can write.
async fn load(deps: &Deps, key: &SessionKey) -> Result<(Actor, Fence), Failure> {
    let (snapshot, fence) = deps.store.claim(key.clone()).await.map_err(Failure::from)?;
    let backend = deps.registry.require(&snapshot.session.backend)?;
    let saved = snapshot.lease.as_ref().map(|lease| lease.link_state.as_str());
    let link = backend.link(saved).map_err(|error| {
        tracing::error!(session_key = %key, %error, "the saved link state cannot be read");
        Failure::of(Code::Runtime).origin("gateway")
    })?;
    // What may no longer be started is still followed, cancelled and closed: only a start needs a valid profile.
    let profile = match deps.profiles.profile(&snapshot.session.agent) {
        Ok(profile) => profile,
        Err(failure) => Profile::of_running(snapshot.lease.as_ref().map(|lease| &lease.spawn), failure),
    };
    Ok((Actor::restore(snapshot, link, profile, deps.limits.clone()), fence))
}

impl Task {
    async fn begin(&mut self) -> Ended {
        self.fresh = false;
        self.follow_lease();
        drop(self.link.borrow_and_update());
        let ended = self.step(Input::Started).await;
        if ended == Ended::No && self.is_up() {
            self.step(Input::News(LeaseNews::Connected)).await
        } else {
            ended
        }
    }

    async fn serve(&mut self) {
        loop {
            self.pulse.wait();
            let woken = self.wait().await;
            self.pulse.begin();
            let ended = match woken {
                Wake::Command(envelope) => match self.on_command(envelope).await {
                    // Whoever asks next has configuration read anew.
                    Ended::No if self.actor.is_refused() && self.actor.is_quiet() => {
                        self.deps.metrics.actor_evicted();
                        Ended::Yes
                    }
                    ended => ended,
                },
                Wake::Call(Some((lease_id, news))) => self.on_news(lease_id, news).await,
                Wake::Call(None) => Ended::No,
                Wake::Feed(items) => self.on_feed(items).await,
                Wake::Performed(Performed { at, outcome }) => {
                    self.step(Input::RequestDone { at, outcome }).await
                }
                Wake::Link => self.on_link().await,
                Wake::Start => self.begin().await,
                Wake::Tick => self.step(Input::Tick).await,
                Wake::Quiet if self.actor.is_quiet() => {
                    self.deps.metrics.actor_evicted();
                    Ended::Yes
                }
                Wake::Quiet => Ended::No,
                Wake::Stop => Ended::Yes,
            };
            if ended == Ended::Yes {
                return;
            }
        }
    }

    /// Waits for the next thing. Every branch is safe to cancel: nothing is taken that is not returned.
    async fn wait(&mut self) -> Wake {
        if self.fresh {
            return Wake::Start;
        }
        let deadline = self.actor.deadline_ms().map(|at| self.deps.clock.instant_of(at));
        let tick = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let news = async {
            match &self.feed {
                Some((_, feed)) => feed.next().await,
                None => std::future::pending().await,
            }
        };
        let quiet = self.actor.is_quiet();
        tokio::select! {
            biased;
            () = self.deps.stop.cancelled() => Wake::Stop,
            Some(envelope) = self.lanes.urgent.recv() => Wake::Command(envelope),
            // An agent that never stops talking must not hold up the deadline that stops it.
            () = tick => Wake::Tick,
            Ok(()) = self.link.changed() => Wake::Link,
            Some(done) = self.calls.next(), if !self.calls.is_empty() => Wake::Call(done),
            done = self.performer.next() => Wake::Performed(done),
            Some(envelope) = self.lanes.mailbox.recv() => Wake::Command(envelope),
            items = news => Wake::Feed(items),
            () = tokio::time::sleep(Duration::from_millis(QUIET_MS)), if quiet => Wake::Quiet,
        }
    }

    fn is_up(&self) -> bool {
        matches!(*self.link.borrow(), LinkStatus::Up { .. })
    }

    async fn on_link(&mut self) -> Ended {
        if matches!(*self.link.borrow_and_update(), LinkStatus::Down(_)) {
            return self.step(Input::Disconnected).await;
        }
        if let Some((_, feed)) = &self.feed {
            feed.clear();
        }
        self.step(Input::News(LeaseNews::Connected)).await
    }

    async fn on_news(&mut self, lease_id: LeaseId, news: LeaseNews) -> Ended {
        if self.actor.session().lease_id != Some(lease_id) {
            return Ended::No;
        }
        self.step(Input::News(news)).await
    }

    async fn on_feed(&mut self, items: VecDeque<FeedItem>) -> Ended {
        for news in merge(items) {
            if let Some((lease_id, _)) = &self.feed {
                observe::exited(self.actor.session(), *lease_id, &news);
            }
            if self.step(Input::News(news)).await == Ended::Yes {
                return Ended::Yes;
            }
        }
        Ended::No
    }

    async fn on_command(&mut self, envelope: Envelope) -> Ended {
        let Envelope { command, keyed, reply } = envelope;
        if let Some(keyed) = &keyed {
            match self.deps.store.remembered(keyed.scope.clone(), keyed.key.clone()).await {
                Ok(None) => self.deps.metrics.idempotency(verb(&keyed.scope), "fresh"),
                Ok(Some((fingerprint, result))) => {
                    let same = fingerprint == keyed.fingerprint;
                    let result_is = if same { "replay" } else { "conflict" };
                    self.deps.metrics.idempotency(verb(&keyed.scope), result_is);
                    drop(reply.send(replay(&command, keyed, &fingerprint, &result)));
                    return Ended::No;
                }
                Err(error) => {
                    if stops(&command) {
                        self.stop_process().await;
                    }
                    drop(reply.send(Err(Failure::from(error))));
                    return Ended::No;
                }
            }
        }
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        self.waiting.insert(ticket, reply);
        let stop = stops(&command);
        self.step_stopping(Input::Command { ticket, command, keyed }, stop).await
    }

    async fn step(&mut self, input: Input) -> Ended {
        self.step_stopping(input, false).await
    }

    /// One step: decide, commit, act. `stops` says that the process must be ended even if nothing can be
    /// committed (H19).
    async fn step_stopping(&mut self, input: Input, stops: bool) -> Ended {
        let ctx = Ctx { now_ms: self.deps.clock.now_ms(), fresh_lease: LeaseId::mint() };
        let Batch { writes, acts, moves, .. } = self.actor.step(&ctx, input);
        if !writes.is_empty() {
            let fence = self.fence.clone();
            if let Err(error) = self.deps.store.commit(fence, writes).await {
                return self.on_commit_failed(&error, acts, stops).await;
            }
        }
        observe::committed(&self.deps.metrics, self.actor.session(), &moves);
        self.follow_lease();
        self.act(acts).await;
        Ended::No
    }

    /// Nothing of the step is durable: nobody is told otherwise, and the actor starts again from what is.
    async fn on_commit_failed(&mut self, error: &StoreError, acts: Vec<Act>, stop: bool) -> Ended {
        let failure = Failure::from(error.clone());
        for act in acts {
            if let Act::Reply { ticket, .. } = act {
                self.reply(ticket, Err(failure.clone()));
            }
        }
        if matches!(error, StoreError::Superseded { .. }) {
            tracing::warn!(session_key = %self.key, "superseded by another actor");
            self.deps.metrics.actor_restarted("superseded");
            return Ended::Yes;
        }
        tracing::error!(session_key = %self.key, %error, "commit failed; the actor is made again");
        let reason = failure.detail_code.as_deref().unwrap_or("COMMIT_FAILED").to_ascii_lowercase();
        self.deps.metrics.actor_restarted(&reason);
        if stop {
            self.stop_process().await;
        }
        self.rebuild().await
    }

    /// Ends the process of the lease that was committed last, although nothing can be committed now (H19).
    async fn stop_process(&mut self) {
        if let Some((lease_id, _)) = &self.feed {
            stop_lease(&self.deps, *lease_id).await;
        }
    }

    async fn rebuild(&mut self) -> Ended {
        let mut lease_id = self.feed.as_ref().map(|(lease_id, _)| *lease_id);
        loop {
            tokio::select! {
                () = self.deps.stop.cancelled() => return Ended::Yes,
                () = tokio::time::sleep(Duration::from_millis(REBUILD_MS)) => {}
            }
            match load(&self.deps, &self.key).await {
                Ok((actor, fence)) => {
                    (self.actor, self.fence) = (actor, fence);
                    self.calls = FuturesUnordered::new();
                    self.performer = Performer::new(self.deps.supervisor.clone());
                    self.feed = None;
                    self.fresh = true;
                    return Ended::No;
                }
                Err(failure) => {
                    if refuse_waiting(&mut self.lanes, &failure)
                        && let Some(lease_id) = lease_id.take()
                    {
                        stop_lease(&self.deps, lease_id).await;
                    }
                }
            }
        }
    }

    /// Listens to the lease in use, before anything is asked about it.
    fn follow_lease(&mut self) {
        let wanted = self.actor.session().lease_id;
        if self.feed.as_ref().map(|(lease_id, _)| *lease_id) != wanted {
            self.feed = wanted.map(|lease_id| (lease_id, self.deps.supervisor.feed(lease_id)));
        }
    }

    fn reply(&mut self, ticket: Ticket, result: Result<Answered, Failure>) {
        if let Some(reply) = self.waiting.remove(&ticket) {
            drop(reply.send(result));
        }
    }

    async fn act(&mut self, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Spawn(spawn) => {
                    let lease_id = spawn.lease_id;
                    // It is asked for again when nobody knows whether the supervisor heard.
                    if self.starting.replace(lease_id) != Some(lease_id) {
                        observe::starting(self.actor.session(), &spawn);
                    }
                    self.call(lease_id, Request::Spawn(*spawn), spawned).await;
                }
                Act::Attach { lease_id, from_offset } => {
                    self.call(lease_id, Request::Attach { lease_id, from_offset }, attached).await;
                }
                Act::Input { lease_id, seq, bytes } => {
                    let request = Request::Input { lease_id, seq, bytes };
                    self.call(lease_id, request, move |answer| written(seq, answer)).await;
                }
                Act::Ack { lease_id, offset } => {
                    self.call(lease_id, Request::Ack { lease_id, offset }, acked).await;
                }
                Act::CloseLease { lease_id, reason } => {
                    self.call(lease_id, Request::CloseLease { lease_id, reason }, closing).await;
                }
                Act::Release { lease_id } => {
                    self.call(lease_id, Request::Release { lease_id }, |_| None).await;
                }
                Act::Perform { row, again } => {
                    let env = self.actor.agent_env();
                    self.performer.perform(*row, again, self.actor.session(), env);
                }
                Act::Forget { at } => self.performer.forget(at),
                Act::Reply { ticket, result } => self.reply(ticket, result),
                Act::Note(note) => tracing::info!(session_key = %self.key, note),
            }
        }
    }

    async fn call(
        &mut self,
        lease_id: LeaseId,
        request: Request,
        read: impl FnOnce(Result<Reply, CallError>) -> Option<LeaseNews> + Send + 'static,
    ) {
        let answer = self.deps.supervisor.send(request).await;
        self.calls.push(Box::pin(async move {
            let answer = answer.await.unwrap_or(Err(CallError::Disconnected));
            read(answer).map(|news| (lease_id, news))
        }));
    }
}

/// The verb of an idempotency scope.
fn verb(scope: &str) -> &str {
    scope.split(':').next().unwrap_or(scope)
}

/// Output pieces that follow each other become one, so that they become one transaction.
fn merge(items: VecDeque<FeedItem>) -> Vec<LeaseNews> {
    let mut merged: Vec<LeaseNews> = Vec::new();
    for item in items {
        match item {
            FeedItem::Output { offset, bytes } => match merged.last_mut() {
                Some(LeaseNews::Output { offset: from, bytes: before })
                    if *from + before.len() as u64 == offset =>
                {
                    before.extend_from_slice(&bytes);
                }
                _ => merged.push(LeaseNews::Output { offset, bytes }),
            },
            FeedItem::Exited { status, end_offset, stdin_written, stderr_tail } => {
                merged.push(LeaseNews::Exited { status, end_offset, stdin_written, stderr_tail });
            }
            FeedItem::Changed { state, .. } if state.is_ended() => merged.push(LeaseNews::Changed),
            FeedItem::Changed { .. } => {}
        }
    }
    merged
}

/// The answer that a repeated command had the first time (I5).
fn replay(command: &Command, keyed: &Keyed, fingerprint: &str, result: &str) -> Result<Answered, Failure> {
    if keyed.fingerprint != fingerprint {
        return Err(Failure::of(Code::IdempotencyConflict).origin("client"));
    }
    let parsed = match command {
        Command::Prompt { .. } => serde_json::from_str(result).map(Answered::Prompt),
        Command::Cancel(_) => serde_json::from_str(result).map(Answered::Cancel),
        Command::Close { .. } | Command::Reset | Command::SetOption(_) => {
            serde_json::from_str(result).map(Answered::Now)
        }
        Command::AnswerPermission { .. } => Ok(Answered::Done),
    };
    parsed.map_err(|_| Failure::of(Code::Runtime).origin("gateway"))
}

fn spawned(answer: Result<Reply, CallError>) -> Option<LeaseNews> {
    match answer {
        Ok(_) => Some(LeaseNews::Spawned),
        Err(CallError::Refused(refusal)) => Some(LeaseNews::SpawnRefused {
            code: refusal.code,
            message: refusal.message,
            retry_after_ms: refusal.retry_after_ms,
        }),
        Err(CallError::Disconnected) => None,
    }
}

fn attached(answer: Result<Reply, CallError>) -> Option<LeaseNews> {
    match answer {
        Ok(Reply::Attached(attached)) => Some(LeaseNews::Attached(attached)),
        Err(CallError::Refused(refusal)) => match refusal.code {
            RefusalCode::LeaseUnknown | RefusalCode::LeaseEnded => Some(LeaseNews::Unknown),
            RefusalCode::OffsetUnavailable => Some(LeaseNews::OffsetGone),
            _ => Some(LeaseNews::StreamsBusy),
        },
        Ok(_) | Err(CallError::Disconnected) => None,
    }
}

/// An acknowledgement that was not taken would leave the agent waiting for room: the next attach repeats it.
fn acked(answer: Result<Reply, CallError>) -> Option<LeaseNews> {
    match answer {
        Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::Busy => Some(LeaseNews::StreamsBusy),
        Ok(_) | Err(_) => None,
    }
}

fn written(seq: u64, answer: Result<Reply, CallError>) -> Option<LeaseNews> {
    match answer {
        Ok(_) => Some(LeaseNews::Written { seq }),
        Err(CallError::Refused(refusal)) => Some(LeaseNews::InputRefused { seq, code: refusal.code }),
        Err(CallError::Disconnected) => None,
    }
}

fn closing(answer: Result<Reply, CallError>) -> Option<LeaseNews> {
    match answer {
        Err(CallError::Refused(refusal)) if refusal.code == RefusalCode::LeaseUnknown => {
            Some(LeaseNews::Unknown)
        }
        Ok(Reply::Closing { state }) if state.is_ended() => Some(LeaseNews::Changed),
        Ok(_) | Err(_) => None,
    }
}

#[cfg(test)]
#[path = "session_task_tests.rs"]
mod tests;
