//! ACP clients that others wrote: the official libraries over every transport that they have, and `acpx`. Run by
//! `make test-foreign`, which installs them. A library's client reports what it saw step by step; it is judged here.

use crate::cwd;
use acp_tests::cli::{RunningCommand, run};
use acp_tests::fake_model::probe::FakeModel;
use acp_tests::foreign::{self, install_dir};
use acp_tests::house::{House, Plan};
use acp_tests::wait::{LONG, until};
use acp_tests::world::{World, repository};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LISTEN: &str = "[northbound]\nlisten = [\"unix\", \"127.0.0.1:0\"]\n";

/// A client, and how it connects.
#[derive(Clone, Copy)]
struct Client {
    name: &'static str,
    transport: &'static str,
}

const TYPESCRIPT: [Client; 3] = transports("typescript");
const PYTHON: [Client; 3] = transports("python");
const RUST: [Client; 3] = transports("rust");

const fn transports(name: &'static str) -> [Client; 3] {
    [
        Client { name, transport: "stdio" },
        Client { name, transport: "websocket" },
        Client { name, transport: "http" },
    ]
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
    /// Text of `free.txt`, which the turn in the other mode writes unasked.
    free: Option<&'static str>,
}

fn demo() -> Script {
    let chunks = |count| (1..=count).map(|n| format!("chunk {n}\n")).collect::<String>();
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
        free: Some("without asking"),
    }
}

/// Script of an agent whose model is the fake one, and which has a mode `plan`.
fn modelled(agent: &'static str, modes: Value, cwd: &Path) -> Script {
    let words = |count| (1..=count).map(|n| format!("w{n} ")).collect::<String>();
    let write = |name: &str, text: &str| format!("[[write {} {text}]]", cwd.join(name).display());
    Script {
        agent,
        mode: "plan",
        modes,
        prompts: json!({
            "stream": "[[chunks 20 5ms]]",
            "write": write("answer.txt", "forty two") + " [[say written]]",
            "shared": format!("[[chunks 40 20ms]] {} [[say shared]]", write("shared.txt", "by the second")),
            "long": "[[chunks 5000 20ms]]",
            "resumed": "[[say hello again]]",
            "mode": "[[say planned]]",
        }),
        replies: [
            words(20),
            "written".to_owned(),
            words(40) + "shared",
            "hello again".to_owned(),
            "planned".to_owned(),
        ],
        pieces: 10,
        free: None,
    }
}

/// Directory of an installed client; `None` if it is not installed, which is a failure in CI.
fn installed(client: &str) -> Option<PathBuf> {
    let clients = install_dir().join("clients");
    if let Ok(reason) = fs::read_to_string(clients.join(format!("{client}-missing"))) {
        assert!(std::env::var_os("CI").is_none(), "{client} is not installed: {reason}");
        eprintln!("SKIPPED: {client} is not installed: {}", reason.trim());
        return None;
    }
    Some(clients.join(client))
}

/// Command in the working directory of sessions, with the gateway's programs and these in PATH.
fn command(house: &House, program: &Path, more: &Path) -> Command {
    let plain = house.plain(&[]);
    let mut command = Command::new(program);
    command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ours = Path::new(plain.get_program()).parent().unwrap_or(Path::new("/"));
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{}:{path}", more.display(), ours.display()));
    command.env("ACP_GATEWAY_STATE_DIR", house.world.path(acp_tests::house::GATEWAY));
    command.current_dir(cwd(house));
    command
}

/// Command that runs a program of a library.
fn library(house: &House, client: &str, name: &str) -> Option<Command> {
    let dir = installed(client)?;
    let bin = install_dir().join("bin");
    let mut command = match client {
        "typescript" => command(house, &bin.join("node"), &bin),
        "python" => command(house, &dir.join("python"), &bin),
        "rust" => return Some(command(house, &dir.join("debug").join(name), &bin)),
        _ => panic!("no library is for {client}"),
    };
    let file = if client == "python" { format!("{name}.py") } else { format!("{name}.ts") };
    command.arg(dir.join(file)).env("NODE_NO_WARNINGS", "1").env("PYTHONPATH", dir.join("packages"));
    Some(command)
}

fn token(house: &House, name: &str) -> String {
    let added = house.verb(&["token", "add", name, "--scope", "approve"]);
    added["token"].as_str().unwrap_or_else(|| panic!("no token: {added}")).to_owned()
}

