//! The backend without a usable acpx: it says what is missing and how to get it.

use acp_tests::house::{AGENT, House, Plan, scripted};
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::World;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

/// Starts a session of an acpx that cannot be used, and returns the end of its first prompt.
fn first_end(house: &House, args: &[&str]) -> Value {
    let cwd = house.world.dir("work/project").to_string_lossy().into_owned();
    let spawn = ["sessions", "spawn", "--agent", AGENT, "--wait", "0", "--cwd", &cwd];
    let spawned = house.cli(&[&spawn[..], args].concat());
    if spawned.code != Some(0) {
        return spawned.error();
    }
    let key = spawned.json()["session_key"].as_str().map(str::to_owned).unwrap_or_default();
    house.follow(&["prompt", &key, "hello"]).finish(LONG).lines().pop().unwrap_or_default()
}

#[test]
fn missing_acpx_is_reported_with_the_command_to_install_it() {
    let config = "[acp]\nbackend = \"acpx\"\n[backends.acpx]\ncommand = [\"/nonexistent/acpx\"]\n";
    let house = Plan::flags(&[]).gateway(config).build();
    let doctor = || house.cli(&["doctor"]).stdout;
    until(SOON, "acpx looked up", || doctor().contains("/nonexistent/acpx is not installed"));
    assert!(doctor().contains("npm install --global acpx@"), "{}", doctor());
    let install = house.say("room", "1", "/acp install").to_string();
    assert!(install.contains("npm install --global acpx@"), "{install}");
    assert_eq!(first_end(&house, &[])["code"], "ACP_BACKEND_UNAVAILABLE");
    house.end();
}

/// House whose acpx is a shell script, with further configuration before and in the section of the backend.
fn house_with(script: &str, config: &str, more: &str) -> House {
    let world = World::new();
    house_in(world, script, config, more, "")
}

/// The same in an existing world, with a configuration of the supervisor.
fn house_in(world: World, script: &str, config: &str, more: &str, supervisor: &str) -> House {
    let acpx = world.write("acpx", script);
    fs::set_permissions(&acpx, fs::Permissions::from_mode(0o755)).unwrap_or_else(|e| panic!("{e}"));
    let agents = BTreeMap::from([(AGENT, scripted(&world, &[], "ask"))]);
    let config = format!("{config}[backends.acpx]\n{more}\ncommand = [\"{}\"]\n", acpx.display());
    Plan::default().gateway(&config).supervisor(supervisor).build_in(world, &agents)
}

/// A confined session keeps acpx's state in its private home directory, and writes in no other session's and not in the
/// user's home directory. The roots of a tenant are for the directories of sessions only.
#[test]
fn confined_session_writes_in_its_private_home_only() {
    if !matches!(acp_testkit::sys::landlock_abi(), Ok(3..)) {
        println!("probe: no Landlock that confines writes: skipped");
        return;
    }
    let script = r#"#!/bin/sh
case "$*" in
  --version) echo 0.19.1 ;;
  *"sessions new"*)
    mkdir "$HOME/.acpx" && echo x >"$HOME/.acpx/state" && echo own >>"$HOME/report"
    for other in "$HOME/../other" "$HOME/../../other" "$HOME/../../../../../other" "$HOME.other"; do
      (echo x >"$other") 2>/dev/null && echo "$other" >>"$HOME/report"
    done
    echo '{"action":"session_ensured","created":true}' ;;
  *"sessions show"*) echo '{"messages":[],"agentCapabilities":{}}' ;;
  *) echo '{}' ;;
esac
"#;
    let world = World::new();
    let (work, temp, home) = (world.dir("work/project"), world.dir("temp"), world.dir("home"));
    let tenant = format!(
        "[[tenant]]\nuid = {}\nlandlock = \"on\"\ntemp_dir = \"{}\"\nroots = [\"{}\"]\n",
        rustix::process::geteuid().as_raw(),
        temp.display(),
        work.display()
    );
    let house = house_in(world, script, "[acp]\nbackend = \"acpx\"\n", "", &tenant);
    for _ in 0..2 {
        let cwd = work.to_string_lossy();
        let _ = house.cli(&["sessions", "spawn", "--agent", AGENT, "--cwd", &cwd, "--wait", "60"]).ok();
    }
    let homes = fs::read_dir(home.join(".local/state/acp-host/acpx")).unwrap_or_else(|e| panic!("{e}"));
    let reports: Vec<String> = homes
        .map(|home| fs::read_to_string(home.unwrap_or_else(|e| panic!("{e}")).path().join("report")))
        .collect::<Result<_, _>>()
        .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(reports, ["own\n", "own\n"]);
    house.end();
}

