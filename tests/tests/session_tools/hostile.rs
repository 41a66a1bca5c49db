//! What an agent gets that breaks the rules of the session tools, and what remains of a call whose gateway or client is gone.

use crate::{LIST, OTHER, bridge, call, environment, house, results, text, tool};
use acp_tests::cli::output_text;
use acp_tests::house::{GATEWAY, House};
use acp_tests::northbound::http;
use acp_tests::wait::{LONG, SOON, eventually, spin_until, until};
use serde_json::{Value, json};
use std::os::unix::net::UnixStream;

/// Number of connections that do nothing: more than the gateway holds, fewer than a process may open.
const CONNECTIONS: usize = 900;

/// Starts a session of the other agent that has done its task.
fn child(house: &House, key: &str) -> String {
    let spawn = json!({"agent": OTHER, "task": "say ready", "mode": "persistent", "wait_s": 60});
    text(&call(house, key, &[("sessions_spawn", spawn)])[0], "session").to_owned()
}

fn children(house: &House, key: &str) -> i64 {
    let count = "SELECT count(*) FROM acp_sessions WHERE spawned_by = ?1";
    house.world.journal(GATEWAY).query_row(count, [key], |row| row.get(0)).unwrap_or_default()
}

fn request(id: u64, tool: &str, arguments: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
}

/// A message that does not fit into the socket's buffer is refused like a short one, and not sent again and again.
#[test]
fn long_message_of_a_stranger_is_refused_at_once() {
    let house = house();
    let _ = house.prompt(&house.spawn(), "say hello");
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "x".repeat(2 << 20)}});
    let began = std::time::Instant::now();
    let refused = bridge(&environment(&house, "session/new"), &format!("{message}\n"));
    assert_eq!(refused["error"]["data"]["code"], "PERMISSION_DENIED", "{refused}");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    house.end();
}

/// The end of a list says nothing about sessions behind it that the agent does not see.
#[test]
fn cursor_tells_of_visible_sessions_only() {
    let house = house();
    let foreign = [house.spawn(), house.spawn()];
    let key = house.spawn();
    let list = &call(&house, &key, &[("sessions_list", json!({"limit": 1}))])[0];
    assert_eq!(
        (text(&list["sessions"][0], "session"), list.get("next_cursor")),
        (key.as_str(), None),
        "{foreign:?}"
    );
    let child = child(&house, &key);
    let list = &call(&house, &key, &[("sessions_list", json!({"limit": 1}))])[0];
    assert_eq!(text(&list["sessions"][0], "session"), child);
    let rest = json!({"limit": 1, "cursor": list["next_cursor"]});
    let list = &call(&house, &key, &[("sessions_list", rest)])[0];
    assert_eq!((text(&list["sessions"][0], "session"), list.get("next_cursor")), (key.as_str(), None));
    house.end();
}

/// Calls that the agent has cancelled do not keep later ones waiting.
#[test]
fn cancelled_calls_make_room_for_others() {
    let house = house();
    let key = house.spawn();
    let child = child(&house, &key);
    let wait =
        |id| request(id, "sessions_send", &json!({"session": child, "text": "wait_cancel", "wait_s": 600}));
    let cancel =
        |id| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    let ids = 10..26_u64;
    let mut messages: Vec<Value> = ids.clone().map(wait).chain(ids.map(cancel)).collect();
    messages.push(json!({"jsonrpc": "2.0", "id": 99, "method": "ping"}));
    let pinged = call(&house, &key, &[("bridge", json!({"messages": messages, "until": 99}))]);
    assert_eq!(pinged[0]["result"], json!({}), "{pinged:?}");
    let _ = house.verb(&["sessions", "close", &child]);
    house.end();
}

/// Only the bridge has the token: neither the agent's other programs nor the sessions that it spawns.
#[test]
fn token_is_in_no_other_environment() {
    let house = house();
    let key = house.spawn();
    let _ = house.prompt(&key, "tool run env");
    let token = environment(&house, "session/new")["ACP_HOST_AGENT_TOKEN"].clone();
    let spawn = json!({"agent": OTHER, "task": "tool run env", "wait_s": 60});
    let _ = call(&house, &key, &[("sessions_spawn", spawn)]);
    for session in house.verb(&["sessions", "list", "--all"]).as_array().into_iter().flatten() {
        let shown = json!(house.history(text(session, "session_key"))).to_string();
        assert!(shown.contains("PATH="), "the environment is shown: {shown}");
        assert!(!shown.contains(&token) && !shown.contains("ACP_HOST_AGENT"), "{shown}");
    }
    house.end();
}

/// Idle connections, and ones that break off in a request, do not hinder the agents.
#[test]
fn idle_connections_do_not_hinder_agents() {
    use std::io::Write as _;
    let house = house();
    let key = house.spawn();
    let socket = house.world.path(GATEWAY).join("agents.sock");
    let mut idle = Vec::new();
    for number in 0..CONNECTIONS {
        let mut stream = UnixStream::connect(&socket).unwrap_or_else(|error| panic!("{error}"));
        let _ = stream.write_all(b"POST /mcp HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{");
        if number % 2 == 0 {
            idle.push(stream);
        }
    }
    let status = call(&house, &key, &[("session_status", json!({}))]);
    assert_eq!(text(&status[0], "session"), key);
    drop(idle);
    house.end();
}

