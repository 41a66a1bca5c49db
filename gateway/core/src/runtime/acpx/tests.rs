//! The machine with a scripted bridge: what is known when something dies, retries, and what a repository cannot change.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::handle::AcpxHandle;
use super::*;
use crate::rows::SessionMode;
use crate::runtime::direct;
use std::cell::RefCell;

/// Bridge that answers as acpx 0.19.1 does.
#[derive(Default)]
pub(in crate::runtime) struct FakeBridge {
    pub(in crate::runtime) cannot_load: bool,
    /// Lines for a verb instead of the usual ones, and the exit code.
    pub(in crate::runtime) scripted: RefCell<BTreeMap<&'static str, (Vec<Value>, i32)>>,
    turn: RefCell<(u64, String, u64)>,
}

impl FakeBridge {
    pub(in crate::runtime) fn new(cannot_load: bool) -> Self {
        Self { cannot_load, ..Self::default() }
    }

    pub(in crate::runtime) fn hello(acpx: &str) -> String {
        json!({ "type": "hello", "acpx": acpx, "node": "22.23.3", "home": "/h", "dir": "/h/d", "agent": ["a", "--acp"] })
            .to_string()
    }

    pub(in crate::runtime) fn handle() -> String {
        let (name, agent) = ("agent:qwen:acp:1".to_owned(), "env HOME=/h a --acp".to_owned());
        AcpxHandle { name, agent, cwd: "/work space".to_owned(), mode: SessionMode::Persistent }.encode()
    }

    /// Immediate lines of the bridge.
    pub(in crate::runtime) fn responses(&self, sent: &str) -> Vec<String> {
        let sent: Value = serde_json::from_str(sent).unwrap();
        let id = sent["id"].as_u64().unwrap_or(0);
        if sent["op"] == "watch" {
            return self.begin(id);
        }
        if sent["op"] != "run" {
            return Vec::new();
        }
        let argv: Vec<&str> =
            sent["argv"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        let verb = argv.iter().position(|word| *word == "--non-interactive-permissions").unwrap() + 2;
        let verb = if argv[verb] == "sessions" { argv[verb + 1] } else { argv[verb] };
        if let Some((lines, code)) = self.scripted.borrow_mut().remove(verb) {
            let lines = lines.into_iter().map(|line| out(id, &line));
            return lines.chain([exit(id, code)]).collect();
        }
        let capabilities = json!({ "loadSession": !self.cannot_load });
        let mut after = Vec::new();
        let line = match verb {
            "ensure" | "new" => json!({ "action": "session_ensured", "created": verb == "new" }),
            "show" => json!({ "agentCapabilities": capabilities, "messages": 2, "protocolVersion": 1 }),
            "prompt" => {
                let request = format!("request-{id}");
                self.turn.borrow_mut().1.clone_from(&request);
                if let Some(watch) = sent["watch"]["id"].as_u64() {
                    after = self.begin(watch);
                }
                json!({ "action": "prompt_queued", "requestId": request })
            }
            "cancel" => json!({ "action": "cancel_result", "cancelled": true }),
            verb => json!({ "action": verb }),
        };
        [out(id, &line), exit(id, 0)].into_iter().chain(after).collect()
    }

    fn begin(&self, watch: u64) -> Vec<String> {
        self.turn.borrow_mut().0 = watch;
        vec![
            self.watch_line(&json!({ "type": "turn_started" })),
            self.message(&json!({ "id": 2, "method": "session/prompt", "params": { "sessionId": "s" } })),
        ]
    }

    /// Line of the watch command about the running turn.
    pub(in crate::runtime) fn watch_line(&self, line: &Value) -> String {
        let mut turn = self.turn.borrow_mut();
        turn.2 += 1;
        let mut line = line.clone();
        line["cursor"] = format!("c{}", turn.2).into();
        line["requestId"] = turn.1.as_str().into();
        json!({ "type": "watch", "id": turn.0, "line": line.to_string() }).to_string()
    }

    pub(in crate::runtime) fn message(&self, message: &Value) -> String {
        let mut message = message.clone();
        message["jsonrpc"] = "2.0".into();
        self.watch_line(&json!({ "type": "message", "message": message }))
    }

    pub(in crate::runtime) fn text_update(&self, text: &str) -> String {
        self.message(&json!({ "method": "session/update", "params": { "sessionId": "s", "update": {
            "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text },
        }}}))
    }

    pub(in crate::runtime) fn turn_result(&self, result: &Value) -> String {
        self.watch_line(&json!({ "type": "turn_result", "result": result }))
    }

    fn watch_exit(&self) -> String {
        exit(self.turn.borrow().0, 1)
    }

    fn watch_error(&self, detail: &str) -> String {
        let error = json!({ "error": { "code": -32603, "message": "m", "data": { "detailCode": detail } } });
        json!({ "type": "watch", "id": self.turn.borrow().0, "line": error.to_string() }).to_string()
    }
}

fn out(id: u64, line: &Value) -> String {
    json!({ "type": "out", "id": id, "line": line.to_string() }).to_string()
}

fn exit(id: u64, code: i32) -> String {
    json!({ "type": "exit", "id": id, "code": code }).to_string()
}

fn error(code: &str, detail: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32603, "message": "m",
        "data": { "acpxCode": code, "detailCode": detail } } })
}

