//! Errors of the contract: an `error` line before each exit, with a stable code.

use crate::client::{Client, check_turn};
use acp_tests::house::House;
use serde_json::{Value, json};

/// Global flags, arguments, exit code, code and detail.
type Case = (&'static [&'static str], &'static [&'static str], i32, &'static str, Value);

/// Each failure prints one structured error, has its exit code, and nothing on standard error.
#[test]
fn failures_are_structured_errors_with_exit_codes() {
    let house = House::new(&[]);
    let client = Client::new(&house);
    let cases: [Case; 10] = [
        (&[], &["prompt", "hi"], 4, "NO_SESSION", Value::Null),
        (&[], &["set-mode", "x"], 4, "NO_SESSION", Value::Null),
        (&[], &["sessions", "show", "nothing"], 4, "NO_SESSION", Value::Null),
        (&[], &["sessions", "close"], 4, "NO_SESSION", Value::Null),
        (&[], &["sessions", "nonsense"], 2, "USAGE", Value::Null),
        (&[], &["prompt", "--nonsense-flag-before-text"], 4, "NO_SESSION", Value::Null),
        (&["--verbose"], &["status"], 2, "USAGE", Value::Null),
        (&["--prompt-retries", "3"], &["exec", "hi"], 2, "USAGE", json!("NOT_SUPPORTED")),
        (&["--approve-all", "--deny-all"], &["exec", "hi"], 2, "USAGE", Value::Null),
        (&["--timeout", "-1"], &["exec", "hi"], 2, "USAGE", Value::Null),
    ];
    for (flags, args, exit, code, detail) in cases {
        let output = client.with(flags, args);
        assert_eq!(output.code, Some(exit), "{output:?}");
        let error = output.error();
        assert_eq!(
            (&error["code"], &error["error"]["data"]["acpxCode"]),
            (&json!(code), &json!(code)),
            "{output:?}"
        );
        assert_eq!(error.get("detailCode").unwrap_or(&Value::Null), &detail, "{error}");
        for member in ["origin", "message", "retryable", "timestamp", "eventVersion", "sessionId", "seq"] {
            assert!(!error[member].is_null(), "{member}: {error}");
        }
        assert_eq!(output.lines().len(), 1, "{output:?}");
    }
    let command = client.with_agent(None).with(&["--agent", "/bin/sh"], &["exec", "hi"]);
    let error = command.error();
    assert_eq!((command.code, command.lines().len()), (Some(2), 1), "{command:?}");
    assert_eq!(
        (&error["code"], &error["detailCode"]),
        (&json!("USAGE"), &json!("AGENT_COMMAND_NOT_ALLOWED")),
        "{command:?}"
    );
    assert_eq!(house.verb(&["sessions", "list"]), json!([]), "no command of a caller was started");
    // Without an agent and a default one no session is meant.
    let _ = client.ensure();
    for args in [["status"].as_slice(), &["cancel"], &["prompt", "hi"], &["sessions", "close"]] {
        let refused = client.with_agent(None).run(args);
        assert_eq!((refused.code, refused.error_code().as_str()), (Some(2), "USAGE"), "{refused:?}");
    }
    let strict_text =
        acp_tests::cli::run(&mut client.command(&["--json-strict"], &["status"]), acp_tests::wait::SOON);
    assert_eq!((strict_text.code, strict_text.stdout.as_str()), (Some(2), ""));
    house.end();
}

/// The agent's own errors are kept, and the ones that mean a missing session or a missing sign-in are told apart.
#[test]
fn agents_errors_are_preserved() {
    let house = House::new(&[]);
    let client = Client::new(&house);
    let key = client.ensure();
    for (script, exit, code, number) in [
        ("error -32603 broken", 1, "RUNTIME", -32603),
        ("error -32002 no such thing", 4, "NO_SESSION", -32002),
        ("error -32001 no such thing", 4, "NO_SESSION", -32001),
        ("error -32603 Session not found", 4, "NO_SESSION", -32603),
        (r#"error_data -32603 {"details":"Unknown session x"}"#, 4, "NO_SESSION", -32603),
    ] {
        let output = client.run(&["prompt", script]);
        assert_eq!(output.code, Some(exit), "{output:?}");
        check_turn(&output.lines(), &key);
        let error = output.error();
        assert_eq!((&error["code"], &error["origin"]), (&json!(code), &json!("acp")), "{error:#}");
        assert_eq!(
            (&error["acp"]["code"], &error["error"]["code"]),
            (&json!(number), &json!(number)),
            "{error:#}"
        );
        assert_eq!(error["error"]["message"], error["acp"]["message"]);
        assert_eq!(error["error"]["data"]["acpxCode"], code);
    }
    let auth = client.run(&["prompt", "error -32000 sign in first"]);
    assert_eq!((auth.code, &auth.error()["detailCode"]), (Some(1), &json!("AUTH_REQUIRED")));
    assert_eq!(auth.error()["code"], "RUNTIME");
    house.end();
}

/// A full queue and a lost agent have typed details; without a gateway every verb says so.
#[test]
fn queue_and_gateway_failures_are_typed() {
    let mut house = acp_tests::house::Plan::flags(&[]).gateway("[limits]\nqueue_runs_max = 2").build();
    {
        let client = Client::new(&house);
        let key = client.ensure();
        let mut turn = client.follow(&[], &["prompt", "say begun\nwait_cancel"]);
        let mut lines = turn.events_until(acp_tests::wait::SOON, |line| line["type"] == "text");
        let _ = client.object(&["prompt", "--no-wait", "queued"]);
        let full = client.run(&["prompt", "refused"]);
        assert_eq!((full.code, &full.error()["detailCode"]), (Some(1), &json!("QUEUE_OWNER_OVERLOADED")));
        assert_eq!(full.error()["retryable"], true);
        house.lease(&key).kill_adapter();
        let output = turn.finish(acp_tests::wait::LONG);
        lines.extend(output.lines());
        check_turn(&lines, &key);
        assert_eq!((output.code, &output.error()["code"]), (Some(1), &json!("RUNTIME")), "{output:?}");
        assert!(output.error()["detailCode"].is_string(), "{output:?}");
    }
    house.stop_gateway();
    {
        let client = Client::new(&house);
        for args in
            [["status", "-s", "x"].as_slice(), &["sessions", "ensure"], &["prompt", "hi"], &["exec", "hi"]]
        {
            let output = client.run(args);
            let error = output.error();
            assert_eq!(
                (output.code, &error["code"], &error["detailCode"]),
                (Some(1), &json!("RUNTIME"), &json!("GATEWAY_UNAVAILABLE")),
                "{error}"
            );
        }
    }
    house.start_gateway();
    house.end();
}
