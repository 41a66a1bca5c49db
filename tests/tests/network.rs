//! A real gateway over TCP: a token from the command line, a turn under its name, its revocation in the middle of a stream.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "network/hostile.rs"]
mod hostile;

use acp_tests::house::{AGENT, House, Plan};
use acp_tests::northbound::{Client, agent_text};
use acp_tests::wait::{LONG, SOON, until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

const LISTEN: &str = "[northbound]\nlisten = [\"unix\", \"127.0.0.1:0\"]\n";

fn send(at: SocketAddr, method: &str, path: &str, token: &str, headers: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {token}\r\n{headers}\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

/// Status and body of a response.
fn ask(at: SocketAddr, method: &str, path: &str, token: &str, body: &str) -> (String, Value) {
    let mut answer = String::new();
    send(at, method, path, token, "", body).read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].to_owned(), serde_json::from_str(body).unwrap())
}

/// Creates a token.
fn token(house: &House, name: &str, more: &[&str]) -> String {
    let created = house.verb(&[&["token", "add", name], more].concat());
    created["token"].as_str().unwrap().to_owned()
}

fn path(key: &str, rest: &str) -> String {
    format!("/v1/sessions/{key}/{rest}")
}

#[test]
fn token_over_tcp_acts_until_it_is_revoked() {
    let house = Plan::flags(&[]).gateway(LISTEN).build();
    let (at, key) = (house.tcp_address(), house.spawn());
    let created = house.verb(&["token", "add", "phone", "--scope", "prompt", "--expires", "30d"]);
    let token = created["token"].as_str().unwrap().to_owned();
    assert!(token.starts_with("acp_"), "{created}");
    let again = house.cli(&["token", "add", "phone", "--scope", "read"]);
    assert_eq!(again.error_code(), "USAGE");
    let limited = house.verb(&["token", "add", "other", "--scope", "admin", "--agents", "qwen*"]);
    let limited = limited["token"].as_str().unwrap();
    let listed = house.verb(&["token", "list"]);
    assert!(!listed.to_string().contains(&token[4..]), "{listed}");
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");

    let (status, accepted) = ask(at, "POST", &path(&key, "prompt"), &token, r#"{"text":"say hello"}"#);
    assert_eq!(status, "200", "{accepted}");
    let shown = house.verb(&["sessions", "show", &key]);
    assert_eq!(shown["runs"][0]["author"], "phone", "{shown}");
    assert_eq!(ask(at, "GET", &format!("/v1/sessions/{key}"), limited, "").0, "404");
    assert_eq!(ask(at, "POST", &path(&key, "options"), &token, r#"{"permission":"approve-all"}"#).0, "403");

    // A stream of the token ends with it, and the turn goes on.
    let accept = "accept: text/event-stream\r\n";
    let mut stream = send(at, "GET", &path(&key, "events"), &token, accept, "");
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    let (status, _) = ask(at, "POST", &path(&key, "prompt"), &token, r#"{"text":"wait_cancel"}"#);
    assert_eq!(status, "200");
    until(SOON, "a running turn", || house.verb(&["sessions", "show", &key])["state"] == "running");
    let begun = Instant::now();
    let revoked = house.verb(&["token", "revoke", "phone"]);
    assert_eq!(revoked["state"], "revoked", "{revoked}");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(begun.elapsed() < Duration::from_secs(10), "the stream ended with the token");
    assert_eq!(ask(at, "GET", "/v1/health", &token, "").0, "401");
    assert_eq!(house.verb(&["sessions", "show", &key])["state"], "running");
    let _ = house.cli(&["sessions", "cancel", &key]).ok();
    until(LONG, "the end of the turn", || house.verb(&["sessions", "show", &key])["state"] == "idle");
    house.end();
}

/// Opens a WebSocket with this header; the error is the status of the refusal.
fn upgrade(at: SocketAddr, header: &'static str, value: &str) -> Result<WebSocket<TcpStream>, u16> {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut request = format!("ws://{at}/acp/{AGENT}").into_client_request().unwrap();
    request.headers_mut().insert(header, value.parse().unwrap());
    match tungstenite::client(request, stream) {
        Ok((mut socket, response)) => {
            let chosen = response.headers().get("sec-websocket-protocol").map(|it| it.as_bytes());
            assert_eq!(chosen, (header == "sec-websocket-protocol").then_some(&b"acp"[..]));
            let _ = call(&mut socket, "initialize", &json!({"protocolVersion": 1}));
            Ok(socket)
        }
        Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(response))) => {
            Err(response.status().as_u16())
        }
        Err(error) => panic!("{error}"),
    }
}

/// Sends a request and returns its whole answer.
fn call(socket: &mut WebSocket<TcpStream>, method: &str, params: &Value) -> Value {
    let request = json!({"jsonrpc": "2.0", "id": method, "method": method, "params": params});
    socket.send(Message::Text(request.to_string())).unwrap();
    loop {
        if let Message::Text(text) = socket.read().unwrap() {
            let message: Value = serde_json::from_str(&text).unwrap();
            if message["id"] == method {
                return message;
            }
        }
    }
}

#[test]
fn acp_client_over_tcp_acts_until_its_token_is_revoked() {
    let house = Plan::flags(&[]).gateway(LISTEN).build();
    let at = house.tcp_address();
    let limited = token(&house, "other", &["--scope", "admin", "--agents", "qwen*"]);
    let token = token(&house, "phone", &["--scope", "prompt"]);
    assert_eq!(upgrade(at, "x-nothing", "").err(), Some(401));
    assert_eq!(upgrade(at, "authorization", "Bearer acp_x").err(), Some(401));
    let mut client = upgrade(at, "authorization", &format!("Bearer {token}")).unwrap();
    let cwd = house.world.dir("work/project");
    let made = call(&mut client, "session/new", &json!({"cwd": cwd, "mcpServers": []}));
    let key = made["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    let prompt = |text: &str| json!({"sessionId": key, "prompt": [{"type": "text", "text": text}]});
    let ended = call(&mut client, "session/prompt", &prompt("say hello"));
    assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
    assert_eq!(house.verb(&["sessions", "show", &key])["runs"][0]["author"], "phone");
    let refused = call(&mut client, "session/set_mode", &json!({"sessionId": key, "modeId": "auto"}));
    assert_eq!(refused["error"]["data"]["detailCode"], "SCOPE_REQUIRED", "{refused}");

    // A token of other agents has no such session and starts none. It comes as a subprotocol, as from a browser.
    let mut other = upgrade(at, "sec-websocket-protocol", &format!("acp, acphost.bearer.{limited}")).unwrap();
    let load = |key: &str| json!({"sessionId": key, "cwd": cwd, "mcpServers": []});
    let hidden = call(&mut other, "session/load", &load(&key));
    assert_eq!(hidden, call(&mut other, "session/load", &load("agent:qwen:acp:none")));
    assert_eq!(hidden["error"]["code"], -32002, "{hidden}");
    assert_eq!(call(&mut other, "session/list", &json!({}))["result"], json!({"sessions": []}));
    let none = call(&mut other, "session/new", &json!({"cwd": cwd, "mcpServers": []}));
    assert_eq!(none["error"]["data"]["code"], "ACP_AGENT_NOT_ALLOWED", "{none}");

    // The socket ends with the token, and the turn goes on.
    let running =
        json!({"jsonrpc": "2.0", "id": 9, "method": "session/prompt", "params": prompt("wait_cancel")});
    client.send(Message::Text(running.to_string())).unwrap();
    until(SOON, "a running turn", || house.verb(&["sessions", "show", &key])["state"] == "running");
    let begun = Instant::now();
    let _ = house.verb(&["token", "revoke", "phone"]);
    while client.read().is_ok() {}
    assert!(begun.elapsed() < Duration::from_secs(10), "the socket ended with the token");
    assert_eq!(house.verb(&["sessions", "show", &key])["state"], "running");
    let _ = house.cli(&["sessions", "cancel", &key]).ok();
    until(LONG, "the end of the turn", || house.verb(&["sessions", "show", &key])["state"] == "idle");
    house.end();
}

#[test]
fn owner_alone_answers_the_questions_of_its_turn() {
    let house = Plan::flags(&[]).gateway(LISTEN).build();
    let at = house.tcp_address();
    let add = |name: &str, scope: &str| {
        let created = house.verb(&["token", "add", name, "--scope", scope]);
        created["token"].as_str().unwrap().to_owned()
    };
    let (approver, admin) = (add("approver", "approve"), add("boss", "admin"));
    let mut owner = Client::http(&house.gateway().socket(), &format!("/acp/{AGENT}"));
    let cwd = house.world.dir("work/project");
    let new = json!({"cwd": cwd, "mcpServers": [], "_meta": {"acphost": {"voting": "owner"}}});
    let key = owner.call("session/new", &new)["sessionId"].as_str().unwrap().to_owned();
    let mut other = upgrade(at, "authorization", &format!("Bearer {approver}")).unwrap();
    let _ = call(&mut other, "session/load", &json!({"sessionId": key, "cwd": cwd, "mcpServers": []}));
    let prompt = owner.prompt(&key, "permission");
    let (question, _) = owner.question();
    let id = question["id"].as_str().unwrap().strip_prefix("perm:").unwrap().to_owned();

    // Another principal is refused on every surface, and may not widen the mode that would answer for it.
    let answer = json!({"sessionId": key, "permissionId": id, "optionId": "allow_once"});
    let refused = call(&mut other, "_acphost/permissions/answer", &answer);
    assert_eq!(refused["error"]["data"]["detailCode"], "PERMISSION_NOT_A_VOTER", "{refused}");
    let option = r#"{"option_id":"allow_once"}"#;
    for token in [&approver, &admin] {
        let (status, body) = ask(at, "POST", &path(&key, &format!("permissions/{id}")), token, option);
        assert_eq!((status.as_str(), &body["detail_code"]), ("403", &json!("PERMISSION_NOT_A_VOTER")));
    }
    for change in [r#"{"permission":"approve-all"}"#, r#"{"voting":"first"}"#] {
        assert_eq!(ask(at, "POST", &path(&key, "options"), &approver, change).0, "403", "{change}");
    }
    assert_eq!(house.verb(&["permissions", "list", &key]).as_array().map(Vec::len), Some(1));
    owner.choose(&question, "allow_once");
    let (_, updates) = owner.answer(prompt);
    assert_eq!(agent_text(&updates), "permission: selected allow_once");

    // The rule holds for the questions that come after its change.
    assert_eq!(ask(at, "POST", &path(&key, "options"), &admin, r#"{"voting":"first"}"#).0, "200");
    let prompt = owner.prompt(&key, "permission");
    let (question, _) = owner.question();
    let id = question["id"].as_str().unwrap().strip_prefix("perm:").unwrap().to_owned();
    assert_eq!(ask(at, "POST", &path(&key, &format!("permissions/{id}")), &approver, option).0, "200");
    let _ = owner.answer(prompt);
    house.end();
}
