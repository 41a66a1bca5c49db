//! `up --detach`, `down`, `status` and `logs --service`.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::cli::RunningCommand;
use acp_tests::house::{AGENT, House, scripted};
use acp_tests::processes::{self, ProcessHandle};
use acp_tests::story::check_turn;
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::{GATEWAY_DB, World};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;

/// World with a configuration `home.toml`, which is passed to `up`.
fn with_agent() -> World {
    let world = World::new();
    world.configure("home", "", &BTreeMap::from([(AGENT, scripted(&world, &[], "ask"))]));
    world
}

fn up(world: &World) -> Value {
    let config = world.path("home.toml").to_string_lossy().into_owned();
    world.cli("home", &["up", "-d", "--config", &config]).ok().json()
}

fn pid(value: &Value) -> i32 {
    i32::try_from(value.as_i64().unwrap_or_else(|| panic!("no pid: {value}"))).unwrap()
}

/// `up -d` returns when both services are ready; a second one changes nothing; `status` and `logs` describe them; `down` ends
/// both, also when nothing runs any more.
#[test]
fn detached_up_runs_until_down() {
    let world = with_agent();
    let ready = up(&world);
    let (gateway, supervisor) = (pid(&ready["gateway_pid"]), pid(&ready["supervisor_pid"]));
    assert_eq!(ready["already_running"], false, "{ready}");
    assert_eq!(processes::read(gateway).unwrap().sid, gateway, "out of reach of the terminal");
    let again = up(&world);
    assert_eq!((&again["already_running"], pid(&again["gateway_pid"])), (&true.into(), gateway));
    let second = world.cli("home", &["up"]);
    assert_eq!((second.code, second.error_code().as_str()), (Some(1), "ACP_STORE_UNAVAILABLE"));
    assert!(second.error()["message"].as_str().unwrap().contains(&format!("pid {gateway}")), "{second:?}");
    let key = world.spawn("home", AGENT, "work/project");
    check_turn(&world.prompt("home", &key, "hello"), "end_turn");
    let status = world.cli("home", &["status"]).ok().json();
    assert_eq!((&status["ok"], &status["gateway"]["started_by"]), (&true.into(), &"up".into()));
    assert_eq!(pid(&status["supervisor"]["pid"]), supervisor);
    assert_eq!(status["sessions"]["idle"], 1, "{status}");
    let lines = world.cli("home", &["logs", "--service", "-n", "1000"]).ok().lines();
    for (from, text) in [("gateway", "gateway started"), ("supervisor", "supervisor ready")] {
        let is = |line: &&Value| line["from"] == from && line["text"].as_str().unwrap().contains(text);
        assert!(lines.iter().any(|line| is(&line)), "{text}: {lines:?}");
    }
    let down = world.cli("home", &["down"]).ok().json();
    assert_eq!((pid(&down["gateway_pid"]), pid(&down["supervisor_pid"])), (gateway, supervisor));
    assert_eq!(world.processes(), [], "nothing is left alive");
    let down = world.cli("home", &["down"]).ok().json();
    assert_eq!((&down["gateway_pid"], &down["supervisor_pid"]), (&Value::Null, &Value::Null));
    let status = world.cli("home", &["status"]);
    assert_eq!((status.code, &status.json()["ok"]), (Some(1), &false.into()));
}

