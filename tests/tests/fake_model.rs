//! Tests of the fake model, on which the tests with foreign agents rely.

use acp_tests::fake_model::probe::FakeModel;
use acp_tests::wait::{SOON, until};
use acp_tests::world::World;
use serde_json::{Value, json};
use std::io::Read as _;

const PATH: &str = "/v1/chat/completions";

fn body(script: &str, stream: bool) -> String {
    let parameters = json!({
        "type": "object", "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["file_path", "content"],
    });
    let tool = json!({"type": "function", "function": {"name": "write_file", "parameters": parameters}});
    let message = json!({"role": "user", "content": script});
    json!({
        "model": "m", "stream": stream, "stream_options": {"include_usage": true}, "messages": [message],
        "tools": [tool],
    })
    .to_string()
}

/// The events of a stream, the closing mark left out.
fn events(text: &str) -> Vec<Value> {
    let data = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    let data = data.filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}"))).collect()
}

#[test]
fn model_streams_scripted_text() {
    let world = World::new();
    let model = FakeModel::start(&world);
    let script = "[[say hi]] [[chunks 3 1ms]]";
    let (status, text) = model.ask("POST", PATH, &body(script, true));
    assert_eq!(status, 200);
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let events = events(&text);
    let said: String = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(said, "hiw1 w2 w3 ");
    let finish: Vec<&str> = events.iter().filter_map(|e| e["choices"][0]["finish_reason"].as_str()).collect();
    assert_eq!(finish, ["stop"]);
    assert_eq!(events.last().map(|e| e["usage"]["total_tokens"].clone()), Some(json!(15)));
    until(SOON, "request logged as done", || {
        model.request_with_script(script).is_some_and(|line| line["state"] == "done")
    });
}

#[test]
fn model_calls_tool_and_continues_after_result() {
    let world = World::new();
    let model = FakeModel::start(&world);
    let script = "[[write /f x y]] [[say written]]";
    for stream in [true, false] {
        let (_, text) = model.ask("POST", PATH, &body(script, stream));
        let (call, finish) = if stream {
            let events = events(&text);
            let call =
                events.iter().find_map(|e| e["choices"][0]["delta"]["tool_calls"][0].as_object().cloned());
            let finish =
                events.iter().find_map(|e| e["choices"][0]["finish_reason"].as_str().map(str::to_owned));
            (call.map(Value::Object), finish)
        } else {
            let answer: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
            let choice = &answer["choices"][0];
            let call = choice["message"]["tool_calls"][0].clone();
            (Some(call), choice["finish_reason"].as_str().map(str::to_owned))
        };
        assert_eq!(finish.as_deref(), Some("tool_calls"));
        let function = call.map(|call| call["function"].clone()).unwrap_or_default();
        assert_eq!(function["name"], "write_file");
        assert_eq!(function["arguments"], json!({"file_path": "/f", "content": "x y"}).to_string());
    }
    let mut next: Value = serde_json::from_str(&body(script, false)).unwrap_or_else(|e| panic!("{e}"));
    let result = json!({"role": "tool", "tool_call_id": "call_0", "content": "ok"});
    next["messages"].as_array_mut().unwrap_or_else(|| panic!("messages")).push(result);
    let (_, text) = model.ask("POST", PATH, &next.to_string());
    let answer: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(answer["choices"][0]["message"]["content"], "written");
}

#[test]
fn model_logs_aborted_streams() {
    let world = World::new();
    let model = FakeModel::start(&world);
    for script in ["[[chunks 100000 10ms]]", "[[say x]] [[hang]]"] {
        let mut stream = model.send("POST", PATH, &body(script, true));
        assert!(stream.read(&mut [0; 64]).is_ok_and(|n| n > 0));
        until(SOON, "request open", || {
            model.request_with_script(script).is_some_and(|line| line["state"] == "open")
        });
        drop(stream);
        until(SOON, "request aborted", || {
            model.request_with_script(script).is_some_and(|line| line["state"] == "aborted")
        });
    }
}

#[test]
fn model_returns_scripted_error_and_lists_itself() {
    let world = World::new();
    let model = FakeModel::start(&world);
    let (status, text) = model.ask("POST", PATH, &body("[[error 429]]", true));
    assert_eq!(status, 429);
    assert!(text.contains("scripted"), "{text}");
    let (status, text) = model.ask("GET", "/v1/models", "");
    assert_eq!(status, 200);
    assert!(text.contains("\"fake\""), "{text}");
}

/// Google's GenerateContent interface: a stream that calls a tool, its continuation in one piece, and the refusals.
#[test]
fn generate_content_streams_tool_calls_and_refuses_bad_requests() {
    const MODELS: &str = "/v1beta/models/fake";
    let world = World::new();
    let model = FakeModel::start(&world);
    let script = "[[write /f x y]] [[say written]]";
    let schema = json!({"type": "object", "properties": {"file_path": {}, "content": {}}});
    let mut body = json!({
        "contents": [{"role": "user", "parts": [{"text": script}]}],
        "tools": [{"functionDeclarations": [{"name": "write_file", "parametersJsonSchema": schema}]}],
    });
    let stream = format!("{MODELS}:streamGenerateContent");
    let (status, text) = model.ask("POST", &format!("{stream}?alt=sse&key=none"), &body.to_string());
    assert_eq!(status, 200, "{text}");
    let events = events(&text.replace("\r\n", "\n"));
    let call = &events[0]["candidates"][0]["content"]["parts"][0]["functionCall"];
    let args = json!({"file_path": "/f", "content": "x y"});
    assert_eq!(*call, json!({"id": "call_0", "name": "write_file", "args": args}));
    let last = events.last().unwrap_or_else(|| panic!("{text}"));
    assert_eq!(last["candidates"][0]["finishReason"], "STOP");
    assert_eq!(last["usageMetadata"]["totalTokenCount"], 15);

    let turns = body["contents"].as_array_mut().unwrap_or_else(|| panic!("contents"));
    turns.push(json!({"role": "model", "parts": [{"functionCall": call}]}));
    let half = body.to_string();
    let turns = body["contents"].as_array_mut().unwrap_or_else(|| panic!("contents"));
    let result =
        json!({"functionResponse": {"id": "call_0", "name": "write_file", "response": {"output": "ok"}}});
    turns.push(json!({"role": "user", "parts": [result]}));
    let whole = format!("{MODELS}:generateContent?key=none");
    let (_, text) = model.ask("POST", &whole, &body.to_string());
    let answer: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(answer["candidates"][0]["content"]["parts"], json!([{"text": "written"}]));
    assert_eq!(model.request_with_script(script).map(|line| line["tool_results"].clone()), Some(json!(1)));

    let whole_body = body.to_string();
    for (path, body, want) in [
        (format!("{MODELS}:countTokens?key=none"), &whole_body, 404),
        (format!("{MODELS}:generateContent"), &whole_body, 403),
        (format!("{stream}?key=none"), &whole_body, 400),
        (whole, &half, 400),
    ] {
        assert_eq!(model.ask("POST", &path, body).0, want, "{path}");
    }
}
