//! The bridge as a real process, with a scripted `acpx` that refuses what the real one refuses.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use tempfile::TempDir;

/// Scripted acpx: two commands at once, or a HOME that others can enter, are errors.
const ACPX: &str = r#"#!/bin/sh
[ "$1" = --version ] && echo 0.19.1 && exit 0
[ "$(stat -c %a "$HOME")" = 700 ] || { echo '{"error":"HOME is not private"}'; exit 9; }
if [ "$1" = watch ]; then echo '{"watch":1}'; exec sleep 600; fi
mkdir "$HOME/busy" 2>/dev/null || { echo '{"error":"two commands at once"}'; exit 9; }
trap 'rmdir "$HOME/busy"' EXIT
case $1 in
    prompt) cat; echo; echo "$HOME" ;;
    show) echo '{"name":"s","messages":[{"a":1},{"b":2}],"lastSeq":3}' ;;
    mcp) cat "$HOME/mcp.json" ;;
    long) printf '{"cursor":"c","type":"message","message":"'; head -c 6000000 /dev/zero | tr '\0' '\1' | sed 's/./\\u0001/g'; echo '"}' ;;
    slow) sleep 0.3; echo '{"slow":true}' ;;
    close) sleep 0.5; echo closed >"$(dirname "$0")/closed" ;;
    hang) echo '{"hang":true}'; sleep 600 ;;
    fail) exit 4 ;;
    *) echo "unknown verb $1"; exit 2 ;;
esac
"#;

fn script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

