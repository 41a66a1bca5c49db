//! `leases watch`: a live view in a terminal, otherwise one line for each change.

use crate::common::{Host, agent, kill};
use crate::pty::Pty;
use crate::schema;
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";
const SHOW_CURSOR: &str = "\u{1b}[?25h";

fn command(host: &Host, args: &[&str]) -> Command {
    let mut command = host.cli_command(&["leases", "watch", "--interval", "100ms"]);
    command.args(args);
    command
}

/// Asserts that settings, screen and cursor of the terminal are restored.
fn check_restored(pty: &Pty) {
    assert!(pty.is_cooked(), "{:?}", pty.output());
    pty.until(LEAVE);
    pty.until(SHOW_CURSOR);
}

#[tokio::test]
async fn live_view_follows_changes_and_restores_terminal() {
    let (host, mut gateway) = Host::with_gateway().await;
    let spec = gateway.start(agent(&["cat"])).await;
    let mut pty = Pty::start(command(&host, &[]), 110, 24);
    pty.until(ENTER);
    pty.until("1 living, 0 ended");
    assert!(!pty.is_cooked(), "the terminal is in line mode");
    pty.type_in("j\r");
    pty.until(&spec.lease_id.to_string());
    pty.until(&spec.session_key.to_string());
    // A resize redraws the view without a key.
    pty.clear();
    pty.resize(80, 40);
    pty.until("1 living, 0 ended");
    gateway.close(spec.lease_id).await;
    pty.until("no leases");
    pty.type_in("q");
    assert_eq!(pty.wait().code(), Some(0));
    check_restored(&pty);
}

#[tokio::test]
async fn signals_restore_terminal() {
    let host = Host::new();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut pty = Pty::start(command(&host, &[]), 80, 24);
        pty.until("q quit");
        kill(pty.pid(), signal);
        assert_eq!(pty.wait().code(), Some(code), "{signal:?}");
        check_restored(&pty);
    }
    let mut pty = Pty::start(command(&host, &[]), 80, 24);
    pty.until("q quit");
    pty.type_in("\u{3}");
    assert_eq!(pty.wait().code(), Some(130));
    check_restored(&pty);
}

#[tokio::test]
async fn restarted_supervisor_is_reconnected() {
    let mut host = Host::new();
    let mut pty = Pty::start(command(&host, &[]), 80, 24);
    pty.until("q quit");
    host.crash();
    pty.until("no answer, retrying");
    pty.clear();
    host.start();
    pty.until("q quit");
    pty.type_in("\u{1b}");
    assert_eq!(pty.wait().code(), Some(0));
    check_restored(&pty);
}

fn lines(mut command: Command) -> (Child, impl FnMut() -> String) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let next = move || {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        line
    };
    (child, next)
}

#[tokio::test]
async fn json_output_has_one_line_per_change() {
    let (mut host, mut gateway) = Host::with_gateway().await;
    let spec = gateway.start(agent(&["cat"])).await;
    let (mut child, mut next) = lines(command(&host, &["--json"]));
    let mut change = |want: &str| loop {
        let line: serde_json::Value = serde_json::from_str(&next()).unwrap();
        schema::check(&line);
        if line["data"]["what"] == want {
            return line["data"].clone();
        }
    };
    let new = change("new");
    assert_eq!(
        (&new["lease_id"], &new["lease"]["state"]),
        (&spec.lease_id.to_string().into(), &"open".into())
    );
    gateway.close(spec.lease_id).await;
    let mut changed = change("changed");
    while changed["lease"]["state"] != "closed" {
        changed = change("changed");
    }
    host.crash();
    assert!(change("disconnected")["why"].is_string());
    host.start();
    change("connected");
    kill(i32::try_from(child.id()).unwrap(), Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[tokio::test]
async fn text_output_ends_with_its_reader() {
    let (host, mut gateway) = Host::with_gateway().await;
    let spec = gateway.start(agent(&["cat"])).await;
    let (mut child, mut next) = lines(command(&host, &["--state", "living"]));
    let line = next();
    assert!(line.contains(&spec.lease_id.to_string()) && line.contains("  open  agent  "), "{line}");
    // The command ends at the next change without its reader.
    drop(next);
    gateway.spawn(&agent(&["cat"])).await;
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
