//! Logs: one message is followed by its fields, and `up` writes files.

use acp_tests::house::{AGENT, Plan, scripted};
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::World;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn one_message_is_followed_from_acceptance_to_delivery() {
    let mut house = Plan::flags(&[]).gateway("log.format = \"json\"\n").build();
    let spawned = house.say(
        "room",
        "1",
        &format!("/acp spawn {AGENT} --cwd {}", house.world.dir("work/project").display()),
    );
    assert_eq!(spawned["outcome"], "command", "{spawned}");
    let said = house.say("room", "2", "say hello there");
    let run_id = said["run_id"].as_str().unwrap().to_owned();
    let lines = |log: &str| -> Vec<Value> {
        let all = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        all.filter(|line| line["run_id"] == run_id.as_str()).collect()
    };
    let is_delivered = |line: &Value| line["message"] == "part delivered" && line["kind"] == "final";
    until(SOON, "delivery logged", || lines(&house.gateway_log()).iter().any(is_delivered));
    let lines = lines(&house.gateway_log());
    let moved = |event: &'static str| {
        move |line: &&Value| line["message"] == "run state changed" && line["event"] == event
    };
    let accepted = lines.iter().find(moved("accepted")).unwrap();
    let ended = lines.iter().find(moved("completed")).unwrap();
    let delivered = lines.iter().find(|line| is_delivered(line)).unwrap();
    for field in ["thread_id", "run_id", "idempotency_key", "session_key", "backend"] {
        assert!(accepted[field].is_string(), "{field}: {accepted}");
        assert_eq!(accepted[field], ended[field], "{field}: {ended}");
        assert_eq!(accepted[field], delivered[field], "{field}: {delivered}");
    }
    assert_eq!(accepted["thread_id"], "room", "{accepted}");
    // Accepted by one gateway and ended by the next one.
    let waiting = house.say("room", "3", "wait_cancel");
    let run_id = waiting["run_id"].as_str().unwrap();
    let key = waiting["session_key"].as_str().unwrap();
    until(SOON, "turn running", || house.verb(&["sessions", "show", key])["state"] == "running");
    house.restart_gateway();
    let _ = house.cli(&["sessions", "cancel", key]).ok();
    let has_ended = |log: String| {
        let all: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of_run = all.iter().filter(|line| line["run_id"] == run_id && line["event"] == "cancelled");
        of_run.map(|line| line["thread_id"].clone()).next()
    };
    until(LONG, "end logged", || has_ended(house.gateway_log()).is_some());
    assert_eq!(has_ended(house.gateway_log()), Some("room".into()));
}

#[test]
fn up_logs_to_private_files_and_shows_warnings_only() {
    let world = World::new();
    world.configure("one", "", &BTreeMap::from([(AGENT, scripted(&world, &[], "ask"))]));
    let dir = world.path("one");
    let log_of = |name: &str| dir.join(name);
    let config = world.path("one.toml").to_string_lossy().into_owned();
    let args = ["up", "--state-dir", &dir.to_string_lossy(), "--config", &config];
    let shown = acp_tests::cli::RunningCommand::start(world.command("acp-gateway").args(args));
    let logs = [log_of("gateway.log"), log_of("supervisor/supervisor.log")];
    let read = |at: usize| std::fs::read_to_string(&logs[at]).unwrap_or_default();
    until(LONG, "logs written", || {
        read(0).contains("INFO")
            && read(0).contains("gateway started")
            && read(1).contains("supervisor ready")
    });
    for log in &logs {
        let mode = std::fs::metadata(log).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", log.display());
        let text = std::fs::read_to_string(log).unwrap();
        assert!(!text.contains('\u{1b}'), "escape sequences in {}", log.display());
    }
    assert!(shown.signal(Signal::INT));
    let output = shown.finish(LONG);
    assert!(!output.stderr.contains("gateway started"), "shown to people: {}", output.stderr);
    assert!(output.stdout.contains("gateway.log"), "{}", output.stdout);
    assert!(read(0).contains("gateway stopping"), "{}", read(0));
}
