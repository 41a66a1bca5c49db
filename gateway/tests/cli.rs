//! The program from outside: output, exit codes, and the demo agent over pipes.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn gateway(state: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_acp-gateway"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ACP_") {
            command.env_remove(name);
        }
    }
    command.env("ACP_GATEWAY_STATE_DIR", state).stdin(Stdio::null());
    command
}

fn run(state: &Path, args: &[&str]) -> Output {
    gateway(state).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn one_line(output: &Output) -> Value {
    let out = text(&output.stdout);
    assert_eq!(out.matches('\n').count(), 1, "{out:?} {}", text(&output.stderr));
    serde_json::from_str(out).unwrap()
}

#[test]
fn help_and_version_exit_with_0() {
    let state = tempfile::tempdir().unwrap();
    for args in [&["--help"][..], &["--version"], &["help", "prompt"], &["sessions", "spawn", "--help"]] {
        let output = run(state.path(), args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(output.stdout.len() > 10 && output.stderr.is_empty(), "{args:?}: {output:?}");
    }
    let help = run(state.path(), &["--help"]);
    for word in ["First steps", "acp-gateway up", "sessions spawn", "Exit codes"] {
        assert!(text(&help.stdout).contains(word), "{word}");
    }
    assert_eq!(
        text(&run(state.path(), &["--version"]).stdout),
        format!("acp-gateway {}\n", env!("CARGO_PKG_VERSION"))
    );
}

/// Verbs have man pages, checked with groff if installed; completion scripts exist for every shell.
#[test]
fn man_pages_and_completions_are_generated() {
    let dir = tempfile::tempdir().unwrap();
    for kind in ["man", "completions"] {
        let to = dir.path().join(kind);
        assert!(run(dir.path(), &["generate", kind, to.to_str().unwrap()]).status.success());
    }
    let page = dir.path().join("man/acp-gateway-sessions-spawn.1");
    let written = std::fs::read_to_string(&page).unwrap();
    assert!(written.contains(".SH SYNOPSIS") && written.contains("\\-\\-agent"), "{written}");
    assert!(!dir.path().join("man/acp-gateway-generate.1").exists(), "hidden verbs have no page");
    for script in
        ["acp-gateway.bash", "_acp-gateway", "acp-gateway.fish", "acp-gateway.elv", "_acp-gateway.ps1"]
    {
        assert!(dir.path().join("completions").join(script).exists(), "{script}");
    }
    for page in std::fs::read_dir(dir.path().join("man")).unwrap().flatten() {
        match Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(page.path()).output() {
            Ok(output) => assert!(output.status.success() && output.stderr.is_empty(), "{output:?}"),
            // Without groff, only the structure is checked.
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
        }
    }
}

#[test]
fn usage_errors_exit_with_2_and_one_json_line() {
    let state = tempfile::tempdir().unwrap();
    for args in [
        &["--no-such-flag"][..],
        &["nonsense"],
        &["prompt"],
        &["prompt", "k", ""],
        &["prompt", "k", "hi", "--timeout", "-1"],
        &["prompt", "k", "hi", "--timeout", "1e300"],
        &["prompt", "k", "hi", "--interactive", "--non-interactive"],
        &["sessions", "spawn", "--permission", "maybe"],
        &["adopt", "--state-dir", "/no/such/dir"],
        &["config", "check", "--config", "/no/such/file"],
    ] {
        let plain = run(state.path(), args);
        assert_eq!(plain.status.code(), Some(2), "{args:?}: {plain:?}");
        assert!(plain.stdout.is_empty() && !plain.stderr.is_empty(), "{args:?}");
        for json_args in [[&["--json"], args].concat(), [args, &["--json"]].concat()] {
            let output = run(state.path(), &json_args);
            assert_eq!(output.status.code(), Some(2), "{json_args:?}");
            let line = one_line(&output);
            assert_eq!(line["type"], "error", "{line}");
            assert!(matches!(line["code"].as_str(), Some("USAGE" | "CONFIG_INVALID")), "{line}");
            assert!(!line["message"].as_str().unwrap().is_empty());
        }
    }
}

#[test]
fn verbs_without_gateway_fail_at_once() {
    let state = tempfile::tempdir().unwrap();
    for args in [
        &["sessions", "list"][..],
        &["sessions", "show", "k"],
        &["sessions", "history", "k"],
        &["sessions", "cancel", "k"],
        &["sessions", "close", "k"],
        &["sessions", "reset", "k"],
        &["sessions", "spawn", "--agent", "demo"],
        &["prompt", "k", "hi"],
        &["steer", "k", "hi"],
        &["permissions", "list", "k"],
        &["permissions", "answer", "k", "l:1", "yes"],
    ] {
        let output = run(state.path(), &[args, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let line = one_line(&output);
        assert_eq!((&line["type"], &line["code"]), (&json!("error"), &json!("GATEWAY_UNAVAILABLE")));
        assert_eq!(line["origin"], "client");
    }
    let plain = run(state.path(), &["sessions", "list"]);
    let error = text(&plain.stderr);
    let socket = state.path().join("gateway.sock").display().to_string();
    assert!(error.contains("acp-gateway up") && error.contains(&socket), "{error}");
}

#[test]
fn standard_input_must_be_utf8() {
    let state = tempfile::tempdir().unwrap();
    let mut child = gateway(state.path())
        .args(["prompt", "k", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"text \xff").unwrap();
    let output = child.wait_with_output().unwrap();
    let line = one_line(&output);
    assert_eq!((output.status.code(), &line["code"]), (Some(2), &json!("USAGE")), "{line}");
    assert!(line["message"].as_str().unwrap().contains("not UTF-8 text (byte 5)"), "{line}");
}

#[test]
fn too_long_socket_path_is_refused_before_start() {
    let base = tempfile::tempdir().unwrap();
    let state = base.path().join("d".repeat(110));
    for verb in ["up", "serve"] {
        let output = run(&state, &[verb, "--json"]);
        let line = one_line(&output);
        assert_eq!((output.status.code(), &line["code"]), (Some(2), &json!("USAGE")), "{line}");
        assert!(line["message"].as_str().unwrap().contains("shorter --state-dir"), "{line}");
        assert!(!state.join("supervisor").exists(), "no supervisor was started");
    }
}

#[test]
fn dead_socket_respects_the_timeout() {
    let state = tempfile::tempdir().unwrap();
    drop(std::os::unix::net::UnixListener::bind(state.path().join("gateway.sock")).unwrap());
    let output = run(state.path(), &["prompt", "k", "hi", "--timeout", "0.3", "--json"]);
    let line = one_line(&output);
    assert!(matches!(output.status.code(), Some(1 | 3)), "{output:?}");
    assert!(matches!(line["code"].as_str(), Some("GATEWAY_UNAVAILABLE" | "TIMEOUT")), "{line}");
}

#[test]
fn config_show_has_sources() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("gateway.toml");
    std::fs::write(&file, "[acp]\ndefault_agent = \"demo\"\n").unwrap();
    let output = gateway(state.path())
        .env("ACP_HOST_LIMITS__QUEUE_RUNS_MAX", "7")
        .args(["config", "show", "--json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let rows = one_line(&output);
    let row = |key: &str| rows.as_array().unwrap().iter().find(|row| row["key"] == key).unwrap().clone();
    for (key, value, source) in [
        ("acp.default_agent", json!("demo"), json!({"kind": "file", "path": file, "line": 2})),
        (
            "limits.queue_runs_max",
            json!(7),
            json!({"kind": "env", "name": "ACP_HOST_LIMITS__QUEUE_RUNS_MAX"}),
        ),
    ] {
        assert_eq!(row(key), json!({"key": key, "value": value, "source": source}));
    }
    assert_eq!(row("acp.dispatch.enabled")["value"], true);
    assert_eq!(row("acp.dispatch.enabled")["source"]["kind"], "default");
    std::fs::write(&file, "[acp]\ndefault_agnt = \"demo\"\n").unwrap();
    let output = run(state.path(), &["config", "check", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let line = one_line(&output);
    let message = line["message"].as_str().unwrap();
    assert_eq!(line["code"], "CONFIG_INVALID");
    assert!(message.contains("gateway.toml:2") && message.contains("acp.default_agent`?"), "{message}");
}

#[test]
fn completions_agents_and_doctor_need_no_gateway() {
    let state = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = run(state.path(), &["completions", shell]);
        assert!(output.status.success() && text(&output.stdout).contains("ACP_COMPLETE"), "{shell}");
    }
    let views = one_line(&run(state.path(), &["agents", "--json"]));
    let demo = views.as_array().unwrap().iter().find(|view| view["name"] == "demo").unwrap().clone();
    assert_eq!((&demo["installed"], &demo["allowed"]), (&json!(true), &json!(true)));
    assert!(views.as_array().unwrap().iter().any(|view| view["name"] == "qwen"));
    let checks = run(state.path(), &["doctor", "--json"]);
    let first: Value = serde_json::from_str(text(&checks.stdout).lines().next().unwrap()).unwrap();
    assert!(first.as_array().unwrap().iter().any(|check| check["name"] == "state directory"), "{first}");
}

#[test]
fn closed_output_pipe_is_not_a_failure() {
    let state = tempfile::tempdir().unwrap();
    let mut child = gateway(state.path())
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

/// Demo agent connected by pipes. Dropping it kills the process.
struct DemoAgent {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    next_id: u64,
}

impl DemoAgent {
    fn start(state: &Path) -> Self {
        let mut child =
            gateway(state).arg("demo-agent").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::with_capacity(1 << 20, child.stdout.take().unwrap());
        let mut demo = Self { child, input, output, next_id: 1 };
        let result = demo.call("initialize", json!({"protocolVersion": 1, "clientCapabilities": {}}));
        assert_eq!(result["protocolVersion"], 1);
        assert_eq!(result["agentCapabilities"]["loadSession"], true);
        demo
    }

    fn write(&mut self, message: &Value) {
        let mut line = message.to_string();
        line.push('\n');
        self.input.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }

    fn send(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    fn notify(&mut self, method: &str, params: Value) {
        self.write(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0, "the agent ended");
        serde_json::from_str(&line).unwrap()
    }

    /// Reads up to the response; returns it and the messages before.
    fn read_until(&mut self, id: u64) -> (Value, Vec<Value>) {
        let mut before = Vec::new();
        loop {
            let message = self.read();
            if message["id"] == id && message.get("method").is_none() {
                return (message, before);
            }
            before.push(message);
        }
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        self.read_until(id).0["result"].clone()
    }

    fn session(&mut self, cwd: &Path) -> String {
        let made = self.call("session/new", json!({"cwd": cwd, "mcpServers": []}));
        made["sessionId"].as_str().unwrap().to_owned()
    }

    fn prompt(&mut self, session: &str, text: &str) -> u64 {
        self.send("session/prompt", json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]}))
    }
}

impl Drop for DemoAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn demo_session() -> (tempfile::TempDir, DemoAgent, String) {
    let state = tempfile::tempdir().unwrap();
    let mut demo = DemoAgent::start(state.path());
    let session = demo.session(state.path());
    (state, demo, session)
}

fn agent_text(messages: &[Value]) -> String {
    let texts = messages.iter().map(|message| &message["params"]["update"]);
    let texts = texts.filter(|update| update["sessionUpdate"] == "agent_message_chunk");
    texts.filter_map(|update| update["content"]["text"].as_str()).collect()
}

#[test]
fn demo_agent_runs_documented_prompts() {
    let (_state, mut demo, session) = demo_session();
    for (prompt, want) in
        [("say \"this\"", "say \"this\""), ("stream 3 size 10", "chunk 1..\nchunk 2..\nchunk 3..\n")]
    {
        let id = demo.prompt(&session, prompt);
        let (answer, before) = demo.read_until(id);
        assert_eq!(answer["result"]["stopReason"], "end_turn");
        assert_eq!(agent_text(&before), want);
    }
    let id = demo.prompt(&session, "help");
    assert!(agent_text(&demo.read_until(id).1).contains("write FILE TEXT"));
    let id = demo.prompt(&session, "plan\nthink x\ntool");
    let updates = demo.read_until(id).1;
    let kind = |message: &Value| message["params"]["update"]["sessionUpdate"].as_str().unwrap().to_owned();
    let kinds = updates.iter().map(kind).collect::<Vec<_>>().join(" ");
    let tool = "tool_call tool_call_update tool_call_update";
    assert_eq!(kinds, format!("plan plan plan plan agent_thought_chunk {tool}"));
    let unknown = demo.send("no/such", json!({}));
    assert_eq!(demo.read_until(unknown).0["error"]["code"], -32601);
    demo.write(&json!([]));
    assert_eq!(demo.read()["error"]["code"], -32700);
    drop(demo.input.take());
    assert_eq!(demo.child.wait().unwrap().code(), Some(0));
}

#[test]
fn demo_agent_asks_before_writing() {
    let state = tempfile::tempdir().unwrap();
    let work = tempfile::tempdir().unwrap();
    let mut demo = DemoAgent::start(state.path());
    let session = demo.session(work.path());
    for (option, prompt, written) in [
        ("reject-once", "write a.txt hello", None),
        ("allow-once", "write ../b.txt hello", None),
        ("allow-once", "write a.txt hello", Some("hello")),
    ] {
        let id = demo.prompt(&session, prompt);
        let mut messages = std::iter::repeat_with(|| demo.read());
        let request = messages.find(|message| message["method"] == "session/request_permission").unwrap();
        assert!(!work.path().join("a.txt").exists());
        let outcome = json!({"outcome": {"outcome": "selected", "optionId": option}});
        demo.write(&json!({"jsonrpc": "2.0", "id": request["id"], "result": outcome}));
        assert_eq!(demo.read_until(id).0["result"]["stopReason"], "end_turn");
        let content = std::fs::read_to_string(work.path().join("a.txt")).ok();
        assert_eq!(content.as_deref(), written, "{option} {prompt}");
        assert!(!work.path().parent().unwrap().join("b.txt").exists());
    }
    demo.call("session/set_mode", json!({"sessionId": session, "modeId": "auto"}));
    let id = demo.prompt(&session, "write c.txt unasked");
    demo.read_until(id);
    assert_eq!(std::fs::read_to_string(work.path().join("c.txt")).unwrap(), "unasked");
}

#[test]
fn demo_agent_can_be_cancelled_and_steered() {
    let (_state, mut demo, session) = demo_session();
    for prompt in ["slow", "stream 1000000", "stream 100000 pace 1000", "permission"] {
        let id = demo.prompt(&session, prompt);
        if prompt != "slow" {
            demo.read();
        }
        demo.notify("session/cancel", json!({"sessionId": session}));
        let started = Instant::now();
        assert_eq!(demo.read_until(id).0["result"]["stopReason"], "cancelled", "{prompt}");
        assert!(started.elapsed() < Duration::from_secs(20), "{prompt}");
    }
    let id = demo.prompt(&session, "slow 100");
    let faster = json!({"sessionId": session, "prompt": [{"type": "text", "text": "faster"}]});
    let steer = demo.send("_session/steering", faster);
    assert_eq!(demo.read_until(steer).0["result"]["outcome"], "injected");
    assert!(agent_text(&demo.read_until(id).1).contains("[steered: faster]"));
}

#[test]
fn demo_agent_history_survives_crash() {
    let (state, mut demo, session) = demo_session();
    let id = demo.prompt(&session, "remember me");
    demo.read_until(id);
    demo.prompt(&session, "crash");
    assert_eq!(demo.child.wait().unwrap().code(), Some(70));
    let mut demo = DemoAgent::start(state.path());
    let unknown = demo.send("session/load", json!({"sessionId": "demo-none", "cwd": "/", "mcpServers": []}));
    assert_eq!(demo.read_until(unknown).0["error"]["code"], -32002);
    let id = demo.send("session/load", json!({"sessionId": session, "cwd": state.path(), "mcpServers": []}));
    let (answer, replay) = demo.read_until(id);
    assert_eq!(answer["result"]["modes"]["currentModeId"], "ask");
    let updates = replay.iter().map(|message| &message["params"]["update"]);
    let replayed: Vec<_> =
        updates.map(|update| json!([update["sessionUpdate"], update["content"]["text"]])).collect();
    let own = json!(["user_message_chunk", "remember me"]);
    let answer = json!(["agent_message_chunk", "remember me"]);
    assert_eq!(replayed, [own, answer, json!(["user_message_chunk", "crash"])]);
    let mut other = DemoAgent::start(state.path());
    let id = other.send("session/resume", json!({"sessionId": session, "cwd": state.path()}));
    assert!(other.read_until(id).1.is_empty());
    let listed = other.call("session/list", json!({}));
    assert_eq!(listed["sessions"][0]["sessionId"], session.as_str());
}

#[test]
fn ten_thousand_chunks_arrive_in_order() {
    let (_state, mut demo, session) = demo_session();
    let id = demo.prompt(&session, "stream 10000");
    let (answer, chunks) = demo.read_until(id);
    assert_eq!(answer["result"]["stopReason"], "end_turn");
    assert_eq!(chunks.len(), 10_000);
    for (at, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk["params"]["update"]["content"]["text"], format!("chunk {}\n", at + 1));
    }
}
