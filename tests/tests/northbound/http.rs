//! Requests that are not as they should be, and limits.

use crate::{client, cwd, path, socket, websocket};
use acp_tests::house::{House, Plan};
use acp_tests::northbound::{CONNECTION, Client, Received, http};
use serde_json::{Value, json};

const JSON: (&str, &str) = ("content-type", "application/json");

fn initialize(version: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {"protocolVersion": version}})
        .to_string()
}

/// Method, description, headers, body, status.
type Case<'a> = (&'a str, &'a str, Vec<(&'a str, &'a str)>, &'a str, u16);

#[test]
fn requests_are_answered_as_the_table_says() {
    let house = House::new(&[]);
    let (socket, client) = (socket(&house), client(&house));
    let id = ("acp-connection-id", client.connection());
    let unknown = ("acp-connection-id", "0123456789abcdef0123456789abcdef");
    let accept = ("accept", "text/event-stream");
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"_acphost/ping"}"#;
    let first = initialize(&json!(1));
    let table: Vec<Case<'_>> = vec![
        ("POST", "known connection", vec![JSON, id], ping, 202),
        ("POST", "known connection, no JSON", vec![JSON, id], "{", 202),
        ("POST", "known connection, batch", vec![JSON, id], "[]", 202),
        ("POST", "no header", vec![JSON], ping, 400),
        ("POST", "no header, no JSON", vec![JSON], "{", 400),
        ("POST", "no header, batch", vec![JSON], "[]", 400),
        ("POST", "unknown connection", vec![JSON, unknown], ping, 404),
        ("POST", "second initialize", vec![JSON, id], &first, 400),
        ("POST", "initialize as a notification", vec![JSON], r#"{"method":"initialize"}"#, 400),
        ("POST", "wrong content type", vec![("content-type", "text/plain"), id], ping, 415),
        ("GET", "no accept", vec![id], "", 406),
        ("GET", "no header", vec![accept], "", 400),
        ("GET", "unknown connection", vec![accept, unknown], "", 404),
        ("GET", "invalid session", vec![accept, id, ("acp-session-id", "a b")], "", 400),
        ("GET", "invalid place", vec![accept, id, ("last-event-id", "x")], "", 400),
        ("DELETE", "no header", vec![], "", 400),
        ("DELETE", "unknown connection", vec![unknown], "", 404),
        ("PUT", "another verb", vec![id], "", 405),
        ("DELETE", "known connection", vec![id], "", 202),
        ("DELETE", "deleted connection", vec![id], "", 404),
        ("POST", "deleted connection", vec![JSON, id], ping, 404),
    ];
    for (method, what, headers, body, status) in table {
        let answer = http(&socket, method, &path(), &headers, body);
        assert_eq!(answer.status, status, "{method}, {what}: {answer:?}");
        if status == 202 {
            assert_eq!(answer.body, "", "{what}");
        }
    }
    let refused = http(&socket, "POST", "/acp", &[JSON], "[]").json();
    assert_eq!((&refused["error"]["code"], &refused["id"]), (&json!(-32600), &Value::Null));
    assert_eq!(http(&socket, "POST", "/acp", &[JSON], "{").json()["error"]["code"], -32700);
    house.end();
}

#[test]
fn any_number_is_answered_with_version_one_and_other_types_with_an_error() {
    let house = House::new(&[]);
    let socket = socket(&house);
    for version in [json!(0), json!(-1), json!(1), json!(65_535), json!(1e30)] {
        let answer = http(&socket, "POST", "/acp", &[JSON], &initialize(&version));
        assert_eq!(answer.json()["result"]["protocolVersion"], 1, "{version}");
        assert_eq!(answer.header("acp-connection-id").map(|id| id.len()), Some(32));
    }
    for version in [json!("1"), Value::Null, json!([1])] {
        let answer = http(&socket, "POST", "/acp", &[JSON], &initialize(&version));
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (200, &json!(-32602)), "{version}");
        assert_eq!(answer.header("acp-connection-id"), None, "no connection");
    }
    house.end();
}

#[test]
fn stream_head_forbids_caches_and_buffers() {
    let house = House::new(&[]);
    let client = Client::http_without_stream(&socket(&house), &path());
    let (mut raw, mut head) =
        (std::os::unix::net::UnixStream::connect(socket(&house)).unwrap(), vec![0; 4096]);
    use std::io::{Read as _, Write as _};
    let request = format!(
        "GET {} HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\nacp-connection-id: {}\r\n\r\n",
        path(),
        client.connection()
    );
    raw.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    while !text.contains("retry: 2000\n:\n\n") {
        let read = raw.read(&mut head).unwrap();
        assert!(read > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&head[..read]));
    }
    let lower = text.to_ascii_lowercase();
    for line in
        ["content-type: text/event-stream", "cache-control: no-store, no-transform", "x-accel-buffering: no"]
    {
        assert!(lower.contains(line), "{text}");
    }
    house.end();
}

