//! The API over a real socket, with a fake service and misbehaving clients.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod connections;
mod console;
mod encrypted;
mod hostile;
mod limited;
mod named_prompts;
mod network;
mod rest;
mod sign_in;
mod streams;
mod visibility;

use super::{Api, ApiLimits, router, socket::ApiListener};
use crate::api::client::{EventSelection, GatewayClient};
use crate::session::service::{Service, ServiceFuture};
use crate::tests::{prompt_request, session_row};
use acp_core::acpx_contract::NameQuery;
use acp_core::actor::QuestionAnswer;
use acp_core::api::{
    AgentView, AnswerBody, Done, EventsPage, LogPage, PromptBody, SOCKET, SessionView, StatusView,
};
use acp_core::config::load::{Inputs, load};
use acp_core::event::{EventKind, EventRow};
use acp_core::failure::Failure;
use acp_core::options::Setting;
use acp_core::permission::Voter;
use acp_core::policy::{BindingTimeouts, EffectivePolicy, PolicyScope, effective_policy};
use acp_core::request::{
    CancelResult, CloseRequest, PromptAccepted, PromptRequest, QueueEdit, QueueEditResult, SessionStatus,
    SpawnRequest, SpawnResult,
};
use acp_core::rows::{BindingRow, ConversationRef, PermissionRow, RunRow, SessionQuery, SessionRow};
use acp_core::run::RunState;
use acp_core::session::SessionState;
use acp_core::timeouts::Expiry;
use acp_core::visibility::{Action, principal_sees};
use acp_shared::codes::Code;
use acp_shared::files::{FilesError, FilesOp, FilesReply, Inspection};
use acp_shared::ids::{BindingId, GatewayInstanceId, IdempotencyKey, RunId, SessionKey};
use acp_shared::protocol::{LogFrom, LogPiece};
use acp_store::acpx_names::NamedSession;
use acp_store::events::{self, EventBounds, JournalRows};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Event id before the first row of the fake journal.
pub(crate) const FIRST_EVENT_ID: u64 = 100;
const DEADLINE: Duration = Duration::from_secs(30);

/// Fake service with one session and a journal written by tests.
pub(crate) struct Fake {
    pub(crate) key: SessionKey,
    run: RunId,
    calls: Mutex<Vec<String>>,
    /// Prompts by key: true if a person could be asked.
    prompts: Mutex<HashMap<IdempotencyKey, bool>>,
    rows: Mutex<Vec<EventRow>>,
    /// Number of the last row that is pruned after the session was read.
    pruned_by_read: AtomicU64,
    pub(crate) pending: Mutex<Vec<PermissionRow>>,
    state: Mutex<(SessionState, RunState)>,
    wake: watch::Sender<u64>,
}

fn ready<'a, T: Send + 'a>(result: Result<T, Failure>) -> ServiceFuture<'a, T> {
    Box::pin(std::future::ready(result))
}

impl Fake {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            key: SessionKey::parse("agent:demo:acp:a/b").unwrap(),
            run: RunId::mint(),
            calls: Mutex::default(),
            prompts: Mutex::default(),
            rows: Mutex::default(),
            pruned_by_read: AtomicU64::new(0),
            pending: Mutex::default(),
            state: Mutex::new((SessionState::Running, RunState::Running)),
            wake: watch::channel(0).0,
        })
    }

    /// Modifying calls so far.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    fn record(&self, call: &str, key: &IdempotencyKey) {
        self.calls.lock().unwrap().push(format!("{call} {key}"));
    }

    pub(crate) fn append(&self, kind: EventKind, payload: &str) {
        let session_seq = self.rows.lock().unwrap().len() as u64 + 1;
        self.rows.lock().unwrap().push(EventRow {
            session_key: self.key.clone(),
            session_seq,
            run_id: Some(self.run),
            seq: Some(session_seq),
            kind,
            payload: payload.to_owned(),
            extra: None,
            created_at_ms: 1,
        });
        self.wake.send_replace(session_seq);
    }

    pub(crate) fn append_message(&self, text: &str) {
        let payload = json!({"content": {"type": "text", "text": text}}).to_string();
        self.append(EventKind::AgentMessage, &payload);
    }

    fn row(&self) -> SessionRow {
        let state = self.state.lock().unwrap().0;
        // A closed session was closed before its agent had opened it.
        SessionRow {
            state,
            agent_info: (state != SessionState::Closed).then(|| "{\"n\":1e3}".to_owned()),
            last_session_seq: self.rows.lock().unwrap().len() as u64,
            ..session_row(&self.key)
        }
    }

    fn run_row(&self) -> RunRow {
        let state = self.state.lock().unwrap().1;
        RunRow { state, ..prompt_request("hi").into_run(self.run, &self.key, IdempotencyKey::mint(), 1) }
    }

    fn session_status(&self) -> SessionStatus {
        let (session_key, state) = (self.key.clone(), SessionState::Idle);
        SessionStatus { session_key, state, discarded: None, setting: None }
    }
}

