//! The same scenarios through npm's acpx and through this program, with the same scripted agent: lines without envelope, ids,
//! times and texts are equal, except for the differences that the manual lists. Run by `make test-foreign`.

use crate::client::Client;
use acp_tests::cli::{Output, run};
use acp_tests::house::House;
use acp_tests::wait::LONG;
use acp_tests::world::{bin, repository};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Members of the envelope, and those that this program puts beside a message.
const BESIDE: [&str; 23] = [
    "eventVersion",
    "sessionId",
    "requestId",
    "seq",
    "stream",
    "type",
    "content",
    "title",
    "toolCallId",
    "status",
    "toolKind",
    "entries",
    "modeId",
    "used",
    "size",
    "cost",
    "permissionId",
    "stopReason",
    "code",
    "detailCode",
    "origin",
    "message",
    "retryable",
];
/// Requests that acpx shows when it starts an agent.
const SETUP: [&str; 5] = ["initialize", "authenticate", "session/new", "session/load", "session/resume"];
/// Members of the objects of other verbs that are compared.
const CONTROL: [&str; 6] = ["action", "created", "cancelled", "name", "modeId", "status"];

/// Global flags, and the verb with its arguments.
type Scenario = (&'static str, &'static [&'static str], &'static [&'static str]);

const SCENARIOS: [Scenario; 20] = [
    ("no session", &[], &["prompt", "say hi"]),
    ("status without a session", &[], &["status"]),
    ("ensure", &[], &["sessions", "ensure", "--name", "n"]),
    ("ensure again", &[], &["sessions", "ensure", "--name", "n"]),
    ("first turn", &[], &["prompt", "-s", "n", "say one\nsay two"]),
    (
        "rich turn",
        &[],
        &["prompt", "-s", "n", "thought hm\nplan a; b\ntool run true\nunknown_update\nsay end"],
    ),
    // acpx counts the permissions of all turns of a queue owner: before one is granted.
    ("denied", &[], &["prompt", "-s", "n", "permission Delete"]),
    ("approved", &["--approve-all"], &["prompt", "-s", "n", "permission Delete"]),
    ("deny all", &["--deny-all"], &["prompt", "-s", "n", "permission Delete"]),
    ("no person", &["--non-interactive-permissions", "fail"], &["prompt", "-s", "n", "permission Delete"]),
    ("agent's error", &[], &["prompt", "-s", "n", "error -32603 broken"]),
    ("missing resource", &[], &["prompt", "-s", "n", "error -32002 gone"]),
    ("refusal", &[], &["prompt", "-s", "n", "refuse"]),
    ("time limit", &["--timeout", "2"], &["prompt", "-s", "n", "say begun\nwait_cancel"]),
    ("nothing to cancel", &[], &["cancel", "-s", "n"]),
    ("queued", &[], &["prompt", "-s", "n", "--no-wait", "say later"]),
    ("exec", &[], &["exec", "say hi"]),
    ("unknown name", &[], &["sessions", "show", "other"]),
    ("close", &[], &["sessions", "close", "n"]),
    ("wrong flags", &["--verbose"], &["status"]),
];

/// Rows of the manual's table of differences.
fn listed() -> BTreeSet<String> {
    let page = repository().join("docs/manual/acpx-contract.md");
    let text = std::fs::read_to_string(page).unwrap_or_else(|e| panic!("{e}"));
    let table = text.split("<!-- differences -->").nth(1).and_then(|rest| rest.split("<!-- end -->").next());
    let table = table.unwrap_or_else(|| panic!("no table of differences"));
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    rows.map(str::to_owned).collect()
}

/// npm's acpx on the agent of the house, with a home of its own.
fn theirs(house: &House, dir: &Path, flags: &[&str], args: &[&str]) -> Output {
    let foreign = std::env::var_os("ACP_FOREIGN_DIR").map(PathBuf::from);
    let foreign = foreign.unwrap_or_else(|| panic!("ACP_FOREIGN_DIR is not set; run make test-foreign"));
    let program = foreign.join("clients/acpx/bin/acpx");
    let plain = house.world.command("fake-agent");
    let mut command = Command::new(&program);
    command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("HOME", house.world.dir("acpx-home")).current_dir(dir);
    let agent =
        format!("{} --state {}", bin("fake-agent").display(), house.world.path("acpx-state").display());
    command
        .args(["--format", "json", "--json-strict", "--ttl", "60", "--agent", &agent])
        .args(flags)
        .args(args);
    run(&mut command, LONG)
}

/// Replaces ids, and removes what is not compared.
fn plain(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for name in ["sessionId", "toolCallId"] {
                if members.contains_key(name) {
                    members.insert(name.to_owned(), json!("ID"));
                }
            }
            members.values_mut().for_each(plain);
        }
        Value::Array(list) => list.iter_mut().for_each(plain),
        _ => {}
    }
}

/// Lines of one side in comparable form. Notes the differences that were removed.
fn comparable(output: &Output, is_theirs: bool, seen: &mut BTreeSet<&'static str>) -> Vec<Value> {
    let mut setup: Vec<Value> = Vec::new();
    let mut lines = Vec::new();
    for line in output.lines() {
        let Value::Object(mut members) = line else { panic!("not an object: {line}") };
        if !members.contains_key("jsonrpc") {
            let status = members.get("status").cloned();
            members.retain(|name, _| CONTROL.contains(&name.as_str()));
            if status.as_ref().is_some_and(|status| status != "no-session") {
                seen.insert("record");
            }
            lines.push(Value::Object(members));
            continue;
        }
        let method = members.get("method").and_then(Value::as_str).unwrap_or_default().to_owned();
        let id = members.get("id").cloned().unwrap_or_default();
        if is_theirs && SETUP.contains(&method.as_str()) {
            setup.push(id);
            seen.insert("setup");
            continue;
        }
        if is_theirs && method.is_empty() && setup.first() == Some(&id) {
            setup.remove(0);
            continue;
        }
        if is_theirs && method == "session/cancel" {
            seen.insert("cancel-line");
            continue;
        }
        if !is_theirs && method.starts_with("acpx/") {
            seen.insert("lifecycle");
            continue;
        }
        if !is_theirs {
            members
                .retain(|name, _| !BESIDE.contains(&name.as_str()) && name != "timestamp" && name != "acp");
        }
        if let Some(error) = members.get("error") {
            if is_theirs && !id.is_null() {
                seen.insert("agent-error");
            }
            // Texts and details are each program's own.
            lines.push(json!({ "error": error["code"] }));
            continue;
        }
        let mut line = Value::Object(members);
        plain(&mut line);
        if !id.is_null() {
            line["id"] = json!("ID");
        }
        lines.push(line);
    }
    lines
}

#[test]
#[ignore = "needs installed clients: make test-foreign"]
fn lines_equal_those_of_acpx_except_for_the_listed_differences() {
    let house = House::new(&[]);
    let client = Client::new(&house);
    let mut seen = BTreeSet::new();
    let mut unequal = BTreeMap::new();
    for (name, flags, args) in SCENARIOS {
        let (acpx, own) = (theirs(&house, &client.dir, flags, args), client.with(flags, args));
        let mut want = comparable(&acpx, true, &mut seen);
        let found = comparable(&own, false, &mut seen);
        let mut exit = acpx.code;
        match name {
            // The turn's result, and exit code 5.
            "denied" if exit == Some(5) && want.last().is_some_and(|last| last.get("result").is_some()) => {
                want.pop();
                want.push(json!({ "error": -32071 }));
                seen.insert("denied");
            }
            "no person" => {
                let before = want.len();
                // The turn goes on in acpx, and the agent says how its request was answered.
                let goes_on = |line: &Value| {
                    line["params"]["update"]["sessionUpdate"] == "agent_message_chunk"
                        || line["result"].get("stopReason").is_some()
                };
                want.retain(|line| !goes_on(line));
                if want.len() < before {
                    seen.insert("failed-permission");
                }
            }
            "unknown name" if exit == Some(1) => {
                (want, exit) = (vec![json!({ "error": -32002 })], Some(4));
                seen.insert("missing-session");
            }
            "time limit" => want.retain(|line| line["result"].get("stopReason").is_none()),
            _ => {}
        }
        if (&want, exit) != (&found, own.code) {
            unequal.insert(name, (acpx, own, want, found));
        }
    }
    // The queue owner of acpx ends by itself, but not within this test.
    let _ = theirs(&house, &client.dir, &[], &["sessions", "close", "n"]);
    for (name, (acpx, own, want, found)) in &unequal {
        println!("== {name}\nacpx {:?}\n{}\nown {:?}\n{}", acpx.code, acpx.stdout, own.code, own.stdout);
        println!("compared:\n{want:#?}\n{found:#?}");
    }
    assert_eq!(unequal.keys().collect::<Vec<_>>(), [] as [&&str; 0], "scenarios differ");
    let seen: BTreeSet<String> = seen.into_iter().map(str::to_owned).collect();
    assert_eq!(seen, listed(), "the manual lists the differences");
}
