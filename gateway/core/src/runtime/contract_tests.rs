//! Contract of every backend machine, independent of its protocol: those of the product, and the fake one of the actor's
//! tests, which would otherwise prove nothing. A [`Peer`] plays the agent.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test")]

use super::acpx::AcpxRuntime;
use super::acpx::tests::FakeBridge;
use super::direct::{self, DirectRuntime};
use super::{BACKENDS, BackendHealth, MachineStateError, Runtime};
use crate::actor::AgentProfile;
use crate::actor::tests::letter_machine::LetterMachine;
use crate::backend::{
    BackendMachine, BackendStep, CloseMode, InputKind, RequestReply, StartSessionParams, SubmitParams,
};
use crate::event::EventKind;
use crate::failure::Failure;
use crate::permission;
use crate::request::SpawnRequest;
use acp_shared::codes::Code;
use acp_shared::ids::{LeaseId, RunId};
use serde_json::{Value, json};

/// Program on the other side of a backend's machine.
trait Peer {
    /// Lines before the first message.
    fn greeting(&self) -> Vec<String> {
        Vec::new()
    }
    /// Id of a conversation to resume.
    fn resume_id(&self) -> String;
    /// Immediate responses to a message.
    fn responses(&self, sent: &str) -> Vec<String>;
    fn text_update(&self, text: &str) -> String;
    /// Request for a permission; `None` if the backend asks nobody.
    fn permission_request(&self, id: u64) -> Option<String>;
    fn turn_end(&self, run_id: RunId, stop_reason: &str) -> String;
    fn turn_failure(&self, run_id: RunId) -> String;
    /// Runs of an update between turns: none for a backend without one.
    fn late_runs(&self) -> Vec<Option<RunId>>;
    /// True if a turn takes messages in addition to the prompt.
    fn has_control_messages(&self) -> bool;
}

/// Agent of the direct backend that follows the protocol.
#[derive(Default)]
struct FakeAgent {
    cannot_load: bool,
}

/// Name of the fake backend.
const LETTERS: &str = "letters";

/// All backends.
fn backends() -> impl Iterator<Item = &'static str> {
    BACKENDS.into_iter().chain([LETTERS])
}

/// The fake backend: one letter per line.
struct LetterRuntime;

impl Runtime for LetterRuntime {
    fn id(&self) -> &'static str {
        LETTERS
    }

    fn machine(&self, saved: Option<&str>) -> Result<Box<dyn BackendMachine>, MachineStateError> {
        let machine: LetterMachine = saved.map(serde_json::from_str).transpose()?.unwrap_or_default();
        Ok(Box::new(machine))
    }

    fn health(&self) -> BackendHealth {
        BackendHealth { ok: true, details: String::new() }
    }
}

/// Agent of the fake backend.
struct LetterAgent {
    cannot_load: bool,
}

impl Peer for LetterAgent {
    fn resume_id(&self) -> String {
        "old".to_owned()
    }

    fn responses(&self, sent: &str) -> Vec<String> {
        let line = match sent {
            "init -" => "Rs1",
            "init old" if self.cannot_load => "N",
            "init old" => "Rold",
            "ping" => "A",
            "discard" => "F",
            _ => return Vec::new(),
        };
        vec![line.to_owned()]
    }

    fn text_update(&self, text: &str) -> String {
        format!("T{text}")
    }

    fn permission_request(&self, _id: u64) -> Option<String> {
        Some("P".to_owned())
    }

    fn turn_end(&self, _run_id: RunId, stop_reason: &str) -> String {
        format!("D{stop_reason}")
    }

    fn turn_failure(&self, _run_id: RunId) -> String {
        "X".to_owned()
    }

    fn late_runs(&self) -> Vec<Option<RunId>> {
        vec![None]
    }

    fn has_control_messages(&self) -> bool {
        false
    }
}

impl Peer for FakeBridge {
    fn greeting(&self) -> Vec<String> {
        vec![Self::hello("0.19.1")]
    }

    fn resume_id(&self) -> String {
        Self::handle()
    }

    fn responses(&self, sent: &str) -> Vec<String> {
        Self::responses(self, sent)
    }

    fn text_update(&self, text: &str) -> String {
        Self::text_update(self, text)
    }

    fn permission_request(&self, _id: u64) -> Option<String> {
        None
    }

