//! Tests of the scripted agent over its pipes, on which the other tests rely.

use acp_tests::fake_agent::chunk_text;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    next: u64,
}

impl Client {
    fn start(flags: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fake-agent"))
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // A full channel blocks the agent, like a client that does not read.
        let (sender, lines) = sync_channel(10_000);
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        let stdin = child.stdin.take();
        Self { child, stdin, lines, next: 100 }
    }

    /// Started, initialised, with a session in `cwd`.
    fn ready(flags: &[&str], cwd: &Path) -> (Self, String) {
        let mut client = Self::start(flags);
        client.call("initialize", json!({"protocolVersion": 1, "clientCapabilities": {}}));
        let new = client.call("session/new", json!({"cwd": cwd, "mcpServers": []}));
        let session = new["result"]["sessionId"].as_str().unwrap().to_owned();
        (client, session)
    }

    fn send_line(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn send(&mut self, message: &Value) {
        self.send_line(&message.to_string());
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap()
    }

    fn receive(&self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    fn request(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params}));
        self.next
    }

    /// Sends a request and returns its answer, which must come next.
    fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        let answer = self.receive();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    fn prompt(&mut self, session: &str, script: &str) -> u64 {
        let prompt = json!([{"type": "text", "text": script}]);
        self.request("session/prompt", json!({"sessionId": session, "prompt": prompt}))
    }

    fn cancel(&mut self, session: &str) {
        let params = json!({"sessionId": session});
        self.send(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": params}));
    }

    fn answer(&mut self, request: &Value, result: Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result}));
    }

    /// Next message text of the agent.
    fn said(&self) -> String {
        let message = self.receive();
        let update = &message["params"]["update"];
        assert_eq!(update["sessionUpdate"], "agent_message_chunk", "{message}");
        update["content"]["text"].as_str().unwrap().to_owned()
    }

    fn ended(&self, prompt: u64, reason: &str) {
        let answer = self.receive();
        assert_eq!(answer["id"], prompt, "{answer}");
        assert_eq!(answer["result"]["stopReason"], reason, "{answer}");
    }

    fn exit(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not exit");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn events(path: &Path, event: &str) -> Vec<Value> {
    log(path).into_iter().filter(|entry| entry["event"] == event).collect()
}

#[test]
fn prompt_streams_updates_and_ends_turn() {
    let directory = tempfile::tempdir().unwrap();
    let log_file = directory.path().join("log");
    let (mut client, session) = Client::ready(&["--log", log_file.to_str().unwrap()], directory.path());
    let prompt =
        client.prompt(&session, "say hello\\nworld\nchunks 3 pace_ms=1 size=20\nthought hm\nplan a; b");
    assert_eq!(client.said(), "hello\nworld");
    for number in 1..=3 {
        assert_eq!(client.said(), chunk_text(number, 20));
    }
    assert_eq!(client.receive()["params"]["update"]["sessionUpdate"], "agent_thought_chunk");
    assert_eq!(client.receive()["params"]["update"]["entries"][1]["content"], "b");
    client.ended(prompt, "end_turn");
    let prompt = client.prompt(&session, "How are you?");
    assert_eq!(client.said(), "echo: How are you?");
    client.ended(prompt, "end_turn");
    drop(client.stdin.take());
    assert_eq!(client.exit().code(), Some(0));
    assert_eq!(events(&log_file, "prompt").len(), 2);
    assert_eq!(events(&log_file, "violation"), Vec::<Value>::new());
    let outcomes: Vec<_> = events(&log_file, "turn_end").iter().map(|e| e["outcome"].clone()).collect();
    assert_eq!(outcomes, ["end_turn", "end_turn"]);
    assert_eq!(log(&log_file)[0]["pid"], client.child.id());
}