impl Service for Fake {
    fn instance_id(&self) -> GatewayInstanceId {
        self.row().gateway_instance_id
    }
    fn spawn(&self, request: SpawnRequest, key: IdempotencyKey) -> ServiceFuture<'_, SpawnResult> {
        self.record(&format!("spawn {:?} {:?}", request.cwd, request.author.is_empty()), &key);
        ready(Ok(SpawnResult::created(self.key.clone(), None)))
    }
    fn prompt<'a>(
        &'a self,
        session: &'a SessionKey,
        request: PromptRequest,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, PromptAccepted> {
        if *session != self.key {
            return ready(Err(Failure::of(Code::NoSession)));
        }
        let asked = request.interactive;
        if *self.prompts.lock().unwrap().entry(key.clone()).or_insert(asked) != asked {
            return ready(Err(Failure::of(Code::IdempotencyConflict)));
        }
        self.record(&format!("prompt {}", request.text), &key);
        ready(Ok(PromptAccepted { run_id: self.run, after_seq: 0, queued_behind: 0, steered: false }))
    }
    fn cancel<'a>(
        &'a self,
        _: &'a SessionKey,
        run: Option<RunId>,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, CancelResult> {
        self.record("cancel", &key);
        ready(Ok(CancelResult { run_id: run, state: None }))
    }
    fn queued<'a>(
        &'a self,
        _: &'a SessionKey,
        _: RunId,
        _: QueueEdit,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, QueueEditResult> {
        self.record("queued", &key);
        ready(Ok(QueueEditResult::Done))
    }
    fn close<'a>(
        &'a self,
        _: &'a SessionKey,
        request: CloseRequest,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus> {
        self.record(&format!("{} {} {}", request.ending.as_str(), request.reason, request.discard), &key);
        ready(Ok(self.session_status()))
    }
    fn new_conversation<'a>(
        &'a self,
        _: &'a SessionKey,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus> {
        self.record("new", &key);
        ready(Ok(self.session_status()))
    }
    fn set<'a>(
        &'a self,
        _: &'a SessionKey,
        setting: Setting,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus> {
        self.record(&format!("{setting:?}"), &key);
        ready(Ok(self.session_status()))
    }
    fn answer_question<'a>(
        &'a self,
        _: &'a SessionKey,
        id: &'a str,
        answer: QuestionAnswer,
        by: Voter,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, ()> {
        let answer = match answer {
            QuestionAnswer::Option(option) => option,
            QuestionAnswer::Dismissed => "dismissed".to_owned(),
            QuestionAnswer::Elicitation(answer) => serde_json::to_string(&answer).unwrap(),
        };
        self.record(&format!("answer {id} {answer} {}", by.name), &key);
        ready(Ok(()))
    }
    fn expiry<'a>(&'a self, _: &'a SessionKey) -> ServiceFuture<'a, Option<Expiry>> {
        ready(Ok(None))
    }
    fn unbind<'a>(
        &'a self,
        _: &'a SessionKey,
        binding: Option<BindingId>,
        reason: String,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, Vec<BindingRow>> {
        self.record(&format!("unbind {} {reason}", binding.is_some()), &key);
        ready(Ok(Vec::new()))
    }
    fn session<'a>(&'a self, session: &'a SessionKey) -> ServiceFuture<'a, SessionRow> {
        ready(if *session == self.key { Ok(self.row()) } else { Err(Failure::of(Code::NoSession)) })
    }
    fn sessions(&self, _: bool, _: u32) -> ServiceFuture<'_, Vec<SessionRow>> {
        ready(Ok(vec![self.row()]))
    }
    fn session_activity(&self, _: Vec<SessionKey>) -> ServiceFuture<'_, acp_core::rows::SessionActivity> {
        let running = [(self.key.clone(), self.run)].into();
        ready(Ok(acp_core::rows::SessionActivity { running, ..Default::default() }))
    }
    fn run<'a>(&'a self, _: &'a SessionKey, run: RunId) -> ServiceFuture<'a, Option<RunRow>> {
        ready(Ok((run == self.run).then(|| self.run_row())))
    }
    fn runs<'a>(&'a self, _: &'a SessionKey, _: u32) -> ServiceFuture<'a, Vec<RunRow>> {
        ready(Ok(vec![self.run_row()]))
    }
    fn pending_permissions<'a>(&'a self, _: &'a SessionKey) -> ServiceFuture<'a, Vec<PermissionRow>> {
        ready(Ok(self.pending.lock().unwrap().clone()))
    }
    fn events_after<'a>(
        &'a self,
        _: &'a SessionKey,
        position: Option<u64>,
        limit: u32,
        bytes_max: usize,
    ) -> ServiceFuture<'a, JournalRows> {
        let pruned_seq = self.pruned_by_read.load(Ordering::Relaxed);
        let after = match events::start(position, pruned_seq) {
            Ok(after) => after,
            Err(error) => return ready(Err(error.into())),
        };
        let rows = self.rows.lock().unwrap();
        let rows = rows.iter().skip(usize::try_from(after).unwrap()).take(limit as usize);
        let fitting = rows.scan(0, |bytes, row| {
            let fits = *bytes < bytes_max;
            *bytes += row.payload.len();
            fits.then(|| row.clone())
        });
        ready(Ok(JournalRows { pruned_seq, rows: fitting.collect() }))
    }
    fn session_log<'a>(&'a self, _: &'a SessionKey, from: LogFrom) -> ServiceFuture<'a, LogPiece> {
        // Pieces of at most two lines, of a log whose first line was dropped.
        let log = b"two\nthree\nfour\nfive\n";
        let (base, end) = (4, 4 + log.len() as u64);
        let offset = match from {
            LogFrom::Offset(offset) => offset.clamp(base, end),
            LogFrom::End(_) => base,
        };
        let rest = &log[usize::try_from(offset - base).unwrap()..];
        let lines = rest.split_inclusive(|byte| *byte == b'\n').take(2);
        ready(Ok(LogPiece { offset, bytes: lines.flatten().copied().collect(), end }))
    }
    fn watch(&self, _: &SessionKey) -> watch::Receiver<u64> {
        self.wake.subscribe()
    }
    fn all_events_after(
        &self,
        after: u64,
        _: u64,
        limit: u32,
        bytes_max: usize,
    ) -> ServiceFuture<'_, Vec<(u64, EventRow)>> {
        // Event ids differ from the numbers within the session.
        let position = Some(after.saturating_sub(FIRST_EVENT_ID));
        let rows = self.events_after(&self.key, position, limit, bytes_max);
        Box::pin(async move {
            Ok(rows.await?.rows.into_iter().map(|row| (FIRST_EVENT_ID + row.session_seq, row)).collect())
        })
    }
    fn event_bounds(&self) -> ServiceFuture<'_, EventBounds> {
        ready(Ok(EventBounds { pruned: 0, last: FIRST_EVENT_ID + self.rows.lock().unwrap().len() as u64 }))
    }
    fn watch_all(&self) -> watch::Receiver<u64> {
        self.wake.subscribe()
    }
    fn find_sessions(&self, query: SessionQuery) -> ServiceFuture<'_, Vec<(u64, SessionRow)>> {
        // Three sessions, numbered 1 to 3, the newest first.
        let is_seen = |row: &_| query.seen_by.as_ref().is_none_or(|by| principal_sees(by, row, Action::List));
        let all = (1..=3).rev().filter(|ord| query.before.is_none_or(|before| *ord < before));
        let found = all.map(|ord| (ord, self.row())).filter(|(_, row)| is_seen(row));
        ready(Ok(found.take(usize::try_from(query.limit).unwrap()).collect()))
    }
    fn acpx_sessions(&self, _: NameQuery) -> ServiceFuture<'_, Vec<NamedSession>> {
        ready(Ok(vec![NamedSession { name: String::new(), cwd: "/w".to_owned(), session: self.row() }]))
    }
    fn all_pending_permissions(&self, _: u64) -> ServiceFuture<'_, Vec<PermissionRow>> {
        ready(Ok(self.pending.lock().unwrap().clone()))
    }
    fn set_label<'a>(
        &'a self,
        _: &'a SessionKey,
        label: Option<String>,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus> {
        self.record(&format!("label {label:?}"), &key);
        ready(Ok(self.session_status()))
    }
    fn release<'a>(
        &'a self,
        _: &'a SessionKey,
        by: String,
        key: IdempotencyKey,
    ) -> ServiceFuture<'a, SessionStatus> {
        self.record(&format!("release {}", by.is_empty()), &key);
        ready(Ok(self.session_status()))
    }
    fn file_roots(&self, session: &SessionRow) -> Vec<String> {
        vec![session.cwd.clone()]
    }
    fn read_files<'a>(
        &'a self,
        _: &'a str,
        roots: Vec<String>,
        op: FilesOp,
    ) -> ServiceFuture<'a, Result<FilesReply, FilesError>> {
        ready(Ok(match op {
            FilesOp::Read { path, .. } | FilesOp::Inspect { path, .. } if !path.starts_with(&roots[0]) => {
                Err(FilesError::Outside)
            }
            FilesOp::Read { path, .. } if path.ends_with("/big") => {
                Err(FilesError::TooLarge { bytes_max: 1 })
            }
            FilesOp::Read { path, .. } if path.ends_with("/a") => {
                Ok(FilesReply::Text("<b>text</b>".to_owned()))
            }
            FilesOp::Read { .. } => Err(FilesError::NotFound),
            _ => Ok(FilesReply::Inspected(Inspection::default())),
        }))
    }
    fn may_focus(&self, _: &ConversationRef) -> Result<BindingTimeouts, Failure> {
        Ok(BindingTimeouts::default())
    }
    fn policy(&self, at: &ConversationRef) -> Arc<EffectivePolicy> {
        let loaded = load(Inputs::default()).unwrap();
        Arc::new(effective_policy(&loaded, &PolicyScope::of(Some(at))))
    }
    fn status(&self) -> ServiceFuture<'_, StatusView> {
        ready(Err(Failure::of(Code::BackendUnavailable)))
    }
    fn agents(&self) -> ServiceFuture<'_, Vec<AgentView>> {
        ready(Ok(Vec::new()))
    }
}

