//! A session whose control plane cannot be written: nobody is told a lie, and cancel and close still act on the
//! process (H19).
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::metrics::Metrics;
use crate::runtime::lookup::LookupRequest;
use crate::runtime::profiles::Profiles;
use crate::session::manager::{CloseRequest, Manager};
use crate::supervisor::simulated::{gateway_role, no_progress, welcome};
use crate::supervisor::{SupervisorClient, hello};
use crate::tests::{deps, eventually, execute, lease_row, open, said, session_row, spawn};
use acp_core::actor::{ActorLimits, AgentProfile};
use acp_core::backend::{
    BackendMachine, BackendStep, CloseMode, OptionChange, RequestReply, StartSessionParams, SubmitParams,
};
use acp_core::rows::{LeaseStatus, SessionRow};
use acp_core::runtime::direct::DirectRuntime;
use acp_core::runtime::{BackendHealth, MachineStateError, Registry, Runtime};
use acp_core::session::SessionState;
use acp_core::writes::Write;
use acp_shared::conn::{Conn, Listener};
use acp_shared::ids::{AgentName, GatewayInstanceId, IdempotencyKey};
use acp_shared::protocol::{LeaseState, Refusal, RefusalCode, Reply, Request, ToClient, ToSupervisor};
use acp_store::Store;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Inserts a session and its lease, in this use.
pub(super) async fn leased(store: &Store, key: &SessionKey, usage: LeaseStatus) -> LeaseId {
    spawn(store, session_row(key), None).await;
    let (snapshot, fence) = store.claim(key.clone()).await.unwrap();
    let row = lease_row(key, usage);
    let lease_id = row.lease_id;
    let session = SessionRow { lease_id: Some(lease_id), ..snapshot.session };
    let writes = vec![Write::NewLease(Box::new(row)), Write::Session(Box::new(session))];
    store.commit(fence, writes).await.unwrap();
    lease_id
}

pub(super) struct NoAgents;

impl Profiles for NoAgents {
    fn lookup(&self, _: &AgentName, _: Option<&str>, _: &[String]) -> LookupRequest {
        LookupRequest::default()
    }
    fn configured(&self, _: &AgentName) -> Result<AgentProfile, Failure> {
        Err(Failure::of(Code::AgentNotAllowed))
    }
    fn profile(&self, _: &AgentName, _: &LookupResults) -> Result<AgentProfile, Failure> {
        Err(Failure::of(Code::AgentNotAllowed))
    }
    fn default_agent(&self) -> Result<AgentName, Failure> {
        Err(Failure::of(Code::AgentNotAllowed))
    }
    fn cwd(&self, _: &AgentName, _: Option<&str>, _: &LookupResults) -> Result<String, Failure> {
        Err(Failure::of(Code::CwdNotAllowed))
    }
    fn directory(&self, _: &AgentName, _: &str, _: &LookupResults) -> Result<String, Failure> {
        Err(Failure::of(Code::CwdNotAllowed))
    }
    fn limits(&self, _: &AgentName) -> ActorLimits {
        ActorLimits {
            queue_runs_max: 4,
            prompt_bytes_max: 1_000,
            line_bytes_max: 1_000,
            cancel_ms: 60_000,
            close_wait_ms: 60_000,
            turn_ms: 0,
            reconcile_ms: 60_000,
            runtime_idle_ms: 0,
            silent_ms: 60_000,
            permission_ms: 0,
            probe_ms: 0,
            alive_ms: 60_000,
        }
    }
}

/// A supervisor that tells which leases it was asked to end, and is too busy for everything else.
async fn supervisor(listener: Listener, closed: mpsc::Sender<LeaseId>) {
    let mut conn: Conn<ToSupervisor, ToClient> = listener.accept().await.unwrap();
    while let Some(message) = conn.receiver.recv().await.unwrap() {
        let answer = match message {
            ToSupervisor::Hello(_) => ToClient::Welcome(welcome("s")),
            ToSupervisor::Marks(_) => continue,
            ToSupervisor::Act { id, body: Request::CloseLease { lease_id, .. }, .. } => {
                closed.send(lease_id).await.unwrap();
                ToClient::Reply { id, result: Ok(Reply::Closing { state: LeaseState::Closing }) }
            }
            ToSupervisor::Request { id, .. } | ToSupervisor::Act { id, .. } => {
                ToClient::Reply { id, result: Err(Refusal::new(RefusalCode::Busy, "busy")) }
            }
        };
        conn.sender.send(&answer).await.unwrap();
    }
}

