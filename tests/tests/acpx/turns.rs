//! Turns through the contract.

use crate::client::{Client, check_turn, linked, said};
use acp_tests::cli::{has_program, run};
use acp_tests::fake_agent::chunk_text;
use acp_tests::house::House;
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::repository;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::process::Command;

/// The lifecycle of a turn, whole: each message of the agent as received, in the envelope.
#[test]
fn turn_is_accepted_streamed_done_and_has_a_result() {
    let house = House::new(&["--usage", "12"]);
    let client = Client::new(&house);
    let key = client.ensure();
    let script = "thought hm\nsay one\ntool run true\nplan a; b\nmode ask\nunknown_update\nsay two";
    let output = client.run(&["prompt", "-s", "", script]).ok();
    let lines = output.lines();
    let types = check_turn(&lines, &key);
    let want = [
        "accepted",
        "prompt",
        "thought",
        "text",
        "tool_call",
        "tool_call_update",
        "tool_call_update",
        "plan",
        "mode",
        "update",
        "text",
        "done",
        "result",
    ];
    assert_eq!(types.iter().filter(|kind| *kind != "usage").collect::<Vec<_>>(), want, "{lines:#?}");
    let request = lines[0]["requestId"].clone();
    let prompt = lines.iter().find(|line| line["type"] == "prompt").cloned().unwrap_or_default();
    assert_eq!((&prompt["method"], &prompt["id"]), (&json!("session/prompt"), &request));
    assert_eq!(prompt["params"]["prompt"], json!([{"type": "text", "text": script}]));
    let text = lines.iter().find(|line| line["type"] == "text").cloned().unwrap_or_default();
    assert_eq!(text["method"], "session/update");
    assert_eq!(text["params"]["update"]["content"], json!({"type": "text", "text": "one"}));
    assert_eq!(text["params"]["sessionId"], prompt["params"]["sessionId"]);
    let result = lines.last().cloned().unwrap_or_default();
    assert_eq!((&result["id"], &result["stopReason"]), (&request, &json!("end_turn")));
    assert_eq!(result["result"]["stopReason"], "end_turn");
    house.end();
}

/// `--no-wait` returns the request id; `watch` tells the turn, and resumes after any cursor.
#[test]
fn queued_turn_is_watched_and_resumed() {
    let house = House::new(&[]);
    let client = Client::new(&house);
    let key = client.ensure();
    let queued = client.object(&["prompt", "--no-wait", "say one\nsay two"]);
    assert_eq!((&queued["action"], &queued["id"]), (&json!("prompt_queued"), &json!(key)));
    let mut watch = client.follow(&[], &["sessions", "watch"]);
    let lines = watch.events_until(LONG, |line| line["type"] == "turn_result");
    drop(watch);
    let types: Vec<&str> = lines.iter().map(|line| line["type"].as_str().unwrap_or_default()).collect();
    assert_eq!(types.iter().filter(|kind| **kind == "turn_started").count(), 1, "{types:?}");
    assert!(lines.iter().all(|line| line["requestId"] == queued["requestId"]), "{lines:#?}");
    assert_eq!(
        lines.last().map(|line| &line["result"]),
        Some(&json!({"status": "completed", "stopReason": "end_turn"}))
    );
    for (number, line) in lines.iter().enumerate().take(lines.len() - 1) {
        let cursor = line["cursor"].as_str().unwrap_or_default();
        let mut watch = client.follow(&[], &["sessions", "watch", "--cursor", cursor]);
        let rest = watch.events_until(LONG, |line| line["type"] == "turn_result");
        assert_eq!(rest, lines[number + 1..], "after {line}");
    }
    // A closed session ends the watch.
    let watch = client.follow(&[], &["sessions", "watch"]);
    let _ = client.run(&["sessions", "close"]).ok();
    assert_eq!(watch.finish(LONG).ok().lines(), lines);
    let refused = client.run(&["sessions", "watch", "--cursor", "nonsense"]);
    assert_eq!((refused.code, refused.error_code().as_str()), (Some(2), "USAGE"));
    house.end();
}

/// Without JSON, too, `--no-wait` queues behind the running turn, and a later prompt waits for both.
#[test]
fn queue_is_the_same_for_people() {
    let house = House::new(&[]);
    let client = Client::new(&house);
    let _ = client.ensure();
    let mut turn = client.follow(&[], &["prompt", "say begun\nwait_cancel"]);
    let _ = turn.events_until(SOON, |line| line["type"] == "text");
    let queued = client.text("text", &["prompt", "--no-wait", "say second"]).ok();
    assert!(queued.stdout.starts_with("[queued] "), "{queued:?}");
    assert_eq!(client.text("text", &["cancel"]).ok().stdout, "cancel requested");
    let third = client.text("text", &["prompt", "say third"]).ok();
    assert_eq!(third.stdout, "third\n\n[done] end_turn");
    let _ = turn.finish(LONG).ok();
    let history = client.text("quiet", &["sessions", "history"]).ok();
    let answers: Vec<&str> = history.stdout.lines().filter(|line| !line.starts_with("say ")).collect();
    assert_eq!(answers, ["begun", "second", "third"], "{history:?}");
    house.end();
}

