use super::*;
use crate::files::{AcceptedContent, content_blocks, serialize_files};
use crate::jsonrpc::{INVALID_PARAMS, METHOD_NOT_FOUND, NOT_FOUND};
use crate::widening::scope_of_servers;
use serde_json::json;

const KEY: &str = "agent:demo:acp:1";

fn code(method: &str, params: &Value) -> Option<i64> {
    parse_call(method, Some(&params.to_string())).err().map(|error| error.code)
}

#[test]
fn params_are_accepted_or_refused_with_their_code() {
    let long = format!("/{}", "a".repeat(4_096));
    let bad = Some(INVALID_PARAMS);
    let answer = |more: Value| {
        let mut params = json!({"sessionId": KEY, "permissionId": "l:1"});
        let more = more.as_object().cloned().unwrap_or_default();
        params.as_object_mut().unwrap().extend(more);
        params
    };
    for (method, params, want) in [
        ("session/new", json!({"cwd": "/w", "mcpServers": []}), None),
        ("session/new", json!({"cwd": "/w"}), None),
        ("session/new", json!({"cwd": "w", "mcpServers": []}), bad),
        ("session/new", json!({"cwd": 7}), bad),
        ("session/new", json!({"cwd": ""}), bad),
        ("session/new", json!({"cwd": long}), bad),
        ("session/new", json!({"cwd": "/a\u{0}b"}), bad),
        ("session/new", json!({}), bad),
        ("session/new", json!({"cwd": "/w", "mcpServers": {}}), bad),
        ("session/new", json!({"cwd": "/w", "mcpServers": [{"command": "x"}]}), bad),
        ("session/new", json!({"cwd": "/w", "additionalDirectories": ["x"]}), bad),
        ("session/new", json!({"cwd": "/w", "_meta": {"acphost": {"permission": "all"}}}), bad),
        ("session/new", json!({"cwd": "/w", "_meta": {"acphost": {"idempotencyKey": "a b"}}}), bad),
        ("session/load", json!({"sessionId": KEY, "cwd": "/w", "mcpServers": []}), None),
        ("session/load", json!({"sessionId": KEY, "cwd": "w"}), bad),
        ("session/resume", json!({"sessionId": KEY, "cwd": long}), bad),
        ("session/load", json!({"sessionId": "", "cwd": "/w"}), bad),
        ("session/resume", json!({"cwd": "/w"}), bad),
        ("session/load", json!({"sessionId": "no such", "cwd": "/w"}), Some(NOT_FOUND)),
        ("session/load", json!({"sessionId": KEY, "cwd": "/w", "_meta": {"acphost": {"after": -1}}}), bad),
        ("session/list", json!({}), None),
        ("session/list", json!({"cwd": "w"}), bad),
        ("session/prompt", json!({"sessionId": KEY, "prompt": [{"type": "text", "text": "a"}]}), None),
        ("session/prompt", json!({"sessionId": KEY, "prompt": []}), bad),
        ("session/prompt", json!({"sessionId": KEY, "prompt": "a"}), bad),
        ("session/prompt", json!({"sessionId": KEY, "prompt": ["a"]}), bad),
        ("session/prompt", json!({"sessionId": KEY}), bad),
        ("session/set_mode", json!({"sessionId": KEY, "modeId": "ask"}), None),
        ("session/set_mode", json!({"sessionId": KEY}), bad),
        ("session/set_config_option", json!({"sessionId": KEY, "configId": "a", "value": true}), None),
        ("session/set_config_option", json!({"sessionId": KEY, "configId": "a", "value": 7}), bad),
        ("_acphost/permissions/answer", answer(json!({"optionId": "o"})), None),
        ("_acphost/permissions/answer", answer(json!({"action": "accept", "content": {"a": 1}})), None),
        ("_acphost/permissions/answer", answer(json!({"action": "decline"})), None),
        ("_acphost/permissions/answer", answer(json!({"action": "decline", "content": {}})), bad),
        ("_acphost/permissions/answer", answer(json!({"action": "maybe"})), bad),
        ("_acphost/permissions/answer", answer(json!({"action": "accept", "optionId": "o"})), bad),
        ("_acphost/permissions/answer", answer(json!({})), bad),
        ("$/cancel_request", json!({"requestId": 7}), None),
        ("$/cancel_request", json!({}), bad),
        ("session/fork", json!({"sessionId": KEY}), Some(METHOD_NOT_FOUND)),
        ("session/set_title", json!({}), Some(METHOD_NOT_FOUND)),
        ("session/new", json!({"cwd": "/w", "_meta": {"acphost": {"voting": "owner"}}}), None),
        ("session/new", json!({"cwd": "/w", "_meta": {"acphost": {"voting": "all"}}}), bad),
        ("_acphost/session/update", json!({"sessionId": KEY, "label": null}), None),
        ("_acphost/session/update", json!({"sessionId": KEY}), bad),
        ("_acphost/session/diff", json!({"sessionId": KEY, "runId": "x"}), bad),
        ("_acphost/fs/stat", json!({"sessionId": KEY}), None),
        ("_acphost/fs/read", json!({"sessionId": KEY}), bad),
        ("_acphost/fs/read", json!({"sessionId": KEY, "path": "a", "line": -1}), bad),
        ("_acphost/fs/write", json!({}), Some(METHOD_NOT_FOUND)),
        ("_acphost/ping", json!({}), None),
    ] {
        assert_eq!(code(method, &params), want, "{method} {params}");
    }
    assert_eq!(parse_call("session/list", None), Ok(ClientCall::List(ListSessions::default())));
    assert_eq!(parse_call("session/list", Some("[]")).err().map(|error| error.code), bad);
}