    fn turn_end(&self, _run_id: RunId, stop_reason: &str) -> String {
        let status = if stop_reason == "cancelled" { "cancelled" } else { "completed" };
        self.turn_result(&json!({ "status": status, "stopReason": stop_reason }))
    }

    fn turn_failure(&self, _run_id: RunId) -> String {
        self.turn_result(&json!({ "status": "failed", "error": { "message": "m", "code": "RUNTIME" } }))
    }

    fn late_runs(&self) -> Vec<Option<RunId>> {
        Vec::new()
    }

    fn has_control_messages(&self) -> bool {
        true
    }
}

impl Peer for FakeAgent {
    fn resume_id(&self) -> String {
        "old".to_owned()
    }

    fn late_runs(&self) -> Vec<Option<RunId>> {
        vec![None]
    }

    fn has_control_messages(&self) -> bool {
        false
    }

    /// Immediate responses of the agent: handshake, settings, probes.
    fn responses(&self, sent: &str) -> Vec<String> {
        let sent: Value = serde_json::from_str(sent).unwrap();
        let mut body = match sent["method"].as_str() {
            Some("initialize") => json!({ "result": {
                "protocolVersion": 1,
                "agentCapabilities": { "loadSession": !self.cannot_load },
            }}),
            Some("session/new") => json!({ "result": { "sessionId": "s1" } }),
            Some("session/load") => json!({ "result": null }),
            Some("_acp_host/ping") => json!({ "error": { "code": -32601, "message": "Method not found" } }),
            _ => return Vec::new(),
        };
        body["jsonrpc"] = "2.0".into();
        body["id"] = sent["id"].clone();
        vec![body.to_string()]
    }

    fn text_update(&self, text: &str) -> String {
        json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "update": {
            "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text },
        }}})
        .to_string()
    }

    fn permission_request(&self, id: u64) -> Option<String> {
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": {
            "options": [{ "optionId": "yes", "name": "Yes", "kind": "allow_once" }],
        }});
        Some(request.to_string())
    }

    fn turn_end(&self, run_id: RunId, stop_reason: &str) -> String {
        json!({ "jsonrpc": "2.0", "id": format!("prompt:{run_id}"), "result": { "stopReason": stop_reason } })
            .to_string()
    }

    fn turn_failure(&self, run_id: RunId) -> String {
        json!({ "jsonrpc": "2.0", "id": format!("prompt:{run_id}"), "error": { "code": -32603, "message": "m" } })
            .to_string()
    }
}

/// Backend machine with its agent. With `restarts`, the machine is restored from its saved state for each
/// call.
struct MachineFixture {
    agent: Box<dyn Peer>,
    runtime: Box<dyn Runtime>,
    machine: Box<dyn BackendMachine>,
    restarts: bool,
    at: u64,
    log: Vec<BackendStep>,
}

impl MachineFixture {
    fn new(backend: &str, cannot_load: bool, restarts: bool) -> Self {
        let (runtime, agent): (Box<dyn Runtime>, Box<dyn Peer>) = match backend {
            direct::ID => (Box::new(DirectRuntime::default()), Box::new(FakeAgent { cannot_load })),
            super::acpx::ID => (Box::new(acpx()), Box::new(FakeBridge::new(cannot_load))),
            _ => (Box::new(LetterRuntime), Box::new(LetterAgent { cannot_load })),
        };
        let machine = runtime.machine(None).unwrap();
        Self { agent, runtime, machine, restarts, at: 0, log: Vec::new() }
    }

    /// Calls the machine, and feeds it the agent's immediate responses.
    fn call(&mut self, act: impl FnOnce(&mut dyn BackendMachine) -> Vec<BackendStep>) -> Vec<BackendStep> {
        if self.restarts {
            self.machine = self.runtime.machine(Some(&self.machine.save())).unwrap();
        }
        let mut steps = act(self.machine.as_mut());
        let mut lines = Vec::new();
        for step in &steps {
            if let BackendStep::Send { bytes, .. } = step {
                let text = std::str::from_utf8(bytes).unwrap();
                let line = text.strip_suffix('\n').expect("a message ends with a newline");
                assert!(!line.contains('\n'), "one message is one line: {line}");
                lines.extend(self.agent.responses(line));
            }
        }
        self.log.extend(steps.iter().cloned());
        for line in lines {
            steps.extend(self.receive(&line));
        }
        steps
    }

