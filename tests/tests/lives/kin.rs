//! Sessions that spawn others: what their agents see, and completions.

use super::{bind, told};
use acp_tests::house::{House, Plan};
use acp_tests::seed::Seed;
use acp_tests::wait::{LONG, SOON, until, wait_until_instant};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Number of spawned sessions around which the gateway is killed.
const CHILDREN: usize = 4;

fn spawn(house: &House, more: &[&str]) -> String {
    let cwd = house.cwd().to_string_lossy().into_owned();
    let mut args = vec!["sessions", "spawn", "--agent", "scripted", "--cwd", &cwd];
    args.extend(more);
    house.cli(&args).ok().json()["session_key"].as_str().unwrap_or_default().to_owned()
}

/// Texts of a session's prompts that tell the completion of another one.
fn completions(house: &House, requester: &str, of: &str) -> Vec<String> {
    let start = format!("Session {of} ");
    let prompts = house.history(requester).into_iter().filter(|event| event["type"] == "prompt");
    let texts = prompts.filter_map(|event| event["text"].as_str().map(str::to_owned));
    texts.filter(|text| text.starts_with(&start)).collect()
}

fn is_idle(house: &House, key: &str) -> bool {
    let view = house.verb(&["sessions", "show", key]);
    view["state"] == "idle" && view["queued_runs"] == 0
}

/// The end of a spawned session's turn is told to the session that spawned it: once, whenever the gateway is killed.
#[test]
fn completion_reaches_its_requester_once_across_kills() {
    let (mut house, parent) = House::new(&[]).with_session();
    let mut seed = Seed::new();
    let mut children = Vec::new();
    for number in 0..CHILDREN {
        let task = format!("task {number}");
        let mode = if number % 2 == 0 { "oneshot" } else { "persistent" };
        children.push(spawn(
            &house,
            &["--spawned-by", &parent, "--mode", mode, "--prompt", &task, "--wait", "0"],
        ));
        wait_until_instant(Instant::now() + seed.time_below(Duration::from_millis(500)));
        house.kill_gateway();
        house.start_gateway();
    }
    for (number, child) in children.iter().enumerate() {
        until(LONG, "completion told", || !completions(&house, &parent, child).is_empty());
        let [text] = &completions(&house, &parent, child)[..] else {
            panic!("{child} is told more than once")
        };
        assert!(text.ends_with(&format!("\n\necho: task {number}")), "{text}");
        until(LONG, "prompt answered", || house.prompts_received(text) == 1);
    }
    until(LONG, "requester at rest", || is_idle(&house, &parent));
    house.restart_gateway();
    for child in &children {
        assert_eq!(completions(&house, &parent, child).len(), 1, "{child}");
    }

    // A session with a conversation of its own answers there, and a closed requester gets nothing.
    let bound = spawn(&house, &["--spawned-by", &parent, "--prompt", "chunks 20 pace_ms=50", "--wait", "0"]);
    house.kill_gateway();
    bind(&house, &bound, "room", None, None);
    house.start_gateway();
    until(LONG, "answer shown", || !told(&house, "room").is_empty() && is_idle(&house, &bound));
    let late = spawn(&house, &["--spawned-by", &parent, "--prompt", "chunks 20 pace_ms=50", "--wait", "0"]);
    let _ = house.verb(&["sessions", "close", &parent]);
    until(LONG, "late answer", || is_idle(&house, &late));
    assert_eq!(completions(&house, &parent, &bound), [] as [String; 0]);
    assert_eq!(completions(&house, &parent, &late), [] as [String; 0]);
    house.end();
}

/// `--as`: an agent sees its tree, and the rest is answered like what does not exist.
#[test]
fn agent_sees_its_tree_and_nothing_else() {
    let house = Plan::flags(&[]).gateway("[agents.other]\ncommand = [\"/bin/false\"]\n").build();
    let _ = house.world.dir("work/project");
    let root = spawn(&house, &["--label", "root"]);
    let child = spawn(&house, &["--spawned-by", &root]);
    let grandchild = spawn(&house, &["--spawned-by", &child, "--label", "deep"]);
    let stranger = spawn(&house, &["--label", &root.replace(':', "-")]);
    let view = house.verb(&["sessions", "show", &grandchild]);
    assert_eq!(
        (&view["owner_session_key"], &view["spawned_by"]),
        (&root.as_str().into(), &child.as_str().into())
    );
    let listed = |acts_for: &str| {
        let views = house.verb(&["sessions", "list", "--as", acts_for]);
        let keys = views.as_array().into_iter().flatten().filter_map(|view| view["session_key"].as_str());
        let mut keys: Vec<String> = keys.map(str::to_owned).collect();
        keys.sort();
        keys
    };
    let sorted = |mut keys: Vec<&String>| {
        keys.sort();
        keys.into_iter().cloned().collect::<Vec<_>>()
    };
    assert_eq!(listed("root"), sorted(vec![&root, &child, &grandchild]));
    assert_eq!(listed(&child), sorted(vec![&child, &grandchild]));
    assert_eq!(listed(&grandchild), std::slice::from_ref(&grandchild));
    assert_eq!(listed("other"), [] as [String; 0], "an agent without a session owns nothing");
    let missing = format!("{root}0");
    let error = |args: &[&str], key: &str| {
        let output = house.cli(&[args, &[key, "--as", "root"][..]].concat());
        assert_eq!(output.code, Some(4), "{args:?} {key}: {output:?}");
        let mut error: Value = output.error().clone();
        let text = error["message"].as_str().unwrap_or_default().replace(key, "KEY");
        error["message"] = text.into();
        error
    };
    for args in [&["sessions", "show"][..], &["sessions", "history"]] {
        assert_eq!(error(args, &stranger), error(args, &missing), "{args:?}");
    }
    let sent = |key: &str| house.cli(&["prompt", key, "hello", "--no-wait", "--as", "root"]);
    assert_eq!(
        (sent(&stranger).code, sent(&missing).code, sent(&grandchild).code),
        (Some(4), Some(4), Some(0))
    );
    assert_eq!(house.cli(&["sessions", "list", "--as", "nobody"]).error()["code"], "USAGE");
    until(SOON, "message sent", || house.prompts_received("hello") == 1);
    let prompts = house.history(&grandchild).into_iter().filter(|event| event["type"] == "prompt");
    assert_eq!(prompts.map(|event| event["author"].clone()).collect::<Vec<_>>(), [root.as_str()]);
    house.end();
}
