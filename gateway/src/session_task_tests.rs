//! A session whose control plane cannot be written: nobody is told a lie, and cancel and close still act on the
//! process (H19).
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::core::effect::Write;
use crate::core::request::PromptRequest;
use crate::core::rows::{LeaseRow, LeaseUse, RunMode};
use crate::manager::{Manager, Policy};
use crate::runtime::direct::DirectRuntime;
use crate::tests::{open, session_row, spawn};
use acp_shared::conn::{Conn, Listener};
use acp_shared::ids::{GatewayInstanceId, IdempotencyKey};
use acp_shared::protocol::{
    Graces, Home, LeaseKind, LeaseState, Refusal, Role, Spawn, ToClient, ToSupervisor, VERSION_MAX, Welcome,
};

struct NoAgents;

impl Profiles for NoAgents {
    fn profile(&self, _: &AgentName) -> Result<Profile, Failure> {
        Err(Failure::of(Code::AgentNotAllowed))
    }
    fn default_agent(&self) -> Result<AgentName, Failure> {
        Err(Failure::of(Code::AgentNotAllowed))
    }
    fn cwd(&self, _: &AgentName, _: Option<&str>) -> Result<String, Failure> {
        Err(Failure::of(Code::CwdNotAllowed))
    }
}

/// A supervisor that tells which leases it was asked to end, and is too busy for everything else.
async fn supervisor(listener: Listener, closed: mpsc::Sender<LeaseId>) {
    let mut conn: Conn<ToSupervisor, ToClient> = listener.accept().await.unwrap();
    while let Some(message) = conn.receiver.recv().await.unwrap() {
        let answer = match message {
            ToSupervisor::Hello(_) => ToClient::Welcome(Welcome {
                version: VERSION_MAX,
                features: Vec::new(),
                pid: 1,
                supervisor_id: "s".to_owned(),
                credit_bytes: 1 << 20,
            }),
            ToSupervisor::Request { id, body: Request::CloseLease { lease_id, .. } } => {
                closed.send(lease_id).await.unwrap();
                ToClient::Reply { id, result: Ok(Reply::Closing { state: LeaseState::Closing }) }
            }
            ToSupervisor::Request { id, .. } => {
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
    spawn(&store, session_row(&key), None).await;
    let (snapshot, fence) = store.claim(key.clone()).await.unwrap();
    let lease_id = LeaseId::mint();
    let spawned = Spawn {
        lease_id,
        session_key: key.clone(),
        kind: LeaseKind::Agent,
        argv: vec!["agent".to_owned()],
        env: Vec::new(),
        cwd: "/".to_owned(),
        roots: Vec::new(),
        graces: Graces::default(),
    };
    let row = LeaseRow {
        lease_id,
        session_key: key.clone(),
        spawn: spawned,
        usage: LeaseUse::Ready,
        stdout_offset: 0,
        next_stdin_seq: 1,
        link_state: String::new(),
    };
    let session = crate::core::rows::SessionRow { lease_id: Some(lease_id), ..snapshot.session };
    let writes = vec![Write::NewLease(Box::new(row)), Write::Session(Box::new(session))];
    store.commit(fence, writes).await.unwrap();

    let path = dir.path().join("s.sock");
    let (tell, closed) = mpsc::channel(8);
    tokio::spawn(supervisor(Listener::bind(&path, 0o600).unwrap(), tell));
    let stop = CancellationToken::new();
    let role = Role::Gateway {
        instance_id: GatewayInstanceId::mint(),
        epoch: 1,
        home: Home { machine_id: String::new(), dev: 0, ino: 0 },
    };
    let supervisor = Supervisor::start(path.clone(), path, crate::supervisor::hello(role), stop.clone());
    let mut status = supervisor.status();
    status.wait_for(|status| matches!(status, LinkStatus::Up { .. })).await.unwrap();
    let registry = Arc::new(Registry::default());
    registry.register(Arc::new(DirectRuntime));
    let metrics = Metrics::default();
    let deps = Deps {
        metrics: metrics.clone(),
        store: store.clone(),
        supervisor,
        registry,
        clock: Clock::start(),
        limits: Limits {
            queue_runs_max: 4,
            prompt_bytes_max: 1_000,
            line_bytes_max: 1_000,
            cancel_ms: 60_000,
            close_wait_ms: 60_000,
            silent_ms: 60_000,
            permission_ms: 0,
            probe_ms: 0,
            alive_ms: 60_000,
        },
        profiles: Arc::new(NoAgents),
        stop: stop.clone(),
    };
    let policy = Policy {
        enabled: true,
        dispatch_enabled: true,
        backend: "direct".to_owned(),
        sessions_max: 9,
        instance_id: GatewayInstanceId::mint(),
    };
    World { dir, store, manager: Manager::new(deps, policy), key, lease_id, closed, metrics, stop }
}

impl World {
    /// From now on nothing of a session can be written.
    async fn break_store(&self) {
        const SQL: &str =
            "CREATE TRIGGER broken BEFORE UPDATE ON acp_sessions BEGIN SELECT RAISE(FAIL, 'no'); END";
        self.store.write("break", |tx| Ok(tx.execute_batch(SQL)?)).await.unwrap();
    }

    async fn mend_store(&self) {
        self.store.write("mend", |tx| Ok(tx.execute_batch("DROP TRIGGER broken")?)).await.unwrap();
    }

    async fn prompt(&self) -> Result<crate::manager::PromptAccepted, Failure> {
        let request = PromptRequest {
            text: "hello".to_owned(),
            mode: RunMode::Prompt,
            author: String::new(),
            interactive: false,
            requester_message_id: None,
            new_conversation: false,
        };
        self.manager.prompt(&self.key, request, IdempotencyKey::mint()).await
    }

    async fn close(&self) -> Result<crate::manager::SessionNow, Failure> {
        self.manager.close(&self.key, "enough".to_owned(), IdempotencyKey::mint()).await
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
    let answer = |option: &'static str| world.manager.answer_permission(&world.key, "none", option, "me");
    assert_eq!(answer("yes").await.unwrap_err().code, Code::Usage, "the actor is there");
    world.break_store().await;
    assert_eq!(world.prompt().await.unwrap_err().code, Code::StoreUnavailable);
    assert_eq!(world.close().await.unwrap_err().code, Code::StoreUnavailable);
    assert_eq!(world.closed.recv().await, Some(world.lease_id));
    let text = world.metrics.render();
    assert!(text.contains("acp_actor_restarts_total{reason=\"commit_failed\"} 1"), "{text}");
    world.mend_store().await;
    crate::tests::eventually("a close that is done", async || world.close().await.ok()).await;
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

#[tokio::test]
async fn a_quiet_actor_that_is_dropped_is_counted() {
    let world = world().await;
    let key = SessionKey::mint(&AgentName::parse("demo").unwrap());
    let idle = crate::core::rows::SessionRow {
        state: crate::core::session::SessionState::Idle,
        ..session_row(&key)
    };
    spawn(&world.store, idle, None).await;
    world.manager.cancel(&key, None, IdempotencyKey::mint()).await.unwrap();
    crate::tests::eventually("the actor rests", async || {
        world.metrics.render().contains("acp_actor_evictions_total 1").then_some(())
    })
    .await;
    world.end().await;
}