struct World {
    dir: tempfile::TempDir,
    store: Store,
    manager: Manager,
    registry: Arc<Registry>,
    key: SessionKey,
    lease_id: LeaseId,
    closed: mpsc::Receiver<LeaseId>,
    metrics: Metrics,
    stop: CancellationToken,
}

/// A session with a lease that lives.
async fn world() -> World {
    let (dir, store) = open();
    let key = SessionKey::mint(&AgentName::parse("demo").unwrap());
    let lease_id = leased(&store, &key, LeaseStatus::Ready).await;

    let path = dir.path().join("s.sock");
    let (tell, closed) = mpsc::channel(8);
    tokio::spawn(supervisor(Listener::bind(&path, 0o600).unwrap(), tell));
    let stop = CancellationToken::new();
    let greeting = (hello(gateway_role()), no_progress());
    let supervisor = SupervisorClient::start(path.clone(), path, greeting, stop.clone());
    let mut status = supervisor.status();
    status.wait_for(|status| matches!(status, SupervisorStatus::Up { .. })).await.unwrap();
    let deps = Deps { stop: stop.clone(), ..deps(&store, supervisor, Arc::new(NoAgents)) };
    let (registry, metrics) = (Arc::clone(&deps.registry), deps.metrics.clone());
    let manager = Manager::new(deps, GatewayInstanceId::mint());
    World { dir, store, manager, registry, key, lease_id, closed, metrics, stop }
}

impl World {
    /// From now on nothing of a session can be written.
    async fn break_store(&self) {
        let sql = "CREATE TRIGGER broken BEFORE UPDATE ON acp_sessions BEGIN SELECT RAISE(FAIL, 'no'); END";
        execute(&self.store, sql).await;
    }

    async fn mend_store(&self) {
        execute(&self.store, "DROP TRIGGER broken").await;
    }

    async fn epoch(&self) -> u64 {
        let key = self.key.clone();
        self.store.read("epoch", move |db| acp_store::sessions::marks(db, &key)).await.unwrap().0
    }

    /// Asks the actor for something that changes nothing, so that it is there.
    async fn wake(&self) {
        let nothing = self.manager.answer_permission(&self.key, "none", "yes", "me", IdempotencyKey::mint());
        assert_eq!(nothing.await.unwrap_err().code, Code::Usage, "the actor exists");
    }

    async fn counts(&self, what: &str, series: &str) {
        eventually(what, async || self.metrics.render().contains(series).then_some(())).await;
    }

    async fn prompt(&self) -> Result<crate::session::manager::PromptAccepted, Failure> {
        self.manager.prompt(&self.key, said("hello"), IdempotencyKey::mint()).await
    }

    async fn close(&self) -> Result<crate::session::manager::SessionStatus, Failure> {
        self.manager.close(&self.key, CloseRequest::new("enough"), IdempotencyKey::mint()).await
    }

    async fn end(self) {
        self.stop.cancel();
        self.manager.stopped().await;
        self.store.close().await;
        drop(self.dir);
    }
}

#[tokio::test]
async fn a_close_while_the_actor_waits_for_the_store_ends_the_process_and_is_not_called_done() {
    let mut world = world().await;
    world.wake().await;
    world.break_store().await;
    assert_eq!(world.prompt().await.unwrap_err().code, Code::StoreUnavailable);
    assert_eq!(world.close().await.unwrap_err().code, Code::StoreUnavailable);
    assert_eq!(world.closed.recv().await, Some(world.lease_id));
    let text = world.metrics.render();
    assert!(text.contains("acp_actor_restarts_total{reason=\"commit_failed\"} 1"), "{text}");
    world.mend_store().await;
    eventually("a close that is done", async || world.close().await.ok()).await;
    world.end().await;
}