    fn receive(&mut self, line: &str) -> Vec<BackendStep> {
        let at = self.at;
        self.at += line.len() as u64 + 1;
        self.call(|machine| machine.stream(at, line.as_bytes()))
    }

    fn open(&mut self, lease_id: LeaseId, resume: Option<&str>) -> Vec<BackendStep> {
        self.at = 0;
        let (cwd, resume) = ("/work space".to_owned(), resume.map(str::to_owned));
        let input = StartSessionParams { lease_id, cwd, resume, asks: true, ..direct::tests::defaults() };
        let mut steps = self.call(|machine| machine.start_session(&input));
        for line in self.agent.greeting() {
            steps.extend(self.receive(&line));
        }
        steps
    }

    /// Kinds of the sent messages, without those that a backend needs in addition to a prompt.
    fn effects(&self, steps: &[BackendStep]) -> Vec<InputKind> {
        let mut kinds = sends(steps);
        if self.agent.has_control_messages() {
            kinds.retain(|kind| *kind != InputKind::Control);
        }
        kinds
    }

    fn submit(&mut self, run_id: RunId, steer: bool) -> Vec<BackendStep> {
        self.call(|machine| {
            machine.submit(&SubmitParams { run_id, text: "do\n\"it\"".to_owned(), files: None, steer })
        })
    }

    fn answer(&mut self, at: u64) -> Vec<BackendStep> {
        let outcome = Ok(permission::selected_result("yes"));
        self.call(|machine| machine.answer(&RequestReply { at, outcome, is_rejection: false }))
    }
}

/// Backend `acpx` without its programs.
fn acpx() -> AcpxRuntime {
    let health = BackendHealth { ok: true, details: String::new() };
    AcpxRuntime::new("/bridge".to_owned(), Default::default, |_| None, move || health.clone())
}

fn sends(steps: &[BackendStep]) -> Vec<InputKind> {
    let kind = |step: &BackendStep| match step {
        BackendStep::Send { kind, .. } => Some(*kind),
        _ => None,
    };
    steps.iter().filter_map(kind).collect()
}

fn request_offsets(steps: &[BackendStep]) -> Vec<u64> {
    let at = |step: &BackendStep| match step {
        BackendStep::Request(ask) => Some(ask.at),
        _ => None,
    };
    steps.iter().filter_map(at).collect()
}

fn text_runs(steps: &[BackendStep]) -> Vec<Option<RunId>> {
    let run = |step: &BackendStep| match step {
        BackendStep::Event(event) if event.kind == EventKind::AgentMessage => Some(event.run_id),
        _ => None,
    };
    steps.iter().filter_map(run).collect()
}

fn turn_ends(steps: &[BackendStep]) -> Vec<(RunId, &str)> {
    fn end(step: &BackendStep) -> Option<(RunId, &str)> {
        match step {
            BackendStep::TurnDone { run_id, stop_reason, .. } => Some((*run_id, stop_reason.as_str())),
            BackendStep::TurnFailed { run_id, .. } => Some((*run_id, "failed")),
            _ => None,
        }
    }
    steps.iter().filter_map(end).collect()
}

