//! The admin CLI with a running supervisor.

use crate::common::{Host, agent, pids_of, script, terminal};
use crate::schema;
use acp_shared::protocol::{Graces, LeaseState, Reply, Request, Spawn};
use std::process::Stdio;

#[tokio::test]
async fn admin_commands_report_lease() {
    let (host, identity, mut gateway) = Host::with_identity().await;
    assert_eq!(host.json(&["leases", "list"]), serde_json::json!([]));
    let (spec, info) = gateway.spawn_with_info(agent(&["cat"])).await;
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
    check_metrics(&host);
    for args in [&["leases", "list"][..], &["leases", "show", &id], &["leases", "verify", &id], &["status"]] {
        let output = host.cli(args);
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(&id[..8]) || args == ["status"], "{text}");
    }
}

/// Checks the metrics of a supervisor with one gateway and one open lease.
fn check_metrics(host: &Host) {
    let metrics = host.json(&["metrics"]);
    let figure = |name: &str, state: Option<&str>| {
        let is = |one: &&serde_json::Value| one["name"] == name && one["labels"]["state"].as_str() == state;
        metrics.as_array().unwrap().iter().find(is).unwrap_or_else(|| panic!("{name}: {metrics}"))["value"]
            .clone()
    };
    for (state, leases) in [("open", 1), ("lost", 0)] {
        assert_eq!(figure("acp_supervisor_leases", Some(state)), leases, "{state}");
    }
    assert_eq!(figure("acp_supervisor_gateways", None), 1);
    assert_eq!(figure("acp_supervisor_survivors", None), 0);
    let (free, size) =
        (figure("acp_supervisor_disk_free_bytes", None), figure("acp_supervisor_disk_size_bytes", None));
    assert!(free.as_u64().unwrap() <= size.as_u64().unwrap() && size != 0, "{free} of {size}");
    let output = host.cli(&["metrics"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("\nacp_supervisor_leases{state=\"open\"} 1\n") && text.ends_with("# EOF\n"),
        "{text}"
    );
}

#[test]
fn failures_report_codes() {
    let host = Host::new();
    let unknown = "0190b5f0-0000-7000-8000-000000000000";
    for (args, exit, code) in [
        (&["leases", "show", unknown][..], 1, "LEASE_UNKNOWN"),
        (&["leases", "verify", unknown], 1, "LEASE_UNKNOWN"),
        (&["leases", "show", "x"], 2, "USAGE"),
        (&["leases", "reap"], 2, "USAGE"),
        (&["--socket", "/nonexistent/socket", "status"], 3, "SUPERVISOR_UNAVAILABLE"),
    ] {
        let output = host.cli(&[args, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(exit), "{args:?}");
        let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&error["type"], &error["code"]), (&"error".into(), &code.into()), "{args:?}");
        schema::check(&error);
    }
}