#[test]
fn agent_sends_permission_fs_terminal_and_extension_requests() {
    let directory = tempfile::tempdir().unwrap();
    let (mut client, session) = Client::ready(&["--ids", "string"], directory.path());
    let prompt = client.prompt(
        &session,
        "permission Remove it\nmissing_tool_call\nfs_read a.txt\nfs_write b.txt x\nterminal echo hi\next_request craft/x",
    );
    assert_eq!(client.receive()["params"]["update"]["sessionUpdate"], "tool_call");
    let ask = client.receive();
    assert_eq!(ask["method"], "session/request_permission");
    assert_eq!(ask["id"].as_str().unwrap().len(), 36);
    client.answer(&ask, json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}}));
    assert_eq!(client.receive()["params"]["update"]["status"], "completed");
    assert_eq!(client.said(), "permission: selected allow_once");
    let ask = client.receive();
    assert_eq!(ask["method"], "session/request_permission");
    client.answer(&ask, json!({"outcome": {"outcome": "cancelled"}}));
    assert_eq!(client.receive()["params"]["update"]["status"], "failed");
    assert_eq!(client.said(), "permission: cancelled");
    let ask = client.receive();
    assert_eq!(ask["params"]["path"], json!(directory.path().join("a.txt")));
    client.answer(&ask, json!({"content": "inside"}));
    assert_eq!(client.said(), "fs_read: inside");
    let ask = client.receive();
    assert_eq!((&ask["method"], &ask["params"]["content"]), (&json!("fs/write_text_file"), &json!("x")));
    client.answer(&ask, json!({}));
    assert_eq!(client.said(), "fs_write: ok");
    for (method, result) in [
        ("terminal/create", json!({"terminalId": "t1"})),
        ("terminal/wait_for_exit", json!({"exitCode": 0, "signal": null})),
        ("terminal/output", json!({"output": "hi\n", "truncated": false})),
        ("terminal/release", json!({})),
    ] {
        let ask = client.receive();
        assert_eq!(ask["method"], method);
        client.answer(&ask, result);
    }
    assert_eq!(client.said(), "terminal: exit=0 signal=null truncated=false output=hi\n");
    let ask = client.receive();
    let error = json!({"code": -32601, "message": "no"});
    client.send(&json!({"jsonrpc": "2.0", "id": ask["id"], "error": error}));
    assert_eq!(client.said(), "ext_request craft/x: error -32601");
    client.ended(prompt, "end_turn");
    assert_eq!(client.call("_x/ping", json!({}))["error"]["code"], -32601);
}

#[test]
fn own_tools_report_statuses_and_results() {
    let directory = tempfile::tempdir().unwrap();
    let (mut client, session) = Client::ready(&[], directory.path());
    let prompt = client.prompt(&session, "tool write a.txt some text\ntool run cat a.txt; exit 3");
    let mut updates = Vec::new();
    let answer = loop {
        let message = client.receive();
        if message["id"] == prompt {
            break message;
        }
        updates.push(message["params"]["update"].clone());
    };
    assert_eq!(answer["result"]["stopReason"], "end_turn");
    let statuses: Vec<_> = updates.iter().map(|update| update["status"].as_str().unwrap()).collect();
    let want = ["pending", "in_progress", "completed", "pending", "in_progress", "failed"];
    assert_eq!(statuses, want);
    assert_eq!(std::fs::read_to_string(directory.path().join("a.txt")).unwrap(), "some text");
    assert_eq!(updates[5]["content"][0]["content"]["text"], "some textexit Some(3)");
}

#[test]
fn cancel_ends_turn_at_any_point() {
    let directory = tempfile::tempdir().unwrap();
    let (mut client, session) = Client::ready(&["--cancel-request"], directory.path());
    for script in [
        "say a\nchunks 1000 pace_ms=1000",
        "say a\nsleep 60000",
        "say a\nwait_cancel",
        "say a\ntool run sleep 60",
    ] {
        let prompt = client.prompt(&session, script);
        assert_eq!(client.said(), "a", "{script}");
        client.cancel(&session);
        let answer = std::iter::repeat_with(|| client.receive()).find(|message| message["id"] == prompt);
        assert_eq!(answer.unwrap()["result"]["stopReason"], "cancelled", "{script}");
    }
    let prompt = client.prompt(&session, "missing_tool_call");
    let ask = client.receive();
    client.cancel(&session);
    let back = client.receive();
    assert_eq!((&back["method"], &back["params"]["requestId"]), (&json!("$/cancel_request"), &ask["id"]));
    assert_eq!(client.receive()["params"]["update"]["sessionUpdate"], "tool_call_update");
    client.ended(prompt, "cancelled");
    client.answer(&ask, json!({"outcome": {"outcome": "cancelled"}}));
    let prompt = client.prompt(&session, "say still here");
    assert_eq!(client.said(), "still here");
    client.ended(prompt, "end_turn");
}