/// The gateway is killed after it has committed a spawn and before it has answered: the session exists once.
#[test]
fn spawn_of_a_killed_gateway_happens_once() {
    let mut house = house();
    let key = house.spawn();
    let task = json!({"agent": OTHER, "task": "sleep 500\nsay late", "wait_s": 60});
    let mut turn = house.follow(&["prompt", &key, &tool("sessions_spawn", &task)]);
    spin_until(SOON, "spawn committed", || (children(&house, &key) > 0).then_some(()));
    house.restart_gateway();
    let events = turn.events_until(LONG, |event| event["type"] == "done");
    assert_eq!(results(&events)[0]["text"], "late", "{}", output_text(&events));
    assert_eq!(children(&house, &key), 1);
    drop(turn.finish(SOON));
    house.end();
}

/// A repeated request has one effect, also over a restart; its key belongs to its session.
#[test]
fn repeated_request_spawns_once() {
    let mut house = house();
    let (key, thief) = (house.spawn(), house.spawn());
    let spawn =
        |word: &str| request(1, "sessions_spawn", &json!({"agent": OTHER, "task": format!("say {word}")}));
    let post = |word: &str| ("post", json!({"key": "one", "message": spawn(word)}));
    let first = call(&house, &key, &[post("a"), post("a"), post("b")]);
    assert_eq!(first[0]["session"], first[1]["session"], "{first:?}");
    assert_eq!(text(&first[2]["error"], "code"), "ACP_IDEMPOTENCY_CONFLICT", "{first:?}");
    house.restart_gateway();
    let again = call(&house, &key, &[post("a")]);
    assert_eq!((&again[0]["session"], children(&house, &key)), (&first[0]["session"], 1));
    let other = call(&house, &thief, &[post("a")]);
    assert_ne!(other[0]["session"], first[0]["session"], "the same key of another session");
    house.end();
}

/// A bridge that ends while its call waits has sent the message once, and the turn goes on.
#[test]
fn message_of_an_ended_bridge_is_sent_once() {
    let house = house();
    let key = house.spawn();
    let child = child(&house, &key);
    let send =
        request(5, "sessions_send", &json!({"session": child, "text": "sleep 300\nsay over", "wait_s": 600}));
    // The answer to the ping ends the bridge; the message may or may not have been taken.
    let messages = json!([send, {"jsonrpc": "2.0", "id": 6, "method": "ping"}]);
    let _ = call(&house, &key, &[("bridge", json!({"messages": messages, "until": 6}))]);
    let status =
        |house: &House| call(house, &key, &[("session_status", json!({"session": child}))]).remove(0);
    eventually(SOON, "child at rest", || (status(&house)["state"] == "idle").then_some(()));
    let received =
        house.agent_events("prompt").iter().filter(|it| text(it, "text").ends_with("say over")).count();
    assert!(received <= 1, "{received}");
    house.end();
}

/// A message does not run with more permissions than the turn that sends it.
#[test]
fn message_runs_with_the_permissions_of_the_turn_that_sends_it() {
    let house = crate::house_of("approve-all");
    let key = house.spawn();
    let child = child(&house, &key);
    let asks = |house: &House, limit: Option<&str>| {
        let send = json!({"session": child, "text": "permission Delete everything", "wait_s": 60});
        let body = json!({"text": tool("sessions_send", &send), "permission": limit});
        let path = format!("/v1/sessions/{key}/prompt");
        let socket = house.world.path(GATEWAY).join("gateway.sock");
        let accepted = http(&socket, "POST", &path, &[], &body.to_string());
        assert!(accepted.status < 300, "{accepted:?}");
        let run = accepted.json()["run_id"].clone();
        let of_run = |event: &&Value| event["run_id"] == run;
        let done = || {
            let events: Vec<Value> = house.history(&key).iter().filter(of_run).cloned().collect();
            events.iter().any(|event| event["type"] == "done").then_some(events)
        };
        results(&eventually(LONG, "turn ended", done)).remove(0)
    };
    let (free, limited) = (asks(&house, None), asks(&house, Some("deny-all")));
    assert!(text(&free, "text").contains("allow"), "{free}");
    assert!(!text(&limited, "text").contains("allow"), "{limited}");
    house.end();
}

/// What is no request, or a long one, gets one short error.
#[test]
fn frame_that_is_no_request_gets_a_short_error() {
    let house = house();
    let key = house.spawn();
    let post = |message: Value| ("post", json!({"key": "k", "message": message}));
    let long = "i".repeat(50_000);
    let calls = [
        post(json!([{"jsonrpc": "2.0", "id": 1, "method": "ping"}])),
        post(json!({"jsonrpc": "2.0", "id": {"a": 1}, "method": "ping"})),
        post(json!({"jsonrpc": "2.0", "id": long, "method": "ping"})),
        post(json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": long}})),
    ];
    for answer in call(&house, &key, &calls) {
        assert!(answer["error"]["code"].is_i64(), "{answer}");
        assert!(answer.to_string().len() < 2_000, "a short answer");
    }
    assert!(call(&house, &key, &[("session_status", json!({}))])[0]["session"].is_string());
    until(SOON, "gateway well", || house.cli(&["status"]).code == Some(0));
    assert!(bridge(&environment(&house, "session/new"), &format!("{LIST}\n"))["error"].is_object());
    house.end();
}
