//! Real agents use the session tools: `docs/manual/transcripts/` is the record. Part of `make test-foreign`.

use crate::transcript::Transcript;
use acp_tests::cli::output_text;
use acp_tests::fake_model::probe::FakeModel;
use acp_tests::foreign;
use acp_tests::house::{GATEWAY, House, Plan};
use acp_tests::northbound::http;
use acp_tests::story::check_turn;
use acp_tests::wait::{SOON, eventually};
use acp_tests::world::World;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Tool of Qwen Code, which offers the tools of MCP servers only after a search.
const SEARCH: &str = "tool_search";
const SEARCH_STEP: &str =
    r#"[[tool tool_search {"query":"select:mcp__acp-host__sessions_list,mcp__acp-host__sessions_spawn"}]] "#;

/// Time limit for opening a session: two agents start on two cores.
const INIT_MS: u64 = 120_000;
/// Time limit for a turn in which another agent starts and works.
const TURN: Duration = Duration::from_secs(400);

/// A session of an agent that may spawn sessions of another one, and a person who watches the list of questions.
struct Story {
    house: House,
    model: FakeModel,
    key: String,
    other: &'static str,
    /// File that the spawned session writes.
    file: PathBuf,
    page: Transcript,
}

impl Story {
    fn begin(name: &'static str, shown: &str, other: &'static str, other_shown: &str) -> Self {
        let world = World::new();
        let model = FakeModel::start(&world);
        let of = |name| foreign::agent(&world, name, model.url()).set("init_ms", INIT_MS);
        let mut agent = of(name);
        let may_spawn = toml::Value::from(vec![other]);
        agent
            .settings
            .extend([("session_tools".to_owned(), true.into()), ("spawn_agents".to_owned(), may_spawn)]);
        let agents = BTreeMap::from([(name, agent), (other, of(other))]);
        let house = Plan::default().build_in(world, &agents);
        let key = house.world.spawn(GATEWAY, name, "work/project");
        let page = Transcript::begin(&house.world.path("work"), shown, other_shown);
        Self { file: house.cwd().join("report.txt"), house, model, key, other, page }
    }

    fn get(&self, path: &str) -> Value {
        http(&self.house.world.path(GATEWAY).join("gateway.sock"), "GET", path, &[], "").json()
    }

    /// Allows once whatever the list of all questions shows. Adds session and title of each.
    fn answer_all(&self, asked: &mut Vec<(String, String)>) {
        for question in self.get("/v1/permissions").as_array().into_iter().flatten() {
            let text = |name: &str| question[name].as_str().unwrap_or_default().to_owned();
            let (session, id) = (text("session_key"), text("permission_id"));
            assert!(session == self.key || !self.file.exists(), "nothing is written before it is allowed");
            let listed = self.house.verb(&["permissions", "list", &session]);
            assert_eq!(listed[0]["permission_id"], id.as_str(), "{listed}");
            let options = question["options"].as_array().into_iter().flatten();
            let once = options
                .filter(|option| option["kind"] == "allow_once")
                .find_map(|it| it["option_id"].as_str());
            let once = once.unwrap_or_else(|| panic!("no allow_once: {question}"));
            let _ = self.house.verb(&["permissions", "answer", &session, &id, once]);
            asked.push((session, text("title")));
        }
    }