/// Machine with its bridge.
struct Pair {
    bridge: FakeBridge,
    machine: AcpxMachine,
    /// Lines sent to the bridge.
    sent: Vec<Value>,
}

impl Pair {
    fn opening(bridge: FakeBridge, input: &StartSessionParams) -> (Self, Vec<BackendStep>) {
        let mut pair = Self { bridge, machine: machine(), sent: Vec::new() };
        assert!(pair.machine.start_session(input).is_empty());
        let steps = pair.receive(&FakeBridge::hello("0.19.1"));
        (pair, steps)
    }

    fn open() -> Self {
        let (pair, steps) = Self::opening(FakeBridge::default(), &params());
        assert!(matches!(steps.last(), Some(BackendStep::Ready { .. })), "{steps:?}");
        pair
    }

    fn receive(&mut self, line: &str) -> Vec<BackendStep> {
        let steps = self.machine.stream(0, line.as_bytes());
        self.answer(steps)
    }

    /// Feeds the bridge's responses to the machine.
    fn answer(&mut self, mut steps: Vec<BackendStep>) -> Vec<BackendStep> {
        let mut lines = Vec::new();
        for step in &steps {
            if let BackendStep::Send { bytes, .. } = step {
                let line = std::str::from_utf8(bytes).unwrap();
                self.sent.push(serde_json::from_str(line).unwrap());
                lines.extend(self.bridge.responses(line));
            }
        }
        for line in lines {
            steps.extend(self.receive(&line));
        }
        steps
    }

    fn prompt(&mut self) -> (RunId, Vec<BackendStep>) {
        let run_id = RunId::mint();
        let input = SubmitParams { run_id, text: "[\"do\"]".to_owned(), files: None, steer: false };
        let steps = self.machine.submit(&input);
        (run_id, self.answer(steps))
    }

    fn last_timer(&self) -> u64 {
        let timer = self.sent.iter().rev().find(|line| line["op"] == "timer").unwrap();
        timer["id"].as_u64().unwrap()
    }

    fn count(&self, op: &str, word: &str) -> usize {
        let has = |line: &&Value| {
            line["op"] == op && line["argv"].as_array().is_some_and(|it| it.contains(&word.into()))
        };
        self.sent.iter().filter(has).count()
    }
}

fn machine() -> AcpxMachine {
    AcpxMachine::open(None, Settings(Arc::new(AcpxBackend::default))).unwrap()
}

fn params() -> StartSessionParams {
    StartSessionParams { cwd: "/work space".to_owned(), ..direct::tests::defaults() }
}

