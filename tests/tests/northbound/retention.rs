//! A pruned journal over each surface: a cursor at or above the pruned rows notices nothing, one below gets
//! `CURSOR_PRUNED`, and a reader without a cursor gets what is there and learns that it is not all.

use crate::{cwd, websocket};
use acp_tests::cli::RunningCommand;
use acp_tests::house::{GATEWAY, House};
use acp_tests::northbound::{agent_text, seqs};
use acp_tests::processes;
use acp_tests::story::check_answer;
use acp_tests::wait::{LONG, spin_until};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

/// Sends a request to the local API. Returns the head and the body of the response.
fn get(house: &House, path: &str, headers: &str) -> (String, String) {
    let mut stream = UnixStream::connect(house.world.path(GATEWAY).join("gateway.sock")).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: x\r\n{headers}\r\n").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text}"));
    (head.to_ascii_lowercase(), body.to_owned())
}

fn code(body: &str) -> Value {
    let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
    if body["code"].is_string() { body["code"].clone() } else { body["error"]["code"].clone() }
}

/// A session of three turns, the first two of which are pruned, and the number of the last pruned row.
fn pruned_house() -> (House, String, u64) {
    let (mut house, key) = House::with_approve_all(&[]).with_session();
    for text in ["say one", "say two", "say three"] {
        let _ = house.prompt(&key, text);
    }
    let prunes = ["store", "compact", "--retention-days", "0", "--keep-turns", "1"];
    let running = house.cli(&prunes);
    assert_eq!(running.error()["detail_code"], "STORE_LOCKED", "{running:#?}");
    let lease = house.lease(&key);
    let shown = house.verb(&[&prunes[..], &["--dry-run"]].concat());
    house.kill_gateway();
    let done = house.verb(&prunes);
    assert_eq!((&done["rows"], &done["compacted"]), (&shown["rows"], &json!(true)), "{done}");
    assert_eq!(house.verb(&["store", "check"])["ok"], true);
    house.start_gateway();
    assert_eq!(house.lease(&key).id(), lease.id(), "the agent lives on");
    let view = house.verb(&["sessions", "show", &key]);
    let pruned = view["pruned_seq"].as_u64().unwrap();
    assert_eq!(done["rows"].as_u64(), Some(pruned), "{view}");
    (house, key, pruned)
}

fn check_command_line(house: &House, key: &str, pruned: u64) {
    let text = |number: u64| number.to_string();
    let history = house.history(key);
    assert_eq!(history.first().map(|event| event["session_seq"].as_u64()), Some(Some(pruned + 1)));
    let mut at_floor = house.follow(&["sessions", "history", key, "--after", &text(pruned)]);
    assert_eq!(at_floor.events_until(LONG, |_| true)[0]["session_seq"], pruned + 1);
    drop(at_floor);
    let below = house.cli(&["sessions", "history", key, "--after", &text(pruned - 1)]);
    assert_eq!(below.error_code(), "CURSOR_PRUNED", "{below:#?}");
    let last = house.cli(&["sessions", "history", key, "--limit", "1000"]).ok();
    assert!(last.stdout.contains("three") && !last.stdout.contains("two"), "{last:#?}");
}

fn check_rest(house: &House, key: &str, pruned: u64) {
    let events = format!("/v1/sessions/{key}/events");
    let (head, body) = get(house, &format!("{events}?after={}", pruned - 1), "");
    assert!(head.contains(" 410 "), "{head}");
    assert_eq!(code(&body), "CURSOR_PRUNED", "{body}");
    let (_, page) = get(house, &events, "");
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!(
        (&page["pruned_seq"], &page["events"][0]["session_seq"]),
        (&json!(pruned), &json!(pruned + 1))
    );
    let stream = "accept: text/event-stream\r\n";
    let (head, _) = get(house, &events, &format!("{stream}last-event-id: 1\r\n"));
    assert!(head.contains(" 410 "), "{head}");
    let (head, body) =
        get(house, &format!("{events}?follow=false"), &format!("{stream}last-event-id: {pruned}\r\n"));
    assert!(head.contains(" 200 ") && head.contains(&format!("pruned-seq: {pruned}")), "{head}");
    assert!(body.contains("three"), "{body}");
    // Event ids and numbers are the same here: there is one session.
    let (head, _) = get(house, "/v1/stream?follow=false", "last-event-id: 1\r\n");
    assert!(head.contains(" 410 "), "{head}");
    let (head, body) = get(house, &format!("/v1/stream?follow=false&after={pruned}"), "");
    assert!(head.contains(" 200 ") && body.contains("three"), "{head}: {body}");
    let (_, body) = get(house, "/v1/stream?follow=false&after=0", "");
    assert!(body.contains(&format!("\"pruned_event_id\":{pruned}")) && body.contains("three"), "{body}");
    let (_, body) = get(house, &format!("/v1/sessions/{key}/export?format=jsonl"), "");
    let first: Value = serde_json::from_str(body.lines().next().unwrap()).unwrap();
    assert_eq!(first, json!({ "type": "pruned", "session_key": key, "pruned_seq": pruned }));
    let (_, body) = get(house, &format!("/v1/sessions/{key}/export?format=md"), "");
    assert!(body.starts_with(&format!("> Events up to number {pruned} were pruned")), "{body}");
}

fn check_acp(house: &House, key: &str, pruned: u64) {
    let mut client = websocket(house);
    let params = |after: u64| json!({"sessionId": key, "cwd": cwd(house), "mcpServers": [], "_meta": {"acphost": {"after": after}}});
    for method in ["session/load", "session/resume"] {
        let refused = client.refusal(method, &params(pruned - 1));
        assert_eq!((&refused["code"], &refused["data"]["code"]), (&json!(-32602), &json!("CURSOR_PRUNED")));
    }
    let (loaded, rows) = client.load(key, Some(pruned));
    assert_eq!(loaded.json["result"]["_meta"]["acphost"]["prunedSeq"], pruned);
    assert!(agent_text(&rows).ends_with("three"), "{rows:?}");
    let (_, rows) = client.load(key, None);
    assert!(seqs(&rows).iter().all(|seq| *seq > pruned), "{rows:?}");
    assert_eq!(agent_text(&rows), "three");
}

/// What a killed `store compact` leaves is removed by the next process that holds the lock, before it needs the space.
#[test]
fn copy_of_a_killed_compaction_is_removed() {
    let (mut house, _) = House::new(&[]).with_session();
    house.kill_gateway();
    let state = house.world.path(GATEWAY);
    let parts = || {
        let names = std::fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("gateway.db.part-")).count()
    };
    // The copy is there for about 100 ms.
    let is_left = (0..50).any(|_| {
        let mut compact =
            RunningCommand::start(&mut house.world.gateway_verb(GATEWAY, &["store", "compact"]));
        spin_until(LONG, "copy", || (parts() > 0 || !processes::is_alive(compact.pid())).then_some(()));
        compact.kill9();
        parts() > 0
    });
    assert!(is_left, "no kill came in time");
    house.start_gateway();
    assert_eq!(parts(), 0);
    assert_eq!(house.verb(&["store", "check"])["ok"], true);
    house.end();
}

#[test]
fn cursor_below_pruned_rows_is_refused_on_every_surface() {
    let (house, key, pruned) = pruned_house();
    check_command_line(&house, &key, pruned);
    check_rest(&house, &key, pruned);
    check_acp(&house, &key, pruned);
    check_answer(&house.prompt(&key, "say four"), ["four"]);
    house.end();
}