    /// Runs a turn in which the model follows the script, and records it. Returns the results of its calls, and the text of the
    /// agent.
    fn turn(&mut self, said: &str, script: &str) -> (Vec<Value>, String) {
        let prompt = format!("{said} {script}");
        let mut turn = self.house.follow(&["prompt", "--interactive", &self.key, &prompt]);
        let reading = std::thread::spawn(move || {
            let events = turn.events_until(TURN, |event| event["type"] == "done");
            drop(turn.finish(SOON));
            events
        });
        let mut asked = Vec::new();
        eventually(TURN, "turn ended", || {
            self.answer_all(&mut asked);
            reading.is_finished().then_some(())
        });
        let events = reading.join().unwrap_or_else(|_| panic!("the turn did not end"));
        check_turn(&events, "end_turn");
        // The log has the beginning of long scripts.
        let of_turn =
            |line: &Value| line["script"].as_str().is_some_and(|logged| logged.starts_with(&script[..100]));
        let lines: Vec<Value> = self.model.log().into_iter().filter(of_turn).collect();
        assert!(lines.len() > 1, "no call: {lines:#?}");
        self.page.prompt(said);
        let mut results = Vec::new();
        for pair in lines.windows(2) {
            let (call, result) = (&pair[0]["calls"][0], &pair[1]["last_result"]);
            let tool = call[0].as_str().unwrap_or_else(|| panic!("no call: {}", pair[0]));
            let result = result.as_str().unwrap_or_default();
            if tool == SEARCH {
                assert!(result.contains("sessions_spawn"), "{result}");
                self.page.call(tool, &call[1], &json!("(names, descriptions and schemas)"));
                continue;
            }
            let result = serde_json::from_str(result).unwrap_or_else(|error| panic!("{error}: {result}"));
            self.page.call(tool, &call[1], &result);
            results.push(result);
        }
        self.page.asked(&asked);
        let answer = output_text(&events);
        self.page.answer(answer.trim());
        (results, answer)
    }
}

/// Lists, spawns, waits, and uses the answer; then a child that asks before it writes.
fn uses_the_tools(name: &'static str, shown: &str, other: &'static str, other_shown: &str) {
    let mut story = Story::begin(name, shown, other, other_shown);
    // The task is a script for the model of the other agent, which must not see it as its own.
    let task = |text: &str| text.replace("[[", r"\u005b\u005b").replace("]]", r"\u005d\u005d");
    let search = if name == "qwen" { SEARCH_STEP } else { "" };
    let script = format!(
        r#"{search}[[tool sessions_list {{}}]] [[tool sessions_spawn {{"agent":"{other}","task":"{}","wait_s":300}}]] [[say The other agent answers: ]] [[repeat text]]"#,
        task("What is six times seven? [[say forty two]]")
    );
    let (results, answer) = story.turn("What does the other agent think is six times seven?", &script);
    assert_eq!(results[0]["sessions"][0]["relation"], "self", "{results:?}");
    assert_eq!((&results[1]["state"], &results[1]["text"]), (&json!("completed"), &json!("forty two")));
    assert!(answer.contains("The other agent answers: forty two"), "{answer}");

    let work =
        format!("Write the report. [[write {} forty two]] [[say It is written.]]", story.file.display());
    let script = format!(
        r#"[[tool sessions_spawn {{"agent":"{other}","mode":"persistent","label":"report","task":"{}","wait_s":300}}]] [[tool session_status {{"session":"$session"}}]] [[tool sessions_send {{"session":"$session","text":"{}","wait_s":300}}]] [[tool sessions_history {{"session":"$session"}}]] [[say The other agent says: ]] [[repeat text]]"#,
        task(&work),
        task("How long is it? [[say Nine letters.]]")
    );
    let (results, answer) =
        story.turn("Let the other agent write a report, and ask it for the length.", &script);
    assert!(answer.contains("The other agent says: Nine letters."), "{answer}");
    assert_eq!(std::fs::read_to_string(&story.file).ok().as_deref(), Some("forty two"));
    let roles: Vec<&str> = results[3]["messages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|message| message["role"].as_str())
        .collect();
    assert_eq!(roles, ["user", "system", "agent", "system", "user", "agent", "system"], "{results:?}");

    let list = story.house.verb(&["sessions", "list", "--all"]);
    let children: Vec<&Value> =
        list.as_array().into_iter().flatten().filter(|row| row["spawned_by"] == json!(story.key)).collect();
    let agents: Vec<&Value> = children.iter().map(|row| &row["agent"]).collect();
    assert_eq!(agents, [&json!(story.other); 2], "{list}");
    story.page.check(&format!("docs/manual/transcripts/session-tools-{name}.md"));
    let Story { house, model, .. } = story;
    drop(model);
    house.end();
}

#[test]
#[ignore = "needs installed agents: make test-foreign"]
fn qwen_code_spawns_opencode_and_uses_its_answer() {
    uses_the_tools("qwen", "Qwen Code", "opencode", "OpenCode");
}

#[test]
#[ignore = "needs installed agents: make test-foreign"]
fn opencode_spawns_qwen_code_and_uses_its_answer() {
    uses_the_tools("opencode", "OpenCode", "qwen", "Qwen Code");
}
