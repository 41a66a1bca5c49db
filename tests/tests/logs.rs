//! Standard error of agents: in the session log, and in no conversation.

use acp_tests::cli::run;
use acp_tests::house::{GATEWAY, House, scripted};
use acp_tests::scrape::say;
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::{Agent, World, open_read_only};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Value of a variable configured for the agent.
const CONFIGURED: &str = "sk-configured-0123456789";
/// Secret that the gateway does not know.
const UNKNOWN: &str = "hunter2-of-another-service";

/// Every value of every table, except the environments of agents to be started.
fn all_values(db: &Path) -> Vec<String> {
    let db = open_read_only(db);
    let mut names = db.prepare("SELECT name FROM sqlite_master WHERE type = 'table'").unwrap();
    let names: Vec<String> = names.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let mut all = Vec::new();
    for name in names {
        let mut rows = db.prepare(&format!("SELECT * FROM \"{name}\"")).unwrap();
        let columns: Vec<String> = rows.column_names().iter().map(|name| (*name).to_owned()).collect();
        let mut rows = rows.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            for (at, column) in columns.iter().enumerate().filter(|(_, name)| *name != "spawn_json") {
                let value = row.get_ref(at).unwrap();
                let text = value.as_bytes().map(String::from_utf8_lossy).unwrap_or_default();
                all.push(format!("{name}.{column} {text}"));
            }
        }
    }
    all
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { vec![entry.path()] })
        .collect()
}

#[test]
fn secrets_printed_by_dying_agent_reach_no_conversation() {
    let world = World::new();
    // The gateway logs an agent's arguments, so the secret is not an argument.
    let secret = world.write("secret", UNKNOWN);
    // A line that is not ACP goes into the journal and the gateway's log.
    let script = format!(
        "read hello; echo \"starting with $API_KEY\"; echo \"key $API_KEY of $(cat {}) is refused\" >&2; exit 3",
        secret.display()
    );
    let dying = Agent {
        command: ["/bin/sh", "-c", &script].map(str::to_owned).to_vec(),
        ..scripted(&world, &[], "ask")
    };
    let dying = dying.env("API_KEY", CONFIGURED);
    world.configure(GATEWAY, "", &BTreeMap::from([("dying", dying)]));
    let supervisor = world.supervisor();
    let gateway = world.gateway(GATEWAY, &supervisor.socket());
    let cwd = world.dir("work/project");
    let say = |id: &str, text: &str| say(&world.path(GATEWAY).join("gateway.sock"), "room", id, text);
    let spawned = say("1", &format!("/acp spawn dying --cwd '{}'", cwd.display()));
    let key = spawned["session_key"].as_str().unwrap_or_else(|| panic!("{spawned}")).to_owned();
    say("2", "hello");
    let failed = || {
        let show = world.cli(GATEWAY, &["sessions", "show", &key]).ok().json();
        show["last_error"]["message"].as_str().map(str::to_owned)
    };
    until(LONG, "agent failure recorded", || failed().is_some());
    let status = say("3", "/acp status");
    let status = status["text"].as_str().unwrap();
    for part in ["exit code 3", &format!("acp-gateway logs {key}")] {
        assert!(status.contains(part), "{status}");
    }
    until(LONG, "line in the log", || {
        let lines = world.cli(GATEWAY, &["logs", &key]).ok().lines();
        let want = format!("key [redacted:API_KEY] of {UNKNOWN} is refused");
        lines.iter().any(|line| line["from"] == "agent" && line["text"] == want)
    });
    let log = supervisor.log();
    assert!(log.contains("[redacted:API_KEY]") && !log.contains(CONFIGURED), "{log}");
    assert!(!gateway.log().contains(CONFIGURED) && !gateway.log().contains(UNKNOWN), "{}", gateway.log());
    assert!(gateway.log().contains("starting with [redacted:API_KEY]"), "{}", gateway.log());
    assert_eq!(gateway.terminate(LONG), Some(0));
    assert_eq!(supervisor.terminate(LONG), Some(0));
    let values = all_values(&world.path(GATEWAY).join("gateway.db"));
    assert!(values.iter().any(|value| value.contains("exit code 3")), "the failure is recorded");
    for secret in [CONFIGURED, UNKNOWN] {
        let found: Vec<&String> = values.iter().filter(|value| value.contains(secret)).collect();
        assert!(found.is_empty(), "{found:?}");
    }
    for file in files(&world.path("supervisor")) {
        let bytes = std::fs::read(&file).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&bytes).contains(CONFIGURED), "{}", file.display());
    }
}

#[test]
fn followed_log_survives_gateway_restart_until_ctrl_c() {
    let (mut house, key) = House::new(&[]).with_session();
    let _ = house.prompt(&key, "stderr one\nstderr two\nstderr three");
    let text = |line: &serde_json::Value| line["text"].as_str().unwrap_or_default().to_owned();
    until(SOON, "line in the log", || {
        let lines = house.cli(&["logs", &key, "--lines", "2"]).ok().lines();
        lines.iter().map(text).collect::<Vec<_>>() == ["two", "three"]
    });
    let mut followed = house.follow(&["logs", &key, "-f", "-n", "1"]);
    assert_eq!(text(&followed.event(SOON).unwrap()), "three");
    let _ = house.prompt(&key, "stderr four");
    assert_eq!(text(&followed.event(SOON).unwrap()), "four");
    house.restart_gateway();
    let _ = house.prompt(&key, "stderr five");
    assert_eq!(text(&followed.event(LONG).unwrap()), "five");
    assert!(followed.signal(Signal::INT));
    let output = followed.finish(SOON);
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""));
    let unknown = house.cli(&["logs", "agent:none:acp:1"]);
    assert_eq!((unknown.code, unknown.error_code().as_str()), (Some(4), "NO_SESSION"));
    house.end();
}

/// Standard error of an agent reaches a terminal as text.
#[test]
fn control_sequences_of_a_log_never_reach_the_terminal() {
    let (house, key) = House::new(&[]).with_session();
    let _ = house
        .prompt(&key, "stderr red \\u001b[31m title \\u001b]0;owned\\u0007 c1 \\u009b2J bidi \\u202e end");
    let shown = eventually(SOON, "line in the log", || {
        let shown = run(&mut house.in_terminal(&["logs", &key]), LONG).ok().stdout;
        shown.contains(" end").then_some(shown)
    });
    let acts = |c: char| {
        c.is_control() && !matches!(c, '\n' | '\r' | '\t') || ('\u{202a}'..='\u{202e}').contains(&c)
    };
    assert!(!shown.contains(acts), "{shown:?}");
    for part in ["\\u{1b}[31m", "\\u{1b}]0;owned\\u{7}", "\\u{9b}2J", "\\u{202e} end"] {
        assert!(shown.contains(part), "{part}: {shown:?}");
    }
    let json = run(&mut house.in_terminal(&["logs", &key, "--json"]), LONG).ok().stdout;
    assert!(!json.contains(acts) && json.contains("\\u001b[31m"), "{json:?}");
    house.end();
}
