//! Session tools: agents list, read, prompt and spawn sessions of their gateway, within what they may see and have.

mod foreign;
mod hostile;
mod kin;
mod transcript;

use acp_tests::cli::output_text;
use acp_tests::house::{AGENT, GATEWAY, House, Plan, scripted};
use acp_tests::story::{check_turn, chunks};
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::{World, bin};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

/// Agent without session tools, which the scripted one may spawn.
const OTHER: &str = "other";

/// A house whose scripted agent has the session tools.
fn house() -> House {
    house_of("ask")
}

/// As [`house`], with this permission mode of the agent.
fn house_of(permission: &'static str) -> House {
    let world = World::new();
    let mut agent = scripted(&world, &[], permission);
    let may_spawn = toml::Value::from(vec![AGENT, OTHER]);
    agent
        .settings
        .extend([("session_tools".to_owned(), true.into()), ("spawn_agents".to_owned(), may_spawn)]);
    let other = scripted(&world, &[], "approve-all");
    Plan::default().build_in(world, &BTreeMap::from([(AGENT, agent), (OTHER, other)]))
}

/// Line of a script that calls a tool.
fn tool(name: &str, arguments: &Value) -> String {
    format!("session_tool {name} {arguments}")
}

/// Results of the tool calls of a turn.
fn results(events: &[Value]) -> Vec<Value> {
    let json = |said: &&str| said.split_once(": ").and_then(|(_, json)| serde_json::from_str(json).ok());
    chunks(events).iter().filter_map(json).collect()
}

/// Runs a turn of tool calls, and returns their results.
fn call(house: &House, key: &str, calls: &[(&str, Value)]) -> Vec<Value> {
    let script: Vec<String> = calls.iter().map(|(name, arguments)| tool(name, arguments)).collect();
    let events = house.prompt(key, &script.join("\n"));
    check_turn(&events, "end_turn");
    let results = results(&events);
    assert_eq!(results.len(), calls.len(), "{}", output_text(&events));
    results
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no {name}: {value}"))
}

/// Environment of the session tools, as an agent received it last.
fn environment(house: &House, method: &str) -> BTreeMap<String, String> {
    let received = house.received(method);
    let servers = received.last().map(|message| message["params"]["mcpServers"].clone()).unwrap_or_default();
    let server =
        servers.as_array().into_iter().flatten().find(|server| server["name"] == "acp-host").cloned();
    let env = server.unwrap_or_else(|| panic!("no session tools: {servers}"))["env"].clone();
    env.as_array()
        .into_iter()
        .flatten()
        .map(|variable| (text(variable, "name").to_owned(), text(variable, "value").to_owned()))
        .collect()
}

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;

