use super::*;
use crate::tests::event;
use acp_shared::ids::RunId;
use proptest::prelude::*;

const RUN: &str = "0190a000-0000-7000-8000-000000000001";

fn row(kind: EventKind, payload: &str, extra: Option<&str>) -> EventRow {
    let run_id = Some(RunId::parse(RUN).unwrap());
    let (payload, extra) = (payload.to_owned(), extra.map(str::to_owned));
    EventRow { session_seq: 7, run_id, seq: Some(3), payload, extra, ..event(kind, &Value::Null) }
}

#[test]
fn update_and_rest_of_params_are_copied_as_received() {
    let update = r#"{"sessionUpdate":"tool_call","n":12345678901234567890123,"n":1e3,"type":"x"}"#;
    let extra = r#"{"traceparent":"00-1","_meta":{"goose":{"k":1.0},"acphost":{"seq":99}}}"#;
    assert_eq!(
        agent_update(&row(EventKind::ToolCall, update, Some(extra))),
        concat!(
            r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"agent:demo:acp:1","update":"#,
            r#"{"sessionUpdate":"tool_call","n":12345678901234567890123,"n":1e3,"type":"x"},"traceparent":"00-1","#,
            r#""_meta":{"goose":{"k":1.0},"acphost":{"seq":7}}}}"#
        )
    );
    for meta in ["null", "7", "[]"] {
        let frame = agent_update(&row(EventKind::Plan, "{}", Some(&format!(r#"{{"_meta":{meta}}}"#))));
        assert!(frame.contains(r#""_meta":{"acphost":{"seq":7}}"#), "{frame}");
    }
}

#[test]
fn answers_hold_what_the_agent_answered() {
    let done = |payload: &str| prompt_answer("\"a\"", &row(EventKind::Done, payload, None));
    assert_eq!(
        done(
            r#"{"stop_reason":"end_turn","result":{"stopReason":"end_turn","usage":{"t":1e2},"_meta":{"k":1}}}"#
        ),
        format!(
            r#"{{"jsonrpc":"2.0","id":"a","result":{{"stopReason":"end_turn","usage":{{"t":1e2}},"_meta":{{"k":1,"acphost":{{"runId":"{RUN}","seq":7}}}}}}}}"#
        )
    );
    // A result with another stop reason than the run's: the run's counts.
    let cancelled: Value =
        serde_json::from_str(&done(r#"{"stop_reason":"cancelled","result":{"stopReason":"end_turn"}}"#))
            .unwrap();
    assert_eq!(cancelled["result"]["stopReason"], "cancelled");
}

#[test]
fn failures_of_runs_are_errors_of_the_agent_or_refusals() {
    let failed = |payload: &Value| -> Value {
        let frame = prompt_answer("1", &row(EventKind::Error, &payload.to_string(), None));
        serde_json::from_str::<Value>(&frame).unwrap()["error"].take()
    };
    let of_agent = json!({"code": "ACP_TURN_FAILED", "message": "m", "retryable": false,
        "acp": {"code": -32055, "message": "full", "data": {"n": 1}}});
    assert_eq!(failed(&of_agent), json!({"code": -32055, "message": "full", "data": {"n": 1}}));
    let ours = json!({"code": "ACP_RESUME_UNAVAILABLE", "message": "m", "retryable": false});
    assert_eq!(failed(&ours), json!({"code": -32010, "message": "m", "data": ours}));
    let login = json!({"code": "AUTH_REQUIRED", "message": "log in", "retryable": false});
    assert_eq!(
        failed(&login)["code"],
        if acp_shared::codes::Code::parse("AUTH_REQUIRED").is_some() { -32000 } else { -32603 }
    );
    assert_eq!(failed(&json!([]))["code"], -32603);
}

#[test]
fn permission_requests_keep_params_and_get_the_session_of_the_gateway() {
    let payload = r#"{"permission_id":"l:5","params":{"sessionId":"theirs","toolCall":{"n":1e3},"options":[],"_meta":{"k":1}},"deadline_at_ms":9}"#;
    let (question, frame) = question_and_frame(payload);
    assert_eq!((question.permission_id.as_str(), question.kind), ("l:5", QuestionKind::Permission));
    assert_eq!(
        frame,
        concat!(
            r#"{"jsonrpc":"2.0","id":"perm:l:5","method":"session/request_permission","params":{"sessionId":"#,
            r#""agent:demo:acp:1","toolCall":{"n":1e3},"options":[],"_meta":{"k":1,"acphost":{"deadlineAtMs":9,"#,
            r#""permissionId":"l:5"}}}}"#
        )
    );
    let payload = r#"{"permission_id":"l:5","outcome":"selected","option_id":"a","by":"ann"}"#;
    let (id, frame) = settled_of(&row(EventKind::PermissionSettled, payload, None)).unwrap();
    let frame: Value = serde_json::from_str(&frame).unwrap();
    let want = json!({"sessionId": "agent:demo:acp:1", "permissionId": "l:5", "optionId": "a", "by": "ann",
        "_meta": {"acphost": {"seq": 7}}});
    assert_eq!((id.as_str(), &frame["params"]), ("l:5", &want));
}

/// Question of a `permission` row, and the request for it.
fn question_and_frame(payload: &str) -> (PendingQuestion, String) {
    let row = row(EventKind::Permission, payload, None);
    let question = question_of(&row).unwrap();
    let frame = permission_request(&row.session_key, &question);
    (question, frame)
}

#[test]
fn elicitations_keep_params_and_get_the_session_of_the_gateway() {
    for (mode, kind) in [("form", QuestionKind::Form), ("url", QuestionKind::Page)] {
        let payload = format!(
            r#"{{"permission_id":"l:5","params":{{"mode":"{mode}","requestId":7,"n":1e3}},"form":{{"mode":"{mode}"}}}}"#
        );
        let (question, frame) = question_and_frame(&payload);
        assert_eq!(question.kind, kind);
        let want = concat!(
            r#"{"jsonrpc":"2.0","id":"perm:l:5","method":"elicitation/create","params":{"sessionId":"agent:demo:acp:1","#,
            r#""mode":"MODE","n":1e3,"_meta":{"acphost":{"permissionId":"l:5"}}}}"#
        );
        assert_eq!(frame, want.replace("MODE", mode));
    }
    let settled = r#"{"permission_id":"l:5","outcome":"cancelled","action":"cancel"}"#;
    let (_, frame) = settled_of(&row(EventKind::PermissionSettled, settled, None)).unwrap();
    assert!(frame.contains(r#""action":"cancel""#), "{frame}");
}

#[test]
fn completion_of_a_page_is_a_notification() {
    let complete = |payload: &str| page_completion(&row(EventKind::Status, payload, None));
    assert_eq!(
        complete(r#"{"status":"page_complete","text":"t","elicitation_id":"p1"}"#).unwrap(),
        r#"{"jsonrpc":"2.0","method":"elicitation/complete","params":{"elicitationId":"p1"}}"#
    );
    for other in [r#"{"status":"page_complete"}"#, r#"{"status":"x","elicitation_id":"p1"}"#, "7"] {
        assert_eq!(complete(other), None, "{other}");
    }
}

#[test]
fn only_own_notifications_of_agents_pass() {
    let pass = |payload: &str| extension(&row(EventKind::Extension, payload, None));
    assert_eq!(
        pass(r#"{"method":"_x/y","params":{"a":1e3,"sessionId":"theirs"}}"#).unwrap(),
        r#"{"jsonrpc":"2.0","method":"_x/y","params":{"a":1e3,"sessionId":"agent:demo:acp:1"}}"#
    );
    assert!(pass(r#"{"method":"_x/y","params":[1]}"#).unwrap().ends_with(r#""params":[1]}"#));
    for refused in [r#"{"method":"session/update"}"#, r#"{"method":"_acphost/x"}"#, r#"{"method":7}"#, "[]"] {
        assert_eq!(pass(refused), None, "{refused}");
    }
}

proptest! {
    #[test]
    fn any_payload_gives_frames_of_valid_json(text in ".{0,60}", pick in 0..EventKind::ALL.len()) {
        let kind = EventKind::ALL[pick];
        let payload = json!({"text": text, "permission_id": text, "params": text, "method": text, "result": text,
            "stop_reason": text, "code": text, "message": text}).to_string();
        let row = row(kind, &payload, Some(&json!({"_meta": text, "x": text}).to_string()));
        let mut frames = vec![agent_update(&row), prompt_answer("1", &row), gap_notice(&row), closed_update(&row)];
        frames.push(user_message(&row, &prompt_of(&row)));
        frames.push(turn_update(&row, &ended_turn(&row)));
        frames.extend(question_of(&row).map(|question| permission_request(&row.session_key, &question)));
        frames.extend(page_completion(&row));
        frames.extend(settled_of(&row).map(|(_, frame)| frame));
        frames.extend(extension(&row));
        for frame in frames {
            prop_assert!(!frame.contains(['\n', '\r']));
            prop_assert!(serde_json::from_str::<Value>(&frame).is_ok(), "{}", frame);
        }
    }
}
