//! Clients over TCP that misbehave at `/acp` and `/v1`: others are served throughout, and memory stays bounded.

use crate::{LISTEN, call, token, upgrade};
use acp_tests::house::{House, Plan};
use acp_tests::scrape::Scrape;
use acp_tests::wait::{LONG, SOON, eventually, until};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

const METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
const PATHS: [&str; 5] = ["/acp", "/acp/scripted", "/v1/sessions", "/v1/stream", "/no/such"];
const UPGRADE: &str = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: \
                       dGhlIHNhbXBsZSBub25jZQ==\r\n";
const JSON: &str = "content-type: application/json\r\n";
/// Maximum resident memory of the gateway meanwhile, in KiB.
const PEAK_KIB: u64 = 320 * 1024;
const MIB: usize = 1024 * 1024;

fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn head(method: &str, path: &str, headers: &str, length: usize) -> String {
    format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n")
}

/// Status and the rest of a response; 0 if the gateway closed the connection instead.
fn exchange(at: SocketAddr, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, String) {
    let mut stream = connect(at);
    stream.write_all(head(method, path, headers, body.len()).as_bytes()).unwrap();
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    (answer.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0), answer)
}

/// Headers of a client with a token.
fn of(token: &str) -> String {
    format!("host: localhost\r\nauthorization: Bearer {token}\r\n{JSON}")
}

fn initialize(at: SocketAddr, token: &str) -> Result<String, u16> {
    let body = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#;
    let (status, answer) = exchange(at, "POST", "/acp/scripted", &of(token), body);
    let name = "acp-connection-id: ";
    let id = answer.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
    id.ok_or(status)
}

/// Opens the stream of a connection; returns its lines behind the head.
fn stream(at: SocketAddr, token: &str, connection: &str) -> BufReader<TcpStream> {
    let mut stream = connect(at);
    let headers = format!("{}accept: text/event-stream\r\nacp-connection-id: {connection}\r\n", of(token));
    stream.write_all(head("GET", "/acp/scripted", &headers, 0).as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 200"), "{line}");
    reader
}

/// Next message of a stream; `None` at its end.
fn next(stream: &mut BufReader<TcpStream>) -> Option<Value> {
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line).unwrap_or(0) == 0 {
            return None;
        }
        if let Some(data) = line.strip_prefix("data: ") {
            return Some(serde_json::from_str(data).unwrap());
        }
    }
}

fn post(at: SocketAddr, token: &str, connection: &str, message: &Value) -> u16 {
    let headers = format!("{}acp-connection-id: {connection}\r\n", of(token));
    exchange(at, "POST", "/acp/scripted", &headers, message.to_string().as_bytes()).0
}

#[test]
fn foreign_hosts_pages_and_tokens_are_refused_on_every_verb_of_every_path() {
    let house = Plan::flags(&[]).gateway(LISTEN).build();
    let (at, admin) = (house.tcp_address(), token(&house, "admin", &["--scope", "admin"]));
    let bearer = format!("authorization: Bearer {admin}\r\n");
    let foreign = [
        format!("host: evil.example\r\n{bearer}"),
        format!("host: localhost.evil.example\r\n{bearer}"),
        format!("host: localhost\r\nhost: localhost\r\n{bearer}"),
        format!("host: localhost\r\norigin: http://evil.example\r\n{bearer}"),
        format!("host: localhost\r\norigin: null\r\n{bearer}"),
    ];
    let unknown = [String::new(), "authorization: Bearer acp_0\r\n".to_owned(), format!("{bearer}{bearer}")];
    let body = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#;
    for (method, path) in METHODS.iter().flat_map(|method| PATHS.map(|path| (*method, path))) {
        for more in ["", UPGRADE] {
            for headers in &foreign {
                let (status, answer) = exchange(at, method, path, &format!("{headers}{JSON}{more}"), body);
                assert_eq!(status, 403, "{method} {path} {headers}: {answer}");
            }
            for headers in &unknown {
                let headers = format!("host: localhost\r\n{headers}{JSON}{more}");
                let (status, answer) = exchange(at, method, path, &headers, body);
                assert_eq!(status, 401, "{method} {path} {headers}: {answer}");
            }
        }
    }
    let connections = Scrape::fetch(&house.gateway().socket()).series["acp_clients_open"];
    assert!(connections.abs() < 0.5, "no client was connected: {connections}");
    house.end();
}

