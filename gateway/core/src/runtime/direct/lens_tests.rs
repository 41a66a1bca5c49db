use super::lens::{error, raw_error, sign_in};
use serde_json::{Value, json};

#[test]
fn error_text_includes_its_data() {
    for (data, want) in [
        (json!({"code": -32603, "message": "Internal error"}), "Internal error"),
        (
            json!({"code": -32603, "message": "Internal error", "data": "Configuration value not found: GOOSE_PROVIDER"}),
            "Internal error: Configuration value not found: GOOSE_PROVIDER",
        ),
        (json!({"message": "no.", "data": {"message": "because"}}), "no: because"),
        (json!({"message": "no", "data": {"details": "because", "x": "y"}}), "no: because"),
        (json!({"message": "no", "data": {"error": {"type": "t", "message": "deep"}}}), "no: deep"),
        (json!({"message": "no", "data": {"b": "two", "a": "one", "n": 1}}), "no: a: one, b: two"),
        (json!({"message": "no", "data": ["first", "second"]}), "no: first"),
        // Repeated text is omitted.
        (json!({"message": "no model", "data": "no model"}), "no model"),
        (json!({"message": "no", "data": {"message": "no model"}}), "no model"),
        (json!({"message": "no model", "data": "model"}), "no model"),
        (json!({"data": "alone"}), "alone"),
        (json!({"message": "no", "data": 7}), "no"),
        (json!({"message": "no", "data": {"message": {"error": {"detail": {"x": "too deep"}}}}}), "no"),
        (json!({}), ""),
        (json!("odd"), ""),
        // The text is one line without control characters.
        (json!({"message": "a\n[ok]\u{1b}[2J", "data": "b\u{202e}\r\n"}), "a [ok] [2J: b\\u{202e}"),
    ] {
        assert_eq!(error(&data.to_string()).1, want, "{data}");
    }
    let long = error(&json!({"message": "m", "data": "x".repeat(1_000_000)}).to_string()).1;
    assert!(long.chars().count() == 500 && long.starts_with("m: xxx") && long.ends_with('…'), "{long}");
}

#[test]
fn oversized_error_is_stored_without_its_data() {
    let small = json!({"code": 1, "message": "m", "data": {"a": [1]}});
    assert_eq!(*raw_error(&small.to_string()), small);
    let large = json!({"code": 1, "message": "m", "data": {"a": "x".repeat(100_000)}});
    let kept = raw_error(&large.to_string());
    assert_eq!((&kept["code"], &kept["data"]), (&json!(1), &Value::Null));
    assert!(kept.to_string().len() < 1_000 && kept["message"].as_str().unwrap().starts_with("m: a: xxx"));
}

#[test]
fn sign_in_methods_are_one_line_each() {
    let result =
        json!({"authMethods": [{"id": "k", "name": "Key\u{1b}[2J", "description": "a\n- Other: b"}]});
    let line = "- Key [2J: a - Other: b (run: acp-gateway agents login qwen --method k; in a conversation: /acp login \
                qwen k)";
    assert_eq!(sign_in(&result, "qwen"), line);
    // An id that a shell would take apart is not part of a command, and a name that is no variable not of TOML.
    for (method, want) in [
        (json!({ "id": "a; rm", "name": "A" }), "- A"),
        (json!({ "id": "", "name": "A" }), "- A"),
        (
            json!({ "id": "e", "name": "E", "type": "env_var", "vars": [{ "name": "A_KEY" }, { "name": "x\n[y]" }, {}] }),
            "- E (add to gateway.toml and reload)\n    [agents.qwen.env]\n    A_KEY = \"…\"",
        ),
        (json!({ "id": "e", "name": "E", "type": "env_var" }), "- E"),
    ] {
        assert_eq!(sign_in(&json!({ "authMethods": [method] }), "qwen"), want);
    }
}