/// Failure that ended the turn, and if the process is ended without an error of the session.
fn end_of(steps: &[BackendStep]) -> (Option<(Code, String)>, bool) {
    let failure = steps.iter().find_map(|step| match step {
        BackendStep::TurnFailed { failure, .. } => {
            Some((failure.code, failure.detail_code.clone().unwrap_or_default()))
        }
        _ => None,
    });
    (failure, matches!(steps.last(), Some(BackendStep::EndProcess { .. })))
}

fn failed(steps: &[BackendStep]) -> Option<(Code, String)> {
    match steps.last() {
        Some(BackendStep::Failed(failure)) => {
            Some((failure.code, failure.detail_code.clone().unwrap_or_default()))
        }
        _ => None,
    }
}

#[test]
fn prompt_is_sent_as_content_blocks() {
    let mut pair = Pair::open();
    pair.prompt();
    let prompt = pair.sent.iter().find(|line| line["stdin"].is_string()).unwrap();
    assert_eq!(prompt["stdin"], json!([{ "type": "text", "text": "[\"do\"]" }]).to_string());
    let file = pair.sent.iter().find(|line| line["op"] == "file").unwrap();
    assert_eq!(file, &json!({ "op": "file", "name": "mcp.json", "text": "{\"mcpServers\":[]}" }));
}

#[test]
fn versions_outside_of_the_range_are_refused() {
    let mut pair = Pair { bridge: FakeBridge::default(), machine: machine(), sent: Vec::new() };
    pair.machine.start_session(&params());
    let steps = pair.receive(&FakeBridge::hello("0.1.15"));
    assert_eq!(failed(&steps), Some((Code::BackendUnavailable, "ACPX_VERSION".to_owned())));
    pair.machine.start_session(&params());
    let steps = pair.receive(&json!({ "type": "unusable", "error": "no node" }).to_string());
    assert_eq!(failed(&steps), Some((Code::BackendUnavailable, "ACPX_UNUSABLE".to_owned())));
}

#[test]
fn conversation_that_acpx_does_not_have_is_refused_before_any_prompt() {
    let created = json!({ "action": "session_ensured", "created": true });
    let resume = |handle: &str| StartSessionParams { resume: Some(handle.to_owned()), ..params() };
    let other = FakeBridge::handle();
    let cases: [(FakeBridge, String, &str); 3] = [
        (
            FakeBridge {
                scripted: RefCell::new([("ensure", (vec![created], 0))].into()),
                ..FakeBridge::default()
            },
            other.clone(),
            "NO_RECORD",
        ),
        (FakeBridge { cannot_load: true, ..FakeBridge::default() }, other, "NOT_SUPPORTED"),
        (FakeBridge::default(), "session-1".to_owned(), "HANDLE"),
    ];
    for (bridge, handle, detail) in cases {
        let (pair, steps) = Pair::opening(bridge, &resume(&handle));
        assert_eq!(failed(&steps), Some((Code::ResumeUnavailable, detail.to_owned())), "{steps:?}");
        assert_eq!(pair.count("run", "new"), 0, "{detail}");
    }
}

#[test]
fn handle_of_another_directory_or_agent_is_refused() {
    let handle = AcpxHandle::parse(&FakeBridge::handle()).unwrap();
    let others = [
        AcpxHandle { cwd: "/other".to_owned(), ..handle.clone() },
        AcpxHandle { agent: "env HOME=/h b".to_owned(), ..handle },
    ];
    for other in others {
        let input = StartSessionParams { resume: Some(other.encode()), ..params() };
        let (_, steps) = Pair::opening(FakeBridge::default(), &input);
        assert_eq!(failed(&steps), Some((Code::ResumeUnavailable, "HANDLE".to_owned())));
    }
}