/// SIGINT cancels and waits: the turn has a result, and the exit code is 0. SIGTERM leaves the turn running.
#[test]
fn interrupt_cancels_and_termination_leaves_the_turn_running() {
    let house = House::new(&[]);
    let client = Client::new(&house);
    let key = client.ensure();
    let mut turn = client.follow(&[], &["prompt", "say begun\nwait_cancel"]);
    let mut lines = turn.events_until(SOON, |line| line["type"] == "text");
    assert!(turn.signal(Signal::INT));
    let output = turn.finish(LONG).ok();
    lines.extend(output.lines());
    check_turn(&lines, &key);
    assert_eq!(lines.last().map(|line| &line["result"]["stopReason"]), Some(&json!("cancelled")));

    let mut turn = client.follow(&[], &["prompt", "say begun\nwait_cancel"]);
    let lines = turn.events_until(SOON, |line| line["type"] == "text");
    assert!(turn.signal(Signal::TERM));
    assert_eq!(turn.finish(LONG).code, None, "it ends by the signal");
    let status = client.object(&["status"]);
    assert_eq!(status["activeRequestId"], lines[0]["requestId"], "{status}");

    // Another process cancels it.
    let cancelled = client.object(&["cancel"]);
    assert_eq!((&cancelled["action"], &cancelled["cancelled"]), (&json!("cancel_result"), &json!(true)));
    assert_eq!(cancelled["cancelledRequestId"], lines[0]["requestId"]);
    until(SOON, "the turn has ended", || client.object(&["status"]).get("activeRequestId").is_none());
    house.end();
}

/// `--timeout` cancels, waits for the end, and fails with exit code 3 in place of a result.
#[test]
fn timeout_is_an_error_after_the_turn_has_ended() {
    let house = House::new(&[]);
    let client = Client::new(&house);
    let key = client.ensure();
    let output = client.with(&["--timeout", "1"], &["prompt", "say begun\nwait_cancel"]);
    assert_eq!(output.code, Some(3), "{output:?}");
    let lines = output.lines();
    check_turn(&lines, &key);
    let error = output.error();
    assert_eq!((&error["code"], &error["error"]["code"]), (&json!("TIMEOUT"), &json!(-32070)));
    assert_eq!(client.object(&["status"]).get("activeRequestId"), None, "the turn has ended");
    let turn = client.run(&["prompt", "again"]).ok();
    assert_eq!(said(&turn.lines()), "echo: again");
    house.end();
}