#[test]
fn directives_send_malformed_and_unusual_lines() {
    let directory = tempfile::tempdir().unwrap();
    let (mut client, session) = Client::ready(&[], directory.path());
    let prompt = client
        .prompt(&session, "bad_json\nlong_line 573440\nunknown_update\norphan_reply\nlate_update\nrefuse");
    assert!(serde_json::from_str::<Value>(&client.line()).is_err());
    assert_eq!(client.line().len(), 573_440);
    assert_eq!(client.receive()["params"]["update"]["sessionUpdate"], "fancy_new_thing");
    let orphan = client.receive();
    assert_eq!((&orphan["id"], &orphan["error"]["code"]), (&Value::Null, &json!(-32700)));
    client.ended(prompt, "refusal");
    assert_eq!(client.receive()["params"]["update"]["sessionUpdate"], "usage_update");
    let prompt = client.prompt(&session, "error -32603 it broke");
    let answer = client.receive();
    assert_eq!(answer["error"], json!({"code": -32603, "message": "it broke"}));
    assert_eq!(answer["id"], prompt);
    client.prompt(&session, "say a\nnonsense");
    assert_eq!(client.receive()["error"]["message"], "line 2: nonsense is no directive");
    client.prompt(&session, "no_reply");
    client.cancel(&session);
    // Nothing but the answer to this: the prompt stays unanswered.
    assert_eq!(client.call("_x/ping", json!({}))["error"]["code"], -32601);
}

#[test]
fn sessions_outlive_process_without_partial_answers() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let flags = ["--state", state.to_str().unwrap(), "--load-replays", "1"];
    let (mut client, session) = Client::ready(&flags, directory.path());
    let prompt = client.prompt(&session, "say one\nsay two");
    assert_eq!((client.said(), client.said()), ("one".to_owned(), "two".to_owned()));
    client.ended(prompt, "end_turn");
    client.prompt(&session, "say three\ncrash");
    assert_eq!(client.said(), "three");
    assert_eq!(client.exit().signal(), Some(9));

    let mut client = Client::start(&flags);
    client.call("initialize", json!({"protocolVersion": 1}));
    let params = json!({"sessionId": session, "cwd": directory.path(), "mcpServers": []});
    let load = client.request("session/load", params.clone());
    let replay: Vec<Value> = (0..4).map(|_| client.receive()["params"]["update"].clone()).collect();
    let said: Vec<_> = replay.iter().map(|update| update["content"]["text"].as_str().unwrap()).collect();
    assert_eq!(said, ["say one\nsay two", "onetwo", "say three\ncrash", "replay 1"]);
    assert_eq!(client.receive()["id"], load);
    let prompt = client.prompt(&session, "say again");
    assert_eq!(client.said(), "again");
    client.ended(prompt, "end_turn");
    drop(client);

    let mut client = Client::start(&["--state", state.to_str().unwrap(), "--no-load"]);
    let capabilities =
        client.call("initialize", json!({"protocolVersion": 1}))["result"]["agentCapabilities"].clone();
    assert_eq!(capabilities["loadSession"], false);
    assert_eq!(client.call("session/load", params.clone())["error"]["code"], -32601);
    assert_eq!(client.call("session/resume", params)["result"], json!({}));
    let unknown = json!({"sessionId": "fake-x", "cwd": "/", "mcpServers": []});
    assert_eq!(client.call("session/resume", unknown)["error"]["code"], -32002);
    let prompt = client.prompt(&session, "exit 7");
    assert_eq!(client.exit().code(), Some(7), "{prompt}");
}