/// Runs a session from start to close with its contract checks. Returns all steps of the machine.
fn run_session(mut pair: MachineFixture, lease: LeaseId, runs: &[RunId; 4]) -> Vec<BackendStep> {
    assert!(!pair.machine.can_steer());
    let opened = pair.open(lease, None);
    let ready = |step: &&BackendStep| matches!(step, BackendStep::Ready { agent_session_id, .. } if !agent_session_id.is_empty());
    assert_eq!(opened.iter().filter(ready).count(), 1, "{opened:?}");
    let last = opened.last();
    assert!(matches!(last, Some(BackendStep::Ready { .. })), "nothing comes after Ready: {opened:?}");

    // A turn is sent once, its text belongs to its run, and its end comes last.
    let [first, second, third, fourth] = *runs;
    let submitted = pair.submit(first, false);
    assert_eq!(pair.effects(&submitted), [InputKind::Prompt { run_id: first }]);
    assert_eq!(text_runs(&pair.receive(&pair.agent.text_update("a"))), [Some(first)]);
    assert_eq!(turn_ends(&pair.submit(second, false)), [(second, "failed")], "one turn at a time");
    assert_eq!(text_runs(&pair.receive(&pair.agent.text_update("b"))), [Some(first)]);
    let done = pair.receive(&pair.agent.turn_end(first, "end_turn"));
    assert_eq!(turn_ends(&done), [(first, "end_turn")]);
    assert!(turn_ends(&pair.receive(&pair.agent.turn_end(first, "end_turn"))).is_empty(), "a turn ends once");
    let late = text_runs(&pair.receive(&pair.agent.text_update("late")));
    assert_eq!(late, pair.agent.late_runs(), "late text belongs to no turn");

    pair.submit(second, false);
    let asked = run_permissions(&mut pair);
    // A cancel affects the running turn only. The end of a turn withdraws its requests first.
    assert!(sends(&pair.call(|machine| machine.cancel(first))).is_empty());
    let cancelled = pair.call(|machine| machine.cancel(second));
    assert_eq!(pair.effects(&cancelled), [InputKind::Cancel { run_id: second }]);
    let end = pair.receive(&pair.agent.turn_end(second, "cancelled"));
    assert_eq!(turn_ends(&end), [(second, "cancelled")]);
    assert!(matches!(end.last(), Some(BackendStep::TurnDone { .. })), "{end:?}");
    if let Some(open) = asked {
        assert!(end.contains(&BackendStep::RequestWithdrawn { at: open }), "{end:?}");
        assert!(sends(&pair.answer(open)).is_empty(), "too late");
    }

    for line in ["", "Loading…", "{\"", "[]", "[{}]", "7", "null", "{}", "{\"id\":null}"] {
        let steps = pair.receive(line);
        let bad = |s: &BackendStep| {
            matches!(s, BackendStep::Failed(_) | BackendStep::Send { .. } | BackendStep::Request(_))
        };
        assert!(turn_ends(&steps).is_empty() && !steps.iter().any(bad), "{line}: {steps:?}");
    }
    assert!(pair.call(|machine| machine.probe()).contains(&BackendStep::ProbeAnswered));

    // A failed turn does not fail the session.
    pair.submit(third, false);
    assert_eq!(turn_ends(&pair.receive(&pair.agent.turn_failure(third))), [(third, "failed")]);
    pair.submit(fourth, false);
    let steer = RunId::mint();
    if !pair.machine.can_steer() {
        assert_eq!(pair.submit(steer, true), [BackendStep::Steered { run_id: steer, taken: false }]);
    }
    pair.receive(&pair.agent.turn_end(fourth, "end_turn"));
    assert_eq!(
        pair.call(|machine| machine.close(CloseMode::Discard)).last(),
        Some(&BackendStep::CloseAnswered)
    );
    pair.log
}

/// Checks that requests are identified by their offset and answered once. Returns an open one; `None` if the backend asks
/// nobody.
fn run_permissions(pair: &mut MachineFixture) -> Option<u64> {
    let (first, second) = (pair.agent.permission_request(0)?, pair.agent.permission_request(0)?);
    let one = request_offsets(&pair.receive(&first));
    let two = request_offsets(&pair.receive(&second));
    assert!(one.len() == 1 && two.len() == 1 && one != two, "two requests with one id are two");
    assert_eq!(sends(&pair.answer(two[0])), [InputKind::Answer { at: two[0] }]);
    assert!(sends(&pair.answer(two[0])).is_empty(), "an answer is sent once");
    assert!(sends(&pair.answer(u64::MAX)).is_empty(), "an unknown request gets no answer");
    Some(one[0])
}

#[test]
fn restored_machine_behaves_like_the_original() {
    let (lease, runs) = (LeaseId::mint(), [(); 4].map(|()| RunId::mint()));
    // The minted id of the steer is left out of the comparison.
    let comparable = |log: Vec<BackendStep>| -> Vec<BackendStep> {
        log.into_iter().filter(|step| !matches!(step, BackendStep::Steered { .. })).collect()
    };
    for backend in backends() {
        let straight = comparable(run_session(MachineFixture::new(backend, false, false), lease, &runs));
        let restarted = comparable(run_session(MachineFixture::new(backend, false, true), lease, &runs));
        assert_eq!(straight, restarted, "a machine restored before every call behaves the same");
    }
}