struct Bridge {
    dir: TempDir,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Bridge {
    fn start(acpx: &str, nodes: &[(&str, &str)]) -> Self {
        let dir = TempDir::new().unwrap();
        script(&dir.path().join("acpx"), acpx);
        let mut path: Vec<PathBuf> = Vec::new();
        for (name, text) in nodes {
            fs::create_dir(dir.path().join(name)).unwrap();
            script(&dir.path().join(name).join("node"), text);
            path.push(dir.path().join(name));
        }
        path.extend(["/usr/bin".into(), "/bin".into()]);
        let mut child = Command::new(env!("CARGO_BIN_EXE_acp-acpx-bridge"))
            .args(["--key", "agent:x:acp:1", "--acpx"])
            .arg(dir.path().join("acpx"))
            .args(["--", "agent", "--flag"])
            .env("HOME", dir.path())
            .env("PATH", std::env::join_paths(path).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { dir, child, stdin, stdout }
    }

    /// Starts a bridge and returns its private directory.
    fn ready() -> (Self, PathBuf) {
        let mut bridge = Self::start(ACPX, &[]);
        let hello = bridge.line();
        assert_eq!(hello["type"], "hello", "{hello}");
        let dir = PathBuf::from(hello["dir"].as_str().unwrap());
        (bridge, dir)
    }

    fn send(&mut self, input: &Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{input}").unwrap();
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn end(mut self) -> TempDir {
        self.stdin = None;
        assert!(self.child.wait().unwrap().success());
        self.dir
    }
}

fn run(id: u64, verb: &str) -> Value {
    json!({ "op": "run", "id": id, "argv": [verb] })
}

#[test]
fn hello_names_versions_and_paths() {
    let mut bridge = Bridge::start(ACPX, &[]);
    let hello = bridge.line();
    let dir = PathBuf::from(hello["dir"].as_str().unwrap());
    let home = bridge.dir.path().to_str().unwrap().to_owned();
    let want = json!({
        "type": "hello", "acpx": "0.19.1", "home": home, "dir": dir, "agent": ["agent", "--flag"],
    });
    assert_eq!(hello, want);
    assert!(dir.starts_with(format!("{home}/.local/state/acp-host/acpx")), "{dir:?}");
    assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    bridge.end();
}

#[test]
fn commands_run_in_order_one_at_a_time() {
    let (mut bridge, dir) = Bridge::ready();
    bridge.send(&json!({ "op": "file", "name": "mcp.json", "text": "{\"mcpServers\":[]}" }));
    bridge.send(&run(1, "slow"));
    bridge.send(&json!({ "op": "run", "id": 2, "argv": ["prompt"], "stdin": "[\"a\\nb\"]" }));
    bridge.send(&json!({ "op": "run", "id": 3, "argv": ["show"], "count": ["messages"] }));
    bridge.send(&run(4, "mcp"));
    bridge.send(&run(5, "fail"));
    let lines: Vec<Value> = (0..10).map(|_| bridge.line()).collect();
    let exit = |id: u64, code: i32| json!({ "type": "exit", "id": id, "code": code });
    let out = |id: u64, line: &str| json!({ "type": "out", "id": id, "line": line });
    let want = [
        out(1, "{\"slow\":true}"),
        exit(1, 0),
        out(2, "[\"a\\nb\"]"),
        out(2, dir.to_str().unwrap()),
        exit(2, 0),
        out(3, "{\"lastSeq\":3,\"messages\":2,\"name\":\"s\"}"),
        exit(3, 0),
        out(4, "{\"mcpServers\":[]}"),
        exit(4, 0),
        exit(5, 4),
    ];
    assert_eq!(lines, want);
    bridge.end();
}

#[test]
fn large_members_of_a_line_that_is_too_long_are_left_out() {
    let (mut bridge, _) = Bridge::ready();
    bridge.send(&run(1, "long"));
    let line: Value = serde_json::from_str(bridge.line()["line"].as_str().unwrap()).unwrap();
    assert_eq!(line, json!({ "cursor": "c", "type": "message", "left_out_bytes": 36_000_044 }));
    assert_eq!(bridge.line()["type"], "exit");
    bridge.end();
}

#[test]
fn watch_runs_during_a_command_until_it_is_ended() {
    let (mut bridge, _) = Bridge::ready();
    bridge.send(&json!({ "op": "watch", "id": 1, "argv": ["watch"] }));
    assert_eq!(bridge.line(), json!({ "type": "watch", "id": 1, "line": "{\"watch\":1}" }));
    bridge.send(&run(2, "slow"));
    assert_eq!(bridge.line()["type"], "out");
    assert_eq!(bridge.line(), json!({ "type": "exit", "id": 2, "code": 0 }));
    // A second watch replaces the first one.
    bridge.send(&json!({ "op": "watch", "id": 3, "argv": ["watch"] }));
    assert_eq!(bridge.line(), json!({ "type": "exit", "id": 1, "signal": 9 }));
    assert_eq!(bridge.line()["type"], "watch");
    bridge.send(&json!({ "op": "unwatch" }));
    assert_eq!(bridge.line(), json!({ "type": "exit", "id": 3, "signal": 9 }));
    bridge.send(&json!({ "op": "timer", "id": 4, "ms": 1 }));
    assert_eq!(bridge.line(), json!({ "type": "timer", "id": 4 }));
    bridge.end();
}

#[test]
fn end_of_input_finishes_a_close_and_kills_the_rest() {
    let (mut bridge, dir) = Bridge::ready();
    bridge.send(&json!({ "op": "watch", "id": 1, "argv": ["watch"] }));
    assert_eq!(bridge.line()["type"], "watch");
    bridge.send(&run(2, "hang"));
    assert_eq!(bridge.line()["type"], "out");
    bridge.send(&json!({ "op": "run", "id": 3, "argv": ["close"], "finish": true }));
    bridge.send(&run(4, "show"));
    // The directory is left by the killed command.
    fs::remove_dir(dir.join("busy")).unwrap();
    fs::create_dir_all(dir.join(".acpx/queues")).unwrap();
    let world = bridge.end();
    assert_eq!(fs::read_to_string(world.path().join("closed")).unwrap(), "closed\n");
    assert!(dir.is_dir() && !dir.join(".acpx/queues").exists());
}

#[test]
fn end_of_the_queue_owner_is_reported_once() {
    let (mut bridge, dir) = Bridge::ready();
    let mut owner = Command::new("sleep").arg("600").spawn().unwrap();
    fs::create_dir_all(dir.join(".acpx/queues")).unwrap();
    fs::write(dir.join(".acpx/queues/a.lock"), json!({ "pid": owner.id() }).to_string()).unwrap();
    for id in 1..3 {
        bridge.send(&json!({ "op": "run", "id": id, "argv": ["prompt"], "stdin": "x", "owner": true }));
        let lines: Vec<Value> = (0..3).map(|_| bridge.line()).collect();
        assert_eq!(lines[2], json!({ "type": "exit", "id": id, "code": 0 }));
    }
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert_eq!(bridge.line(), json!({ "type": "owner_ended" }));
    bridge.send(&run(3, "fail"));
    assert_eq!(bridge.line(), json!({ "type": "exit", "id": 3, "code": 4 }));
    bridge.end();
}

#[test]
fn discard_removes_the_private_directory() {
    let (mut bridge, dir) = Bridge::ready();
    bridge.send(&json!({ "op": "discard" }));
    let _world = bridge.end();
    assert!(!dir.exists());
}

#[test]
fn unreadable_input_is_reported_and_skipped() {
    let (mut bridge, dir) = Bridge::ready();
    for line in ["{", "7", "{\"op\":\"rm\"}", "{\"op\":\"run\",\"id\":1}"] {
        writeln!(bridge.stdin.as_mut().unwrap(), "{line}").unwrap();
        assert_eq!(bridge.line()["type"], "fault", "{line}");
    }
    bridge.send(&json!({ "op": "file", "name": "../x", "text": "" }));
    assert_eq!(bridge.line()["type"], "fault");
    assert!(!dir.parent().unwrap().join("x").exists());
    bridge.end();
}

#[test]
fn node_is_found_or_named() {
    const SCRIPT: &str = "#!/usr/bin/env node\n";
    let node = |version: &str| {
        format!(
            "#!/bin/sh\n[ \"$1\" = --version ] && echo {version} && exit 0\nshift\n[ \"$1\" = --version ] && echo 0.19.1\n"
        )
    };
    let (old, new) = (node("v20.20.2"), node("v22.23.3"));
    let mut bridge = Bridge::start(SCRIPT, &[("a", &old), ("b", &new)]);
    let hello = bridge.line();
    assert_eq!((&hello["acpx"], &hello["node"]), (&json!("0.19.1"), &json!("22.23.3")), "{hello}");
    bridge.end();

    let mut bridge = Bridge::start(SCRIPT, &[("a", &old)]);
    let refused = bridge.line();
    let error = refused["error"].as_str().unwrap();
    assert_eq!(refused["type"], "unusable");
    assert!(error.contains("Node.js 22 or later") && error.contains("20.20.2"), "{error}");
    assert!(error.contains("[backends.acpx] command"), "{error}");
    assert!(!bridge.child.wait().unwrap().success());
}

#[test]
fn versions_are_checked_without_a_session() {
    let dir = TempDir::new().unwrap();
    let acpx = dir.path().join("acpx");
    let check = |text: &str| {
        script(&acpx, text);
        let path = acpx.to_str().unwrap();
        let found = plain(&["--check", "--acpx", path]);
        (found.status.success(), serde_json::from_slice::<Value>(&found.stdout).unwrap())
    };
    let (is_usable, found) = check("#!/bin/sh\necho 0.19.1\n");
    assert_eq!((is_usable, found), (true, json!({ "type": "versions", "acpx": "0.19.1" })));
    let (is_usable, found) = check("#!/bin/sh\nexit 3\n");
    assert_eq!((is_usable, &found["type"]), (false, &json!("unusable")));
    assert!(found["error"].as_str().unwrap().contains("--version failed"), "{found}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no private home directory is made");
}

#[test]
fn missing_acpx_is_named() {
    let mut bridge = Bridge::start("#!/nonexistent/interpreter\n", &[]);
    let error = bridge.line()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("/acpx --version failed") && error.contains("npm install"), "{error}");
}

fn plain(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_acp-acpx-bridge")).args(args).output().unwrap()
}

#[test]
fn help_version_and_wrong_arguments_are_answered() {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let help = plain(&["--help"]);
    assert!(help.status.success() && text(&help.stdout).contains("--acpx WORD"));
    let version = plain(&["-V"]);
    assert_eq!(text(&version.stdout), format!("acp-acpx-bridge {}\n", env!("CARGO_PKG_VERSION")));
    for (args, error) in [
        (&[][..], "--key is missing"),
        (&["--key"][..], "--key needs a value"),
        (&["--key", "k", "--acpx", "a"], "the agent's command is missing"),
        (&["--check"], "--acpx is missing"),
        (&["--watch"], "unknown argument \"--watch\""),
    ] {
        let refused = plain(args);
        assert_eq!(refused.status.code(), Some(2), "{args:?}");
        assert!(text(&refused.stderr).contains(error), "{args:?}: {}", text(&refused.stderr));
    }
}
