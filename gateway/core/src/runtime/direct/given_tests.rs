//! MCP servers, directories and file requests that an agent is given when its session opens.

use super::open_tests::{begun, reply, statuses};
use super::tests::{ensure, sent};
use super::*;
use serde_json::{Value, json};

fn servers() -> Vec<crate::config::McpServer> {
    let list = json!([
        { "name": "files", "command": "/bin/mcp", "args": ["-v"], "env": { "TOKEN": "secret-of-files" } },
        { "name": "web", "type": "http", "url": "https://h/x", "headers": { "A": "b" } },
        { "name": "old", "type": "sse", "url": "https://h/y" },
    ]);
    serde_json::from_value(list).unwrap()
}

/// `new`, `resume`, and `load` after a refused `resume` carry the same servers and directories; what the agent does not
/// advertise is left out and said.
#[test]
fn servers_and_directories_go_into_new_resume_and_load_as_far_as_they_are_taken() {
    let stdio = json!({ "name": "files", "command": "/bin/mcp", "args": ["-v"],
        "env": [{ "name": "TOKEN", "value": "secret-of-files" }] });
    let http = json!({ "type": "http", "name": "web", "url": "https://h/x",
        "headers": [{ "name": "A", "value": "b" }] });
    let sse = json!({ "type": "sse", "name": "old", "url": "https://h/y", "headers": [] });
    let ways = json!({ "resume": {}, "additionalDirectories": {} });
    for (capabilities, want, directories, said) in [
        (json!({ "loadSession": true }), json!([stdio]), Value::Null, 3),
        (
            json!({ "loadSession": true, "mcpCapabilities": { "http": true, "sse": true }, "sessionCapabilities": ways }),
            json!([stdio, http, sse]),
            json!(["/more"]),
            0,
        ),
        (
            json!({ "loadSession": true, "mcpCapabilities": { "http": true, "sse": false }, "sessionCapabilities": ways }),
            json!([stdio, http]),
            json!(["/more"]),
            1,
        ),
    ] {
        for resume in [None, Some("old".to_owned())] {
            let input = StartSessionParams {
                resume,
                mcp_servers: servers(),
                additional_directories: vec!["/more".to_owned()],
                ..ensure()
            };
            let (mut link, mut steps) = begun(&input, json!({ "agentCapabilities": capabilities }));
            assert_eq!(statuses(&steps).len(), said, "{capabilities}");
            loop {
                let (request, _) = sent(&steps).remove(0);
                let params = &request["params"];
                assert_eq!((&params["mcpServers"], &params["additionalDirectories"]), (&want, &directories));
                assert_eq!(params["cwd"], "/w");
                assert_eq!(params.get("sessionId").and_then(Value::as_str), input.resume.as_deref());
                if request["method"] != "session/resume" {
                    break;
                }
                // The machine is the same after a restart of the gateway.
                link = DirectMachine::open(Some(&link.save())).unwrap();
                steps =
                    reply(&mut link, "resume", &input, &json!({ "error": { "code": -1, "message": "no" } }));
            }
        }
    }
}

#[test]
fn an_open_session_keeps_no_server_in_its_state() {
    let input = StartSessionParams { mcp_servers: servers(), ..ensure() };
    let (mut link, _) = begun(&input, json!({}));
    assert!(link.save().contains("secret-of-files"));
    reply(&mut link, "new", &input, &json!({ "result": { "sessionId": "s" } }));
    assert!(!link.save().contains("secret-of-files"), "{}", link.save());
}

#[test]
fn file_requests_are_offered_one_by_one() {
    use crate::config::ClientFs;
    let requests = [
        ("fs/read_text_file", json!({ "path": "/a" })),
        ("fs/write_text_file", json!({ "path": "/a", "content": "x" })),
    ];
    for (client_fs, offered) in [
        (ClientFs::None, [false, false]),
        (ClientFs::Read, [true, false]),
        (ClientFs::Write, [false, true]),
        (ClientFs::Both, [true, true]),
    ] {
        let input = StartSessionParams { client_fs, ..ensure() };
        let mut link = DirectMachine::open(None).unwrap();
        let (hello, _) = sent(&link.start_session(&input)).remove(0);
        let want = json!({ "readTextFile": offered[0], "writeTextFile": offered[1] });
        assert_eq!(hello["params"]["clientCapabilities"]["fs"], want);
        reply(&mut link, "init", &input, &json!({ "result": {} }));
        reply(&mut link, "new", &input, &json!({ "result": { "sessionId": "s" } }));
        for ((method, params), offered) in requests.iter().zip(offered) {
            let line = json!({ "id": 1, "method": method, "params": params }).to_string();
            let steps = link.stream(5, line.as_bytes());
            let is_asked = steps.iter().any(|step| matches!(step, BackendStep::Request(_)));
            assert_eq!(is_asked, offered, "{client_fs:?} {method}");
        }
    }
}

#[test]
fn a_state_of_version_0_1_is_read() {
    let link = super::tests::open_with(json!({}), &ensure());
    for (old, want) in [("true", r#""client_fs":"both""#), ("false", r#""client_fs":"none""#)] {
        let saved = link.save().replace(r#""client_fs":"both""#, &format!(r#""offer_fs":{old}"#));
        assert!(saved.contains("offer_fs"));
        assert!(DirectMachine::open(Some(&saved)).unwrap().save().contains(want));
    }
}
