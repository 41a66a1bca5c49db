//! Backend for the actor's tests, with its session and limits.

use super::*;
use crate::agent_settings::OptionChange;
use crate::agent_settings::{AgentSettings, Choices, SettingsReport};
use crate::backend::{
    AgentRequest, AgentRequestKind, BackendMachine, BackendStep, CloseMode, InputKind, PermissionOption,
    RequestReply, StartSessionParams, SubmitParams,
};
use crate::config::PermissionMode;
use crate::event::{EventKind, NewEvent};
use crate::session::SessionState;
use acp_shared::ids::{AgentName, SessionKey};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};

/// Backend whose protocol has one letter per line.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(super) struct LetterMachine {
    running: Option<RunId>,
    pub(super) asked: Vec<u64>,
    close_mode: Option<CloseMode>,
    sets: Vec<OptionChange>,
    /// Parameters with which each process was opened.
    #[serde(skip)]
    pub(super) start_params: Arc<Mutex<Vec<StartSessionParams>>>,
    /// True if the process decides permissions itself.
    #[serde(skip)]
    pub(super) decides: bool,
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

impl BackendMachine for LetterMachine {
    fn own_permission_mode(&self, mode: PermissionMode) -> Option<PermissionMode> {
        self.decides.then_some(if mode == PermissionMode::Ask { PermissionMode::ApproveReads } else { mode })
    }
    fn start_session(&mut self, input: &StartSessionParams) -> Vec<BackendStep> {
        let start_params = Arc::clone(&self.start_params);
        *self = Self { start_params, decides: self.decides, ..Self::default() };
        self.start_params.lock().unwrap().push(input.clone());
        vec![send(format!("init {}", input.resume.as_deref().unwrap_or("-")), InputKind::Control)]
    }
    fn submit(&mut self, input: &SubmitParams) -> Vec<BackendStep> {
        let run_id = input.run_id;
        if input.steer {
            return vec![send(format!("steer {}", input.text), InputKind::Steer { run_id })];
        }
        self.running = Some(run_id);
        vec![send(format!("prompt {}", input.text), InputKind::Prompt { run_id })]
    }
    fn stream(&mut self, at: u64, line: &[u8]) -> Vec<BackendStep> {
        let text = String::from_utf8(line.to_vec()).unwrap();
        let run_id = self.running;
        let request = |method: &str, params: String, what: AgentRequestKind| {
            let (method, is_recalled) = (method.to_owned(), false);
            let voters = crate::permission::Voters::Anyone;
            vec![BackendStep::Request(AgentRequest { at, run_id, method, params, what, is_recalled, voters })]
        };
        match text.split_at(1) {
            ("R", id) => vec![BackendStep::Ready {
                agent_session_id: id.to_owned(),
                resumable: id != "unresumable",
                agent_info: "{}".to_owned(),
            }],
            ("T", payload) => {
                let payload = payload.to_owned();
                vec![BackendStep::Event(NewEvent {
                    run_id,
                    kind: EventKind::AgentMessage,
                    payload,
                    extra: None,
                })]
            }
            ("A", _) => vec![BackendStep::ProbeAnswered],
            ("D", reason) => {
                self.running = None;
                let stop_reason = if reason.is_empty() { "end_turn" } else { reason }.to_owned();
                let result = format!("{{\"stopReason\":\"{stop_reason}\"}}");
                let mut steps = vec![BackendStep::TurnDone { run_id: run_id.unwrap(), stop_reason, result }];
                if let Some(close_mode) = self.close_mode.take() {
                    steps.extend(self.close(close_mode));
                }
                steps
            }
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
                self.asked.push(at);
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
                self.asked.push(at);
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
            other => panic!("unknown line {other:?}"),
        }
    }
    fn answer(&mut self, answer: &RequestReply) -> Vec<BackendStep> {
        let at = answer.at;
        vec![send(format!("answer {:?}", answer.outcome), InputKind::Answer { at })]
    }
    fn cancel(&mut self, run_id: RunId) -> Vec<BackendStep> {
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
        true
    }
    fn save(&self) -> String {
        serde_json::to_string(self).unwrap()
    }
}
