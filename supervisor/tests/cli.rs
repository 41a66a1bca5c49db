//! The command line by itself.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_acp-supervisor")).args(args).output().unwrap()
}

#[test]
fn help_names_every_verb() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for verb in ["serve", "status", "leases"] {
        assert!(text.contains(verb), "{text}");
    }
    let text = String::from_utf8(run(&["leases", "--help"]).stdout).unwrap();
    for verb in ["list", "show", "verify", "reap"] {
        assert!(text.contains(verb), "{text}");
    }
}

#[test]
fn version() {
    let output = run(&["--version"]);
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("acp-supervisor {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn usage_errors_are_2_and_go_where_they_are_read() {
    for args in [&["--bad"][..], &["leases", "frobnicate"], &[]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}");
    }
    let output = run(&["--json", "--bad"]);
    assert_eq!(output.status.code(), Some(2));
    let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&error["type"], &error["code"]), (&"error".into(), &"USAGE".into()));
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("unexpected argument '--bad'"), "{message}");
}

#[test]
fn a_bad_configuration_is_refused_with_the_nearest_key() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("s.toml");
    std::fs::write(&config, "leases_mx = 3").unwrap();
    let state = dir.path().join("state");
    let args = ["serve", "--state-dir", state.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let output = run(&args);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("did you mean \"leases_max\"?"));
    assert!(!state.exists());
}

#[test]
fn a_missing_wrapper_is_said_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(&["serve", "--wrapper", "/nonexistent", "--state-dir", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("there is no wrapper at /nonexistent"));
}
