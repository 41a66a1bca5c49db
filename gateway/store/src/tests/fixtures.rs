//! Rows for tests.

use crate::bindings::new_row;
use crate::{Durability, GroupBounds, PgAddress, SpawnTx, Store, StoreError};
use acp_core::agent_settings::AgentSettings;
use acp_core::backend::{AgentRequest, AgentRequestKind, InputKind};
use acp_core::event::EventKind;
use acp_core::failure::Failure;
use acp_core::policy::BindingTimeouts;
use acp_core::request::PromptRequest;
use acp_core::rows::{
    AgentRequestRow, BindingRow, BindingStatus, ConversationRef, LeaseRow, NonInteractive, OutboxRow,
    PermissionMode, PermissionRow, PermissionState, RequestState, RunPermissions, RunRow, SessionMode,
    SessionOptions, SessionRow,
};
use acp_core::run::RunState;
use acp_core::session::SessionState;
use acp_core::writes::Write;
use acp_shared::clock::Clock;
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, GatewayInstanceId, IdempotencyKey, LeaseId, RunId, SessionKey};
use acp_shared::protocol::{Graces, LeaseKind, Spawn};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(super) const SESSIONS_MAX: u64 = 1_000;

/// Opens a store that commits all queued transactions as one group, on machines of any speed.
pub(crate) fn open() -> (TempDir, Store) {
    open_with(GroupBounds { open_ms: 600_000, ..GroupBounds::default() })
}

pub(crate) fn open_with(bounds: GroupBounds) -> (TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = open_in(dir.path(), bounds).unwrap();
    (dir, store)
}

/// Opens the store of a state directory: on the server at `ACP_TEST_POSTGRES`, in a cell named after the directory, or else in
/// the directory.
pub(crate) fn open_in(dir: &Path, bounds: GroupBounds) -> Result<Store, StoreError> {
    #[expect(clippy::disallowed_methods, reason = "a test is a process of its own")]
    let clock = Clock::start();
    let Ok(server) = std::env::var("ACP_TEST_POSTGRES") else {
        return Store::open_with(dir, Durability::Full, bounds, clock);
    };
    let name = Sha256::digest(dir.as_os_str().as_encoded_bytes());
    let cell: String = name.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let address = PgAddress::parse(&server, &cell)?;
    let dir = dir.to_owned();
    std::thread::spawn(move || Store::open_cell(&dir, &address, true, bounds, clock)).join().unwrap()
}

/// True if the tests run on SQLite.
pub(crate) fn is_sqlite() -> bool {
    std::env::var_os("ACP_TEST_POSTGRES").is_none()
}

