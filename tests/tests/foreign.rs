//! Real agents through the gateway: the whole lifecycle of a session with each. Run by `make test-foreign`, which
//! installs them first; a missing agent is a failure.

use acp_tests::cli::{RunningCommand, output_text, stop_reason};
use acp_tests::fake_model::probe::FakeModel;
use acp_tests::foreign;
use acp_tests::house::{GATEWAY, House, Plan};
use acp_tests::lease::Lease;
use acp_tests::processes;
use acp_tests::stdio::{self, Stdio};
use acp_tests::story::check_turn;
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::{Agent, World, bin};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;

/// One session of the agent.
struct Session<'a> {
    house: &'a House,
    agent: &'static str,
    key: String,
}

impl<'a> Session<'a> {
    fn spawn(house: &'a House, agent: &'static str) -> Self {
        Self { house, agent, key: house.world.spawn(GATEWAY, agent, "work/project") }
    }

    fn follow(&self, text: &str) -> RunningCommand {
        self.house.follow(&["prompt", "--interactive", &self.key, text])
    }

    fn prompt(&self, text: &str) -> Vec<Value> {
        self.house.prompt(&self.key, text)
    }

    fn verb(&self, args: &[&str]) -> Value {
        self.house.verb(args)
    }

    fn lease(&self) -> Lease {
        let lease = self.house.world.living_lease(self.house.socket(), &self.key);
        lease.unwrap_or_else(|| panic!("no living lease of {}", self.key))
    }

    /// Waits for the one open permission and gives the agent's own "allow once".
    fn allow_once(&self) {
        let open = eventually(SOON, "permission pending", || {
            let list = self.verb(&["permissions", "list", &self.key]);
            list.as_array().filter(|list| !list.is_empty()).cloned()
        });
        assert_eq!(open.len(), 1, "{open:?}");
        let permission = &open[0];
        let options = permission["options"].as_array().unwrap_or_else(|| panic!("no options: {permission}"));
        let once = options.iter().find(|option| option["kind"] == "allow_once");
        let option = once.and_then(|option| option["option_id"].as_str());
        let option = option.unwrap_or_else(|| panic!("no allow_once: {permission}"));
        let id = permission["permission_id"].as_str().unwrap_or_else(|| panic!("no id: {permission}"));
        let _ = self.verb(&["permissions", "answer", &self.key, id, option]);
        let left = self.verb(&["permissions", "list", &self.key]);
        assert_eq!(left, json!([]), "an answered permission is not open any more");
    }

    fn kill_agent(&self) -> Lease {
        let lease = self.lease();
        lease.kill_adapter();
        until(LONG, "process tree gone", || lease.processes().is_empty());
        self.house.wait_for_lease_end(&lease);
        lease
    }
}

fn words(count: u32) -> String {
    (1..=count).map(|n| format!("w{n} ")).collect()
}

/// A streamed answer, and a tool call that asks before it writes.
fn streams_and_writes(session: &Session<'_>, model: &FakeModel) {
    let events = session.prompt("[[chunks 50 5ms]]");
    check_turn(&events, "end_turn");
    assert_eq!(output_text(&events), words(50));
    let pieces = events.iter().filter(|e| e["type"] == "text_delta" && e["stream"] == "output").count();
    // Vibe joins chunks that follow each other quickly.
    let least = if session.agent == "vibe" { 3 } else { 10 };
    assert!(pieces >= least, "it streams: {pieces} pieces");

    let file = session.house.cwd().join("answer.txt");
    let script = format!("[[write {} forty two]] [[say written]]", file.display());
    let mut turn = session.follow(&script);
    let mut events = turn.events_until(LONG, |event| event["type"] == "permission");
    assert!(!file.exists(), "nothing is written before it is allowed");
    session.allow_once();
    events.extend(turn.events_until(LONG, |event| event["type"] == "done"));
    assert_eq!(turn.finish(SOON).ok().lines(), [] as [Value; 0]);
    check_turn(&events, "end_turn");
    // Gemini announces a tool call with its permission request only, and then updates it.
    let told = |event: &Value| event["type"] == "tool_call" || event["type"] == "tool_call_update";
    assert!(events.iter().any(told), "{events:#?}");
    let asked = events.iter().filter(|event| event["type"] == "permission").count();
    assert_eq!(asked, 1, "asked exactly once, by the agent or by the host: {events:#?}");
    assert_eq!(output_text(&events).trim(), "written");
    assert_eq!(fs::read_to_string(&file).ok().as_deref(), Some("forty two"));
    let asked = model.request_with_script(&script).unwrap_or_default();
    assert_eq!(asked["tool_results"], 1, "the model saw the tool's result: {asked}");
}

