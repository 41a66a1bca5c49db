use super::*;
use crate::event::{EventKind, EventRow};
use crate::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::ids::RunId;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const STATELESS_META: &str = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"x"}}"#;

fn facts() -> ServerFacts<'static> {
    static AGENTS: std::sync::LazyLock<Vec<String>> =
        std::sync::LazyLock::new(|| vec!["demo".to_owned(), "other".to_owned()]);
    ServerFacts { version: "1.2.3", spawn_agents: &AGENTS }
}

fn value(received: MessageResult) -> Value {
    match received {
        MessageResult::Nothing => Value::Null,
        MessageResult::Reply(text) => {
            assert!(!text.contains('\n'), "one line: {text}");
            serde_json::from_str(&text).unwrap()
        }
        MessageResult::Call(call) => json!({ "call": format!("{:?}", call.call) }),
    }
}

fn answer(body: &str) -> Value {
    value(receive(body.as_bytes(), &facts()))
}

#[test]
fn messages_are_answered_in_both_eras() {
    let info = json!({"name": "acp-host", "version": "1.2.3"});
    let handshake =
        json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info});
    let discovered = json!({
        "resultType": "complete", "supportedVersions": ["2026-07-28", "2025-11-25"], "capabilities": {"tools": {}},
        "ttlMs": 60_000, "cacheScope": "private", "_meta": {"io.modelcontextprotocol/serverInfo": info},
    });
    let result = |id: Value, result: &Value| json!({"jsonrpc": "2.0", "id": id, "result": result});
    let error = |id: Value, code: i64, message: &str| json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}});
    let stateless = |method: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":"a","method":"{method}","params":{{"_meta":{STATELESS_META}}}}}"#)
    };
    for (body, want) in [
        (r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}"#.to_owned(),
            result(json!(0), &handshake)),
        (r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05"}}"#.to_owned(),
            result(json!(1), &handshake)),
        (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_owned(), Value::Null),
        (r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"sessions_list"}}"#.to_owned(), Value::Null),
        (r#"{"jsonrpc":"2.0","id":7,"result":{}}"#.to_owned(), Value::Null),
        (r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#.to_owned(), result(json!(2), &json!({}))),
        (stateless("ping"), result(json!("a"), &json!({"resultType": "complete"}))),
        (stateless("server/discover"), result(json!("a"), &discovered)),
        (r#"{"jsonrpc":"2.0","id":3,"method":"server/discover"}"#.to_owned(), result(json!(3), &discovered)),
        (r#"{"jsonrpc":"2.0","id":4,"method":"resources/list"}"#.to_owned(),
            error(json!(4), -32601, r#"the method "resources/list" is not served here"#)),
        (r#"{"jsonrpc":"2.0","id":4,"method":"tools/list","params":[1]}"#.to_owned(),
            error(json!(4), -32602, "params must be an object")),
        (r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{}}"#.to_owned(),
            error(json!(5), -32602, "name must be the name of a tool")),
        (r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"shell"}}"#.to_owned(),
            error(json!(5), -32602, r#"there is no tool "shell"; tools/list lists them"#)),
        ("{".to_owned(), error(Value::Null, -32700, "not JSON")),
        ("[]".to_owned(), error(Value::Null, -32600, "a JSON-RPC batch")),
    ] {
        assert_eq!(answer(&body), want, "{body}");
    }
    let wrong = stateless("tools/list").replace("2026-07-28", "2027-01-01");
    let data = json!({"supported": ["2026-07-28", "2025-11-25"], "requested": "2027-01-01"});
    let text = "this version of MCP is not supported";
    assert_eq!(answer(&wrong)["error"], json!({"code": -32022, "message": text, "data": data}));
}

#[test]
fn tools_have_the_documented_schemas() {
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let listed = answer(body);
    let tools = listed["result"]["tools"].as_array().unwrap();
    let key = json!({"type": "string", "minLength": 1, "maxLength": 256});
    let wait = json!({"type": "integer", "minimum": 0, "maximum": 600, "default": 0});
    let text = json!({"type": "string", "minLength": 1, "maxLength": 100_000});
    let limit = json!({"type": "integer", "minimum": 1, "maximum": 200, "default": 50});
    let object = |properties: Value, required: Option<Value>| {
        let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
        if let Some(required) = required {
            schema["required"] = required;
        }
        schema
    };
    let want = [
        (
            "sessions_list",
            object(
                json!({
            "states": {"type": "array", "items": {"enum": ["idle", "running", "error", "closed"]}}, "agent": key,
            "active_minutes": {"type": "integer", "minimum": 1}, "limit": limit, "cursor": key}),
                None,
            ),
        ),
        (
            "sessions_history",
            object(
                json!({
            "session": key, "after": {"type": "integer", "minimum": 0}, "limit": limit,
            "include_tools": {"type": "boolean", "default": false}}),
                Some(json!(["session"])),
            ),
        ),
        (
            "sessions_send",
            object(json!({"session": key, "text": text, "wait_s": wait}), Some(json!(["session", "text"]))),
        ),
        (
            "sessions_spawn",
            object(
                json!({
            "agent": key, "task": text, "label": key, "cwd": {"type": "string", "maxLength": 4096},
            "mode": {"enum": ["oneshot", "persistent"], "default": "oneshot"}, "wait_s": wait}),
                Some(json!(["task"])),
            ),
        ),
        ("session_status", object(json!({"session": {"default": "current"}}), None)),
    ];
    let found: Vec<(&str, Value)> =
        tools.iter().map(|tool| (tool["name"].as_str().unwrap(), tool["inputSchema"].clone())).collect();
    assert_eq!(found, want);
    assert!(tools[3]["description"].as_str().unwrap().ends_with("Agents that you may start: demo, other."));
    let modern =
        body.replace(r#""tools/list""#, &format!(r#""tools/list","params":{{"_meta":{STATELESS_META}}}"#));
    let modern = answer(&modern);
    assert_eq!(modern["result"]["tools"], listed["result"]["tools"]);
    assert_eq!(
        (&modern["result"]["resultType"], &modern["result"]["ttlMs"]),
        (&json!("complete"), &json!(60_000))
    );
}

fn call(tool: &str, arguments: &Value) -> MessageResult {
    let body = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": tool, "arguments": arguments}});
    receive(body.to_string().as_bytes(), &facts())
}

fn parsed(tool: &str, arguments: &Value) -> ToolCall {
    match call(tool, arguments) {
        MessageResult::Call(pending) => pending.call,
        other => panic!("{tool} {arguments}: {other:?}"),
    }
}

#[test]
fn arguments_have_defaults_and_bounds() {
    use crate::config::SessionMode;
    let (long, too_long) = ("k".repeat(256), "k".repeat(257));
    assert_eq!(
        parsed("sessions_list", &Value::Null),
        ToolCall::List(ListArguments {
            states: None,
            agent: None,
            active_minutes: None,
            limit: 50,
            cursor: None
        })
    );
    assert_eq!(
        parsed(
            "sessions_history",
            &json!({"session": long, "after": 0, "include_tools": true, "limit": 200})
        ),
        ToolCall::History(HistoryArguments {
            session: long.clone(),
            after: Some(0),
            limit: 200,
            include_tools: true
        })
    );
    assert_eq!(
        parsed("sessions_spawn", &json!({"task": "t"})),
        ToolCall::Spawn(SpawnArguments {
            agent: None,
            task: "t".into(),
            label: None,
            cwd: None,
            mode: SessionMode::Oneshot,
            wait_s: 0
        })
    );
    assert_eq!(
        parsed("sessions_send", &json!({"session": "s", "text": "ü".repeat(100_000), "wait_s": 600})),
        ToolCall::Send(SendArguments { session: "s".into(), text: "ü".repeat(100_000), wait_s: 600 })
    );
    assert_eq!(
        parsed("session_status", &json!({})),
        ToolCall::Status(StatusArguments { session: CURRENT.into() })
    );
    for (tool, arguments, want) in [
        ("sessions_list", json!({"limit": 0}), "limit must be 1 to 200"),
        ("sessions_list", json!({"limit": 201}), "limit must be 1 to 200"),
        ("sessions_list", json!({"active_minutes": 0}), "active_minutes must be 1 or more"),
        ("sessions_list", json!({"states": ["open"]}), "unknown variant `open`"),
        ("sessions_list", json!({"requester": "other"}), "unknown field `requester`"),
        ("sessions_list", json!({"cursor": ""}), "cursor must have 1 to 256 characters"),
        ("sessions_history", json!({}), "missing field `session`"),
        ("sessions_history", json!({"session": too_long}), "session must have 1 to 256 characters"),
        ("sessions_history", json!({"session": "s", "after": -1}), "invalid value"),
        ("sessions_send", json!({"session": "s", "text": ""}), "text must have 1 to 100000 characters"),
        ("sessions_send", json!({"session": "s", "text": "x", "wait_s": 601}), "wait_s must be 0 to 600"),
        (
            "sessions_spawn",
            json!({"task": "t", "cwd": "/".repeat(4097)}),
            "cwd may have 4096 characters at most",
        ),
        ("sessions_spawn", json!({"task": "t", "mode": "always"}), "unknown variant `always`"),
        ("session_status", json!(["current"]), "must be an object"),
        ("session_status", json!("s"), "must be an object"),
    ] {
        let refused = value(call(tool, &arguments));
        assert_eq!(refused["result"]["isError"], true, "{tool} {arguments}: {refused}");
        let error = &refused["result"]["structuredContent"]["error"];
        assert_eq!(error["code"], "USAGE");
        assert!(error["message"].as_str().unwrap().contains(want), "{tool} {arguments}: {error}");
    }
}

#[test]
fn result_is_structured_and_the_same_as_text() {
    let MessageResult::Call(pending) = call("session_status", &json!({})) else { panic!("no call") };
    let content = json!({"state": "idle"});
    let got: Value = serde_json::from_str(&pending.reply(Ok(content.clone()))).unwrap();
    let want = json!({"jsonrpc": "2.0", "id": 9, "result": {
        "content": [{"type": "text", "text": r#"{"state":"idle"}"#}], "structuredContent": content, "isError": false}});
    assert_eq!(got, want);
    let failure = Failure::new(Code::LimitReached, "full").detail("CHILDREN").retryable();
    let got: Value = serde_json::from_str(&pending.reply(Err(failure))).unwrap();
    let error = json!({"error": {"code": "ACP_LIMIT_REACHED", "message": "full", "retryable": true, "detail_code": "CHILDREN"}});
    assert_eq!(got["result"]["structuredContent"], error);
    assert_eq!(got["result"]["content"][0]["text"], error.to_string());
    assert_eq!(got["result"]["isError"], true);
}

fn event(run: Option<RunId>, seq: u64, kind: EventKind, payload: &Value) -> EventRow {
    EventRow { session_seq: seq, run_id: run, ..crate::tests::event(kind, payload) }
}

#[test]
fn history_joins_replies_and_leaves_out_tools_unless_asked() {
    let (run, chunk) = (Some(RunId::mint()), |text: &str| json!({"content": {"type": "text", "text": text}}));
    let rows = [
        event(run, 1, EventKind::Prompt, &json!({"text": "hi", "mode": "prompt", "author": "ann"})),
        event(run, 2, EventKind::AgentThought, &chunk("hm")),
        event(run, 3, EventKind::AgentMessage, &chunk("Hel")),
        event(run, 4, EventKind::Replay, &chunk("old")),
        event(run, 5, EventKind::AgentMessage, &chunk("lo")),
        event(run, 6, EventKind::ToolCall, &json!({"toolCallId": "t", "title": "Read\na"})),
        event(run, 7, EventKind::ToolCallUpdate, &json!({"toolCallId": "t", "status": "failed"})),
        event(run, 8, EventKind::AgentMessage, &chunk("bye")),
        event(run, 9, EventKind::ToolCall, &json!({"toolCallId": "u"})),
        event(run, 10, EventKind::AgentMessage, &chunk("")),
        event(run, 11, EventKind::Done, &json!({"stop_reason": "end_turn"})),
    ];
    let tools = [
        json!({"seq": 6, "role": "tool", "text": "Read a"}),
        json!({"seq": 7, "role": "tool", "text": "t: failed"}),
    ];
    let want = |tools: &[Value], replies: &[Value]| {
        let first = json!({"seq": 1, "role": "user", "text": "hi", "author": "ann"});
        let last = json!({"seq": 11, "role": "system", "text": "turn ended: end_turn"});
        let mut all = vec![first, replies[0].clone()];
        all.extend_from_slice(tools);
        all.extend_from_slice(&replies[1..]);
        all.push(last);
        all
    };
    let reply = |seq: u64, text: &str| json!({"seq": seq, "role": "agent", "text": text});
    assert_eq!(message_rows(&rows, true), want(&tools, &[reply(5, "Hello"), reply(8, "bye")]));
    assert_eq!(message_rows(&rows, false), want(&[], &[reply(5, "Hello"), reply(8, "bye")]));
    let mut text = AnswerText::new(run.unwrap());
    for row in &rows {
        assert!(!text.has_ended());
        text.add(row);
    }
    text.add(&event(Some(RunId::mint()), 12, EventKind::AgentMessage, &chunk("another turn")));
    assert!(text.has_ended());
    assert_eq!(text.into_text(), "Hello\n\nbye");
}

#[test]
fn oldest_rows_are_dropped_from_long_results() {
    let rows: Vec<Value> = (0..100).map(|n| json!({"n": n, "text": "\u{1}".repeat(500)})).collect();
    for (oldest, is_kept) in [(OldestRow::First, 99), (OldestRow::Last, 0)] {
        let result = bounded_rows(Map::new(), "rows", rows.clone(), oldest);
        let kept = result["rows"].as_array().unwrap();
        assert!(result.to_string().len() <= RESULT_BYTES_MAX && kept.len() > 20, "{}", kept.len());
        assert!(kept.iter().any(|row| row["n"] == is_kept));
        assert_eq!(result["dropped"], json!(100 - kept.len()));
        assert!(result["note"].as_str().unwrap().contains("oldest"));
    }
    let short = bounded_rows(Map::new(), "rows", rows[..3].to_vec(), OldestRow::First);
    assert_eq!(short, json!({"rows": rows[..3]}));
    let text = format!("{}end", "ü\u{1}".repeat(60_000));
    let result = bounded_text(Map::new(), "text", &text);
    assert!(
        result.to_string().len() <= RESULT_BYTES_MAX && result.to_string().len() > RESULT_BYTES_MAX - 1_000
    );
    assert!(result["text"].as_str().unwrap().ends_with("end") && result["dropped"].as_u64().unwrap() > 0);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z_/]{0,12}".prop_map(Value::from),
        prop::sample::select(TOOLS.to_vec()).prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let name = prop_oneof![
            "[a-z_]{1,8}".prop_map(String::from),
            prop::sample::select(vec!["name", "arguments", "_meta", "session", "text", "limit", "task"])
                .prop_map(String::from),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name, inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    /// Whatever a client sends: no panic, at most one reply, and with the id of the request.
    #[test]
    fn hostile_messages_get_one_reply_at_most(
        id in prop_oneof![any::<i32>().prop_map(Value::from), "[a-z]{0,5}".prop_map(Value::from)],
        method in prop::sample::select(vec!["initialize", "tools/list", "tools/call", "server/discover", "x"]),
        params in any_json(),
    ) {
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        match receive(body.as_bytes(), &facts()) {
            MessageResult::Nothing => prop_assert!(false, "a request is answered"),
            MessageResult::Reply(text) => {
                let reply: Value = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(&reply["id"], &id);
                prop_assert!(reply.get("result").is_some() != reply.get("error").is_some());
            }
            MessageResult::Call(pending) => {
                let reply: Value = serde_json::from_str(&pending.reply(Ok(json!({})))).unwrap();
                prop_assert_eq!(&reply["id"], &id);
            }
        }
    }

    #[test]
    fn bytes_that_are_no_message_get_an_error_or_nothing(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let MessageResult::Reply(text) = receive(&bytes, &facts()) {
            prop_assert!(serde_json::from_str::<Value>(&text).unwrap()["error"]["code"].is_i64());
        }
    }

    #[test]
    fn results_are_bounded(lengths in prop::collection::vec(0..60_000_usize, 0..12), filler in "[a-z\u{1}\"ü😀]{1,3}") {
        let rows: Vec<Value> = lengths.iter().map(|length| filler.repeat(length / filler.len()).into()).collect();
        let text: String = rows.iter().filter_map(Value::as_str).collect();
        for oldest in [OldestRow::First, OldestRow::Last] {
            prop_assert!(bounded_rows(Map::new(), "rows", rows.clone(), oldest).to_string().len() <= RESULT_BYTES_MAX);
        }
        prop_assert!(bounded_text(Map::new(), "text", &text).to_string().len() <= RESULT_BYTES_MAX);
    }
}
