//! Google's GenerateContent interface, as far as an agent needs it: `POST /v1beta/models/MODEL:METHOD`.
//!
//! | method | answer |
//! |---|---|
//! | `streamGenerateContent?alt=sse` | server-sent events, each a `GenerateContentResponse`; the end of the body is the end |
//! | `generateContent` | one `GenerateContentResponse` |
//!
//! Other methods are answered with 404. A request needs an API key (`x-goog-api-key` or `?key=`), and
//! contents that the interface would accept: turns of `user` and `model`, each with parts, the last one of
//! the user, and a `functionResponse` for each `functionCall` of the turn before. Anything else is refused
//! with 400, so that a wrong client fails here.

use super::reply::{AnswerEnd, Piece, Timed, pieces};
use super::request::Request;
use super::script::Step;
use super::{Log, Refusal};
use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::Duration;

/// Header that carries the API key.
const KEY_HEADER: &str = "x-goog-api-key";

/// Answers a call of a method of a model.
pub(super) async fn call(
    State(log): State<Log>,
    Path(call): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    let Some((model, method)) = call.split_once(':') else {
        return error(StatusCode::NOT_FOUND, "NOT_FOUND", "no method is named");
    };
    let is_streamed = method == "streamGenerateContent";
    if !is_streamed && method != "generateContent" {
        return error(StatusCode::NOT_FOUND, "NOT_FOUND", &format!("no method {method}"));
    }
    let query = query.unwrap_or_default();
    let has_pair = |wanted: fn(&str) -> bool| query.split('&').any(wanted);
    let has_key = headers.get(KEY_HEADER).is_some_and(|key| !key.is_empty())
        || has_pair(|pair| pair.strip_prefix("key=").is_some_and(|key| !key.is_empty()));
    if !has_key {
        return error(StatusCode::FORBIDDEN, "PERMISSION_DENIED", "no API key");
    }
    let is_sse = has_pair(|pair| pair == "alt=sse");
    if is_streamed != is_sse {
        return error(StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", "only a stream has alt=sse, and it must");
    }
    let request = match parse(model, is_streamed, &body) {
        Ok(request) => request,
        Err(reason) => return error(StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", &reason),
    };
    match log.begin(&request) {
        Err(Refusal { status, message }) => error(status, "UNAVAILABLE", message),
        Ok((steps, line)) if is_streamed => {
            super::reply::stream(events(&request, steps), AnswerEnd::new(log, line))
        }
        Ok((steps, line)) => whole(&request, steps, AnswerEnd::new(log, line)).await,
    }
}

fn error(status: StatusCode, name: &str, message: &str) -> Response {
    let error = json!({"error": {"code": status.as_u16(), "message": message, "status": name}});
    (status, Json(error)).into_response()
}

/// Parts of a turn.
fn parts(turn: &Value) -> &[Value] {
    turn["parts"].as_array().map_or(&[], Vec::as_slice)
}

/// Number of the parts of a turn that have this member.
fn count(turn: &Value, member: &str) -> usize {
    parts(turn).iter().filter(|part| part[member].is_object()).count()
}

/// Texts of a turn, without the thoughts of the model.
fn text(turn: &Value) -> String {
    let said = parts(turn).iter().filter(|part| part["thought"] != true);
    said.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
}

/// Checks the turns of a conversation.
fn check(turns: &[Value]) -> Result<(), String> {
    let mut calls = 0;
    for (i, turn) in turns.iter().enumerate() {
        let role = turn["role"].as_str().unwrap_or_default();
        if !matches!(role, "user" | "model") {
            return Err(format!("contents[{i}].role is not user or model: {turn}"));
        }
        if parts(turn).is_empty() {
            return Err(format!("contents[{i}].parts is empty"));
        }
        let responses = count(turn, "functionResponse");
        if responses != calls {
            return Err(format!(
                "contents[{i}] has {responses} function responses for {calls} function calls"
            ));
        }
        calls = count(turn, "functionCall");
        if calls > 0 && role != "model" {
            return Err(format!("contents[{i}] is a function call of the user"));
        }
    }
    match turns.last() {
        Some(turn) if turn["role"] == "user" => Ok(()),
        _ => Err("contents do not end with a turn of the user".to_owned()),
    }
}

/// Parses a request; converts its function declarations to tools of the chat interface.
fn parse(model: &str, stream: bool, body: &Value) -> Result<Request, String> {
    let turns = body["contents"].as_array().map_or(&[][..], Vec::as_slice);
    check(turns)?;
    let scripted = |turn: &Value| turn["role"] == "user" && text(turn).contains("[[");
    let at = turns.iter().rposition(scripted).unwrap_or(turns.len() - 1);
    let (before, since) = turns.split_at(at);
    let mut tools = Vec::new();
    for tool in body["tools"].as_array().into_iter().flatten() {
        for declared in tool["functionDeclarations"].as_array().into_iter().flatten() {
            let spelled =
                ["parametersJsonSchema", "parameters"].iter().find(|name| !declared[**name].is_null());
            let parameters = spelled.map_or(Value::Null, |name| declared[*name].clone());
            let function = json!({"name": declared["name"], "parameters": parameters});
            tools.push(json!({"type": "function", "function": function}));
        }
    }
    Ok(Request {
        model: model.to_owned(),
        stream,
        usage: true,
        prompt: since.first().map(text).unwrap_or_default(),
        scripts_before: before.iter().filter(|turn| scripted(turn)).count(),
        results: Vec::new(),
        tool_results: since.iter().map(|turn| count(turn, "functionResponse")).sum(),
        tools,
    })
}

fn part(request: &Request, piece: &Piece) -> Option<Value> {
    match piece {
        Piece::Text(text) => Some(json!({"text": text})),
        Piece::Call { name, arguments } => {
            Some(json!({"functionCall": {"id": request.call_id(), "name": name, "args": arguments}}))
        }
        Piece::Hang => None,
    }
}

/// One `GenerateContentResponse`; the last one of an answer has the finish reason and the usage.
fn response(request: &Request, parts: &[Value], is_last: bool) -> Value {
    let mut candidate = json!({"content": {"role": "model", "parts": parts}, "index": 0});
    let mut response = json!({"modelVersion": request.model, "responseId": "fake"});
    if is_last {
        candidate["finishReason"] = json!("STOP");
        response["usageMetadata"] =
            json!({"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15});
    }
    response["candidates"] = json!([candidate]);
    response
}

fn events(request: &Request, steps: Vec<Step>) -> VecDeque<Option<Timed>> {
    let mut events = VecDeque::new();
    let event = |parts: &[Value], is_last| format!("data: {}\r\n\r\n", response(request, parts, is_last));
    for (wait, piece) in pieces(request, steps).0 {
        let Some(part) = part(request, &piece) else {
            events.push_back(None);
            return events;
        };
        events.push_back(Some((wait, event(&[part], false))));
    }
    events.push_back(Some((Duration::ZERO, event(&[json!({"text": ""})], true))));
    events
}

/// Answers with one document.
async fn whole(request: &Request, steps: Vec<Step>, mut ending: AnswerEnd) -> Response {
    let mut parts = Vec::new();
    for (wait, piece) in pieces(request, steps).0 {
        tokio::time::sleep(wait).await;
        match part(request, &piece) {
            Some(part) => parts.push(part),
            None => std::future::pending().await,
        }
    }
    ending.done();
    Json(response(request, &parts, true)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(role: &str, parts: &Value) -> Value {
        json!({"role": role, "parts": parts})
    }

    #[test]
    fn request_is_read_like_one_of_the_chat_interface() {
        let call = json!([{"functionCall": {"name": "write_file", "args": {}}}]);
        let result = json!([{"functionResponse": {"name": "write_file", "response": {"output": "[[no]]"}}}]);
        let schema = json!({"type": "object", "properties": {"file_path": {}, "content": {}}});
        let body = json!({
            "contents": [
                turn("user", &json!([{"text": "context"}, {"text": "[[say old]]"}])),
                turn("model", &json!([{"text": "old"}])),
                turn("user", &json!([{"text": "[[write /f x]] [[say over]]"}])),
                turn("model", &call),
                turn("user", &result),
            ],
            "tools": [{"functionDeclarations": [{"name": "write_file", "parametersJsonSchema": schema}]}],
        });
        let request = parse("m", true, &body).unwrap();
        assert_eq!(request.script(), "[[write /f x]] [[say over]]");
        assert_eq!(
            (request.tool_results, request.scripts_before, request.tool_names()),
            (1, 1, vec!["write_file"])
        );
        let step = Step::Write { path: "/f".into(), content: "x".into() };
        let arguments = json!({"file_path": "/f", "content": "x"});
        assert_eq!(request.call(&step), Some(("write_file".into(), arguments)));
    }

    #[test]
    fn conversations_that_the_interface_refuses_are_refused() {
        let text = json!([{"text": "hello"}]);
        let call = json!([{"functionCall": {"name": "f", "args": {}}}]);
        let result = json!([{"functionResponse": {"name": "f", "response": {}}}]);
        let user = turn("user", &text);
        for (contents, want) in [
            (json!([]), "do not end with a turn of the user"),
            (json!([user, turn("model", &text)]), "do not end with a turn of the user"),
            (json!([turn("assistant", &text)]), "role is not user or model"),
            (json!([turn("user", &json!([]))]), "parts is empty"),
            (json!([turn("user", &result)]), "1 function responses for 0 function calls"),
            (json!([user, turn("model", &call), user]), "0 function responses for 1 function calls"),
            (json!([turn("user", &call)]), "function call of the user"),
        ] {
            let refused = parse("m", true, &json!({"contents": contents})).unwrap_err();
            assert!(refused.contains(want), "{refused}");
        }
        assert!(
            parse("m", true, &json!({"contents": [user, turn("model", &call), turn("user", &result)]}))
                .is_ok()
        );
    }
}