#[test]
fn bad_messages_are_answered_on_the_stream_and_the_connection_lives() {
    let house = House::new(&[]);
    let mut client = client(&house);
    for (body, id, code) in [
        ("{", Value::Null, -32700),
        ("[]", Value::Null, -32600),
        (r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#, Value::Null, -32600),
        (r#"{"jsonrpc":"2.0","id":0,"method":"session/fork","params":{}}"#, json!(0), -32601),
        (
            r#"{"jsonrpc":"2.0","id":-1,"method":"session/prompt","params":{"sessionId":"s","prompt":[]}}"#,
            json!(-1),
            -32602,
        ),
        (
            r#"{"jsonrpc":"2.0","id":"0","method":"session/prompt","params":{"sessionId":"s","prompt":[{}]}}"#,
            json!("0"),
            -32002,
        ),
        (
            r#"{"jsonrpc":"2.0","id":null,"method":"session/load","params":{"sessionId":"","cwd":"/"}}"#,
            Value::Null,
            -32602,
        ),
        (r#"{"jsonrpc":"2.0","id":9,"method":"session/new","params":{"cwd":"relative"}}"#, json!(9), -32602),
        (
            r#"{"jsonrpc":"2.0","id":10,"method":"session/new","params":{"cwd":"/no/such/directory"}}"#,
            json!(10),
            -32010,
        ),
    ] {
        let answer = client.post(body, &[]);
        assert_eq!((answer.status, answer.body.as_str()), (202, ""), "{body}");
        let (error, _) = client.find("the error", |it| it.json["error"]["code"] == code);
        assert_eq!(error.json["id"], id, "{body}");
    }
    for body in [
        r#"{"jsonrpc":"2.0","method":"session/prompt","params":{"sessionId":"s","prompt":[]}}"#,
        r#"{"jsonrpc":"2.0","method":"no/such"}"#,
        r#"{"jsonrpc":"2.0","id":"perm:nobody:1","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":17,"result":{}}"#,
        r#"{"jsonrpc":"2.0","result":{}}"#,
    ] {
        assert_eq!(client.post(body, &[]).status, 202, "{body}");
    }
    assert_eq!(client.call("_acphost/ping", &json!({})), json!({}));
    house.end();
}

#[test]
fn header_that_contradicts_the_params_is_refused_and_params_alone_suffice() {
    let house = House::with_approve_all(&[]);
    let mut client = client(&house);
    let session = client.new_session(&cwd(&house));
    let prompt = |id: u64| {
        json!({"jsonrpc": "2.0", "id": id, "method": "session/prompt",
            "params": {"sessionId": session, "prompt": [{"type": "text", "text": "say hi"}]}})
        .to_string()
    };
    assert_eq!(client.post(&prompt(100), &[("acp-session-id", "another")]).status, 202);
    let (refused, _) = client.answer(100);
    assert_eq!(refused.json["error"]["code"], -32602);
    for (id, headers) in [(101, vec![]), (102, vec![("acp-session-id", session.as_str())])] {
        assert_eq!(client.post(&prompt(id), &headers).status, 202);
        assert_eq!(client.answer(id).0.json["result"]["stopReason"], "end_turn");
    }
    house.end();
}

#[test]
fn early_streams_are_capped_and_the_connection_lives() {
    let house = House::with_approve_all(&[]);
    let mut client = client(&house);
    for n in 0..16 {
        client.open(&format!("no-such-{n}"), None);
    }
    let refused = client.try_open("one-more", None);
    assert_eq!(refused.map_err(|answer| answer.status), Err(409));
    let session = client.new_session(&cwd(&house));
    client.open(&session, None);
    let id = client.prompt(&session, "say hi");
    assert_eq!(client.answer(id).0.stream, session);
    house.end();
}

#[test]
fn unattached_session_is_refused_whether_it_exists_or_not() {
    let house = House::with_approve_all(&[]);
    let mut owner = websocket(&house);
    let session = owner.new_session(&cwd(&house));
    let mut other = client(&house);
    let refuse = |client: &mut Client, session: &str| {
        let params = json!({"sessionId": session, "prompt": [{"type": "text", "text": "say hi"}]});
        client.refusal("session/prompt", &params)
    };
    let (existing, missing) = (refuse(&mut other, &session), refuse(&mut other, "no-such"));
    assert_eq!(existing["code"], -32002);
    assert_eq!(existing, missing);
    other.open(&session, None);
    let id = owner.prompt(&session, "say hi");
    let _ = owner.answer(id);
    let silent = other.next_within(std::time::Duration::from_millis(300));
    assert!(silent.is_none(), "a stream is silent before the load: {silent:?}");
    house.end();
}

#[test]
fn switched_off_server_does_not_exist() {
    let house = Plan::default().gateway("[northbound]\nacp = false").build();
    for (method, path) in [("POST", "/acp"), ("GET", "/acp"), ("DELETE", "/acp"), ("POST", "/acp/scripted")] {
        let answer = http(&socket(&house), method, path, &[JSON], &initialize(&json!(1)));
        assert_eq!(answer.status, 404, "{method} {path}: {answer:?}");
    }
    assert_eq!(http(&socket(&house), "GET", "/v1/health", &[], "").status, 200);
    house.end();
}

#[test]
fn body_over_the_limit_is_refused_and_one_below_it_is_not() {
    let house = House::with_approve_all(&[]);
    let mut client = client(&house);
    let message = |bytes: usize| {
        let head = r#"{"jsonrpc":"2.0","id":1,"method":"_acphost/ping","params":{"pad":""#;
        format!("{head}{}\"}}}}", "x".repeat(bytes - head.len() - 3))
    };
    let limit = 16 * 1024 * 1024;
    assert_eq!(client.post(&message(limit), &[]).status, 202);
    let _ = client.answer(1);
    assert_eq!(client.post(&message(limit + 1), &[]).status, 413);
    assert_eq!(client.call("_acphost/ping", &json!({})), json!({}));
    house.end();
}

#[test]
fn own_methods_answer_what_rest_answers() {
    let house = House::with_approve_all(&[]);
    let mut client = client(&house);
    let session = client.new_session(&cwd(&house));
    let id = client.prompt(&session, "say hi");
    let _ = client.answer(id);
    let shown = client.call("_acphost/session/show", &json!({"sessionId": session}));
    assert_eq!(shown["session"]["session_key"], session.as_str());
    let history = client.call("_acphost/session/history", &json!({"sessionId": session}));
    let events = history["events"].as_array().cloned().unwrap_or_default();
    assert_eq!(events, house.history(&session));
    let agents = client.call("_acphost/agents/list", &json!({}));
    assert_eq!(agents["agents"], house.verb(&["agents"]));
    assert!(client.call("_acphost/host/status", &json!({}))["status"]["pid"].is_number());
    assert_eq!(client.call("_acphost/permissions/list", &json!({}))["permissions"], json!([]));
    let advertised = client.info["_meta"]["acphost"]["methods"].as_array().map(Vec::len);
    assert_eq!(advertised, Some(12), "{}", client.info);
    let named = |label: Value| json!({"sessionId": session, "label": label});
    let _ = client.call("_acphost/session/update", &named(json!("my work")));
    assert_eq!(house.verb(&["sessions", "show", &session])["label"], "my work");
    let _ = client.call("_acphost/session/update", &named(Value::Null));
    assert_eq!(house.verb(&["sessions", "show", &session])["label"], Value::Null);
    let rest = |what: &str| http(&socket(&house), "GET", &format!("/v1/sessions/{session}/{what}"), &[], "");
    let of = |more: Value| {
        let mut params = more;
        params["sessionId"] = json!(session);
        params
    };
    assert_eq!(client.call("_acphost/session/diff", &of(json!({}))), rest("diff").json());
    std::fs::write(cwd(&house).join("notes.txt"), "one\ntwo\n").unwrap_or_else(|e| panic!("{e}"));
    let named = of(json!({"path": "notes.txt"}));
    assert_eq!(client.call("_acphost/fs/stat", &named), rest("files?path=notes.txt").json());
    let second = of(json!({"path": "notes.txt", "line": 2}));
    let read = client.call("_acphost/fs/read", &second);
    assert_eq!(read["content"], rest("files/content?path=notes.txt&line=2").body.as_str());
    let outside = client.refusal("_acphost/fs/read", &of(json!({"path": "/etc/hostname"})));
    assert_eq!(outside, client.refusal("_acphost/fs/read", &of(json!({"path": "no-such"}))));
    house.end();
}

#[test]
fn replaced_stream_ends_and_its_successor_delivers() {
    let house = House::with_approve_all(&[]);
    let mut client = client(&house);
    let session = client.new_session(&cwd(&house));
    client.open(CONNECTION, None);
    client.find("the end of the old stream", |it| it.json.is_null());
    let id = client.prompt(&session, "say hi");
    assert_eq!(client.answer(id).0.stream, CONNECTION);
    house.end();
}

/// Official clients end their whole connection, or fail the request that they just sent, when a session stream ends.
#[test]
fn stream_of_a_closed_session_stays_and_answers_the_next_load() {
    let house = House::with_approve_all(&[]);
    let mut client = client(&house);
    let session = client.new_session(&cwd(&house));
    client.open(&session, None);
    let _ = house.verb(&["sessions", "close", &session]);
    let is_close = |it: &Received| it.json["params"]["_meta"]["acphost"]["closed"].is_object();
    assert_eq!(client.find("the close", is_close).0.stream, session);
    for _ in 0..2 {
        let (answer, before) = client.load(&session, None);
        assert_eq!(
            (answer.stream.as_str(), answer.json["result"].is_object()),
            (&*session, true),
            "{answer:?}"
        );
        assert!(before.iter().any(is_close) && !before.iter().any(|it| it.json.is_null()), "{before:?}");
        client.open(&session, None);
        client.find("the end of the replaced stream", |it| it.json.is_null());
    }
    house.end();
}
