//! The admin CLI against a running supervisor.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use crate::common::{Host, agent};
use std::process::Stdio;

#[tokio::test]
async fn list_show_verify_status_and_reap() {
    let host = Host::new();
    let identity = host.gateway();
    let mut gateway = identity.connect().await;
    assert_eq!(host.json(&["leases", "list"]), serde_json::json!([]));
    let spec = agent(&["cat"]);
    let info = gateway.spawn(&spec).await;
    let id = spec.lease_id.to_string();
    let listed = host.json(&["leases", "list"]);
    for (key, want) in [
        ("lease_id", serde_json::json!(id)),
        ("gateway_instance_id", serde_json::json!(identity.id.to_string())),
        ("session_key", serde_json::json!(spec.session_key.as_str())),
        ("state", serde_json::json!("open")),
        ("wrapper_pid", serde_json::json!(info.wrapper_pid)),
        ("adapter_pid", serde_json::json!(info.adapter_pid)),
    ] {
        assert_eq!(listed[0][key], want, "{key}");
    }
    assert_eq!(host.json(&["leases", "show", &id])["lease_id"], id.as_str());

    let report = host.json(&["leases", "verify", &id]);
    assert_eq!(report["verdict"], "owned", "{report}");
    let exe = info.wrapper_path.clone();
    assert!(exe.contains(&id), "the wrapper's file names its lease: {exe}");
    for fact in report["facts"].as_array().unwrap() {
        let recorded = fact["recorded"].as_str().unwrap();
        assert!(recorded.is_empty() || fact["agrees"] == true, "{fact}");
    }
    let pids: Vec<i64> =
        report["tree"].as_array().unwrap().iter().map(|p| p["pid"].as_i64().unwrap()).collect();
    assert_eq!(pids, [i64::from(info.wrapper_pid.unwrap()), i64::from(info.adapter_pid.unwrap())]);
    assert!(report["lease"]["memory_bytes"].as_u64().unwrap() > 0);

    let status = host.json(&["status"]);
    assert_eq!((&status["pid"], &status["leases"]["open"]), (&host.pid().into(), &1.into()));
    assert_eq!(status["gateways"][0]["gateway_instance_id"], identity.id.to_string());
    let lines = host.json(&["leases", "reap", "--dry-run"]);
    assert_eq!(lines[0]["action"], "leave");
    for args in [&["leases", "list"][..], &["leases", "show", &id], &["leases", "verify", &id], &["status"]] {
        let output = host.cli(args);
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(&id) || args == ["status"], "{text}");
    }
}

#[test]
fn failures_have_codes() {
    let host = Host::new();
    let nobody = "0190b5f0-0000-7000-8000-000000000000";
    for (args, exit, code) in [
        (&["leases", "show", nobody][..], 1, "LEASE_UNKNOWN"),
        (&["leases", "verify", nobody], 1, "LEASE_UNKNOWN"),
        (&["leases", "show", "x"], 2, "USAGE"),
        (&["leases", "reap"], 2, "USAGE"),
        (&["--socket", "/nonexistent/socket", "status"], 3, "SUPERVISOR_UNAVAILABLE"),
    ] {
        let mut with = args.to_vec();
        with.push("--json");
        let output = host.cli(&with);
        assert_eq!(output.status.code(), Some(exit), "{args:?}");
        let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&error["type"], &error["code"]), (&"error".into(), &code.into()), "{args:?}");
        assert!(error["message"].is_string());
    }
}

#[test]
fn a_second_supervisor_is_refused_and_the_first_one_lives() {
    let host = Host::new();
    let output = host.command().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(error["code"], "STATE_DIR_LOCKED");
    assert!(error["message"].as_str().unwrap().contains(&format!("(pid {})", host.pid())), "{error}");
    assert_eq!(host.json(&["status"])["pid"], host.pid());
}

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let host = Host::new();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_acp-supervisor"));
    command.args(["leases", "list", "--json", "--state-dir"]).arg(host.state_dir());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}
