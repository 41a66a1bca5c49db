//! The smallest backend that keeps the contract: lines of `verb rest`, state as JSON. It shows that the suite
//! asks for nothing that is ACP's.

use super::Peer;
use crate::backend::{
    AgentRequest, AgentRequestKind, BackendMachine, BackendStep, CloseMode, InputKind, OptionChange,
    PermissionOption, RequestReply, StartSessionParams, SubmitParams,
};
use crate::event::{EventKind, NewEvent};
use crate::failure::Failure;
use crate::runtime::{BackendHealth, MachineStateError, Runtime};
use acp_shared::codes::Code;
use acp_shared::ids::RunId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

struct FakeRuntime;

impl Runtime for FakeRuntime {
    fn id(&self) -> &'static str {
        "fake"
    }

    fn machine(&self, saved: Option<&str>) -> Result<Box<dyn BackendMachine>, MachineStateError> {
        let link: FakeLink = saved.map(serde_json::from_str).transpose()?.unwrap_or_default();
        Ok(Box::new(link))
    }

    fn health(&self) -> BackendHealth {
        BackendHealth { ok: true, details: String::new() }
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FakeLink {
    old: Option<String>,
    open: bool,
    prompted: bool,
    turn: Option<RunId>,
    asks: BTreeMap<u64, String>,
}

fn send(line: &str, kind: InputKind) -> BackendStep {
    BackendStep::Send { bytes: format!("{line}\n").into_bytes(), kind }
}

impl FakeLink {
    fn end(&mut self, rest: &str) -> Vec<BackendStep> {
        let (run, reason) = rest.split_once(' ').unwrap_or((rest, ""));
        let (Ok(run_id), Some(turn)) = (RunId::parse(run), self.turn) else { return Vec::new() };
        if run_id != turn {
            return Vec::new();
        }
        self.turn = None;
        let mut steps: Vec<_> = std::mem::take(&mut self.asks)
            .into_keys()
            .map(|at| BackendStep::RequestWithdrawn { at })
            .collect();
        steps.push(match reason {
            "failed" => BackendStep::TurnFailed { run_id, failure: Failure::of(Code::TurnFailed) },
            _ => BackendStep::TurnDone { run_id, stop_reason: reason.to_owned(), result: "{}".to_owned() },
        });
        steps
    }
}

impl BackendMachine for FakeLink {
    fn start_session(&mut self, input: &StartSessionParams) -> Vec<BackendStep> {
        *self = Self { old: input.resume.clone(), ..Self::default() };
        vec![send(input.resume.as_deref().map_or("new", |_| "resume"), InputKind::Control)]
    }

    fn submit(&mut self, input: &SubmitParams) -> Vec<BackendStep> {
        let run_id = input.run_id;
        if input.steer {
            return vec![BackendStep::Steered { run_id, taken: false }];
        }
        if self.turn.is_some() || !self.open {
            return vec![BackendStep::TurnFailed { run_id, failure: Failure::of(Code::Runtime) }];
        }
        (self.turn, self.prompted) = (Some(run_id), true);
        vec![send("prompt", InputKind::Prompt { run_id })]
    }

    fn stream(&mut self, at: u64, line: &[u8]) -> Vec<BackendStep> {
        let line = String::from_utf8_lossy(line);
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match verb {
            "opened" => {
                self.open = true;
                let agent_session_id = self.old.clone().unwrap_or_else(|| rest.to_owned());
                vec![BackendStep::Ready { agent_session_id, resumable: true, agent_info: "{}".to_owned() }]
            }
            "gone" => vec![BackendStep::Failed(Failure::of(Code::ResumeUnavailable))],
            "say" => {
                let replay = self.old.is_some() && !self.prompted;
                let kind = if replay { EventKind::Replay } else { EventKind::AgentMessage };
                vec![BackendStep::Event(NewEvent { run_id: self.turn, kind, payload: "{}".to_owned() })]
            }
            "ask" => {
                self.asks.insert(at, rest.to_owned());
                let option =
                    PermissionOption { id: "yes".into(), name: "yes".into(), kind: "allow_once".into() };
                let what = AgentRequestKind::Permission {
                    title: "?".into(),
                    tool_kind: None,
                    options: vec![option],
                };
                let (method, params) = ("ask".to_owned(), "{}".to_owned());
                vec![BackendStep::Request(AgentRequest { at, run_id: self.turn, method, params, what })]
            }
            "end" => self.end(rest),
            "pong" => vec![BackendStep::ProbeAnswered],
            other => vec![BackendStep::Log(format!("unknown: {other}"))],
        }
    }

    fn answer(&mut self, answer: &RequestReply) -> Vec<BackendStep> {
        let at = answer.at;
        self.asks
            .remove(&at)
            .map(|id| vec![send(&format!("answer {id}"), InputKind::Answer { at })])
            .unwrap_or_default()
    }

    fn cancel(&mut self, run_id: RunId) -> Vec<BackendStep> {
        if self.turn == Some(run_id) {
            vec![send("cancel", InputKind::Cancel { run_id })]
        } else {
            Vec::new()
        }
    }

    fn set_option(&mut self, _: &OptionChange) -> Vec<BackendStep> {
        Vec::new()
    }

    fn close(&mut self, _: CloseMode) -> Vec<BackendStep> {
        vec![BackendStep::CloseAnswered]
    }

    fn can_discard(&self) -> bool {
        false
    }

    fn probe(&mut self) -> Vec<BackendStep> {
        vec![send("ping", InputKind::Control)]
    }

    fn can_steer(&self) -> bool {
        false
    }

    fn save(&self) -> String {
        serde_json::to_string(self).unwrap()
    }
}

#[derive(Default)]
pub(super) struct FakePeer {
    forgetful: bool,
}

impl Peer for FakePeer {
    fn runtime(&self) -> Box<dyn Runtime> {
        Box::new(FakeRuntime)
    }

    fn set_resumable(&mut self, resumable: bool) {
        self.forgetful = !resumable;
    }

    fn answers(&self, sent: &str) -> Vec<String> {
        let line = match sent {
            "new" => "opened s1",
            "resume" if self.forgetful => "gone",
            "resume" => "opened",
            "ping" => "pong",
            _ => return Vec::new(),
        };
        vec![line.to_owned()]
    }

    fn begins_conversation(&self, sent: &str) -> bool {
        sent == "new"
    }

    fn says(&self, text: &str) -> String {
        format!("say {text}")
    }

    fn asks(&self, id: u64) -> String {
        format!("ask {id}")
    }

    fn ends(&self, run_id: RunId, stop_reason: &str) -> String {
        format!("end {run_id} {stop_reason}")
    }

    fn fails(&self, run_id: RunId) -> String {
        format!("end {run_id} failed")
    }
}