/// Under `deny-all` neither agent nor host writes, and no request is shown.
fn denies(session: &Session<'_>) {
    let _ = session.verb(&["sessions", "set", &session.key, "--permission", "deny-all"]);
    let file = session.house.cwd().join("denied.txt");
    let script = format!("[[write {} no]] [[say over]]", file.display());
    let events = session.follow(&script).finish(LONG).lines();
    assert!(matches!(stop_reason(&events).as_deref(), Some("end_turn" | "cancelled")), "{events:#?}");
    assert!(!file.exists(), "deny-all writes nothing: {events:#?}");
    let asked = events.iter().filter(|event| event["type"] == "permission");
    let settled =
        events.iter().filter(|event| event["type"] == "permission_settled" && event["without"] == "policy");
    assert_eq!(asked.count(), settled.count(), "nobody is asked: {events:#?}");
    let _ = session.verb(&["sessions", "set", &session.key, "--permission", "ask"]);
}

/// Cancels a turn during its stream; the agent process stays. Returns the text until then.
fn cancels(session: &Session<'_>, model: &FakeModel) -> String {
    let lease = session.lease();
    let before =
        processes::read(lease.adapter_pid()).unwrap_or_else(|| panic!("the agent is gone: {lease:?}"));
    let script = "[[chunks 5000 20ms]]";
    let mut turn = session.follow(script);
    let mut events =
        turn.events_until(LONG, |event| event["text"].as_str().is_some_and(|text| text.contains("w5 ")));
    let _ = session.verb(&["sessions", "cancel", &session.key]);
    events.extend(turn.events_until(LONG, |event| event["type"] == "done"));
    assert_eq!(turn.finish(SOON).code, Some(0), "a cancelled turn is no failure");
    check_turn(&events, "cancelled");
    let cancelled = output_text(&events);
    assert!(words(5000).starts_with(&cancelled), "{cancelled}");
    let aborted = || model.request_with_script(script).is_some_and(|line| line["state"] == "aborted");
    until(SOON, "the agent has hung up on the model", aborted);

    let after = session.lease();
    let (id, pid) = (lease.id(), lease.adapter_pid());
    assert_eq!((after.id(), after.adapter_pid()), (id, pid), "the same lease and pid");
    let now = processes::read(after.adapter_pid());
    assert_eq!(now.map(|process| process.start_ticks), Some(before.start_ticks), "the same process");
    let events = session.prompt("[[say still here]]");
    check_turn(&events, "end_turn");
    assert_eq!(output_text(&events).trim(), "still here");
    assert_eq!(session.lease().adapter_pid(), pid, "the second turn runs in the same process");
    cancelled
}

/// A killed agent is started by the next prompt and remembers the conversation.
fn resumes(session: &Session<'_>, model: &FakeModel, cancelled: &str) {
    let killed = session.kill_agent();
    let script = "[[say resumed]]";
    let events = session.prompt(script);
    check_turn(&events, "end_turn");
    assert_eq!(output_text(&events).trim(), "resumed", "what was replayed is not said again");
    let lease = session.lease();
    assert_ne!(lease.id(), killed.id(), "another process is another lease");
    assert!(processes::is_alive(lease.adapter_pid()));
    let before = model.request_with_script(script).map(|line| line["scripts_before"].clone());
    assert!(before.as_ref().and_then(Value::as_u64).is_some_and(|n| n >= 3), "it remembers: {before:?}");
    let history = output_text(&session.house.history(&session.key));
    let want = [words(50).as_str(), "written", cancelled, "still here", "resumed"].concat();
    assert_eq!(history, want, "everything is in the history once, in order");
}

/// A closed session leaves nothing alive.
fn closes(session: &Session<'_>) {
    let lease = session.lease();
    assert!(!lease.processes().is_empty());
    let _ = session.verb(&["sessions", "close", &session.key]);
    until(LONG, "lease closed", || session.house.lease_by_id(lease.id()).state() == "closed");
    for lease in session.house.leases() {
        assert_eq!(lease.processes(), [], "a process outlives {lease:?}");
    }
    let refused = session.house.cli(&["prompt", &session.key, "hello?"]);
    assert_eq!((refused.code, refused.error_code().as_str()), (Some(1), "ACP_SESSION_CLOSED"));
}

fn whole_life(name: &'static str) {
    let world = World::new();
    let model = FakeModel::start(&world);
    let agent = foreign::agent(&world, name, model.url());
    let house = Plan::default().build_in(world, &BTreeMap::from([(name, agent)]));
    let session = Session::spawn(&house, name);
    streams_and_writes(&session, &model);
    let cancelled = cancels(&session, &model);
    // Gemini overwrites the record of a conversation that is loaded within a minute of its begin.
    if name != "gemini" {
        resumes(&session, &model, &cancelled);
    }
    closes(&session);
    let denied = Session::spawn(&house, name);
    denies(&denied);
    let shown = denied.verb(&["sessions", "show", &denied.key]);
    assert_eq!(shown["asking"], "ensured", "the preset ensures that it asks: {shown}");
    closes(&denied);
    drop(model);
    house.end();
}

#[test]
#[ignore = "needs installed agents: make test-foreign"]
fn qwen_code_through_the_gateway() {
    whole_life("qwen");
}

#[test]
#[ignore = "needs installed agents: make test-foreign"]
fn opencode_through_the_gateway() {
    whole_life("opencode");
}

