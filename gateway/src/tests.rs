//! Fixtures for driver tests: a real store with a session, written as by the actor.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use crate::channel::Channels;
use crate::config::LiveConfig;
use crate::metrics::Metrics;
use crate::runtime::agents::Agents;
use crate::runtime::hosts::{Host, Hosts};
use crate::runtime::profiles::Profiles;
use crate::session::task::Deps;
use crate::supervisor::SupervisorClient;
use acp_core::backend::{AgentRequest, AgentRequestKind, PermissionOption};
use acp_core::config::load::{Inputs, LoadedConfig, load};
use acp_core::config::remote::LOCAL;
use acp_core::event::EventKind;
use acp_core::policy::BindingTimeouts;
use acp_core::request::{PromptRequest, SpawnRequest};
use acp_core::rows::{
    BindingRow, ConversationRef, LeaseRow, LeaseStatus, NonInteractive, PermissionMode, PermissionRow,
    PermissionState, RunRow, SessionMode, SessionOptions, SessionRow,
};
use acp_core::run::RunState;
use acp_core::runtime::Registry;
use acp_core::runtime::direct::DirectRuntime;
use acp_core::session::SessionState;
use acp_core::writes::{ActorFence, Write};
use acp_shared::ids::{AgentName, GatewayInstanceId, IdempotencyKey, LeaseId, RunId, SessionKey};
use acp_shared::protocol::{Graces, LeaseInfo, LeaseKind, LeaseState, Spawn};
use acp_store::db::FromValue;
use acp_store::{Durability, SpawnTx, Store, bindings};
use serde_json::{Value, json};
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    description: &str,
    mut check: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + Duration::from_secs(40);
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out: {description}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn loaded(text: &str) -> LoadedConfig {
    load(Inputs { file: Some((Path::new("/g.toml"), text)), ..Inputs::default() }).unwrap()
}

/// Returns the host of this machine: direct backend, no agents.
pub(crate) fn host_of(supervisor: SupervisorClient) -> Host {
    let registry = Arc::new(Registry::default());
    registry.register(Arc::new(DirectRuntime::default()));
    let live = LiveConfig::new(LoadedConfig::default());
    let profiles = Arc::new(Agents::new(live, Vec::new(), Path::new("/bin/sh"), Path::new("/")));
    Host { name: LOCAL.into(), address: "".into(), supervisor, profiles, registry }
}

/// Returns dependencies of session tasks: direct backend, no configuration.
pub(crate) fn deps(store: &Store, supervisor: SupervisorClient, profiles: Arc<dyn Profiles>) -> Deps {
    let host = Host { profiles, ..host_of(supervisor) };
    let live = LiveConfig::new(LoadedConfig::default());
    Deps {
        store: store.clone(),
        hosts: Arc::new(Hosts::new(live.clone(), host.clone(), Vec::new())),
        host,
        channels: Channels::default(),
        clock: store.clock(),
        live,
        metrics: Metrics::default(),
        stop: CancellationToken::new(),
    }
}

/// The clock of this machine.
#[cfg(feature = "discord")]
#[expect(clippy::disallowed_methods, reason = "a test is a process of its own")]
pub(crate) fn clock() -> acp_shared::clock::Clock {
    acp_shared::clock::Clock::start()
}

pub(crate) fn conversation(id: &str) -> ConversationRef {
    crate::channel::console::conversation(id)
}

pub(crate) fn open() -> (TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), Durability::Normal).unwrap();
    (dir, store)
}

/// Runs SQL, for states that no transaction of the gateway leaves.
pub(crate) async fn execute(store: &Store, sql: impl Into<String>) {
    let sql = sql.into();
    store.write("test", move |tx| Ok(tx.sqlite().unwrap().execute_batch(&sql)?)).await.unwrap();
}

pub(crate) async fn column<T: FromValue + Send + 'static>(store: &Store, sql: &'static str) -> Vec<T> {
    store.read("test", move |db| db.all(sql, &[], |row| row.only())).await.unwrap()
}

