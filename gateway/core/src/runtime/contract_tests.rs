//! What every backend's machine must do, whatever it speaks. A [`Peer`] plays the agent; the suite knows
//! neither messages nor methods.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test")]

use super::Runtime as _;
use super::direct::{self, DirectRuntime};
use crate::backend::{
    BackendMachine, BackendStep, CloseMode, InputKind, RequestReply, StartSessionParams, SubmitParams,
};
use crate::event::EventKind;
use crate::permission;
use acp_shared::codes::Code;
use acp_shared::ids::{LeaseId, RunId};
use serde_json::{Value, json};

/// The agent of the direct backend, which does what the protocol says.
#[derive(Default)]
struct Peer {
    forgetful: bool,
}

impl Peer {
    /// What the agent answers at once: handshake, settings, probes.
    fn answers(&self, sent: &str) -> Vec<String> {
        let sent: Value = serde_json::from_str(sent).unwrap();
        let mut body = match sent["method"].as_str() {
            Some("initialize") => json!({ "result": {
                "protocolVersion": 1,
                "agentCapabilities": { "loadSession": !self.forgetful },
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

    /// A piece of the agent's message.
    fn says(&self, text: &str) -> String {
        json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "update": {
            "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text },
        }}})
        .to_string()
    }

    /// A permission request under this id of the agent.
    fn asks(&self, id: u64) -> String {
        json!({ "jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": {
            "options": [{ "optionId": "yes", "name": "Yes", "kind": "allow_once" }],
        }})
        .to_string()
    }

    /// The end of a turn.
    fn ends(&self, run_id: RunId, stop_reason: &str) -> String {
        json!({ "jsonrpc": "2.0", "id": format!("prompt:{run_id}"), "result": { "stopReason": stop_reason } })
            .to_string()
    }

    /// The failure of a turn.
    fn fails(&self, run_id: RunId) -> String {
        json!({ "jsonrpc": "2.0", "id": format!("prompt:{run_id}"), "error": { "code": -32603, "message": "m" } })
            .to_string()
    }
}

/// A backend's machine with its agent, restored from its saved text before every call when `restarts`.
struct Rig {
    peer: Peer,
    runtime: DirectRuntime,
    link: Box<dyn BackendMachine>,
    restarts: bool,
    at: u64,
    log: Vec<BackendStep>,
}

impl Rig {
    fn new(peer: Peer, restarts: bool) -> Self {
        let runtime = DirectRuntime::default();
        let link = runtime.machine(None).unwrap();
        Self { peer, runtime, link, restarts, at: 0, log: Vec::new() }
    }

    /// One call, and everything that the agent answers to at once.
    fn call(&mut self, act: impl FnOnce(&mut dyn BackendMachine) -> Vec<BackendStep>) -> Vec<BackendStep> {
        if self.restarts {
            self.link = self.runtime.machine(Some(&self.link.save())).unwrap();
        }
        let mut steps = act(self.link.as_mut());
        let mut lines = Vec::new();
        for step in &steps {
            if let BackendStep::Send { bytes, .. } = step {
                let text = std::str::from_utf8(bytes).unwrap();
                let line = text.strip_suffix('\n').expect("a message ends with a newline");
                assert!(!line.contains('\n'), "one message is one line: {line}");
                lines.extend(self.peer.answers(line));
            }
        }
        self.log.extend(steps.iter().cloned());
        for line in lines {
            steps.extend(self.line(&line));
        }
        steps
    }

    fn line(&mut self, line: &str) -> Vec<BackendStep> {
        let at = self.at;
        self.at += line.len() as u64 + 1;
        self.call(|link| link.stream(at, line.as_bytes()))
    }

    fn open(&mut self, lease_id: LeaseId, resume: Option<&str>) -> Vec<BackendStep> {
        self.at = 0;
        let (cwd, resume) = ("/work space".to_owned(), resume.map(str::to_owned));
        let input = StartSessionParams { lease_id, cwd, resume, asks: true, ..direct::tests::ensure() };
        self.call(|link| link.start_session(&input))
    }

    fn submit(&mut self, run_id: RunId, steer: bool) -> Vec<BackendStep> {
        self.call(|link| {
            link.submit(&SubmitParams { run_id, text: "do\n\"it\"".to_owned(), files: None, steer })
        })
    }

    fn answer(&mut self, at: u64) -> Vec<BackendStep> {
        let outcome = Ok(permission::selected_result("yes"));
        self.call(|link| link.answer(&RequestReply { at, outcome, is_rejection: false }))
    }
}

fn sends(steps: &[BackendStep]) -> Vec<InputKind> {
    let kind = |step: &BackendStep| match step {
        BackendStep::Send { kind, .. } => Some(*kind),
        _ => None,
    };
    steps.iter().filter_map(kind).collect()
}

fn asked(steps: &[BackendStep]) -> Vec<u64> {
    let at = |step: &BackendStep| match step {
        BackendStep::Request(ask) => Some(ask.at),
        _ => None,
    };
    steps.iter().filter_map(at).collect()
}

fn said(steps: &[BackendStep]) -> Vec<Option<RunId>> {
    let run = |step: &BackendStep| match step {
        BackendStep::Event(event) if event.kind == EventKind::AgentMessage => Some(event.run_id),
        _ => None,
    };
    steps.iter().filter_map(run).collect()
}

fn ended(steps: &[BackendStep]) -> Vec<(RunId, &str)> {
    fn end(step: &BackendStep) -> Option<(RunId, &str)> {
        match step {
            BackendStep::TurnDone { run_id, stop_reason, .. } => Some((*run_id, stop_reason.as_str())),
            BackendStep::TurnFailed { run_id, .. } => Some((*run_id, "failed")),
            _ => None,
        }
    }
    steps.iter().filter_map(end).collect()
}

/// The whole life of a session, each promise checked where it falls due. Returns everything the machine did.
fn life(mut rig: Rig, lease: LeaseId, runs: &[RunId; 4]) -> Vec<BackendStep> {
    assert!(!rig.link.can_steer());
    let opened = rig.open(lease, None);
    let ready = |step: &&BackendStep| matches!(step, BackendStep::Ready { agent_session_id, .. } if !agent_session_id.is_empty());
    assert_eq!(opened.iter().filter(ready).count(), 1, "{opened:?}");
    let last = opened.last();
    assert!(matches!(last, Some(BackendStep::Ready { .. })), "nothing comes after Ready: {opened:?}");

    // A turn: sent once, its words are its own, and its end comes last.
    let [first, second, third, fourth] = *runs;
    assert_eq!(sends(&rig.submit(first, false)), [InputKind::Prompt { run_id: first }]);
    assert_eq!(said(&rig.line(&rig.peer.says("a"))), [Some(first)]);
    assert_eq!(ended(&rig.submit(second, false)), [(second, "failed")], "one turn at a time");
    assert_eq!(said(&rig.line(&rig.peer.says("b"))), [Some(first)]);
    let done = rig.line(&rig.peer.ends(first, "end_turn"));
    assert_eq!(ended(&done), [(first, "end_turn")]);
    assert!(ended(&rig.line(&rig.peer.ends(first, "end_turn"))).is_empty(), "a turn ends once");
    assert_eq!(said(&rig.line(&rig.peer.says("late"))), [None], "late text belongs to no turn");

    // Questions are named by their offset, and are answered once.
    rig.submit(second, false);
    let one = asked(&rig.line(&rig.peer.asks(0)));
    let two = asked(&rig.line(&rig.peer.asks(0)));
    assert!(one.len() == 1 && two.len() == 1 && one != two, "two requests with one id are two");
    assert_eq!(sends(&rig.answer(two[0])), [InputKind::Answer { at: two[0] }]);
    assert!(sends(&rig.answer(two[0])).is_empty(), "an answer is sent once");
    assert!(sends(&rig.answer(u64::MAX)).is_empty(), "an unknown request gets no answer");

    // Cancel touches the running turn only; the turn's end takes its questions back before it is said.
    assert!(sends(&rig.call(|link| link.cancel(first))).is_empty());
    assert_eq!(sends(&rig.call(|link| link.cancel(second))), [InputKind::Cancel { run_id: second }]);
    let end = rig.line(&rig.peer.ends(second, "cancelled"));
    assert_eq!(ended(&end), [(second, "cancelled")]);
    assert!(matches!(end.last(), Some(BackendStep::TurnDone { .. })), "{end:?}");
    assert!(end.contains(&BackendStep::RequestWithdrawn { at: one[0] }), "{end:?}");
    assert!(sends(&rig.answer(one[0])).is_empty(), "too late");

    // Nonsense is tolerated, and the session goes on.
    for line in ["", "Loading…", "{\"", "[]", "[{}]", "7", "null", "{}", "{\"id\":null}"] {
        let steps = rig.line(line);
        let bad = |s: &BackendStep| {
            matches!(s, BackendStep::Failed(_) | BackendStep::Send { .. } | BackendStep::Request(_))
        };
        assert!(ended(&steps).is_empty() && !steps.iter().any(bad), "{line}: {steps:?}");
    }
    assert!(rig.call(|link| link.probe()).contains(&BackendStep::ProbeAnswered));

    // A failing turn is the turn's failure, not the session's.
    rig.submit(third, false);
    assert_eq!(ended(&rig.line(&rig.peer.fails(third))), [(third, "failed")]);
    rig.submit(fourth, false);
    let steer = RunId::mint();
    if !rig.link.can_steer() {
        assert_eq!(rig.submit(steer, true), [BackendStep::Steered { run_id: steer, taken: false }]);
    }
    rig.line(&rig.peer.ends(fourth, "end_turn"));
    assert_eq!(rig.call(|link| link.close(CloseMode::Discard)).last(), Some(&BackendStep::CloseAnswered));
    rig.log
}

#[test]
fn a_whole_life() {
    let (lease, runs) = (LeaseId::mint(), [(); 4].map(|()| RunId::mint()));
    // The steer's id is minted inside, so it is left out of the comparison.
    let comparable = |log: Vec<BackendStep>| -> Vec<BackendStep> {
        log.into_iter().filter(|step| !matches!(step, BackendStep::Steered { .. })).collect()
    };
    let straight = comparable(life(Rig::new(Peer::default(), false), lease, &runs));
    let restarted = comparable(life(Rig::new(Peer::default(), true), lease, &runs));
    assert_eq!(straight, restarted, "a machine that is restored before every call does the same");
}

#[test]
fn it_never_begins_a_new_conversation_by_itself() {
    let mut rig = Rig::new(Peer { forgetful: true }, true);
    let steps = rig.open(LeaseId::mint(), Some("old"));
    let refused = |step: &BackendStep| matches!(step, BackendStep::Failed(failure) if failure.code == Code::ResumeUnavailable);
    assert!(steps.iter().any(refused), "{steps:?}");
    for step in &steps {
        assert!(!matches!(step, BackendStep::Ready { .. }));
        if let BackendStep::Send { bytes, .. } = step {
            assert!(!std::str::from_utf8(bytes).unwrap().contains("session/new"), "{step:?}");
        }
    }
}

#[test]
fn an_old_conversation_goes_on_and_its_replay_is_not_news() {
    let mut rig = Rig::new(Peer::default(), true);
    let steps = rig.open(LeaseId::mint(), Some("old"));
    let ready = |step: &BackendStep| matches!(step, BackendStep::Ready { agent_session_id, resumable: true, .. } if agent_session_id == "old");
    assert!(steps.iter().any(ready), "{steps:?}");
    let run_id = RunId::mint();
    let replay = rig.line(&rig.peer.says("old words"));
    assert!(said(&replay).is_empty(), "updates before the first prompt are a replay: {replay:?}");
    rig.submit(run_id, false);
    assert_eq!(said(&rig.line(&rig.peer.says("new words"))), [Some(run_id)]);
}

#[test]
fn another_process_starts_from_nothing() {
    let mut rig = Rig::new(Peer::default(), true);
    rig.open(LeaseId::mint(), None);
    let run_id = RunId::mint();
    rig.submit(run_id, false);
    let ask = asked(&rig.line(&rig.peer.asks(0)));
    rig.open(LeaseId::mint(), None);
    let end = rig.line(&rig.peer.ends(run_id, "end_turn"));
    assert!(ended(&end).is_empty(), "the turn belonged to another process");
    assert!(sends(&rig.answer(ask[0])).is_empty(), "the request belonged to another process (H4)");
}

#[test]
fn state_of_something_else_is_refused() {
    for text in ["{", "[1]", "7", "\"x\""] {
        assert!(DirectRuntime::default().machine(Some(text)).is_err(), "{text}");
    }
}
