//! Journal rows as seen by clients: one line of JSON for each row (`event_version` 1).
//!
//! Data of the agent is copied as received, never parsed into a model: numbers keep their spelling, unknown
//! members their position. A malformed payload still gives a line.

use crate::event::{EventKind, EventRow};
use crate::jsonrpc::{ObjectMembers, quoted};
use serde_json::value::RawValue;
use std::fmt::Write as _;

/// Version of the event lines.
pub const EVENT_VERSION: u32 = 1;

/// Members of the envelope, which a payload cannot override.
const ENVELOPE: [&str; 8] =
    ["event_version", "session_key", "session_seq", "run_id", "seq", "type", "created_at_ms", "extra"];

/// JSON of an empty string.
const EMPTY: &str = "\"\"";

/// Returns the `type` of a row's kind, as seen by clients.
pub const fn wire_type(kind: EventKind) -> &'static str {
    match kind {
        EventKind::AgentMessage | EventKind::AgentThought => "text_delta",
        _ => kind.as_str(),
    }
}

/// Appends the row's line to `out`, without a newline inside or at the end.
pub fn write_event(row: &EventRow, out: &mut String) {
    let start = out.len();
    // Writing into a String cannot fail.
    let _ = write!(
        out,
        r#"{{"event_version":{EVENT_VERSION},"session_key":"{}","session_seq":{}"#,
        row.session_key, row.session_seq
    );
    match (row.run_id, row.seq) {
        (Some(run_id), Some(seq)) => {
            let _ = write!(out, r#","run_id":"{run_id}","seq":{seq}"#);
        }
        (Some(run_id), None) => {
            let _ = write!(out, r#","run_id":"{run_id}","seq":null"#);
        }
        (None, _) => out.push_str(r#","run_id":null,"seq":null"#),
    }
    let _ = write!(out, r#","type":"{}","created_at_ms":{}"#, wire_type(row.kind), row.created_at_ms);
    optional("extra", row.extra.as_deref(), out);
    let body = out.len();
    if write_body(row, out).is_none() {
        out.truncate(body);
        write_unreadable(&row.payload, out);
    }
    out.push('}');
    if out.as_bytes().iter().skip(start).any(|b| matches!(b, b'\n' | b'\r')) {
        // Valid JSON has raw line breaks only between tokens: inside of strings they are escaped.
        let line = out.split_off(start).replace(['\n', '\r'], " ");
        out.push_str(&line);
    }
}

/// Appends the row as it is in the journal, without a newline inside or at the end: kind and payload as stored, for
/// clients that need what the agent sent.
pub fn write_journal_row(row: &EventRow, out: &mut String) {
    let start = out.len();
    let run_id = row.run_id.map_or_else(|| "null".to_owned(), |id| format!("\"{id}\""));
    // Writing into a String cannot fail.
    let _ = write!(
        out,
        r#"{{"session_seq":{},"run_id":{run_id},"kind":"{}","created_at_ms":{}"#,
        row.session_seq,
        row.kind.as_str(),
        row.created_at_ms
    );
    optional("extra", row.extra.as_deref(), out);
    write_unreadable(&row.payload, out);
    out.push('}');
    if out.as_bytes().iter().skip(start).any(|b| matches!(b, b'\n' | b'\r')) {
        let line = out.split_off(start).replace(['\n', '\r'], " ");
        out.push_str(&line);
    }
}

/// Text for people that the first rows of a session are gone.
pub fn pruned_text(pruned_seq: u64) -> String {
    format!("Events up to number {pruned_seq} were pruned by the retention of the journal.")
}

/// Returns the row's line.
pub fn event_line(row: &EventRow) -> String {
    let mut out = String::new();
    write_event(row, &mut out);
    out
}

/// Appends the members of a payload. `None` if the payload does not have the shape of the kind.
fn write_body(row: &EventRow, out: &mut String) -> Option<()> {
    match row.kind {
        EventKind::AgentMessage => chunk("output", &row.payload, out),
        EventKind::AgentThought => chunk("thought", &row.payload, out),
        EventKind::ToolCall => tool_call(&row.payload, out),
        EventKind::ToolCallUpdate => tool_call_update(&row.payload, out),
        EventKind::Plan => plan(&row.payload, out),
        EventKind::Update | EventKind::Replay => update(&row.payload, out),
        EventKind::Permission => permission(&row.payload, out),
        EventKind::Prompt
        | EventKind::Extension
        | EventKind::PermissionSettled
        | EventKind::HostRequest
        | EventKind::Status
        | EventKind::Gap
        | EventKind::Done
        | EventKind::Error
        | EventKind::Closed => splice(&row.payload, out),
    }
}

/// Appends a payload that is not an object, or not the expected one.
fn write_unreadable(payload: &str, out: &mut String) {
    match serde_json::from_str::<&RawValue>(payload) {
        Ok(raw) => member("payload", raw.get(), out),
        Err(_) => {
            out.push_str(r#","payload_text":"#);
            out.push_str(&quoted(payload));
        }
    }
}

fn member(name: &str, raw: &str, out: &mut String) {
    let _ = write!(out, r#","{name}":{raw}"#);
}

fn optional(name: &str, raw: Option<&str>, out: &mut String) {
    if let Some(raw) = raw {
        member(name, raw, out);
    }
}

fn members_of(json: &str) -> Option<ObjectMembers<'_>> {
    ObjectMembers::parse(json).ok()
}

/// Returns the last member with this name, as most JSON readers do; an explicit `null` counts as absent.
fn get<'a>(members: &ObjectMembers<'a>, name: &str) -> Option<&'a str> {
    members.get(name).filter(|raw| *raw != "null")
}

fn get_string<'a>(members: &ObjectMembers<'a>, name: &str) -> Option<&'a str> {
    get(members, name).filter(|raw| raw.starts_with('"'))
}

fn chunk(stream: &str, payload: &str, out: &mut String) -> Option<()> {
    let update = members_of(payload)?;
    let content = get(&update, "content")?;
    let parts = members_of(content);
    let parts = parts.filter(|parts| get(parts, "type") == Some(r#""text""#));
    let text = parts.and_then(|parts| get_string(&parts, "text"));
    let _ = write!(out, r#","stream":"{stream}","text":{}"#, text.unwrap_or(EMPTY));
    // An image, a resource, a link: the whole content is added to an empty text.
    optional("content", text.is_none().then_some(content), out);
    optional("message_id", get(&update, "messageId"), out);
    Some(())
}

fn tool_call(payload: &str, out: &mut String) -> Option<()> {
    let update = members_of(payload)?;
    let name = get_string(&update, "name").or_else(|| get_string(&update, "title"));
    let _ = write!(out, r#","name":{},"arguments_text":"#, name.unwrap_or(EMPTY));
    match get(&update, "rawInput") {
        Some(input) if !input.starts_with('"') => out.push_str(&quoted(input)),
        input => out.push_str(input.unwrap_or(EMPTY)),
    }
    tool_members(&update, out);
    Some(())
}

fn tool_members(update: &ObjectMembers<'_>, out: &mut String) {
    for (name, theirs) in [
        ("tool_call_id", "toolCallId"),
        ("title", "title"),
        ("kind", "kind"),
        ("status", "status"),
        ("content", "content"),
        ("locations", "locations"),
        ("raw_output", "rawOutput"),
    ] {
        optional(name, get(update, theirs), out);
    }
}

fn tool_call_update(payload: &str, out: &mut String) -> Option<()> {
    let update = members_of(payload)?;
    tool_members(&update, out);
    optional("raw_input", get(&update, "rawInput"), out);
    Some(())
}

fn plan(payload: &str, out: &mut String) -> Option<()> {
    member("entries", get(&members_of(payload)?, "entries")?, out);
    Some(())
}

fn update(payload: &str, out: &mut String) -> Option<()> {
    optional("update_kind", get(&members_of(payload)?, "sessionUpdate"), out);
    member("update", payload.trim(), out);
    Some(())
}

fn permission(payload: &str, out: &mut String) -> Option<()> {
    let outer = members_of(payload)?;
    member("permission_id", get(&outer, "permission_id")?, out);
    let params = get(&outer, "params").and_then(members_of).unwrap_or_default();
    let form = get(&outer, "form").and_then(members_of);
    let tool = get(&params, "toolCall").and_then(members_of);
    let title = match &form {
        Some(form) => get_string(form, "message"),
        None => tool.as_ref().and_then(|tool| get_string(tool, "title")),
    };
    let _ = write!(out, r#","title":{},"options":["#, title.unwrap_or(EMPTY));
    let options =
        get(form.as_ref().unwrap_or(&params), "options").and_then(|raw| serde_json::from_str(raw).ok());
    let options: Vec<&RawValue> = options.unwrap_or_default();
    let is_answerable = |option: &ObjectMembers<'_>| get_string(option, "optionId").is_some();
    let options = options.iter().filter_map(|raw| members_of(raw.get())).filter(is_answerable);
    for (i, option) in options.enumerate() {
        let part = |name: &str| get_string(&option, name).unwrap_or("null");
        let gap = if i == 0 { "" } else { "," };
        let (id, name, kind) = (part("optionId"), part("name"), part("kind"));
        let _ = write!(out, r#"{gap}{{"option_id":{id},"name":{name},"kind":{kind}}}"#);
    }
    out.push(']');
    if let Some(tool) = tool {
        optional("tool_call_id", get(&tool, "toolCallId"), out);
        optional("kind", get(&tool, "kind"), out);
    }
    optional("tool_call", get(&params, "toolCall"), out);
    optional("form", get(&outer, "form"), out);
    Some(())
}

/// Appends the members of a payload built by the gateway as members of the line.
fn splice(payload: &str, out: &mut String) -> Option<()> {
    for (name, value) in members_of(payload)?.iter().filter(|(name, _)| !ENVELOPE.contains(name)) {
        let _ = write!(out, ",{}:{value}", quoted(name));
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use acp_shared::ids::RunId;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const RUN: &str = "0190a000-0000-7000-8000-000000000001";

    fn row(kind: EventKind, payload: &str) -> EventRow {
        let (payload, run_id) = (payload.to_owned(), Some(RunId::parse(RUN).unwrap()));
        let row = crate::tests::event(kind, &Value::Null);
        EventRow { session_seq: 7, run_id, seq: Some(3), payload, created_at_ms: 1_700_000_000_123, ..row }
    }

    fn envelope(rest: Value) -> Value {
        let mut line = json!({
            "event_version": 1, "session_key": "agent:demo:acp:1", "session_seq": 7,
            "run_id": RUN, "seq": 3, "created_at_ms": 1_700_000_000_123_u64,
        });
        let members = rest.as_object().unwrap().clone();
        line.as_object_mut().unwrap().extend(members);
        line
    }

    #[test]
    fn extra_members_are_in_the_envelope() {
        let payload = r#"{"sessionUpdate":"tool_call","toolCallId":"t","extra":1}"#;
        let row = EventRow {
            extra: Some(r#"{"_meta":{"n":1e2}}"#.to_owned()),
            ..row(EventKind::ToolCall, payload)
        };
        let line = event_line(&row);
        assert_eq!(line.matches(r#""extra":"#).count(), 1, "{line}");
        assert!(
            line.contains(
                r#","type":"tool_call","created_at_ms":1700000000123,"extra":{"_meta":{"n":1e2}},"#
            ),
            "{line}"
        );
    }

    #[test]
    fn each_event_kind_has_its_json() {
        use EventKind as K;
        let table: Vec<(K, &str, Value)> = vec![
            (
                K::AgentMessage,
                r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a\n\"é\u00e9"}}"#,
                json!({"type": "text_delta", "stream": "output", "text": "a\n\"éé"}),
            ),
            (
                K::AgentThought,
                r#"{"content":{"text":"hm","type":"text"},"messageId":"m1"}"#,
                json!({"type": "text_delta", "stream": "thought", "text": "hm", "message_id": "m1"}),
            ),
            (
                K::AgentMessage,
                r#"{"content":{"type":"image","data":"AA==","mimeType":"image/png"}}"#,
                json!({"type": "text_delta", "stream": "output", "text": "",
                           "content": {"type": "image", "data": "AA==", "mimeType": "image/png"}}),
            ),
            (
                K::AgentMessage,
                r#"{"content":{"type":"text","text":7}}"#,
                json!({"type": "text_delta", "stream": "output", "text": "",
                       "content": {"type": "text", "text": 7}}),
            ),
            (
                K::ToolCall,
                r#"{"toolCallId":"t1","title":"Edit a.txt","kind":"edit","status":"pending",
                    "rawInput":{"path":"a.txt","n":1e3},"locations":[{"path":"/a"}],"name":"edit_file"}"#,
                json!({"type": "tool_call", "name": "edit_file",
                           "arguments_text": r#"{"path":"a.txt","n":1e3}"#,
                           "tool_call_id": "t1", "title": "Edit a.txt", "kind": "edit", "status": "pending",
                           "locations": [{"path": "/a"}]}),
            ),
            (
                K::ToolCall,
                r#"{"toolCallId":"t1","title":"Run","rawInput":"ls -l"}"#,
                json!({"type": "tool_call", "name": "Run", "arguments_text": "ls -l", "tool_call_id": "t1",
                           "title": "Run"}),
            ),
            (
                K::ToolCallUpdate,
                r#"{"toolCallId":"t1","status":"completed","title":null,"rawOutput":{"x":1}}"#,
                json!({"type": "tool_call_update", "tool_call_id": "t1", "status": "completed",
                           "raw_output": {"x": 1}}),
            ),
            (
                K::Plan,
                r#"{"sessionUpdate":"plan","entries":[{"content":"a","priority":"high","status":"pending"}]}"#,
                json!({"type": "plan", "entries": [{"content": "a", "priority": "high", "status": "pending"}]}),
            ),
            (
                K::Permission,
                r#"{"permission_id":"l:5","params":{"sessionId":"s","toolCall":{"toolCallId":"t","title":"Write",
                    "kind":"edit"},"options":[{"optionId":"y","name":"Yes","kind":"allow_once"},{"optionId":"n"}]}}"#,
                json!({"type": "permission", "permission_id": "l:5", "title": "Write", "tool_call_id": "t",
                           "kind": "edit",
                           "tool_call": {"toolCallId": "t", "title": "Write", "kind": "edit"},
                           "options": [{"option_id": "y", "name": "Yes", "kind": "allow_once"},
                                       {"option_id": "n", "name": null, "kind": null}]}),
            ),
            (
                K::Permission,
                r#"{"permission_id":"l:5","params":{"options":[{"optionId":7,"name":"Seven"},3,
                    {"optionId":"y","name":{"x":1},"kind":2}]}}"#,
                json!({"type": "permission", "permission_id": "l:5", "title": "",
                           "options": [{"option_id": "y", "name": null, "kind": null}]}),
            ),
            (
                K::Permission,
                r#"{"permission_id":"l:5","params":{}}"#,
                json!({"type": "permission", "permission_id": "l:5", "title": "", "options": []}),
            ),
            (
                K::Done,
                r#"{"stop_reason":"end_turn","usage":{"totalTokens":12345678901234567890}}"#,
                json!({"type": "done", "stop_reason": "end_turn",
                           "usage": {"totalTokens": 12345678901234567890_u64}}),
            ),
            (
                K::Error,
                r#"{"code":"ACP_TURN_FAILED","message":"m","retryable":false,"acp":{"code":-32603}}"#,
                json!({"type": "error", "code": "ACP_TURN_FAILED", "message": "m", "retryable": false,
                           "acp": {"code": -32603}}),
            ),
            (
                K::Update,
                r#"{"sessionUpdate":"usage_update","used":1}"#,
                json!({"type": "update", "update_kind": "usage_update",
                           "update": {"sessionUpdate": "usage_update", "used": 1}}),
            ),
            (
                K::Extension,
                r#"{"method":"_x/y","params":{"type":"deep"},"type":"done","seq":99,"session_key":"other"}"#,
                json!({"type": "extension", "method": "_x/y", "params": {"type": "deep"}}),
            ),
            (
                K::Status,
                r#"{"status":"ready","text":"t"}"#,
                json!({"type": "status", "status": "ready", "text": "t"}),
            ),
            (K::Closed, r#"{"reason":"by hand"}"#, json!({"type": "closed", "reason": "by hand"})),
            (K::Plan, r#"{"entries":null}"#, json!({"type": "plan", "payload": {"entries": null}})),
            (K::AgentMessage, "[1]", json!({"type": "text_delta", "payload": [1]})),
            (K::AgentMessage, "{broken", json!({"type": "text_delta", "payload_text": "{broken"})),
            (K::Gap, "", json!({"type": "gap", "payload_text": ""})),
        ];
        for (kind, payload, rest) in table {
            let want = envelope(rest);
            let line = event_line(&row(kind, payload));
            assert!(!line.contains(['\n', '\r']), "{line}");
            assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), want, "{payload}");
        }
    }

    #[test]
    fn numbers_keep_spelling_and_events_outside_runs_have_null_run() {
        let mut between = row(EventKind::Update, "{\"n\":\r\n1e400}");
        between.run_id = None;
        between.seq = None;
        assert_eq!(
            event_line(&between),
            concat!(
                r#"{"event_version":1,"session_key":"agent:demo:acp:1","session_seq":7,"run_id":null,"seq":null,"#,
                r#""type":"update","created_at_ms":1700000000123,"update":{"n":  1e400}}"#
            )
        );
    }

    proptest! {
        #[test]
        fn any_payload_is_one_json_line(text in ".{0,60}", pick in 0..EventKind::ALL.len()) {
            let kind = EventKind::ALL[pick];
            for payload in [
                text.clone(),
                json!({"content": {"type": "text", "text": text}}).to_string(),
                json!({"permission_id": text, "params": {"options": text, "toolCall": text}}).to_string(),
            ] {
                let line = event_line(&row(kind, &payload));
                let value: Value = serde_json::from_str(&line).unwrap();
                prop_assert_eq!(&value["type"], wire_type(kind));
                prop_assert_eq!(value["session_seq"].as_u64(), Some(7));
                prop_assert!(!line.contains(['\n', '\r']));
            }
        }
    }
}
