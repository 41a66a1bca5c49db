//! `agents install`, `agents login`, `agents test` and `agents sessions`.

use acp_tests::house::{AGENT, GATEWAY, House, Plan, scripted};
use acp_tests::wait::{LONG, until};
use acp_tests::world::World;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[path = "agent_trials/foreign.rs"]
mod foreign;

fn sessions(house: &House) -> Vec<Value> {
    house.verb(&["sessions", "list"]).as_array().cloned().unwrap_or_default()
}

#[test]
fn agent_is_tested_with_one_turn_and_leaves_nothing() {
    let house = House::new(&[]);
    let report = house.verb(&["agents", "test", AGENT, "--prompt", "say ready"]);
    assert_eq!(report["agent"], AGENT);
    assert!(report["opened_ms"].is_u64() && report["answered_ms"].is_u64(), "{report}");
    assert_eq!(house.prompts_received("say ready"), 1);
    assert_eq!(sessions(&house), Vec::<Value>::new(), "the session is closed");
    let shown = house.plain(&["agents", "test", AGENT, "--prompt", "say ready"]).output();
    let shown = shown.unwrap_or_else(|e| panic!("{e}"));
    let (out, progress) = (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
    assert!(out.contains("ready") && out.contains("works: it started in"), "{out}{progress}");
    let refused = house.cli(&["agents", "test", "absent"]);
    assert_eq!(refused.error_code(), "ACP_AGENT_NOT_ALLOWED");
    house.end();
}

#[test]
fn failed_turn_fails_the_test_of_the_agent() {
    let house = House::new(&[]);
    let failed = house.cli(&["agents", "test", AGENT, "--prompt", "crash"]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert_eq!(sessions(&house), Vec::<Value>::new());
    house.end();
}

#[test]
fn sign_in_uses_the_method_and_names_what_is_offered() {
    let house = House::new(&["--auth-required"]);
    let refused = house.cli(&["agents", "login", AGENT]);
    assert_eq!((refused.code, refused.error_code().as_str()), (Some(1), "ACP_AUTH_REQUIRED"));
    let message = refused.error()["message"].to_string();
    let state = house.world.path(GATEWAY);
    let next = format!("acp-gateway --state-dir {} agents login {AGENT} --method fake-key", state.display());
    assert!(message.contains(&next), "{message}");
    let refused = house.cli(&["agents", "login", AGENT, "--method", "other"]);
    assert!(refused.error()["message"].to_string().contains("fake-key"), "{refused:?}");
    assert_eq!(house.received("authenticate").len(), 0);
    let _ = house.cli(&["agents", "login", AGENT, "--method", "fake-key"]).ok();
    assert_eq!(house.received("authenticate").len(), 1);
    assert_eq!(sessions(&house), Vec::<Value>::new());
    house.end();
}

#[test]
fn configured_method_signs_in_at_each_start() {
    let world = World::new();
    let mut agent = scripted(&world, &["--auth-required".to_owned()], "ask");
    agent.settings.extend([("auth_method".to_owned(), "fake-key".into())]);
    let house = Plan::default().build_in(world, &BTreeMap::from([(AGENT, agent)]));
    let (house, key) = house.with_session();
    let _ = house.prompt(&key, "say one");
    let _ = house.verb(&["agents", "install", AGENT]);
    assert_eq!(house.received("authenticate").len(), 2, "one for each process");
    house.end();
}

#[test]
fn sign_in_in_a_conversation_opens_its_session() {
    let house = House::new(&["--auth-required"]);
    let login = house.say("room", "1", &format!("/acp login {AGENT} fake-key"));
    assert_eq!(login["outcome"], "command", "{login}");
    until(LONG, "signed in", || house.received("authenticate").len() == 1);
    let said = house.say("room", "2", "say hello");
    assert_eq!(said["outcome"], "prompted", "{said}");
    until(LONG, "the session takes prompts", || house.prompts_received("say hello") == 1);
    // Without a method, the failure names the command for this place.
    let _ = house.say("other", "1", &format!("/acp login {AGENT}"));
    let next = format!("/acp login {AGENT} fake-key");
    until(LONG, "methods are named", || {
        let keys: Vec<String> =
            sessions(&house).iter().filter_map(|it| it["session_key"].as_str().map(str::to_owned)).collect();
        keys.iter()
            .any(|key| house.world.history(GATEWAY, key).iter().any(|row| row.to_string().contains(&next)))
    });
    house.end();
}

#[test]
fn stored_sessions_are_listed_and_one_is_continued() {
    let house = House::new(&["--load-replays", "1", "--no-resume"]);
    let cwd = house.cwd().to_string_lossy().into_owned();
    let keys: Vec<String> = ["one", "two", "three"]
        .iter()
        .map(|word| {
            let key = house.spawn();
            let _ = house.prompt(&key, &format!("say {word}"));
            key
        })
        .collect();
    // More than a page of the agent.
    let listed = house.verb(&["agents", "sessions", AGENT]);
    assert_eq!((&listed["agent"], &listed["more"]), (&json!(AGENT), &json!(false)));
    let stored = listed["sessions"].as_array().unwrap_or_else(|| panic!("{listed}"));
    let open_as: Vec<&Value> = stored.iter().map(|stored| &stored["session_key"]).collect();
    assert_eq!(open_as, keys.iter().collect::<Vec<_>>(), "in the order of creation");
    assert_eq!((&stored[0]["title"], &stored[0]["cwd"]), (&json!("say one"), &json!(cwd)));
    assert_eq!(house.received("session/list").len(), 2);
    assert_eq!(house.received("session/new").len(), 3, "the list opens no session");
    assert_eq!(sessions(&house).len(), 3);
    let all = house.verb(&["sessions", "list", "--all"]);
    assert_eq!(all.as_array().map(Vec::len), Some(3), "the list leaves no session");
    let elsewhere = house.world.dir("work/elsewhere").to_string_lossy().into_owned();
    let none = house.verb(&["agents", "sessions", AGENT, "--cwd", &elsewhere]);
    assert_eq!(none["sessions"], json!([]));
    // Two sessions never continue one conversation.
    let id = stored[0]["session_id"].as_str().unwrap_or_default();
    let resume =
        |id: &str| house.cli(&["sessions", "spawn", "--agent", AGENT, "--cwd", &cwd, "--resume", id]);
    assert_eq!(resume(id).error()["detail_code"], "CONVERSATION_CONTINUED");
    let _ = house.verb(&["sessions", "close", &keys[0]]);
    let continued = resume(id).ok().json();
    let key = continued["session_key"].as_str().unwrap_or_default();
    assert_eq!(house.verb(&["sessions", "show", key])["agent_session_id"], id);
    assert_eq!(house.received("session/load").len(), 1);
    let _ = house.prompt(key, "say again");
    let replayed = house.verb(&["agents", "sessions", AGENT, "--cwd", &cwd]);
    assert_eq!(replayed["sessions"][0]["session_key"], key);
    // The agent decides which conversations exist.
    let unknown = resume("no-such-id");
    assert_eq!((unknown.code, unknown.error_code().as_str()), (Some(1), "ACP_RESUME_UNAVAILABLE"));
    house.check_agent();
    house.end();
}

#[test]
fn agent_that_cannot_list_is_reported() {
    for (flag, code, detail) in [
        ("--no-list", "ACP_SESSION_INIT_FAILED", "LIST_NOT_SUPPORTED"),
        ("--auth-required", "ACP_AUTH_REQUIRED", "AUTH_REQUIRED"),
    ] {
        let house = House::new(&[flag]);
        let refused = house.cli(&["agents", "sessions", AGENT]);
        assert_eq!((refused.code, refused.error_code().as_str()), (Some(1), code), "{refused:?}");
        assert_eq!(sessions(&house), Vec::<Value>::new());
        let shown = house.plain(&["agents", "sessions", AGENT]).output();
        let shown = shown.unwrap_or_else(|e| panic!("{e}"));
        assert!(shown.stdout.is_empty() && !shown.stderr.is_empty(), "{detail}: {shown:?}");
        house.end();
    }
}
