//! Open tool calls of the running turn. Some agents request a permission with a bare name and describe the
//! call in an earlier `tool_call`. Part of the committed state, so bounded.

use super::lens;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::VecDeque;

/// Maximum number of calls kept; the oldest are dropped first.
const CALLS_MAX: usize = 8;
/// Maximum size of a member kept, in bytes of JSON.
const MEMBER_BYTES_MAX: usize = 8 * 1024;
/// Maximum size of an update that is parsed, in bytes.
const UPDATE_BYTES_MAX: usize = 256 * 1024;
/// Members that describe a call.
const MEMBERS: [&str; 5] = ["title", "kind", "content", "locations", "rawInput"];

/// Open tool calls, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct OpenToolCalls(VecDeque<OpenToolCall>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct OpenToolCall {
    id: String,
    members: Map<String, Value>,
}

impl OpenToolCalls {
    /// True if no call is open.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Applies a `tool_call` or `tool_call_update`.
    pub(super) fn update(&mut self, raw: &str) {
        if raw.len() > UPDATE_BYTES_MAX {
            return;
        }
        let update = lens::value(raw);
        let text = |name: &str| update.get(name).and_then(Value::as_str);
        let Some(id) = text("toolCallId").filter(|id| id.len() <= MEMBER_BYTES_MAX) else { return };
        if matches!(text("status"), Some("completed" | "failed")) {
            self.0.retain(|call| call.id != id);
            return;
        }
        let at = self.0.iter().position(|call| call.id == id).unwrap_or_else(|| {
            self.0.push_back(OpenToolCall { id: id.to_owned(), members: Map::new() });
            self.0.len() - 1
        });
        let Some(call) = self.0.get_mut(at) else { return };
        for name in MEMBERS {
            let Some(given) = update.get(name) else { continue };
            if !is_blank(given) && given.to_string().len() <= MEMBER_BYTES_MAX {
                call.members.insert(name.to_owned(), given.clone());
            }
        }
        if self.0.len() > CALLS_MAX {
            self.0.pop_front();
        }
    }

    /// Removes all calls, at the end of the turn.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds the missing members to the tool call of a permission's params. Returns true if any was added.
    pub(super) fn complete(&self, params: &mut Value) -> bool {
        let Some(Value::Object(asked)) = params.get_mut("toolCall") else { return false };
        let id = asked.get("toolCallId").and_then(Value::as_str);
        let Some(call) = self.0.iter().find(|call| Some(call.id.as_str()) == id) else { return false };
        let mut is_changed = false;
        for (name, value) in &call.members {
            if asked.get(name).is_none_or(is_blank) {
                asked.insert(name.clone(), value.clone());
                is_changed = true;
            }
        }
        is_changed
    }
}

/// True for a member without content.
fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn completed(calls: &OpenToolCalls, call: Value) -> Value {
        let mut params = json!({ "toolCall": call });
        calls.complete(&mut params);
        params["toolCall"].take()
    }

    #[test]
    fn bare_request_is_completed_from_its_tool_call() {
        let mut calls = OpenToolCalls::default();
        calls.update(r#"{"toolCallId":"c1","title":"Bash","kind":"execute","rawInput":{}}"#);
        calls.update(r#"{"toolCallId":"c1","rawInput":{"command":"rm -rf build"}}"#);
        calls.update(r#"{"toolCallId":"c2","title":"other"}"#);
        let full = json!({"toolCallId": "c1", "title": "Bash", "kind": "execute", "rawInput": {"command": "rm -rf build"}});
        for bare in [
            json!({"toolCallId": "c1", "title": "Bash"}),
            json!({"toolCallId": "c1", "title": "", "rawInput": {}}),
            json!({"toolCallId": "c1", "title": null, "rawInput": null}),
        ] {
            assert_eq!(completed(&calls, bare.clone()), full, "{bare}");
        }
        let own = json!({"toolCallId": "c1", "title": "Mine", "kind": "edit", "rawInput": {"command": "ls"}});
        assert_eq!(completed(&calls, own.clone()), own, "values in the request itself take precedence");
        let unknown = json!({"toolCallId": "c3", "title": ""});
        assert_eq!(completed(&calls, unknown.clone()), unknown);
    }

    #[test]
    fn ended_tool_call_is_removed() {
        for status in ["completed", "failed"] {
            let mut calls = OpenToolCalls::default();
            calls.update(r#"{"toolCallId":"c","title":"t"}"#);
            calls.update(&json!({"toolCallId": "c", "status": status}).to_string());
            assert!(calls.is_empty(), "{status}");
        }
    }

    #[test]
    fn tool_calls_and_their_members_are_bounded() {
        let mut calls = OpenToolCalls::default();
        for n in 0..1_000 {
            let text = "x".repeat(MEMBER_BYTES_MAX - 2);
            let all = json!({"toolCallId": n.to_string(), "title": text, "kind": text, "rawInput": text, "locations": text, "content": "y".repeat(UPDATE_BYTES_MAX / 2)});
            calls.update(&all.to_string());
        }
        let bytes = serde_json::to_string(&calls).map_or(0, |text| text.len());
        assert!(bytes <= CALLS_MAX * (MEMBERS.len() * MEMBER_BYTES_MAX + 1_000), "{bytes}");
        assert_eq!(calls.0.len(), CALLS_MAX);
    }
}