#[test]
fn closed_output_is_no_error() {
    let host = Host::new();
    let mut command = host.cli_command(&["leases", "list", "--json"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[tokio::test]
async fn json_output_matches_schema() {
    let (host, mut gateway) = Host::with_gateway().await;
    let (spec, short) = (agent(&["cat"]), script("exit 3"));
    gateway.spawn(&spec).await;
    gateway.start(terminal(&spec, "sleep 300", 4_096)).await;
    gateway.spawn(&short).await;
    gateway.state(short.lease_id, LeaseState::Closed).await;
    let id = spec.lease_id.to_string();
    for args in [
        &["status"][..],
        &["metrics"],
        &["leases", "list"],
        &["leases", "show", &id],
        &["leases", "verify", &id],
        &["leases", "verify", "--all"],
        &["leases", "reap", "--dry-run"],
        &["leases", "close", &id, "--yes", "--wait"],
        &["leases", "list"],
        &["leases", "show", "x"],
        &["--bad"],
    ] {
        let output = host.cli(&[args, &["--json"]].concat());
        let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        schema::check(&line);
        assert_eq!(output.status.success(), line["type"] != "error", "{args:?}: {line}");
    }
}

#[tokio::test]
async fn lists_are_filtered_and_sorted() {
    let host = Host::new();
    let (a, b) = (host.gateway(), host.gateway());
    let (mut one, mut two) = (a.connect().await, b.connect().await);
    // Two sleeping children of the shell.
    let big = script("sleep 300 & sleep 300 & wait");
    let small = agent(&["cat"]);
    let ended = script("exit 0");
    one.spawn(&small).await;
    one.spawn(&ended).await;
    two.spawn(&big).await;
    one.state(ended.lease_id, LeaseState::Closed).await;
    let ids = |args: &[&str]| -> Vec<String> {
        let listed = host.json(&[&["leases", "list"], args].concat());
        listed.as_array().unwrap().iter().map(|l| l["lease_id"].as_str().unwrap().to_owned()).collect()
    };
    let [small_id, ended_id, big_id] = [&small, &ended, &big].map(|spec| spec.lease_id.to_string());
    let tree = |id: &str| host.json(&["leases", "show", id])["tree_size"].as_u64();
    crate::common::eventually("wrapper, shell and two children", || tree(&big_id) == Some(4));
    assert_eq!(tree(&small_id), Some(2));
    assert_eq!(tree(&ended_id), None);
    assert!(host.json(&["leases", "show", &small_id])["memory_bytes"].as_u64().unwrap() > 100_000);
    for (args, want) in [
        (&[][..], &[&small_id, &ended_id, &big_id][..]),
        (&["--gateway", &b.id.to_string()], &[&big_id]),
        (&["--session", small.session_key.as_str()], &[&small_id]),
        (&["--session", "agent:test:*"], &[&small_id, &ended_id, &big_id]),
        (&["--state", "living"], &[&small_id, &big_id]),
        (&["--state", "closed", "--state", "lost"], &[&ended_id]),
        (&["--kind", "terminal"], &[]),
        (&["--older-than", "1h"], &[]),
        (&["--newer-than", "1h", "--state", "living"], &[&small_id, &big_id]),
        (&["--sort", "tree", "--state", "living"], &[&big_id, &small_id]),
        (&["--sort", "tree", "-r", "--state", "living"], &[&small_id, &big_id]),
    ] {
        assert_eq!(ids(args).iter().collect::<Vec<_>>(), want, "{args:?}");
    }
    // The table fits the width, names every column, and shows usable id prefixes.
    for columns in ["80", "120"] {
        let output = host.cli_command(&["leases", "list"]).env("COLUMNS", columns).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= columns.parse().unwrap()), "{text}");
        let short = text.lines().nth(3).and_then(|line| line.split(' ').next()).unwrap();
        assert_eq!(host.json(&["leases", "show", short])["lease_id"], big_id.as_str());
    }
    let wide = host.cli(&["leases", "list", "-o", "wide", "--no-headers"]);
    let wide = String::from_utf8(wide.stdout).unwrap();
    assert!(wide.lines().count() == 3 && wide.contains(small.session_key.as_str()), "{wide}");
}

/// A gateway chooses the reason, an agent its process name; both are escaped in terminals.
#[tokio::test]
async fn foreign_text_is_escaped() {
    const CONTROL_TEXT: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}x\r\n";
    let (host, mut gateway) = Host::with_gateway().await;
    let spec = script("printf '\\033[2Jevil' > /proc/self/comm; trap '' TERM; while :; do sleep 1; done");
    gateway.spawn(&spec).await;
    let id = spec.lease_id.to_string();
    let safe = |output: &std::process::Output| {
        for bytes in [&output.stdout, &output.stderr] {
            let text = std::str::from_utf8(bytes).unwrap();
            let bad = text
                .chars()
                .find(|c| (c.is_control() && *c != '\n') || ('\u{202a}'..='\u{202e}').contains(c));
            assert_eq!(bad, None, "{text:?}");
        }
        String::from_utf8(output.stdout.clone()).unwrap()
    };
    crate::common::eventually("the agent has its new name", || {
        safe(&host.cli(&["leases", "verify", &id])).contains("\\u{1b}[2Jevil")
    });
    let close = Request::CloseLease { lease_id: spec.lease_id, reason: CONTROL_TEXT.to_owned() };
    assert!(matches!(gateway.call(close).await, Ok(Reply::Closing { .. })));
    gateway.state(spec.lease_id, LeaseState::Closing).await;
    let shown = safe(&host.cli(&["leases", "show", &id]));
    assert!(shown.contains("\\u{1b}[2J\\u{1b}]0;owned\\u{7}\\u{9b}31m\\u{202e}x"), "{shown}");
    for args in [
        &["leases", "list"][..],
        &["leases", "list", "--wide"],
        &["leases", "list", "--json"],
        &["leases", "show", &id, "--json"],
        &["leases", "verify", &id, "--json"],
        &["leases", "verify", "--all"],
        &["leases", "reap", "--dry-run"],
        &["leases", "show", CONTROL_TEXT],
        &["leases", "show", CONTROL_TEXT, "--json"],
    ] {
        safe(&host.cli(args));
    }
    assert_eq!(
        host.json(&["leases", "show", &id])["state_reason"].as_str(),
        Some("\\u{1b}[2J\\u{1b}]0;owned\\u{7}\\u{9b}31m\u{202e}x\\r\\n"),
        "control characters are escaped before they are stored"
    );
}

