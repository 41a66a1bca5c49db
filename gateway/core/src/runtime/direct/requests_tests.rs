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
