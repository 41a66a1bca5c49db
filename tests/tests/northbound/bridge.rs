//! The stdio bridge.

use crate::cwd;
use acp_tests::house::{AGENT, House};
use acp_tests::northbound::{Client, agent_text, seqs, user_texts};
use acp_tests::wait::{SOON, until};
use serde_json::json;

fn bridge(house: &House, args: &[&str]) -> Client {
    Client::stdio(&mut house.plain(&[&["acp"], args].concat()))
}

#[test]
fn editor_talks_to_an_agent_and_end_of_input_detaches() {
    let house = House::with_approve_all(&[]);
    let mut editor = bridge(&house, &["--agent", AGENT]);
    assert_eq!(editor.info["agentInfo"]["name"], "acp-host");
    let session = editor.new_session(&cwd(&house));
    let id = editor.prompt(&session, "say hi");
    let (answer, updates) = editor.answer(id);
    assert_eq!(answer.json["result"]["stopReason"], "end_turn");
    assert_eq!(agent_text(&updates), "hi");
    let _ = editor.prompt(&session, "sleep 300\nsay after");
    until(SOON, "the prompt is accepted", || {
        house.history(&session).iter().filter(|event| event["type"] == "prompt").count() == 2
    });
    assert_eq!(editor.end_of_input(), Some(0));
    until(SOON, "the turn goes on", || {
        house.history(&session).iter().filter(|event| event["type"] == "done").count() == 2
    });
    house.end();
}

#[test]
fn given_session_and_directory_are_used() {
    let house = House::with_approve_all(&[]);
    let (house, key) = house.with_session();
    let mut editor = bridge(&house, &["--session", &key]);
    assert_eq!(editor.new_session(&cwd(&house)), key);
    let id = editor.prompt(&key, "say hi");
    assert_eq!(agent_text(&editor.answer(id).1), "hi");
    assert_eq!(editor.end_of_input(), Some(0));
    let other = house.world.dir("work/other");
    let mut editor = bridge(&house, &["--agent", AGENT, "--cwd", &other.to_string_lossy()]);
    let session = editor.new_session(&cwd(&house));
    let shown = house.verb(&["sessions", "show", &session]);
    assert_eq!(shown["cwd"], json!(other.canonicalize().unwrap()));
    assert_eq!(editor.end_of_input(), Some(0));
    house.end();
}

#[test]
fn killed_gateway_costs_the_editor_nothing() {
    let mut house = House::with_approve_all(&[]);
    let mut editor = bridge(&house, &["--agent", AGENT]);
    let session = editor.new_session(&cwd(&house));
    for round in 0..3 {
        let id = editor.prompt(&session, &format!("say r{round}\nchunks 30 pace_ms=20\nsay end"));
        let (first, _) = editor.find("the first update", |it| {
            it.json["params"]["update"]["content"]["text"] == format!("r{round}")
        });
        house.restart_gateway();
        let (answer, mut updates) = editor.answer(id);
        updates.insert(0, first);
        assert_eq!(answer.json["result"]["stopReason"], "end_turn", "{answer:?}");
        assert!(user_texts(&updates).is_empty(), "no echo: {updates:?}");
        let text = agent_text(&updates);
        assert_eq!((text.matches("r").count(), text.matches("end").count()), (1, 1), "{text}");
        assert_eq!(text.matches("0000").count(), 30, "{text}");
        let seqs = seqs(&updates);
        let mut unique = seqs.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(seqs, unique, "in order, nothing twice");
    }
    let prompts = house.history(&session).iter().filter(|event| event["type"] == "prompt").count();
    assert_eq!(prompts, 3);
    assert_eq!(editor.end_of_input(), Some(0));
    house.end();
}

#[test]
fn question_over_a_gateway_kill_is_answered_once() {
    let mut house = House::new(&[]);
    let mut editor = bridge(&house, &["--agent", AGENT]);
    let session = editor.new_session(&cwd(&house));
    let id = editor.prompt(&session, "permission");
    let (question, _) = editor.question();
    house.restart_gateway();
    editor.choose(&question, "allow_once");
    let (answer, updates) = editor.answer(id);
    assert_eq!(answer.json["result"]["stopReason"], "end_turn");
    assert!(updates.iter().all(|it| it.json["method"] != "session/request_permission"), "{updates:?}");
    assert_eq!(agent_text(&updates), "permission: selected allow_once");
    assert_eq!(editor.end_of_input(), Some(0));
    house.end();
}

#[test]
fn standard_output_holds_only_messages() {
    let house = House::new(&[]);
    let mut editor = bridge(&house, &[]);
    for (line, code) in [(json!([]), -32600), (json!({"id": 7}), -32600)] {
        editor.send(&line);
        let (error, _) = editor.find("the error", |it| it.json.get("error").is_some());
        assert_eq!(error.json["error"]["code"], code, "{error:?}");
    }
    assert_eq!(editor.end_of_input(), Some(0));
    let mut command = house.plain(&["acp"]);
    command.arg("--state-dir").arg(house.world.path("no-such"));
    let output = acp_tests::cli::run(&mut command, SOON);
    assert_eq!(output.code, Some(1), "{output:?}");
    assert_eq!(output.stdout, "", "{output:?}");
    house.end();
}