#[test]
fn authentication_and_modes_follow_flags() {
    let mut client = Client::start(&["--auth-required", "--modes", "--slow-init", "20"]);
    let before = Instant::now();
    let methods = client.call("initialize", json!({"protocolVersion": 1}))["result"]["authMethods"].clone();
    assert!(before.elapsed() >= Duration::from_millis(20));
    assert_eq!(methods[0]["id"], "fake-key");
    let new = json!({"cwd": "/", "mcpServers": []});
    assert_eq!(client.call("session/new", new.clone())["error"]["code"], -32000);
    assert_eq!(client.call("authenticate", json!({"methodId": "fake-key"}))["result"], json!({}));
    let opened = client.call("session/new", new)["result"].clone();
    assert_eq!(opened["modes"]["currentModeId"], "auto");
    let session = opened["sessionId"].as_str().unwrap().to_owned();
    let prompt = client.prompt(&session, "permission");
    assert_eq!(client.said(), "permission: auto");
    client.ended(prompt, "end_turn");
    let set = client.call("session/set_mode", json!({"sessionId": session, "modeId": "ask"}));
    assert_eq!(set["result"], json!({}));
    assert_eq!(client.receive()["params"]["update"]["currentModeId"], "ask");
    client.prompt(&session, "permission");
    assert_eq!(client.receive()["params"]["update"]["sessionUpdate"], "tool_call");
    let ask = client.receive();
    // The first id is 0, which is valid.
    assert_eq!((&ask["method"], &ask["id"]), (&json!("session/request_permission"), &json!(0)));
}

/// Every detected violation of ACP is in the log, and nothing else.
#[test]
fn protocol_violations_are_logged() {
    let request = |id: u64, method: &str, params: Value| {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
    };
    let initialize = || request(1, "initialize", json!({"protocolVersion": 1}));
    let after = |lines: &[String]| [&[initialize()], lines].concat();
    for (name, lines, want) in [
        ("nothing wrong", after(&[request(2, "_x/y", json!({}))]), ""),
        ("no JSON", after(&["{".to_owned()]), "no JSON"),
        ("a batch", after(&["[]".to_owned()]), "no JSON-RPC 2.0 message"),
        (
            "no initialize",
            vec![request(1, "session/new", json!({"cwd": "/", "mcpServers": []}))],
            "before initialize",
        ),
        (
            "initialize twice",
            after(&[request(2, "initialize", json!({"protocolVersion": 1}))]),
            "second time",
        ),
        ("no version", vec![request(1, "initialize", json!({}))], "protocolVersion"),
        ("no cwd", after(&[request(2, "session/new", json!({"mcpServers": []}))]), "cwd"),
        ("relative cwd", after(&[request(2, "session/new", json!({"cwd": "a", "mcpServers": []}))]), "cwd"),
        ("no servers", after(&[request(2, "session/new", json!({"cwd": "/"}))]), "mcpServers"),
        ("an id twice", after(&[request(1, "_x/y", json!({}))]), "used before"),
        (
            "a reply to nothing",
            after(&[json!({"jsonrpc": "2.0", "id": 0, "result": {}}).to_string()]),
            "never asked",
        ),
        ("half a reply", after(&[json!({"jsonrpc": "2.0", "id": 0}).to_string()]), "neither a result"),
        (
            "authenticate unasked",
            after(&[request(2, "authenticate", json!({"methodId": "x"}))]),
            "not offered",
        ),
        (
            "an unknown session",
            after(&[request(
                2,
                "session/prompt",
                json!({"sessionId": "x", "prompt": [{"type": "text", "text": "a"}]}),
            )]),
            "not open here",
        ),
        (
            "a cancel of an unknown session",
            after(&[json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "x"}})
                .to_string()]),
            "unknown session",
        ),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let log_file = directory.path().join("log");
        let mut client = Client::start(&["--log", log_file.to_str().unwrap()]);
        for line in lines {
            client.send_line(&line);
        }
        drop(client.stdin.take());
        assert_eq!(client.exit().code(), Some(0), "{name}");
        let found = events(&log_file, "violation");
        if want.is_empty() {
            assert_eq!(found, Vec::<Value>::new(), "{name}");
        } else {
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert!(found[0]["what"].as_str().unwrap().contains(want), "{name}: {found:?}");
        }
    }
}

