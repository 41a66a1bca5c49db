//! The open session: prompt, steer, cancel, options, probe, close, and the responses to them.

use super::state::{ActiveTurn, HandshakePhase, PENDING_MAX, booleans};
use super::{DirectMachine, control, lens};
use crate::agent_settings::OptionChange;
use crate::agent_settings::{ConfigOption, MODEL_OPTION, SettingsReport};
use crate::backend::{BackendStep, CloseMode, INPUT_BYTES_MAX, InputKind, SubmitParams, prompt_too_long};
use crate::failure::Failure;
use crate::jsonrpc::{self, CANCELLED, string};
use crate::sanitize;
use crate::{agent_settings, files};
use acp_shared::codes::Code;
use acp_shared::ids::RunId;
use serde_json::json;

impl DirectMachine {
    pub(super) fn prompt(&mut self, input: &SubmitParams) -> Vec<BackendStep> {
        let run_id = input.run_id;
        let (true, Some(session_id), None) =
            (self.state.phase == HandshakePhase::Ready, &self.state.session_id, &self.state.turn)
        else {
            let failure = Failure::of(Code::Runtime).detail("LINK_NOT_READY").origin("gateway");
            return vec![BackendStep::TurnFailed { run_id, failure }];
        };
        let params = json!({ "sessionId": session_id, "prompt": self.content(input) });
        let bytes = jsonrpc::request(&format!("prompt:{run_id}"), "session/prompt", &params.to_string());
        if bytes.len() > INPUT_BYTES_MAX {
            return vec![BackendStep::TurnFailed { run_id, failure: prompt_too_long(INPUT_BYTES_MAX) }];
        }
        let mut steps: Vec<BackendStep> = self.flush_half().into_iter().collect();
        self.state.prompted = true;
        self.state.turn = Some(ActiveTurn { run_id, cancelled: false, rejected: false });
        steps.push(BackendStep::Send { bytes, kind: InputKind::Prompt { run_id } });
        steps
    }

    /// Builds the content blocks of text and files that the agent supports.
    fn content(&self, input: &SubmitParams) -> serde_json::Value {
        files::content_blocks(&input.text, input.files.as_deref(), self.state.abilities.takes)
    }

    pub(super) fn steer(&mut self, input: &SubmitParams) -> Vec<BackendStep> {
        let run_id = input.run_id;
        let running = self.state.turn.is_some() && self.state.phase == HandshakePhase::Ready;
        if !running || !self.state.abilities.steer || self.state.steers.len() >= PENDING_MAX {
            return vec![BackendStep::Steered { run_id, taken: false }];
        }
        let params = json!({
            "sessionId": self.state.session_id,
            "prompt": self.content(input),
            // If the turn has just ended, the steer is returned instead of starting an unrequested turn.
            "_meta": { "steering": { "idleBehavior": "promptRequired" } },
        });
        let bytes = jsonrpc::request(&format!("steer:{run_id}"), "_session/steering", &params.to_string());
        if bytes.len() > INPUT_BYTES_MAX {
            return vec![BackendStep::Steered { run_id, taken: false }];
        }
        self.state.steers.push(run_id);
        vec![BackendStep::Send { bytes, kind: InputKind::Steer { run_id } }]
    }

    pub(super) fn cancel_turn(&mut self, run_id: RunId) -> Vec<BackendStep> {
        match &mut self.state.turn {
            Some(turn) if turn.run_id == run_id => turn.cancelled = true,
            _ => {
                return vec![BackendStep::Log(format!(
                    "nothing to cancel: run {run_id} is not the running turn"
                ))];
            }
        }
        let params = json!({ "sessionId": self.state.session_id });
        let bytes = jsonrpc::notification("session/cancel", &params.to_string());
        vec![BackendStep::Send { bytes, kind: InputKind::Cancel { run_id } }]
    }

    pub(super) fn change_option(&mut self, option: &OptionChange) -> Vec<BackendStep> {
        if self.add_to_opening(option) {
            return Vec::new();
        }
        if self.state.phase != HandshakePhase::Ready || self.state.changes.len() >= PENDING_MAX {
            let text = format!("The {option} was not requested: the agent's session is not ready.");
            return vec![self.answered_option(option.clone(), false, text)];
        }
        let (number, bytes) = self.option_request("set", option);
        self.state.changes.insert(number, option.clone());
        vec![control(bytes)]
    }

