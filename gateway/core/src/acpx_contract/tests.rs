use super::*;
use crate::event::{EventKind, EventRow};
use crate::event_json::write_journal_row;
use crate::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::ids::{RunId, SessionKey};
use proptest::prelude::*;
use serde_json::{Value, json};

const KEY: &str = "agent:demo:acp:01";
const AT_MS: u64 = 1_700_000_000_123;

/// Journal of one run.
struct Journal {
    run: RunId,
    lines: Vec<String>,
}

impl Journal {
    fn new() -> Self {
        Self { run: RunId::mint(), lines: Vec::new() }
    }

    fn add(&mut self, kind: EventKind, payload: &str) -> &mut Self {
        self.add_with(kind, payload, None)
    }

    fn add_with(&mut self, kind: EventKind, payload: &str, extra: Option<&str>) -> &mut Self {
        let number = self.lines.len() as u64 + 1;
        let row = EventRow {
            session_key: SessionKey::parse(KEY).unwrap(),
            session_seq: number,
            run_id: Some(self.run),
            seq: Some(number),
            kind,
            payload: payload.to_owned(),
            extra: extra.map(str::to_owned),
            created_at_ms: AT_MS,
        };
        let mut line = String::new();
        write_journal_row(&row, &mut line);
        self.lines.push(line);
        self
    }

    /// Lines of the turn, and its exit code.
    fn turn(&self, mut lines: TurnLines) -> (Vec<Value>, Option<u8>) {
        let mut out = String::new();
        for line in &self.lines {
            lines.push(&JournalLine::parse(line).unwrap(), &mut out);
        }
        (out.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), lines.exit())
    }

    fn lines_of(&self) -> TurnLines {
        TurnLines::new(KEY, Some("s1"), &self.run.to_string())
    }

    fn watch(&self, from: Option<WatchCursor>) -> Vec<Value> {
        let after = from.as_ref().map_or(0, |from| usize::try_from(from.seq).unwrap());
        let (mut lines, mut out) = (WatchLines::new(KEY, Some("s1"), from), String::new());
        for line in &self.lines[after..] {
            lines.push(&JournalLine::parse(line).unwrap(), &mut out);
        }
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn text(&self, mut text: TurnText) -> String {
        let mut out = String::new();
        for line in &self.lines {
            text.push(&JournalLine::parse(line).unwrap(), &mut out);
        }
        text.flush(&mut out);
        out
    }
}

const TEXT: &str = r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"hé"}}"#;