/// Runs everything with one client and one agent.
fn drive(house: &House, client: Client, script: &Script) {
    let Some(mut command) = library(house, client.name, "interop") else { return };
    let name = format!("{}-{}", client.name, client.transport);
    let plan = json!({
        "transport": client.transport,
        "command": ["acp-gateway", "acp", "--agent", script.agent],
        "url": format!("http://{}/acp/{}", house.tcp_address(), script.agent),
        "token": token(house, &name),
        "cwd": cwd(house),
        "mode": script.mode,
        "prompts": script.prompts,
    });
    let files = ["answer", "shared", "free"].map(|name| cwd(house).join(format!("{name}.txt")));
    files.iter().for_each(|file| drop(fs::remove_file(file)));
    let mut seen = run(command.arg(plan.to_string()), LONG).ok().lines();

    let session = seen[0]["session"].take();
    let pieces = seen[1]["pieces"].take();
    assert!(pieces.as_u64().is_some_and(|pieces| pieces >= script.pieces), "{pieces} pieces");
    assert_eq!(seen, expected(client, script), "{name}");
    let texts = [Some("forty two"), Some("by the second"), script.free];
    let written = files.map(|file| fs::read_to_string(file).ok().map(|text| text.trim().to_owned()));
    assert_eq!(written.each_ref().map(Option::as_deref), texts);
    let shown = house.verb(&["sessions", "show", session.as_str().unwrap_or_default()]);
    let runs = shown["runs"].as_array().unwrap_or_else(|| panic!("no runs: {shown}"));
    assert_eq!(runs.len(), 6, "{shown}");
    assert!(client.transport == "stdio" || runs.iter().all(|run| run["author"] == *name), "{shown}");
}

