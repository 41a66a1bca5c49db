//! Runs one session's actor: feeds it input, commits its decisions, and only then executes them.
//!
//! This file makes no decisions. After a failed commit the actor's memory differs from the database, so the
//! actor is dropped and rebuilt from the database (H19).

mod deps;
mod output_pace;
mod step;

pub(crate) use deps::{ActorRequest, CommandQueues, Deps, FreshSession, LoadRetry};

use crate::metrics::ActorHeartbeat;
use crate::metrics::transitions;
use crate::runtime::agent_host::executor::{AgentRequestDone, AgentRequestExecutor};
use crate::runtime::lookup::{
    LookupError, LookupRequest, LookupResults, RecentLookup, look_up, look_up_with_timeout,
};
use crate::session::lease_events::merge;
use crate::session::restore::{configured, load, lookup, profile, restore};
use crate::supervisor::{LeaseFeed, SupervisorStatus};
use acp_core::actor::{Actor, ActorInput, AgentProfile, CommandReply, LeaseEvent, Ticket};
use acp_core::config::load::LoadedConfig;
use acp_core::failure::Failure;
use acp_core::writes::ActorFence;
use acp_shared::backoff::Backoff;
use acp_shared::codes::Code;
use acp_shared::ids::{LeaseId, RunId, SessionKey};
use acp_shared::protocol::Notice;
use futures_util::FutureExt as _;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use output_pace::OutputPace;
use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use step::close_lease_now;
pub(crate) use step::{is_stop_command, replay};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

/// Delays before an actor is loaded again after a database failure.
const LOAD_BACKOFF: Backoff = Backoff::new(1_000, 10_000);
/// Maximum number of panics of an actor before it is stopped.
const PANICS_MAX: u32 = 5;
/// Time after which an idle actor is evicted, in milliseconds.
const QUIET_MS: u64 = 60_000;

enum TaskEvent {
    Command(Box<ActorRequest>),
    Call(Option<(LeaseId, LeaseEvent)>),
    LookedUp(Result<LookupResults, LookupError>),
    Feed(VecDeque<Notice>),
    Performed(AgentRequestDone),
    Link,
    Start,
    Reloaded,
    Tick,
    Quiet,
    Stop,
}

/// Tells if a task has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskEnded {
    Yes,
    No,
}

type LeaseCall = BoxFuture<'static, Option<(LeaseId, LeaseEvent)>>;
type LookupCall = BoxFuture<'static, Result<LookupResults, LookupError>>;

struct SessionTask {
    deps: Deps,
    key: SessionKey,
    actor: Actor,
    fence: ActorFence,
    queues: CommandQueues,
    link: watch::Receiver<SupervisorStatus>,
    reloads: watch::Receiver<Arc<LoadedConfig>>,
    feed: Option<(LeaseId, LeaseFeed)>,
    pace: OutputPace,
    calls: FuturesUnordered<LeaseCall>,
    /// Lookup that a start waits for.
    lookup: Option<(LookupRequest, LookupCall)>,
    /// Lookup of the spawn, for the first start.
    recent: Option<RecentLookup>,
    executor: AgentRequestExecutor,
    waiting: HashMap<Ticket, oneshot::Sender<Result<CommandReply, Failure>>>,
    next_ticket: Ticket,
    /// True if the actor was just created and has not handled its first input.
    fresh: bool,
    /// Records working and waiting times for the watchdog.
    heartbeat: ActorHeartbeat,
    /// Conversations in which unfinished runs were requested, for the log.
    threads: HashMap<RunId, Option<String>>,
    /// Lease whose start is already logged.
    starting: Option<LeaseId>,
    /// Lease whose opening could not be committed, and the time of the first failure.
    unopened: Option<(LeaseId, u64)>,
}

impl TaskEnded {
    fn or_else(self, next: impl FnOnce() -> Self) -> Self {
        if self == Self::Yes { self } else { next() }
    }
}

