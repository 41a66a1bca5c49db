//! Bounds of agent requests.

use super::tests::running;
use super::*;
use crate::backend::RequestReply;
use serde_json::json;

#[test]
fn large_open_requests_are_bounded_together() {
    let (mut machine, _) = running();
    let title = "x".repeat(4_000_000);
    let request_line = |id: u64| {
        let params = json!({ "toolCall": { "toolCallId": "t", "title": title } });
        json!({ "id": id, "method": "session/request_permission", "params": params }).to_string()
    };
    for id in 0..4 {
        let steps = machine.stream(id, request_line(id).as_bytes());
        assert!(matches!(steps[..], [BackendStep::Request(_)]), "{id}");
    }
    let steps = machine.stream(4, request_line(4).as_bytes());
    let [BackendStep::Log(_), BackendStep::Send { bytes, .. }] = &steps[..] else { panic!("{steps:?}") };
    assert!(String::from_utf8_lossy(bytes).contains("-32005"));
    // Small requests fit, and large ones again after an answer.
    let small = br#"{"id":9,"method":"session/request_permission","params":{}}"#;
    assert!(matches!(machine.stream(9, small)[..], [BackendStep::Request(_)]));
    machine.answer(&RequestReply { at: 0, outcome: Ok("{}".to_owned()), is_rejection: false });
    assert!(matches!(machine.stream(10, request_line(10).as_bytes())[..], [BackendStep::Request(_)]));
}

/// Values longer than system calls accept are refused before they are stored several times.
#[test]
fn paths_and_commands_over_the_limit_are_refused() {
    let (mut machine, _) = running();
    let path = |bytes: usize| json!({ "path": "p".repeat(bytes), "content": "" });
    let args = |bytes: usize| json!({ "command": "c", "args": ["'".repeat(bytes)] });
    let variable = json!({ "command": "c", "env": [{ "name": "N", "value": "v".repeat(70_000) }] });
    for (method, params, is_forwarded) in [
        ("fs/read_text_file", path(4_096), true),
        ("fs/read_text_file", path(4_097), false),
        ("fs/write_text_file", path(4_097), false),
        ("terminal/create", args(60_000), true),
        ("terminal/create", args(70_000), false),
        ("terminal/create", json!({ "command": "c".repeat(70_000) }), false),
        ("terminal/create", variable, false),
    ] {
        let line = json!({ "id": 1, "method": method, "params": params }).to_string();
        match &machine.stream(u64::from(is_forwarded), line.as_bytes())[..] {
            [BackendStep::Request(_)] => assert!(is_forwarded, "{method}"),
            [BackendStep::Log(_), BackendStep::Send { bytes, .. }] => {
                assert!(!is_forwarded, "{method}");
                assert!(String::from_utf8_lossy(bytes).contains("-32602"), "{method}");
            }
            steps => panic!("{steps:?}"),
        }
    }
}

fn elicit(id: u64, params: &serde_json::Value) -> Vec<u8> {
    json!({ "id": id, "method": "elicitation/create", "params": params }).to_string().into_bytes()
}

fn page(id: &str) -> serde_json::Value {
    json!({ "mode": "url", "message": "m", "url": "https://a/", "elicitationId": id, "sessionId": "s" })
}

#[test]
fn elicitation_is_forwarded_with_its_params_as_received() {
    let (mut machine, run_id) = running();
    let params = json!({ "mode": "form", "message": "m", "sessionId": "s", "_meta": { "a": 1 },
        "requestedSchema": { "properties": { "f": { "type": "boolean" } } } });
    let steps = machine.stream(5, &elicit(1, &params));
    let [BackendStep::Request(request)] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!(
        (request.at, request.run_id, request.params.as_str()),
        (5, Some(run_id), params.to_string().as_str())
    );
    assert!(request.what.elicitation().is_some() && request.what.is_question());
}

#[test]
fn unusable_elicitation_is_refused_with_the_name_of_the_param() {
    let (mut machine, _) = running();
    let nested = json!({ "a": { "type": "object" } });
    let form = json!({ "mode": "form", "message": "m", "requestedSchema": { "properties": nested, "required": ["a"] } });
    for (params, name) in [
        (form, "requestedSchema.properties.a.type"),
        (json!({ "mode": "voice", "message": "m" }), "mode"),
        (json!({ "mode": "url", "message": "m", "url": "file:///x", "elicitationId": "1" }), "url"),
    ] {
        let steps = machine.stream(5, &elicit(1, &params));
        let [BackendStep::Log(_), BackendStep::Send { bytes, .. }] = &steps[..] else { panic!("{steps:?}") };
        let reply: serde_json::Value = serde_json::from_slice(bytes).unwrap();
        assert_eq!(
            (&reply["error"]["code"], reply["error"]["message"].as_str()),
            (&json!(-32602), Some(format!("Missing or invalid: {name}").as_str()))
        );
    }
}

#[test]
fn turn_end_cancels_elicitations() {
    let (mut machine, run_id) = running();
    machine.stream(5, &elicit(1, &page("p1")));
    let mut restored = DirectMachine::open(Some(&machine.save())).unwrap();
    assert_eq!(restored, machine);
    let steps = restored.stream(30, super::tests::turn_result(run_id, "end_turn").to_string().as_bytes());
    let [BackendStep::RequestWithdrawn { at: 5 }, BackendStep::Send { bytes, .. }, ..] = &steps[..] else {
        panic!("{steps:?}")
    };
    let reply: serde_json::Value = serde_json::from_slice(bytes).unwrap();
    assert_eq!(reply, json!({ "jsonrpc": "2.0", "id": 1, "result": { "action": "cancel" } }));
}

#[test]
fn completion_of_an_accepted_page_is_reported_once() {
    let (mut machine, _) = running();
    machine.stream(5, &elicit(1, &page("p1")));
    machine.stream(6, &elicit(2, &page("p2")));
    machine.answer(&RequestReply { at: 5, outcome: Ok("{}".to_owned()), is_rejection: false });
    machine.answer(&RequestReply { at: 6, outcome: Ok("{}".to_owned()), is_rejection: true });
    let mut machine = DirectMachine::open(Some(&machine.save())).unwrap();
    let mut complete = |id: &str| {
        let line = json!({ "method": "elicitation/complete", "params": { "elicitationId": id } }).to_string();
        super::tests::events(&machine.stream(9, line.as_bytes())).len()
    };
    assert_eq!(
        ["p2", "p3", "p1", "p1"].map(&mut complete),
        [0, 0, 1, 0],
        "declined, unknown, accepted, repeated"
    );
}
