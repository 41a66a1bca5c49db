//! Rows of the journal as JSON-RPC messages for a client. What an agent sent is copied as received.

use super::PERMISSION_ID_PREFIX;
use super::message::{ReplyError, error_frame, notification_frame, request_frame, result_frame};
use super::session_view::PendingQuestion;
use super::voting::QuestionKind;
use crate::elicitation::{self, PAGE_COMPLETE};
use crate::event::{EventKind, EventRow};
use crate::failure::Failure;
use crate::jsonrpc::{ObjectMembers, put, quoted};
use crate::permission::Voters;
use acp_shared::ids::SessionKey;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Name of the member of `_meta` with the gateway's own data.
const OURS: &str = "acphost";

/// Returns a `session/update` with this update, JSON text. `extra` is the stored rest of the agent's params, `ours` the
/// gateway's data.
pub fn update_frame(session: &SessionKey, update: &str, extra: Option<&str>, ours: &Value) -> String {
    let mut params = format!(r#"{{"sessionId":"{session}","update":{update}"#);
    write_extra(extra, ours, &mut params);
    params.push('}');
    notification_frame("session/update", &params)
}

/// Appends the members of `extra`, with the gateway's data in its `_meta`.
fn write_extra(extra: Option<&str>, ours: &Value, out: &mut String) {
    let members = extra.and_then(|extra| ObjectMembers::parse(extra).ok()).unwrap_or_default();
    for (name, raw) in members.iter().filter(|(name, _)| *name != "_meta") {
        // Writing into a String cannot fail.
        let _ = write!(out, ",{}:{raw}", quoted(name));
    }
    let _ = write!(out, r#","_meta":{}"#, merged_meta(members.get("_meta"), ours));
}

/// Returns the agent's `_meta` with the gateway's data added.
fn merged_meta(meta: Option<&str>, ours: &Value) -> String {
    let theirs = meta.and_then(|meta| ObjectMembers::parse(meta).ok()).unwrap_or_default();
    let mut out = "{".to_owned();
    for (name, raw) in theirs.iter().filter(|(name, _)| *name != OURS) {
        let _ = write!(out, "{}:{raw},", quoted(name));
    }
    let _ = write!(out, r#""{OURS}":{ours}}}"#);
    out
}

/// Returns the update that a row of the agent holds.
pub fn agent_update(row: &EventRow) -> String {
    update_frame(
        &row.session_key,
        row.payload.trim(),
        row.extra.as_deref(),
        &json!({ "seq": row.session_seq }),
    )
}

/// Prompt of a journal row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptText {
    /// Text of the person.
    pub text: String,
    /// Name of the author.
    pub author: String,
    /// True for input into the running turn.
    pub is_steer: bool,
}

/// Reads the payload of a `prompt` row.
pub fn prompt_of(row: &EventRow) -> PromptText {
    let payload: Value = serde_json::from_str(&row.payload).unwrap_or_default();
    let text = |name: &str| payload.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    PromptText { text: text("text"), author: text("author"), is_steer: text("mode") == "steer" }
}

/// Returns the message of a person as an update.
pub fn user_message(row: &EventRow, prompt: &PromptText) -> String {
    let content = json!({ "type": "text", "text": prompt.text });
    let update = json!({ "sessionUpdate": "user_message_chunk", "content": content });
    let ours = json!({ "seq": row.session_seq, "author": prompt.author, "runId": row.run_id });
    update_frame(&row.session_key, &update.to_string(), None, &ours)
}

/// Returns an update about a turn: its start or its end.
pub fn turn_update(row: &EventRow, turn: &Value) -> String {
    let ours = json!({ "seq": row.session_seq, "turn": turn });
    update_frame(&row.session_key, r#"{"sessionUpdate":"session_info_update"}"#, None, &ours)
}

/// Returns the description of an ended turn, from its `done` or `error` row.
pub fn ended_turn(row: &EventRow) -> Value {
    let payload: Value = serde_json::from_str(&row.payload).unwrap_or_default();
    let mut turn = json!({ "runId": row.run_id, "state": "idle" });
    if row.kind == EventKind::Done {
        put(&mut turn, "stopReason", payload.get("stop_reason").cloned().unwrap_or_default());
    } else {
        let of = |name: &str| payload.get(name).cloned().unwrap_or_default();
        put(
            &mut turn,
            "error",
            json!({ "code": of("code"), "message": of("message"), "retryable": of("retryable") }),
        );
    }
    turn
}

/// Returns the answer to the prompt with this raw id, from the `done` or `error` row of its run.
pub fn prompt_answer(id: &str, row: &EventRow) -> String {
    let ours = json!({ "seq": row.session_seq, "runId": row.run_id });
    if row.kind == EventKind::Done { done_answer(id, row, &ours) } else { failed_answer(id, row) }
}

fn done_answer(id: &str, row: &EventRow, ours: &Value) -> String {
    let payload = ObjectMembers::parse(&row.payload).unwrap_or_default();
    let stop_reason = payload.get("stop_reason").unwrap_or("\"end_turn\"");
    let result = payload.get("result").and_then(|raw| ObjectMembers::parse(raw).ok()).unwrap_or_default();
    // The agent's own result, unless the gateway ended the turn in another way.
    let theirs = result.iter().filter(|(name, _)| !matches!(*name, "stopReason" | "_meta"));
    let mut out = format!(r#"{{"stopReason":{stop_reason}"#);
    for (name, raw) in theirs {
        let _ = write!(out, ",{}:{raw}", quoted(name));
    }
    let _ = write!(out, r#","_meta":{}}}"#, merged_meta(result.get("_meta"), ours));
    result_frame(id, &out)
}

fn failed_answer(id: &str, row: &EventRow) -> String {
    let Ok(failure) = serde_json::from_str::<Failure>(&row.payload) else {
        return error_frame(id, &ReplyError::new(crate::jsonrpc::INTERNAL_ERROR, "the turn failed"));
    };
    let mut error = ReplyError::from(&failure);
    if let Some(acp) = failure.acp.as_deref()
        && let Some(code) = acp.get("code").and_then(Value::as_i64)
    {
        // An error of the agent is the answer of the agent.
        let message = acp.get("message").and_then(Value::as_str).unwrap_or(&failure.message);
        error = ReplyError { code, message: message.to_owned(), data: acp.get("data").cloned() };
    }
    error_frame(id, &error)
}

/// Returns the request for a vote with the agent's params under the session of the gateway.
pub fn permission_request(session: &SessionKey, question: &PendingQuestion) -> String {
    let members = ObjectMembers::parse(&question.params).unwrap_or_default();
    let method = match question.kind {
        QuestionKind::Permission => "session/request_permission",
        QuestionKind::Form | QuestionKind::Page => elicitation::METHOD,
    };
    // An elicitation may belong to a request, whose id is the agent's.
    let is_replaced = |name: &str| match name {
        "sessionId" | "_meta" => true,
        "requestId" => question.kind != QuestionKind::Permission,
        _ => false,
    };
    let mut out = format!(r#"{{"sessionId":"{session}""#);
    for (name, raw) in members.iter().filter(|(name, _)| !is_replaced(name)) {
        let _ = write!(out, ",{}:{raw}", quoted(name));
    }
    let mut ours = json!({ "permissionId": question.permission_id });
    if let Some(at_ms) = question.deadline_at_ms {
        put(&mut ours, "deadlineAtMs", json!(at_ms));
    }
    let _ = write!(out, r#","_meta":{}}}"#, merged_meta(members.get("_meta"), &ours));
    request_frame(&format!("{PERMISSION_ID_PREFIX}{}", question.permission_id), method, &out)
}

/// Reads the question of a `permission` row.
pub fn question_of(row: &EventRow) -> Option<PendingQuestion> {
    let payload = ObjectMembers::parse(&row.payload).ok()?;
    let form = payload.get("form").and_then(|raw| ObjectMembers::parse(raw).ok());
    let mode = form.as_ref().and_then(|form| form.string("mode"));
    Some(PendingQuestion {
        permission_id: payload.string("permission_id")?.into_owned(),
        run_id: row.run_id,
        kind: match mode.as_deref() {
            None => QuestionKind::Permission,
            Some("url") => QuestionKind::Page,
            Some(_) => QuestionKind::Form,
        },
        params: payload.get("params").unwrap_or("{}").to_owned(),
        deadline_at_ms: payload.get("deadline_at_ms").and_then(|raw| raw.parse().ok()),
        // A rule of a later version admits nobody.
        voters: payload
            .get("voters")
            .map_or(Voters::Anyone, |raw| serde_json::from_str(raw).unwrap_or(Voters::Owner(String::new()))),
    })
}

/// Reads the status row about a page whose interaction is complete.
pub fn page_completion(row: &EventRow) -> Option<String> {
    let payload = ObjectMembers::parse(&row.payload).ok()?;
    let id = payload
        .get("elicitation_id")
        .filter(|_| payload.string("status").as_deref() == Some(PAGE_COMPLETE))?;
    Some(notification_frame("elicitation/complete", &format!(r#"{{"elicitationId":{id}}}"#)))
}

/// Reads a `permission_settled` row: the id, and the notification about it.
pub fn settled_of(row: &EventRow) -> Option<(String, String)> {
    let payload: Value = serde_json::from_str(&row.payload).ok()?;
    let id = payload.get("permission_id")?.as_str()?.to_owned();
    let mut params = json!({ "sessionId": row.session_key, "permissionId": id });
    for (theirs, ours) in
        [("option_id", "optionId"), ("action", "action"), ("by", "by"), ("without", "without")]
    {
        if let Some(value) = payload.get(theirs).filter(|value| !value.is_null()) {
            put(&mut params, ours, value.clone());
        }
    }
    put(&mut params, "_meta", json!({ OURS: { "seq": row.session_seq } }));
    Some((id, notification_frame("_acphost/permission/settled", &params.to_string())))
}

/// Returns the notification that withdraws a request for a vote.
pub fn permission_withdrawal(permission_id: &str) -> String {
    let params = json!({ "requestId": format!("{PERMISSION_ID_PREFIX}{permission_id}") });
    notification_frame("$/cancel_request", &params.to_string())
}

/// Returns an agent's own notification under the session of the gateway; `None` for names that are not an agent's.
pub fn extension(row: &EventRow) -> Option<String> {
    let payload = ObjectMembers::parse(&row.payload).ok()?;
    let method = payload.string("method")?;
    if !method.starts_with('_') || method.starts_with("_acphost/") {
        return None;
    }
    let params = payload.get("params").unwrap_or("{}");
    let Ok(members) = ObjectMembers::parse(params) else {
        return Some(notification_frame(&method, params));
    };
    let list: Vec<String> = members
        .iter()
        .map(|(name, raw)| match name {
            "sessionId" => format!(r#""sessionId":"{}""#, row.session_key),
            name => format!("{}:{raw}", quoted(name)),
        })
        .collect();
    Some(notification_frame(&method, &format!("{{{}}}", list.join(","))))
}

/// Returns the notice about missing output.
pub fn gap_notice(row: &EventRow) -> String {
    let payload: Value = serde_json::from_str(&row.payload).unwrap_or_default();
    let text = payload.get("text").and_then(Value::as_str).unwrap_or("Output of the agent is missing here.");
    let update = json!({ "sessionUpdate": "notice", "level": "warning", "message": text });
    update_frame(&row.session_key, &update.to_string(), None, &json!({ "seq": row.session_seq, "gap": true }))
}

/// Returns the update about the close of the session.
pub fn closed_update(row: &EventRow) -> String {
    let payload: Value = serde_json::from_str(&row.payload).unwrap_or_default();
    let ours = json!({ "seq": row.session_seq, "closed": payload });
    update_frame(&row.session_key, r#"{"sessionUpdate":"session_info_update"}"#, None, &ours)
}

#[cfg(test)]
#[path = "projection_tests.rs"]
mod tests;