#[test]
fn turn_has_one_line_for_each_message_in_the_envelope() {
    let mut journal = Journal::new();
    let run = journal.run.to_string();
    journal
        .add(EventKind::Prompt, r#"{"text":"hi","mode":"prompt","author":"me"}"#)
        .add_with(EventKind::AgentMessage, TEXT, Some(r#"{"_meta":{"n":1e3}}"#))
        .add(
            EventKind::AgentMessage,
            r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"image","data":"AA==","mimeType":"image/png"}}"#,
        )
        .add(EventKind::AgentThought, r#"{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"h"}}"#)
        .add(
            EventKind::ToolCall,
            r#"{"sessionUpdate":"tool_call","toolCallId":"t","title":"Edit","kind":"edit","status":"pending"}"#,
        )
        .add(EventKind::ToolCallUpdate, r#"{"sessionUpdate":"tool_call_update","toolCallId":"t","status":"completed"}"#)
        .add(EventKind::Plan, r#"{"sessionUpdate":"plan","entries":[]}"#)
        .add(EventKind::Update, r#"{"sessionUpdate":"current_mode_update","currentModeId":"code"}"#)
        .add(EventKind::Update, r#"{"sessionUpdate":"usage_update","used":1,"size":9}"#)
        .add(EventKind::Update, r#"{"sessionUpdate":"x"}"#)
        .add(EventKind::Extension, r#"{"method":"_x/y","params":{"a":1}}"#)
        .add(EventKind::Status, r#"{"status":"ready","text":"t"}"#)
        .add(EventKind::Done, r#"{"stop_reason":"end_turn","result":{"stopReason":"end_turn","usage":{"n":12345678901234567890}}}"#)
        .add(EventKind::AgentMessage, TEXT);
    let update =
        |update: &str| json!({"sessionId": "s1", "update": serde_json::from_str::<Value>(update).unwrap()});
    let mut first = update(TEXT);
    first["_meta"] = json!({"n": 1e3});
    let image = json!({"type": "image", "data": "AA==", "mimeType": "image/png"});
    let want = [
        json!({"method": "acpx/accepted", "params": {"sessionId": "s1"}, "type": "accepted"}),
        json!({"id": run, "method": "session/prompt",
               "params": {"sessionId": "s1", "prompt": [{"type": "text", "text": "hi"}]}, "type": "prompt"}),
        json!({"method": "session/update", "params": first, "type": "text", "content": "hé"}),
        json!({"method": "session/update", "type": "text", "content": image,
               "params": {"sessionId": "s1", "update": {"sessionUpdate": "agent_message_chunk", "content": image}}}),
        json!({"method": "session/update", "type": "thought", "content": "h",
               "params": update(r#"{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"h"}}"#)}),
        json!({"method": "session/update", "type": "tool_call", "toolCallId": "t", "title": "Edit",
               "status": "pending", "toolKind": "edit",
               "params": update(r#"{"sessionUpdate":"tool_call","toolCallId":"t","title":"Edit","kind":"edit","status":"pending"}"#)}),
        json!({"method": "session/update", "type": "tool_call_update", "toolCallId": "t", "status": "completed",
               "params": update(r#"{"sessionUpdate":"tool_call_update","toolCallId":"t","status":"completed"}"#)}),
        json!({"method": "session/update", "type": "plan", "entries": [],
               "params": update(r#"{"sessionUpdate":"plan","entries":[]}"#)}),
        json!({"method": "session/update", "type": "mode", "modeId": "code",
               "params": update(r#"{"sessionUpdate":"current_mode_update","currentModeId":"code"}"#)}),
        json!({"method": "session/update", "type": "usage", "used": 1, "size": 9,
               "params": update(r#"{"sessionUpdate":"usage_update","used":1,"size":9}"#)}),
        json!({"method": "session/update", "type": "update", "params": update(r#"{"sessionUpdate":"x"}"#)}),
        json!({"method": "_x/y", "params": {"a": 1}, "type": "update"}),
        json!({"method": "acpx/status", "params": {"status": "ready", "text": "t"}, "type": "update"}),
        json!({"method": "acpx/done", "params": {"sessionId": "s1", "stopReason": "end_turn"}, "type": "done",
               "stopReason": "end_turn"}),
        json!({"id": run, "result": {"stopReason": "end_turn", "usage": {"n": 12345678901234567890_u64}},
               "type": "result", "stopReason": "end_turn"}),
    ];
    let want: Vec<Value> = want
        .into_iter()
        .zip(1..)
        .map(|(mut line, seq)| {
            let envelope = json!({"jsonrpc": "2.0", "eventVersion": 1, "sessionId": KEY, "requestId": run, "seq": seq,
                                  "stream": "prompt"});
            line.as_object_mut().unwrap().extend(envelope.as_object().unwrap().clone());
            line
        })
        .collect();
    assert_eq!(journal.turn(journal.lines_of()), (want, Some(0)));
}

#[test]
fn cancelled_turn_is_a_result() {
    let mut journal = Journal::new();
    journal.add(EventKind::Done, r#"{"stop_reason":"cancelled"}"#);
    let (lines, exit) = journal.turn(journal.lines_of());
    assert_eq!(
        (lines[1]["result"].clone(), lines[1]["type"].clone()),
        (json!({"stopReason": "cancelled"}), json!("result"))
    );
    assert_eq!(exit, Some(0));
}

#[test]
fn refused_permissions_end_the_turn_with_an_error_unless_one_was_granted() {
    let request = |id: &str| {
        format!(
            r#"{{"permission_id":"{id}","params":{{"options":[{{"optionId":"y","kind":"allow_once"}},{{"optionId":"n","kind":"reject_once"}}]}}}}"#
        )
    };
    let settled = |id: &str, option: &str| {
        format!(r#"{{"permission_id":"{id}","outcome":"selected","option_id":"{option}"}}"#)
    };
    for (answers, fails, want) in [
        (vec!["n"], true, 5),
        (vec!["n", "y"], true, 0),
        (vec!["y"], true, 0),
        (vec!["n"], false, 0),
        (vec![], true, 0),
    ] {
        let mut journal = Journal::new();
        for (number, answer) in answers.iter().enumerate() {
            let id = format!("l:{number}");
            journal.add(EventKind::Permission, &request(&id));
            journal.add(EventKind::PermissionSettled, &settled(&id, answer));
        }
        journal.add(EventKind::Done, r#"{"stop_reason":"end_turn"}"#);
        let lines = journal.lines_of();
        let (lines, exit) = journal.turn(if fails { lines.failing_if_refused() } else { lines });
        assert_eq!(exit, Some(want), "{answers:?}");
        let last = lines.last().unwrap();
        assert_eq!(last["type"], if want == 5 { "error" } else { "result" }, "{answers:?}");
        if let Some(answer) = answers.first() {
            assert_eq!(lines[0]["method"], "session/request_permission");
            assert_eq!(lines[1]["result"], json!({"outcome": {"outcome": "selected", "optionId": answer}}));
            assert_eq!(lines[1]["type"], "permission_settled");
        }
    }
}

#[test]
fn every_code_has_its_number_and_exit_code() {
    use AcpxCode as A;
    for (code, want, detail) in [
        (Code::NoSession, A::NoSession, None),
        (Code::SessionClosed, A::NoSession, None),
        (Code::Timeout, A::Timeout, None),
        (Code::PermissionDenied, A::PermissionDenied, None),
        (Code::PermissionPromptUnavailable, A::PermissionPromptUnavailable, None),
        (Code::Usage, A::Usage, None),
        (Code::ConfigInvalid, A::Usage, None),
        (Code::AuthRequired, A::Runtime, Some("AUTH_REQUIRED")),
        (Code::Uncertain, A::Runtime, Some("QUEUE_DISCONNECTED_BEFORE_COMPLETION")),
        (Code::LimitReached, A::Runtime, Some("QUEUE_OWNER_OVERLOADED")),
        (Code::GatewayUnavailable, A::Runtime, Some("GATEWAY_UNAVAILABLE")),
        (Code::TurnFailed, A::Runtime, Some("ACP_TURN_FAILED")),
        (Code::Runtime, A::Runtime, None),
    ] {
        let error = ContractError::from(&Failure::of(code));
        assert_eq!((error.code, error.detail.as_deref()), (want, detail), "{code}");
        assert_eq!(error.retryable, code == Code::LimitReached, "{code}");
    }
    let table = A::ALL.map(|code| (code.as_str(), code.number(), code.exit()));
    assert_eq!(
        table,
        [
            ("NO_SESSION", -32002, 4),
            ("TIMEOUT", -32070, 3),
            ("PERMISSION_DENIED", -32071, 5),
            ("PERMISSION_PROMPT_UNAVAILABLE", -32072, 5),
            ("USAGE", -32602, 2),
            ("RUNTIME", -32603, 1),
        ]
    );
}

#[test]
fn error_line_keeps_the_agents_own_error() {
    let acp = json!({"code": -32000, "message": "sign in", "data": {"methods": ["a"]}});
    let failure =
        Failure { acp: Some(Box::new(acp.clone())), ..Failure::of(Code::AuthRequired).origin("agent") };
    let line = ContractError::from(&failure).line(&Envelope::of_turn(KEY, "r", 3), "2026-01-01T00:00:00Z");
    let text = Code::AuthRequired.text();
    let want = json!({
        "jsonrpc": "2.0", "id": null,
        "error": {"code": -32000, "message": "sign in",
                  "data": {"acpxCode": "RUNTIME", "detailCode": "AUTH_REQUIRED", "origin": "acp", "retryable": false,
                           "sessionId": KEY, "methods": ["a"]}},
        "eventVersion": 1, "sessionId": KEY, "requestId": "r", "seq": 3, "stream": "prompt", "type": "error",
        "code": "RUNTIME", "detailCode": "AUTH_REQUIRED", "origin": "acp", "message": text, "retryable": false,
        "timestamp": "2026-01-01T00:00:00Z", "acp": acp,
    });
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), want);
    let own = ContractError::new(AcpxCode::Usage, "m").line(&Envelope::of_control(None), "t");
    let own: Value = serde_json::from_str(&own).unwrap();
    assert_eq!(
        own["error"],
        json!({"code": -32602, "message": "m", "data": {"acpxCode": "USAGE", "origin": "cli",
        "retryable": false, "sessionId": "unknown"}})
    );
    assert_eq!(
        (own["stream"].clone(), own["seq"].clone(), own.get("requestId")),
        (json!("control"), json!(1), None)
    );
}

#[test]
fn errors_are_read_in_old_and_new_shapes() {
    use AcpxCode as A;
    let cases = [
        (json!({"message": "gone"}), A::Runtime, None),
        (json!({"type": "error", "code": "TIMEOUT", "message": "m"}), A::Timeout, None),
        (
            json!({"code": "RUNTIME", "detailCode": "QUEUE_OWNER_CLOSED", "message": "m"}),
            A::Runtime,
            Some("QUEUE_OWNER_CLOSED"),
        ),
        (json!({"code": "NEW_CODE", "message": "m"}), A::Runtime, Some("NEW_CODE")),
        (
            json!({"code": "NO_SESSION", "detail_code": "SESSION_AMBIGUOUS", "message": "m"}),
            A::NoSession,
            Some("SESSION_AMBIGUOUS"),
        ),
        (
            json!({"error": {"code": -32070, "message": "m", "data": {"acpxCode": "TIMEOUT"}}}),
            A::Timeout,
            None,
        ),
        (
            json!({"error": {"code": -32603, "message": "m", "data": {"acpxCode": "RUNTIME", "detailCode": "D"}}}),
            A::Runtime,
            Some("D"),
        ),
        (json!({"error": {"code": -32603, "message": "m"}}), A::Runtime, None),
        (json!({"error": {"code": -32000, "message": "m"}}), A::Runtime, Some("AUTH_REQUIRED")),
        (
            json!({"error": {"code": -1, "message": "m", "data": {"authRequired": true}}}),
            A::Runtime,
            Some("AUTH_REQUIRED"),
        ),
    ];
    for (value, code, detail) in cases {
        let error = ContractError::read(&value);
        assert_eq!((error.code, error.detail.as_deref()), (code, detail), "{value}");
        assert!(!error.message.is_empty());
    }
}

#[test]
fn missing_resources_are_read_in_all_variants() {
    for acp in [
        json!({"code": -32002, "message": "m"}),
        json!({"code": -32001, "message": "m"}),
        json!({"code": -32603, "message": "Resource not found"}),
        json!({"code": -32603, "message": "Session \"a-b\" not found"}),
        json!({"code": -32602, "message": "m", "data": {"details": ["Unknown session x"]}}),
        json!({"code": -32603, "message": "m", "data": {"error": {"kind": "RESOURCE_NOT_FOUND"}}}),
        json!({"code": -32603, "message": "invalid session identifier"}),
    ] {
        let failure =
            json!({"code": "ACP_TURN_FAILED", "message": "m", "detail_code": "AGENT_ERROR", "acp": acp});
        assert_eq!(ContractError::read(&failure).code, AcpxCode::NoSession, "{acp}");
        assert_eq!(ContractError::read(&json!({"error": acp})).code, AcpxCode::NoSession, "{acp}");
    }
    let other = json!({"code": "ACP_TURN_FAILED", "message": "m", "acp": {"code": -32603, "message": "file not found"}});
    assert_eq!(ContractError::read(&other).code, AcpxCode::Runtime);
}

#[test]
fn watch_resumes_after_any_cursor_without_repetition_or_gap() {
    let mut journal = Journal::new();
    journal
        .add(EventKind::Prompt, r#"{"text":"hi"}"#)
        .add(EventKind::AgentMessage, TEXT)
        .add(EventKind::Replay, TEXT)
        .add(EventKind::Done, r#"{"stop_reason":"cancelled"}"#)
        .add(EventKind::Error, r#"{"code":"TIMEOUT","message":"m"}"#);
    let all = journal.watch(None);
    let types: Vec<&str> = all.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["turn_started", "message", "message", "message", "turn_result", "turn_result"]);
    assert_eq!(all[4]["result"], json!({"status": "cancelled", "stopReason": "cancelled"}));
    assert_eq!(all[5]["result"], json!({"status": "failed", "error": {"message": "m", "code": "TIMEOUT"}}));
    assert!(all.iter().all(|line| line["requestId"] == journal.run.to_string()));
    for (number, line) in all.iter().enumerate() {
        let cursor = WatchCursor::decode(line["cursor"].as_str().unwrap()).unwrap();
        assert_eq!(journal.watch(Some(cursor)), all[number + 1..], "{line}");
    }
    for text in ["", "!", "WyJhIl0", "e30"] {
        assert_eq!(WatchCursor::decode(text), None, "{text}");
    }
}

#[test]
fn texts_are_those_of_acpx() {
    let mut journal = Journal::new();
    journal
        .add(EventKind::Prompt, r#"{"text":"hi"}"#)
        .add(EventKind::AgentThought, r#"{"content":{"type":"text","text":"one\ntwo"}}"#)
        .add(EventKind::AgentMessage, r#"{"content":{"type":"text","text":"Hello"}}"#)
        .add(
            EventKind::ToolCall,
            r#"{"toolCallId":"t","title":"Run tests","kind":"execute","status":"pending","rawInput":{"command":"make","args":["test"]}}"#,
        )
        .add(EventKind::ToolCallUpdate, r#"{"toolCallId":"t","status":"in_progress"}"#)
        .add(
            EventKind::ToolCallUpdate,
            r#"{"toolCallId":"t","status":"completed","locations":[{"path":"/a","line":3}],"rawOutput":{"stdout":"ok\n"}}"#,
        )
        .add(EventKind::Plan, r#"{"entries":[{"content":"a","status":"pending"}]}"#)
        .add(EventKind::AgentMessage, r#"{"content":{"type":"text","text":"Done."}}"#)
        .add(EventKind::Done, r#"{"stop_reason":"end_turn"}"#);
    let want = "[thinking] one\n           two\nHello\n\n[tool] Run tests (pending)\n  input: make test\n\n\
                [tool] Run tests (completed)\n  kind: execute\n  input: make test\n  files: /a:3\n  output:\n    ok\n\n\
                [plan]\n  - [pending] a\nDone.\n\n[done] end_turn\n";
    assert_eq!(journal.text(TurnText::full()), want);
    assert_eq!(journal.text(TurnText::quiet()), "HelloDone.\n");
    let (mut text, mut out) = (TurnText::full(), String::new());
    text.error("TIMEOUT", "m", &mut out);
    assert_eq!(out, "[error] TIMEOUT: m\n");
    assert_eq!(Journal::new().add(EventKind::Done, "{}").text(TurnText::quiet()), "\n", "an empty answer");
}

/// What an agent may repeat without end is not kept: long thoughts, and many or large tool calls.
#[test]
fn text_of_a_turn_is_made_in_bounded_memory() {
    let chunk = json!({"content": {"type": "text", "text": "x".repeat(100_000)}}).to_string();
    let (mut text, mut out) = (TurnText::full(), String::new());
    let mut push = |kind: EventKind, payload: &str| {
        let mut journal = Journal::new();
        journal.add(kind, payload);
        text.push(&JournalLine::parse(&journal.lines[0]).unwrap(), &mut out);
        out.clone()
    };
    for _ in 0..100 {
        assert_eq!(push(EventKind::AgentThought, &chunk), "");
    }
    let call = |id: String| json!({"toolCallId": id, "title": "t", "status": "pending", "content": [chunk]});
    for n in 0..300 {
        // A call that repeats its output is not forgotten.
        push(EventKind::ToolCallUpdate, &call("same".to_owned()).to_string());
        push(EventKind::ToolCallUpdate, &call(format!("{}", n / 3)).to_string());
    }
    let held = format!("{text:?}").len();
    assert!(held < 20 * 1024 * 1024, "{held} bytes are kept");
    assert!(out.starts_with("[thinking] xxx"));
    let starts = out.matches("[tool]").count();
    assert!((101..110).contains(&starts), "{starts}");
}

#[test]
fn names_hold_in_a_directory_and_its_parents_up_to_the_root() {
    let naming = |cwd: &str, root: Option<&str>, name: &str| AcpxNaming {
        name: name.to_owned(),
        cwd: cwd.to_owned(),
        root: root.map(str::to_owned),
        replace: false,
    };
    for (cwd, root, want) in [
        ("/a/b/c", Some("/a"), &["/a/b/c", "/a/b", "/a"] as &[&str]),
        ("/a/b", Some("/a/b"), &["/a/b"]),
        ("/a/b", None, &["/a/b"]),
        ("/", None, &["/"]),
    ] {
        let naming = naming(cwd, root, "n");
        assert_eq!(naming.directories().collect::<Vec<_>>(), want);
        assert_eq!(naming.check(), Ok(()));
    }
    for (cwd, root, name) in [
        ("a", None, "n"),
        ("/a/../b", None, "n"),
        ("/a", Some("/b"), "n"),
        ("/a", Some("/a/b"), "n"),
        ("/a", None, "n\n"),
        ("/a", None, &"n".repeat(201)),
    ] {
        assert!(naming(cwd, root, name).check().is_err(), "{cwd} {root:?} {name}");
    }
}

fn any_row() -> impl Strategy<Value = (EventKind, String)> {
    let text = ".{0,20}";
    (0..EventKind::ALL.len(), text).prop_map(|(pick, text)| {
        let kind = EventKind::ALL[pick];
        let payload = match kind {
            EventKind::Prompt => json!({"text": text}),
            EventKind::Done => json!({"stop_reason": text}),
            EventKind::Error => json!({"code": text, "message": text, "acp": {"code": 1, "message": text}}),
            EventKind::Permission | EventKind::PermissionSettled => {
                json!({"permission_id": text, "params": {"options": [{"optionId": text}]}, "option_id": text})
            }
            EventKind::Extension => json!({"method": text, "params": [text]}),
            _ => json!({"sessionUpdate": text, "content": {"type": "text", "text": text}, "title": text}),
        };
        (kind, payload.to_string())
    })
}

proptest! {
    #[test]
    fn lines_are_numbered_and_every_ended_run_has_one_result_or_error(
        rows in prop::collection::vec(any_row(), 0..20),
        broken in prop::collection::vec(any::<String>(), 0..3),
        is_ended in any::<bool>(),
        is_refused in any::<bool>(),
    ) {
        let mut journal = Journal::new();
        for (kind, payload) in rows {
            journal.add(kind, &payload);
        }
        for payload in broken {
            journal.add(EventKind::Status, &payload).add(EventKind::AgentMessage, &payload);
        }
        if is_ended {
            journal.add(EventKind::Done, "{}");
        }
        let lines = journal.lines_of();
        let (lines, exit) = journal.turn(if is_refused { lines.failing_if_refused() } else { lines });
        let ends = lines.iter().filter(|line| line["type"] == "result" || line["type"] == "error").count();
        prop_assert_eq!(ends, usize::from(exit.is_some()));
        prop_assert!(!is_ended || exit.is_some());
        for (line, number) in lines.iter().zip(1_u64..) {
            prop_assert_eq!(line["seq"].as_u64(), Some(number));
            prop_assert_eq!(&line["jsonrpc"], "2.0");
            prop_assert_eq!(&line["eventVersion"], 1);
            prop_assert_eq!(&line["sessionId"], KEY);
            prop_assert_eq!(&line["requestId"], &journal.run.to_string());
        }
        let watched = journal.watch(None);
        prop_assert!(watched.iter().all(|line| line["cursor"].is_string() && line["type"].is_string()));
        journal.text(TurnText::full());
        journal.text(TurnText::quiet());
    }
}
