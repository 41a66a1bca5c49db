//! The open session: behaviour observed with real agents, and its handling.

use super::*;
use crate::backend::{AgentRequest, AgentRequestKind as Kind, PermissionOption};
use crate::config::{NonInteractive, PermissionMode};
use crate::permission;
use crate::rows::SessionMode;
use acp_shared::codes::Code;
use acp_shared::ids::LeaseId;
use serde_json::{Value, json};

pub(super) fn sent(steps: &[BackendStep]) -> Vec<(Value, InputKind)> {
    steps
        .iter()
        .filter_map(|step| match step {
            BackendStep::Send { bytes, kind } => Some((serde_json::from_slice(bytes).unwrap(), *kind)),
            _ => None,
        })
        .collect()
}

pub(super) fn events(steps: &[BackendStep]) -> Vec<(EventKind, Option<RunId>, String)> {
    steps
        .iter()
        .filter_map(|step| match step {
            BackendStep::Event(event) => Some((event.kind, event.run_id, event.payload.clone())),
            _ => None,
        })
        .collect()
}

impl DirectMachine {
    pub(super) fn receive(&mut self, message: &Value) -> Vec<BackendStep> {
        self.stream(9, message.to_string().as_bytes())
    }

    pub(super) fn submit_text(&mut self, run_id: RunId, text: &str) -> Vec<BackendStep> {
        self.submit(&SubmitParams { run_id, text: text.to_owned(), files: None, steer: false })
    }

    pub(super) fn answer_at(&mut self, at: u64) -> Vec<BackendStep> {
        self.answer(&RequestReply { at, outcome: Ok("{}".to_owned()), is_rejection: false })
    }
}

pub(super) fn turn_result(run_id: RunId, stop_reason: &str) -> Value {
    json!({ "id": format!("prompt:{run_id}"), "result": { "stopReason": stop_reason } })
}

pub(super) fn open_with(initialize: Value, input: &StartSessionParams) -> DirectMachine {
    let mut machine = DirectMachine::open(None).unwrap();
    let lease = input.lease_id;
    machine.start_session(input);
    machine.receive(&json!({ "id": format!("init:{lease}"), "result": initialize }));
    let steps = machine.receive(&json!({ "id": format!("new:{lease}"), "result": { "sessionId": "s1" } }));
    assert!(matches!(steps.last(), Some(BackendStep::Ready { .. })), "{steps:?}");
    machine
}

pub(in crate::runtime) fn defaults() -> StartSessionParams {
    StartSessionParams {
        lease_id: LeaseId::mint(),
        session_key: "agent:qwen:acp:1".to_owned(),
        session_mode: SessionMode::Persistent,
        permission: PermissionMode::Ask,
        non_interactive: NonInteractive::Deny,
        cwd: "/w".to_owned(),
        resume: None,
        mode: None,
        asking_mode: None,
        asks: false,
        options: Vec::new(),
        mcp_servers: Vec::new(),
        additional_directories: Vec::new(),
        client_fs: crate::config::ClientFs::Both,
        offer_terminal: true,
        agent: "qwen".to_owned(),
        auth_method: None,
        listing: None,
    }
}

pub(super) fn running() -> (DirectMachine, RunId) {
    let mut machine = open_with(json!({ "protocolVersion": 1 }), &defaults());
    let run_id = RunId::mint();
    machine.submit_text(run_id, "hi");
    (machine, run_id)
}

#[test]
fn prompt_that_is_too_long_for_a_frame_fails_before_it_is_sent() {
    let mut machine = open_with(json!({}), &defaults());
    // A control character has six bytes in JSON.
    let text = "\u{1}".repeat(6 * 1024 * 1024);
    let input = SubmitParams { run_id: RunId::mint(), text, files: None, steer: false };
    let steps = machine.submit(&input);
    let [BackendStep::TurnFailed { failure, .. }] = &steps[..] else { panic!("{} steps", steps.len()) };
    assert_eq!((failure.code, failure.detail_code.as_deref()), (Code::LimitReached, Some("PROMPT_TOO_LONG")));
    let input = SubmitParams { text: "hello".to_owned(), ..input };
    assert!(matches!(&machine.submit(&input)[..], [BackendStep::Send { .. }]));
}

