//! What the configuration lets an agent see of other sessions, and how it is told the end of those that it spawned.

use super::{OTHER, call, house, results, text, tool};
use acp_tests::cli::output_text;
use acp_tests::house::{AGENT, GATEWAY, House, Plan, scripted};
use acp_tests::northbound::http;
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::World;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// States of all completions, by run.
fn completion_states(house: &House) -> Vec<String> {
    let journal = house.world.journal(GATEWAY);
    let mut rows = journal
        .prepare("SELECT state FROM acp_completions ORDER BY rowid")
        .unwrap_or_else(|error| panic!("no completions: {error}"));
    let states = rows.query_map([], |row| row.get(0)).and_then(Iterator::collect);
    states.unwrap_or_else(|error| panic!("completions unreadable: {error}"))
}

/// Texts of a session's prompts about the end of another one.
fn told(house: &House, key: &str, of: &str) -> Vec<String> {
    let start = format!("Session {of} ");
    let prompts = house.history(key).into_iter().filter(|event| event["type"] == "prompt");
    let texts = prompts.filter_map(|event| event["text"].as_str().map(str::to_owned));
    texts.filter(|text| text.starts_with(&start)).collect()
}

/// A call that waits gets the end of the spawned session, also of a gateway that was killed meanwhile, and no prompt follows. A
/// call that does not wait gets a prompt afterwards.
#[test]
fn end_of_a_spawned_session_is_told_once() {
    let mut house = house();
    let key = house.spawn();
    let script = "sleep 1000\nsay waited";
    let task = json!({"agent": OTHER, "task": script, "mode": "persistent", "wait_s": 60});
    let mut turn = house.follow(&["prompt", &key, &tool("sessions_spawn", &task)]);
    until(SOON, "task received", || {
        house.agent_events("prompt").iter().any(|entry| text(entry, "text").ends_with(script))
    });
    house.kill_gateway();
    house.start_gateway();
    let events = turn.events_until(LONG, |event| event["type"] == "done");
    drop(turn.finish(SOON));
    let waited = results(&events).into_iter().next().unwrap_or_default();
    assert_eq!(waited["text"], "waited", "{}", output_text(&events));

    let later = json!({"agent": OTHER, "task": "say later", "mode": "persistent"});
    let child = text(&call(&house, &key, &[("sessions_spawn", later)])[0], "session").to_owned();
    until(LONG, "end told", || !told(&house, &key, &child).is_empty());
    let [prompt] = &told(&house, &key, &child)[..] else { panic!("told more than once") };
    assert!(prompt.ends_with("\n\nlater"), "{prompt}");
    until(LONG, "prompt answered", || house.prompts_received(prompt) == 1);
    assert_eq!(told(&house, &key, text(&waited, "session")), [] as [String; 0]);
    assert_eq!(completion_states(&house), ["taken", "delivered"]);

    // The permission mode of a turn limits the prompt that its spawned session causes.
    let limited = json!({"agent": OTHER, "task": "say limited", "mode": "persistent"});
    let body = json!({"text": tool("sessions_spawn", &limited), "permission": "deny-all"});
    let socket = house.world.path(GATEWAY).join("gateway.sock");
    let accepted = http(&socket, "POST", &format!("/v1/sessions/{key}/prompt"), &[], &body.to_string());
    assert!(accepted.status < 300, "{accepted:?}");
    let mode = eventually(LONG, "end told", || {
        let sql = "SELECT permission FROM acp_runs WHERE session_key = ?1 AND prompt LIKE 'Session %limited'";
        house.world.journal(GATEWAY).query_row(sql, [&key], |row| row.get::<_, Option<String>>(0)).ok()
    });
    assert_eq!(mode.as_deref(), Some("deny-all"));
    until(LONG, "at rest", || house.verb(&["sessions", "show", &key])["state"] == "idle");
    house.end();
}

/// With `all`, agents of an allowed pair see each other's sessions. One in a sandbox sees its own tree, and spawns nothing.
#[test]
fn configuration_decides_what_agents_see_and_spawn() {
    let world = World::new();
    let agent = |settings: &[(&str, toml::Value)]| {
        let mut agent = scripted(&world, &[], "ask");
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        agent.settings.extend(settings);
        agent
    };
    let free = agent(&[("session_tools", true.into())]);
    let boxed = agent(&[("session_tools", true.into()), ("sandboxed", true.into())]);
    let toml =
        "[tools.sessions]\nvisibility = \"all\"\n[tools.agent_to_agent]\nenabled = true\nallow = [\"*\"]\n";
    let agents = BTreeMap::from([(AGENT, free), (OTHER, boxed)]);
    let house = Plan::default().gateway(toml).build_in(world, &agents);
    let (key, boxed) = (house.spawn(), house.world.spawn(GATEWAY, OTHER, "work/project"));
    let listed = |key: &str| {
        let list = call(&house, key, &[("sessions_list", json!({}))]).remove(0);
        let rows = list["sessions"].as_array().cloned().unwrap_or_default();
        rows.iter().map(|row| text(row, "session").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&key), [boxed.clone(), key.clone()]);
    assert_eq!(listed(&boxed), std::slice::from_ref(&boxed));
    let error = |result: &Value| text(&result["error"], "code").to_owned();
    let calls = [
        ("session_status", json!({"session": key})),
        ("sessions_spawn", json!({"task": "say x"})),
        ("session_status", json!({"session": boxed})),
    ];
    let answers = call(&house, &boxed, &calls);
    assert_eq!(
        (error(&answers[0]), error(&answers[1])),
        ("NO_SESSION".to_owned(), "ACP_NOT_OWNER".to_owned())
    );
    assert_eq!(text(&answers[2], "relation"), "self");
    let sent = json!({"session": boxed, "text": "say welcome", "wait_s": 60});
    assert_eq!(call(&house, &key, &[("sessions_send", sent)])[0]["text"], "welcome");
    house.end();
}
