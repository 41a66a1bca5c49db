//! Drives one session's actor: feeds it what happens, commits what it decides, and only then does it.
//!
//! There is no decision in here. When a commit fails, the actor's memory is no longer what the database says:
//! the actor is dropped and made again from the database (design §9, H19).

mod deps;
mod step;

pub(crate) use deps::{Deps, Envelope, Lanes, Patience, Profiles};

use crate::config::load::Loaded;
use crate::core::actor::{Actor, Answered, Input, LeaseNews, Profile, Ticket};
use crate::core::effect::Fence;
use crate::error::Failure;
use crate::lookup::{Findings, Lookup, LookupError, look_up, look_up_soon};
use crate::metrics::Pulse;
use crate::observe;
use crate::requests::{Performed, Performer};
use crate::session_load::{configured, load, lookup, profile};
use crate::session_news::merge;
use crate::supervisor::{FeedItem, LeaseFeed, LinkStatus};
use acp_shared::codes::Code;
use acp_shared::ids::{LeaseId, SessionKey};
use futures_util::FutureExt as _;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
pub(crate) use step::replay;
use step::{stop_lease, stops};
use tokio::sync::{oneshot, watch};

/// How long a failing database is left alone before unfinished work is taken up again, in milliseconds.
const RELOAD_MS: u64 = 1_000;
/// The longest that it is left alone, in milliseconds: what somebody must mend is not asked for again and again.
const RELOAD_LAST_MS: u64 = 10_000;
/// How often an actor may panic before it is left alone.
const PANICS_MAX: u32 = 5;
/// How long a quiet actor is kept, in milliseconds.
const QUIET_MS: u64 = 60_000;

enum Wake {
    Command(Envelope),
    Call(Option<(LeaseId, LeaseNews)>),
    LookedUp(Result<Findings, LookupError>),
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
type LookupCall = BoxFuture<'static, Result<Findings, LookupError>>;

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
    /// The look-up that a start waits for.
    lookup: Option<(Lookup, LookupCall)>,
    performer: Performer,
    waiting: HashMap<Ticket, oneshot::Sender<Result<Answered, Failure>>>,
    next_ticket: Ticket,
    /// Whether the actor was just made and has not been told so.
    fresh: bool,
    /// Says when it works and when it waits.
    pulse: Pulse,
    /// The lease whose start the log has.
    starting: Option<LeaseId>,
    /// The lease whose opening could not be committed, and since when.
    unopened: Option<(LeaseId, u64)>,
}

impl Ended {
    fn or_else(self, next: impl FnOnce() -> Self) -> Self {
        if self == Self::Yes { self } else { next() }
    }
}

