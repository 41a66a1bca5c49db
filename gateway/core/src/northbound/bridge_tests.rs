use super::*;

fn bridge() -> Bridge {
    let mut bridge = Bridge::new(BridgeOptions { key: "k".to_owned(), ..BridgeOptions::default() });
    open(&mut bridge);
    bridge
}

/// Initializes, and opens the session `s`.
fn open(bridge: &mut Bridge) {
    assert_eq!(bridge.connected(), []);
    bridge.from_editor(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#);
    bridge.from_gateway(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
    bridge.from_editor(r#"{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/w"}}"#);
    bridge.from_gateway(
        r#"{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s","_meta":{"acphost":{"epoch":"e"}}}}"#,
    );
}

fn update(seq: u64, kind: &str, text: &str) -> String {
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s",
        "update": {"sessionUpdate": kind, "content": {"type": "text", "text": text}},
        "_meta": {"acphost": {"seq": seq}}}})
    .to_string()
}

fn to_gateway(out: &[BridgeOutput]) -> Vec<Value> {
    let parsed = out.iter().filter_map(|out| match out {
        BridgeOutput::Gateway(text) => serde_json::from_str(text).ok(),
        BridgeOutput::Editor(_) => None,
    });
    parsed.collect()
}

fn to_editor(out: &[BridgeOutput]) -> Vec<Value> {
    let parsed = out.iter().filter_map(|out| match out {
        BridgeOutput::Editor(text) => serde_json::from_str(text).ok(),
        BridgeOutput::Gateway(_) => None,
    });
    parsed.collect()
}

/// Loses the gateway, and restores the connection up to the load of the session. Returns the load.
fn reconnect(bridge: &mut Bridge) -> Value {
    bridge.disconnected();
    assert!(!bridge.is_ready());
    let first = to_gateway(&bridge.connected());
    assert_eq!((first.len(), &first[0]["method"]), (1, &json!("initialize")));
    let out = bridge.from_gateway(&json!({"jsonrpc": "2.0", "id": first[0]["id"], "result": {}}).to_string());
    to_gateway(&out)[0].clone()
}

fn loaded(bridge: &mut Bridge, load: &Value, pending: &[&str]) -> Vec<BridgeOutput> {
    let ours = json!({"lastSeq": 9, "epoch": "e", "pendingPermissions": pending});
    bridge.from_gateway(
        &json!({"jsonrpc": "2.0", "id": load["id"], "result": {"_meta": {"acphost": ours}}}).to_string(),
    )
}

#[test]
fn prompts_get_a_key_and_keep_everything_else_as_written() {
    let mut bridge = bridge();
    let out = bridge.from_editor(
        r#"{"jsonrpc":"2.0","id":"a","method":"session/prompt","params":{"sessionId":"s","n":1e3,"prompt":[],"_meta":{"k":1}}}"#,
    );
    let BridgeOutput::Gateway(text) = &out[0] else { panic!("{out:?}") };
    assert_eq!(
        text,
        concat!(
            r#"{"jsonrpc":"2.0","id":"a","method":"session/prompt","params":{"sessionId":"s","n":1e3,"prompt":[],"#,
            r#""_meta":{"acphost":{"idempotencyKey":"k:2"},"k":1}}}"#
        )
    );
    let out = bridge.from_editor(
        r#"{"id":"b","method":"session/prompt","params":{"_meta":{"acphost":{"idempotencyKey":"mine"}}}}"#,
    );
    assert_eq!(to_gateway(&out)[0]["params"]["_meta"]["acphost"]["idempotencyKey"], "mine");
}

#[test]
fn lost_gateway_costs_the_editor_nothing() {
    let mut bridge = bridge();
    let prompt = json!({"jsonrpc": "2.0", "id": 2, "method": "session/prompt",
        "params": {"sessionId": "s", "prompt": [{"type": "text", "text": "hi"}]}});
    let sent = to_gateway(&bridge.from_editor(&prompt.to_string()));
    assert_eq!(to_editor(&bridge.from_gateway(&update(4, "agent_message_chunk", "a"))).len(), 1);
    let load = reconnect(&mut bridge);
    assert_eq!(load["params"]["_meta"]["acphost"], json!({"after": 4, "epoch": "e"}));
    // The own prompt is not repeated to the editor; what was missed is.
    assert_eq!(bridge.from_gateway(&update(5, "user_message_chunk", "hi")), []);
    assert_eq!(to_editor(&bridge.from_gateway(&update(6, "agent_message_chunk", "b"))).len(), 1);
    let out = loaded(&mut bridge, &load, &[]);
    assert_eq!(to_gateway(&out), sent, "the same request with the same key");
    assert!(bridge.is_ready() && to_editor(&out).is_empty());
    let answer = r#"{"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}"#;
    assert_eq!(bridge.from_gateway(answer), [BridgeOutput::Editor(answer.to_owned())]);
    let load = reconnect(&mut bridge);
    assert_eq!(load["params"]["_meta"]["acphost"]["after"], 9);
    assert_eq!(loaded(&mut bridge, &load, &[]), [], "an answered prompt is not sent again");
}

#[test]
fn load_without_rows_leaves_the_cursor_where_the_editor_has_it() {
    let mut bridge = Bridge::new(BridgeOptions::default());
    bridge.from_editor(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#);
    bridge.from_gateway(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
    let params = r#"{"sessionId":"s","cwd":"/w","_meta":{"acphost":{"after":4}}}"#;
    bridge.from_editor(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"session/load","params":{params}}}"#));
    bridge
        .from_gateway(r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"acphost":{"lastSeq":4,"epoch":"e"}}}}"#);
    let load = reconnect(&mut bridge);
    assert_eq!(load["params"]["_meta"]["acphost"], json!({"after": 4, "epoch": "e"}));
}