fn expected(client: Client, script: &Script) -> Vec<Value> {
    let [stream, write, shared, resumed, mode] = &script.replies;
    let end = "end_turn";
    let prompt = |name: &str| script.prompts[name].clone();
    // Exit code of the bridge; the Rust library does not tell it.
    let code = if client.transport == "stdio" && client.name != "rust" { json!(0) } else { Value::Null };
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

fn with_demo_agent(clients: &[Client]) {
    let house = Plan::default().gateway(LISTEN).build();
    clients.iter().for_each(|client| drive(&house, *client, &demo()));
    house.end();
}

#[test]
#[ignore = "needs installed clients: make test-foreign"]
fn typescript_library_does_everything_over_each_transport() {
    with_demo_agent(&TYPESCRIPT);
}

#[test]
#[ignore = "needs installed clients: make test-foreign"]
fn python_library_does_everything_over_each_transport() {
    with_demo_agent(&PYTHON);
}

#[test]
#[ignore = "needs installed clients: make test-foreign"]
fn rust_library_does_everything_over_each_transport() {
    with_demo_agent(&RUST);
}

/// Each client drives a real agent over each transport.
fn with_real_agent(name: &'static str, modes: Value) {
    let world = World::new();
    let model = FakeModel::start(&world);
    let agents = BTreeMap::from([(name, foreign::agent(&world, name, model.url()))]);
    let house = Plan::default().gateway(LISTEN).build_in(world, &agents);
    let script = modelled(name, modes, &cwd(&house));
    [TYPESCRIPT, PYTHON, RUST].iter().flatten().for_each(|client| drive(&house, *client, &script));
    drop(model);
    house.end();
}

#[test]
#[ignore = "needs installed agents and clients: make test-foreign"]
fn libraries_drive_qwen_code() {
    with_real_agent("qwen", json!(["plan", "default", "auto-edit", "auto", "yolo"]));
}

#[test]
#[ignore = "needs installed agents and clients: make test-foreign"]
fn libraries_drive_opencode() {
    with_real_agent("opencode", json!(["build", "plan"]));
}

/// JSON-RPC messages that `acpx` shows.
fn messages(lines: &[Value]) -> (String, Vec<&Value>, Option<&str>) {
    let text = lines.iter().filter_map(|line| line["params"]["update"]["content"]["text"].as_str()).collect();
    let asked = lines.iter().filter(|line| line["method"] == "session/request_permission").collect();
    let stop = lines.iter().rev().find_map(|line| line["result"]["stopReason"].as_str());
    (text, asked, stop)
}

fn acpx(house: &House, script: &Script, args: &[&str]) -> Option<Command> {
    let bin = installed("acpx")?.join("bin");
    let mut command = command(house, &bin.join("acpx"), &bin);
    let agent = format!("acp-gateway acp --agent {}", script.agent);
    command.args(["--format", "json", "--ttl", "60", "--agent", &agent]).args(args);
    Some(command)
}

/// `acpx` keeps a session over its own processes, each of which resumes it.
fn with_acpx(house: &House, script: &Script) {
    let acpx = |args: &[&str]| acpx(house, script, args);
    let Some(mut start) = acpx(&["sessions", "new"]) else { return };
    let created = run(&mut start, LONG).ok().lines();
    let session = created[0]["acpxSessionId"].as_str().unwrap_or_default().to_owned();
    let prompt = |mode: &str, name: &str| {
        let text = script.prompts[name].as_str().unwrap_or_default();
        let lines = acpx(&[mode, "prompt", text]).map(|mut command| run(&mut command, LONG).ok().lines());
        let lines = lines.unwrap_or_default();
        let (text, asked, stop) = messages(&lines);
        (text, asked.len(), stop.map(str::to_owned))
    };
    let end = || Some("end_turn".to_owned());
    let [stream, write, _, resumed, mode] = script.replies.clone();
    assert_eq!(prompt("--approve-all", "stream"), (stream, 0, end()));
    assert_eq!(prompt("--approve-all", "write"), (write, 1, end()));

    let long = script.prompts["long"].as_str().unwrap_or_default();
    let mut turn = RunningCommand::start(&mut acpx(&["prompt", long]).unwrap());
    let mut lines = turn.events_until(LONG, |line| line["params"]["update"]["content"]["text"].is_string());
    let cancelled = run(&mut acpx(&["cancel"]).unwrap(), LONG).ok().json();
    assert_eq!(cancelled["cancelled"], true, "{cancelled}");
    lines.extend(turn.finish(LONG).ok().lines());
    assert_eq!(messages(&lines).2, Some("cancelled"));

    assert_eq!(prompt("--deny-all", "resumed"), (resumed, 0, end()));
    let _ = run(&mut acpx(&["set-mode", script.mode]).unwrap(), LONG).ok();
    assert_eq!(prompt("--deny-all", "mode"), (mode, 0, end()));
    let _ = run(&mut acpx(&["sessions", "close"]).unwrap(), LONG).ok();
    let shown = house.verb(&["sessions", "show", &session]);
    assert_eq!(shown["runs"].as_array().map(Vec::len), Some(5), "{shown}");
    until(LONG, "acpx has ended its process", || {
        house.world.processes().iter().all(|process| process.argv.iter().all(|arg| !arg.contains("acpx")))
    });
}

#[test]
#[ignore = "needs installed clients: make test-foreign"]
fn acpx_keeps_a_session_over_its_processes() {
    let house = Plan::default().build();
    with_acpx(&house, &demo());
    house.end();
}

/// Runs an example of the manual with a prompt, and returns its output.
fn example(house: &House, mut command: Command, client: &str) -> String {
    let scheme = if command.get_program().to_string_lossy().ends_with("node") { "ws" } else { "http" };
    let token = token(house, &format!("example-{client}"));
    command.env("ACP_URL", format!("{scheme}://{}/acp", house.tcp_address())).env("ACP_TOKEN", token);
    let _ = fs::remove_file(cwd(house).join("example.txt"));
    run(command.arg("write example.txt it works"), LONG).ok().stdout
}

/// The examples of docs/manual/clients.md, which a test of the repository's rules compares with these files.
#[test]
#[ignore = "needs installed clients: make test-foreign"]
fn examples_of_the_manual_run_as_they_stand() {
    let house = Plan::default().gateway(&format!("[acp]\ndefault_agent = \"demo\"\n{LISTEN}")).build();
    let files = repository().join("tests/clients");
    let written = || fs::read_to_string(cwd(&house).join("example.txt")).ok();
    for client in ["typescript", "python", "rust"] {
        let Some(command) = library(&house, client, "example") else { continue };
        let output = example(&house, command, client);
        // The lines of the output have no end of line.
        assert!(output.ends_with("Wrote example.txt."), "{client}: {output}");
        assert_eq!(written().as_deref().map(str::trim), Some("it works"), "{client}");
    }
    let bin = installed("acpx").unwrap().join("bin");
    let output = example(&house, command(&house, &files.join("acpx/example.sh"), &bin), "acpx");
    assert!(output.contains("Wrote example.txt."), "{output}");
    assert_eq!(written().as_deref().map(str::trim), Some("it works"));
    // It answers no questions, and so asks for nothing that needs permission.
    let mut curl = command(&house, &files.join("curl/example.sh"), &bin);
    curl.env("ACP_URL", format!("http://{}/acp", house.tcp_address()))
        .env("ACP_TOKEN", token(&house, "curl"));
    assert_eq!(run(curl.arg("hello from a shell"), LONG).ok().stdout, "hello from a shell");

    let settings = fs::read_to_string(files.join("editor/settings.json")).unwrap();
    let settings: Value = serde_json::from_str(&settings).unwrap();
    let server = &settings["agent_servers"]["acp-host"];
    let args = server["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap());
    let mut editor = command(&house, Path::new(server["command"].as_str().unwrap()), &bin);
    editor.args(args.map(|arg| if arg == "claude" { "demo" } else { arg }));
    let mut editor = acp_tests::northbound::Client::stdio(&mut editor);
    let session = editor.new_session(&cwd(&house));
    let id = editor.prompt(&session, "hello from an editor");
    assert_eq!(acp_tests::northbound::agent_text(&editor.answer(id).1), "hello from an editor");
    assert_eq!(editor.end_of_input(), Some(0));
    house.end();
}
