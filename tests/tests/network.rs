//! A real gateway over TCP: a token from the command line, a turn under its name, its revocation in the middle of a stream.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::house::{House, Plan};
use acp_tests::wait::{LONG, SOON, eventually, until};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const LISTEN: &str = "[northbound]\nlisten = [\"unix\", \"127.0.0.1:0\"]\n";

/// Address of the gateway's TCP listener, as `doctor` reports it.
fn address(house: &House) -> SocketAddr {
    eventually(SOON, "a listener", || {
        let checks: Value = house.cli(&["doctor"]).lines().into_iter().next()?;
        let line = checks.as_array()?.iter().find(|check| check["name"] == "listener")?;
        assert_eq!(line["verdict"], "ok", "{line}");
        line["detail"].as_str()?.split(": ").nth(1)?.parse().ok()
    })
}

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

fn path(key: &str, rest: &str) -> String {
    format!("/v1/sessions/{key}/{rest}")
}

#[test]
fn token_over_tcp_acts_until_it_is_revoked() {
    let house = Plan::flags(&[]).gateway(LISTEN).build();
    let (at, key) = (address(&house), house.spawn());
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
