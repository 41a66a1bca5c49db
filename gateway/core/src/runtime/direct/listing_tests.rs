//! List of an agent's stored sessions.

use super::open_tests::{failure, initialized};
use super::tests::{defaults, events, sent};
use super::*;
use crate::backend::SessionListing;
use serde_json::{Value, json};

fn listing(scope: SessionListing) -> StartSessionParams {
    StartSessionParams { listing: Some(scope), ..defaults() }
}

fn able() -> Value {
    json!({ "protocolVersion": 1, "agentCapabilities": { "sessionCapabilities": { "list": {} } } })
}

/// Sends the answer to the only request in `steps`.
fn answer(machine: &mut DirectMachine, steps: &[BackendStep], result: &Value) -> Vec<BackendStep> {
    let (request, _) = sent(steps).remove(0);
    assert_eq!(request["method"], "session/list");
    machine.receive(&json!({ "id": request["id"], "result": result }))
}

fn page(steps: &[BackendStep]) -> Value {
    let payload: Value = serde_json::from_str(&events(steps).remove(0).2).unwrap();
    assert_eq!(payload["status"], "agent_sessions");
    json!({ "sessions": payload["sessions"], "more": payload["more"] })
}

#[test]
fn pages_are_read_until_there_is_no_cursor() {
    let (mut machine, steps) = initialized(&listing(SessionListing::Directory), able());
    assert_eq!(sent(&steps)[0].0["params"], json!({ "cwd": "/w" }));
    let entries = json!([
        { "sessionId": "a", "cwd": "/w", "title": "one\ntwo", "updatedAt": "2026-01-01T00:00:00Z" },
        { "cwd": "/w" },
        { "sessionId": 7 },
    ]);
    let steps = answer(&mut machine, &steps, &json!({ "sessions": entries, "nextCursor": "2" }));
    let first =
        json!({ "session_id": "a", "cwd": "/w", "title": "one two", "updated_at": "2026-01-01T00:00:00Z" });
    assert_eq!(page(&steps), json!({ "sessions": [first], "more": false }));
    assert_eq!(sent(&steps)[0].0["params"], json!({ "cwd": "/w", "cursor": "2" }));
    // A gateway that was killed continues with the same page.
    let mut machine = DirectMachine::open(Some(&machine.save())).unwrap();
    let steps =
        answer(&mut machine, &steps, &json!({ "sessions": [{ "sessionId": "b" }], "nextCursor": null }));
    assert_eq!(page(&steps), json!({ "sessions": [{ "session_id": "b" }], "more": false }));
    assert_eq!(steps.last(), Some(&BackendStep::Listed));
}

#[test]
fn long_lists_are_cut() {
    let entries: Vec<Value> = (0..600).map(|n| json!({ "sessionId": n.to_string() })).collect();
    let full = json!({ "sessions": entries, "nextCursor": "more" });
    let (mut machine, steps) = initialized(&listing(SessionListing::All), able());
    assert_eq!(sent(&steps)[0].0["params"], json!({}));
    let steps = answer(&mut machine, &steps, &full);
    let steps = answer(&mut machine, &steps, &full);
    let last = page(&steps);
    assert_eq!((last["sessions"].as_array().map(Vec::len), &last["more"]), (Some(400), &json!(true)));
    assert_eq!(steps.last(), Some(&BackendStep::Listed));
    // An agent that sends the same empty page for ever.
    let (mut machine, mut steps) = initialized(&listing(SessionListing::All), able());
    let mut pages = 0;
    while steps.last() != Some(&BackendStep::Listed) {
        steps = answer(&mut machine, &steps, &json!({ "sessions": [], "nextCursor": "same" }));
        pages += 1;
    }
    assert_eq!(pages, 100);
}

#[test]
fn agent_without_the_method_fails_the_list() {
    let (_, steps) = initialized(&listing(SessionListing::All), json!({ "protocolVersion": 1 }));
    assert_eq!(failure(&steps).detail_code.as_deref(), Some("LIST_NOT_SUPPORTED"));
    let (mut machine, steps) = initialized(&listing(SessionListing::All), able());
    let (request, _) = sent(&steps).remove(0);
    let refusal = json!({ "code": -32601, "message": "no such method" });
    let steps = machine.receive(&json!({ "id": request["id"], "error": refusal }));
    assert!(failure(&steps).message.contains("no such method"), "{steps:?}");
}