#[test]
fn open_question_stays_and_settled_one_goes() {
    let ask_of = |session: &str, id: &str| {
        let params = json!({"sessionId": session});
        json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params})
            .to_string()
    };
    let ask = |id: &str| ask_of("s", id);
    let mut bridge = bridge();
    for id in ["perm:l:1", "perm:l:2", "perm:l:3"] {
        assert_eq!(to_editor(&bridge.from_gateway(&ask(id))).len(), 1);
    }
    // A question of another session, which is loaded on its own.
    assert_eq!(to_editor(&bridge.from_gateway(&ask_of("t", "perm:m:1"))).len(), 1);
    let answer = r#"{"jsonrpc":"2.0","id":"perm:l:3","result":{"outcome":{"outcome":"cancelled"}}}"#;
    bridge.from_editor(answer);
    let load = reconnect(&mut bridge);
    assert_eq!(bridge.from_gateway(&ask("perm:l:1")), [], "the editor shows it");
    assert_eq!(bridge.from_gateway(&ask("perm:l:3")), [BridgeOutput::Gateway(answer.to_owned())], "answered");
    let out = to_editor(&loaded(&mut bridge, &load, &["l:1", "l:3"]));
    assert_eq!((out.len(), &out[0]["params"]["requestId"]), (1, &json!("perm:l:2")), "settled meanwhile");
}

#[test]
fn cursor_of_another_journal_is_given_up() {
    let mut bridge = bridge();
    let load = reconnect(&mut bridge);
    let refused = json!({"jsonrpc": "2.0", "id": load["id"], "error": {"code": -32602, "message": "m"}});
    let resume = to_gateway(&bridge.from_gateway(&refused.to_string()));
    assert_eq!(resume[0]["method"], "session/resume");
    assert!(!bridge.is_ready());
    loaded(&mut bridge, &resume[0], &[]);
    assert!(bridge.is_ready());
}

#[test]
fn lost_initialize_and_load_are_sent_again() {
    let mut bridge = Bridge::new(BridgeOptions { key: "k".to_owned(), ..BridgeOptions::default() });
    let sent = bridge
        .from_editor(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#);
    bridge.disconnected();
    assert_eq!(bridge.connected(), sent);
    let mut bridge = self::bridge();
    bridge.from_editor(
        r#"{"jsonrpc":"2.0","id":5,"method":"session/load","params":{"sessionId":"s","cwd":"/"}}"#,
    );
    bridge.from_gateway(&update(7, "agent_message_chunk", "a"));
    let load = reconnect(&mut bridge);
    let again = to_gateway(&loaded(&mut bridge, &load, &[]));
    assert_eq!((&again[0]["id"], &again[0]["params"]["_meta"]["acphost"]["after"]), (&json!(5), &json!(9)));
}

#[test]
fn given_session_is_opened_instead_of_a_new_one() {
    let options =
        BridgeOptions { session: Some("s".to_owned()), cwd: Some("/d".to_owned()), key: "k".to_owned() };
    let mut bridge = Bridge::new(options);
    let out = bridge.from_editor(r#"{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":"/w"}}"#);
    let sent = &to_gateway(&out)[0];
    assert_eq!(
        (&sent["method"], &sent["params"]),
        (&json!("session/resume"), &json!({"sessionId": "s", "cwd": "/d"}))
    );
    let out = bridge.from_gateway(r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"acphost":{"lastSeq":7}}}}"#);
    assert_eq!(to_editor(&out)[0]["result"]["sessionId"], "s");
    assert_eq!(bridge.sessions["s"].seq, 7);
}

#[test]
fn lines_that_are_no_messages_or_too_long_are_answered() {
    let mut bridge = bridge();
    assert_eq!(to_editor(&bridge.from_editor("{"))[0]["error"]["code"], -32700);
    assert_eq!(to_editor(&bridge.from_editor("[]"))[0]["error"]["code"], -32600);
    let long = format!(r#"{{"id":7,"method":"a","params":{{"a":"{}"}}}}"#, "x".repeat(MESSAGE_BYTES_MAX));
    let out = bridge.from_editor(&long);
    assert_eq!((to_gateway(&out).len(), &to_editor(&out)[0]["id"]), (0, &json!(7)));
}

#[test]
fn cancellation_that_was_lost_with_the_gateway_is_sent_again() {
    for cancel in [
        r#"{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}"#,
        r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"a"}}"#,
    ] {
        let mut bridge = bridge();
        let prompt = |id: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":"{id}","method":"session/prompt","params":{{"sessionId":"s","prompt":[]}}}}"#
            )
        };
        bridge.from_editor(&prompt("a"));
        bridge.from_editor(cancel);
        bridge.from_editor(&prompt("b"));
        let load = reconnect(&mut bridge);
        let sent = to_gateway(&loaded(&mut bridge, &load, &[]));
        let methods: Vec<_> = sent.iter().map(|it| it["method"].as_str().unwrap()).collect();
        assert_eq!(methods, ["session/prompt", "$/cancel_request", "session/prompt"]);
        assert_eq!(sent[1]["params"], json!({"requestId": "a"}));
    }
}
