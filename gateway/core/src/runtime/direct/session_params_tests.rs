//! MCP servers, directories and file requests offered to an agent when its session opens.

use super::open_tests::{initialized, reply, statuses_of};
use super::tests::{defaults, sent};
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

/// `new`, `resume` and the `load` after a refused `resume` have the same servers and directories.
#[test]
fn supported_servers_and_directories_are_in_every_open_request() {
    let stdio = json!({ "name": "files", "command": "/bin/mcp", "args": ["-v"],
        "env": [{ "name": "TOKEN", "value": "secret-of-files" }] });
    let http = json!({ "type": "http", "name": "web", "url": "https://h/x",
        "headers": [{ "name": "A", "value": "b" }] });
    let sse = json!({ "type": "sse", "name": "old", "url": "https://h/y", "headers": [] });
    let session_capabilities = json!({ "resume": {}, "additionalDirectories": {} });
    for (capabilities, want, directories, reports) in [
        (json!({ "loadSession": true }), json!([stdio]), Value::Null, 3),
        (
            json!({ "loadSession": true, "mcpCapabilities": { "http": true, "sse": true }, "sessionCapabilities": session_capabilities }),
            json!([stdio, http, sse]),
            json!(["/more"]),
            0,
        ),
        (
            json!({ "loadSession": true, "mcpCapabilities": { "http": true, "sse": false }, "sessionCapabilities": session_capabilities }),
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
                ..defaults()
            };
            let (mut machine, mut steps) = initialized(&input, json!({ "agentCapabilities": capabilities }));
            assert_eq!(statuses_of(&steps).len(), reports, "{capabilities}");
            loop {
                let (request, _) = sent(&steps).remove(0);
                let params = &request["params"];
                assert_eq!((&params["mcpServers"], &params["additionalDirectories"]), (&want, &directories));
                assert_eq!(params["cwd"], "/w");
                assert_eq!(params.get("sessionId").and_then(Value::as_str), input.resume.as_deref());
                if request["method"] != "session/resume" {
                    break;
                }
                // The machine is restored, as after a restart of the gateway.
                machine = DirectMachine::open(Some(&machine.save())).unwrap();
                steps = reply(
                    &mut machine,
                    "resume",
                    &input,
                    &json!({ "error": { "code": -1, "message": "no" } }),
                );
            }
        }
    }
}

#[test]
fn state_of_open_session_has_no_servers() {
    let input = StartSessionParams { mcp_servers: servers(), ..defaults() };
    let (mut machine, _) = initialized(&input, json!({}));
    assert!(machine.save().contains("secret-of-files"));
    reply(&mut machine, "new", &input, &json!({ "result": { "sessionId": "s" } }));
    assert!(!machine.save().contains("secret-of-files"), "{}", machine.save());
}

#[test]
fn file_capabilities_are_offered_separately() {
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
        let input = StartSessionParams { client_fs, ..defaults() };
        let mut machine = DirectMachine::open(None).unwrap();
        let (hello, _) = sent(&machine.start_session(&input)).remove(0);
        let want = json!({ "readTextFile": offered[0], "writeTextFile": offered[1] });
        assert_eq!(hello["params"]["clientCapabilities"]["fs"], want);
        reply(&mut machine, "init", &input, &json!({ "result": {} }));
        reply(&mut machine, "new", &input, &json!({ "result": { "sessionId": "s" } }));
        for ((method, params), offered) in requests.iter().zip(offered) {
            let line = json!({ "id": 1, "method": method, "params": params }).to_string();
            let steps = machine.stream(5, line.as_bytes());
            let is_forwarded = steps.iter().any(|step| matches!(step, BackendStep::Request(_)));
            assert_eq!(is_forwarded, offered, "{client_fs:?} {method}");
        }
    }
}

#[test]
fn state_of_version_0_1_is_readable() {
    let machine = super::tests::open_with(json!({}), &defaults());
    for (old, want) in [("true", r#""client_fs":"both""#), ("false", r#""client_fs":"none""#)] {
        let saved = machine.save().replace(r#""client_fs":"both""#, &format!(r#""offer_fs":{old}"#));
        assert!(saved.contains("offer_fs"));
        assert!(DirectMachine::open(Some(&saved)).unwrap().save().contains(want));
    }
}
