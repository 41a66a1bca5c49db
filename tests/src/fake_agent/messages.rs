//! The messages of the agent, as JSON.

use super::flags::Flags;
use super::session::{MODELS, MODES, Session};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The only authentication method.
pub(crate) const AUTH_METHOD: &str = "fake-key";
/// The kinds of the options of every permission request; their ids are the same.
pub(crate) const OPTIONS: [&str; 4] = ["allow_once", "allow_always", "reject_once", "reject_always"];

pub(crate) fn result(id: &Value, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

/// The result of a turn; with `tokens` it has a usage.
pub(crate) fn stop(id: &Value, reason: &str, tokens: Option<u64>) -> Value {
    let mut stop = json!({"stopReason": reason});
    if let Some(tokens) = tokens {
        stop["usage"] = json!({"inputTokens": tokens, "outputTokens": 7, "totalTokens": tokens + 7});
    }
    result(id, stop)
}

pub(crate) fn error(id: &Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

pub(crate) fn request(id: &Value, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

pub(crate) fn notification(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}

pub(crate) fn update(session: &str, update: Value) -> Value {
    notification("session/update", json!({"sessionId": session, "update": update}))
}

/// A chunk of text: `agent_message_chunk`, `agent_thought_chunk` or `user_message_chunk`.
pub(crate) fn chunk(kind: &str, text: &str) -> Value {
    json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}})
}

pub(crate) fn text_content(text: &str) -> Value {
    json!([{"type": "content", "content": {"type": "text", "text": text}}])
}

pub(crate) fn initialize_result(flags: &Flags) -> Value {
    let mut sessions = json!({"close": {}});
    if !flags.no_list {
        sessions["list"] = json!({});
    }
    if !flags.no_resume {
        sessions["resume"] = json!({});
    }
    if flags.delete {
        sessions["delete"] = json!({});
    }
    if flags.directories {
        sessions["additionalDirectories"] = json!({});
    }
    let methods = if flags.auth_required {
        json!([{"id": AUTH_METHOD, "name": "Key", "description": "Any key will do"}])
    } else {
        json!([])
    };
    let meta = if flags.steer { json!({"steering": {"supported": true}}) } else { json!({}) };
    json!({
        "_meta": meta,
        "protocolVersion": flags.protocol_version.unwrap_or(1),
        "agentCapabilities": {
            "loadSession": !flags.no_load,
            "promptCapabilities": {"image": false, "audio": false, "embeddedContext": false},
            "mcpCapabilities": {"http": true, "sse": false},
            "sessionCapabilities": sessions,
        },
        "agentInfo": {"name": "fake-agent", "title": "Scripted agent", "version": env!("CARGO_PKG_VERSION")},
        "authMethods": methods,
    })
}

/// Result of `session/new`, `session/load` and `session/resume`.
pub(crate) fn session_result(flags: &Flags, session: &Session, knows_booleans: bool, with_id: bool) -> Value {
    let mut result = json!({});
    if with_id {
        result["sessionId"] = json!(session.id);
    }
    if flags.modes {
        let modes: Vec<Value> = MODES.iter().map(|id| json!({"id": id, "name": id})).collect();
        result["modes"] = json!({"currentModeId": session.mode, "availableModes": modes});
    }
    if flags.options {
        result["configOptions"] = config_options(session, knows_booleans);
    }
    result
}

/// The complete list of config options.
pub(crate) fn config_options(session: &Session, knows_booleans: bool) -> Value {
    let models: Vec<Value> = MODELS.iter().map(|id| json!({"value": id, "name": id})).collect();
    let model = json!({"id": "model", "name": "Model", "category": "model", "type": "select",
        "currentValue": session.model, "options": models});
    let web = json!({"id": "web", "name": "Web", "type": "boolean", "currentValue": session.web});
    if knows_booleans { json!([model, web]) } else { json!([model]) }
}

/// Parameters of a permission request; `names` overrides option names by kind.
pub(crate) fn permission(
    session: &str,
    call: &str,
    title: &str,
    announced: bool,
    names: &BTreeMap<String, String>,
) -> Value {
    let name = |kind: &str| names.get(kind).cloned().unwrap_or_else(|| kind.replace('_', " "));
    let options: Vec<Value> =
        OPTIONS.iter().map(|kind| json!({"optionId": kind, "name": name(kind), "kind": kind})).collect();
    let mut call = json!({"toolCallId": call, "title": title});
    if announced {
        call["kind"] = json!("execute");
        call["status"] = json!("pending");
    }
    json!({"sessionId": session, "toolCall": call, "options": options})
}

/// An `available_commands_update` whose line has exactly `bytes` bytes.
pub(crate) fn long_line(session: &str, bytes: usize) -> Value {
    let with = |padding: usize| {
        let command = json!({"name": "long", "description": "x".repeat(padding)});
        update(session, json!({"sessionUpdate": "available_commands_update", "availableCommands": [command]}))
    };
    let empty = with(0).to_string().len();
    with(bytes.saturating_sub(empty))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_agent::script::LONG_LINE_BYTES_MIN;

    #[test]
    fn long_lines_are_as_long_as_was_asked() {
        for bytes in [LONG_LINE_BYTES_MIN, 573_440] {
            assert_eq!(
                long_line("fake-0198f7a6-0000-7000-8000-000000000000", bytes).to_string().len(),
                bytes
            );
        }
    }
}