pub(crate) struct Server {
    ending: CancellationToken,
    serving: JoinHandle<()>,
}

impl Server {
    fn start(dir: &Path, fake: &Arc<Fake>, limits: ApiLimits) -> Self {
        let ending = CancellationToken::new();
        let api = Api::new(Arc::clone(fake) as Arc<dyn Service>, limits, ending.clone());
        let bound = ApiListener::bind(&dir.join(SOCKET)).unwrap();
        let serving = tokio::spawn(bound.serve(router(api), limits, ending.clone()));
        Self { ending, serving }
    }

    pub(crate) async fn end(self) {
        self.ending.cancel();
        tokio::time::timeout(DEADLINE, self.serving).await.unwrap().unwrap();
    }
}

pub(crate) fn start_server(limits: ApiLimits) -> (tempfile::TempDir, Arc<Fake>, Server) {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let server = Server::start(dir.path(), &fake, limits);
    (dir, fake, server)
}

const SESSION: &str = "/v1/sessions/agent:demo:acp:a%2Fb";

async fn send_request(dir: &Path, request: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(dir.join(SOCKET)).await.unwrap();
    stream.write_all(request).await.unwrap();
    stream
}

/// Short limits, so that slow clients are detected quickly.
pub(crate) const LIMITS: ApiLimits = ApiLimits {
    body_bytes_max: 4_096,
    body_ms: 300,
    head_ms: 300,
    keep_alive_ms: 50,
    stall_ms: 60_000,
    connections_max: 32,
};