#[tokio::test]
async fn admin_close_waits_for_end() {
    let (host, mut gateway) = Host::with_gateway().await;
    let (spec, other) = (gateway.start(agent(&["cat"])).await, gateway.start(agent(&["cat"])).await);
    let id = spec.lease_id.to_string();
    // Without a terminal there is no confirmation.
    let refused = host.cli(&["leases", "close", &id]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("add --yes"));
    let closed = host.json(&["leases", "close", &id, "--yes", "--wait", "--reason", "maintenance"]);
    assert_eq!(
        (&closed[0]["lease_id"], &closed[0]["state"]),
        (&id.as_str().into(), &"closed".into()),
        "{closed}"
    );
    assert!(pids_of(spec.lease_id).is_empty());
    gateway.state(spec.lease_id, LeaseState::Closed).await;
    assert!(!pids_of(other.lease_id).is_empty(), "the other agent ended");
    // Closing an ended lease succeeds.
    assert_eq!(host.json(&["leases", "close", &id, "--yes", "--wait"])[0]["state"], "closed");
    // A lease that is still closing at the timeout is reported.
    let graces = Graces { eof_ms: 60_000, term_ms: 60_000, kill_ms: 5_000 };
    let slow = Spawn { graces, ..script("trap '' TERM; while :; do sleep 1; done") };
    gateway.spawn(&slow).await;
    let late =
        host.cli(&["leases", "close", &slow.lease_id.to_string(), "--yes", "--wait", "--timeout", "300ms"]);
    assert_eq!(late.status.code(), Some(1));
    let text = String::from_utf8(late.stderr).unwrap();
    assert!(text.contains("cannot be closed: still closing"), "{text}");
}

#[tokio::test]
async fn close_asks_for_confirmation() {
    let (host, mut gateway) = Host::with_gateway().await;
    let spec = gateway.start(agent(&["cat"])).await;
    let id = spec.lease_id.to_string();
    let close = || crate::pty::Pty::start(host.cli_command(&["leases", "close", &id, "--wait"]), 100, 24);
    let mut no = close();
    no.until("[y/N]");
    no.type_in("\n");
    assert_eq!(no.wait().code(), Some(1));
    assert!(!pids_of(spec.lease_id).is_empty());
    let mut yes = close();
    yes.until("[y/N]");
    yes.type_in("y\n");
    assert_eq!(yes.wait().code(), Some(0));
    assert!(pids_of(spec.lease_id).is_empty());
}

#[tokio::test]
async fn verify_exit_code_reports_verdict() {
    let (mut host, mut gateway) = Host::with_gateway().await;
    let (spec, info) = gateway.spawn_with_info(agent(&["cat"])).await;
    let id = spec.lease_id.to_string();
    assert_eq!(host.cli(&["leases", "verify", &id]).status.code(), Some(0));
    let text = String::from_utf8(host.cli(&["leases", "verify", &id]).stdout).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(text.contains("✓  wrapper") && text.contains("verdict: owned"), "{text}");
    assert_eq!(host.cli(&["leases", "verify", "--all"]).status.code(), Some(0));
    assert_eq!(host.cli(&["leases", "verify"]).status.code(), Some(2));
    // A stopped wrapper of a dead supervisor leaves a lost or closed lease.
    crate::common::kill(info.wrapper_pid.unwrap(), rustix::process::Signal::STOP);
    host.crash();
    let config = host.config.clone();
    host.config = config.replace("300", "0");
    host.start();
    let state = host.json(&["leases", "show", &id])["state"].as_str().unwrap().to_owned();
    let assert_verdict = host.cli(&["leases", "verify", &id]);
    assert_eq!(
        assert_verdict.status.code(),
        Some(0),
        "{state}: a tree that is gone matches its record: {assert_verdict:?}"
    );
}
