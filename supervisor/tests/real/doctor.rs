//! `doctor`, with and without a running supervisor.

use crate::common::{Host, agent, wrapper};
use crate::schema;
use acp_shared::protocol::LeaseState;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn run(state_dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_acp-supervisor"));
    command.arg("doctor").arg("--state-dir").arg(state_dir).arg("--wrapper").arg(wrapper()).args(args);
    command.output().unwrap()
}

/// Runs `doctor --json` and returns the exit code and the checks by name.
fn doctor(state_dir: &Path) -> (Option<i32>, impl Fn(&str) -> Value + use<>) {
    let output = run(state_dir, &["--json"]);
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    schema::check(&line);
    let checks = line["data"]["checks"].as_array().unwrap().clone();
    for check in &checks {
        assert!(!check["means"].as_str().unwrap().is_empty(), "{check}");
        assert_eq!(check["verdict"] == "ok", check["next"] == "", "a failed check has a next step: {check}");
    }
    let fails = checks.iter().any(|check| check["verdict"] == "fail");
    assert_eq!(output.status.code(), Some(i32::from(fails)));
    assert_eq!(fails, line["data"]["verdict"] == "fail");
    let by_name = move |name: &str| {
        let found = checks.iter().find(|check| check["name"] == name);
        found.unwrap_or_else(|| panic!("no check {name}: {checks:#?}")).clone()
    };
    (output.status.code(), by_name)
}

#[tokio::test]
async fn running_supervisor_passes_checks() {
    let host = Host::new();
    let (_, check) = doctor(&host.state_dir());
    for name in [
        "supervisor",
        "state directory",
        "lock",
        "database",
        "wrapper",
        "wrapper root",
        "lost leases",
        "last sweep",
    ] {
        assert_eq!(check(name)["verdict"], "ok", "{}", check(name));
    }
    let found = check("supervisor")["found"].as_str().unwrap().to_owned();
    assert!(
        found.starts_with(&format!("pid {}, version {}, ", host.pid(), env!("CARGO_PKG_VERSION"))),
        "{found}"
    );
    assert!(found.contains("socket mode 600"), "{found}");
    assert!(check("lock")["found"] == format!("held by pid {}", host.pid()));
    let rung = host.json(&["status"])["rung"].as_str().unwrap().to_owned();
    assert!(check("rung")["found"].as_str().unwrap().starts_with(&format!("{rung} is in use")));
    let chosen = |line: &Value| -> Vec<Value> {
        let reports = line["data"]["ladder"].as_array().unwrap();
        reports
            .iter()
            .filter(|report| report["chosen"] == true)
            .map(|report| report["rung"].clone())
            .collect()
    };
    let line: Value = serde_json::from_slice(&run(&host.state_dir(), &["--json"]).stdout).unwrap();
    assert_eq!(chosen(&line), [rung], "the levels differ from the supervisor's");
    assert_eq!(check("isolation")["verdict"], "warn", "processes of one uid are not isolated");
    // The text output explains the result and the next step.
    let text = String::from_utf8(run(&host.state_dir(), &[]).stdout).unwrap();
    for part in ["isolation", "meaning", "not isolated", "FAIL", " checks: "] {
        assert_eq!(text.contains(part), part != "FAIL", "{part}: {text}");
    }
}

#[tokio::test]
async fn problems_are_reported() {
    let mut host = Host::new();
    let dir = host.state_dir();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (code, check) = doctor(&dir);
    assert_eq!((code, &check("state directory")["verdict"]), (Some(1), &"fail".into()));
    assert!(check("state directory")["next"].as_str().unwrap().starts_with("chmod 700 "));
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    // A lost lease is reported.
    let mut gateway = host.gateway().connect().await;
    let (spec, info) = gateway.spawn_with_info(agent(&["cat"])).await;
    host.crash();
    let (_, check) = doctor(&dir);
    assert_eq!(check("supervisor")["verdict"], "warn", "{}", check("supervisor"));
    assert!(check("supervisor")["found"].as_str().unwrap().contains("is stale"), "{}", check("supervisor"));
    assert_eq!((&check("lock")["found"], &check("database")["verdict"]), (&"free".into(), &"ok".into()));
    assert!(check("database")["found"].as_str().unwrap().ends_with(", 1 lease"), "{}", check("database"));
    crate::common::eventually("the wrapper has ended", || {
        !crate::common::is_alive(info.wrapper_pid.unwrap())
    });
    host.start();
    let state = host.json(&["leases", "show", &spec.lease_id.to_string()])["state"].clone();
    let (_, check) = doctor(&dir);
    let lost = state == LeaseState::Lost.as_str();
    assert_eq!(check("lost leases")["verdict"] == "warn", lost, "{state}: {}", check("lost leases"));
    assert!(host.stop().is_some());
    for rest in ["supervisor.db-wal", "supervisor.db-shm"] {
        drop(std::fs::remove_file(dir.join(rest)));
    }
    std::fs::write(dir.join("supervisor.db"), "this is no database").unwrap();
    let (code, check) = doctor(&dir);
    assert_eq!((code, &check("database")["verdict"]), (Some(1), &"fail".into()), "{}", check("database"));
    let (code, check) = doctor(&dir.join("nowhere"));
    assert_eq!((code, &check("state directory")["verdict"]), (Some(0), &"warn".into()));
}

#[test]
fn unreachable_supervisor_and_missing_wrapper_are_reported() {
    let host = Host::new();
    let elsewhere = host.dir.path().join("no.sock");
    let mut command = host.cli_command(&["doctor", "--json", "--wrapper", "/nonexistent/wrapper"]);
    let output = command.arg("--socket").arg(elsewhere).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = line["data"]["checks"].as_array().unwrap();
    let of = |name: &str| checks.iter().find(|c| c["name"] == name).unwrap()["verdict"].clone();
    assert_eq!((of("wrapper"), of("lock"), of("supervisor")), ("fail".into(), "fail".into(), "warn".into()));
}

/// Without a supervisor the levels are probed without a trace, and a configured level that is unavailable is
/// reported.
#[test]
fn containment_levels_are_probed_with_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let (config, state) = (dir.path().join("s.toml"), dir.path().join("nowhere"));
    let run_with_config = |text: &str| -> (Option<i32>, Value) {
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_acp-supervisor"));
        command.args(["doctor", "--json", "--wrapper"]).arg(wrapper()).arg("--state-dir").arg(&state);
        let output = command.arg("--config").arg(&config).env("TMPDIR", dir.path()).output().unwrap();
        let line: Value = serde_json::from_slice(&output.stdout).unwrap();
        schema::check(&line);
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["s.toml"], "files left behind");
        (output.status.code(), line["data"].clone())
    };
    let rung = |data: &Value| {
        let checks = data["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == "rung").unwrap()["found"].as_str().unwrap().to_owned()
    };
    let (code, data) = run_with_config("rung = \"R3\"");
    assert_eq!(code, Some(0), "{data:#}");
    assert!(rung(&data).starts_with("R3 would be used by a supervisor started from here"), "{data:#}");
    let (code, data) = run_with_config("rung = \"R1\"\ncgroup_root = \"/nonexistent\"");
    assert_eq!(code, Some(1), "{data:#}");
    assert!(rung(&data).contains("rung = \"R1\" is configured but not available here"), "{data:#}");
    assert!(data["ladder"].as_array().unwrap().iter().all(|report| report["chosen"] == false), "{data:#}");
}