async fn exchange(dir: &Path, request: &[u8]) -> String {
    let mut stream = send_request(dir, request).await;
    let mut answer = Vec::new();
    // A server that closes with unread input resets the connection: data received before that counts.
    let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn post(path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}").into_bytes()
}

fn get(path: &str, headers: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n").into_bytes()
}

async fn assert_response(dir: &Path, (request, status, code): (Vec<u8>, &str, &str)) {
    let answer = exchange(dir, &request).await;
    let request_start = String::from_utf8_lossy(&request).chars().take(160).collect::<String>();
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request_start:?}: {answer}");
    if !code.is_empty() {
        let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!(
            (&body["type"], &body["code"]),
            (&json!("error"), &json!(code)),
            "{request_start:?}: {answer}"
        );
    }
}

const STREAM: &str = "accept: text/event-stream\r\n";

#[tokio::test]
async fn malformed_requests_get_typed_errors() {
    let (dir, _fake, server) = start_server(LIMITS);
    let key = SESSION;
    let json = "content-type: application/json\r\n";
    let long = format!("{{\"text\":\"{}\"}}", "x".repeat(5_000));
    let prompt = format!("{key}/prompt");
    let (beyond, events) = (1_u64 << 63, format!("{key}/events"));
    for (request, status, code) in [
        (post(&prompt, json, "{\"text\":\"a\"}"), "200", ""),
        (post(&prompt, "", "{\"text\":\"a\"}"), "200", ""),
        (post(&prompt, json, "{broken"), "400", "USAGE"),
        (post(&prompt, json, "[]"), "400", "USAGE"),
        (post(&prompt, json, "{\"text\":\"\"}"), "400", "USAGE"),
        (post(&prompt, json, "{\"text\":\"a\",\"txet\":1}"), "400", "USAGE"),
        (post(&prompt, json, &long), "413", "ACP_LIMIT_REACHED"),
        (post(&prompt, "content-type: text/plain\r\n", "{\"text\":\"a\"}"), "415", "USAGE"),
        (post(&prompt, "idempotency-key: a b\r\n", "{\"text\":\"a\"}"), "400", "USAGE"),
        (post(&prompt, "idempotency-key: a\r\nidempotency-key: b\r\n", "{\"text\":\"a\"}"), "400", "USAGE"),
        (post("/v1/sessions/none/prompt", json, "{\"text\":\"a\"}"), "404", "NO_SESSION"),
        (post("/v1/sessions/bad%20key/prompt", json, "{\"text\":\"a\"}"), "404", "NO_SESSION"),
        (post(&format!("{key}/options"), json, "{}"), "400", "USAGE"),
        (post("/v1/nothing", json, "{}"), "404", "USAGE"),
        (post("/v1/health", json, "{}"), "405", "USAGE"),
        (get("/v1/status", ""), "503", "ACP_BACKEND_UNAVAILABLE"),
        (get(&format!("{events}?after=x"), ""), "400", "USAGE"),
        (get(&format!("{events}?after={}", i64::MAX), ""), "200", ""),
        (get(&format!("{events}?after={beyond}"), ""), "400", "USAGE"),
        (get(&events, &format!("{STREAM}last-event-id: {beyond}\r\n")), "400", "USAGE"),
        (get(&format!("{events}?aftr=1"), ""), "400", "USAGE"),
        (get(&events, &format!("{STREAM}last-event-id: x\r\n")), "400", "USAGE"),
        (b"not http at all\r\n\r\n".to_vec(), "400", ""),
    ] {
        assert_response(dir.path(), (request, status, code)).await;
    }
    server.end().await;
}