#[test]
fn ids_of_another_principal_answer_like_missing_ones() {
    let house = Plan::flags(&[]).gateway(LISTEN).build();
    let at = house.tcp_address();
    let owner = token(&house, "owner", &["--scope", "approve"]);
    let limited = token(&house, "limited", &["--scope", "admin", "--agents", "qwen*"]);
    let reader = token(&house, "reader", &["--scope", "read"]);
    let connection = initialize(at, &owner).unwrap();
    let mut events = stream(at, &owner, &connection);
    let cwd = house.world.dir("work/project");
    let new =
        json!({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": cwd, "mcpServers": []}});
    assert_eq!(post(at, &owner, &connection, &new), 202);
    let key = loop {
        let message = next(&mut events).unwrap();
        if let Some(key) = message["result"]["sessionId"].as_str() {
            break key.to_owned();
        }
    };
    let prompt = json!({"sessionId": key, "prompt": [{"type": "text", "text": "permission Delete"}]});
    let prompt = json!({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": prompt});
    assert_eq!(post(at, &owner, &connection, &prompt), 202);
    let question = loop {
        let message = next(&mut events).unwrap();
        if message["method"] == "session/request_permission" {
            break message["id"].as_str().unwrap().to_owned();
        }
    };

    // The connection.
    let accept = "accept: text/event-stream\r\n";
    for other in [&limited, &reader] {
        for (method, more) in [("POST", ""), ("GET", accept), ("DELETE", "")] {
            let ask = |id: &str| {
                let headers = format!("{}{more}acp-connection-id: {id}\r\n", of(other));
                let (status, answer) =
                    exchange(at, method, "/acp/scripted", &headers, new.to_string().as_bytes());
                (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()))
            };
            let (foreign, missing) = (ask(&connection), ask("0123456789abcdef0123456789abcdef"));
            assert_eq!((foreign.0, &foreign), (404, &missing), "{method}");
        }
    }
    // The session, and its question.
    let answer = br#"{"option_id":"allow_once"}"#;
    let permission = question.strip_prefix("perm:").unwrap();
    let rest = |key: &str| {
        let path = format!("/v1/sessions/{key}/permissions/{permission}");
        let (status, answer) = exchange(at, "POST", &path, &of(&limited), answer);
        (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.replace(key, "KEY")))
    };
    let missing = key.rsplit_once(':').map(|(start, _)| format!("{start}:none")).unwrap();
    assert_eq!((rest(&key).0, rest(&key)), (404, rest(&missing)));
    let mut socket = upgrade(at, "authorization", &format!("Bearer {limited}")).unwrap();
    for method in [
        "session/load",
        "session/resume",
        "session/prompt",
        "session/cancel",
        "session/close",
        "session/set_mode",
        "_acphost/session/show",
        "_acphost/session/history",
        "_acphost/permissions/list",
        "_acphost/permissions/answer",
    ] {
        let mut ask = |key: &str| {
            let params = json!({"sessionId": key, "cwd": cwd, "mcpServers": [], "modeId": "m",
                "prompt": [{"type": "text", "text": "say hi"}], "permissionId": permission,
                "optionId": "allow_once"});
            call(&mut socket, method, &params).to_string().replace(key, "KEY")
        };
        let (foreign, absent) = (ask(&key), ask(&missing));
        assert!(foreign.contains("\"error\""), "{method}: {foreign}");
        assert_eq!(foreign, absent, "{method}");
    }
    let vote = json!({"jsonrpc": "2.0", "id": question,
        "result": {"outcome": {"outcome": "selected", "optionId": "allow_once"}}});
    for other in [&limited, &reader] {
        let theirs = initialize(at, other).unwrap();
        assert_eq!(post(at, other, &theirs, &vote), 202, "dropped");
    }
    assert_eq!(house.verb(&["permissions", "list", &key])[0]["permission_id"], permission, "still asked");
    assert_eq!(post(at, &owner, &connection, &vote), 202);
    let ended = loop {
        let message = next(&mut events).unwrap();
        if message["id"] == 2 {
            break message;
        }
    };
    assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
    house.end();
}

#[test]
fn revoked_token_ends_its_acp_stream_and_the_turn_goes_on() {
    let house = Plan::flags(&[]).permission("approve-all").gateway(LISTEN).build();
    let at = house.tcp_address();
    let (lost, kept) =
        (token(&house, "lost", &["--scope", "prompt"]), token(&house, "kept", &["--scope", "prompt"]));
    let key = house.spawn();
    let open = |token: &str| {
        let connection = initialize(at, token).unwrap();
        let mut events = stream(at, token, &connection);
        let params = json!({"sessionId": key, "cwd": "/", "mcpServers": []});
        let load = json!({"jsonrpc": "2.0", "id": 1, "method": "session/load", "params": params});
        assert_eq!(post(at, token, &connection, &load), 202);
        while next(&mut events).unwrap()["id"] != 1 {}
        (connection, events)
    };
    let (connection, mut events) = open(&lost);
    let (_other, mut others) = open(&kept);
    let params = json!({"sessionId": key, "prompt": [{"type": "text", "text": "chunks 100 pace_ms=30"}]});
    let prompt = json!({"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": params});
    assert_eq!(post(at, &lost, &connection, &prompt), 202);
    assert!(next(&mut events).is_some(), "the first update");
    let _ = house.verb(&["token", "revoke", "lost"]);
    let rest = std::iter::from_fn(|| next(&mut events)).count();
    assert!(rest < 100, "the stream ended in the middle: {rest} more");
    assert_eq!(post(at, &lost, &connection, &prompt), 401);
    let idle = |message: &Value| message["params"]["_meta"]["acphost"]["turn"]["state"] == "idle";
    let seen: Vec<Value> = std::iter::from_fn(|| next(&mut others)).take_while(|it| !idle(it)).collect();
    let chunks = seen.iter().filter(|it| it["params"]["update"]["sessionUpdate"] == "agent_message_chunk");
    assert_eq!(chunks.count(), 100, "the other client has all of it");
    house.end();
}

/// Clients that are served again and again: one over a WebSocket that stays open, and requests on new connections.
struct Witness {
    served: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Witness {
    fn start(at: SocketAddr, token: &str, cwd: &std::path::Path) -> Self {
        let (served, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut socket = upgrade(at, "authorization", &format!("Bearer {token}")).unwrap();
        let made = call(&mut socket, "session/new", &json!({"cwd": cwd, "mcpServers": []}));
        let prompt =
            json!({"sessionId": made["result"]["sessionId"], "prompt": [{"type": "text", "text": "say hi"}]});
        let (count, end, headers) = (Arc::clone(&served), Arc::clone(&is_over), of(token));
        let task = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let ended = call(&mut socket, "session/prompt", &prompt);
                assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
                // A new connection is closed for an even newer one if its request has not arrived.
                until(SOON, "a request is answered", || {
                    exchange(at, "GET", "/v1/health", &headers, b"").0 == 200
                });
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { served, is_over, task }
    }

    /// Waits until turns and requests that began after this call are served.
    fn is_served(&self) {
        let before = self.served.load(Ordering::Relaxed);
        until(LONG, "others are served", || {
            assert!(!self.task.is_finished(), "the witness failed");
            self.served.load(Ordering::Relaxed) > before + 1
        });
    }
}

/// Value of a line of the gateway's `/proc/PID/status`.
fn peak_kib(house: &House) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", house.gateway().pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn heavy_hostile_clients_keep_nobody_from_being_served() {
    let grace = format!("{LISTEN}detach_grace_ms = 600000\n");
    let house = Plan::flags(&[]).permission("approve-all").gateway(&grace).build();
    let at = house.tcp_address();
    let (kept, greedy) =
        (token(&house, "kept", &["--scope", "prompt"]), token(&house, "greedy", &["--scope", "prompt"]));
    let witness = Witness::start(at, &kept, &house.world.dir("work/project"));
    witness.is_served();
    std::fs::write(format!("/proc/{}/clear_refs", house.gateway().pid()), "5").unwrap();
    hold_connections(at, &kept, &witness);
    take_places(at, &greedy, &witness);
    send_deep_json(at, &greedy, &witness);
    send_large_bodies(at, &greedy, &witness);
    let peak = peak_kib(&house);
    println!("{peak} KiB at most");
    assert!(peak <= PEAK_KIB, "{peak} KiB at most, {PEAK_KIB} KiB allowed");
    witness.is_over.store(true, Ordering::Relaxed);
    witness.task.join().unwrap();
    house.end();
}

/// 2,000 connections that send nothing, or a head byte by byte.
fn hold_connections(at: SocketAddr, token: &str, witness: &Witness) {
    let head = head("POST", "/acp/scripted", &of(token), 100);
    let mut held: Vec<TcpStream> = Vec::new();
    for n in 0..2_000 {
        let mut stream = connect(at);
        if n % 2 == 0 {
            let _ = stream.write_all(&head.as_bytes()[..20]);
        }
        held.push(stream);
    }
    for byte in head.as_bytes()[20..].iter().take(10) {
        for stream in &mut held {
            let _ = stream.write_all(&[*byte]);
        }
        witness.is_served();
    }
}

/// Connections of one token, as many as it gets, and 2,000 requests for more.
fn take_places(at: SocketAddr, token: &str, witness: &Witness) {
    let answers: Vec<Result<String, u16>> = (0..2_000).map(|_| initialize(at, token)).collect();
    let taken = answers.iter().flatten().count();
    let refused = answers.iter().filter(|answer| **answer == Err(503)).count();
    assert_eq!((taken, refused), (768, 2_000 - 768));
    witness.is_served();
    for connection in answers.into_iter().flatten() {
        let headers = format!("{}acp-connection-id: {connection}\r\n", of(token));
        assert_eq!(exchange(at, "DELETE", "/acp/scripted", &headers, b"").0, 202);
    }
}

/// A megabyte of brackets wherever JSON is read.
fn send_deep_json(at: SocketAddr, token: &str, witness: &Witness) {
    let connection = eventually(SOON, "a place", || initialize(at, token).ok());
    let mut events = stream(at, token, &connection);
    let (arrays, objects) = ("[".repeat(MIB), "{\"a\":".repeat(MIB / 5));
    let headers = format!("{}acp-connection-id: {connection}\r\n", of(token));
    for deep in [arrays, objects] {
        let params = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"session/new","params":{{"cwd":{deep}"#);
        for body in [&deep, &params] {
            assert_eq!(exchange(at, "POST", "/acp/scripted", &of(token), body.as_bytes()).0, 400);
            assert_eq!(exchange(at, "POST", "/acp/scripted", &headers, body.as_bytes()).0, 202);
            assert_eq!(next(&mut events).unwrap()["error"]["code"], -32700);
            let (status, answer) = exchange(at, "POST", "/v1/sessions", &of(token), body.as_bytes());
            assert_eq!(status, 400, "{answer}");
        }
        // Complete, and still too deep.
        let closed = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let message =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"session/new","params":{{"cwd":{closed}}}}}"#);
        assert_eq!(exchange(at, "POST", "/acp/scripted", &headers, message.as_bytes()).0, 202);
        assert!(!next(&mut events).unwrap()["error"].is_null());
    }
    witness.is_served();
}

/// Bodies of 16 MiB: stalled, complete, at another path, and without a token.
fn send_large_bodies(at: SocketAddr, token: &str, witness: &Witness) {
    let connection = initialize(at, token).unwrap();
    let mut events = stream(at, token, &connection);
    let headers = format!("{}acp-connection-id: {connection}\r\n", of(token));
    let start = r#"{"jsonrpc":"2.0","id":1,"method":"_acphost/ping","params":{"pad":""#;
    let body = format!("{start}{}\"}}}}", "x".repeat(16 * MIB - start.len() - 3)).into_bytes();
    let mut stalled: Vec<TcpStream> = (0..8)
        .map(|_| {
            let mut stream = connect(at);
            stream.set_write_timeout(Some(SOON)).unwrap();
            let head = head("POST", "/acp/scripted", &headers, body.len());
            stream.write_all(head.as_bytes()).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    for stream in &mut stalled {
        let _ = stream.write(&body[..8 * MIB]);
    }
    witness.is_served();
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                let complete = || exchange(at, "POST", "/acp/scripted", &headers, &body).0;
                until(LONG, "a large message is taken", || matches!(complete(), 202));
                // It takes that much, and this is no body of a session.
                let rest = || exchange(at, "POST", "/v1/sessions", &of(token), &body).0;
                until(LONG, "a large body is read", || matches!(rest(), 400));
                // A response may be lost when the connection ends before the body was sent.
                let none = format!("host: localhost\r\n{JSON}");
                assert!(matches!(exchange(at, "POST", "/acp/scripted", &none, &body).0, 401 | 0));
            });
        }
        witness.is_served();
    });
    for _ in 0..12 {
        assert_eq!(next(&mut events).unwrap()["result"], json!({}));
    }
    witness.is_served();
}
