//! `sessions prune`: which sessions it closes, and a prompt that arrives after its list was made.

use acp_tests::house::{AGENT, GATEWAY, House};
use acp_tests::northbound::http;
use acp_tests::pty::Pty;
use acp_tests::wait::{LONG, until};
use serde_json::{Value, json};

/// Arguments that take every session that is not in use.
const PRUNE: [&str; 4] = ["sessions", "prune", "--older-than", "1ms"];

fn prune(house: &House, args: &[&str]) -> Value {
    house.verb(&[&PRUNE[..], args].concat())
}

fn state(house: &House, key: &str) -> Value {
    house.verb(&["sessions", "show", key])["state"].clone()
}

/// Starts a session that is bound to a conversation, and returns its key.
fn bound(house: &House) -> String {
    let cwd = house.world.dir("work/project");
    let spawned = house.say("room", "spawn", &format!("/acp spawn {AGENT} --cwd {}", cwd.display()));
    let key = spawned["session_key"].as_str().unwrap_or_else(|| panic!("{spawned}")).to_owned();
    rest(house, &key);
    key
}

/// Waits until a session is idle.
fn rest(house: &House, key: &str) {
    until(LONG, "the session is idle", || state(house, key) == "idle");
}

#[test]
fn sessions_that_are_idle_for_long_are_closed_and_no_others() {
    let (house, idle) = House::new(&[]).with_session();
    rest(&house, &idle);
    let bound = bound(&house);
    let asks = house.spawn();
    let mut turn = house.follow(&["prompt", &asks, "permission", "--interactive"]);
    let _ = turn.events_until(LONG, |event| event["type"] == "permission");
    let nothing = json!({"dry_run": true, "more": false, "closed": [], "kept": []});
    // The default age is 30 days.
    assert_eq!(house.verb(&["sessions", "prune", "--dry-run"]), nothing);
    assert_eq!(prune(&house, &["--dry-run", "--agent", "demo"]), nothing);
    let planned = prune(&house, &["--dry-run"]);
    assert_eq!(planned["closed"], json!([idle]), "{planned}");
    // A question needs a terminal.
    let unasked = house.cli(&PRUNE);
    assert_eq!((unasked.code, unasked.error_code()), (Some(2), "USAGE".to_owned()));
    assert_eq!(house.cli(&["sessions", "prune", "--older-than", "30"]).error_code(), "USAGE");
    assert_eq!(state(&house, &idle), "idle");
    let done = prune(&house, &["--yes", "--delete"]);
    assert_eq!(done, json!({"dry_run": false, "more": false, "closed": [idle], "kept": []}));
    let shown = house.verb(&["sessions", "show", &idle]);
    assert_eq!((&shown["state"], &shown["ending"]), (&json!("closed"), &json!("deleted")));
    let states = (state(&house, &bound), state(&house, &asks));
    assert_eq!(states, (json!("idle"), json!("running")));
    turn.kill9();
    house.end();
}

#[test]
fn session_with_a_prompt_after_the_list_stays_open() {
    let house = House::new(&[]);
    let keys = [house.spawn(), house.spawn()];
    keys.iter().for_each(|key| rest(&house, key));
    let mut command = house.plain(&PRUNE);
    let mut prune = Pty::start(command.current_dir(house.cwd()), 200, 30);
    let screen = prune.until("Close 2 sessions?");
    assert!(keys.iter().all(|key| screen.contains(key)), "{screen}");
    let _ = house.prompt(&keys[0], "say hello");
    prune.write("yes\r");
    let screen = prune.until("Closed: 1 session.");
    assert!(screen.contains(&format!("Not closed: {}", keys[0])), "{screen}");
    assert!(screen.contains("it was used in the meantime"), "{screen}");
    assert_eq!(prune.exit_code(), Some(0));
    assert_eq!([state(&house, &keys[0]), state(&house, &keys[1])], ["idle", "closed"]);
    // The answer "no" changes nothing.
    let mut command = house.plain(&PRUNE);
    let mut prune = Pty::start(command.current_dir(house.cwd()), 200, 30);
    prune.until("Close 1 session?");
    prune.write("\r");
    assert_eq!(prune.exit_code(), Some(0));
    assert_eq!(state(&house, &keys[0]), "idle");
    house.end();
}

#[test]
fn condition_of_a_close_is_checked_by_its_transaction() {
    let house = House::new(&[]);
    let bound = bound(&house);
    let busy = house.spawn();
    let mut turn = house.follow(&["prompt", &busy, "sleep 60000"]);
    let _ = turn.events_until(LONG, |event| event["type"] == "prompt");
    let close = |key: &str, since_ms: u64| {
        let socket = house.world.path(GATEWAY).join("gateway.sock");
        let headers = [("content-type", "application/json"), ("idempotency-key", "once")];
        let body = json!({ "if_idle_since_ms": since_ms }).to_string();
        http(&socket, "POST", &format!("/v1/sessions/{key}/close"), &headers, &body)
    };
    for key in [&bound, &busy] {
        let refused = close(key, u64::MAX);
        assert_eq!((refused.status, &refused.json()["detail_code"]), (400, &json!("SESSION_IN_USE")));
    }
    // The refused close has no effect: the binding is there, and the turn runs.
    let said = house.say("room", "later", "say still here");
    assert_eq!(said["session_key"], bound.as_str(), "{said}");
    assert_eq!(state(&house, &busy), "running");
    let _ = house.verb(&["sessions", "cancel", &busy]);
    rest(&house, &busy);
    assert_eq!(close(&busy, 1).json()["detail_code"], "SESSION_IN_USE", "used after that time");
    let closed = close(&busy, u64::MAX);
    assert_eq!((closed.status, &closed.json()["state"]), (200, &json!("closed")));
    assert_eq!(close(&busy, u64::MAX).json(), closed.json(), "a repeated close gets the first response");
    turn.kill9();
    house.end();
}
