//! Connections and streams on a fake service, in virtual time.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::calls::Caller;
use super::connection::{Connection, Incoming};
use super::stream::{Batch, StreamReader};
use super::{AcpLimits, AcpServer};
use crate::api::tests::{Fake, LIMITS};
use crate::api::{Api, ApiLimits};
use crate::metrics::Metrics;
use crate::session::service::Service as _;
use acp_core::config::Config;
use acp_core::event::EventKind;
use acp_core::northbound::connection::StreamScope;
use acp_core::northbound::voting::QuestionKind;
use acp_core::permission::Voters;
use acp_core::principal::{Principal, Scope};
use acp_core::visibility::AgentRequester;
use acp_shared::ids::{AgentName, SessionKey};
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

fn server(fake: &Arc<Fake>, limits: AcpLimits) -> Arc<AcpServer> {
    let api_limits = ApiLimits { ..LIMITS };
    let api = Api::new(Arc::clone(fake) as _, api_limits, CancellationToken::new());
    AcpServer::new(&api, limits, Metrics::default())
}

fn ann() -> Principal {
    Principal::of_local_user("ann".to_owned())
}

fn connect(server: &Arc<AcpServer>, principal: Principal) -> Arc<Connection> {
    server.connect(principal, None).ok().unwrap()
}

fn open(server: &Arc<AcpServer>, connection: &Arc<Connection>, scope: StreamScope) -> StreamReader {
    let ticket = connection.state().open_stream(scope).unwrap();
    StreamReader::new(server, connection, ticket)
}

async fn send(connection: &Connection, message: Value) {
    let body = Bytes::from(message.to_string());
    assert!(connection.receive(Incoming { body, session_header: None, is_local: true, _room: None }).await);
}

