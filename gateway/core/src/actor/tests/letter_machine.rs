//! Backend for the actor's tests, with its session and limits. It keeps the contract of all backends
//! (`runtime/contract_tests.rs`).

use super::*;
use crate::agent_settings::OptionChange;
use crate::agent_settings::{AgentSettings, Choices, SettingsReport};
use crate::backend::LineFault;
use crate::backend::{
    AgentRequest, AgentRequestKind, BackendMachine, BackendStep, CloseMode, InputKind, PermissionOption,
    RequestReply, StartSessionParams, SubmitParams,
};
use crate::config::PermissionMode;
use crate::event::{EventKind, NewEvent};
use crate::failure::Failure;
use crate::jsonrpc::RpcError;
use crate::session::SessionState;
use acp_shared::codes::Code;
use acp_shared::ids::{AgentName, SessionKey};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Backend whose protocol has one letter per line.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct LetterMachine {
    running: Option<RunId>,
    /// Requests without an answer, and the answer at the end of their turn if they end with it.
    asked: BTreeMap<u64, Option<String>>,
    /// True until the first prompt to a process that continues a conversation.
    replays: bool,
    close_mode: Option<CloseMode>,
    sets: Vec<OptionChange>,
    /// Parameters with which each process was opened.
    #[serde(skip)]
    pub(super) start_params: Arc<Mutex<Vec<StartSessionParams>>>,
    /// True if the process decides permissions itself.
    #[serde(skip)]
    pub(super) decides: bool,
    /// True if the process is not the agent.
    #[serde(skip)]
    pub(super) is_proxy: bool,
}

impl Default for ActorLimits {
    fn default() -> Self {
        Self {
            queue_runs_max: 4,
            prompt_bytes_max: 1000,
            line_bytes_max: 1 << 20,
            cancel_ms: 1_000,
            close_wait_ms: 500,
            turn_ms: 0,
            reconcile_ms: 20_000,
            runtime_idle_ms: 0,
            silent_ms: 60_000,
            permission_ms: 10_000,
            probe_ms: 300_000,
            alive_ms: 30_000,
        }
    }
}

pub(super) fn new_session() -> SessionRow {
    let agent = AgentName::parse("letters").unwrap();
    let session_key = SessionKey::mint(&agent);
    SessionRow {
        session_key: session_key.clone(),
        backend: "letters".to_owned(),
        agent,
        cwd: "/w".to_owned(),
        state: SessionState::Creating,
        owner_session_key: Some(session_key),
        resumable: false,
        created_at_ms: 0,
        updated_at_ms: 0,
        last_activity_at_ms: 0,
        ..crate::tests::session()
    }
}

fn send(text: String, kind: InputKind) -> BackendStep {
    BackendStep::Send { bytes: format!("{text}\n").into_bytes(), kind }
}

fn answered(at: u64, outcome: &Result<String, RpcError>) -> BackendStep {
    send(format!("answer {outcome:?}"), InputKind::Answer { at })
}

impl LetterMachine {
    /// Ends the running turn, if there is one: withdraws its requests, then reports `end`.
    fn end_turn(&mut self, end: impl FnOnce(RunId) -> BackendStep) -> Vec<BackendStep> {
        let Some(run_id) = self.running.take() else { return Vec::new() };
        let mut steps: Vec<BackendStep> = Vec::new();
        self.asked.retain(|at, cancelled| {
            let Some(cancelled) = cancelled.take() else { return true };
            steps.push(BackendStep::RequestWithdrawn { at: *at });
            steps.push(answered(*at, &Ok(cancelled)));
            false
        });
        steps.push(end(run_id));
        if let Some(close_mode) = self.close_mode.take() {
            steps.extend(self.close(close_mode));
        }
        steps
    }

