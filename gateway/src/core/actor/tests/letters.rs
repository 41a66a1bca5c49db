//! Backend for the actor's tests.

use super::*;
use crate::core::agent_settings::{AgentSettings, Choices, Report};
use crate::core::event::{EventKind, NewEvent};
use crate::core::link::{
    Answer, Ask, EnsureSession, Goodbye, Link, LinkStep, Meaning, PermissionOption, SetOption, Submit, Wanted,
};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};

/// Backend whose protocol has one letter per line.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(super) struct LetterLink {
    running: Option<RunId>,
    pub(super) asked: Vec<u64>,
    goodbye: Option<Goodbye>,
    /// Option changes without an answer.
    sets: Vec<SetOption>,
    /// Parameters with which each process was opened.
    #[serde(skip)]
    pub(super) ensured: Arc<Mutex<Vec<EnsureSession>>>,
}

fn send(text: String, meaning: Meaning) -> LinkStep {
    LinkStep::Send { bytes: format!("{text}\n").into_bytes(), meaning }
}

impl Link for LetterLink {
    fn ensure_session(&mut self, input: &EnsureSession) -> Vec<LinkStep> {
        *self = Self { ensured: Arc::clone(&self.ensured), ..Self::default() };
        self.ensured.lock().unwrap().push(input.clone());
        vec![send(format!("init {}", input.resume.as_deref().unwrap_or("-")), Meaning::Control)]
    }
    fn submit(&mut self, input: &Submit) -> Vec<LinkStep> {
        let run_id = input.run_id;
        if input.steer {
            return vec![send(format!("steer {}", input.text), Meaning::Steer { run_id })];
        }
        self.running = Some(run_id);
        vec![send(format!("prompt {}", input.text), Meaning::Prompt { run_id })]
    }
    fn stream(&mut self, at: u64, line: &[u8]) -> Vec<LinkStep> {
        let text = String::from_utf8(line.to_vec()).unwrap();
        let run_id = self.running;
        match text.split_at(1) {
            ("R", id) => vec![LinkStep::Ready {
                agent_session_id: id.to_owned(),
                resumable: id != "unresumable",
                agent_info: "{}".to_owned(),
            }],
            ("T", payload) => {
                let payload = payload.to_owned();
                vec![LinkStep::Event(NewEvent { run_id, kind: EventKind::AgentMessage, payload })]
            }
            ("A", _) => vec![LinkStep::Alive],
            ("D", reason) => {
                self.running = None;
                let stop_reason = if reason.is_empty() { "end_turn" } else { reason }.to_owned();
                let result = format!("{{\"stopReason\":\"{stop_reason}\"}}");
                let mut steps = vec![LinkStep::TurnDone { run_id: run_id.unwrap(), stop_reason, result }];
                if let Some(goodbye) = self.goodbye.take() {
                    steps.extend(self.close(goodbye));
                }
                steps
            }
            ("F", _) => vec![LinkStep::Farewell],
            ("S", answer) => vec![LinkStep::OptionAnswered {
                option: self.sets.remove(0),
                is_own: true,
                is_taken: answer == "yes",
                text: format!("the agent says {answer}"),
            }],
            ("M", mode) => vec![LinkStep::Reported(Report::All(AgentSettings {
                modes: Some(Choices { current: None, values: vec![mode.to_owned()] }),
                ..AgentSettings::new()
            }))],
            ("K", word) => vec![LinkStep::Asking(serde_json::from_value(word.into()).unwrap())],
            ("P", call) => {
                self.asked.push(at);
                let given: serde_json::Value = serde_json::from_str(call).unwrap_or_default();
                let tool_kind = given["kind"].as_str().unwrap_or("edit").to_owned();
                let option = |id: &str, kind: &str| PermissionOption {
                    id: id.to_owned(),
                    name: id.to_owned(),
                    kind: kind.to_owned(),
                };
                vec![LinkStep::Ask(Ask {
                    at,
                    run_id,
                    method: "session/request_permission".to_owned(),
                    params: if call.is_empty() {
                        "{}".to_owned()
                    } else {
                        format!("{{\"toolCall\":{call}}}")
                    },
                    what: Wanted::Permission {
                        title: "edit".to_owned(),
                        tool_kind: Some(tool_kind),
                        options: vec![
                            option("yes", "allow_once"),
                            option("ever", "allow_always"),
                            option("no", "reject_once"),
                        ],
                    },
                })]
            }
            ("W", text) => {
                let (path, content) = match text.split_once(' ') {
                    Some((path, content)) if path.starts_with('/') => (path, content),
                    _ => ("/w/f", text),
                };
                vec![LinkStep::Ask(Ask {
                    at,
                    run_id,
                    method: "fs/write_text_file".to_owned(),
                    params: "{}".to_owned(),
                    what: Wanted::FsWrite { path: path.to_owned(), content: content.to_owned() },
                })]
            }
            ("G", path) => vec![LinkStep::Ask(Ask {
                at,
                run_id,
                method: "fs/read_text_file".to_owned(),
                params: "{}".to_owned(),
                what: Wanted::FsRead { path: path.to_owned(), line: None, limit: None },
            })],
            ("?", _) => vec![send("no".to_owned(), Meaning::Answer { at })],
            ("C", command) => vec![LinkStep::Ask(Ask {
                at,
                run_id,
                method: "terminal/create".to_owned(),
                params: "{}".to_owned(),
                what: Wanted::TerminalCreate {
                    command: command.to_owned(),
                    args: Vec::new(),
                    env: Vec::new(),
                    cwd: None,
                    output_bytes_max: None,
                },
            })],
            other => panic!("unknown line {other:?}"),
        }
    }
    fn answer(&mut self, answer: &Answer) -> Vec<LinkStep> {
        let at = answer.at;
        vec![send(format!("answer {:?}", answer.outcome), Meaning::Answer { at })]
    }
    fn cancel(&mut self, run_id: RunId) -> Vec<LinkStep> {
        vec![send("cancel".to_owned(), Meaning::Cancel { run_id })]
    }
    fn set_option(&mut self, option: &SetOption) -> Vec<LinkStep> {
        self.sets.push(option.clone());
        vec![send(format!("set {option:?}"), Meaning::Control)]
    }
    fn close(&mut self, goodbye: Goodbye) -> Vec<LinkStep> {
        if self.running.is_some() {
            self.goodbye = Some(goodbye);
            return Vec::new();
        }
        match goodbye {
            Goodbye::Close => vec![LinkStep::Farewell],
            Goodbye::Discard => vec![send("discard".to_owned(), Meaning::Control)],
        }
    }
    fn can_discard(&self) -> bool {
        true
    }
    fn probe(&mut self) -> Vec<LinkStep> {
        vec![send("ping".to_owned(), Meaning::Control)]
    }
    fn can_steer(&self) -> bool {
        true
    }
    fn save(&self) -> String {
        serde_json::to_string(self).unwrap()
    }
}