#[test]
fn watch_is_started_again_at_its_cursor() {
    let mut pair = Pair::open();
    let (run_id, _) = pair.prompt();
    pair.receive(&pair.bridge.text_update("a"));
    let steps = pair.machine.stream(0, pair.bridge.watch_exit().as_bytes());
    let BackendStep::Send { bytes, kind: InputKind::Control } = &steps[0] else { panic!("{steps:?}") };
    let watch: Value = serde_json::from_slice(bytes).unwrap();
    let argv = watch["argv"].as_array().unwrap();
    assert_eq!(argv[argv.len() - 2..], ["--cursor", "c3"]);
    pair.bridge.turn.borrow_mut().0 = watch["id"].as_u64().unwrap();
    let steps =
        pair.receive(&pair.bridge.turn_result(&json!({ "status": "completed", "stopReason": "end_turn" })));
    assert!(matches!(steps.last(), Some(BackendStep::TurnDone { run_id: done, .. }) if *done == run_id));
}

#[test]
fn death_of_the_queue_owner_leaves_the_turn_uncertain() {
    let mut pair = Pair::open();
    pair.prompt();
    pair.receive(&pair.bridge.watch_error("WATCH_OUTCOME_UNKNOWN"));
    let steps = pair.receive(&pair.bridge.watch_exit());
    assert_eq!(end_of(&steps), (Some((Code::Uncertain, "WATCH_OUTCOME_UNKNOWN".to_owned())), true));
    // The same, told by a turn result after the recovery of acpx.
    let mut pair = Pair::open();
    pair.prompt();
    let result =
        json!({ "status": "failed", "error": { "message": "m", "detailCode": "WATCH_OUTCOME_UNKNOWN" } });
    let steps = pair.receive(&pair.bridge.turn_result(&result));
    assert_eq!(end_of(&steps), (Some((Code::Uncertain, "WATCH_OUTCOME_UNKNOWN".to_owned())), true));
}

#[test]
fn death_of_the_queue_owner_between_turns_ends_the_process() {
    let ended = json!({ "type": "owner_ended" }).to_string();
    let mut pair = Pair::open();
    pair.prompt();
    let done = json!({ "status": "completed", "stopReason": "end_turn" });
    pair.receive(&pair.bridge.turn_result(&done));
    let steps = pair.receive(&ended);
    assert_eq!(end_of(&steps), (None, true), "{steps:?}");
    // An owner that ended in the turn: the watch command ends the turn, and then the process is ended.
    let mut pair = Pair::open();
    let (run, _) = pair.prompt();
    assert!(pair.receive(&ended).is_empty());
    let steps = pair.receive(&pair.bridge.turn_result(&done));
    assert!(steps.iter().any(|step| matches!(step, BackendStep::TurnDone { run_id, .. } if *run_id == run)));
    assert_eq!(end_of(&steps), (None, true), "{steps:?}");
    // A close ends the owner, too.
    let mut pair = Pair::open();
    let steps = pair.machine.close(CloseMode::Close);
    assert!(pair.receive(&ended).is_empty(), "{steps:?}");
}

#[test]
fn watch_that_cannot_run_leaves_the_turn_uncertain() {
    let mut pair = Pair::open();
    pair.prompt();
    let mut steps = Vec::new();
    for _ in 0..3 {
        steps = pair.machine.stream(0, pair.bridge.watch_exit().as_bytes());
        if let Some(BackendStep::Send { bytes, .. }) = steps.first() {
            let watch: Value = serde_json::from_slice(bytes).unwrap();
            pair.bridge.turn.borrow_mut().0 = watch["id"].as_u64().unwrap();
        }
    }
    let steps = if end_of(&steps).1 { steps } else { pair.receive(&pair.bridge.watch_exit()) };
    assert_eq!(end_of(&steps), (Some((Code::Uncertain, "WATCH_ENDED".to_owned())), true));
}