    /// Reads one line.
    fn read(&mut self, at: u64, text: &str) -> Vec<BackendStep> {
        let run_id = self.running;
        let request = |method: &str, params: String, what: AgentRequestKind| {
            let (method, is_recalled) = (method.to_owned(), false);
            let voters = crate::permission::Voters::Anyone;
            vec![BackendStep::Request(AgentRequest { at, run_id, method, params, what, is_recalled, voters })]
        };
        let letter = text.chars().next().map_or(0, char::len_utf8);
        match text.split_at(letter) {
            ("R", id) => vec![BackendStep::Ready {
                agent_session_id: id.to_owned(),
                resumable: id != "unresumable",
                agent_info: "{}".to_owned(),
            }],
            ("T", payload) => {
                let payload = payload.to_owned();
                let kind = if self.replays { EventKind::Replay } else { EventKind::AgentMessage };
                vec![BackendStep::Event(NewEvent { run_id, kind, payload, extra: None })]
            }
            ("A", _) => vec![BackendStep::ProbeAnswered],
            ("N", _) => vec![BackendStep::Failed(Failure::of(Code::ResumeUnavailable))],
            ("D", reason) => {
                let stop_reason = if reason.is_empty() { "end_turn" } else { reason }.to_owned();
                let result = format!("{{\"stopReason\":\"{stop_reason}\"}}");
                self.end_turn(|run_id| BackendStep::TurnDone { run_id, stop_reason, result })
            }
            ("X", _) => self.end_turn(|run_id| {
                let failure = Failure::of(Code::TurnFailed);
                BackendStep::TurnFailed { run_id, failure }
            }),
            ("F", _) => vec![BackendStep::CloseAnswered],
            ("S", answer) => vec![BackendStep::OptionAnswered {
                option: self.sets.remove(0),
                is_own: true,
                is_taken: answer == "yes",
                text: format!("the agent says {answer}"),
            }],
            ("M", mode) => vec![BackendStep::SettingsReported(SettingsReport::All(AgentSettings {
                modes: Some(Choices { current: None, values: vec![mode.to_owned()] }),
                ..AgentSettings::default()
            }))],
            ("K", word) => vec![BackendStep::AskGuarantee(serde_json::from_value(word.into()).unwrap())],
            ("P", call) => {
                let call_json: serde_json::Value = serde_json::from_str(call).unwrap_or_default();
                let tool_kind = call_json["kind"].as_str().unwrap_or("edit").to_owned();
                let option = |id: &str, kind: &str| PermissionOption {
                    id: id.to_owned(),
                    name: id.to_owned(),
                    kind: kind.to_owned(),
                };
                let options = [("yes", "allow_once"), ("ever", "allow_always"), ("no", "reject_once")];
                let what = AgentRequestKind::Permission {
                    title: "edit".to_owned(),
                    tool_kind: Some(tool_kind),
                    options: options.map(|(id, kind)| option(id, kind)).to_vec(),
                };
                let params =
                    if call.is_empty() { "{}".to_owned() } else { format!("{{\"toolCall\":{call}}}") };
                request("session/request_permission", params, what)
            }
            ("E", params) => {
                let form = crate::elicitation::parse(params).unwrap();
                request("elicitation/create", params.to_owned(), AgentRequestKind::of_elicitation(form))
            }
            ("W", text) => {
                let (path, content) = match text.split_once(' ') {
                    Some((path, content)) if path.starts_with('/') => (path, content),
                    _ => ("/w/f", text),
                };
                let what = AgentRequestKind::FsWrite { path: path.to_owned(), content: content.into() };
                request("fs/write_text_file", "{}".to_owned(), what)
            }
            ("G", path) => {
                let what = AgentRequestKind::FsRead { path: path.to_owned(), line: None, limit: None };
                request("fs/read_text_file", "{}".to_owned(), what)
            }
            ("?", _) => vec![send("no".to_owned(), InputKind::Answer { at })],
            ("C", given) => {
                // A command, or JSON with its directory and the name of a variable.
                let json: serde_json::Value = serde_json::from_str(given).unwrap_or_default();
                let text = |name: &str| json[name].as_str().map(str::to_owned);
                let what = AgentRequestKind::TerminalCreate {
                    command: text("command").unwrap_or_else(|| given.to_owned()),
                    args: Vec::new(),
                    env: text("env").map(|name| (name, "secret".to_owned())).into_iter().collect(),
                    cwd: text("cwd"),
                    output_bytes_max: None,
                };
                request("terminal/create", "{}".to_owned(), what)
            }
            ("", "") => Vec::new(),
            _ => vec![BackendStep::LineFault(LineFault::Malformed)],
        }
    }
}

