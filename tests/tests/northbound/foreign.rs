//! ACP clients that others wrote: official libraries and `acpx`, over every transport that they have. Run by
//! `make test-foreign`, which installs them. A client reports what it saw step by step; it is judged here.

use crate::cwd;
use acp_tests::foreign::install_dir;
use acp_tests::house::{House, Plan};
use acp_tests::wait::LONG;
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

const LISTEN: &str = "[northbound]\nlisten = [\"unix\", \"127.0.0.1:0\"]\n";

/// A client, and how it connects.
#[derive(Clone, Copy)]
struct Client {
    name: &'static str,
    transport: &'static str,
}

/// An agent, what it is prompted, and its replies.
struct Script {
    agent: &'static str,
    mode: &'static str,
    modes: Value,
    prompts: Value,
    /// Replies to `stream`, `write`, `shared`, `resumed` and `mode`.
    replies: [String; 5],
    /// Minimum number of pieces in which `stream` comes.
    pieces: u64,
}

/// Text of chunks of the demo agent.
fn chunks(count: u32) -> String {
    (1..=count).map(|n| format!("chunk {n}\n")).collect()
}

fn demo() -> Script {
    Script {
        agent: "demo",
        mode: "auto",
        modes: json!(["ask", "auto"]),
        prompts: json!({
            "stream": "stream 20 pace 5",
            "write": "write answer.txt forty two",
            "shared": "stream 40 pace 20\nwrite shared.txt by the second\nstream 3",
            "long": "stream 5000 pace 20",
            "resumed": "hello again",
            "mode": "write free.txt without asking",
        }),
        replies: [
            chunks(20),
            "Wrote answer.txt.\n".to_owned(),
            format!("{}Wrote shared.txt.\n{}", chunks(40), chunks(3)),
            "hello again".to_owned(),
            "Wrote free.txt.\n".to_owned(),
        ],
        pieces: 20,
    }
}

/// Command that runs a program of a client; `None` if the client is not installed, which is a failure in CI.
fn program(house: &House, client: &str, name: &str) -> Option<Command> {
    let dir = install_dir();
    if let Ok(reason) = fs::read_to_string(dir.join(format!("clients/{client}-missing"))) {
        assert!(std::env::var_os("CI").is_none(), "{client} is not installed: {reason}");
        eprintln!("SKIPPED: {client} is not installed: {}", reason.trim());
        return None;
    }
    let at = dir.join("clients").join(client);
    let (interpreter, file) = match client {
        "typescript" => (dir.join("bin/node"), format!("{name}.ts")),
        "python" => (at.join("python"), format!("{name}.py")),
        _ => panic!("no client is called {client}"),
    };
    let mut command = Command::new(interpreter);
    let plain = house.plain(&[]);
    command.arg(at.join(file)).env_clear();
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("NODE_NO_WARNINGS", "1").env("PYTHONPATH", at.join("packages"));
    Some(command)
}

/// Runs the whole table of one client with one agent.
fn drive(house: &House, client: Client, script: &Script) {
    let Some(mut command) = program(house, client.name, "interop") else { return };
    let token = house.verb(&["token", "add", "interop", "--scope", "approve"])["token"].clone();
    let bridge = house.plain(&["acp", "--agent", script.agent]);
    let words = std::iter::once(bridge.get_program()).chain(bridge.get_args());
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let plan = json!({
        "transport": client.transport,
        "command": words,
        "url": format!("http://{}/acp/{}", house.tcp_address(), script.agent),
        "token": token,
        "cwd": cwd(house),
        "mode": script.mode,
        "prompts": script.prompts,
    });
    command.arg(plan.to_string());
    let mut seen = acp_tests::cli::run(&mut command, LONG).ok().lines();

    let session = seen[0]["session"].take();
    let pieces = seen[1]["pieces"].take();
    assert!(pieces.as_u64().is_some_and(|pieces| pieces >= script.pieces), "{pieces} pieces");
    assert_eq!(seen, expected(client, script));

    for (file, text) in [("answer", "forty two"), ("shared", "by the second"), ("free", "without asking")] {
        let written = fs::read_to_string(cwd(house).join(format!("{file}.txt")));
        assert_eq!(written.ok().as_deref().map(str::trim), Some(text), "{file}");
    }
    let session = session.as_str().unwrap_or_default();
    let authors = house.verb(&["sessions", "show", session])["runs"].clone();
    let authors: Vec<&Value> = authors.as_array().into_iter().flatten().map(|run| &run["author"]).collect();
    let is_bridge = client.transport == "stdio";
    assert!(authors.iter().all(|author| is_bridge || **author == "interop"), "{authors:?}");
}

fn expected(client: Client, script: &Script) -> Vec<Value> {
    let [stream, write, shared, resumed, mode] = &script.replies;
    let end = "end_turn";
    let prompt = |name: &str| script.prompts[name].clone();
    let code = if client.transport == "stdio" { json!(0) } else { Value::Null };
    vec![
        json!({"step": "new", "session": null, "version": 1, "agent": "acp-host", "modes": script.modes}),
        json!({"step": "prompt", "stop": end, "text": stream, "pieces": null}),
        json!({"step": "permission", "stop": end, "text": write, "asked": 1}),
        json!({
            "step": "load", "stop": end, "text": shared, "whole": true, "joined": true,
            "prompts": [prompt("stream"), prompt("write"), prompt("shared")],
            "echoes": 0, "asked": [2, 1], "withdrawn": 1,
        }),
        json!({"step": "cancel", "stop": "cancelled"}),
        json!({
            "step": "resume", "stop": end, "history": 0, "text": resumed, "observed": resumed,
            "prompts": [prompt("resumed")],
        }),
        json!({"step": "mode", "stop": end, "text": mode, "asked": 0}),
        json!({"step": "close", "closed": -32002, "gone": -32002, "listed": [true, false]}),
        json!({"step": "end", "files": 0, "codes": [code, code, code]}),
    ]
}

fn with_demo_agent(client: Client) {
    let house = Plan::default().gateway(LISTEN).build();
    drive(&house, client, &demo());
    house.end();
}

#[test]
#[ignore = "needs installed clients: make test-foreign"]
fn typescript_over_stdio() {
    with_demo_agent(Client { name: "typescript", transport: "stdio" });
}

#[test]
#[ignore = "needs installed clients: make test-foreign"]
fn typescript_over_websocket() {
    with_demo_agent(Client { name: "typescript", transport: "websocket" });
}

#[test]
#[ignore = "needs installed clients: make test-foreign"]
fn typescript_over_http() {
    with_demo_agent(Client { name: "typescript", transport: "http" });
}

#[test]
#[ignore = "needs installed clients: make test-foreign"]
fn python_over_stdio() {
    with_demo_agent(Client { name: "python", transport: "stdio" });
}

#[test]
#[ignore = "needs installed clients: make test-foreign"]
fn python_over_websocket() {
    with_demo_agent(Client { name: "python", transport: "websocket" });
}

#[test]
#[ignore = "needs installed clients: make test-foreign"]
fn python_over_http() {
    with_demo_agent(Client { name: "python", transport: "http" });
}