#[test]
fn death_of_the_agent_fails_the_turn_only() {
    let mut pair = Pair::open();
    pair.prompt();
    let result = json!({ "status": "failed", "error": { "message": "m", "code": "RUNTIME", "detailCode": "AGENT_DISCONNECTED" } });
    let steps = pair.receive(&pair.bridge.turn_result(&result));
    assert_eq!(end_of(&steps), (Some((Code::TurnFailed, "AGENT_DISCONNECTED".to_owned())), false));
    let (_, steps) = pair.prompt();
    assert_eq!(end_of(&steps), (None, false), "the session goes on");
}

#[test]
fn prompt_client_that_dies_silently_is_uncertain_unless_the_turn_begins() {
    // Without a cursor nothing can show that the turn has begun.
    let mut pair = Pair::open();
    pair.bridge.scripted.borrow_mut().insert("prompt", (Vec::new(), 137));
    let (_, steps) = pair.prompt();
    assert_eq!(end_of(&steps), (Some((Code::Uncertain, "NOT_ACKNOWLEDGED".to_owned())), true));

    // With one, the watch decides.
    for begins in [true, false] {
        let mut pair = Pair::open();
        let (first, _) = pair.prompt();
        pair.receive(&pair.bridge.turn_result(&json!({ "status": "completed", "stopReason": "end_turn" })));
        pair.bridge.scripted.borrow_mut().insert("prompt", (Vec::new(), 137));
        let (second, steps) = pair.prompt();
        assert!(first != second && end_of(&steps) == (None, false), "{steps:?}");
        let timer = json!({ "type": "timer", "id": pair.last_timer() }).to_string();
        if begins {
            let watch = pair.sent.iter().rev().find_map(|line| line["watch"]["id"].as_u64()).unwrap();
            *pair.bridge.turn.borrow_mut() = (watch, "unknown until now".to_owned(), 9);
            pair.receive(&pair.bridge.watch_line(&json!({ "type": "turn_started" })));
            assert_eq!(end_of(&pair.receive(&timer)), (None, false));
            let done = json!({ "status": "completed", "stopReason": "end_turn" });
            let steps = pair.receive(&pair.bridge.turn_result(&done));
            assert!(matches!(steps.last(), Some(BackendStep::TurnDone { run_id, .. }) if *run_id == second));
        } else {
            let end = end_of(&pair.receive(&timer));
            assert_eq!(end, (Some((Code::Uncertain, "NOT_ACKNOWLEDGED".to_owned())), true));
        }
    }
}

#[test]
fn refused_prompts_are_sent_again_a_limited_number_of_times() {
    for (detail, retries, code) in [
        ("QUEUE_OWNER_OVERLOADED", 3, Code::LimitReached),
        ("QUEUE_OWNER_CLOSED", 1, Code::BackendUnavailable),
    ] {
        let mut pair = Pair::open();
        let refuse = |pair: &Pair| {
            pair.bridge.scripted.borrow_mut().insert("prompt", (vec![error("RUNTIME", detail)], 1));
        };
        refuse(&pair);
        let (_, mut steps) = pair.prompt();
        for _ in 0..retries {
            assert_eq!(end_of(&steps), (None, false), "{detail}");
            refuse(&pair);
            steps = pair.receive(&json!({ "type": "timer", "id": pair.last_timer() }).to_string());
        }
        assert_eq!(end_of(&steps), (Some((code, detail.to_owned())), false));
        assert_eq!(pair.count("run", "prompt"), retries + 1, "{detail}");
    }
}

#[test]
fn prompt_that_was_cancelled_is_not_sent_again() {
    let mut pair = Pair::open();
    let refused = error("RUNTIME", "QUEUE_OWNER_OVERLOADED");
    pair.bridge.scripted.borrow_mut().insert("prompt", (vec![refused], 1));
    let (run, _) = pair.prompt();
    let retry = json!({ "type": "timer", "id": pair.last_timer() }).to_string();
    pair.bridge.scripted.borrow_mut().insert("cancel", (vec![json!({ "cancelled": false })], 0));
    let steps = pair.machine.cancel(run);
    pair.answer(steps);
    let steps = pair.receive(&retry);
    assert!(matches!(&steps[..], [BackendStep::TurnDone { run_id, .. }] if *run_id == run), "{steps:?}");
    assert_eq!(pair.count("run", "prompt"), 1);
}