#[test]
fn failed_resume_starts_no_new_conversation() {
    for backend in backends() {
        let mut pair = MachineFixture::new(backend, true, true);
        let resume = pair.agent.resume_id();
        let steps = pair.open(LeaseId::mint(), Some(&resume));
        let refused = |step: &BackendStep| matches!(step, BackendStep::Failed(failure) if failure.code == Code::ResumeUnavailable);
        assert!(steps.iter().any(refused), "{steps:?}");
        for step in &steps {
            assert!(!matches!(step, BackendStep::Ready { .. }));
            if let BackendStep::Send { bytes, .. } = step {
                let text = std::str::from_utf8(bytes).unwrap();
                assert!(!text.contains("session/new") && !text.contains("\"new\""), "{step:?}");
            }
        }
    }
}

#[test]
fn resumed_conversation_ignores_its_replay() {
    for backend in backends() {
        let mut pair = MachineFixture::new(backend, false, true);
        let resume = pair.agent.resume_id();
        let steps = pair.open(LeaseId::mint(), Some(&resume));
        let ready = |step: &BackendStep| matches!(step, BackendStep::Ready { agent_session_id, resumable: true, .. } if *agent_session_id == resume);
        assert!(steps.iter().any(ready), "{steps:?}");
        let run_id = RunId::mint();
        let replay = pair.receive(&pair.agent.text_update("old words"));
        assert!(text_runs(&replay).is_empty(), "updates before the first prompt are a replay: {replay:?}");
        pair.submit(run_id, false);
        assert_eq!(text_runs(&pair.receive(&pair.agent.text_update("new words"))), [Some(run_id)]);
    }
}

#[test]
fn new_process_resets_the_machine() {
    for backend in backends() {
        let mut pair = MachineFixture::new(backend, false, true);
        pair.open(LeaseId::mint(), None);
        let run_id = RunId::mint();
        pair.submit(run_id, false);
        let request = pair.agent.permission_request(0);
        let ask = request.map(|request| request_offsets(&pair.receive(&request)));
        pair.open(LeaseId::mint(), None);
        let end = pair.receive(&pair.agent.turn_end(run_id, "end_turn"));
        assert!(turn_ends(&end).is_empty(), "the turn belonged to another process");
        if let Some(ask) = ask {
            assert!(sends(&pair.answer(ask[0])).is_empty(), "the request belonged to another process (H4)");
        }
    }
}

#[test]
fn foreign_state_is_refused() {
    for text in ["{", "[1]", "7", "\"x\""] {
        assert!(DirectRuntime::default().machine(Some(text)).is_err(), "{text}");
        assert!(acpx().machine(Some(text)).is_err(), "{text}");
        assert!(LetterRuntime.machine(Some(text)).is_err(), "{text}");
    }
}

/// Settings that acpx has no option for are refused, or told where the session has not asked for them.
#[test]
fn acpx_does_not_drop_settings_silently() {
    let profile = |auth_method: Option<&str>| AgentProfile {
        auth_method: auth_method.map(str::to_owned),
        additional_directories: vec!["/configured".to_owned()],
        ..AgentProfile::of_running_lease(None, Failure::of(Code::Runtime))
    };
    let code = |request: &SpawnRequest, auth_method| {
        let checked = acpx().check(request, &profile(auth_method));
        checked.map_err(|failure| (failure.code, failure.detail_code, failure.message))
    };
    let plain = SpawnRequest::default();
    assert_eq!(code(&plain, None), Ok(()));
    let directory = SpawnRequest { additional_directories: vec!["/more".to_owned()], ..plain.clone() };
    let method = SpawnRequest { auth_method: Some("key".to_owned()), ..plain.clone() };
    for (request, configured, named) in
        [(&directory, None, "/more"), (&method, None, "key"), (&plain, Some("own"), "own")]
    {
        let (code, detail, text) = code(request, configured).unwrap_err();
        assert_eq!((code, detail.as_deref()), (Code::Usage, Some("NOT_SUPPORTED")), "{text}");
        assert!(text.contains(named), "{text}");
        assert_eq!(DirectRuntime::default().check(request, &profile(configured)), Ok(()));
    }
    let input = StartSessionParams {
        additional_directories: vec!["/configured".to_owned()],
        ..direct::tests::defaults()
    };
    let steps = acpx().machine(None).unwrap().start_session(&input);
    let [BackendStep::Event(event)] = steps.as_slice() else { panic!("{steps:?}") };
    assert!(event.payload.contains("directories_left_out"), "{event:?}");
}