pub(crate) fn session_row(key: &SessionKey) -> SessionRow {
    SessionRow {
        session_key: key.clone(),
        backend: "direct".to_owned(),
        agent: AgentName::parse("demo").unwrap(),
        mode: SessionMode::Persistent,
        cwd: "/tmp".to_owned(),
        label: None,
        state: SessionState::Idle,
        ending: None,
        last_error: None,
        owner_session_key: Some(key.clone()),
        asked_by: String::new(),
        spawned_by: None,
        parent_session_key: None,
        gateway_instance_id: GatewayInstanceId::parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap(),
        agent_session_id: None,
        resumable: true,
        agent_info: None,
        lease_id: None,
        options: SessionOptions::new(PermissionMode::Ask, NonInteractive::Deny),
        last_session_seq: 0,
        pruned_seq: 0,
        created_at_ms: 1,
        updated_at_ms: 1,
        last_activity_at_ms: 1,
    }
}

pub(crate) fn lease_row(key: &SessionKey, usage: LeaseStatus) -> LeaseRow {
    let spawn = Spawn {
        lease_id: LeaseId::mint(),
        session_key: key.clone(),
        kind: LeaseKind::Agent,
        argv: vec!["agent".to_owned()],
        env: Vec::new(),
        cwd: "/".to_owned(),
        roots: Vec::new(),
        graces: Graces::default(),
    };
    LeaseRow { usage, ..LeaseRow::new(spawn) }
}

pub(crate) fn lease_info(spawn: &Spawn) -> LeaseInfo {
    LeaseInfo {
        lease_id: spawn.lease_id,
        gateway_instance_id: GatewayInstanceId::mint(),
        owner_uid: 0,
        session_key: spawn.session_key.clone(),
        kind: spawn.kind.clone(),
        state: LeaseState::Open,
        state_reason: String::new(),
        wrapper_pid: None,
        adapter_pid: None,
        pgid: None,
        sid: None,
        wrapper_path: String::new(),
        command_hash: String::new(),
        rung: String::new(),
        started_at_ms: 0,
        exit: None,
        stdout_end: 0,
        stdout_acked: 0,
        stdin_written: 0,
        memory_bytes: None,
        tree_size: None,
        buffered_bytes: 0,
        cgroup_path: None,
    }
}

pub(crate) fn binding_row(key: &SessionKey, at: &ConversationRef) -> BindingRow {
    bindings::new_row(at.clone(), key, "ann", BindingTimeouts::default(), 1)
}

pub(crate) fn permission_row(key: &SessionKey, at: u64) -> PermissionRow {
    let option = |id: &str, kind: &str| PermissionOption {
        id: id.to_owned(),
        name: format!("Option {id}"),
        kind: kind.to_owned(),
    };
    let options = vec![option("y", "allow_once"), option("n", "reject_once")];
    PermissionRow {
        lease_id: LeaseId::parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap(),
        session_key: key.clone(),
        request: AgentRequest {
            at,
            run_id: None,
            method: "session/request_permission".to_owned(),
            params: "{}".to_owned(),
            what: AgentRequestKind::Permission { title: "Write".to_owned(), tool_kind: None, options },
            is_recalled: false,
            voters: acp_core::permission::Voters::Anyone,
        },
        state: PermissionState::Pending,
        option_id: None,
        resolved_by: None,
        created_at_ms: 0,
        deadline_at_ms: None,
    }
}

pub(crate) fn spawn_tx(session: SessionRow, binding: Option<BindingRow>) -> SpawnTx {
    let caps = acp_core::writes::SessionLimits { sessions_max: 1_000, account: None };
    SpawnTx {
        session,
        naming: None,
        binding,
        run: None,
        events: Vec::new(),
        idempotency: None,
        caps,
        children_max: None,
    }
}

pub(crate) async fn spawn(store: &Store, session: SessionRow, binding: Option<BindingRow>) {
    store.spawn_session(spawn_tx(session, binding)).await.unwrap();
}

/// Stands in for an actor: writes runs and journal rows of one session.
pub(crate) struct JournalWriter {
    store: Store,
    fence: ActorFence,
    session: SessionRow,
    run: Option<(RunRow, u64)>,
    seq: u64,
}

