//! Open tool calls of the running turn. Some agents request a permission with a bare name and describe the
//! call in an earlier `tool_call`. Part of the committed state, so bounded.

use super::excerpt::{excerpt, left_out};
use crate::jsonrpc::ObjectMembers;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;

/// Maximum number of calls kept with an excerpt of their description; of the others only the title is kept.
const DESCRIBED_MAX: usize = 16;
/// Maximum number of calls kept; the least recently updated are dropped first.
const CALLS_MAX: usize = 64;
/// Maximum size of an id, in bytes.
const ID_BYTES_MAX: usize = 1_024;
/// Members that describe a call, with the size of their excerpts in bytes of JSON.
const MEMBERS: [(&str, usize); 5] = [
    ("title", 1_024),
    ("kind", 256),
    ("content", 8 * 1_024),
    ("locations", 2 * 1_024),
    ("rawInput", 8 * 1_024),
];

/// Open tool calls, least recently updated first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct OpenToolCalls(VecDeque<OpenToolCall>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct OpenToolCall {
    id: String,
    members: Map<String, Value>,
    /// True if only title and kind are kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_short: bool,
}

impl OpenToolCalls {
    /// True if no call is open.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Applies a `tool_call` or `tool_call_update`. Returns false if the description of a call was dropped.
    pub(super) fn update(&mut self, update: &ObjectMembers<'_>) -> bool {
        let Some(id) = update.string("toolCallId") else { return true };
        if matches!(update.string("status").as_deref(), Some("completed" | "failed")) {
            self.0.retain(|call| call.id != id);
            return true;
        }
        if id.len() > ID_BYTES_MAX {
            return false;
        }
        let known = self.0.iter().position(|call| call.id == id).and_then(|at| self.0.remove(at));
        let mut call = known.unwrap_or_else(|| OpenToolCall {
            id: id.into_owned(),
            members: Map::new(),
            is_short: false,
        });
        for (name, bytes_max) in MEMBERS {
            let given = update.get(name).map(|raw| excerpt(raw, bytes_max)).filter(|given| !is_blank(given));
            if let Some(given) = given {
                if call.is_short && !matches!(name, "title" | "kind") {
                    call.is_short = false;
                    // The note about the dropped description.
                    call.members.remove("content");
                }
                call.members.insert(name.to_owned(), given);
            }
        }
        self.0.push_back(call);
        self.shorten()
    }

    /// Keeps the calls within their limits. Returns false if one was dropped.
    fn shorten(&mut self) -> bool {
        let described = self.0.iter().filter(|call| !call.is_short).count();
        let rest = described.saturating_sub(DESCRIBED_MAX);
        self.0.iter_mut().filter(|call| !call.is_short).take(rest).for_each(OpenToolCall::shorten);
        let dropped = self.0.len().saturating_sub(CALLS_MAX);
        self.0.drain(..dropped);
        dropped == 0
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
        // The request's own description takes precedence over the note about a dropped one.
        let is_described =
            ["rawInput", "locations"].iter().any(|own| asked.get(*own).is_some_and(|own| !is_blank(own)));
        let mut is_changed = false;
        for (name, value) in &call.members {
            if call.is_short && is_described && name == "content" {
                continue;
            }
            if asked.get(name).is_none_or(is_blank) {
                asked.insert(name.clone(), value.clone());
                is_changed = true;
            }
        }
        is_changed
    }
}

impl OpenToolCall {
    /// Replaces the description by a note about its size.
    fn shorten(&mut self) {
        self.is_short = true;
        let count = self.members.len();
        let all = Value::Object(std::mem::take(&mut self.members));
        let bytes = all.to_string().len();
        let Value::Object(all) = all else { return };
        self.members =
            all.into_iter().filter(|(name, _)| matches!(name.as_str(), "title" | "kind")).collect();
        if self.members.len() < count {
            let text = left_out(&format!("a description of about {bytes} bytes"));
            let content = json!([{ "type": "content", "content": { "type": "text", "text": text } }]);
            self.members.insert("content".to_owned(), content);
        }
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

    fn update(calls: &mut OpenToolCalls, update: &Value) -> bool {
        calls.update(&ObjectMembers::parse(&update.to_string()).unwrap())
    }

    fn completed(calls: &OpenToolCalls, call: Value) -> Value {
        let mut params = json!({ "toolCall": call });
        calls.complete(&mut params);
        params["toolCall"].take()
    }

    #[test]
    fn bare_request_is_completed_from_its_tool_call() {
        let mut calls = OpenToolCalls::default();
        update(&mut calls, &json!({"toolCallId":"c1","title":"Bash","kind":"execute","rawInput":{}}));
        update(&mut calls, &json!({"toolCallId":"c1","rawInput":{"command":"rm -rf build"}}));
        update(&mut calls, &json!({"toolCallId":"c2","title":"other"}));
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
            update(&mut calls, &json!({"toolCallId":"c","title":"t"}));
            update(
                &mut calls,
                &json!({"toolCallId": "c", "status": status, "content": "x".repeat(300 * 1_024)}),
            );
            assert!(calls.is_empty(), "{status}");
        }
    }