/// Flags hold for their turn alone: the session's own mode stays.
#[test]
fn permission_flags_hold_for_one_turn() {
    let house = House::new(&[]);
    let client = Client::new(&house);
    let key = client.ensure();
    let last = |lines: &[Value]| lines.last().cloned().unwrap_or_default();
    let turn = |flags: &[&str]| client.with(flags, &["prompt", "permission Delete"]);

    let approved = turn(&["--approve-all"]);
    assert_eq!(approved.code, Some(0), "{approved:?}");
    let lines = approved.lines();
    let types = check_turn(&lines, &key);
    assert!(
        types.contains(&"permission".to_owned()) && types.contains(&"permission_settled".to_owned()),
        "{types:?}"
    );
    assert_eq!(said(&lines), "permission: selected allow_once");

    // Denied for want of a person: the default. Exit code 5, with an error in place of the result.
    let denied = turn(&[]);
    assert_eq!((denied.code, denied.error_code().as_str()), (Some(5), "PERMISSION_DENIED"));
    let lines = denied.lines();
    check_turn(&lines, &key);
    assert_eq!(said(&lines), "permission: selected reject_once");
    assert_eq!(last(&lines)["error"]["code"], -32071);

    let denied = turn(&["--deny-all"]);
    assert_eq!((denied.code, &last(&denied.lines())["stopReason"]), (Some(0), &json!("end_turn")));

    let failed = turn(&["--non-interactive-permissions", "fail"]);
    assert_eq!((failed.code, failed.error_code().as_str()), (Some(5), "PERMISSION_PROMPT_UNAVAILABLE"));
    assert_eq!(last(&failed.lines())["error"]["code"], -32072);

    // Reads are approved without a person; effects of the host follow the same flags.
    let written = client.with(&["--approve-all"], &["prompt", "fs_write a.txt hello"]).ok();
    assert_eq!(said(&written.lines()), "fs_write: ok");
    let refused = client.with(&["--deny-all"], &["prompt", "fs_write b.txt hello"]).ok();
    assert!(said(&refused.lines()).starts_with("fs_write: error"), "{refused:?}");
    let own = house.verb(&["sessions", "show", &key]);
    assert_eq!((&own["permission"], &own["non_interactive_permissions"]), (&json!("ask"), &json!("deny")));

    // The user's configuration gives the defaults; a project's file has no effect.
    house.world.write("home/.acpx/config.json", r#"{"nonInteractivePermissions":"fail","ttl":1}"#);
    house.world.write("work/project/.acpxrc.json", r#"{"defaultPermissions":"approve-all"}"#);
    assert_eq!(turn(&[]).error_code(), "PERMISSION_PROMPT_UNAVAILABLE");
    assert_eq!(turn(&["--non-interactive-permissions", "deny"]).error_code(), "PERMISSION_DENIED");
    house.end();
}

/// A killed gateway and a stalled reader cost no line; the numbers have no gap.
#[test]
fn no_line_is_lost_when_gateway_is_killed_and_reader_stalls() {
    let mut house = House::new(&[]);
    let key = Client::new(&house).ensure();
    let mut turn = Client::new(&house).follow(&[], &["prompt", "chunks 2000 pace_ms=1"]);
    let mut lines = turn.events_until(SOON, |line| line["type"] == "text");
    house.restart_gateway();
    lines.extend(turn.events_until(SOON, |line| line["type"] == "text"));
    assert!(turn.signal(Signal::STOP));
    let client = Client::new(&house);
    until(LONG, "the turn has ended", || client.object(&["status"]).get("activeRequestId").is_none());
    assert!(turn.signal(Signal::CONT));
    lines.extend(turn.finish(LONG).ok().lines());
    check_turn(&lines, &key);
    let want: String = (1..=2000).map(|number| chunk_text(number, 16)).collect();
    assert_eq!(said(&lines), want);
    house.end();
}

/// `exec` runs in a session of its own, which ends with it; the prompt may come from a file or from standard input.
#[test]
fn exec_leaves_nothing() {
    let house = House::new(&["--options"]);
    let client = Client::new(&house);
    let lines = client.run(&["exec", "say", "hello"]).ok().lines();
    let key = lines[0]["sessionId"].as_str().unwrap_or_default().to_owned();
    check_turn(&lines, &key);
    assert_eq!(said(&lines), "hello");
    house.world.write("work/project/prompt.txt", "say from a file");
    let lines = client.with(&["--model", "big"], &["exec", "--file", "prompt.txt"]).ok().lines();
    assert_eq!(said(&lines), "from a file");
    let refused = client.with(&["--model", "unheard-of"], &["exec", "hello"]);
    let error = refused.error();
    assert_eq!((refused.code, &error["detailCode"]), (Some(2), &json!("OPTION_REFUSED")), "{refused:?}");
    let key = error["sessionId"].as_str().unwrap_or_default().to_owned();
    assert_eq!(check_turn(&refused.lines(), &key), ["accepted", "prompt", "error"], "{refused:?}");
    assert_eq!(house.prompts_received("hello"), 0, "no prompt to another model");
    assert_eq!(house.verb(&["sessions", "show", &key])["state"], "closed", "{refused:?}");
    house.world.write("work/project/blocks.json", r#"[{"type":"text","text":"say block"}]"#);
    assert_eq!(said(&client.run(&["exec", "-f", "blocks.json"]).ok().lines()), "block");
    house
        .world
        .write("work/project/image.json", r#"[{"type":"image","data":"AA==","mimeType":"image/png"}]"#);
    let refused = client.run(&["exec", "-f", "image.json"]);
    assert_eq!(
        (refused.code, &refused.error()["detailCode"]),
        (Some(2), &json!("UNSUPPORTED_PROMPT_CONTENT"))
    );
    let crashed = client.run(&["exec", "say begun\ncrash"]);
    assert_eq!(crashed.code, Some(1), "{crashed:?}");
    check_turn(&crashed.lines(), crashed.error()["sessionId"].as_str().unwrap_or_default());
    until(LONG, "no agent is left", || house.leases().iter().all(|lease| lease.processes().is_empty()));
    assert_eq!(client.object(&["sessions", "list"]), json!([]), "these sessions have no names");
    house.end();
}

/// The example for orchestrators runs end to end.
#[test]
fn example_for_orchestrators_runs_end_to_end() {
    if !has_program("jq") {
        return;
    }
    let house = House::new(&[]);
    let client = Client::new(&house);
    let program = linked(&house, &house.world.path("acpx"));
    let mut script = Command::new("bash");
    script.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    script
        .arg(repository().join("tests/smoke/acpx.sh"))
        .arg("scripted")
        .arg(&client.dir)
        .arg(program.get_program());
    let output = run(&mut script, LONG).ok();
    assert_eq!(output.stdout.lines().filter(|line| line.starts_with("ok ")).count(), 6, "{output:?}");
    house.end();
}