/// Serves one session until it is idle or superseded, or the gateway stops.
pub(crate) async fn run(
    deps: Deps,
    key: SessionKey,
    mut queues: CommandQueues,
    load_retry: LoadRetry,
    mut fresh: FreshSession,
) {
    // Subscribed before the configuration is first read, so that no change is missed.
    let reloads = deps.live.changes();
    let heartbeat = deps.metrics.actors().enter(key.as_str());
    heartbeat.begin();
    let mut backoff = LOAD_BACKOFF;
    let (deps, actor, fence) = loop {
        let loaded = match fresh.claimed.take() {
            Some((snapshot, fence)) => restore(&deps, snapshot, fence),
            None => load(&deps, &key).await,
        };
        match loaded {
            Ok(loaded) => {
                deps.metrics.blocked_items().clear(&trouble(&key));
                break loaded;
            }
            Err(failure) if !is_load_retryable(&failure, load_retry) => {
                tracing::error!(session_key = %key, %failure, "session actor load failed");
                record_blocked_session(&deps, &key, &failure);
                refuse_all(&deps, &key, queues, &failure).await;
                return;
            }
            Err(failure) => {
                tracing::warn!(session_key = %key, %failure, "session actor load failed; retrying");
                refuse_commands(&deps, &key, &mut queues, &failure).await;
            }
        }
        tokio::select! {
            () = deps.stop.cancelled() => return,
            () = tokio::time::sleep(backoff.next_pause()) => {}
        }
    };
    let mut task = SessionTask {
        link: deps.host.supervisor.status(),
        executor: AgentRequestExecutor::new(deps.host.supervisor.clone()),
        deps,
        key,
        actor,
        fence,
        queues,
        reloads,
        feed: None,
        pace: OutputPace::default(),
        calls: FuturesUnordered::new(),
        lookup: None,
        recent: fresh.lookup,
        waiting: HashMap::new(),
        next_ticket: 0,
        fresh: true,
        heartbeat,
        threads: HashMap::new(),
        starting: None,
        unopened: None,
    };
    task.serve_on().await;
}

/// True if creating the actor may succeed later without intervention. Unreadable database content stays
/// unreadable: commands are refused, and each new command or start tries again.
fn is_load_retryable(failure: &Failure, load_retry: LoadRetry) -> bool {
    load_retry == LoadRetry::UntilStop && failure.code == Code::StoreUnavailable && !failure.needs_repair()
}

/// Returns the name of a stopped session in the report of `doctor`.
fn trouble(key: &SessionKey) -> String {
    format!("session {key}")
}

fn record_blocked_session(deps: &Deps, key: &SessionKey, failure: &Failure) {
    if failure.needs_repair() {
        deps.metrics.blocked_items().note(trouble(key), failure.message.clone());
    }
}

async fn refuse_all(deps: &Deps, key: &SessionKey, mut queues: CommandQueues, failure: &Failure) {
    queues.mailbox.close();
    queues.urgent.close();
    refuse_commands(deps, key, &mut queues, failure).await;
}

/// Refuses queued commands; a process that they would have stopped is ended anyway (H19).
async fn refuse_commands(deps: &Deps, key: &SessionKey, queues: &mut CommandQueues, failure: &Failure) {
    if refuse_waiting(queues, failure)
        && let Ok(Some(session)) = deps.store.session(key.clone()).await
        && let Some(lease_id) = session.lease_id
    {
        close_lease_now(deps, lease_id).await;
    }
}

/// Refuses all queued commands. Returns true if one of them would have stopped the process.
fn refuse_waiting(queues: &mut CommandQueues, failure: &Failure) -> bool {
    let mut stop = false;
    for queue in [&mut queues.urgent, &mut queues.mailbox] {
        while let Ok(ActorRequest { command, reply, .. }) = queue.try_recv() {
            stop |= is_stop_command(&command);
            drop(reply.send(Err(failure.clone())));
        }
    }
    stop
}