#[test]
fn blocks_reach_an_agent_that_takes_them_as_received() {
    let blocks = json!([
        {"type": "text", "text": "look"},
        {"type": "text", "text": "annotated", "annotations": {"priority": 1}},
        {"type": "image", "mimeType": "image/png", "data": "AA=="},
        {"type": "resource_link", "uri": "file:///a", "name": "a"},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "b"}},
    ]);
    let params = json!({"sessionId": KEY, "prompt": blocks});
    let Ok(ClientCall::Prompt(prompt)) = parse_call("session/prompt", Some(&params.to_string())) else {
        panic!("refused");
    };
    assert_eq!((prompt.text.as_str(), prompt.blocks.len()), ("look", 4));
    let kept = serialize_files(&prompt.blocks);
    let all = AcceptedContent { image: true, audio: true, embedded: true };
    assert_eq!(content_blocks(&prompt.text, kept.as_deref(), all), blocks);
    let plain = content_blocks(&prompt.text, kept.as_deref(), AcceptedContent::default());
    assert_eq!(plain[2]["type"], "text", "an image that the agent does not take is named: {plain}");
    assert_eq!(plain[3], blocks[3]);
}

#[test]
fn stdio_servers_start_programs_and_remote_ones_do_not() {
    for (server, starts) in [
        (
            json!({"name": "a", "command": "/bin/a", "args": ["-v"], "env": [{"name": "K", "value": "v"}]}),
            true,
        ),
        (json!({"type": "http", "name": "a", "url": "https://h", "headers": []}), false),
        (
            json!({"type": "sse", "name": "a", "url": "https://h", "headers": [{"name": "A", "value": "b"}]}),
            false,
        ),
    ] {
        let params = json!({"cwd": "/w", "mcpServers": [server]});
        let Ok(ClientCall::New(new)) = parse_call("session/new", Some(&params.to_string())) else {
            panic!("refused: {params}");
        };
        let scope = if starts { Scope::Admin } else { Scope::Prompt };
        assert_eq!(scope_of_servers(&new.mcp_servers), scope, "{params}");
        assert_eq!(mcp::server_param(&new.mcp_servers[0]), params["mcpServers"][0]);
    }
}

#[test]
fn each_call_needs_the_scope_of_its_effect() {
    let of = json!({"sessionId": KEY, "cwd": "/w", "modeId": "m", "configId": "c", "value": "v", "requestId": 1,
        "permissionId": "l:1", "optionId": "o", "prompt": [{"type": "text", "text": "a"}]});
    for (method, params, want) in [
        ("session/new", json!({"cwd": "/w"}), Scope::Prompt),
        ("session/load", of.clone(), Scope::Read),
        ("session/resume", of.clone(), Scope::Read),
        ("session/list", json!({}), Scope::Read),
        ("session/prompt", of.clone(), Scope::Prompt),
        ("session/cancel", of.clone(), Scope::Prompt),
        ("session/close", of.clone(), Scope::Prompt),
        ("session/delete", of.clone(), Scope::Prompt),
        ("session/set_mode", of.clone(), Scope::Approve),
        ("session/set_config_option", of.clone(), Scope::Prompt),
        ("$/cancel_request", of.clone(), Scope::Prompt),
        ("_acphost/session/steer", of.clone(), Scope::Prompt),
        ("_acphost/session/history", of.clone(), Scope::Read),
        ("_acphost/session/diff", of.clone(), Scope::Read),
        ("_acphost/fs/stat", of.clone(), Scope::Read),
        ("_acphost/fs/read", json!({"sessionId": KEY, "path": "a"}), Scope::Read),
        ("_acphost/session/update", json!({"sessionId": KEY, "label": "a"}), Scope::Prompt),
        ("_acphost/permissions/answer", of, Scope::Approve),
    ] {
        let call = parse_call(method, Some(&params.to_string())).unwrap();
        assert_eq!(call.scope(), want, "{method} {params}");
    }
}