#[tokio::test]
async fn socket_is_private_and_removed_on_stop() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join(SOCKET);
    // A socket left by an earlier gateway is replaced; a file that is no socket is kept.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let server = Server::start(dir.path(), &Fake::new(), LIMITS);
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    server.end().await;
    assert!(!socket.exists());
    std::fs::write(&socket, "content").unwrap();
    assert_eq!(ApiListener::bind(&socket).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "content");
    let long = dir.path().join("x".repeat(120));
    assert_eq!(ApiListener::bind(&long).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
}

#[tokio::test]
async fn requests_reach_the_service_with_their_idempotency_key() {
    let (dir, fake, server) = start_server(LIMITS);
    let client = GatewayClient::new(dir.path());
    let key = IdempotencyKey::parse("k").unwrap();
    let path = |rest: &str| format!("{SESSION}{rest}");
    let _: SpawnResult = client.post("/v1/sessions", &json!({"cwd": "/w"}), &key).await.unwrap();
    let body = PromptBody::of_text("hi".into());
    let accepted: PromptAccepted = client.post(&path("/prompt"), &body, &key).await.unwrap();
    assert_eq!(accepted.run_id, fake.run);
    let _: CancelResult = client.post(&path("/cancel"), &json!({}), &key).await.unwrap();
    let _: SessionStatus = client.post(&path("/close"), &json!({"reason": "done"}), &key).await.unwrap();
    let discard = json!({"reason": "done", "discard": true});
    for verb in ["/reset", "/archive", "/delete"] {
        let _: SessionStatus = client.post(&path(verb), &discard, &key).await.unwrap();
    }
    for body in [json!({"reason": "done"}), json!({"reason": "done", "binding_id": BindingId::mint()})] {
        let _: Vec<Value> = client.post(&path("/unbind"), &body, &key).await.unwrap();
    }
    let _: SessionStatus = client.post(&path("/new"), &json!({}), &key).await.unwrap();
    for option in [
        json!({"mode": "ask"}),
        json!({"model": "big"}),
        json!({"cwd": "/w"}),
        json!({"permission": "deny-all"}),
        json!({"non_interactive_permissions": "fail"}),
        json!({"timeout_s": 60}),
        json!({"config": {"id": "effort", "value": "low"}}),
        json!({"defaults": true}),
    ] {
        let _: SessionStatus = client.post(&path("/options"), &option, &key).await.unwrap();
    }
    for invalid in [json!({}), json!({"mode": "ask", "model": "big"}), json!({"defaults": false})] {
        let refused = client.post::<_, SessionStatus>(&path("/options"), &invalid, &key).await.unwrap_err();
        assert_eq!(refused.code, Code::Usage, "{invalid}");
    }
    let answer = AnswerBody { by: Some("me".into()), ..AnswerBody::of_option("yes".into()) };
    let _: Done = client.post(&path("/permissions/l:5"), &answer, &key).await.unwrap();
    assert_eq!(
        *fake.calls.lock().unwrap(),
        [
            "spawn Some(\"/w\") false k",
            "prompt hi k",
            "cancel k",
            "closed done false k",
            "reset done true k",
            "archived done true k",
            "deleted done true k",
            "unbind false done k",
            "unbind true done k",
            "new k",
            "Mode(\"ask\") k",
            "Model(\"big\") k",
            "Cwd(\"/w\") k",
            "Permission(DenyAll) k",
            "NonInteractive(Fail) k",
            "TimeoutS(60) k",
            "Config { id: \"effort\", value: \"low\" } k",
            "Defaults k",
            "answer l:5 yes me k",
        ]
    );
    let view: SessionView = client.get(&path("")).await.unwrap();
    assert_eq!(view.agent_info.unwrap().get(), "{\"n\":1e3}");
    assert_eq!(view.runs.unwrap().len(), 1);
    let gone = client.get::<SessionView>("/v1/sessions/none").await.unwrap_err();
    assert_eq!(gone.code, Code::NoSession);
    server.end().await;
    let absent = client.get::<Value>("/v1/health").await.unwrap_err();
    assert_eq!(absent.code, Code::GatewayUnavailable);
}