impl JournalWriter {
    pub(crate) async fn claim(store: &Store, key: &SessionKey) -> Self {
        let (snapshot, fence) = store.claim(key.clone()).await.unwrap();
        let seq = snapshot.session.last_session_seq;
        Self { store: store.clone(), fence, session: snapshot.session, run: None, seq }
    }

    fn write(&mut self, kind: EventKind, payload: &Value, of_run: bool) -> Write {
        self.seq += 1;
        let run = self.run.as_mut().filter(|_| of_run).map(|(row, seq)| {
            *seq += 1;
            (row.run_id, *seq)
        });
        Write::Event { session_seq: self.seq, run, kind, payload: payload.to_string(), extra: None }
    }

    pub(crate) async fn start(&mut self) -> RunId {
        let queued = prompt_request("hi").into_run(
            RunId::mint(),
            &self.session.session_key,
            IdempotencyKey::mint(),
            1,
        );
        let run = RunRow { state: RunState::Running, started_at_ms: Some(2), ..queued };
        let run_id = run.run_id;
        self.run = Some((run.clone(), 0));
        let prompt = self.write(EventKind::Prompt, &json!({"text": "hi", "mode": "prompt"}), true);
        self.store.commit(self.fence.clone(), vec![Write::Run(Box::new(run)), prompt]).await.unwrap();
        run_id
    }

    pub(crate) async fn event(&mut self, kind: EventKind, payload: Value) {
        let write = self.write(kind, &payload, true);
        self.store.commit(self.fence.clone(), vec![write]).await.unwrap();
    }

    pub(crate) async fn append_text(&mut self, text: &str) {
        self.event(EventKind::AgentMessage, json!({"content": {"type": "text", "text": text}})).await;
    }

    pub(crate) async fn turn(&mut self, answer: &str) {
        self.start().await;
        self.append_text(answer).await;
        self.complete().await;
    }

    pub(crate) async fn complete(&mut self) {
        self.end(EventKind::Done, &json!({"stop_reason": "end_turn"}), RunState::Completed).await;
    }

    pub(crate) async fn fail(&mut self) {
        self.end(EventKind::Error, &json!({"code": "ACP_TURN_FAILED", "message": "No."}), RunState::Failed)
            .await;
    }

    async fn end(&mut self, kind: EventKind, payload: &Value, state: RunState) {
        let last = self.write(kind, payload, true);
        let (run, last_seq) = self.run.take().unwrap();
        let run = RunRow { state, last_seq, ..run };
        self.store.commit(self.fence.clone(), vec![last, Write::Run(Box::new(run))]).await.unwrap();
    }

    /// Closes the session with its bindings; the agent ends afterwards.
    pub(crate) async fn close(&mut self) {
        let closed = self.write(EventKind::Closed, &json!({"reason": "enough"}), false);
        let mut session = self.session.clone();
        session.state = SessionState::Closed;
        session.last_session_seq = self.seq;
        let end = Write::EndBindings { reason: "closed".to_owned() };
        let writes = vec![closed, end, Write::Session(Box::new(session))];
        self.store.commit(self.fence.clone(), writes).await.unwrap();
        let late = json!({"status": "agent_exited", "text": "The agent ended."});
        let late = self.write(EventKind::Status, &late, false);
        self.store.commit(self.fence.clone(), vec![late]).await.unwrap();
    }
}

pub(crate) fn spawn_request(bind: Option<ConversationRef>, prompt: Option<&str>) -> SpawnRequest {
    SpawnRequest {
        agent: Some(AgentName::parse("demo").unwrap()),
        bind,
        prompt: prompt.map(str::to_owned),
        author: "ann".to_owned(),
        interactive: true,
        ..SpawnRequest::default()
    }
}

pub(crate) fn prompt_request(text: &str) -> PromptRequest {
    PromptRequest {
        text: text.to_owned(),
        author: "ann".to_owned(),
        interactive: true,
        ..PromptRequest::default()
    }
}

#[derive(Clone, Default)]
pub(crate) struct LogLines(Arc<Mutex<Vec<u8>>>);

impl LogLines {
    pub(crate) fn writer(&self) -> impl Fn() -> Self + Send + Sync + use<> {
        let lines = self.clone();
        move || lines.clone()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        std::io::Write::write(&mut *self.0.lock().unwrap(), bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