/// Starts a session of the other agent, uses its answer, and finds the session again.
#[test]
fn agent_spawns_another_agent_and_uses_its_answer() {
    let house = house();
    let key = house.spawn();
    let spawned = call(
        &house,
        &key,
        &[
            (
                "sessions_spawn",
                json!({"agent": OTHER, "task": "say forty two", "mode": "persistent", "wait_s": 60}),
            ),
            ("sessions_list", json!({})),
            ("session_status", json!({})),
        ],
    );
    let [child, list, own] = &spawned[..] else { panic!("{spawned:?}") };
    assert_eq!((&child["state"], &child["text"]), (&json!("completed"), &json!("forty two")), "{child}");
    let child = text(child, "session").to_owned();
    let relations: Vec<(&str, &str)> = list["sessions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| (text(row, "session"), text(row, "relation")))
        .collect();
    assert_eq!(relations, [(child.as_str(), "child"), (key.as_str(), "self")]);
    assert_eq!((text(own, "session"), text(own, "state")), (key.as_str(), "running"));

    // The child has its parent's permission mode, not the wider one of its agent, and no tools of its own.
    let shown = house.verb(&["sessions", "show", &child]);
    assert_eq!((text(&shown, "permission"), text(&shown, "spawned_by")), ("ask", key.as_str()));
    assert_eq!(
        house.received("session/new").last().map(|new| new["params"]["mcpServers"].clone()),
        Some(json!([]))
    );

    let sent = call(
        &house,
        &key,
        &[
            ("sessions_send", json!({"session": child, "text": "say more", "wait_s": 60})),
            ("sessions_history", json!({"session": child})),
            ("sessions_send", json!({"session": key, "text": "say loop"})),
            ("sessions_spawn", json!({"task": "say x", "cwd": "/"})),
            ("sessions_spawn", json!({"task": "say x", "agent": "demo"})),
        ],
    );
    assert_eq!(sent[0]["text"], "more", "{sent:?}");
    let messages: Vec<(&str, &str)> = sent[1]["messages"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| (text(row, "role"), text(row, "text")))
        .collect();
    let heading = format!("Message from the session {key} (agent {AGENT}):\n\n");
    let (first, second) = (format!("{heading}say forty two"), format!("{heading}say more"));
    let end = ("system", "turn ended: end_turn");
    let want = [
        ("user", first.as_str()),
        ("agent", "forty two"),
        end,
        ("user", second.as_str()),
        ("agent", "more"),
        end,
    ];
    assert_eq!(messages, want);
    let codes: Vec<&str> = sent[2..].iter().map(|refused| text(&refused["error"], "code")).collect();
    assert_eq!(codes, ["USAGE", "ACP_CWD_NOT_ALLOWED", "ACP_AGENT_NOT_ALLOWED"]);
    house.check_agent();
    house.end();
}

/// A gateway that is killed while a call waits: the message is sent once, and the call gets its answer.
#[test]
fn call_survives_a_killed_gateway_and_sends_once() {
    let mut house = house();
    let key = house.spawn();
    let spawn = json!({"agent": OTHER, "task": "say ready", "mode": "persistent", "wait_s": 60});
    let child = text(&call(&house, &key, &[("sessions_spawn", spawn)])[0], "session").to_owned();
    let script = "sleep 1500\nsay late";
    let mut turn = house.follow(&[
        "prompt",
        &key,
        &tool("sessions_send", &json!({"session": child, "text": script, "wait_s": 60})),
    ]);
    let received = |house: &House| {
        house.agent_events("prompt").iter().filter(|entry| text(entry, "text").ends_with(script)).count()
    };
    until(SOON, "message received", || received(&house) == 1);
    house.kill_gateway();
    house.start_gateway();
    let events = turn.events_until(LONG, |event| event["type"] == "done");
    assert_eq!(results(&events)[0]["text"], "late", "{}", output_text(&events));
    assert_eq!(received(&house), 1, "sent once");
    let runs: i64 = house
        .world
        .journal(GATEWAY)
        .query_row("SELECT count(*) FROM acp_runs WHERE session_key = ?1", [&child], |row| row.get(0))
        .unwrap_or_default();
    assert_eq!(runs, 2);
    drop(turn.finish(SOON));
    house.end();
}

/// Runs the bridge with this environment outside of any lease, and returns its answer.
fn bridge(env: &BTreeMap<String, String>, input: &str) -> Value {
    let mut child = Command::new(bin("acp-gateway"))
        .arg("mcp")
        .envs(env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("no bridge: {error}"));
    let mut stdin = child.stdin.take().unwrap_or_else(|| panic!("no pipe"));
    stdin.write_all(input.as_bytes()).unwrap_or_else(|error| panic!("input not written: {error}"));
    drop(stdin);
    let output = child.wait_with_output().unwrap_or_else(|error| panic!("no output: {error}"));
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// A token works only from its own lease's processes, and only while that lease lives.
#[test]
fn token_is_refused_from_strangers_and_after_its_lease() {
    let house = house();
    let key = house.spawn();
    let _ = house.prompt(&key, "say hello");
    let first = environment(&house, "session/new");
    let refused = bridge(&first, &format!("{LIST}\n"));
    assert_eq!(refused["error"]["data"]["code"], "PERMISSION_DENIED", "{refused}");
    let oversized = bridge(&first, &format!("{}\n", "x".repeat(5 << 20)));
    assert_eq!(oversized["error"]["code"], -32600, "{oversized}");

    // Another agent that knows the token.
    let thief = house.spawn();
    let command = |env: &BTreeMap<String, String>| {
        let vars: Vec<String> = env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("tool run echo '{LIST}' | {} {} mcp", vars.join(" "), bin("acp-gateway").display())
    };
    let tried = |env: &BTreeMap<String, String>| {
        let events = house.prompt(&thief, &command(env));
        let shown = json!(events).to_string();
        assert!(shown.contains("PERMISSION_DENIED"), "{shown}");
    };
    tried(&first);
    let _ = house.verb(&["sessions", "release", &key]);
    until(LONG, "lease ended", || house.world.living_lease(house.socket(), &key).is_none());
    tried(&first);
    let log = house.gateway_log();
    for reason in ["stranger", "bad_token"] {
        assert!(log.contains(reason), "{reason}: {log}");
    }
    assert!(!log.contains(&first["ACP_HOST_AGENT_TOKEN"]), "no token in the log");

    // The next process of the session has another token, which works.
    let status = call(&house, &key, &[("session_status", json!({}))]);
    assert_eq!(text(&status[0], "session"), key);
    let second = environment(&house, "session/resume");
    assert_ne!(first["ACP_HOST_AGENT_TOKEN"], second["ACP_HOST_AGENT_TOKEN"]);
    house.end();
}

/// The socket may be outside of the state directory, for agents of other users.
#[test]
fn socket_can_be_elsewhere() {
    let world = World::new();
    let mut agent = scripted(&world, &[], "ask");
    agent.settings.insert("session_tools".to_owned(), true.into());
    let socket = world.dir("run").join("agents.sock");
    let toml = format!("[northbound]\nagents_socket = {:?}\n", socket.display().to_string());
    let house = Plan::default().gateway(&toml).build_in(world, &BTreeMap::from([(AGENT, agent)]));
    let key = house.spawn();
    assert_eq!(text(&call(&house, &key, &[("session_status", json!({}))])[0], "relation"), "self");
    assert_eq!(environment(&house, "session/new")["ACP_HOST_AGENT_SOCKET"], socket.display().to_string());
    let mode = std::fs::metadata(&socket).map(|found| found.permissions().mode() & 0o777);
    assert_eq!(mode.ok(), Some(0o666));
    house.end();
}

/// What an agent may not see is answered like what is not there.
#[test]
fn foreign_session_looks_like_a_missing_one() {
    let house = house();
    let (key, foreign) = (house.spawn(), house.spawn());
    let _ = house.prompt(&foreign, "say private");
    let missing = "agent:scripted:acp:0190a000-0000-7000-8000-000000000001";
    let of = |session: &str| {
        call(
            &house,
            &key,
            &[
                ("sessions_history", json!({"session": session})),
                ("sessions_send", json!({"session": session, "text": "say x", "wait_s": 1})),
                ("session_status", json!({"session": session})),
            ],
        )
    };
    let answers = of(&foreign);
    assert_eq!(answers, of(missing));
    assert_eq!(answers, of("no key at all"));
    for answer in &answers {
        assert_eq!(text(&answer["error"], "code"), "NO_SESSION");
    }
    let list = &call(&house, &key, &[("sessions_list", json!({"states": ["idle", "running", "closed"]}))])[0];
    assert_eq!(list["sessions"].as_array().map(Vec::len), Some(1), "{list}");
    assert_eq!(house.prompts_received("say x"), 0);
    house.end();
}

/// A child's permission request is shown to people like any other, and its answer reaches the child.
#[test]
fn permission_request_of_a_child_reaches_a_person() {
    let house = house();
    let key = house.spawn();
    let task = json!({"agent": OTHER, "task": "permission Delete everything", "wait_s": 60});
    let mut turn = house.follow(&["prompt", "--interactive", &key, &tool("sessions_spawn", &task)]);
    let (child, id) = eventually(SOON, "permission pending", || {
        let list = house.verb(&["sessions", "list"]);
        let child = list.as_array()?.iter().find(|row| row["spawned_by"] == json!(key))?;
        let child = text(child, "session_key").to_owned();
        let open = house.verb(&["permissions", "list", &child]);
        let id = text(open.as_array()?.first()?, "permission_id").to_owned();
        Some((child, id))
    });
    let _ = house.verb(&["permissions", "answer", &child, &id, "allow_once"]);
    let events = turn.events_until(LONG, |event| event["type"] == "done");
    assert_eq!(results(&events)[0]["text"], "permission: selected allow_once", "{}", output_text(&events));
    drop(turn.finish(SOON));
    house.end();
}

/// Spawned sessions have a limited number of generations beneath them.
#[test]
fn generations_are_limited() {
    let house = house();
    let key = house.spawn();
    let task = (0..4)
        .fold("say deep".to_owned(), |task, _| tool("sessions_spawn", &json!({"task": task, "wait_s": 60})));
    let events = house.prompt(&key, &task);
    let said = output_text(&events);
    assert!(said.contains("DEPTH_MAX") && !said.contains("deep\""), "{said}");
    let sessions: i64 = house
        .world
        .journal(GATEWAY)
        .query_row("SELECT count(*) FROM acp_sessions", [], |row| row.get(0))
        .unwrap_or_default();
    assert_eq!(sessions, 4);
    house.end();
}