    /// Adds an option to a session that is still being opened. Returns false if it is not.
    fn add_to_opening(&mut self, option: &OptionChange) -> bool {
        let state = &mut self.state;
        match (state.phase, &mut state.wanted) {
            (
                HandshakePhase::Initializing
                | HandshakePhase::Authenticating
                | HandshakePhase::Creating
                | HandshakePhase::Resuming
                | HandshakePhase::Loading,
                Some(wanted),
            ) => {
                match option.clone() {
                    OptionChange::Mode(mode) => wanted.mode = Some(mode),
                    OptionChange::Config { id, value } => {
                        wanted.options.retain(|(have, _)| *have != id);
                        wanted.options.push((id, value));
                    }
                }
                state.own.push(option.clone());
                true
            }
            (HandshakePhase::Setting, _) if state.settings.len() < PENDING_MAX => {
                state.settings.push_back(option.clone());
                state.own.push(option.clone());
                true
            }
            _ => false,
        }
    }

    pub(super) fn option_request(&mut self, what: &str, option: &OptionChange) -> (u64, Vec<u8>) {
        let (number, id) = self.state.numbered(what);
        let session_id = &self.state.session_id;
        let (method, params) = match option {
            OptionChange::Config { id, value } if id == MODEL_OPTION && self.state.wire.has_set_model => {
                ("session/set_model", json!({ "sessionId": session_id, "modelId": value }))
            }
            OptionChange::Config { value, .. } => self.config_request(self.config_id(option), value),
            OptionChange::Mode(mode) if self.config_id(option).is_empty() => {
                ("session/set_mode", json!({ "sessionId": session_id, "modeId": mode }))
            }
            OptionChange::Mode(mode) => self.config_request(self.config_id(option), mode),
        };
        (number, jsonrpc::request(&id, method, &params.to_string()))
    }

    /// Returns the id of the config option for a change; empty for modes that have their own method.
    fn config_id<'a>(&'a self, option: &'a OptionChange) -> &'a str {
        match option {
            OptionChange::Mode(_) => self.state.modes.option_id.as_deref().unwrap_or_default(),
            OptionChange::Config { id, .. } if id == MODEL_OPTION => {
                self.state.wire.model.as_ref().unwrap_or(id)
            }
            OptionChange::Config { id, .. } => id,
        }
    }

