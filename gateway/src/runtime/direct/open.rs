//! From a new process to an open session: `initialize`, then `session/new`, `session/resume` or `session/load`,
//! then the mode that asks and the options, one at a time. An old conversation is gone on with or refused;
//! a new one is never begun in its place.

use super::state::{Phase, State, WantedSession};
use super::{DirectLink, control, lens};
use crate::core::jsonrpc::{self, AUTH_REQUIRED, METHOD_NOT_FOUND, quoted};
use crate::core::link::{EnsureSession, LinkStep, SetOption};
use crate::core::preset;
use crate::error::Failure;
use acp_shared::codes::Code;
use serde_json::{Value, json};

/// The longest id of a conversation, in bytes.
const SESSION_ID_BYTES_MAX: usize = 1024;

fn fits(id: &str) -> bool {
    !id.is_empty() && id.len() <= SESSION_ID_BYTES_MAX
}

impl DirectLink {
    pub(super) fn begin(&mut self, input: &EnsureSession) -> Vec<LinkStep> {
        self.state = State {
            phase: Phase::Initializing,
            lease_id: Some(input.lease_id),
            wanted: Some(WantedSession {
                cwd: input.cwd.clone(),
                resume: input.resume.clone(),
                mode: input.mode.clone(),
                options: input.options.clone(),
            }),
            offer_fs: input.offer_fs,
            offer_terminal: input.offer_terminal,
            ..State::default()
        };
        let params = json!({
            "protocolVersion": 1,
            "clientCapabilities": {
                "fs": { "readTextFile": input.offer_fs, "writeTextFile": input.offer_fs },
                "terminal": input.offer_terminal,
                "auth": { "terminal": true },
                "_meta": { "terminal-auth": true },
            },
            "clientInfo": { "name": "acp-host", "title": "acp-host", "version": env!("CARGO_PKG_VERSION") },
        });
        self.ask_agent("init", "initialize", &params)
    }

    fn ask_agent(&self, what: &str, method: &str, params: &Value) -> Vec<LinkStep> {
        vec![control(jsonrpc::request(&self.state.id(what), method, &params.to_string()))]
    }

    pub(super) fn initialized(&mut self, outcome: Result<&str, &str>) -> Vec<LinkStep> {
        let raw = match outcome {
            Ok(raw) => raw,
            Err(error) => return self.not_opened(error, "It refused to initialize."),
        };
        let result = lens::value(raw);
        self.state.abilities = lens::abilities(&result);
        self.state.sign_in = lens::sign_in(&result);
        self.state.agent_info = lens::agent_info(raw);
        self.state.agent_name = lens::agent_name(&result);
        let mut steps = Vec::new();
        match result.get("protocolVersion") {
            Some(version) if version.as_u64() == Some(1) => {}
            None => steps.push(LinkStep::Note("the agent names no protocol version: taken as 1".to_owned())),
            Some(other) => {
                let text =
                    format!("The agent speaks version {other} of ACP, and this host speaks version 1.");
                return self.fail(Failure::new(Code::SessionInitFailed, text).detail("PROTOCOL_VERSION"));
            }
        }
        steps.extend(self.open_session());
        steps
    }

    fn open_session(&mut self) -> Vec<LinkStep> {
        let Some(wanted) = self.state.wanted.clone() else { return Vec::new() };
        let Some(old) = wanted.resume else {
            self.state.phase = Phase::Creating;
            let params = json!({ "cwd": wanted.cwd, "mcpServers": [] });
            return self.ask_agent("new", "session/new", &params);
        };
        let params = json!({ "sessionId": old, "cwd": wanted.cwd, "mcpServers": [] });
        self.state.session_id = Some(old);
        self.state.resumed = true;
        if self.state.abilities.resume {
            self.state.phase = Phase::Resuming;
            return self.ask_agent("resume", "session/resume", &params);
        }
        if self.state.abilities.load {
            self.state.phase = Phase::Loading;
            return self.ask_agent("load", "session/load", &params);
        }
        let text = format!(
            "{} The agent can neither resume nor load a conversation.",
            Code::ResumeUnavailable.text()
        );
        self.fail(Failure::new(Code::ResumeUnavailable, text).detail("NOT_SUPPORTED"))
    }

    pub(super) fn opened(&mut self, outcome: Result<&str, &str>) -> Vec<LinkStep> {
        let raw = match outcome {
            Ok(raw) => raw,
            Err(error) => return self.refused(error),
        };
        let result = lens::value(raw);
        if self.state.phase == Phase::Creating {
            let Some(id) = result.get("sessionId").and_then(Value::as_str).filter(|id| fits(id)) else {
                let text = "The agent opened a session and gave it no usable id.";
                return self.fail(Failure::new(Code::SessionInitFailed, text).detail("NO_SESSION_ID"));
            };
            self.state.session_id = Some(id.to_owned());
        }
        self.state.modes = lens::modes(&result);
        let mut steps = self.plan_settings();
        steps.extend(self.next_setting());
        steps
    }