/// Whole lifecycle with an agent of the nightly set; skipped if it is not installed.
fn nightly_life(name: &'static str) {
    match foreign::missing_reason(name) {
        Some(reason) => eprintln!("SKIPPED: {name} is not installed: {}", reason.trim()),
        None => whole_life(name),
    }
}

#[test]
#[ignore = "needs installed agents: make test-foreign-nightly"]
fn nightly_gemini_cli_through_the_gateway() {
    nightly_life("gemini");
}

#[test]
#[ignore = "needs installed agents: make test-foreign-nightly"]
fn nightly_mistral_vibe_through_the_gateway() {
    nightly_life("vibe");
}

/// Without resume and load, every prompt reports the lost conversation until a new one is requested.
#[test]
#[ignore = "part of make test-foreign"]
fn agent_without_resume_is_never_replaced_silently() {
    let fake_agent = bin("fake-agent");
    let agent = Agent::new(&[&fake_agent.to_string_lossy(), "--no-load", "--no-resume"]);
    let house = Plan::default().build_in(World::new(), &BTreeMap::from([("forgetful", agent)]));
    let session = Session::spawn(&house, "forgetful");
    check_turn(&session.prompt("hello"), "end_turn");
    let killed = session.kill_agent();
    for _ in 0..2 {
        let refused = house.cli(&["prompt", &session.key, "do you remember?"]);
        assert_eq!((refused.code, refused.error_code().as_str()), (Some(1), "ACP_RESUME_UNAVAILABLE"));
        let living = house.world.living_lease(house.socket(), &session.key);
        assert!(living.is_none_or(|lease| lease.id() != killed.id()), "nothing was revived");
    }
    let fresh = house.cli(&["prompt", &session.key, "then begin again", "--new-conversation"]);
    check_turn(&fresh.ok().lines(), "end_turn");
    check_turn(&session.prompt("and go on"), "end_turn");
    closes(&session);
    house.end();
}

/// Same agents without the gateway: a failure here is a change of the agent.
fn speaks_acp(name: &'static str) {
    let world = World::new();
    let model = FakeModel::start(&world);
    // As the gateway's preset for OpenCode; by default it writes without asking.
    let asking = r#"{"edit":"ask","bash":"ask","webfetch":"ask"}"#;
    let agent = foreign::agent(&world, name, model.url()).env("OPENCODE_PERMISSION", asking);
    let cwd = world.dir("work/project");
    let mut pipe = Stdio::start(&mut foreign::command(&world, &agent, &cwd), LONG);

    let fs_abilities = json!({"readTextFile": false, "writeTextFile": false});
    let hello = json!({"protocolVersion": 1, "clientCapabilities": {"fs": fs_abilities, "terminal": false}});
    let answer = pipe.call("initialize", &hello);
    assert_eq!(answer["protocolVersion"], 1);
    assert!(answer["agentCapabilities"]["sessionCapabilities"]["resume"].is_object(), "{answer}");
    let session = pipe.call("session/new", &json!({"cwd": cwd, "mcpServers": []}));
    let id = session["sessionId"].clone();
    if name == "qwen" {
        // By default a model decides; mode `default` asks the person.
        let _ = pipe.call("session/set_mode", &json!({"sessionId": id, "modeId": "default"}));
    }
    let prompt = |text: &str| json!({"sessionId": id, "prompt": [{"type": "text", "text": text}]});

    let turn = pipe.request("session/prompt", &prompt("[[chunks 20 5ms]]"));
    let (result, updates) = pipe.result(turn, &mut |_| None);
    assert_eq!(result["stopReason"], "end_turn");
    assert_eq!(stdio::message_text(&updates), words(20));

    let file = cwd.join("answer.txt");
    let mut asked = 0;
    let turn = pipe.request("session/prompt", &prompt(&format!("[[write {} yes]]", file.display())));
    let (result, _) = pipe.result(turn, &mut |request| {
        if request["method"] != "session/request_permission" {
            return None;
        }
        asked += 1;
        assert!(!file.exists(), "nothing is written before it is allowed");
        let options = request["params"]["options"].as_array()?;
        let once = options.iter().find(|option| option["kind"] == "allow_once")?;
        Some(json!({"outcome": {"outcome": "selected", "optionId": once["optionId"]}}))
    });
    assert_eq!((result["stopReason"].as_str(), asked), (Some("end_turn"), 1));
    assert_eq!(fs::read_to_string(&file).ok().as_deref(), Some("yes"));

    let turn = pipe.request("session/prompt", &prompt("[[chunks 5000 20ms]]"));
    while stdio::message_text(&[pipe.next_message()]).is_empty() {}
    pipe.notify("session/cancel", &json!({"sessionId": id}));
    let (result, _) = pipe.result(turn, &mut |_| None);
    assert_eq!(result["stopReason"], "cancelled");
    assert!(processes::is_alive(pipe.pid()));
}

#[test]
#[ignore = "needs installed agents: make test-foreign"]
fn qwen_code_on_a_raw_pipe() {
    speaks_acp("qwen");
}

#[test]
#[ignore = "needs installed agents: make test-foreign"]
fn opencode_on_a_raw_pipe() {
    speaks_acp("opencode");
}