/// Serves one session until it is quiet, superseded, or the gateway stops.
pub(crate) async fn run(deps: Deps, key: SessionKey, mut lanes: Lanes, patience: Patience) {
    // Before the first look at configuration, so that no change is missed.
    let reloads = deps.live.changes();
    let pulse = deps.metrics.actors().enter(key.as_str());
    pulse.begin();
    let mut pause_ms = RELOAD_MS;
    let (actor, fence) = loop {
        match load(&deps, &key).await {
            Ok(loaded) => {
                deps.metrics.troubles().clear(&trouble(&key));
                break loaded;
            }
            Err(failure) if !is_worth_waiting(&failure, patience) => {
                tracing::error!(session_key = %key, %failure, "the actor cannot be made");
                note_trouble(&deps, &key, &failure);
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
            () = tokio::time::sleep(Duration::from_millis(pause_ms)) => {}
        }
        pause_ms = (pause_ms * 2).min(RELOAD_LAST_MS);
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
        lookup: None,
        performer,
        waiting: HashMap::new(),
        next_ticket: 0,
        fresh: true,
        pulse,
        starting: None,
        unopened: None,
    };
    task.serve_on().await;
}

/// Whether an actor that cannot be made may be made later without anybody's doing. What the database holds and this
/// program cannot read stays as it is: whoever asks is told, and each new question and each start looks anew.
fn is_worth_waiting(failure: &Failure, patience: Patience) -> bool {
    patience == Patience::UntilStop && failure.code == Code::StoreUnavailable && !failure.is_for_repair()
}

/// What `doctor` calls a session that stands still.
fn trouble(key: &SessionKey) -> String {
    format!("session {key}")
}

fn note_trouble(deps: &Deps, key: &SessionKey, failure: &Failure) {
    if failure.is_for_repair() {
        deps.metrics.troubles().note(trouble(key), failure.message.clone());
    }
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

impl Task {
    async fn begin(&mut self) -> Ended {
        self.fresh = false;
        self.follow_lease();
        drop(self.link.borrow_and_update());
        let before = self.actor.session().lease_id;
        let ended = self.step(Input::Started).await;
        // A process that was asked for just now is not asked for again, and an actor made again begins anew.
        let asked = self.fresh || self.actor.session().lease_id != before;
        if ended == Ended::No && !asked && self.is_up() {
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
            self.begin_lookup();
            self.pulse.wait();
            let woken = self.wait().await;
            self.pulse.begin();
            let ended = match woken {
                Wake::Command(envelope) => self.on_command(envelope).await.or_else(|| self.end_refused()),
                Wake::LookedUp(found) => self.on_looked_up(found).await.or_else(|| self.end_refused()),
                Wake::Call(Some((lease_id, news))) => self.on_news(lease_id, news).await,
                Wake::Call(None) => Ended::No,
                Wake::Feed(items) => self.on_feed(items).await,
                Wake::Performed(performed) => self.step(performed.input()).await,
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
        let looked_up = async {
            match &mut self.lookup {
                Some((_, lookup)) => lookup.await,
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
            found = looked_up => Wake::LookedUp(found),
            done = self.performer.next() => Wake::Performed(done),
            Some(envelope) = self.lanes.mailbox.recv() => Wake::Command(envelope),
            items = news => Wake::Feed(items),
            () = tokio::time::sleep(Duration::from_millis(QUIET_MS)), if quiet => Wake::Quiet,
        }
    }

    /// Takes on what configuration says now; a process that runs keeps what it was started with.
    fn configure(&mut self) {
        self.lookup = None;
        self.take_profile(configured(&self.deps, self.actor.session()));
    }

    fn take_profile(&mut self, profile: Result<Profile, Failure>) {
        let limits = self.deps.profiles.limits(&self.actor.session().agent);
        self.actor.configure(profile, limits);
    }

    /// Begins the look-up that a start waits for, while there is a supervisor to ask; drops one that nobody waits for, and
    /// one for other directories than the session has now.
    fn begin_lookup(&mut self) {
        if !self.actor.awaits_lookup() || !self.is_up() {
            self.lookup = None;
            return;
        }
        let wanted = lookup(&self.deps, self.actor.session());
        if self.lookup.as_ref().is_some_and(|(begun, _)| *begun == wanted) {
            return;
        }
        let (supervisor, asked) = (self.deps.supervisor.clone(), wanted.clone());
        self.lookup = Some((wanted, Box::pin(async move { look_up(&supervisor, &asked).await })));
    }

    async fn on_looked_up(&mut self, found: Result<Findings, LookupError>) -> Ended {
        self.lookup = None;
        match found {
            Ok(found) => self.take_profile(profile(&self.deps, self.actor.session(), &found)),
            Err(LookupError::Failed(failure)) => self.take_profile(Err(failure)),
            // The next connection is asked.
            Err(LookupError::Away) => return Ended::No,
        }
        self.step(Input::LookedUp).await
    }

    /// Looks up what a prompt to a session at rest would start, so that the prompt is refused if that is not there. One
    /// that cannot be looked up now is taken, and waits.
    async fn look_before_prompt(&mut self) {
        if !self.actor.is_quiet() || self.actor.awaits_lookup() || self.actor.is_refused() || !self.is_up() {
            return;
        }
        let wanted = lookup(&self.deps, self.actor.session());
        let found = tokio::select! {
            biased;
            () = self.deps.stop.cancelled() => return,
            found = look_up_soon(&self.deps.supervisor, &wanted) => found,
        };
        if let Ok(found) = found {
            self.take_profile(profile(&self.deps, self.actor.session(), &found));
        }
    }

    /// Ends an actor at rest whose agent is refused: the next question has configuration and files looked at anew.
    fn end_refused(&self) -> Ended {
        if !self.actor.is_refused() || !self.actor.is_quiet() {
            return Ended::No;
        }
        self.deps.metrics.actor_evicted();
        Ended::Yes
    }

    fn is_up(&self) -> bool {
        matches!(*self.link.borrow(), LinkStatus::Up { .. })
    }

    /// Everything is asked anew on another connection. What the one before answered is heard no more: a start that was
    /// refused there may succeed here, and its process would be nobody's.
    async fn on_link(&mut self) -> Ended {
        self.calls = FuturesUnordered::new();
        self.lookup = None;
        if !matches!(*self.link.borrow_and_update(), LinkStatus::Up { .. }) {
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
}

#[cfg(test)]
#[path = "session_task_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "session_task/reconnect_tests.rs"]
mod reconnect_tests;