#[test]
fn prompt_that_is_too_long_for_a_line_fails_before_it_is_sent() {
    let mut pair = Pair::open();
    // Twice escaped, a quote has four bytes.
    let text = "\"".repeat(3 * 1024 * 1024);
    let input = SubmitParams { run_id: RunId::mint(), text, files: None, steer: false };
    let steps = pair.machine.submit(&input);
    assert_eq!(end_of(&steps), (Some((Code::LimitReached, "PROMPT_TOO_LONG".to_owned())), false));
    assert_eq!((steps.len(), end_of(&pair.prompt().1)), (1, (None, false)), "the session goes on");
}

#[test]
fn message_that_the_bridge_left_out_is_reported() {
    let mut pair = Pair::open();
    pair.prompt();
    let line = pair.bridge.watch_line(&json!({ "type": "message", "left_out_bytes": 20_000_000 }));
    let steps = pair.receive(&line);
    let [BackendStep::Event(event)] = &steps[..] else { panic!("{steps:?}") };
    assert!(event.payload.contains("acpx_message_left_out"), "{event:?}");
}

#[test]
fn prompt_is_never_sent_again_after_an_unknown_outcome() {
    let mut pair = Pair::open();
    let lost = error("RUNTIME", "QUEUE_DISCONNECTED_BEFORE_ACK");
    pair.bridge.scripted.borrow_mut().insert("prompt", (vec![lost], 1));
    let (_, steps) = pair.prompt();
    assert_eq!(end_of(&steps), (Some((Code::Uncertain, "QUEUE_DISCONNECTED_BEFORE_ACK".to_owned())), true));
    assert_eq!(pair.count("run", "prompt"), 1);
}

#[test]
fn replaced_conversation_is_noticed_and_refused() {
    let mut pair = Pair::open();
    pair.prompt();
    let new = |pair: &Pair| pair.bridge.message(&json!({ "id": 3, "method": "session/new", "params": {} }));
    let steps = pair.receive(&new(&pair));
    let end = steps.iter().any(
        |step| matches!(step, BackendStep::TurnFailed { failure, .. } if failure.code == Code::Uncertain),
    );
    assert!(end, "{steps:?}");
    assert_eq!(failed(&steps), Some((Code::ResumeUnavailable, "CONVERSATION_REPLACED".to_owned())));
    assert_eq!(pair.count("run", "cancel"), 1);
    // A session without messages has no conversation to lose.
    let record = json!({ "agentCapabilities": {}, "messages": 0 });
    let bridge =
        FakeBridge { scripted: RefCell::new([("show", (vec![record], 0))].into()), ..FakeBridge::default() };
    let (mut pair, _) = Pair::opening(bridge, &params());
    pair.prompt();
    assert!(pair.receive(&new(&pair)).is_empty());
}

#[test]
fn only_the_turn_result_ends_a_turn() {
    let mut pair = Pair::open();
    let (run_id, _) = pair.prompt();
    let raw =
        pair.bridge.message(&json!({ "id": 2, "result": { "stopReason": "end_turn", "usage": { "a": 1 } } }));
    assert!(pair.receive(&raw).is_empty());
    let failed =
        json!({ "status": "failed", "error": { "message": "m", "code": "PERMISSION_PROMPT_UNAVAILABLE" } });
    let steps = pair.receive(&pair.bridge.turn_result(&failed));
    assert_eq!(end_of(&steps).0.unwrap().0, Code::PermissionPromptUnavailable);
    // An answer keeps the agent's own result.
    let (second, _) = pair.prompt();
    assert_ne!(run_id, second);
    pair.receive(
        &pair
            .bridge
            .message(&json!({ "id": 2, "result": { "stopReason": "end_turn", "usage": { "a": 1 } } })),
    );
    let steps =
        pair.receive(&pair.bridge.turn_result(&json!({ "status": "completed", "stopReason": "end_turn" })));
    let Some(BackendStep::TurnDone { result, .. }) = steps.last() else { panic!("{steps:?}") };
    assert_eq!(serde_json::from_str::<Value>(result).unwrap()["usage"], json!({ "a": 1 }));
}

