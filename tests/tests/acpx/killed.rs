//! Clients and gateways that are killed: the session of `exec` ends with its turn all the same.

use crate::client::{Client, check_turn, said};
use acp_tests::house::{GATEWAY, House};
use acp_tests::wait::{LONG, SOON, until};
use rustix::process::Signal;
use serde_json::json;
use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

fn open_sessions(house: &House) -> usize {
    house.verb(&["sessions", "list"]).as_array().map_or(0, Vec::len)
}

/// Waits until every session is closed and no agent is left.
fn check_nothing_left(house: &House) {
    until(LONG, "all sessions are closed", || open_sessions(house) == 0);
    until(LONG, "no agent is left", || house.leases().iter().all(|lease| lease.processes().is_empty()));
}

/// The client dies before the agent has opened its session, and in the turn.
#[test]
fn exec_of_a_killed_client_ends_its_session() {
    let house = House::new(&["--options", "--slow-init", "500"]);
    let client = Client::new(&house);
    for (number, flags) in [&["--model", "big"][..], &[]].into_iter().enumerate() {
        let prompt = format!("say begun {number}");
        let early = client.follow(flags, &["exec", &prompt]);
        until(SOON, "the session exists", || open_sessions(&house) == 1);
        assert!(early.signal(Signal::KILL));
        assert_eq!(early.finish(LONG).code, None);
        check_nothing_left(&house);
        assert_eq!(house.prompts_received(&prompt), 1);

        let mut late = client.follow(flags, &["exec", "say begun\nsleep 300\nsay over"]);
        let _ = late.events_until(LONG, |line| line["type"] == "text");
        assert!(late.signal(Signal::KILL));
        assert_eq!(late.finish(LONG).code, None);
        check_nothing_left(&house);
    }
    let all = house.verb(&["sessions", "list", "--all"]);
    let runs = |key: &str| house.verb(&["sessions", "show", key])["runs"].clone();
    for session in all.as_array().into_iter().flatten() {
        let runs = runs(session["session_key"].as_str().unwrap_or_default());
        assert_eq!(
            (runs.as_array().map(Vec::len), &runs[0]["state"]),
            (Some(1), &json!("completed")),
            "{runs}"
        );
    }
    house.end();
}

/// Client and gateway die before the model is set: the next gateway sets it, runs the prompt and ends the session.
#[test]
fn exec_of_a_killed_client_and_gateway_ends_its_session() {
    let mut house = House::new(&["--options", "--slow-init", "500"]);
    let exec = Client::new(&house).follow(&["--model", "big"], &["exec", "say hello"]);
    until(SOON, "the session exists", || open_sessions(&house) == 1);
    assert!(exec.signal(Signal::KILL));
    house.restart_gateway();
    check_nothing_left(&house);
    assert_eq!(house.prompts_received("say hello"), 1);
    let set = house.received("session/set_config_option");
    assert!(set.iter().any(|message| message["params"]["value"] == "big"), "{set:?}");
    house.end();
}

/// A client that disconnects while its request is carried out leaves no session without a turn.
#[test]
fn abandoned_requests_end_their_sessions() {
    let house = House::new(&[]);
    let cwd = house.world.dir("work/project");
    let body =
        json!({ "agent": acp_tests::house::AGENT, "cwd": cwd, "mode": "oneshot", "prompt": "say hello" });
    let body = body.to_string();
    for _ in 0..12 {
        let mut stream = UnixStream::connect(house.world.path(GATEWAY).join("gateway.sock"))
            .unwrap_or_else(|e| panic!("{e}"));
        let request = format!(
            "POST /v1/sessions HTTP/1.1\r\nhost: x\r\nidempotency-key: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            acp_shared::ids::IdempotencyKey::mint(),
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
        let _ = stream.shutdown(Shutdown::Both);
    }
    check_nothing_left(&house);
    let client = Client::new(&house);
    let lines = client.run(&["exec", "say after"]).ok().lines();
    check_turn(&lines, lines[0]["sessionId"].as_str().unwrap_or_default());
    assert_eq!(said(&lines), "after");
    house.end();
}