/// Next messages of a stream; heartbeats are skipped.
async fn next(reader: &mut StreamReader) -> Option<Vec<Value>> {
    loop {
        match reader.next().await? {
            Batch::Heartbeat => {}
            Batch::Frames(frames) => {
                return Some(frames.iter().map(|frame| serde_json::from_str(&frame.json).unwrap()).collect());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn silent_stream_keeps_its_connection_and_one_without_streams_ends() {
    let server = server(&Fake::new(), AcpLimits::default());
    let connection = connect(&server, ann());
    let mut reader = open(&server, &connection, StreamScope::Connection);
    let reading = tokio::spawn(async move {
        let mut heartbeats = 0;
        while let Some(Batch::Heartbeat) = reader.next().await {
            heartbeats += 1;
            if heartbeats == 35 * 4 {
                break;
            }
        }
        heartbeats
    });
    assert_eq!(reading.await.unwrap(), 140, "a heartbeat each 15 seconds, for 35 minutes");
    assert!(!connection.ended().is_cancelled());
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert!(!connection.ended().is_cancelled(), "within the grace");
    tokio::time::timeout(Duration::from_secs(15), connection.ended().cancelled()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(server.find(connection.id(), &ann()).is_none());
}

#[tokio::test(start_paused = true)]
async fn connection_is_known_to_its_principal_only_and_connections_are_capped() {
    let server = server(&Fake::new(), AcpLimits { connections_max: 2, ..AcpLimits::default() });
    let (first, second) = (connect(&server, ann()), connect(&server, ann()));
    assert_ne!(first.id(), second.id());
    assert!(first.id().len() == 32 && first.id().bytes().all(|byte| byte.is_ascii_hexdigit()));
    let bob = Principal::of_local_user("bob".to_owned());
    assert!(server.find(first.id(), &ann()).is_some());
    assert!(server.find(first.id(), &bob).is_none());
    assert!(server.connect(ann(), None).is_err());
    first.end("test");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(server.connect(ann(), None).is_ok(), "an ended connection leaves its place");
}

#[tokio::test(start_paused = true)]
async fn one_principal_leaves_a_quarter_of_the_connections_to_others() {
    let server = server(&Fake::new(), AcpLimits { connections_max: 8, ..AcpLimits::default() });
    let held: Vec<_> = (0..8).filter_map(|_| server.connect(ann(), None).ok()).collect();
    assert_eq!(held.len(), 6);
    assert!(server.connect(Principal::of_local_user("bob".to_owned()), None).is_ok());
}

#[tokio::test(start_paused = true)]
async fn scope_of_the_principal_is_checked_before_anything_happens() {
    let fake = Fake::new();
    let server = server(&fake, AcpLimits::default());
    let reader = Principal {
        id: "token:r".to_owned(),
        scope: Scope::Read,
        ..Principal::of_local_user("r".to_owned())
    };
    let connection = connect(&server, reader);
    let mut stream = open(&server, &connection, StreamScope::All);
    let params = json!({"sessionId": fake.key, "cwd": "/", "mcpServers": [], "modeId": "m",
        "prompt": [{"type": "text", "text": "hi"}]});
    for (method, is_allowed) in [
        ("session/load", true),
        ("session/prompt", false),
        ("session/new", false),
        ("session/set_mode", false),
        ("session/delete", false),
        ("session/cancel", false),
        ("session/list", true),
    ] {
        send(&connection, json!({"jsonrpc": "2.0", "id": method, "method": method, "params": params})).await;
        let answer = loop {
            let frames = next(&mut stream).await.unwrap();
            if let Some(answer) = frames.into_iter().find(|frame| frame["id"] == method) {
                break answer;
            }
        };
        let detail = answer["error"]["data"]["detailCode"].as_str();
        assert_eq!(detail != Some("SCOPE_REQUIRED"), is_allowed, "{answer}");
        assert!(is_allowed || answer["error"]["code"] == -32010, "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_session_ends_its_stream_with_one_error_and_the_connection_lives() {
    let fake = Fake::new();
    let server = server(&fake, AcpLimits::default());
    let connection = connect(&server, ann());
    let mut main = open(&server, &connection, StreamScope::Connection);
    let gone = SessionKey::parse("gone").unwrap();
    let mut stream = open(&server, &connection, StreamScope::Session(gone.clone()));
    connection.state().load(&gone, 1_000, 1_000, "1");
    connection.wake();
    let frames = next(&mut stream).await.unwrap();
    assert_eq!((frames.len(), &frames[0]["method"]), (1, &json!("_acphost/stream_error")));
    assert!(next(&mut stream).await.is_none());
    let answer = next(&mut main).await.unwrap().remove(0);
    assert_eq!(
        (&answer["id"], &answer["error"]["code"]),
        (&json!(1), &json!(-32002)),
        "the load is answered"
    );
    send(&connection, json!({"jsonrpc": "2.0", "id": 1, "method": "_acphost/ping"})).await;
    assert_eq!(next(&mut main).await.unwrap()[0]["result"], json!({}));
}

#[tokio::test(start_paused = true)]
async fn client_that_reads_no_answers_loses_its_connection_and_memory_stays_bounded() {
    let server = server(&Fake::new(), AcpLimits::default());
    let connection = connect(&server, ann());
    for id in 0..400 {
        let ping = json!({"jsonrpc": "2.0", "id": id, "method": "_acphost/no-such"});
        let body = Bytes::from(ping.to_string());
        let incoming = Incoming { body, session_header: None, is_local: true, _room: None };
        if !connection.receive(incoming).await {
            break;
        }
    }
    tokio::time::timeout(Duration::from_secs(5), connection.ended().cancelled()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn client_with_the_most_unread_bytes_gives_its_connection_up() {
    let server = server(&Fake::new(), AcpLimits { unread_bytes_max: 1_000_000, ..AcpLimits::default() });
    let [one, other] = [(); 2].map(|()| connect(&server, ann()));
    one.push(None, "x".repeat(600_000));
    server.bound_unread();
    other.push(None, "x".repeat(300_000));
    server.bound_unread();
    assert!(!one.ended().is_cancelled() && !other.ended().is_cancelled());
    other.push(None, "x".repeat(200_000));
    server.bound_unread();
    assert!(one.ended().is_cancelled() && !other.ended().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn rows_flow_to_the_stream_of_the_session_and_its_close_does_not_end_it() {
    let fake = Fake::new();
    let server = server(&fake, AcpLimits::default());
    let connection = connect(&server, ann());
    let mut stream = open(&server, &connection, StreamScope::Session(fake.key.clone()));
    connection.state().attach(&fake.key);
    connection.wake();
    fake.append_message("one");
    let frames = next(&mut stream).await.unwrap();
    assert_eq!(frames[0]["params"]["update"]["content"]["text"], "one");
    fake.append(EventKind::Closed, r#"{"reason":"by hand"}"#);
    let frames = next(&mut stream).await.unwrap();
    assert_eq!(frames[0]["params"]["_meta"]["acphost"]["closed"]["reason"], "by hand");
    connection.push(Some(&fake.key), "{}".to_owned());
    assert_eq!(next(&mut stream).await.unwrap(), [json!({})], "the session may be loaded again");
    assert!(!connection.ended().is_cancelled());
}

/// The client would read two streams concurrently, and the second one could overtake the first.
#[tokio::test(start_paused = true)]
async fn replay_waits_for_the_stream_that_its_first_frame_makes_the_client_open() {
    for opens in [true, false] {
        let fake = Fake::new();
        let server = server(&fake, AcpLimits::default());
        let connection = connect(&server, ann());
        let mut main = open(&server, &connection, StreamScope::Connection);
        for text in ["one", "two", "three"] {
            fake.append_message(text);
        }
        connection.state().load(&fake.key, 0, 3, "7");
        connection.wake();
        let first = next(&mut main).await.unwrap();
        assert_eq!((first.len(), &first[0]["params"]["update"]["content"]["text"]), (1, &json!("one")));
        let begun = Instant::now();
        let rest = if opens {
            next(&mut open(&server, &connection, StreamScope::Session(fake.key.clone()))).await
        } else {
            next(&mut main).await
        };
        let rest = rest.unwrap();
        assert_eq!(rest[1]["params"]["update"]["content"]["text"], "three");
        assert_eq!((rest.len(), &rest[2]["id"]), (3, &json!(7)));
        assert_eq!(begun.elapsed().as_secs(), if opens { 0 } else { 2 });
    }
}

/// A row that was committed during the load is not counted as one that the client has.
#[tokio::test(start_paused = true)]
async fn answer_to_a_load_names_the_last_row_before_it() {
    let fake = Fake::new();
    let server = server(&fake, AcpLimits::default());
    let connection = connect(&server, ann());
    let mut stream = open(&server, &connection, StreamScope::All);
    fake.append_message("one");
    connection.state().load(&fake.key, 0, 1, "7");
    fake.append_message("two");
    connection.wake();
    let mut frames = Vec::new();
    while frames.len() < 3 {
        frames.extend(next(&mut stream).await.unwrap());
    }
    let [one, answer, two] = [0, 1, 2].map(|at| &frames[at]);
    assert_eq!(one["params"]["update"]["content"]["text"], "one");
    let ours = &answer["result"]["_meta"]["acphost"];
    assert_eq!((&answer["id"], &ours["lastSeq"]), (&json!(7), &json!(1)));
    assert_eq!(two["params"]["update"]["content"]["text"], "two");
}

#[tokio::test(start_paused = true)]
async fn stop_of_the_gateway_ends_all_streams() {
    let server = server(&Fake::new(), AcpLimits::default());
    let connection = connect(&server, ann());
    let mut stream = open(&server, &connection, StreamScope::All);
    let reading = tokio::spawn(async move { next(&mut stream).await });
    tokio::task::yield_now().await;
    server.ending.cancel();
    assert_eq!(reading.await.unwrap(), None);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(server.connections.lock().is_empty());
}

/// Sends a request and returns its answer.
async fn ask(connection: &Connection, stream: &mut StreamReader, method: &str, params: &Value) -> Value {
    send(connection, json!({"jsonrpc": "2.0", "id": method, "method": method, "params": params})).await;
    loop {
        let frames = next(stream).await.unwrap();
        if let Some(answer) = frames.into_iter().find(|frame| frame["id"] == method) {
            return answer;
        }
    }
}

fn token(scope: Scope, agents: &[&str]) -> Principal {
    let agents = agents.iter().map(|&agent| agent.to_owned()).collect();
    Principal { id: "token:t".to_owned(), scope, agents, ..Principal::of_local_user("t".to_owned()) }
}

#[tokio::test(start_paused = true)]
async fn session_of_another_agent_does_not_exist_for_an_acp_client() {
    check_hidden(token(Scope::Admin, &["qwen*"])).await;
    let fake = Fake::new();
    let qwen = AgentName::parse("qwen").unwrap();
    let agent = AgentRequester::of_agent(qwen, fake.instance_id(), &Config::default());
    check_hidden(Principal { acts_for: Some(Arc::new(agent)), ..token(Scope::Admin, &[]) }).await;
}

/// Checks that a client of this principal sees no session.
async fn check_hidden(principal: Principal) {
    let fake = Fake::new();
    let server = server(&fake, AcpLimits::default());
    let connection = connect(&server, principal);
    let mut stream = open(&server, &connection, StreamScope::All);
    for method in [
        "session/load",
        "session/resume",
        "session/prompt",
        "session/cancel",
        "session/close",
        "session/delete",
        "session/set_mode",
        "session/set_config_option",
        "_acphost/session/show",
        "_acphost/session/history",
        "_acphost/session/steer",
        "_acphost/session/update",
        "_acphost/session/diff",
        "_acphost/fs/stat",
        "_acphost/fs/read",
        "_acphost/permissions/list",
        "_acphost/permissions/answer",
    ] {
        let mut answers = Vec::new();
        for session in [fake.key.as_str(), "agent:qwen:acp:none"] {
            let params = json!({"sessionId": session, "cwd": "/", "modeId": "m", "configId": "c", "value": "v",
                "permissionId": "l:1", "optionId": "o", "prompt": [{"type": "text", "text": "hi"}],
                "path": "a", "label": "l"});
            answers.push(ask(&connection, &mut stream, method, &params).await);
        }
        assert_eq!(answers[0], answers[1], "{method}");
        assert_eq!(answers[0]["error"]["code"].is_null(), method == "session/delete", "{}", answers[0]);
    }
    assert_eq!(fake.calls(), Vec::<String>::new(), "nothing reached the service");
    let none = json!({});
    let listed = ask(&connection, &mut stream, "session/list", &none).await;
    assert_eq!(listed["result"], json!({"sessions": []}));
    let status = ask(&connection, &mut stream, "_acphost/host/status", &none).await;
    assert_eq!(status["error"]["data"]["detailCode"], "AGENTS_LIMITED");
}

#[tokio::test(start_paused = true)]
async fn new_session_of_an_acp_client_needs_what_one_over_rest_needs() {
    let fake = Fake::new();
    let server = server(&fake, AcpLimits::default());
    let stdio =
        json!({"cwd": "/", "mcpServers": [{"name": "a", "command": "/bin/a", "args": [], "env": []}]});
    let wide = json!({"cwd": "/", "mcpServers": [], "_meta": {"acphost": {"permission": "approve-all"}}});
    let plain = json!({"cwd": "/", "mcpServers": []});
    for (scope, agents, params, detail) in [
        (Scope::Approve, vec![], &stdio, "SCOPE_REQUIRED"),
        (Scope::Prompt, vec![], &wide, "SCOPE_REQUIRED"),
        (Scope::Admin, vec!["other"], &plain, "ACP_AGENT_NOT_ALLOWED"),
    ] {
        let agent = Some(acp_shared::ids::AgentName::parse("demo").unwrap());
        let connection = server.connect(token(scope, &agents), agent).ok().unwrap();
        let mut stream = open(&server, &connection, StreamScope::All);
        let answer = ask(&connection, &mut stream, "session/new", params).await;
        let data = &answer["error"]["data"];
        assert!(data["detailCode"] == detail || data["code"] == detail, "{answer}");
    }
    assert_eq!(fake.calls(), Vec::<String>::new(), "nothing reached the service");
}

#[tokio::test(start_paused = true)]
async fn connection_is_unknown_to_its_principal_with_other_rights() {
    let server = server(&Fake::new(), AcpLimits::default());
    let made = token(Scope::Approve, &[]);
    let connection = connect(&server, made.clone());
    assert!(server.find(connection.id(), &made).is_some());
    for changed in [token(Scope::Read, &[]), token(Scope::Approve, &["demo"])] {
        assert!(server.find(connection.id(), &changed).is_none(), "{changed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn clients_streams_and_ends_are_counted() {
    let fake = Fake::new();
    let server = server(&fake, AcpLimits { connections_max: 2, ..AcpLimits::default() });
    let (first, second) = (connect(&server, ann()), connect(&server, ann()));
    assert!(server.connect(ann(), None).is_err());
    let mut stream = open(&server, &first, StreamScope::All);
    let load = json!({"sessionId": fake.key, "cwd": "/", "_meta": {"acphost": {"after": 0}}});
    let _ = ask(&first, &mut stream, "session/load", &load).await;
    let shown = |lines: &[&str]| {
        let text = server.metrics.render();
        for line in lines {
            assert!(text.lines().any(|have| have == *line), "{line}: {text}");
        }
    };
    shown(&[
        "acp_clients_total 2",
        "acp_clients_open 2",
        "acp_client_streams_open 1",
        "acp_client_resumes_total{of=\"session\"} 1",
        "acp_client_ends_total{reason=\"too_many\"} 1",
    ]);
    drop(stream);
    first.end("deleted");
    drop((first, second));
    // The second one ends without streams.
    tokio::time::sleep(Duration::from_secs(120)).await;
    shown(&[
        "acp_clients_open 0",
        "acp_client_streams_open 0",
        "acp_client_ends_total{reason=\"deleted\"} 1",
        "acp_client_ends_total{reason=\"no_streams\"} 1",
    ]);
}

#[tokio::test(start_paused = true)]
async fn ended_connection_is_no_voter_and_has_no_session() {
    let fake = Fake::new();
    let server = server(&fake, AcpLimits::default());
    let (first, second) = (connect(&server, ann()), connect(&server, ann()));
    let mut stream = open(&server, &first, StreamScope::All);
    let load = json!({"sessionId": fake.key, "cwd": "/"});
    let _ = ask(&first, &mut stream, "session/load", &load).await;
    let seen = |voters: &Voters| {
        let kind = QuestionKind::Permission;
        (server.is_open(&fake.key), server.has_other_voter(&fake.key, "l:1", kind, voters, &second))
    };
    assert_eq!(seen(&Voters::Anyone), (true, true));
    assert_eq!(seen(&Voters::Local), (true, true));
    assert_eq!(seen(&Voters::Owner("token:t".to_owned())), (true, false));
    first.end("deleted");
    drop(stream);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(seen(&Voters::Anyone), (false, false));
}

#[tokio::test(start_paused = true)]
async fn locality_of_an_answer_is_that_of_its_request() {
    let fake = Fake::new();
    let server = server(&fake, AcpLimits::default());
    // The connection was made on this machine; the token is used from elsewhere, too.
    let connection = connect(&server, Principal { local: true, ..token(Scope::Approve, &[]) });
    for is_local in [true, false] {
        let (server, connection) = (Arc::clone(&server), Arc::clone(&connection));
        assert_eq!(Caller { server, connection, is_local }.voter().is_local, is_local);
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_prompt_is_the_same_after_the_last_voter_has_gone() {
    let fake = Fake::new();
    let server = server(&fake, AcpLimits::default());
    let voter = connect(&server, ann());
    let _votes = open(&server, &voter, StreamScope::All);
    let connection = connect(&server, token(Scope::Prompt, &[]));
    let mut stream = open(&server, &connection, StreamScope::All);
    for of in [&voter, &connection] {
        of.state().attach(&fake.key);
    }
    let prompt = json!({"sessionId": fake.key, "prompt": [{"type": "text", "text": "hi"}],
        "_meta": {"acphost": {"idempotencyKey": "k"}}});
    let steer = "_acphost/session/steer";
    let first = ask(&connection, &mut stream, steer, &prompt).await;
    assert!(first["result"]["runId"].is_string(), "{first}");
    voter.end("test");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(ask(&connection, &mut stream, steer, &prompt).await, first);
}