#[test]
fn acpx_of_another_version_is_refused_with_the_found_version() {
    let house = house_with("#!/bin/sh\necho 0.1.15\n", "", "");
    // No key of the configuration names the backend: a session may.
    let error = first_end(&house, &["--backend", "acpx"]);
    let text = error["message"].as_str().unwrap_or_default();
    assert_eq!(error["code"], "ACP_BACKEND_UNAVAILABLE", "{error}");
    assert!(text.contains("0.1.15") && text.contains(">=0.19.1, <0.20"), "{error}");
    house.end();
}

#[test]
fn old_node_is_named_by_doctor_with_the_next_step() {
    let house = house_with("#!/usr/bin/env node\n", "[acp]\nbackend = \"acpx\"\n", "");
    let node = |version: &str| {
        let script = format!("#!/bin/sh\n[ $# = 1 ] && echo v{version} && exit 0\necho 0.19.1\n");
        let node = house.world.write("nodes/node", &script);
        fs::set_permissions(&node, fs::Permissions::from_mode(0o755)).unwrap_or_else(|e| panic!("{e}"));
    };
    let nodes = house.world.path("nodes");
    let doctor = || {
        let mut doctor = house.plain(&["--json", "doctor", "--config"]);
        let found = doctor.arg(house.world.path("gateway.toml")).env("PATH", &nodes).output();
        let found = found.unwrap_or_else(|e| panic!("doctor: {e}"));
        let first = String::from_utf8_lossy(&found.stdout).lines().next().unwrap_or_default().to_owned();
        let checks: Vec<Value> = serde_json::from_str(&first).unwrap_or_else(|e| panic!("{e}: {first}"));
        let check = checks.into_iter().find(|check| check["name"] == "acpx");
        check.unwrap_or_else(|| panic!("no check of acpx: {first}"))
    };
    node("18.20.4");
    let check = doctor();
    let text = check["detail"].as_str().unwrap_or_default();
    assert_eq!(check["verdict"], "failed", "{check}");
    for part in ["nodes/node is Node.js 18.20.4", "needs Node.js 22 or later", "Install it, or name it"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    node("22.23.3");
    assert_eq!(doctor()["detail"], "acpx 0.19.1 on Node.js 22.23.3, as this user");
    house.end();
}

#[test]
fn configured_versions_are_accepted_and_shown() {
    let script = r#"#!/bin/sh
case "$*" in
  --version) echo 0.20.5 ;;
  *"sessions new"*) echo '{"action":"session_ensured","created":true}' ;;
  *"sessions show"*) echo '{"messages":[],"agentCapabilities":{}}' ;;
  *) echo '{}' ;;
esac
"#;
    let house = house_with(script, "[acp]\nbackend = \"acpx\"\n", "versions = \">=0.20, <0.21\"");
    let cwd = house.world.dir("work/project").to_string_lossy().into_owned();
    let spawn = ["sessions", "spawn", "--agent", AGENT, "--cwd", &cwd, "--wait", "60"];
    let refused = house.cli(&[&spawn[..], &["--add-dir", "/usr"]].concat());
    assert_eq!(refused.error_code(), "USAGE", "{refused:?}");
    let doctor = || house.cli(&["doctor"]).stdout;
    assert!(!doctor().contains("acpx 0.20.5"), "{}", doctor());
    let _ = house.cli(&spawn).ok();
    assert!(doctor().contains("acpx 0.20.5 when"), "{}", doctor());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has_node = std::env::split_paths(&path).any(|dir| dir.join("node").exists());
    assert_eq!(doctor().contains("no node in PATH"), !has_node, "{}", doctor());
    house.end();
}

#[test]
fn disabled_backend_is_missing() {
    let house = Plan::flags(&[]).gateway("[backends.acpx]\nenabled = false\n").build();
    assert_eq!(first_end(&house, &["--backend", "acpx"])["code"], "ACP_BACKEND_MISSING");
    house.end();
}