/// SIGHUP applies a new log level to a gateway in the background.
#[test]
fn log_level_of_detached_up_is_reloaded() {
    let world = with_agent();
    let gateway = ProcessHandle::open(pid(&up(&world)["gateway_pid"])).unwrap();
    let mut log = world.follow("home", &["logs", "--service=gateway", "--follow"]);
    let text = std::fs::read_to_string(world.path("home.toml")).unwrap();
    world.write("home.toml", &format!("[log]\nlevel = \"debug\"\n{text}"));
    assert!(gateway.signal(Signal::HUP));
    let reloaded = |line: &Value| line["text"].as_str().is_some_and(|text| text.contains("keys applied"));
    let _ = log.events_until(LONG, reloaded);
    let key = world.spawn("home", AGENT, "work/project");
    check_turn(&world.prompt("home", &key, "hello"), "end_turn");
    let debug = |line: &Value| line["text"].as_str().is_some_and(|text| text.contains("DEBUG"));
    let _ = log.events_until(LONG, debug);
    assert!(log.signal(Signal::INT));
    assert_eq!(log.finish(SOON).code, Some(0), "Ctrl-C ends the follower");
    let _ = world.cli("home", &["down"]).ok();
    assert_eq!(world.processes(), []);
}

/// After a SIGKILL of the gateway its supervisor and agents go on; `status` says so, and `down` ends them.
#[test]
fn down_ends_what_a_killed_gateway_left() {
    let world = with_agent();
    let ready = up(&world);
    let key = world.spawn("home", AGENT, "work/project");
    check_turn(&world.prompt("home", &key, "hello"), "end_turn");
    assert!(ProcessHandle::open(pid(&ready["gateway_pid"])).unwrap().kill());
    let status = || world.cli("home", &["status"]);
    until(SOON, "gateway gone", || status().json()["detail"] == "not running");
    assert_eq!((status().code, &status().json()["supervisor"]["pid"]), (Some(1), &ready["supervisor_pid"]));
    let down = world.cli("home", &["down"]).ok().json();
    assert_eq!((&down["gateway_pid"], &down["supervisor_pid"]), (&Value::Null, &ready["supervisor_pid"]));
    assert_eq!(world.processes(), [], "nothing is left alive");
}

/// `down` does not take a supervisor that does not answer for one that has ended.
#[test]
fn down_reports_a_supervisor_that_does_not_answer() {
    let world = with_agent();
    let ready = up(&world);
    assert!(ProcessHandle::open(pid(&ready["gateway_pid"])).unwrap().kill());
    let supervisor = ProcessHandle::open(pid(&ready["supervisor_pid"])).unwrap();
    assert!(supervisor.signal(Signal::STOP));
    let down = world.cli("home", &["down"]);
    assert_eq!(down.code, Some(1), "{down:?}");
    let message = down.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("a supervisor still holds"), "{message}");
    assert!(supervisor.signal(Signal::CONT));
    let _ = world.cli("home", &["down"]).ok();
    assert_eq!(world.processes(), [], "nothing is left alive");
}

/// `down` leaves a gateway alone that `up` did not start.
#[test]
fn down_refuses_a_gateway_of_serve() {
    let (house, key) = House::new(&[]).with_session();
    let down = house.cli(&["down"]);
    assert_eq!(down.code, Some(1), "{down:?}");
    let message = down.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&house.gateway().pid().to_string()), "{message}");
    check_turn(&house.prompt(&key, "still here"), "end_turn");
    house.end();
}

/// A start in the background that fails reports the reason of the gateway and leaves no process.
#[test]
fn failed_detached_up_leaves_no_process() {
    let world = World::new();
    let _ = world.write(&format!("home/{GATEWAY_DB}"), "this is no database");
    let output = world.cli("home", &["up", "-d"]);
    assert_eq!((output.code, output.error_code().as_str()), (Some(1), "ACP_STORE_UNAVAILABLE"), "{output:?}");
    assert_eq!(world.processes(), [], "nothing is left alive");
}

/// SIGKILL of `init` ends the gateway that it started for its test, with the supervisor.
#[test]
fn killed_init_leaves_no_process() {
    let world = World::new();
    let args = ["init", "--yes", "--agent", "demo"];
    let mut init = RunningCommand::start(&mut world.gateway_verb("home", &args));
    // `init`, its gateway, and the supervisor of that.
    until(LONG, "gateway started", || world.path("home/gateway.sock").exists());
    init.kill9();
    until(LONG, "no process left", || world.processes().is_empty());
}