    fn refused(&mut self, error: &str) -> Vec<LinkStep> {
        let (code, message) = lens::error(error);
        if self.needs_sign_in(code, &message) || self.state.phase == Phase::Creating {
            return self.not_opened(error, "It refused to open a session.");
        }
        // Some agents advertise `session/resume` and only know how to load.
        if self.state.phase == Phase::Resuming && self.state.abilities.load {
            self.state.abilities.resume &= code != METHOD_NOT_FOUND;
            self.state.phase = Phase::Loading;
            let wanted = self.state.wanted.as_ref();
            let cwd = wanted.map(|wanted| wanted.cwd.as_str()).unwrap_or_default();
            let params = json!({ "sessionId": self.state.session_id, "cwd": cwd, "mcpServers": [] });
            let mut steps =
                vec![LinkStep::Note(format!("session/resume failed ({code} {message}): trying to load"))];
            steps.extend(self.ask_agent("load", "session/load", &params));
            return steps;
        }
        // Whatever the number: agents say "unknown session" as -32002, -32602 and -32603.
        let text = format!("{} The agent said: {message} ({code}).", Code::ResumeUnavailable.text());
        let failure = Failure::new(Code::ResumeUnavailable, text).detail("NOT_RESUMED").origin("agent");
        self.fail(Failure { acp: Some(lens::value(error)), ..failure })
    }

    fn not_opened(&mut self, error: &str, what: &str) -> Vec<LinkStep> {
        let (code, message) = lens::error(error);
        let failure = if self.needs_sign_in(code, &message) {
            self.sign_in_failure(&message)
        } else {
            let text =
                format!("{} {what} The agent said: {message} ({code}).", Code::SessionInitFailed.text());
            Failure::new(Code::SessionInitFailed, text).detail("AGENT_ERROR")
        };
        self.fail(Failure { acp: Some(lens::value(error)), ..failure.origin("agent") })
    }

    /// Whether an error means that credentials are missing. The number is ACP's; the words are for agents that
    /// say it with another number.
    pub(super) fn needs_sign_in(&self, code: i64, message: &str) -> bool {
        let message = message.to_ascii_lowercase();
        let says = |words: &str| message.contains(words);
        code == AUTH_REQUIRED
            || (!self.state.sign_in.is_empty()
                && (says("authentication required") || says("auth required") || says("auth_required")))
    }

    pub(super) fn sign_in_failure(&self, message: &str) -> Failure {
        let mut text = Code::AuthRequired.text().to_owned();
        if !message.is_empty() {
            text.push_str(&format!("\nThe agent said: {message}"));
        }
        if !self.state.sign_in.is_empty() {
            text.push_str(&format!("\nIt offers these ways:\n{}", self.state.sign_in));
        }
        Failure::new(Code::AuthRequired, text).detail("AUTH_REQUIRED").origin("agent")
    }

    fn fail(&mut self, failure: Failure) -> Vec<LinkStep> {
        self.state.phase = Phase::Failed;
        vec![LinkStep::Failed(failure)]
    }

    /// What is to be set before the session counts as open, and what cannot be.
    fn plan_settings(&mut self) -> Vec<LinkStep> {
        let Some(wanted) = self.state.wanted.clone() else { return Vec::new() };
        let mut steps = Vec::new();
        if let Some(mode) = wanted.mode {
            let modes = &self.state.modes;
            if modes.current.as_deref() == Some(&mode) {
                // It is there already.
            } else if !modes.known.contains(&mode) {
                let known = modes.known.join(", ");
                let text = if known.is_empty() {
                    format!("The agent lists no modes, so its mode could not be set to \"{mode}\".")
                } else {
                    format!("The agent has no mode \"{mode}\"; it has: {known}.")
                };
                steps.push(self.status("mode_unavailable", &text, &[("mode", mode.into())]));
            } else if let Some(id) = modes.option_id.clone() {
                self.state.settings.push_back(SetOption::Config { id, value: mode });
            } else {
                self.state.settings.push_back(SetOption::Mode(mode));
            }
        }
        let options = wanted.options.into_iter().map(|(id, value)| SetOption::Config { id, value });
        self.state.settings.extend(options);
        steps
    }

    /// Sends the next setting, or says that the session is open.
    fn next_setting(&mut self) -> Vec<LinkStep> {
        if let Some(option) = self.state.settings.front().cloned() {
            self.state.phase = Phase::Setting;
            let (_, bytes) = self.option_request("setup", &option);
            return vec![control(bytes)];
        }
        self.state.phase = Phase::Ready;
        self.state.wanted = None;
        let known = std::mem::take(&mut self.state.modes.known);
        let mut steps = Vec::new();
        if let Some(mode) = self.state.modes.current.clone() {
            steps.extend(self.approves_by_itself(&mode));
        } else if let Some(mode) =
            known.iter().find(|mode| preset::approves_by_itself(&self.state.agent_name, mode))
        {
            let text =
                format!("The agent does not say which mode it is in; in \"{mode}\" it approves by itself.");
            steps.push(self.status("approves_by_itself", &text, &[("mode", mode.clone().into())]));
        }
        steps.push(LinkStep::Ready {
            agent_session_id: self.state.session_id.clone().unwrap_or_default(),
            resumable: self.state.abilities.resume || self.state.abilities.load,
            agent_info: std::mem::take(&mut self.state.agent_info),
        });
        steps
    }

    pub(super) fn setting_done(&mut self, outcome: Result<&str, &str>) -> Vec<LinkStep> {
        let Some(option) = self.state.settings.pop_front() else { return Vec::new() };
        let mut steps = self.option_result(&option, outcome, false);
        steps.extend(self.next_setting());
        steps
    }

    /// Said aloud whenever a mode comes into use in which nobody is asked.
    pub(super) fn approves_by_itself(&self, mode: &str) -> Option<LinkStep> {
        preset::approves_by_itself(&self.state.agent_name, mode).then(|| {
            let text = format!(
                "The agent is in its mode {}: it approves tool calls by itself and may not ask here.",
                quoted(mode)
            );
            self.status("approves_by_itself", &text, &[("mode", mode.into())])
        })
    }
}