/// Opens the store of a state directory again, with the usual bounds. A server frees the lock of a closed connection soon
/// after it, not with it.
pub(crate) fn reopen(dir: &Path) -> Store {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match open_in(dir, GroupBounds::default()) {
            Err(StoreError::CellTaken { .. }) if Instant::now() < end => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

pub(crate) fn key(name: &str) -> SessionKey {
    SessionKey::parse(name).unwrap()
}

pub(crate) fn session(name: &str) -> SessionRow {
    SessionRow {
        session_key: key(name),
        backend: "direct".into(),
        agent: AgentName::parse("demo").unwrap(),
        mode: SessionMode::Persistent,
        cwd: "/tmp".into(),
        label: Some(format!("label of {name}")),
        state: SessionState::Creating,
        ending: None,
        last_error: None,
        owner_session_key: Some(key(name)),
        asked_by: String::new(),
        spawned_by: Some(key("above")),
        parent_session_key: Some(key("above")),
        gateway_instance_id: GatewayInstanceId::mint(),
        agent_session_id: None,
        resumable: false,
        agent_info: None,
        lease_id: None,
        options: SessionOptions {
            command: Vec::new(),
            permission: PermissionMode::Ask,
            non_interactive: NonInteractive::Fail,
            mode_id: Some("default".into()),
            model: Some("big".into()),
            is_model_required: true,
            voting: acp_core::permission::Voting::Owner,
            timeout_s: Some(60),
            config: vec![("effort".into(), "low".into())],
            grants: acp_core::host::Grants::default(),
            agent: AgentSettings::default(),
            mcp_servers: vec![acp_core::config::McpServer { name: "files".into(), ..Default::default() }],
            additional_directories: vec!["/more".into()],
            auth_method: Some("key".to_owned()),
            listing: None,
            host: Some("big1".to_owned()),
            asking: None,
        },
        last_session_seq: 0,
        pruned_seq: 0,
        created_at_ms: 10,
        updated_at_ms: 11,
        last_activity_at_ms: 12,
    }
}

pub(crate) fn run(session: &SessionKey, state: RunState) -> RunRow {
    let request = PromptRequest {
        text: "hello\nworld ✓".into(),
        asked_by: "token:1".to_owned(),
        author: "ann".into(),
        interactive: true,
        permissions: RunPermissions {
            mode: Some(PermissionMode::ApproveReads),
            non_interactive: Some(NonInteractive::Fail),
        },
        requester_message_id: Some("m1".into()),
        ..PromptRequest::default()
    };
    RunRow { state, ..request.into_run(RunId::mint(), session, IdempotencyKey::mint(), 20) }
}

pub(crate) fn binding(session: &SessionKey, conversation: &str, status: BindingStatus) -> BindingRow {
    let parent_conversation_id = Some("lobby".into());
    let at = ConversationRef::new("console", "default", conversation);
    let at = ConversationRef { parent_conversation_id, ..at };
    let timeouts = BindingTimeouts { idle_ms: Some(1_000), max_age_ms: None };
    let (last_activity_at_ms, metadata) = (31, "{\"a\":1}".into());
    BindingRow { status, last_activity_at_ms, metadata, ..new_row(at, session, "ann", timeouts, 30) }
}

pub(crate) fn lease(session: &SessionKey) -> LeaseRow {
    let spawn = Spawn {
        lease_id: LeaseId::mint(),
        session_key: session.clone(),
        kind: LeaseKind::Agent,
        argv: vec!["agent".into(), "--acp".into()],
        env: vec![("TOKEN".into(), "secret".into())],
        cwd: "/tmp".into(),
        roots: vec!["/tmp".into()],
        graces: Graces::default(),
    };
    LeaseRow { link_state: "{}".into(), ..LeaseRow::new(spawn) }
}

pub(crate) fn agent_request(at: u64, run_id: Option<RunId>) -> AgentRequest {
    AgentRequest {
        at,
        run_id,
        method: "fs/read_text_file".into(),
        params: "{\"path\":\"/tmp/x\"}".into(),
        what: AgentRequestKind::FsRead { path: "/tmp/x".into(), line: Some(3), limit: None },
        is_recalled: true,
        voters: acp_core::permission::Voters::Owner("token:1".to_owned()),
    }
}

pub(crate) fn request(lease: &LeaseRow, at: u64, state: RequestState) -> AgentRequestRow {
    AgentRequestRow {
        lease_id: lease.lease_id,
        session_key: lease.session_key.clone(),
        request: agent_request(at, None),
        state,
        intent: Some("abc".into()),
    }
}

pub(crate) fn permission(lease: &LeaseRow, at: u64, state: PermissionState) -> PermissionRow {
    PermissionRow {
        lease_id: lease.lease_id,
        session_key: lease.session_key.clone(),
        request: agent_request(at, Some(RunId::mint())),
        state,
        option_id: None,
        resolved_by: None,
        created_at_ms: 40,
        deadline_at_ms: Some(41),
    }
}

pub(crate) fn outbox(lease: &LeaseRow, seq: u64, run_id: RunId) -> OutboxRow {
    OutboxRow {
        lease_id: lease.lease_id,
        seq,
        bytes: format!("message {seq}\n").into_bytes().into(),
        kind: InputKind::Prompt { run_id },
        written: false,
    }
}

pub(crate) fn failure() -> Failure {
    Failure::new(Code::TurnFailed, "it broke").detail("AGENT_EXITED").origin("agent").retryable()
}

pub(crate) fn event(session_seq: u64, run: Option<(RunId, u64)>) -> Write {
    let payload = format!("{{\"n\":{session_seq}}}");
    Write::Event { session_seq, run, kind: EventKind::AgentMessage, payload, extra: None }
}

pub(crate) fn spawn_tx(session: SessionRow) -> SpawnTx {
    SpawnTx {
        session,
        naming: None,
        binding: None,
        run: None,
        events: Vec::new(),
        idempotency: None,
        caps: acp_core::writes::SessionLimits { sessions_max: SESSIONS_MAX, account: None },
        children_max: None,
    }
}

pub(super) async fn insert_session(store: &Store, name: &str) -> SessionRow {
    let row = session(name);
    store.spawn_session(spawn_tx(row.clone())).await.unwrap();
    row
}

pub(super) async fn count(store: &Store, table: &'static str) -> u64 {
    store
        .read("count", move |db| {
            let sql = format!("SELECT count(*) FROM {table}");
            db.first(&sql, &[], |row| row.only()).map(Option::unwrap)
        })
        .await
        .unwrap()
}
