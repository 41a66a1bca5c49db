//! Drives one session's actor: feeds it what happens, commits what it decides, and only then does it.
//!
//! There is no decision in here. When a commit fails, the actor's memory is no longer what the database says:
//! the actor is dropped and made again from the database (design §9, H19).

use crate::clock::Clock;
use crate::config::load::Loaded;
use crate::core::actor::{
    Act, Actor, Answered, Batch, Command, Ctx, Input, Keyed, LeaseNews, Limits, Profile, Ticket,
};
use crate::core::effect::Fence;
use crate::error::Failure;
use crate::live::Live;
use crate::metrics::{Metrics, Pulse};
use crate::observe;
use crate::requests::{Performed, Performer};
use crate::runtime::Registry;
use crate::session_load::{load, profile};
use crate::session_news::{acked, attached, closing, merge, spawned, written};
use crate::store::{Store, StoreError};
use crate::supervisor::{CallError, FeedItem, LeaseFeed, LinkStatus, Supervisor};
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, LeaseId, SessionKey};
use acp_shared::protocol::{Reply, Request};
use futures_util::FutureExt as _;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// How long a failing database is left alone before the actor is made again, in milliseconds.
const REBUILD_MS: u64 = 250;
/// How long a failing database is left alone before unfinished work is taken up again, in milliseconds.
const RELOAD_MS: u64 = 1_000;
/// How often an actor may panic before it is left alone.
const PANICS_MAX: u32 = 5;
/// How long a quiet actor is kept, in milliseconds.
const QUIET_MS: u64 = 60_000;

/// What every session task needs.
#[derive(Clone)]
pub(crate) struct Deps {
    pub(crate) store: Store,
    pub(crate) supervisor: Supervisor,
    pub(crate) registry: Arc<Registry>,
    pub(crate) clock: Clock,
    pub(crate) profiles: Arc<dyn Profiles>,
    /// Changes when configuration was read anew.
    pub(crate) live: Live,
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

    /// Bounds and deadlines of that agent's sessions.
    fn limits(&self, agent: &AgentName) -> Limits;
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

/// What becomes of an actor that cannot be made because the database does not let it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Whoever asked is told, and may ask again.
    Once,
    /// Nobody asked, there is unfinished work: it is tried until it can be made or the gateway stops.
    UntilStop,
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
    Reloaded,
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
    reloads: watch::Receiver<Arc<Loaded>>,
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
pub(crate) async fn run(deps: Deps, key: SessionKey, mut lanes: Lanes, patience: Patience) {
    // Before the first look at configuration, so that no change is missed.
    let reloads = deps.live.changes();
    let pulse = deps.metrics.actors().enter(key.as_str());
    pulse.begin();
    let (actor, fence) = loop {
        match load(&deps, &key).await {
            Ok(loaded) => break loaded,
            Err(failure) if patience == Patience::Once || failure.code != Code::StoreUnavailable => {
                tracing::error!(session_key = %key, %failure, "the actor cannot be made");
                refuse_all(&deps, &key, lanes, &failure).await;
                return;
            }
            Err(failure) => {
                tracing::warn!(session_key = %key, %failure, "the actor cannot be made yet");
                refuse_commands(&deps, &key, &mut lanes, &failure).await;
            }
        }
        tokio::select! {
            () = deps.stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_millis(RELOAD_MS)) => {}
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
        reloads,
        feed: None,
        calls,
        performer,
        waiting: HashMap::new(),
        next_ticket: 0,
        fresh: true,
        pulse,
        starting: None,
    };
    task.serve_on().await;
}

async fn refuse_all(deps: &Deps, key: &SessionKey, mut lanes: Lanes, failure: &Failure) {
    lanes.mailbox.close();
    lanes.urgent.close();
    refuse_commands(deps, key, &mut lanes, failure).await;
}

/// Refuses what waits; a process that was to be stopped is ended all the same (H19).
async fn refuse_commands(deps: &Deps, key: &SessionKey, lanes: &mut Lanes, failure: &Failure) {
    if refuse_waiting(lanes, failure)
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
    matches!(command, Command::Cancel(_) | Command::Close(_))
}

async fn stop_lease(deps: &Deps, lease_id: LeaseId) {
    let reason = "stopped while the control plane cannot be written".to_owned();
    drop(deps.supervisor.send(Request::CloseLease { lease_id, reason }).await);
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

    /// Serves; a panic (a fault of ours) makes the actor again from what is committed, so that one bad message or row
    /// takes neither the session nor the gateway along.
    async fn serve_on(&mut self) {
        for panics in 1..=PANICS_MAX {
            if AssertUnwindSafe(self.serve()).catch_unwind().await.is_ok() {
                return;
            }
            tracing::error!(session_key = %self.key, panics, "the actor panicked; it is made again");
            self.deps.metrics.actor_restarted("panicked");
            for (_, reply) in self.waiting.drain() {
                drop(reply.send(Err(Failure::of(Code::Runtime).origin("gateway"))));
            }
            if self.rebuild().await == Ended::Yes {
                return;
            }
        }
        tracing::error!(session_key = %self.key, "the actor panics again and again; it is left until somebody asks for it");
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
                Wake::Reloaded => {
                    self.configure();
                    Ended::No
                }
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
            Ok(()) = self.reloads.changed() => Wake::Reloaded,
            Some(done) = self.calls.next(), if !self.calls.is_empty() => Wake::Call(done),
            done = self.performer.next() => Wake::Performed(done),
            Some(envelope) = self.lanes.mailbox.recv() => Wake::Command(envelope),
            items = news => Wake::Feed(items),
            () = tokio::time::sleep(Duration::from_millis(QUIET_MS)), if quiet => Wake::Quiet,
        }
    }

    /// Takes on what configuration says now; a process that runs keeps what it was started with.
    fn configure(&mut self) {
        let session = self.actor.session().clone();
        let limits = self.deps.profiles.limits(&session.agent);
        self.actor.configure(profile(&self.deps, &session), limits);
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

/// The answer that a repeated command had the first time (I5).
fn replay(command: &Command, keyed: &Keyed, fingerprint: &str, result: &str) -> Result<Answered, Failure> {
    if keyed.fingerprint != fingerprint {
        return Err(Failure::of(Code::IdempotencyConflict).origin("client"));
    }
    let parsed = match command {
        Command::Prompt { .. } => serde_json::from_str(result).map(Answered::Prompt),
        Command::Cancel(_) => serde_json::from_str(result).map(Answered::Cancel),
        Command::Close(_) | Command::Expire { .. } | Command::NewConversation | Command::Set(_) => {
            serde_json::from_str(result).map(Answered::Now)
        }
        Command::AnswerPermission { .. } => Ok(Answered::Done),
    };
    parsed.map_err(|_| Failure::of(Code::Runtime).origin("gateway"))
}

#[cfg(test)]
#[path = "session_task_tests.rs"]
mod tests;
