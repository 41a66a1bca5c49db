//! The REST API: streams of all sessions over a killed gateway, the OpenAPI document, webhooks, and a script that needs only
//! curl and jq.

#[path = "rest/document.rs"]
mod document;
#[path = "rest/foreign.rs"]
mod foreign;
#[path = "rest/fuzz.rs"]
mod fuzz;

use acp_tests::cli::has_program;
use acp_tests::house::{GATEWAY, House, Plan};
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::repository;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::process::Command;

/// Reads events of `GET /v1/stream` after `last` until one satisfies `is_last`, or the connection ends.
fn read_stream(house: &House, last: Option<u64>, is_last: impl Fn(&Value) -> bool) -> Vec<(u64, Value)> {
    let Ok(mut stream) = UnixStream::connect(house.world.path(GATEWAY).join("gateway.sock")) else {
        return Vec::new();
    };
    let position = last.map(|last| format!("last-event-id: {last}\r\n")).unwrap_or_default();
    let request = format!("GET /v1/stream?after=0 HTTP/1.0\r\nhost: x\r\n{position}\r\n");
    if stream.set_read_timeout(Some(LONG)).and_then(|()| stream.write_all(request.as_bytes())).is_err() {
        return Vec::new();
    }
    let (mut found, mut id) = (Vec::new(), 0);
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.parse().unwrap();
        }
        let Some(event) = line.strip_prefix("data: ").filter(|text| *text != "{}") else { continue };
        // A killed gateway may have cut the line.
        let Ok(event) = serde_json::from_str::<Value>(event) else { break };
        found.push((id, event));
        if is_last(&found.last().unwrap().1) {
            break;
        }
    }
    found
}

#[test]
fn stream_of_all_sessions_loses_and_repeats_nothing_over_kills() {
    let mut house = House::with_approve_all(&[]);
    let keys: Vec<String> = (0..3).map(|_| house.spawn()).collect();
    let (mut seen, mut last) = (Vec::new(), None);
    for round in 0..3 {
        for key in &keys {
            let _ = house.cli(&["prompt", key, &format!("say {round}")]).ok();
        }
        let want = keys.len() * (round + 1);
        let done = |seen: &[(u64, Value)]| seen.iter().filter(|(_, event)| event["type"] == "done").count();
        while done(&seen) < want {
            let so_far = done(&seen);
            let count = std::cell::Cell::new(so_far);
            let more = read_stream(&house, last, |event| {
                count.set(count.get() + usize::from(event["type"] == "done"));
                count.get() == want
            });
            last = more.last().map(|(id, _)| *id).or(last);
            seen.extend(more);
        }
        house.kill_gateway();
        house.start_gateway();
    }
    let ids: Vec<u64> = seen.iter().map(|(id, _)| *id).collect();
    assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
    for key in &keys {
        let streamed: Vec<&Value> =
            seen.iter().filter(|(_, event)| event["session_key"] == **key).map(|(_, event)| event).collect();
        let journal = house.world.history(GATEWAY, key);
        let last_seq = streamed.last().unwrap()["session_seq"].as_u64();
        let want: Vec<&Value> =
            journal.iter().filter(|event| event["session_seq"].as_u64() <= last_seq).collect();
        assert_eq!(streamed, want, "the stream has the journal of {key}");
    }
}

#[test]
fn released_session_continues_with_the_next_prompt() {
    let (house, key) = House::with_approve_all(&[]).with_session();
    let _ = house.prompt(&key, "say one");
    let _ = house.cli(&["sessions", "label", &key, "the label"]).ok();
    let taken = house.spawn();
    assert_eq!(house.cli(&["sessions", "label", &taken, "the label"]).error_code(), "USAGE");
    let _ = house.cli(&["sessions", "release", &key]).ok();
    until(SOON, "agent ended", || house.world.living_lease(house.socket(), &key).is_none());
    let view = house.cli(&["sessions", "show", &key]).ok().json();
    assert_eq!((view["state"].as_str(), view["label"].as_str()), (Some("idle"), Some("the label")));
    // A session without a process has nothing to release.
    let _ = house.cli(&["sessions", "release", &key]).ok();
    let _ = house.prompt(&key, "say two");
    let exported = house.cli(&["sessions", "export", &key]).ok().lines();
    assert_eq!(exported.len() as u64, exported.last().unwrap()["session_seq"].as_u64().unwrap());
    let _ = house.cli(&["sessions", "label", &key, "--remove"]).ok();
    assert_eq!(house.cli(&["sessions", "show", &key]).ok().json()["label"], Value::Null);
}

#[test]
fn smoke_script_passes() {
    if !has_program("curl") || !has_program("jq") {
        return;
    }
    let house = Plan::default().permission("ask").build();
    let work = house.world.dir("work/project");
    std::fs::write(work.join("file.txt"), "content\n").unwrap();
    let output = Command::new("bash")
        .arg(repository().join("tests/smoke/rest.sh"))
        .arg(house.world.path(GATEWAY).join("gateway.sock"))
        .arg("scripted")
        .arg(&work)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), 20, "{text}");
}
