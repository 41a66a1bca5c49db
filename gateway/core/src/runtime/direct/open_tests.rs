//! From a new process to an open session, and every way it can end otherwise.

use super::tests::{ensure, events, sent};
use super::*;
use crate::agent_settings::{AgentSettings, Choices, ConfigOption, SettingsReport};
use crate::backend::AskGuarantee;
use acp_shared::codes::Code;
use serde_json::{Value, json};

pub(super) fn reply(
    link: &mut DirectMachine,
    what: &str,
    input: &StartSessionParams,
    body: &Value,
) -> Vec<BackendStep> {
    let mut line = body.clone();
    line["id"] = format!("{what}:{}", input.lease_id).into();
    link.hear(&line)
}

pub(super) fn begun(input: &StartSessionParams, initialize: Value) -> (DirectMachine, Vec<BackendStep>) {
    let mut link = DirectMachine::open(None).unwrap();
    link.start_session(input);
    let steps = reply(&mut link, "init", input, &json!({ "result": initialize }));
    (link, steps)
}

pub(super) fn failure(steps: &[BackendStep]) -> &crate::failure::Failure {
    let mut failures = steps.iter().filter_map(|step| match step {
        BackendStep::Failed(failure) => Some(failure),
        _ => None,
    });
    failures.next().unwrap_or_else(|| panic!("{steps:?}"))
}

