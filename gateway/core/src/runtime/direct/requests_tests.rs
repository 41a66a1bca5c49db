//! Bounds of what an agent asks for.

use super::tests::running;
use super::*;
use crate::backend::RequestReply;
use serde_json::json;

#[test]
fn large_open_requests_are_bounded_together() {
    let (mut link, _) = running();
    let title = "x".repeat(4_000_000);
    let ask = |id: u64| {
        let params = json!({ "toolCall": { "toolCallId": "t", "title": title } });
        json!({ "id": id, "method": "session/request_permission", "params": params }).to_string()
    };
    for id in 0..4 {
        let steps = link.stream(id, ask(id).as_bytes());
        assert!(matches!(steps[..], [BackendStep::Request(_)]), "{id}");
    }
    let steps = link.stream(4, ask(4).as_bytes());
    let [BackendStep::Log(_), BackendStep::Send { bytes, .. }] = &steps[..] else { panic!("{steps:?}") };
    assert!(String::from_utf8_lossy(bytes).contains("-32005"));
    // Small ones find room, and large ones again once one is answered.
    let small = br#"{"id":9,"method":"session/request_permission","params":{}}"#;
    assert!(matches!(link.stream(9, small)[..], [BackendStep::Request(_)]));
    link.answer(&RequestReply { at: 0, outcome: Ok("{}".to_owned()), is_rejection: false });
    assert!(matches!(link.stream(10, ask(10).as_bytes())[..], [BackendStep::Request(_)]));
}

/// A path or a command is stored several times over; what no system call takes is refused before that.
#[test]
fn longest_paths_and_commands_are_asked_and_longer_ones_refused() {
    let (mut link, _) = running();
    let path = |bytes: usize| json!({ "path": "p".repeat(bytes), "content": "" });
    let args = |bytes: usize| json!({ "command": "c", "args": ["'".repeat(bytes)] });
    let variable = json!({ "command": "c", "env": [{ "name": "N", "value": "v".repeat(70_000) }] });
    for (method, params, is_asked) in [
        ("fs/read_text_file", path(4_096), true),
        ("fs/read_text_file", path(4_097), false),
        ("fs/write_text_file", path(4_097), false),
        ("terminal/create", args(60_000), true),
        ("terminal/create", args(70_000), false),
        ("terminal/create", json!({ "command": "c".repeat(70_000) }), false),
        ("terminal/create", variable, false),
    ] {
        let line = json!({ "id": 1, "method": method, "params": params }).to_string();
        match &link.stream(u64::from(is_asked), line.as_bytes())[..] {
            [BackendStep::Request(_)] => assert!(is_asked, "{method}"),
            [BackendStep::Log(_), BackendStep::Send { bytes, .. }] => {
                assert!(!is_asked, "{method}");
                assert!(String::from_utf8_lossy(bytes).contains("-32602"), "{method}");
            }
            steps => panic!("{steps:?}"),
        }
    }
}