#[tokio::test]
async fn a_close_whose_actor_cannot_be_made_ends_the_process() {
    let mut world = world().await;
    world.break_store().await;
    assert_eq!(world.close().await.unwrap_err().code, Code::StoreUnavailable);
    assert_eq!(world.closed.recv().await, Some(world.lease_id));
    world.end().await;
}

/// What was in the middle of something is taken up as soon as the database lets it, without anybody asking.
#[tokio::test]
async fn an_actor_that_cannot_be_made_at_start_is_made_later() {
    let world = world().await;
    let before = world.epoch().await;
    world.break_store().await;
    assert_eq!(world.manager.resume().await.unwrap(), 1);
    eventually("a command is refused, not held", async || {
        world.prompt().await.err().filter(|failure| failure.code == Code::StoreUnavailable)
    })
    .await;
    assert_eq!(world.epoch().await, before);
    world.mend_store().await;
    eventually("the actor is rebuilt", async || (world.epoch().await > before).then_some(())).await;
    world.end().await;
}

/// B15: a newer actor has the session. The older one neither writes nor ends the process that is not its own any more.
#[tokio::test]
async fn a_superseded_actor_acts_on_nothing() {
    let mut world = world().await;
    world.wake().await;
    world.store.claim(world.key.clone()).await.unwrap();
    assert_eq!(world.close().await.unwrap_err().code, Code::StoreUnavailable);
    assert!(world.closed.try_recv().is_err(), "its process belongs to the successor");
    let state = world.store.session(world.key.clone()).await.unwrap().unwrap().state;
    assert_eq!(state, SessionState::Idle);
    let closed = eventually("a newer actor closes", async || world.close().await.ok()).await;
    assert_eq!(closed.state, SessionState::Closed);
    world.end().await;
}

/// B15: one whose commit failed is made again only if nobody took its session over in the meantime.
#[tokio::test]
async fn a_superseded_actor_is_not_made_again() {
    let world = world().await;
    world.wake().await;
    world.break_store().await;
    assert_eq!(world.prompt().await.unwrap_err().code, Code::StoreUnavailable);
    let key = world.key.clone();
    let newer = world.store.write("mend and claim", move |tx| {
        tx.execute_batch("DROP TRIGGER broken")?;
        acp_store::sessions::next_epoch(tx, &key)
    });
    let newer = newer.await.unwrap();
    world.counts("the older one is gone", "acp_actor_restarts_total{reason=\"superseded\"} 1").await;
    assert_eq!(world.epoch().await, newer, "the newer one still has the session");
    world.end().await;
}

/// A mailbox that is full refuses with a reason, and holds up neither cancel nor close.
#[tokio::test]
async fn a_full_mailbox_refuses_and_lets_a_cancel_through() {
    let world = world().await;
    let prompts = futures_util::future::join_all((0..100).map(|_| world.prompt()));
    let cancel = world.manager.cancel(&world.key, None, IdempotencyKey::mint());
    let (answers, cancelled) = tokio::join!(prompts, cancel);
    let full = |failure: &Failure| failure.detail_code.as_deref() == Some("MAILBOX_FULL");
    let refused = answers.iter().filter(|answer| answer.as_ref().is_err_and(full)).count();
    assert!(refused > 0 && refused < 100, "{refused} of 100 found the mailbox full");
    cancelled.unwrap();
    world.end().await;
}

/// What was kept of the talk with the agent is damaged: the process is ended rather than left without anybody.
#[tokio::test]
async fn a_link_state_that_cannot_be_read_ends_the_agent_and_not_the_session() {
    let mut world = world().await;
    execute(&world.store, "UPDATE acp_leases SET link_state = '{\"no\": \"link\"'").await;
    assert_eq!(world.manager.resume().await.unwrap(), 1);
    assert_eq!(world.closed.recv().await, Some(world.lease_id));
    let events = world.store.events_after(world.key.clone(), 0, 10, usize::MAX).await.unwrap();
    assert!(events.iter().any(|event| event.kind == acp_core::event::EventKind::Gap), "{events:?}");
    world.end().await;
}

/// A runtime whose machine panics once it is asked for something.
struct Broken;
struct BrokenLink;