/// Waits for the work; forever if there is none.
async fn or_never<T>(work: Option<impl Future<Output = T>>) -> T {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

impl SessionTask {
    async fn begin(&mut self) -> TaskEnded {
        self.fresh = false;
        self.follow_lease();
        drop(self.link.borrow_and_update());
        let before = self.actor.session().lease_id;
        let ended = self.step(ActorInput::Started).await;
        // A process just requested is not requested again, and a rebuilt actor starts over.
        let asked = self.fresh || self.actor.session().lease_id != before;
        if ended == TaskEnded::No && !asked && self.is_up() {
            self.step(ActorInput::Lease(LeaseEvent::Connected)).await
        } else {
            ended
        }
    }

    /// Serves the session. After a panic (a bug) the actor is rebuilt from the database, so that one bad
    /// message or row stops neither the session nor the gateway.
    async fn serve_on(&mut self) {
        for panics in 1..=PANICS_MAX {
            if AssertUnwindSafe(self.serve()).catch_unwind().await.is_ok() {
                return;
            }
            tracing::error!(session_key = %self.key, panics, "session actor panicked; rebuilding");
            self.deps.metrics.actor_restarted("panicked");
            for (_, reply) in self.waiting.drain() {
                drop(reply.send(Err(Failure::of(Code::Runtime).origin("gateway"))));
            }
            if self.rebuild().await == TaskEnded::Yes {
                return;
            }
        }
        tracing::error!(
            session_key = %self.key,
            "session actor panicked repeatedly; stopped until the next request"
        );
    }

    async fn serve(&mut self) {
        loop {
            self.begin_lookup();
            self.heartbeat.wait();
            let woken = self.wait().await;
            self.heartbeat.begin();
            let ended = match woken {
                TaskEvent::Command(request) => self.on_command(*request).await.or_else(|| self.end_refused()),
                TaskEvent::LookedUp(found) => self.on_looked_up(found).await.or_else(|| self.end_refused()),
                TaskEvent::Call(Some((lease_id, news))) => self.on_news(lease_id, news).await,
                TaskEvent::Call(None) => TaskEnded::No,
                TaskEvent::Feed(items) => self.on_feed(items).await,
                TaskEvent::Performed(performed) => self.step(performed.input()).await,
                TaskEvent::Link => self.on_link().await,
                TaskEvent::Start => self.begin().await,
                TaskEvent::Reloaded => {
                    self.configure();
                    TaskEnded::No
                }
                TaskEvent::Tick => self.step(ActorInput::Tick).await,
                TaskEvent::Quiet if self.actor.is_quiet() => {
                    self.deps.metrics.actor_evicted();
                    TaskEnded::Yes
                }
                TaskEvent::Quiet => TaskEnded::No,
                TaskEvent::Stop => TaskEnded::Yes,
            };
            if ended == TaskEnded::Yes {
                return;
            }
        }
    }

    /// Waits for the next event. Every branch is safe to cancel: nothing is consumed that is not returned.
    async fn wait(&mut self) -> TaskEvent {
        if self.fresh {
            return TaskEvent::Start;
        }
        let deadline = self.actor.deadline_ms().map(|at| self.deps.clock.instant_of(at));
        let tick = or_never(deadline.map(tokio::time::sleep_until));
        let ready_at = self.pace.ready_at();
        let news = or_never(self.feed.as_ref().map(|(_, feed)| async move {
            if let Some(at) = ready_at {
                tokio::time::sleep_until(at).await;
            }
            feed.next().await
        }));
        let looked_up = or_never(self.lookup.as_mut().map(|(_, lookup)| lookup));
        let quiet = self.actor.is_quiet();
        tokio::select! {
            biased;
            () = self.deps.stop.cancelled() => TaskEvent::Stop,
            Some(request) = self.queues.urgent.recv() => TaskEvent::Command(Box::new(request)),
            // An agent with endless output must not delay the deadline for stopping it.
            () = tick => TaskEvent::Tick,
            Ok(()) = self.link.changed() => TaskEvent::Link,
            Ok(()) = self.reloads.changed() => TaskEvent::Reloaded,
            Some(done) = self.calls.next(), if !self.calls.is_empty() => TaskEvent::Call(done),
            found = looked_up => TaskEvent::LookedUp(found),
            done = self.executor.next() => TaskEvent::Performed(done),
            Some(request) = self.queues.mailbox.recv() => TaskEvent::Command(Box::new(request)),
            items = news => TaskEvent::Feed(items),
            () = tokio::time::sleep(Duration::from_millis(QUIET_MS)), if quiet => TaskEvent::Quiet,
        }
    }

    /// Applies the reloaded configuration; a running process keeps its start parameters.
    fn configure(&mut self) {
        self.lookup = None;
        self.take_profile(configured(&self.deps, self.actor.session()));
    }

    fn take_profile(&mut self, profile: Result<AgentProfile, Failure>) {
        let limits = self.deps.host.profiles.limits(&self.actor.session().agent);
        self.actor.configure(profile, limits);
    }

    /// Starts the lookup that a start waits for, while the supervisor is connected; drops one that is no
    /// longer needed or whose directories have changed.
    fn begin_lookup(&mut self) {
        if !self.actor.awaits_lookup() || !self.is_up() {
            self.lookup = None;
            return;
        }
        let wanted = lookup(&self.deps, self.actor.session());
        if self.lookup.as_ref().is_some_and(|(begun, _)| *begun == wanted) {
            return;
        }
        let (supervisor, asked) = (self.deps.host.supervisor.clone(), wanted.clone());
        let call: LookupCall = match self.recent.take().and_then(|recent| recent.into_results(&wanted)) {
            Some(found) => Box::pin(std::future::ready(Ok(found))),
            None => Box::pin(async move { look_up(&supervisor, &asked).await }),
        };
        self.lookup = Some((wanted, call));
    }

    async fn on_looked_up(&mut self, found: Result<LookupResults, LookupError>) -> TaskEnded {
        self.lookup = None;
        match found {
            Ok(found) => self.take_profile(profile(&self.deps, self.actor.session(), &found)),
            Err(LookupError::Failed(failure)) => self.take_profile(Err(failure)),
            // Repeated after the next connect.
            Err(LookupError::Away) => return TaskEnded::No,
        }
        self.step(ActorInput::LookedUp).await
    }

    /// Looks up the program of an idle session before a prompt, so that the prompt is refused if it is
    /// missing. If the lookup is impossible now, the prompt is accepted and waits.
    async fn look_up_before_prompt(&mut self) {
        if !self.actor.is_quiet() || self.actor.awaits_lookup() || self.actor.is_refused() || !self.is_up() {
            return;
        }
        let wanted = lookup(&self.deps, self.actor.session());
        let found = tokio::select! {
            biased;
            () = self.deps.stop.cancelled() => return,
            found = look_up_with_timeout(&self.deps.host.supervisor, &wanted) => found,
        };
        if let Ok(found) = found {
            self.take_profile(profile(&self.deps, self.actor.session(), &found));
        }
    }

    /// Ends an idle actor whose agent is refused: the next command reads configuration and files again.
    fn end_refused(&self) -> TaskEnded {
        if !self.actor.is_refused() || !self.actor.is_quiet() {
            return TaskEnded::No;
        }
        self.deps.metrics.actor_evicted();
        TaskEnded::Yes
    }

    fn is_up(&self) -> bool {
        self.link.borrow().is_up()
    }

    /// Requests everything again on a new connection. Responses of the previous one are discarded: a start
    /// refused there may succeed here, and its process would be orphaned.
    async fn on_link(&mut self) -> TaskEnded {
        self.calls = FuturesUnordered::new();
        self.lookup = None;
        if !self.link.borrow_and_update().is_up() {
            return self.step(ActorInput::Disconnected).await;
        }
        if let Some((_, feed)) = &self.feed {
            feed.clear();
        }
        self.step(ActorInput::Lease(LeaseEvent::Connected)).await
    }

    async fn on_news(&mut self, lease_id: LeaseId, news: LeaseEvent) -> TaskEnded {
        if self.actor.session().lease_id != Some(lease_id) {
            return TaskEnded::No;
        }
        self.step(ActorInput::Lease(news)).await
    }

    async fn on_feed(&mut self, items: VecDeque<Notice>) -> TaskEnded {
        let taken = Instant::now();
        let ended = self.take_output(items).await;
        self.pace.record(taken, Instant::now());
        ended
    }

    async fn take_output(&mut self, items: VecDeque<Notice>) -> TaskEnded {
        for news in merge(items) {
            if let Some((lease_id, _)) = &self.feed {
                transitions::exited(self.actor.session(), *lease_id, &news);
            }
            if self.step(ActorInput::Lease(news)).await == TaskEnded::Yes {
                return TaskEnded::Yes;
            }
        }
        TaskEnded::No
    }
}

#[cfg(test)]
#[path = "task_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "task/reconnect_tests.rs"]
mod reconnect_tests;