#[test]
fn the_handshake_of_a_new_conversation() {
    let input = StartSessionParams { offer_terminal: false, ..ensure() };
    let mut link = DirectMachine::open(None).unwrap();
    let (hello, kind) = sent(&link.start_session(&input)).remove(0);
    assert_eq!(kind, InputKind::Control);
    assert_eq!(hello["id"], format!("init:{}", input.lease_id));
    assert_eq!(hello["method"], "initialize");
    let params = &hello["params"];
    assert_eq!(params["protocolVersion"], 1);
    assert_eq!(params["clientInfo"]["name"], "acp-host");
    assert_eq!(params["clientInfo"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(params["clientCapabilities"]["fs"], json!({ "readTextFile": true, "writeTextFile": true }));
    assert_eq!(params["clientCapabilities"]["terminal"], false);
    let initialize = json!({ "protocolVersion": 1, "agentInfo": { "name": "a", "version": "1" },
        "agentCapabilities": { "loadSession": true } });
    let steps = reply(&mut link, "init", &input, &json!({ "result": initialize }));
    let (new, _) = sent(&steps).remove(0);
    assert_eq!(new["method"], "session/new");
    assert_eq!(new["params"], json!({ "cwd": "/w", "mcpServers": [] }));
    let steps = reply(&mut link, "new", &input, &json!({ "result": { "sessionId": "s9" } }));
    let [
        BackendStep::SettingsReported(_),
        BackendStep::AskGuarantee(AskGuarantee::Unknown),
        BackendStep::Ready { agent_session_id, resumable: true, agent_info },
    ] = &steps[..]
    else {
        panic!("{steps:?}")
    };
    assert_eq!(agent_session_id, "s9");
    assert_eq!(serde_json::from_str::<Value>(agent_info).unwrap(), initialize);
    assert!(link.save().len() < 1_000, "{}", link.save());
}

#[test]
fn the_agents_version_decides() {
    for (version, ok) in
        [(json!(1), true), (Value::Null, false), (json!(2), false), (json!(99), false), (json!("1"), false)]
    {
        let (_, steps) = begun(&ensure(), json!({ "protocolVersion": version }));
        assert_eq!(steps.iter().any(|step| matches!(step, BackendStep::Send { .. })), ok, "{version}");
        if !ok {
            assert_eq!(failure(&steps).detail_code.as_deref(), Some("PROTOCOL_VERSION"));
        }
    }
    assert_eq!(sent(&begun(&ensure(), json!({})).1).len(), 1, "without a reported version, 1 is assumed");
}

#[test]
fn an_old_conversation_is_resumed_rather_than_loaded_and_never_replaced() {
    let resume = json!({ "sessionCapabilities": { "resume": {} } });
    let load = json!({ "loadSession": true });
    let both = json!({ "loadSession": true, "sessionCapabilities": { "resume": {} } });
    let input = StartSessionParams { resume: Some("old".to_owned()), ..ensure() };
    for (abilities, want) in [(&resume, "session/resume"), (&both, "session/resume"), (&load, "session/load")]
    {
        let (mut link, steps) =
            begun(&input, json!({ "protocolVersion": 1, "agentCapabilities": abilities }));
        let (request, _) = sent(&steps).remove(0);
        assert_eq!(request["method"], want);
        assert_eq!(request["params"], json!({ "sessionId": "old", "cwd": "/w", "mcpServers": [] }));
        let what = want.trim_start_matches("session/");
        let steps = reply(&mut link, what, &input, &json!({ "result": {} }));
        assert!(
            matches!(&steps[..], [_, BackendStep::Ready { agent_session_id, .. }] if agent_session_id == "old")
        );
    }
    for abilities in [json!({}), json!({ "loadSession": false, "sessionCapabilities": { "resume": false } })]
    {
        let (_, steps) = begun(&input, json!({ "protocolVersion": 1, "agentCapabilities": abilities }));
        assert_eq!(failure(&steps).code, Code::ResumeUnavailable);
        assert!(sent(&steps).is_empty());
    }
}

#[test]
fn unknown_sessions_in_every_agents_words_are_one_refusal() {
    let input = StartSessionParams { resume: Some("old".to_owned()), ..ensure() };
    for code in [-32002, -32602, -32603, 404, -32000] {
        let want = if code == -32000 { Code::AuthRequired } else { Code::ResumeUnavailable };
        let error = json!({ "code": code, "message": "Session not found" });
        for (what, abilities) in [
            ("load", json!({ "loadSession": true })),
            ("resume", json!({ "sessionCapabilities": { "resume": {} } })),
        ] {
            let (mut link, _) =
                begun(&input, json!({ "protocolVersion": 1, "agentCapabilities": abilities }));
            let steps = reply(&mut link, what, &input, &json!({ "error": error }));
            assert_eq!(failure(&steps).code, want, "{what} {code}");
            assert_eq!(failure(&steps).acp.as_deref(), Some(&error));
            assert!(sent(&steps).is_empty(), "no new conversation is created silently");
            // What it says afterwards has no effect.
            assert!(reply(&mut link, what, &input, &json!({ "result": {} })).is_empty());
        }
    }
    // An agent that advertises resume and only knows how to load.
    let both = json!({ "loadSession": true, "sessionCapabilities": { "resume": {} } });
    let (mut link, _) = begun(&input, json!({ "protocolVersion": 1, "agentCapabilities": both }));
    let steps = reply(&mut link, "resume", &input, &json!({ "error": { "code": -32601 } }));
    assert_eq!(sent(&steps)[0].0["method"], "session/load");
    let steps = reply(&mut link, "load", &input, &json!({ "error": { "code": -32002 } }));
    assert_eq!(failure(&steps).code, Code::ResumeUnavailable);
}

#[test]
fn a_replay_is_not_news_until_the_first_prompt() {
    let input = StartSessionParams { resume: Some("old".to_owned()), ..ensure() };
    let (mut link, _) = begun(&input, json!({ "agentCapabilities": { "loadSession": true } }));
    let update = |link: &mut DirectMachine, variant: &str| {
        let line = json!({ "method": "session/update", "params": { "sessionId": "old", "update": { "sessionUpdate": variant } } });
        // A gateway killed in mid-load knows it too (H10).
        *link = DirectMachine::open(Some(&link.save())).unwrap();
        events(&link.stream(0, line.to_string().as_bytes())).remove(0)
    };
    let chunks = ["user_message_chunk", "agent_message_chunk", "agent_thought_chunk"];
    let others = ["tool_call", "tool_call_update", "plan", "notice", "from_the_future"];
    for variant in chunks.into_iter().chain(others) {
        assert_eq!(update(&mut link, variant).0, EventKind::Replay, "{variant}");
    }
    assert_eq!(update(&mut link, "available_commands_update").0, EventKind::Update);
    reply(&mut link, "load", &input, &json!({ "result": null }));
    let late = update(&mut link, "agent_message_chunk").0;
    assert_eq!(late, EventKind::Replay, "some agents replay after the response");
    let run_id = RunId::mint();
    link.submit_text(run_id, "hi");
    let (kind, run, _) = update(&mut link, "agent_message_chunk");
    assert_eq!((kind, run), (EventKind::AgentMessage, Some(run_id)));
    // A new conversation has nothing to replay: a greeting is shown.
    let input = ensure();
    let (mut link, _) = begun(&input, json!({}));
    reply(&mut link, "new", &input, &json!({ "result": { "sessionId": "old" } }));
    assert_eq!(update(&mut link, "agent_message_chunk").0, EventKind::AgentMessage);
}

#[test]
fn credentials_are_asked_for_in_the_agents_own_words() {
    let methods = json!([
        { "id": "login", "name": "Log in with X", "description": "Opens a browser",
          "_meta": { "terminal-auth": { "command": "x", "args": ["login", "--device"], "label": "X" } } },
        { "id": "key", "name": "API key" },
        { "id": "tui", "name": "Terminal", "type": "terminal", "args": ["--setup"] },
    ]);
    for error in [
        json!({ "code": -32000, "message": "Authentication required" }),
        json!({ "code": -32603, "message": "Error: authentication required, see docs" }),
    ] {
        let input = ensure();
        let (mut link, _) = begun(&input, json!({ "protocolVersion": 1, "authMethods": methods }));
        let steps = reply(&mut link, "new", &input, &json!({ "error": error }));
        let failure = failure(&steps);
        let detail = failure.detail_code.as_deref();
        assert_eq!((failure.code, detail), (Code::AuthRequired, Some("AUTH_REQUIRED")));
        for words in ["Log in with X: Opens a browser (run: x login --device)", "- API key", "with: --setup"]
        {
            assert!(failure.message.contains(words), "{words}: {}", failure.message);
        }
    }
    // Other errors are not about credentials, and methods alone mean nothing.
    let input = ensure();
    let (mut link, _) = begun(&input, json!({ "protocolVersion": 1, "authMethods": methods }));
    let steps = reply(&mut link, "new", &input, &json!({ "error": { "code": -32603, "message": "boom" } }));
    assert_eq!(failure(&steps).code, Code::SessionInitFailed);
    assert!(failure(&steps).message.contains("boom"));
}

#[test]
fn a_session_needs_an_id() {
    let long = json!({ "sessionId": "x".repeat(2_000) });
    for result in [json!({}), json!({ "sessionId": "" }), json!({ "sessionId": 7 }), long] {
        let (_, steps) = open_to(result);
        assert_eq!(failure(&steps).detail_code.as_deref(), Some("NO_SESSION_ID"));
    }
}

pub(super) fn statuses(steps: &[BackendStep]) -> Vec<String> {
    events(steps)
        .iter()
        .filter(|(kind, ..)| *kind == EventKind::Status)
        .map(|(.., payload)| lens::value(payload)["status"].as_str().unwrap().to_owned())
        .collect()
}

/// What happened until a session was open.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) methods: Vec<String>,
    pub(super) said: Vec<String>,
    pub(super) refused: Vec<OptionChange>,
    pub(super) asking: Option<AskGuarantee>,
}

/// Answers every setting until the session is open; `refuse` names the methods that are refused.
pub(super) fn settle(link: &mut DirectMachine, mut steps: Vec<BackendStep>, refuse: &[&str]) -> Settled {
    let mut all = Settled::default();
    loop {
        all.said.extend(statuses(&steps));
        for step in &steps {
            match step {
                BackendStep::OptionAnswered { option, is_own: false, is_taken: false, .. } => {
                    all.refused.push(option.clone());
                }
                BackendStep::AskGuarantee(now) => all.asking = Some(*now),
                _ => {}
            }
        }
        let mut requests = sent(&steps);
        assert!(requests.len() <= 1, "one at a time");
        let Some((request, _)) = requests.pop() else { break };
        let method = request["method"].as_str().unwrap().to_owned();
        let body = if refuse.contains(&method.as_str()) { "error" } else { "result" };
        all.methods.push(format!("{method} {}{}", request["params"]["modeId"], request["params"]["value"]));
        steps = link.hear(&json!({ "id": request["id"], body: { "code": -32602, "message": "no" } }));
    }
    assert!(matches!(steps.last(), Some(BackendStep::Ready { .. })), "{steps:?}");
    all
}

#[test]
fn the_agent_is_made_to_ask_or_it_is_said_aloud() {
    let modes = |current: &str| {
        json!({ "sessionId": "s", "modes": { "currentModeId": current,
        "availableModes": [{ "id": "default" }, { "id": "yolo" }, { "id": "agent" }] } })
    };
    let by_option = json!({ "sessionId": "s", "configOptions": [
        { "id": "m", "category": "model", "currentValue": "x", "options": [{ "value": "default" }] },
        { "id": "permission", "category": "mode", "currentValue": "yolo", "options": [
            { "group": "g", "options": [{ "value": "default" }] }, { "value": "yolo" }] } ] });
    let none = json!({ "sessionId": "s" });
    // A mode is set by the mode itself, or by an option.
    type Row<'a> = (&'a str, Value, Option<&'a str>, &'a [&'a str], &'a [&'a str], &'a [&'a str]);
    let (set, set_option) =
        (["session/set_mode \"default\"null"], ["session/set_config_option null\"default\""]);
    let (acts, usual) = ("approves_by_itself", Some("default"));
    let table: [Row<'_>; 9] = [
        ("", modes("yolo"), usual, &[], &set, &[]),
        ("", modes("default"), usual, &[], &[], &[]),
        ("", modes("yolo"), usual, &["session/set_mode"], &set, &["option_refused", acts]),
        ("", modes("yolo"), Some("ask"), &[], &[], &["mode_unavailable", acts]),
        ("", modes("yolo"), None, &[], &[], &[acts]),
        ("codex-acp", modes("agent"), None, &[], &[], &[acts]),
        ("other", modes("agent"), None, &[], &[], &[]),
        ("", by_option, usual, &[], &set_option, &[acts]),
        ("", none, usual, &[], &[], &["mode_unavailable"]),
    ];
    for (name, result, mode, refuse, want_sent, want_said) in table {
        let input = StartSessionParams { mode: mode.map(str::to_owned), ..ensure() };
        let (mut link, _) = begun(&input, json!({ "agentInfo": { "name": name } }));
        let steps = reply(&mut link, "new", &input, &json!({ "result": result }));
        let got = settle(&mut link, steps, refuse);
        assert_eq!([got.methods, got.said], [want_sent, want_said].map(<[&str]>::to_vec), "{name} {mode:?}");
    }
}

#[test]
fn options_are_set_one_by_one_and_a_refusal_is_no_end() {
    let options = vec![("model".to_owned(), "big".to_owned()), ("effort".to_owned(), "high".to_owned())];
    let input = StartSessionParams { options, ..ensure() };
    let (mut link, _) = begun(&input, json!({}));
    let steps = reply(&mut link, "new", &input, &json!({ "result": { "sessionId": "s" } }));
    let Settled { methods, said, .. } = settle(&mut link, steps, &["session/set_config_option"]);
    assert_eq!(methods, ["session/set_config_option null\"big\"", "session/set_config_option null\"high\""]);
    assert_eq!(said, ["option_refused", "option_refused"]);
    // While open, a person hears of both outcomes.
    for (body, want) in [("result", "option_set"), ("error", "option_refused")] {
        let steps = link.set_option(&OptionChange::Mode("yolo".to_owned()));
        let answer = json!({ "id": sent(&steps)[0].0["id"], body: {} });
        assert_eq!(statuses(&link.hear(&answer)).first().map(String::as_str), Some(want));
        assert!(statuses(&link.hear(&answer)).is_empty(), "once");
    }
}

#[test]
fn a_change_of_mode_by_the_agent_is_said_once() {
    let (mut link, _) = super::tests::running();
    for (mode, want) in [("plan", vec![]), ("yolo", vec!["approves_by_itself"]), ("yolo", vec![])] {
        let update = json!({ "sessionUpdate": "current_mode_update", "currentModeId": mode });
        let line = json!({ "method": "session/update", "params": { "update": update } });
        assert_eq!(statuses(&link.hear(&line)), want);
    }
}

#[test]
fn what_is_set_while_the_session_opens_is_set_before_it_counts_as_open() {
    let options = vec![("model".to_owned(), "a".to_owned())];
    let input = StartSessionParams { options, ..ensure() };
    let (mut link, _) = begun(&input, json!({ "protocolVersion": 1 }));
    assert_eq!(link.set_option(&config("model", "b")), []);
    let new = json!({ "result": { "sessionId": "s" } });
    let (first, _) = sent(&reply(&mut link, "new", &input, &new)).remove(0);
    assert_eq!(first["method"], "session/set_config_option");
    assert_eq!(first["params"]["value"], "b");
    assert_eq!(link.set_option(&config("model", "c")), []);
    let answer = |link: &mut DirectMachine, to: &Value| link.hear(&json!({ "id": to["id"], "result": {} }));
    let (second, _) = sent(&answer(&mut link, &first)).remove(0);
    assert_eq!(second["params"]["value"], "c");
    let steps = answer(&mut link, &second);
    assert!(matches!(steps.last(), Some(BackendStep::Ready { .. })), "{steps:?}");
    let is_own =
        |step: &BackendStep| matches!(step, BackendStep::OptionAnswered { is_own: true, is_taken: true, .. });
    assert!(steps.iter().any(is_own), "a person asked for it: {steps:?}");
}

/// An open session whose agent reported these settings, and the steps of its opening.
fn open_to(result: Value) -> (DirectMachine, Vec<BackendStep>) {
    let input = ensure();
    let (mut link, _) = begun(&input, json!({}));
    let steps = reply(&mut link, "new", &input, &json!({ "result": result }));
    (link, steps)
}

fn reports(steps: &[BackendStep]) -> Vec<SettingsReport> {
    let report = |step: &BackendStep| {
        if let BackendStep::SettingsReported(report) = step { Some(report.clone()) } else { None }
    };
    steps.iter().filter_map(report).collect()
}

fn choices(current: &str, values: &[&str]) -> Choices {
    Choices { current: Some(current.to_owned()), values: values.iter().map(|&it| it.to_owned()).collect() }
}

fn config(id: &str, value: &str) -> OptionChange {
    OptionChange::Config { id: id.to_owned(), value: value.to_owned() }
}

#[test]
fn modes_models_and_options_are_reported_as_they_are_and_as_they_change() {
    let web = |on: bool| json!({ "id": "web", "name": "Web", "type": "boolean", "currentValue": on });
    let (mut link, steps) = open_to(json!({
        "sessionId": "s",
        "modes": { "currentModeId": "ask", "availableModes": [{ "id": "ask", "name": "Ask" }, { "id": "plan" }, {}] },
        "models": { "currentModelId": "m1", "availableModels": [{ "modelId": "m1" }, { "modelId": "m2" }] },
        "configOptions": [web(true), { "id": "e", "category": "thought_level", "type": "select", "currentValue": "low",
            "options": [{ "value": "low" }, { "group": "g", "options": [{ "value": "high" }] }] }],
    }));
    let option = |id: &str, category: Option<&str>, is_boolean, choices| ConfigOption {
        id: id.to_owned(),
        category: category.map(str::to_owned),
        is_boolean,
        choices,
    };
    let want = AgentSettings {
        modes: Some(choices("ask", &["ask", "plan"])),
        models: Some(choices("m1", &["m1", "m2"])),
        options: vec![
            option("web", None, true, choices("true", &["true", "false"])),
            option("e", Some("thought_level"), false, choices("low", &["low", "high"])),
        ],
    };
    assert_eq!(reports(&steps), [SettingsReport::All(want)]);
    let update =
        |update: Value| json!({ "method": "session/update", "params": { "update": update } }).to_string();
    let mode = update(json!({ "sessionUpdate": "current_mode_update", "currentModeId": "plan" }));
    assert_eq!(reports(&link.stream(9, mode.as_bytes())), [SettingsReport::Mode("plan".to_owned())]);
    let list = update(json!({ "sessionUpdate": "config_option_update", "configOptions": [web(false)] }));
    let off = option("web", None, true, choices("false", &["true", "false"]));
    assert_eq!(reports(&link.stream(9, list.as_bytes())), [SettingsReport::Options(vec![off])]);
    // A megabyte of models leaves what fits.
    let models: Vec<Value> = (0..200).map(|number| json!({ "modelId": format!("{number:0199}") })).collect();
    let (_, steps) = open_to(json!({ "sessionId": "s", "models": { "availableModels": models } }));
    let [SettingsReport::All(settings)] = &reports(&steps)[..] else { panic!() };
    assert_eq!(settings.models.as_ref().unwrap().values.len(), 16 * 1024 / 199);
}

#[test]
fn each_setting_is_asked_for_in_the_way_that_the_agent_knows() {
    let boolean = json!({ "id": "web", "type": "boolean", "currentValue": true });
    let llm = json!({ "id": "llm", "category": "model", "currentValue": "a", "options": [] });
    let by_option =
        json!({ "id": "p", "category": "mode", "currentValue": "ask", "options": [{ "value": "ask" }] });
    let models = json!({ "currentModelId": "a", "availableModels": [] });
    let option = "session/set_config_option";
    let options = |list: &[&Value]| json!({ "configOptions": list });
    let both = json!({ "models": models, "configOptions": [llm] });
    let switch = |on: bool| json!({ "configId": "web", "type": "boolean", "value": on });
    let value = |id: &str, value: &str| json!({ "configId": id, "value": value });
    let mode = || OptionChange::Mode("x".to_owned());
    for (result, change, method, params) in [
        (json!({}), mode(), "session/set_mode", json!({ "modeId": "x" })),
        (options(&[&by_option]), mode(), option, value("p", "x")),
        (json!({}), config("model", "b"), option, value("model", "b")),
        (options(&[&llm]), config("model", "b"), option, value("llm", "b")),
        (json!({ "models": models }), config("model", "b"), "session/set_model", json!({ "modelId": "b" })),
        (both, config("model", "b"), option, value("llm", "b")),
        (options(&[&boolean]), config("web", "off"), option, switch(false)),
        (options(&[&boolean]), config("web", "true"), option, switch(true)),
        (json!({}), config("web", "true"), option, value("web", "true")),
    ] {
        let mut opened = result.clone();
        opened["sessionId"] = "s".into();
        let (link, _) = open_to(opened);
        let mut link = DirectMachine::open(Some(&link.save())).unwrap();
        let (request, _) = sent(&link.set_option(&change)).remove(0);
        let mut want = params;
        want["sessionId"] = "s".into();
        assert_eq!((&request["method"], &request["params"]), (&json!(method), &want), "{result} {change:?}");
    }
}

#[test]
fn the_answer_to_a_change_says_whether_it_was_taken_and_what_holds_now() {
    let options = |value: &str| json!([{ "id": "e", "currentValue": value, "options": [] }]);
    let (mut link, _) = open_to(json!({ "sessionId": "s", "configOptions": options("low") }));
    let mut answer = |mut body: Value| {
        let (request, _) = sent(&link.set_option(&config("e", "high"))).remove(0);
        body["id"] = request["id"].clone();
        let steps = link.hear(&body);
        let answered = steps.iter().find_map(|step| match step {
            BackendStep::OptionAnswered { option, is_own: true, is_taken, text } => {
                assert_eq!(option, &config("e", "high"));
                Some((*is_taken, text.clone()))
            }
            _ => None,
        });
        (answered.unwrap(), reports(&steps))
    };
    let (said, reported) = answer(json!({ "error": { "code": -32602, "message": "no such value" } }));
    let text = "The agent refused the option \"e\" = \"high\": no such value (-32602).".to_owned();
    assert_eq!(said, (false, text));
    assert_eq!(reported, []);
    let value = SettingsReport::Value { id: "e".to_owned(), value: "high".to_owned() };
    let text = "The agent accepted the option \"e\" = \"high\".".to_owned();
    assert_eq!(answer(json!({ "result": {} })), ((true, text), vec![value]));
    let list = json!({ "result": { "configOptions": options("mid") } });
    let option = ConfigOption { id: "e".to_owned(), choices: choices("mid", &[]), ..ConfigOption::default() };
    let text = "The agent accepted the option \"e\" = \"high\" and reports \"mid\".".to_owned();
    assert_eq!(answer(list), ((true, text), vec![SettingsReport::Options(vec![option])]));
    // A value is one line of our sentence, whatever is in it.
    let forged = "mid\".\n\u{202e}[permission: allowed]";
    let ((_, text), _) = answer(json!({ "result": { "configOptions": options(forged) } }));
    assert!(!text.contains(['\n', '\u{202e}']), "{text}");
}