impl Runtime for Broken {
    fn id(&self) -> &'static str {
        "broken"
    }
    fn machine(&self, _: Option<&str>) -> Result<Box<dyn BackendMachine>, MachineStateError> {
        Ok(Box::new(BrokenLink))
    }
    fn health(&self) -> BackendHealth {
        DirectRuntime::default().health()
    }
}

impl BackendMachine for BrokenLink {
    fn start_session(&mut self, _: &StartSessionParams) -> Vec<BackendStep> {
        Vec::new()
    }
    fn submit(&mut self, _: &SubmitParams) -> Vec<BackendStep> {
        Vec::new()
    }
    fn stream(&mut self, _: u64, _: &[u8]) -> Vec<BackendStep> {
        Vec::new()
    }
    fn answer(&mut self, _: &RequestReply) -> Vec<BackendStep> {
        Vec::new()
    }
    fn cancel(&mut self, _: acp_shared::ids::RunId) -> Vec<BackendStep> {
        Vec::new()
    }
    fn set_option(&mut self, _: &OptionChange) -> Vec<BackendStep> {
        panic!("requested by the test")
    }
    fn close(&mut self, _: CloseMode) -> Vec<BackendStep> {
        vec![BackendStep::CloseAnswered]
    }
    fn can_discard(&self) -> bool {
        false
    }
    fn probe(&mut self) -> Vec<BackendStep> {
        Vec::new()
    }
    fn can_steer(&self) -> bool {
        false
    }
    fn save(&self) -> String {
        "{}".to_owned()
    }
}

/// A panic in the middle of a command is that command's failure: the session goes on with what is committed.
#[tokio::test]
async fn an_actor_that_panics_is_made_again() {
    let mut world = world().await;
    world.registry.register(Arc::new(Broken));
    execute(&world.store, "UPDATE acp_sessions SET backend = 'broken'").await;
    let mode = acp_core::options::Setting::Mode("plan".to_owned());
    let failed = world.manager.set(&world.key, mode, IdempotencyKey::mint()).await.unwrap_err();
    assert_eq!(failed.code, Code::Runtime);
    let row = world.store.session(world.key.clone()).await.unwrap().unwrap();
    assert_eq!(row.options.mode_id, None, "nothing of the step is committed");
    assert_eq!(world.close().await.unwrap().state, SessionState::Closed);
    assert_eq!(world.closed.recv().await, Some(world.lease_id));
    world.end().await;
}

#[tokio::test]
async fn a_quiet_actor_that_is_dropped_is_counted() {
    let world = world().await;
    let key = SessionKey::mint(&AgentName::parse("demo").unwrap());
    spawn(&world.store, SessionRow { state: SessionState::Idle, ..session_row(&key) }, None).await;
    world.manager.cancel(&key, None, IdempotencyKey::mint()).await.unwrap();
    world.counts("the actor is evicted", "acp_actor_evictions_total 1").await;
    world.end().await;
}

/// What cannot be read does not get better by trying: whoever asks is told so, the session is named, and nobody goes on
/// trying until somebody asks again.
#[tokio::test]
async fn a_session_whose_records_cannot_be_read_stands_still_and_is_named() {
    let world = world().await;
    let set = async |text: &'static str| {
        let sql = "UPDATE acp_leases SET spawn_json = CASE ?1 WHEN '' THEN substr(spawn_json, 2) ELSE ?1 || spawn_json END";
        world.store.write("set", move |tx| Ok(tx.execute(sql, [text]).map(drop)?)).await.unwrap();
    };
    // Its JSON begins with one letter too many.
    set("x").await;
    let failure = world.prompt().await.unwrap_err();
    assert_eq!(failure.detail_code.as_deref(), Some("STORE_UNREADABLE"), "{failure:?}");
    eventually("no actor is left", async || (world.metrics.actors().count() == 0).then_some(())).await;
    let named = world.metrics.blocked_items().listed();
    assert!(named[0].starts_with(&format!("session {}: ", world.key)), "{named:?}");
    set("").await;
    let asked = world.prompt().await;
    assert!(asked.as_ref().err().is_none_or(|it| it.code != Code::StoreUnavailable), "{asked:?}");
    assert_eq!(world.metrics.blocked_items().listed(), Vec::<String>::new());
    world.end().await;
}
