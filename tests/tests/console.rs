//! `acp-gateway console`: a link, a listener and a sign-in that last as long as the command.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "console/actions/foreign.rs"]
mod actions_foreign;
#[path = "console/foreign.rs"]
mod foreign;
#[path = "console/keyboard/foreign.rs"]
mod keyboard_foreign;
#[path = "console/quality/foreign.rs"]
mod quality_foreign;
#[path = "console/trouble/foreign.rs"]
mod trouble_foreign;

use acp_tests::cli::RunningCommand;
use acp_tests::house::House;
use acp_tests::processes::ProcessHandle;
use acp_tests::wait::{SOON, eventually, until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;

/// A running `console`: its command, address and one-time code.
struct OpenConsole {
    command: RunningCommand,
    at: SocketAddr,
    code: String,
}

fn open(house: &House, args: &[&str]) -> OpenConsole {
    let mut command = house.follow(&[&["console", "--no-open"], args].concat());
    let event = command.event(SOON).unwrap();
    assert_eq!(event["event"], "open", "{event}");
    let (at, code) = parts(event["link"].as_str().unwrap());
    OpenConsole { command, at, code }
}

/// Address and code of a link.
fn parts(link: &str) -> (SocketAddr, String) {
    let (url, code) = link.split_once("#code=").unwrap();
    let at = url.strip_prefix("http://").unwrap().strip_suffix('/').unwrap();
    (at.parse().unwrap(), code.to_owned())
}

fn ask(at: SocketAddr, method: &str, path: &str, token: &str, body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let (authorization, length) = (format!("authorization: Bearer {token}\r\n"), body.len());
    let authorization = if token.is_empty() { String::new() } else { authorization };
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n{authorization}");
    stream.write_all(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or_default())
}

fn log_in(at: SocketAddr, code: &str) -> (u16, Value) {
    ask(at, "POST", "/v1/login", "", &json!({ "code": code }).to_string())
}

#[test]
fn console_acts_for_the_user_until_its_command_ends() {
    let (house, key) = House::new(&[]).with_session();
    let console = open(&house, &["--scope", "approve"]);
    assert_eq!(ask(console.at, "GET", "/", "", "").0, 200);
    assert_eq!(ask(console.at, "GET", "/v1/sessions", "", "").0, 401);
    let (status, login) = log_in(console.at, &console.code);
    let (token, name) = (login["token"].as_str().unwrap().to_owned(), login["name"].as_str().unwrap());
    assert_eq!((status, &login["scopes"]), (200, &json!(["read", "prompt", "approve"])), "{login}");
    let path = format!("/v1/sessions/{key}/prompt");
    assert_eq!(ask(console.at, "POST", &path, &token, r#"{"text":"say hello"}"#).0, 200);
    let shown = house.verb(&["sessions", "show", &key]);
    assert_eq!(shown["runs"][0]["author"], name, "{shown}");
    let listed = house.verb(&["token", "list"]);
    assert!(listed[0]["console"] == true && !listed.to_string().contains(&token[4..]), "{listed}");

    let pid = console.command.pid();
    assert!(ProcessHandle::open(pid).unwrap().signal(Signal::INT));
    assert_eq!(console.command.finish(SOON).code, Some(0));
    until(SOON, "the listener closes", || TcpStream::connect(console.at).is_err());
    assert_eq!(house.verb(&["token", "list"]), json!([]));
    house.end();
}

/// Code and sign-in were in the memory of the gateway that was killed.
#[test]
fn console_of_a_killed_gateway_tells_the_next_step() {
    let mut house = House::new(&[]);
    let console = open(&house, &[]);
    let (_, login) = log_in(console.at, &console.code);
    let unused = open(&house, &[]);
    house.restart_gateway();
    for console in [console.command, unused.command] {
        let output = console.finish(SOON);
        assert_eq!(output.error_code(), "GATEWAY_UNAVAILABLE", "{output:?}");
        assert!(
            output.error()["message"].as_str().unwrap().contains("`acp-gateway console` prints a new link")
        );
    }
    let again = open(&house, &["--listen", &unused.at.to_string()]);
    assert_eq!(again.at, unused.at);
    assert_eq!(log_in(again.at, &unused.code).0, 401);
    assert_eq!(ask(again.at, "GET", "/v1/whoami", login["token"].as_str().unwrap(), "").0, 401);
    assert_eq!(log_in(again.at, &again.code).0, 200);
    drop(again);
    house.end();
}

#[test]
fn console_opens_the_browser_of_the_desktop() {
    let house = House::new(&[]);
    let (bin, opened) = (house.world.dir("desktop"), house.world.path("opened"));
    let script =
        house.world.write("desktop/xdg-open", &format!("#!/bin/sh\necho \"$1\" >'{}'\n", opened.display()));
    std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut verb = house.plain(&["console"]);
    let mut command = RunningCommand::start(verb.env("PATH", path).env("DISPLAY", ":9"));
    let link = command.line(SOON).unwrap();
    let found = eventually(SOON, "the browser", || {
        std::fs::read_to_string(&opened).ok().filter(|it| it.ends_with('\n'))
    });
    assert_eq!(found.trim(), link);
    let (at, code) = parts(&link);
    assert_eq!(log_in(at, &code).0, 200);
    assert!(ProcessHandle::open(command.pid()).unwrap().signal(Signal::INT));
    assert!(command.finish(SOON).stderr.contains("A browser opens this link"));
    house.end();
}

/// What the pages about the machine show: leases with their evidence, the checks of `doctor`, and who answered what.
#[test]
fn console_reads_leases_checks_and_answers() {
    let (house, key) = House::new(&[]).with_session();
    let console = open(&house, &[]);
    let (_, login) = log_in(console.at, &console.code);
    let (token, name) = (login["token"].as_str().unwrap(), login["name"].as_str().unwrap());
    let get = |path: &str| {
        let (status, body) = ask(console.at, "GET", path, token, "");
        assert_eq!(status, 200, "{path}: {body}");
        body
    };
    let turn = house.follow(&["prompt", &key, "permission Delete everything", "--interactive"]);
    let pending = eventually(SOON, "a permission request", || get("/v1/permissions").get(0).cloned());
    let id = pending["permission_id"].as_str().unwrap();

    let leases = get("/v1/leases");
    let lease = leases.as_array().unwrap().iter().find(|lease| lease["session_key"] == key.as_str()).unwrap();
    assert_eq!((&lease["kind"], &lease["state"]), (&json!("agent"), &json!("open")), "{lease}");
    let evidence = get(&format!("/v1/leases/{}", lease["lease_id"].as_str().unwrap()));
    assert_eq!(evidence["verdict"], "owned", "{evidence}");
    let tree = evidence["tree"].as_array().unwrap();
    assert!(tree.iter().any(|process| process["pid"] == lease["adapter_pid"]), "{evidence}");
    for missing in ["0190a0a0-0000-7000-8000-000000000000", "x"] {
        assert_eq!(ask(console.at, "GET", &format!("/v1/leases/{missing}"), token, "").0, 404, "{missing}");
    }

    let checks = get("/v1/doctor");
    let same: Value = house.cli(&["doctor"]).lines()[0].clone();
    let names = |checks: &Value| -> Vec<Value> {
        checks.as_array().unwrap().iter().map(|check| check["name"].clone()).collect()
    };
    assert_eq!(names(&checks), names(&same), "{checks}\n{same}");

    let cwd = house.cwd();
    std::fs::create_dir_all(cwd.join("deep/er")).unwrap();
    std::fs::write(cwd.join("note.txt"), "text").unwrap();
    let entries = get(&format!("/v1/sessions/{key}/files/entries"));
    let named = |name: &str| {
        entries["entries"].as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap()
    };
    assert_eq!(
        (&named("deep")["is_directory"], &named("note.txt")["size"]),
        (&json!(true), &json!(4)),
        "{entries}"
    );
    assert_eq!(ask(console.at, "GET", &format!("/v1/sessions/{key}/files/entries?path=/"), token, "").0, 404);
    let complete =
        |prefix: &str| get(&format!("/v1/directories?agent=scripted&prefix={prefix}"))["directories"].clone();
    let at = |rest: &str| format!("{}{rest}", cwd.display());
    assert_eq!(complete(&at("/de")), json!([at("/deep")]));
    assert_eq!(complete(&at("/deep/")), json!([at("/deep/er")]));
    assert_eq!(
        (complete("/et"), complete("/etc/")),
        (json!([]), json!([])),
        "outside of the agent's cwd_roots"
    );

    assert_eq!(get("/v1/audit"), json!([]), "nothing is settled yet");
    let body = json!({ "option_id": pending["options"][0]["option_id"] }).to_string();
    let path = format!("/v1/sessions/{key}/permissions/{id}");
    assert_eq!(ask(console.at, "POST", &path, token, &body).0, 200);
    let _ = turn.finish(SOON).ok();
    let audit = get("/v1/audit?limit=5");
    let one = &audit[0];
    assert_eq!(
        (&one["permission_id"], &one["by"], &one["state"]),
        (&json!(id), &json!(name), &json!("answered")),
        "{audit}"
    );
    assert_eq!(
        (&one["option_id"], &one["session_key"]),
        (&pending["options"][0]["option_id"], &json!(key)),
        "{audit}"
    );
    drop(console);
    house.end();
}