#[test]
fn prompt_id_contains_its_run() {
    let mut machine = open_with(json!({ "protocolVersion": 1 }), &defaults());
    let run_id = RunId::mint();
    let steps = machine.submit_text(run_id, "\u{1f600} \"x\"\n");
    let want = json!({ "jsonrpc": "2.0", "id": format!("prompt:{run_id}"), "method": "session/prompt", "params": {
        "sessionId": "s1", "prompt": [{ "type": "text", "text": "\u{1f600} \"x\"\n" }] } });
    assert_eq!(sent(&steps), [(want, InputKind::Prompt { run_id })]);
    // The result is kept verbatim, numbers and unknown members included.
    let result = r#"{"stopReason":"made_up","usage":{"totalTokens":1e3},"x":12345678901234567890123}"#;
    let line = format!(r#"{{"id":"prompt:{run_id}","result":{result}}}"#);
    let done = BackendStep::TurnDone { run_id, stop_reason: "made_up".into(), result: result.into() };
    assert_eq!(machine.stream(9, line.as_bytes()), [done]);
}

#[test]
fn updates_are_journaled_verbatim() {
    let (mut machine, run_id) = running();
    let table = [
        ("agent_message_chunk", EventKind::AgentMessage),
        ("agent_thought_chunk", EventKind::AgentThought),
        ("tool_call", EventKind::ToolCall),
        ("tool_call_update", EventKind::ToolCallUpdate),
        ("plan", EventKind::Plan),
        ("user_message_chunk", EventKind::Update),
        ("usage_update", EventKind::Update),
        ("from_the_future", EventKind::Update),
    ];
    for (variant, kind) in table {
        let update = format!(r#"{{ "n":1e2,"sessionUpdate":"{variant}" ,"n":12345678901234567890123}}"#);
        let line =
            format!(r#"{{"method":"session/update","params":{{"sessionId":"s1","update":{update}}}}}"#);
        assert_eq!(events(&machine.stream(9, line.as_bytes())), [(kind, Some(run_id), update)]);
    }
    // An update that is not an object is kept too.
    let steps = machine.stream(9, br#"{"method":"session/update","params":{"update":7}}"#);
    assert_eq!(events(&steps), [(EventKind::Update, Some(run_id), "7".to_owned())]);
}

#[test]
fn other_members_of_an_update_are_journaled_as_received() {
    let (mut machine, run_id) = running();
    let update = r#"{"sessionUpdate":"tool_call","toolCallId":"t"}"#;
    for (rest, extra) in [
        ("", None),
        (r#","_meta":{ "n":1e2, "a\u0062":"\u00e9" }"#, Some(r#"{"_meta":{ "n":1e2, "a\u0062":"\u00e9" }}"#)),
        (r#","_meta":null,"later":[1],"_meta":2"#, Some(r#"{"_meta":null,"later":[1],"_meta":2}"#)),
    ] {
        let line =
            format!(r#"{{"method":"session/update","params":{{"sessionId":"s1","update":{update}{rest}}}}}"#);
        let event = NewEvent {
            run_id: Some(run_id),
            kind: EventKind::ToolCall,
            payload: update.to_owned(),
            extra: extra.map(str::to_owned),
        };
        assert!(machine.stream(9, line.as_bytes()).contains(&BackendStep::Event(event)), "{rest}");
    }
}

#[test]
fn update_of_another_session_is_logged_and_not_shown() {
    let (mut machine, run_id) = running();
    let params = r#"{"sessionId":"other","update":{"sessionUpdate":"agent_message_chunk"}}"#;
    let steps = machine.stream(9, format!(r#"{{"method":"session/update","params":{params}}}"#).as_bytes());
    assert!(matches!(steps.first(), Some(BackendStep::Log(_))));
    let payload = format!(r#"{{"method":"session/update","params":{params}}}"#);
    assert_eq!(events(&steps), [(EventKind::Extension, Some(run_id), payload)]);
}

#[test]
fn line_of_560_kb_is_processed_without_state() {
    let (mut machine, _) = running();
    let update =
        format!(r#"{{"sessionUpdate":"available_commands_update","x":"{}"}}"#, "c".repeat(560 * 1024));
    let line = format!(r#"{{"method":"session/update","params":{{"sessionId":"s1","update":{update}}}}}"#);
    let before = machine.save().len();
    let steps = machine.stream(9, line.as_bytes());
    assert!(matches!(&steps[..], [BackendStep::Event(event)] if event.payload == update));
    assert_eq!(machine.save().len(), before, "nothing of it is kept");
}

#[test]
fn request_ids_are_returned_verbatim() {
    for id in ["0", "\"0\"", "null", "-1", "1.50", "\"8f0e\\u002d1\"", "1e2", "12345678901234567890123"] {
        let (mut machine, run_id) = running();
        let params = r#"{"options":[]}"#;
        let line = format!(r#"{{"id":{id},"method":"session/request_permission","params":{params}}}"#);
        let steps = machine.stream(77, line.as_bytes());
        let what = Kind::Permission { title: "a tool call".into(), tool_kind: None, options: vec![] };
        let method = "session/request_permission".to_owned();
        let (run_id, params) = (Some(run_id), params.into());
        let ask = AgentRequest {
            at: 77,
            run_id,
            method,
            params,
            what,
            is_recalled: false,
            voters: crate::permission::Voters::Anyone,
        };
        assert_eq!(steps, [BackendStep::Request(ask)]);
        // Also after a restart of the gateway.
        let mut machine = DirectMachine::open(Some(&machine.save())).unwrap();
        let selected = permission::selected_result("y");
        let want = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{selected}}}\n");
        let steps = machine.answer(&RequestReply { at: 77, outcome: Ok(selected), is_rejection: false });
        let [BackendStep::Send { bytes, kind }] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!((bytes.as_slice(), *kind), (want.as_bytes(), InputKind::Answer { at: 77 }));
    }
}

#[test]
fn permission_title_falls_back_to_available_text() {
    for (params, title, kind) in [
        (json!({ "toolCall": { "title": "Write a.txt", "kind": "edit" } }), "Write a.txt", Some("edit")),
        (json!({}), "a tool call", None),
        (json!({ "toolCall": null, "options": 7 }), "a tool call", None),
        (
            json!({ "toolCall": { "title": " ", "content": [{ "type": "content", "content": { "type": "text", "text": "rm x" } }] } }),
            "rm x",
            None,
        ),
        (json!({ "toolCall": { "content": [{ "type": "diff", "path": "/a" }] } }), "/a", None),
        (json!({ "toolCall": { "toolCallId": "t1", "rawInput": { "command": "ls" } } }), "ls", None),
        (json!({ "toolCall": { "toolCallId": "t1" } }), "t1", None),
        (json!({ "title": "Run it?", "toolCall": { "toolCallId": "t1" } }), "Run it?", None),
    ] {
        let Kind::Permission { title: got, tool_kind, .. } = lens::permission(&params) else { panic!() };
        assert_eq!((got.as_str(), tool_kind.as_deref()), (title, kind), "{params}");
    }
    let options = json!({ "options": [
        { "optionId": "a", "name": "A", "kind": "allow_once" }, { "optionId": "b" }, { "name": "no id" }, 7,
    ]});
    let Kind::Permission { options, .. } = lens::permission(&options) else { panic!() };
    let option = |id: &str, name: &str, kind: &str| PermissionOption {
        id: id.into(),
        name: name.into(),
        kind: kind.into(),
    };
    assert_eq!(options, [option("a", "A", "allow_once"), option("b", "b", "")]);
}

#[test]
fn permission_options_have_one_numbering() {
    let option = |id: Value, kind: &str| json!({ "optionId": id, "name": kind, "kind": kind });
    let (all, no) = (|id: Value| option(id, "allow_always"), |id: Value| option(id, "reject_once"));
    let shifted = vec![all(json!(7)), json!(3), all(json!(" ")), no(json!("n")), all(json!("a"))];
    for (options, kinds) in [
        (vec![all(json!("2")), no(json!("1"))], Some(vec!["allow_always", "reject_once"])),
        (shifted, Some(vec!["reject_once", "allow_always"])),
        (vec![no(json!("x")), all(json!("x"))], None),
        (vec![json!({ "optionId": "x", "name": 7, "kind": ["allow_once"] })], Some(vec![""])),
    ] {
        let (mut machine, _) = running();
        let line =
            json!({ "id": 0, "method": "session/request_permission", "params": { "options": options } });
        let steps = machine.stream(10, line.to_string().as_bytes());
        let Some(kinds) = kinds else {
            assert_eq!(sent(&steps)[0].0["error"]["code"], -32602);
            assert!(!steps.iter().any(|step| matches!(step, BackendStep::Request(_))));
            continue;
        };
        let [BackendStep::Request(AgentRequest { params, what: Kind::Permission { options, .. }, .. })] =
            &steps[..]
        else {
            panic!("{steps:?}")
        };
        let of_row: Vec<&str> = options.iter().map(|option| option.kind.as_str()).collect();
        let params: Value = serde_json::from_str(params).unwrap();
        let listed = params["options"].as_array().unwrap();
        let shown: Vec<&str> =
            listed.iter().map(|option| option["kind"].as_str().unwrap_or_default()).collect();
        assert_eq!((&of_row, &shown), (&kinds, &kinds));
        let ids: Vec<&str> = options.iter().map(|option| option.id.as_str()).collect();
        assert_eq!(ids, listed.iter().filter_map(|option| option["optionId"].as_str()).collect::<Vec<_>>());
    }
}

#[test]
fn only_offered_requests_are_forwarded() {
    let (path, terminal) = (|| "/a".to_owned(), json!({ "terminalId": "t" }));
    let terminal_id = || "t".to_owned();
    let create = json!({ "command": "ls", "args": ["-l"], "env": [{ "name": "A", "value": "1" }], "cwd": "/w",
        "outputByteLimit": 5 });
    let created = Kind::TerminalCreate {
        command: "ls".into(),
        args: vec!["-l".into()],
        env: vec![("A".into(), "1".into())],
        cwd: Some("/w".into()),
        output_bytes_max: Some(5),
    };
    let (part, whole) =
        (json!({ "path": "/a", "line": 2, "limit": 3 }), json!({ "path": "/a", "line": null }));
    let text = json!({ "path": "/a", "content": "\u{e9}\n" });
    let offered = [
        ("fs/read_text_file", part, Kind::FsRead { path: path(), line: Some(2), limit: Some(3) }),
        ("fs/read_text_file", whole, Kind::FsRead { path: path(), line: None, limit: None }),
        ("fs/write_text_file", text, Kind::FsWrite { path: path(), content: "\u{e9}\n".into() }),
        ("terminal/create", create, created),
        ("terminal/output", terminal.clone(), Kind::TerminalOutput { terminal_id: terminal_id() }),
        ("terminal/wait_for_exit", terminal.clone(), Kind::TerminalWait { terminal_id: terminal_id() }),
        ("terminal/kill", terminal.clone(), Kind::TerminalKill { terminal_id: terminal_id() }),
        ("terminal/release", terminal, Kind::TerminalRelease { terminal_id: terminal_id() }),
    ];
    for (method, params, want) in &offered {
        let line = json!({ "id": 0, "method": method, "params": params }).to_string();
        let (mut machine, _) = running();
        let steps = machine.stream(5, line.as_bytes());
        let [BackendStep::Request(ask)] = &steps[..] else { panic!("{method}: {steps:?}") };
        assert_eq!(ask.what, *want, "{method}");
        // Requests that were not offered are answered at once, without stored state.
        let client_fs = crate::config::ClientFs::None;
        let input = StartSessionParams { client_fs, offer_terminal: false, ..defaults() };
        let mut machine = open_with(json!({}), &input);
        let before = machine.clone();
        let steps = machine.stream(5, line.as_bytes());
        let [(reply, InputKind::Answer { at: 5 })] = &sent(&steps)[..] else { panic!("{steps:?}") };
        assert_eq!((&reply["id"], &reply["error"]["code"]), (&json!(0), &json!(-32601)), "{method}");
        assert_eq!(machine, before);
        // A request without its parameters is refused.
        let (mut machine, _) = running();
        let steps = machine.receive(&json!({ "id": "u", "method": method, "params": {} }));
        assert_eq!(sent(&steps)[0].0["error"]["code"], -32602, "{method}");
    }
}

#[test]
fn unknown_requests_are_refused_and_journaled() {
    for method in ["craft/drainMidTurnQueue", "_x/y", "elicitation/new", "session/new", "mcp/message"] {
        let (mut machine, run_id) = running();
        let line = format!(r#"{{"id":0,"method":"{method}","params":{{ "a" : 1e1 }}}}"#);
        let steps = machine.stream(3, line.as_bytes());
        let payload = format!(r#"{{"method":"{method}","params":{{ "a" : 1e1 }}}}"#);
        assert_eq!(events(&steps), [(EventKind::Extension, Some(run_id), payload)]);
        let [(reply, InputKind::Answer { at: 3 })] = &sent(&steps)[..] else { panic!("{steps:?}") };
        assert_eq!((&reply["id"], &reply["error"]["code"]), (&json!(0), &json!(-32601)));
    }
    let (mut machine, run_id) = running();
    let steps = machine.stream(3, br#"{"method":"qwen/notify/session/mode-update"}"#);
    let payload = r#"{"method":"qwen/notify/session/mode-update"}"#.to_owned();
    assert_eq!(events(&steps), [(EventKind::Extension, Some(run_id), payload)]);
}

#[test]
fn turn_end_withdraws_and_cancels_permission_requests() {
    let (mut machine, run_id) = running();
    machine.cancel(run_id);
    machine.stream(10, br#"{"id":0,"method":"session/request_permission","params":{}}"#);
    machine.stream(20, br#"{"id":1,"method":"terminal/wait_for_exit","params":{"terminalId":"t"}}"#);
    let steps = machine.stream(30, turn_result(run_id, "cancelled").to_string().as_bytes());
    use BackendStep::{RequestWithdrawn, Send, TurnDone};
    let [RequestWithdrawn { at: 10 }, Send { bytes, .. }, TurnDone { .. }] = &steps[..] else {
        panic!("{steps:?}")
    };
    let reply: Value = serde_json::from_slice(bytes).unwrap();
    let want = json!({ "jsonrpc": "2.0", "id": 0, "result": { "outcome": { "outcome": "cancelled" } } });
    assert_eq!(reply, want);
    // A wait for a terminal outlives the turn.
    assert_eq!(sent(&machine.answer_at(20)).len(), 1);
}

#[test]
fn agent_can_withdraw_a_request() {
    for (id, cancelled_id) in [("0", "0"), ("\"a\"", "\"\\u0061\"")] {
        let (mut machine, _) = running();
        let line = format!(r#"{{"id":{id},"method":"session/request_permission","params":{{}}}}"#);
        machine.stream(10, line.as_bytes());
        let back = format!(r#"{{"method":"$/cancel_request","params":{{"requestId":{cancelled_id}}}}}"#);
        let steps = machine.stream(20, back.as_bytes());
        assert_eq!(steps.first(), Some(&BackendStep::RequestWithdrawn { at: 10 }));
        assert_eq!(sent(&steps)[0].0["error"]["code"], -32800);
        assert!(sent(&machine.answer_at(10)).is_empty());
        assert!(sent(&machine.stream(30, back.as_bytes())).is_empty(), "once");
    }
}

#[test]
fn open_requests_are_bounded() {
    let (mut machine, _) = running();
    for at in 0..1_000_u64 {
        machine.stream(at, br#"{"id":0,"method":"session/request_permission","params":{}}"#);
    }
    assert!(machine.save().len() < 32 * 1024, "{}", machine.save().len());
    let long =
        format!(r#"{{"id":"{}","method":"fs/read_text_file","params":{{"path":"/"}}}}"#, "x".repeat(2_000));
    let (mut machine, _) = running();
    assert_eq!(sent(&machine.stream(1, long.as_bytes()))[0].0["error"]["code"], -32603);
}

#[test]
fn turn_error_maps_to_failure_code() {
    for (error, code, detail) in [
        (json!({ "code": -32603, "message": "Internal error", "data": {} }), Code::TurnFailed, "AGENT_ERROR"),
        (json!({ "code": 400, "message": "bad" }), Code::TurnFailed, "AGENT_ERROR"),
        (json!({ "code": "429", "message": null }), Code::TurnFailed, "AGENT_ERROR"),
        (json!("just text"), Code::TurnFailed, "AGENT_ERROR"),
        (json!({ "code": -32000, "message": "Log in first" }), Code::AuthRequired, "AUTH_REQUIRED"),
    ] {
        let (mut machine, run_id) = running();
        let steps = machine.receive(&json!({ "id": format!("prompt:{run_id}"), "error": error }));
        let [BackendStep::TurnFailed { run_id: run, failure }] = &steps[..] else { panic!("{steps:?}") };
        let got = (*run, failure.code, failure.detail_code.as_deref());
        assert_eq!(got, (run_id, code, Some(detail)), "{error}");
        assert_eq!((failure.acp.as_deref(), failure.origin.as_deref()), (Some(&error), Some("agent")));
    }
}

#[test]
fn error_after_cancel_counts_as_cancelled() {
    for (cancelled, code, done) in [(true, -32603, true), (true, -32800, true), (false, -32603, false)] {
        let (mut machine, run_id) = running();
        if cancelled {
            let steps = machine.cancel(run_id);
            let want =
                json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": "s1" } });
            assert_eq!(sent(&steps), [(want, InputKind::Cancel { run_id })]);
        }
        let steps = machine.receive(&json!({ "id": format!("prompt:{run_id}"), "error": { "code": code } }));
        let is_done = matches!(&steps[..], [BackendStep::TurnDone { stop_reason, result, .. }]
            if stop_reason == "cancelled" && lens::value(result)["_meta"]["acp-host"]["error"]["code"] == code);
        assert_eq!(is_done, done, "{steps:?}");
    }
}

#[test]
fn unmatched_lines_are_logged_without_effect() {
    let (mut machine, run_id) = running();
    let (other_run, other_lease) = (RunId::mint(), LeaseId::mint());
    for line in [
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}"#.to_owned(),
        r#"{"error":{"code":-32700}}"#.to_owned(),
        r#"{"id":0,"result":{}}"#.to_owned(),
        format!(r#"{{"id":"prompt:{other_run}","result":{{"stopReason":"end_turn"}}}}"#),
        format!(r#"{{"id":"init:{other_lease}","result":{{}}}}"#),
        r#"{"id":"prompt","result":{}}"#.to_owned(),
    ] {
        let before = machine.clone();
        let steps = machine.stream(9, line.as_bytes());
        assert!(matches!(&steps[..], [BackendStep::Log(_)]), "{line}: {steps:?}");
        assert_eq!(machine, before);
    }
    let mut count = 0;
    for _ in 0..1_000 {
        let steps = machine.stream(9, b"npm warn: something");
        let status = (EventKind::Status, Some(run_id));
        count += events(&steps).iter().filter(|(kind, run, _)| (*kind, *run) == status).count();
        assert!(!steps.iter().any(|step| matches!(step, BackendStep::Failed(_))));
    }
    assert_eq!(count, 10, "reported at 1, 2, 4 … 512");
}

#[test]
fn steering_requires_agent_support() {
    let capable = json!({ "protocolVersion": 1, "_meta": { "steering": { "supported": true } } });
    for (initialize, can) in [
        (capable.clone(), true),
        (json!({ "agentCapabilities": capable }), true),
        (json!({ "_meta": { "steering": { "supported": "yes" } } }), false),
        (json!({}), false),
    ] {
        let mut machine = open_with(initialize, &defaults());
        assert!(!machine.can_steer(), "no turn is running");
        machine.submit_text(RunId::mint(), "a");
        assert_eq!(machine.can_steer(), can);
    }
    for (mut answer, taken) in [
        (json!({ "result": { "outcome": "injected" } }), true),
        (json!({ "result": { "outcome": "startedNewTurn" } }), true),
        (json!({ "result": { "outcome": "promptRequired" } }), false),
        (json!({ "result": {} }), false),
        (json!({ "error": { "code": -32601 } }), false),
    ] {
        let mut machine = open_with(json!({ "_meta": { "steering": { "supported": true } } }), &defaults());
        machine.submit_text(RunId::mint(), "a");
        let run_id = RunId::mint();
        let steps = machine.submit(&SubmitParams { run_id, text: "b".into(), files: None, steer: true });
        let [(request, InputKind::Steer { run_id: steered_run })] = &sent(&steps)[..] else {
            panic!("{steps:?}")
        };
        assert_eq!((*steered_run, &request["method"]), (run_id, &json!("_session/steering")));
        assert_eq!(request["params"]["prompt"][0]["text"], "b");
        answer["id"] = request["id"].clone();
        assert_eq!(
            machine.receive(&answer).last(),
            Some(&BackendStep::Steered { run_id, taken }),
            "{answer}"
        );
        assert_eq!(machine.receive(&answer).len(), 1, "once");
    }
}

#[test]
fn close_uses_the_supported_method() {
    use CloseMode::{Close, Discard};
    for (session_capabilities, close_mode, can_discard, method) in [
        (json!({ "delete": {}, "close": {} }), Discard, true, Some("session/delete")),
        (json!({ "close": {} }), Discard, false, Some("session/close")),
        (json!({ "close": {} }), Close, false, Some("session/close")),
        (json!({}), Discard, false, None),
        (json!({}), Close, false, None),
    ] {
        let capabilities = json!({ "agentCapabilities": { "sessionCapabilities": session_capabilities } });
        let mut machine = open_with(capabilities, &defaults());
        assert_eq!(machine.can_discard(), can_discard);
        let mut steps = machine.close(close_mode);
        if let Some(method) = method {
            let (request, _) = sent(&steps).remove(0);
            assert_eq!(request["method"], method);
            steps = machine.receive(&json!({ "id": request["id"], "result": {} }));
        }
        assert_eq!(steps, [BackendStep::CloseAnswered], "{close_mode:?} {method:?}");
    }
}

#[test]
fn close_waits_for_the_running_turn() {
    let mut machine =
        open_with(json!({ "agentCapabilities": { "sessionCapabilities": { "delete": {} } } }), &defaults());
    let run_id = RunId::mint();
    let prompt = sent(&machine.submit_text(run_id, "a"));
    machine.cancel(run_id);
    assert!(machine.close(CloseMode::Discard).is_empty(), "the turn first");
    let steps = machine.receive(&json!({ "id": prompt[0].0["id"], "result": { "stopReason": "cancelled" } }));
    assert_eq!(sent(&steps)[0].0["method"], "session/delete");
    assert!(matches!(steps[0], BackendStep::TurnDone { .. }), "{steps:?}");
}