impl BackendMachine for LetterMachine {
    fn own_permission_mode(&self, mode: PermissionMode) -> Option<PermissionMode> {
        self.decides.then_some(if mode == PermissionMode::Ask { PermissionMode::ApproveReads } else { mode })
    }
    fn start_session(&mut self, input: &StartSessionParams) -> Vec<BackendStep> {
        let start_params = Arc::clone(&self.start_params);
        let (decides, is_proxy) = (self.decides, self.is_proxy);
        *self = Self { start_params, decides, is_proxy, replays: input.resume.is_some(), ..Self::default() };
        self.start_params.lock().unwrap().push(input.clone());
        vec![send(format!("init {}", input.resume.as_deref().unwrap_or("-")), InputKind::Control)]
    }
    fn submit(&mut self, input: &SubmitParams) -> Vec<BackendStep> {
        let run_id = input.run_id;
        let text = input.text.replace('\n', "\\n");
        if input.steer {
            return vec![send(format!("steer {text}"), InputKind::Steer { run_id })];
        }
        if self.running.is_some() {
            return vec![BackendStep::TurnFailed { run_id, failure: Failure::of(Code::Runtime) }];
        }
        self.running = Some(run_id);
        self.replays = false;
        vec![send(format!("prompt {text}"), InputKind::Prompt { run_id })]
    }
    fn stream(&mut self, at: u64, line: &[u8]) -> Vec<BackendStep> {
        let steps = self.read(at, std::str::from_utf8(line).unwrap());
        for step in &steps {
            if let BackendStep::Request(request) = step {
                let cancelled = match &request.what {
                    AgentRequestKind::Permission { .. } => Some(crate::permission::cancelled_result()),
                    AgentRequestKind::Elicitation { .. } => {
                        Some(crate::elicitation::result(&crate::elicitation::ElicitationAnswer::Cancel))
                    }
                    _ => None,
                };
                self.asked.insert(request.at, cancelled);
            }
        }
        steps
    }
    fn answer(&mut self, answer: &RequestReply) -> Vec<BackendStep> {
        let at = answer.at;
        if self.asked.remove(&at).is_none() {
            return Vec::new();
        }
        vec![answered(at, &answer.outcome)]
    }
    fn cancel(&mut self, run_id: RunId) -> Vec<BackendStep> {
        if self.running != Some(run_id) {
            return Vec::new();
        }
        vec![send("cancel".to_owned(), InputKind::Cancel { run_id })]
    }
    fn set_option(&mut self, option: &OptionChange) -> Vec<BackendStep> {
        self.sets.push(option.clone());
        vec![send(format!("set {option:?}"), InputKind::Control)]
    }
    fn close(&mut self, close_mode: CloseMode) -> Vec<BackendStep> {
        if self.running.is_some() {
            self.close_mode = Some(close_mode);
            return Vec::new();
        }
        match close_mode {
            CloseMode::Close => vec![BackendStep::CloseAnswered],
            CloseMode::Discard => vec![send("discard".to_owned(), InputKind::Control)],
        }
    }
    fn can_discard(&self) -> bool {
        true
    }
    fn probe(&mut self) -> Vec<BackendStep> {
        vec![send("ping".to_owned(), InputKind::Control)]
    }
    fn can_steer(&self) -> bool {
        self.running.is_some()
    }
    fn is_proxy(&self) -> bool {
        self.is_proxy
    }
    fn save(&self) -> String {
        serde_json::to_string(self).unwrap()
    }
}
