//! Sessions with an unwritable store: failures are reported, and cancel and close end the process (H19).
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::metrics::Metrics;
use crate::runtime::lookup::LookupRequest;
use crate::runtime::profiles::Profiles;
use crate::session::manager::{CloseRequest, Manager};
use crate::supervisor::simulated::{gateway_role, no_progress, welcome};
use crate::supervisor::{SupervisorClient, hello};
use crate::tests::{deps, eventually, execute, lease_row, open, prompt_request, session_row, spawn};
use acp_core::actor::{ActorLimits, AgentProfile, QuestionAnswer};
use acp_core::agent_settings::OptionChange;
use acp_core::backend::{
    BackendMachine, BackendStep, CloseMode, RequestReply, StartSessionParams, SubmitParams,
};
use acp_core::rows::{LeaseStatus, SessionRow};
use acp_core::runtime::direct::DirectRuntime;
use acp_core::runtime::{BackendHealth, MachineStateError, Registry, Runtime};
use acp_core::session::SessionState;
use acp_core::writes::Write;
use acp_shared::conn::{Conn, Endpoint, Listener};
use acp_shared::ids::{AgentName, GatewayInstanceId, IdempotencyKey};
use acp_shared::protocol::{LeaseState, Refusal, RefusalCode, Reply, Request, ToClient, ToSupervisor};
use acp_store::Store;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub(super) async fn insert_leased_session(store: &Store, key: &SessionKey, usage: LeaseStatus) -> LeaseId {
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
    fn of_command(
        &self,
        _: &AgentName,
        _: &[String],
        _: Option<&LookupResults>,
    ) -> Result<AgentProfile, Failure> {
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

/// Supervisor that reports the leases to close, and is busy for all other requests.
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

async fn world() -> World {
    let (dir, store) = open();
    let key = SessionKey::mint(&AgentName::parse("demo").unwrap());
    let lease_id = insert_leased_session(&store, &key, LeaseStatus::Ready).await;

    let path = dir.path().join("s.sock");
    let (report, closed) = mpsc::channel(8);
    tokio::spawn(supervisor(Listener::bind(&path, 0o600).unwrap(), report));
    let stop = CancellationToken::new();
    let (hello, progress) = (hello(gateway_role()), no_progress());
    let supervisor =
        SupervisorClient::start(Endpoint::Socket(path.clone()), Some(path), hello, progress, stop.clone());
    let mut status = supervisor.status();
    status.wait_for(|status| matches!(status, SupervisorStatus::Up { .. })).await.unwrap();
    let deps = Deps { stop: stop.clone(), ..deps(&store, supervisor, Arc::new(NoAgents)) };
    let (registry, metrics) = (Arc::clone(&deps.host.registry), deps.metrics.clone());
    let manager = Manager::new(deps, GatewayInstanceId::mint());
    World { dir, store, manager, registry, key, lease_id, closed, metrics, stop }
}

impl World {
    async fn break_store(&self) {
        let sql = "CREATE TRIGGER broken BEFORE UPDATE ON acp_sessions BEGIN SELECT RAISE(FAIL, 'no'); END";
        execute(&self.store, sql).await;
    }

    async fn repair_store(&self) {
        execute(&self.store, "DROP TRIGGER broken").await;
    }

    async fn epoch(&self) -> u64 {
        let key = self.key.clone();
        self.store.read("epoch", move |db| acp_store::sessions::marks(db, &key)).await.unwrap().0
    }

    /// Starts the actor with a request that changes nothing.
    async fn wake(&self) {
        let answer = QuestionAnswer::Option("yes".to_owned());
        let by = acp_core::permission::Voter::default();
        let nothing = self.manager.answer_question(&self.key, "none", answer, by, IdempotencyKey::mint());
        assert_eq!(nothing.await.unwrap_err().code, Code::Usage, "the actor exists");
    }

    async fn wait_for_metric(&self, description: &str, series: &str) {
        eventually(description, async || self.metrics.render().contains(series).then_some(())).await;
    }

    async fn prompt(&self) -> Result<crate::session::manager::PromptAccepted, Failure> {
        self.manager.prompt(&self.key, prompt_request("hello"), IdempotencyKey::mint()).await
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
async fn close_without_store_ends_process_and_reports_failure() {
    let mut world = world().await;
    world.wake().await;
    world.break_store().await;
    assert_eq!(world.prompt().await.unwrap_err().code, Code::StoreUnavailable);
    assert_eq!(world.close().await.unwrap_err().code, Code::StoreUnavailable);
    assert_eq!(world.closed.recv().await, Some(world.lease_id));
    let text = world.metrics.render();
    assert!(text.contains("acp_actor_restarts_total{reason=\"commit_failed\"} 1"), "{text}");
    world.repair_store().await;
    eventually("a close that is done", async || world.close().await.ok()).await;
    world.end().await;
}

#[tokio::test]
async fn close_without_actor_ends_process() {
    let mut world = world().await;
    world.break_store().await;
    assert_eq!(world.close().await.unwrap_err().code, Code::StoreUnavailable);
    assert_eq!(world.closed.recv().await, Some(world.lease_id));
    world.end().await;
}

#[tokio::test]
async fn failed_actor_start_is_retried() {
    let world = world().await;
    let before = world.epoch().await;
    world.break_store().await;
    assert_eq!(world.manager.resume().await.unwrap(), 1);
    eventually("a command is refused, not held", async || {
        world.prompt().await.err().filter(|failure| failure.code == Code::StoreUnavailable)
    })
    .await;
    assert_eq!(world.epoch().await, before);
    world.repair_store().await;
    eventually("the actor is rebuilt", async || (world.epoch().await > before).then_some(())).await;
    world.end().await;
}

/// B15: the older actor of a claimed session neither writes nor ends the process.
#[tokio::test]
async fn superseded_actor_has_no_effect() {
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

/// B15: an actor with a failed commit is rebuilt only if no newer one claimed the session.
#[tokio::test]
async fn superseded_actor_is_not_rebuilt() {
    let world = world().await;
    world.wake().await;
    world.break_store().await;
    assert_eq!(world.prompt().await.unwrap_err().code, Code::StoreUnavailable);
    let key = world.key.clone();
    let newer = world.store.write("repair and claim", move |tx| {
        tx.sqlite().unwrap().execute_batch("DROP TRIGGER broken")?;
        acp_store::sessions::next_epoch(tx, &key)
    });
    let newer = newer.await.unwrap();
    world.wait_for_metric("older actor ended", "acp_actor_restarts_total{reason=\"superseded\"} 1").await;
    assert_eq!(world.epoch().await, newer, "the newer actor has the session");
    world.end().await;
}

/// A full mailbox refuses prompts with a reason, and delays neither cancel nor close.
#[tokio::test]
async fn full_mailbox_refuses_prompts_and_accepts_cancel() {
    let world = world().await;
    // The writer is busy until a prompt is refused, so that the actor waits for its commit and its mailbox fills.
    // Nothing is sent: the receiver returns when the sender is dropped.
    let (release, busy) = std::sync::mpsc::sync_channel::<()>(0);
    let held = world.store.write("hold", move |_| Ok(busy.recv().is_err()));
    let release = std::cell::RefCell::new(Some(release));
    let full = |failure: &Failure| failure.detail_code.as_deref() == Some("MAILBOX_FULL");
    let prompts = futures_util::future::join_all((0..100).map(|_| async {
        let is_refused = world.prompt().await.is_err_and(|failure| full(&failure));
        if is_refused {
            drop(release.take());
        }
        is_refused
    }));
    let cancel = world.manager.cancel(&world.key, None, IdempotencyKey::mint());
    let (held, answers, cancelled) = tokio::join!(held, prompts, cancel);
    assert!(held.unwrap());
    let refused = answers.iter().filter(|is_refused| **is_refused).count();
    assert!(refused > 0 && refused < 100, "{refused} of 100 found the mailbox full");
    cancelled.unwrap();
    world.end().await;
}

/// With damaged backend state, the process is ended, not left without an owner.
#[tokio::test]
async fn unreadable_backend_state_ends_agent_and_keeps_session() {
    let mut world = world().await;
    execute(&world.store, "UPDATE acp_leases SET link_state = '{\"no\": \"link\"'").await;
    assert_eq!(world.manager.resume().await.unwrap(), 1);
    assert_eq!(world.closed.recv().await, Some(world.lease_id));
    let events = world.store.events_after(world.key.clone(), None, 10, usize::MAX).await.unwrap().rows;
    assert!(events.iter().any(|event| event.kind == acp_core::event::EventKind::Gap), "{events:?}");
    world.end().await;
}

struct PanickingRuntime;
struct PanickingMachine;

impl Runtime for PanickingRuntime {
    fn id(&self) -> &'static str {
        "broken"
    }
    fn machine(&self, _: Option<&str>) -> Result<Box<dyn BackendMachine>, MachineStateError> {
        Ok(Box::new(PanickingMachine))
    }
    fn health(&self) -> BackendHealth {
        DirectRuntime::default().health()
    }
}

impl BackendMachine for PanickingMachine {
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
        panic!("scripted panic")
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

#[tokio::test]
async fn panicked_actor_is_rebuilt() {
    let mut world = world().await;
    world.registry.register(Arc::new(PanickingRuntime));
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
async fn evicted_actor_is_counted() {
    let world = world().await;
    let key = SessionKey::mint(&AgentName::parse("demo").unwrap());
    spawn(&world.store, SessionRow { state: SessionState::Idle, ..session_row(&key) }, None).await;
    world.manager.cancel(&key, None, IdempotencyKey::mint()).await.unwrap();
    world.wait_for_metric("the actor is evicted", "acp_actor_evictions_total 1").await;
    world.end().await;
}

/// Unreadable rows fail the request and report the session; the next request tries again.
#[tokio::test]
async fn session_with_unreadable_rows_is_blocked_and_reported() {
    let world = world().await;
    let set = async |text: &'static str| {
        let sql = "UPDATE acp_leases SET spawn_json = CASE ?1 WHEN '' THEN substr(spawn_json, 2) ELSE ?1 || spawn_json END";
        world
            .store
            .write("set", move |tx| Ok(tx.sqlite().unwrap().execute(sql, [text]).map(drop)?))
            .await
            .unwrap();
    };
    // The JSON has one extra letter.
    set("x").await;
    let failure = world.prompt().await.unwrap_err();
    assert_eq!(failure.detail_code.as_deref(), Some("STORE_UNREADABLE"), "{failure:?}");
    eventually("no actor is left", async || (world.metrics.actors().count() == 0).then_some(())).await;
    let named = world.metrics.blocked_items().listed();
    assert!(named[0].starts_with(&format!("session {}: ", world.key)), "{named:?}");
    set("").await;
    let prompted = world.prompt().await;
    assert!(
        prompted.as_ref().err().is_none_or(|failure| failure.code != Code::StoreUnavailable),
        "{prompted:?}"
    );
    assert_eq!(world.metrics.blocked_items().listed(), Vec::<String>::new());
    world.end().await;
}