#[test]
fn permissions_that_acpx_settles_are_journaled() {
    let mut pair = Pair::open();
    pair.prompt();
    // The id of the agent's request equals the one of the prompt.
    let params = json!({ "toolCall": { "title": "Run rm" }, "options": [] });
    let ask = json!({ "id": 2, "method": "session/request_permission", "params": params });
    assert!(pair.receive(&pair.bridge.message(&ask)).is_empty());
    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "reject" } });
    let steps = pair.receive(&pair.bridge.message(&json!({ "id": 2, "result": outcome })));
    let [BackendStep::Event(event)] = &steps[..] else { panic!("{steps:?}") };
    let payload: Value = serde_json::from_str(&event.payload).unwrap();
    assert_eq!(
        (payload["status"].as_str(), payload["option_id"].as_str()),
        (Some("acpx_permission"), Some("reject"))
    );
    assert!(payload["text"].as_str().unwrap().contains("Run rm"));
}

#[test]
fn cancel_before_the_turn_begins_is_repeated() {
    let mut pair = Pair::open();
    let (run_id, _) = pair.prompt();
    pair.bridge.scripted.borrow_mut().insert("cancel", (vec![json!({ "cancelled": false })], 0));
    let steps = pair.machine.cancel(run_id);
    assert!(matches!(steps[0], BackendStep::Send { kind: InputKind::Cancel { .. }, .. }));
    pair.answer(steps);
    pair.receive(&json!({ "type": "timer", "id": pair.last_timer() }).to_string());
    assert_eq!(pair.count("run", "cancel"), 2);
    let steps =
        pair.receive(&pair.bridge.turn_result(&json!({ "status": "cancelled", "stopReason": "cancelled" })));
    assert!(
        matches!(steps.last(), Some(BackendStep::TurnDone { stop_reason, .. }) if stop_reason == "cancelled")
    );
}

#[test]
fn settings_are_made_before_the_session_is_open() {
    let input = StartSessionParams {
        mode: Some("plan".to_owned()),
        options: vec![("model".to_owned(), "m1".to_owned())],
        ..params()
    };
    let refused = (vec![error("RUNTIME", "QUEUE_CONTROL_REQUEST_FAILED")], 1);
    let bridge =
        FakeBridge { scripted: RefCell::new([("set-mode", refused)].into()), ..FakeBridge::default() };
    let (pair, steps) = Pair::opening(bridge, &input);
    assert!(matches!(steps.last(), Some(BackendStep::Ready { .. })), "{steps:?}");
    let taken: Vec<bool> = steps
        .iter()
        .filter_map(|step| match step {
            BackendStep::OptionAnswered { is_taken, .. } => Some(*is_taken),
            _ => None,
        })
        .collect();
    assert_eq!(taken, [false, true]);
    assert_eq!((pair.count("run", "set-mode"), pair.count("run", "set")), (1, 1));
}

#[test]
fn line_that_is_not_json_ends_the_session() {
    let mut pair = Pair::open();
    let steps = pair.machine.probe();
    let BackendStep::Send { bytes, .. } = &steps[0] else { panic!("{steps:?}") };
    let sent: Value = serde_json::from_slice(bytes).unwrap();
    let line = json!({ "type": "out", "id": sent["id"], "line": "Usage: acpx" }).to_string();
    assert_eq!(failed(&pair.receive(&line)).unwrap().0, Code::ProtocolError);
}