    /// Requests show what a call would do, also if it is large, or one of many.
    #[test]
    fn a_large_description_is_kept_as_an_excerpt() {
        let text = "line of text\n".repeat(100_000);
        let mut calls = OpenToolCalls::default();
        let diff = json!([{"type": "diff", "newText": text, "oldText": null, "path": "/w/big.txt"}]);
        update(&mut calls, &json!({"toolCallId": "w", "title": "Write", "content": diff}));
        update(&mut calls, &json!({"toolCallId": "r", "title": "Bash", "rawInput": {"command": text}}));
        let write = completed(&calls, json!({"toolCallId": "w"}));
        let change = &write["content"][0];
        assert_eq!((&change["path"], &write["title"]), (&json!("/w/big.txt"), &json!("Write")));
        for cut in [&change["newText"], &completed(&calls, json!({"toolCallId": "r"}))["rawInput"]["command"]]
        {
            let cut = cut.as_str().unwrap();
            assert!(
                cut.starts_with("line of text\nline of text\n") && cut.contains(" bytes left out"),
                "{cut}"
            );
        }
        for n in 0..DESCRIBED_MAX {
            update(&mut calls, &json!({"toolCallId": n.to_string(), "title": "t", "rawInput": {"n": n}}));
        }
        let write = completed(&calls, json!({"toolCallId": "w", "title": ""}));
        assert_eq!(write["title"], "Write");
        let note = write["content"][0]["content"]["text"].as_str().unwrap();
        assert!(note.starts_with("… (a description of about "), "{note}");
        update(&mut calls, &json!({"toolCallId": "w", "rawInput": {"path": "/w/big.txt"}}));
        assert_eq!(completed(&calls, json!({"toolCallId": "w"}))["rawInput"]["path"], "/w/big.txt");
    }

    #[test]
    fn a_large_change_is_shown_where_it_is() {
        let lines = |mark: &str| (0..400).map(|n| format!("{mark} line number {n}\n")).collect::<String>();
        let (begin, end) = (lines("begin"), lines("end"));
        let change = |old: &str, new: &str| {
            let diff = json!({"type": "diff", "path": "/w/a.rs", "oldText": format!("{begin}{old}{end}"), "newText": format!("{begin}{new}{end}")});
            let mut calls = OpenToolCalls::default();
            update(&mut calls, &json!({"toolCallId": "w", "content": [diff]}));
            crate::render::whole_tool_call(&completed(&calls, json!({"toolCallId": "w"}))).unwrap()
        };
        let want = "    --- a/w/a.rs\n    +++ b/w/a.rs\n    @@ -1 +1 @@\n    -old\n    +new";
        assert_eq!(change("old\n", "new\n"), want);
        let shown = change(&lines("old"), &lines("new"));
        assert!(
            shown.starts_with("    # /w/a.rs\n    # … (a change of ") && shown.lines().count() == 2,
            "{shown}"
        );
    }

    #[test]
    fn note_about_a_description_never_hides_the_request() {
        let mut calls = OpenToolCalls::default();
        for n in 0..=DESCRIBED_MAX {
            update(&mut calls, &json!({"toolCallId": n.to_string(), "title": "t", "rawInput": {"n": n}}));
        }
        let of = |calls: &OpenToolCalls, mut call: Value| {
            call["toolCallId"] = json!("0");
            completed(calls, call)
        };
        assert!(of(&calls, json!({})).get("content").is_some());
        for own in [json!({"rawInput": {"url": "x"}}), json!({"locations": [{"path": "/w/a"}]})] {
            assert_eq!(of(&calls, own.clone()).get("content"), None, "{own}");
        }
        let blank = json!({"rawInput": {}, "locations": []});
        assert!(of(&calls, blank).get("content").is_some());
        // A new description replaces the note.
        update(&mut calls, &json!({"toolCallId": "0", "rawInput": {"url": "x"}}));
        assert_eq!(of(&calls, json!({})), json!({"toolCallId": "0", "title": "t", "rawInput": {"url": "x"}}));
    }

    #[test]
    fn tool_calls_and_their_members_are_bounded() {
        let mut calls = OpenToolCalls::default();
        let text = "x".repeat(64 * 1_024);
        for n in 0..CALLS_MAX + 10 {
            let id = format!("{n:0ID_BYTES_MAX$}");
            let all = json!({"toolCallId": id, "title": text, "kind": text, "rawInput": text, "locations": [text, text], "content": vec![&text; 20]});
            assert_eq!(update(&mut calls, &all), n < CALLS_MAX, "{n}");
        }
        let members: usize = MEMBERS.iter().map(|(_, bytes)| bytes + 600).sum();
        let bytes = serde_json::to_string(&calls).map_or(0, |text| text.len());
        assert!(bytes <= DESCRIBED_MAX * members + CALLS_MAX * 3_500, "{bytes}");
        assert_eq!(calls.0.len(), CALLS_MAX);
        assert!(!update(&mut calls, &json!({"toolCallId": text, "title": "t"})), "the id is too long");
    }

    /// State of an earlier version.
    #[test]
    fn calls_without_the_mark_are_read() {
        let old = r#"[{"id":"c","members":{"title":"t"}}]"#;
        let calls: OpenToolCalls = serde_json::from_str(old).unwrap();
        assert_eq!(serde_json::to_string(&calls).unwrap(), old);
    }
}