#[test]
fn protocol_violations_within_a_session_are_logged() {
    let directory = tempfile::tempdir().unwrap();
    let log_file = directory.path().join("log");
    let (mut client, session) = Client::ready(&["--log", log_file.to_str().unwrap()], directory.path());
    let first = client.prompt(&session, "wait_cancel");
    let second = client.prompt(&session, "say too early");
    let refused = client.receive();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(second), &json!(-32602)));
    client.cancel(&session);
    client.ended(first, "cancelled");
    client.prompt(&session, "missing_tool_call");
    let ask = client.receive();
    let result = json!({"outcome": {"outcome": "selected", "optionId": "no such"}});
    client.answer(&ask, result.clone());
    client.answer(&ask, result);
    client.receive();
    assert_eq!(client.said(), "permission: malformed");
    client.receive();
    let open = client.prompt(&session, "missing_tool_call");
    client.receive();
    client.cancel(&session);
    client.receive();
    client.ended(open, "cancelled");
    client.prompt(&session, "say a");
    client.said();
    let found: Vec<_> =
        events(&log_file, "violation").iter().map(|e| e["what"].as_str().unwrap().to_owned()).collect();
    assert_eq!(found.len(), 4, "{found:?}");
    for want in ["while a prompt runs", "second reply", "was answered with", "never answered"] {
        assert!(found.iter().any(|what| what.contains(want)), "{want}: {found:?}");
    }
    assert_eq!(events(&log_file, "prompt").len(), 5);
}

#[test]
fn process_directives_fork_and_ignore_signals() {
    let directory = tempfile::tempdir().unwrap();
    let log_file = directory.path().join("log");
    let (mut client, session) = Client::ready(&["--log", log_file.to_str().unwrap()], directory.path());
    let prompt = client.prompt(&session, "fork_child\nspawn_setsid\nignore_term\nignore_eof");
    let pid = |said: String| -> i32 { said.split_once(' ').unwrap().1.parse().unwrap() };
    let open = |pid: i32| {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap()
    };
    let child = pid(client.said());
    let escaped = pid(client.said());
    let pidfds = [open(child), open(escaped)];
    client.ended(prompt, "end_turn");
    let own = rustix::process::Pid::from_raw(client.child.id().cast_signed()).unwrap();
    let session_of = |pid: u32| acp_tests::processes::read(pid.cast_signed()).expect("it lives").sid;
    assert_eq!(session_of(child.cast_unsigned()), session_of(std::process::id()));
    assert_eq!(session_of(escaped.cast_unsigned()), escaped);
    rustix::process::pidfd_send_signal(open(own.as_raw_nonzero().get()), rustix::process::Signal::TERM)
        .unwrap();
    rustix::process::pidfd_send_signal(&pidfds[1], rustix::process::Signal::TERM).unwrap();
    // It still answers after SIGTERM, and the escaped one still lives.
    assert_eq!(client.call("_x/ping", json!({}))["error"]["code"], -32601);
    drop(client.stdin.take());
    let deadline = Instant::now() + PATIENCE;
    while events(&log_file, "eof").is_empty() {
        assert!(Instant::now() < deadline, "it does not notice the end of its stdin");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(client.child.try_wait().unwrap().is_none());
    for pidfd in &pidfds {
        rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL).unwrap();
    }
}

#[test]
fn wrong_flags_are_refused() {
    let mut client = Client::start(&["--nope"]);
    assert_eq!(client.exit().code(), Some(64));
}
