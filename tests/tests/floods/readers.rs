//! Clients that hold connections to the local API do not block others.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::house::{GATEWAY, House};
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::bin;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::io::Write as _;
use std::os::unix::net::UnixStream;

/// Opens more connections than the limit, each with this request, and reads none.
fn hold(house: &House, request: &str) -> Vec<UnixStream> {
    let path = house.world.path(GATEWAY).join("gateway.sock");
    let connect = |_| {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    (0..200).map(connect).collect()
}

fn state(house: &House, key: &str) -> String {
    house.verb(&["sessions", "show", key])["state"].as_str().unwrap().to_owned()
}

/// Checks that a permission can be answered, a turn cancelled, and `doctor` answers.
fn check_short_requests(house: &House, key: &str) {
    let ask = house.cli(&["prompt", key, "permission Delete", "--no-wait", "--interactive"]);
    assert_eq!(ask.code, Some(0), "{ask:?}");
    let id = eventually(SOON, "permission pending", || {
        let list = house.verb(&["permissions", "list", key]);
        Some(list[0]["permission_id"].as_str()?.to_owned())
    });
    let _ = house.cli(&["permissions", "answer", key, &id, "allow_once"]).ok();
    until(SOON, "turn ended", || state(house, key) == "idle");
    let _ = house.cli(&["prompt", key, "wait_cancel", "--no-wait"]).ok();
    until(SOON, "turn running", || state(house, key) == "running");
    let _ = house.cli(&["sessions", "cancel", key]).ok();
    until(SOON, "turn cancelled", || state(house, key) == "idle");
    let doctor = house.cli(&["doctor"]);
    assert!(doctor.stdout.contains("gateway"), "{doctor:?}");
}

#[test]
fn stalled_readers_do_not_block_short_requests() {
    let (house, key) = House::new(&[]).with_session();
    let _ = house.cli(&["prompt", &key, "chunks 2000 size=2000"]).ok();
    let ask =
        format!("GET /v1/sessions/{key}/events HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n");
    let held = hold(&house, &ask);
    check_short_requests(&house, &key);
    drop(held);
    // After they are closed, a prompt can be followed again.
    until(LONG, "event stream accepted", || house.cli(&["prompt", &key, "say on"]).code == Some(0));
    house.end();
}

#[test]
fn unfinished_requests_do_not_block_others() {
    let (house, key) = House::new(&[]).with_session();
    for request in [
        "GET /v1/health HTTP/1.1\r\nhost:",
        "POST /v1/sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{",
    ] {
        let held = hold(&house, request);
        check_short_requests(&house, &key);
        drop(held);
    }
    house.end();
}

/// H9: a process of an agent's tree holds 400 connections, and opens anew those that are closed.
#[test]
fn connections_of_an_agents_tree_shut_nobody_out() {
    let (house, key) = House::new(&[]).with_session();
    let program = bin("hold-connections");
    let socket = house.world.path(GATEWAY).join("gateway.sock");
    let script = format!(
        "tool run sleep 3600 | {} {} 400 > held & while ! [ -s held ]; do sleep 0.05; done",
        program.display(),
        socket.display()
    );
    let _ = house.prompt(&key, &script);
    assert_eq!(std::fs::read_to_string(house.cwd().join("held")).unwrap(), "held\n");
    for _ in 0..3 {
        check_short_requests(&house, &key);
    }
    house.end();
}

/// Without descriptors no connection can be accepted: the log says so a few times, then how often it did not.
#[test]
fn accepts_that_fail_are_logged_a_few_times() {
    let house = House::new(&[]);
    let limit = |current| Rlimit { current, maximum: getrlimit(Resource::Nofile).maximum };
    let pid = Pid::from_raw(house.gateway().pid());
    let before = prlimit(pid, Resource::Nofile, limit(Some(1))).unwrap();
    let waiting = UnixStream::connect(house.world.path(GATEWAY).join("gateway.sock")).unwrap();
    until(SOON, "rest counted", || house.gateway_log().contains("similar messages suppressed"));
    prlimit(pid, Resource::Nofile, before).unwrap();
    drop(waiting);
    let logged = house.gateway_log().matches("cannot accept a connection").count();
    assert!((1..=20).contains(&logged), "{logged} lines");
    house.end();
}
