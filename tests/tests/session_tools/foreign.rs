//! Real agents use the session tools. Part of `make test-foreign`.

use acp_tests::cli::output_text;
use acp_tests::fake_model::probe::FakeModel;
use acp_tests::foreign;
use acp_tests::house::{GATEWAY, Plan};
use acp_tests::story::check_turn;
use acp_tests::world::{World, repository};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The agent lists its sessions, spawns one of the other agent, waits for its answer and repeats it.
fn uses_the_tools(name: &'static str, other: &'static str) {
    let world = World::new();
    let model = FakeModel::start(&world);
    let of = |name| {
        let mut agent = foreign::agent(&world, name, model.url());
        agent.permission = "approve-all";
        agent
    };
    let mut agent = of(name);
    let may_spawn = toml::Value::from(vec![other]);
    agent
        .settings
        .extend([("session_tools".to_owned(), true.into()), ("spawn_agents".to_owned(), may_spawn)]);
    let agents = BTreeMap::from([(name, agent), (other, of(other))]);
    let house = Plan::default().build_in(world, &agents);
    let key = house.world.spawn(GATEWAY, name, "work/project");
    // The task is a script for the model of the other agent, which must not see it as its own.
    let task = r"\u005b\u005bsay forty two\u005d\u005d";
    let script = format!(
        r#"[[tool sessions_list {{}}]] [[tool sessions_spawn {{"agent":"{other}","task":"{task}","wait_s":100}}]] [[say The answer is: ]] [[repeat]]"#
    );
    let events = house.prompt(&key, &script);
    check_turn(&events, "end_turn");
    let said = output_text(&events);
    assert!(said.contains("The answer is: ") && said.contains("forty two"), "{said}");
    let list = house.verb(&["sessions", "list", "--all"]);
    let spawned = |row: &&Value| row["spawned_by"] == json!(key);
    let child = list.as_array().and_then(|rows| rows.iter().find(spawned)).cloned().unwrap_or_default();
    assert_eq!(child["agent"], other, "{list}");
    if std::env::var_os("ACP_WRITE_TRANSCRIPTS").is_some() {
        let of = |key: &str| house.plain(&["sessions", "export", key, "--format", "md"]).output();
        let text = |key: &str| {
            of(key).map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default()
        };
        let child = child["session_key"].as_str().unwrap_or_default();
        let page = format!("{}\n{}", text(&key), text(child));
        let path = repository().join(format!("docs/manual/transcripts/session-tools-{name}.md"));
        std::fs::write(path, page).unwrap_or_else(|error| panic!("transcript not written: {error}"));
    }
    drop(model);
    house.end();
}

#[test]
#[ignore = "needs installed agents: make test-foreign"]
fn qwen_code_spawns_opencode_and_uses_its_answer() {
    uses_the_tools("qwen", "opencode");
}

#[test]
#[ignore = "needs installed agents: make test-foreign"]
fn opencode_spawns_qwen_code_and_uses_its_answer() {
    uses_the_tools("opencode", "qwen");
}
