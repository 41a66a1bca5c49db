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
    assert_eq!(first_end(&house, &[])["code"], "ACP_BACKEND_UNAVAILABLE");
    house.end();
}

/// House whose acpx is a shell script, with further configuration before and in the section of the backend.
fn house_with(script: &str, config: &str, more: &str) -> House {
    let world = World::new();
    let acpx = world.write("acpx", script);
    fs::set_permissions(&acpx, fs::Permissions::from_mode(0o755)).unwrap_or_else(|e| panic!("{e}"));
    let agents = BTreeMap::from([(AGENT, scripted(&world, &[], "ask"))]);
    let config = format!("{config}[backends.acpx]\n{more}\ncommand = [\"{}\"]\n", acpx.display());
    Plan::default().gateway(&config).build_in(world, &agents)
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
    house.end();
}

#[test]
fn disabled_backend_is_missing() {
    let house = Plan::flags(&[]).gateway("[backends.acpx]\nenabled = false\n").build();
    assert_eq!(first_end(&house, &["--backend", "acpx"])["code"], "ACP_BACKEND_MISSING");
    house.end();
}