    /// Returns the reported value after a change if it differs from the requested one.
    fn other_value<'a>(&self, option: &OptionChange, options: &'a [ConfigOption]) -> Option<&'a str> {
        let (OptionChange::Mode(asked) | OptionChange::Config { value: asked, .. }) = option;
        let id = self.config_id(option);
        let now = options.iter().find(|found| found.id == id)?;
        let value = now.choices.current.as_deref()?;
        let is_same =
            value == asked || (now.is_boolean && agent_settings::boolean(asked) == value.parse().ok());
        (!is_same).then_some(value)
    }

    fn config_request(&self, id: &str, value: &str) -> (&'static str, serde_json::Value) {
        let session_id = &self.state.session_id;
        let boolean = agent_settings::boolean(value).filter(|_| self.state.wire.booleans.contains(id));
        let params = match boolean {
            Some(value) => {
                json!({ "sessionId": session_id, "configId": id, "type": "boolean", "value": value })
            }
            None => json!({ "sessionId": session_id, "configId": id, "value": value }),
        };
        ("session/set_config_option", params)
    }

    /// Handles the response to a change; `is_open` is true for changes of an open session.
    pub(super) fn option_result(
        &mut self,
        option: OptionChange,
        outcome: Result<&str, &str>,
        is_open: bool,
    ) -> Vec<BackendStep> {
        let fields = match &option {
            OptionChange::Mode(mode) => vec![("mode", mode.as_str().into())],
            OptionChange::Config { id, value } => {
                vec![("option", id.as_str().into()), ("value", value.as_str().into())]
            }
        };
        let raw = match outcome {
            Ok(raw) => raw,
            Err(error) => {
                let (code, message) = lens::error(error);
                let text = format!("The agent refused the {option}: {message} ({code}).");
                let said = self.status("option_refused", &text, &fields);
                return vec![said, self.answered_option(option, false, text)];
            }
        };
        let options = lens::options(&lens::value(raw));
        let reported = match (&options, &option) {
            (Some(options), _) => SettingsReport::Options(options.clone()),
            (None, OptionChange::Mode(mode)) => SettingsReport::Mode(mode.clone()),
            (None, OptionChange::Config { value, .. }) => {
                SettingsReport::Value { id: self.config_id(&option).to_owned(), value: value.clone() }
            }
        };
        let mut steps = vec![BackendStep::SettingsReported(reported.clone())];
        let by_option = options.is_some().then(|| lens::mode_in_options(&lens::value(raw))).flatten();
        if let Some(options) = &options {
            self.state.wire.booleans = booleans(options);
        }
        let mode = match &option {
            OptionChange::Mode(mode) if self.state.modes.option_id.is_none() => Some(mode.clone()),
            // For a config option, only the list in the response determines the mode.
            OptionChange::Mode(_) | OptionChange::Config { .. } => by_option,
        };
        let text = match options.as_deref().and_then(|options| self.other_value(&option, options)) {
            Some(other) => {
                format!("The agent accepted the {option} and reports \"{}\".", sanitize::line(other, 200))
            }
            None => format!("The agent accepted the {option}."),
        };
        if is_open {
            steps.push(self.status("option_set", &text, &fields));
        }
        steps.extend(self.record_asking(mode, Some(&reported)));
        steps.push(self.answered_option(option, true, text));
        steps
    }

    /// Reports the result of a change. Changes of an open session always come from a person.
    pub(super) fn answered_option(
        &mut self,
        option: OptionChange,
        is_taken: bool,
        text: String,
    ) -> BackendStep {
        let asked = self.state.own.iter().position(|own| *own == option);
        let is_own =
            asked.map(|at| self.state.own.remove(at)).is_some() || self.state.phase == HandshakePhase::Ready;
        BackendStep::OptionAnswered { option, is_own, is_taken, text }
    }

    pub(super) fn ping(&mut self) -> Vec<BackendStep> {
        if self.state.phase != HandshakePhase::Ready {
            return Vec::new();
        }
        // No agent implements this method, so every living agent responds with an error.
        let (_, id) = self.state.numbered("probe");
        vec![control(jsonrpc::request(&id, "_acp_host/ping", "{}"))]
    }

    /// Sends the closing request once no turn runs; [`BackendStep::CloseAnswered`] if the agent supports
    /// none.
    pub(super) fn say_goodbye(&mut self, goodbye: CloseMode) -> Vec<BackendStep> {
        if self.state.turn.is_some() {
            self.state.goodbye = Some(goodbye);
            return Vec::new();
        }
        self.state.goodbye = None;
        let abilities = self.state.abilities;
        let method = match goodbye {
            _ if self.state.phase != HandshakePhase::Ready => return vec![BackendStep::CloseAnswered],
            CloseMode::Discard if abilities.delete => "session/delete",
            CloseMode::Discard | CloseMode::Close if abilities.close => "session/close",
            CloseMode::Discard | CloseMode::Close => return vec![BackendStep::CloseAnswered],
        };
        let params = json!({ "sessionId": self.state.session_id });
        vec![control(jsonrpc::request(&self.state.id("close"), method, &params.to_string()))]
    }

    /// Handles the response to the closing request.
    fn on_close_response(outcome: Result<&str, &str>) -> Vec<BackendStep> {
        let refused = outcome.err().map(|error| {
            let (code, message) = lens::error(error);
            BackendStep::Log(format!("the agent refused the closing request: {message} ({code})"))
        });
        refused.into_iter().chain([BackendStep::CloseAnswered]).collect()
    }

    /// Handles a response of the agent. Our ids are strings derived from durable ids; other responses are
    /// orphaned.
    pub(super) fn on_response(&mut self, id: Option<&str>, outcome: Result<&str, &str>) -> Vec<BackendStep> {
        let raw = id.unwrap_or("nothing");
        let Some(id) = id.and_then(string) else { return orphan(raw, outcome) };
        let (what, rest) = id.split_once(':').unwrap_or((&id, ""));
        let mut parts = rest.splitn(2, ':');
        let (subject, number) = (parts.next().unwrap_or_default(), parts.next());
        let phase = self.state.phase;
        if let Ok(run_id) = RunId::parse(subject) {
            match what {
                "prompt" if self.state.run_id() == Some(run_id) => return self.turn_ended(run_id, outcome),
                "steer" if self.state.steers.contains(&run_id) => {
                    return self.on_steer_response(run_id, outcome);
                }
                _ => {}
            }
        }
        if self.state.lease_id.is_none_or(|lease| lease.to_string() != subject) {
            return orphan(raw, outcome);
        }
        match (what, phase) {
            ("init", HandshakePhase::Initializing) => self.initialized(outcome),
            ("authenticate", HandshakePhase::Authenticating) => self.signed_in(outcome),
            ("new", HandshakePhase::Creating)
            | ("resume", HandshakePhase::Resuming)
            | ("load", HandshakePhase::Loading) => self.opened(outcome),
            ("list", HandshakePhase::Listing) if self.is_current_number(number) => self.listed(outcome),
            ("setup", HandshakePhase::Setting) if self.is_current_number(number) => {
                self.setting_done(outcome)
            }
            ("set", HandshakePhase::Ready) => self.change_done(number, outcome, raw),
            ("probe", _) => vec![BackendStep::ProbeAnswered],
            ("close", _) => Self::on_close_response(outcome),
            _ => orphan(raw, outcome),
        }
    }

    /// True if `number` is the setting or the page of a list in progress. They are sent one at a time before the session is
    /// open, and no probes are sent before that, so it is the last number issued.
    fn is_current_number(&self, number: Option<&str>) -> bool {
        number.and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n + 1 == self.state.counter)
    }

    fn change_done(
        &mut self,
        number: Option<&str>,
        outcome: Result<&str, &str>,
        raw: &str,
    ) -> Vec<BackendStep> {
        let number = number.and_then(|number| number.parse::<u64>().ok());
        match number.and_then(|number| self.state.changes.remove(&number)) {
            Some(option) => self.option_result(option, outcome, true),
            None => orphan(raw, outcome),
        }
    }

    fn on_steer_response(&mut self, run_id: RunId, outcome: Result<&str, &str>) -> Vec<BackendStep> {
        self.state.steers.retain(|open| *open != run_id);
        let result = outcome.map(lens::value).unwrap_or_default();
        let said = result.get("outcome").and_then(serde_json::Value::as_str).unwrap_or("refused");
        // "startedNewTurn": the turn was over and the text started a new one; do not send it again.
        let taken = matches!(said, "injected" | "startedNewTurn");
        vec![
            BackendStep::Log(format!("steer {run_id}: the agent responded {said}")),
            BackendStep::Steered { run_id, taken },
        ]
    }

    fn turn_ended(&mut self, run_id: RunId, outcome: Result<&str, &str>) -> Vec<BackendStep> {
        let mut steps = self.withdraw_permissions();
        self.state.calls.clear();
        let turn = self.state.turn.take();
        // An agent's `cancelled` counts after a cancel of ours or a refused permission.
        let is_stopped = turn.as_ref().is_some_and(|turn| turn.cancelled || turn.rejected);
        match outcome {
            Ok(result) => {
                let reason = crate::jsonrpc::ObjectMembers::parse(result)
                    .ok()
                    .and_then(|members| members.string("stopReason").map(String::from));
                let stop_reason = reason.unwrap_or_else(|| {
                    steps.push(BackendStep::Log("the agent ended a turn without a stop reason".to_owned()));
                    "unknown".to_owned()
                });
                if stop_reason == "cancelled" && !is_stopped {
                    steps.push(BackendStep::TurnFailed { run_id, failure: cancelled_by_agent(result) });
                } else {
                    steps.push(BackendStep::TurnDone { run_id, stop_reason, result: result.to_owned() });
                }
            }
            Err(error) => {
                steps.push(self.turn_error(run_id, error, turn.as_ref()));
            }
        }
        if let Some(goodbye) = self.state.goodbye {
            steps.extend(self.say_goodbye(goodbye));
        }
        steps
    }

    fn turn_error(&self, run_id: RunId, error: &str, turn: Option<&ActiveTurn>) -> BackendStep {
        let (code, message) = lens::error(error);
        let is_cancelled = turn.is_some_and(|turn| turn.cancelled || (turn.rejected && code == CANCELLED));
        if is_cancelled {
            // ACP requires a result here; some agents report the cancelled turn as an error.
            let result =
                format!("{{\"stopReason\":\"cancelled\",\"_meta\":{{\"acp-host\":{{\"error\":{error}}}}}}}");
            return BackendStep::TurnDone { run_id, stop_reason: "cancelled".to_owned(), result };
        }
        if code == CANCELLED {
            return BackendStep::TurnFailed { run_id, failure: cancelled_by_agent(error) };
        }
        let failure = if self.needs_sign_in(code, &message) {
            self.sign_in_failure(&message)
        } else {
            let text = format!("{} The agent said: {message} ({code}).", Code::TurnFailed.text());
            Failure::new(Code::TurnFailed, text).detail("AGENT_ERROR").origin("agent")
        };
        BackendStep::TurnFailed { run_id, failure: Failure { acp: Some(lens::raw_error(error)), ..failure } }
    }
}

/// Builds the failure of a turn that the agent cancelled without a cancel request or a refused permission.
fn cancelled_by_agent(body: &str) -> Failure {
    let text = format!("{} The agent cancelled the turn without a request.", Code::TurnFailed.text());
    let failure = Failure::new(Code::TurnFailed, text).detail("AGENT_CANCELLED").origin("agent").retryable();
    Failure { acp: Some(lens::raw_error(body)), ..failure }
}

fn orphan(id: &str, outcome: Result<&str, &str>) -> Vec<BackendStep> {
    let (Ok(body) | Err(body)) = outcome;
    vec![BackendStep::Log(format!(
        "unexpected response to {}: {}",
        lens::truncate(id, 100),
        lens::truncate(body, 200)
    ))]
}
