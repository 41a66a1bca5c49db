//! Tests of the harness of the system tests: a harness that misses a process would hide every leak.

use acp_tests::cli::{RunningCommand, run};
use acp_tests::processes::{self, ProcessHandle};
use acp_tests::wait::{SOON, eventually, until};
use acp_tests::world::{Agent, ENV_WORLD, World};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[test]
fn run_returns_exit_code_output_and_error() {
    let output = run(
        &mut shell("echo '{\"a\":1}'; echo '{\"type\":\"error\",\"code\":\"X\"}'; echo oops >&2; exit 3"),
        SOON,
    );
    assert_eq!(output.code, Some(3));
    assert_eq!(output.stderr, "oops\n");
    assert_eq!(output.lines().len(), 2);
    assert_eq!(output.error_code(), "X");
}

#[test]
fn followed_command_yields_lines_and_ends_when_dropped() {
    let mut followed =
        RunningCommand::start(&mut shell("echo '{\"n\":1}'; echo '{\"n\":2}'; exec sleep 600"));
    let events = followed.events_until(SOON, |e| e["n"] == 2);
    assert_eq!(events.len(), 2);
    let pid = followed.pid();
    assert!(processes::is_alive(pid));
    drop(followed);
    assert!(!processes::is_alive(pid));
}

#[test]
#[should_panic(expected = "no line in time")]
fn silent_command_times_out() {
    let mut followed = RunningCommand::start(&mut shell("exec sleep 600"));
    let _ = followed.line(Duration::from_millis(50));
}

#[test]
fn dropped_world_ends_detached_processes() {
    let world = World::new();
    let (name, value) = world.env_mark();
    assert_eq!(name, ENV_WORLD);
    // One process with the mark, and one in the world's directory only; both are detached.
    let status = shell(
        "setsid sleep 600 >/dev/null 2>&1 & (cd \"$DIR\" && exec env -i setsid sleep 601 >/dev/null 2>&1) &",
    )
    .env(&name, &value)
    .env("DIR", world.dir("elsewhere"))
    .status();
    assert!(status.is_ok_and(|s| s.success()));
    let found = eventually(SOON, "both processes running", || {
        let found = world.processes();
        let sleeps = found.iter().filter(|p| p.argv.first().is_some_and(|a| a.ends_with("sleep"))).count();
        (sleeps == 2).then_some(found)
    });
    drop(world);
    for process in found {
        until(SOON, "process gone", || {
            processes::read(process.pid).is_none_or(|p| p.start_ticks != process.start_ticks)
        });
    }
}

#[test]
fn process_is_found_by_lease_id() {
    let lease = uuid::Uuid::now_v7().to_string();
    let mut child = shell("exec sleep 600");
    child.env(acp_shared::launch::ENV_LEASE_ID, &lease);
    let followed = RunningCommand::start(&mut child);
    until(SOON, "process found by lease", || {
        processes::list_of_lease(&lease).iter().any(|p| p.pid == followed.pid())
    });
    let held = ProcessHandle::open(followed.pid());
    drop(followed);
    assert!(processes::list_of_lease(&lease).is_empty());
    assert!(held.is_some_and(|held| !held.kill()), "a hold on a process that is gone reaches nothing");
}

#[test]
fn service_start_waits_for_ready_line() {
    let world = World::new();
    let mut command = shell("echo '{\"event\":\"ready\",\"pid\":1,\"socket\":\"/s\"}'; exec sleep 600");
    command.env(ENV_WORLD, world.env_mark().1);
    let service = world.start_command(command);
    assert_eq!(service.socket().to_str(), Some("/s"));
    assert!(processes::is_alive(service.pid()));
    assert_eq!(service.terminate(SOON), None, "a signal ended it");
}

#[test]
#[should_panic(expected = "instead of being ready")]
fn service_exit_before_ready_is_reported() {
    let world = World::new();
    let _ = world.start_command(shell("echo no >&2; exit 1"));
}

#[test]
fn written_configuration_parses_to_given_values() {
    let world = World::new();
    let agent = Agent::new(&["/bin/agent", "--flag \"quoted\""]).env("A.B", "c = [1]");
    let path = world.configure("g", "[acp]\nenabled = true", &BTreeMap::from([("some-agent", agent)]));
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{e}"));
    let config: toml::Table = text.parse().unwrap_or_else(|e| panic!("{e}: {text}"));
    let agent = &config["agents"]["some-agent"];
    assert_eq!(agent["command"].as_array().map(Vec::len), Some(2));
    assert_eq!(agent["env"]["A.B"].as_str(), Some("c = [1]"));
    assert_eq!(agent["env"][ENV_WORLD].as_str(), Some(world.env_mark().1.as_str()));
    assert_eq!(agent["permission"].as_str(), Some("ask"));
    assert_eq!(config["acp"]["enabled"].as_bool(), Some(true));
}
