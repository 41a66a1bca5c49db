//! From a new process to an open session: `initialize`, then `session/new`, `session/resume` or
//! `session/load`, then the mode and the options, one at a time. An old conversation is either resumed or the
//! opening fails; it is never replaced by a new one.

use super::state::{HandshakePhase, MachineState, OptionFormat, WantedSession};
use super::{DirectMachine, control, lens};
use crate::agent_settings::OptionChange;
use crate::agent_settings::{AgentSettings, ConfigOption, SettingsReport};
use crate::backend::{AskGuarantee, BackendStep, StartSessionParams};
use crate::failure::{Failure, SignInMethods};
use crate::jsonrpc::{self, AUTH_REQUIRED, METHOD_NOT_FOUND, quoted};
use crate::{mcp, preset, sanitize};
use acp_shared::codes::Code;
use serde_json::{Map, Value, json};

/// Maximum length of a conversation id, in bytes.
const SESSION_ID_BYTES_MAX: usize = 1024;

/// Maximum length of the list of modes in a status, in characters.
const KNOWN_CHARS_MAX: usize = 500;

/// True if a text can be an agent's id of a conversation.
pub fn is_session_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= SESSION_ID_BYTES_MAX
}

impl DirectMachine {
    pub(super) fn begin(&mut self, input: &StartSessionParams) -> Vec<BackendStep> {
        self.state = MachineState {
            phase: HandshakePhase::Initializing,
            lease_id: Some(input.lease_id),
            wanted: Some(WantedSession {
                cwd: input.cwd.clone(),
                resume: input.resume.clone(),
                mode: input.mode.clone(),
                options: input.options.clone(),
                mcp_servers: input.mcp_servers.clone(),
                additional_directories: input.additional_directories.clone(),
                agent: input.agent.clone(),
                auth_method: input.auth_method.clone(),
                listing: input.listing,
            }),
            asking_mode: input.asking_mode.clone(),
            vouched: input.asks,
            client_fs: input.client_fs,
            offer_terminal: input.offer_terminal,
            ..MachineState::default()
        };
        let params = json!({
            "protocolVersion": 1,
            "clientCapabilities": {
                "fs": { "readTextFile": input.client_fs.reads(), "writeTextFile": input.client_fs.writes() },
                "terminal": input.offer_terminal,
                "auth": { "terminal": true },
                "elicitation": { "form": {}, "url": {} },
                "session": { "configOptions": { "boolean": {} } },
                "_meta": { "terminal-auth": true },
            },
            "clientInfo": { "name": "acp-host", "title": "acp-host", "version": env!("CARGO_PKG_VERSION") },
        });
        self.ask_agent("init", "initialize", &params)
    }

    fn ask_agent(&self, what: &str, method: &str, params: &Value) -> Vec<BackendStep> {
        vec![control(jsonrpc::request(&self.state.id(what), method, &params.to_string()))]
    }

    pub(super) fn initialized(&mut self, outcome: Result<&str, &str>) -> Vec<BackendStep> {
        let raw = match outcome {
            Ok(raw) => raw,
            Err(error) => return self.fail_opening(error, "It refused to initialize."),
        };
        let result = lens::value(raw);
        self.state.abilities = lens::abilities(&result);
        let agent = self.state.wanted.as_ref().map(|wanted| wanted.agent.clone()).unwrap_or_default();
        self.state.sign_in = lens::sign_in(&result, &agent);
        self.state.agent_info = lens::agent_info(raw);
        self.state.agent_name = lens::agent_name(&result);
        let mut steps = Vec::new();
        match result.get("protocolVersion") {
            Some(version) if version.as_u64() == Some(1) => {}
            None => steps
                .push(BackendStep::Log("the agent reported no protocol version: 1 is assumed".to_owned())),
            Some(other) => {
                let text = format!(
                    "The agent speaks version {} of ACP, and this host speaks version 1.",
                    lens::truncate(&other.to_string(), 100)
                );
                return self.fail(Failure::new(Code::SessionInitFailed, text).detail("PROTOCOL_VERSION"));
            }
        }
        steps.extend(self.report_unsupported());
        let method = self.state.wanted.as_ref().and_then(|wanted| wanted.auth_method.clone());
        steps.extend(match method {
            Some(method) => self.sign_in(&method, &lens::auth_method_ids(&result)),
            None => self.open_session(),
        });
        steps
    }

    /// Signs in with a method before the session is opened (`authenticate`).
    fn sign_in(&mut self, method: &str, offered: &[String]) -> Vec<BackendStep> {
        if offered.iter().any(|id| id == method) {
            self.state.phase = HandshakePhase::Authenticating;
            return self.ask_agent("authenticate", "authenticate", &json!({ "methodId": method }));
        }
        let offered = if offered.is_empty() { "none".to_owned() } else { offered.join(", ") };
        let text = format!(
            "The agent has no sign-in method {}; it offers: {}.",
            quoted(method),
            sanitize::line(&offered, KNOWN_CHARS_MAX)
        );
        self.fail(Failure::new(Code::AuthRequired, text).detail("UNKNOWN_METHOD").origin("agent"))
    }

    pub(super) fn signed_in(&mut self, outcome: Result<&str, &str>) -> Vec<BackendStep> {
        match outcome {
            Ok(_) => self.open_session(),
            Err(error) => {
                let (_, message) = lens::error(error);
                let failure = self.sign_in_failure(&message);
                self.fail(Failure { acp: Some(lens::raw_error(error)), ..failure })
            }
        }
    }

    /// Builds the parameters common to `session/new`, `session/resume` and `session/load`.
    fn session_params(&self, wanted: &WantedSession) -> Value {
        let abilities = &self.state.abilities;
        let servers = wanted.mcp_servers.iter();
        let servers = servers
            .filter(|it| mcp::is_transport_supported(it.transport(), abilities.mcp_http, abilities.mcp_sse));
        let servers: Vec<Value> = servers.map(mcp::server_param).collect();
        let mut params = Map::new();
        params.insert("cwd".to_owned(), json!(wanted.cwd));
        params.insert("mcpServers".to_owned(), servers.into());
        if abilities.additional_directories && !wanted.additional_directories.is_empty() {
            params.insert("additionalDirectories".to_owned(), json!(wanted.additional_directories));
        }
        if let Some(old) = &self.state.session_id {
            params.insert("sessionId".to_owned(), json!(old));
        }
        params.into()
    }

    /// Reports MCP servers and directories that the agent does not support.
    fn report_unsupported(&self) -> Vec<BackendStep> {
        let Some(wanted) = &self.state.wanted else { return Vec::new() };
        let abilities = &self.state.abilities;
        let mut steps = Vec::new();
        for server in &wanted.mcp_servers {
            if !mcp::is_transport_supported(server.transport(), abilities.mcp_http, abilities.mcp_sse) {
                let text = format!(
                    "The agent does not support MCP servers over {}: it runs without {}.",
                    server.transport().as_str(),
                    quoted(&server.name)
                );
                steps.push(self.status(
                    "mcp_server_left_out",
                    &text,
                    &[("name", server.name.clone().into())],
                ));
            }
        }
        if !abilities.additional_directories && !wanted.additional_directories.is_empty() {
            let text = "The agent does not support additional directories: they are not passed to it. Its \
                        file and command requests may still use them.";
            steps.push(self.status("directories_left_out", text, &[]));
        }
        steps
    }

    fn open_session(&mut self) -> Vec<BackendStep> {
        let Some(wanted) = self.state.wanted.clone() else { return Vec::new() };
        if wanted.listing.is_some() {
            return self.list_sessions(None);
        }
        self.state.session_id.clone_from(&wanted.resume);
        let params = self.session_params(&wanted);
        if wanted.resume.is_none() {
            self.state.phase = HandshakePhase::Creating;
            return self.ask_agent("new", "session/new", &params);
        }
        self.state.resumed = true;
        if self.state.abilities.resume {
            self.state.phase = HandshakePhase::Resuming;
            return self.ask_agent("resume", "session/resume", &params);
        }
        if self.state.abilities.load {
            self.state.phase = HandshakePhase::Loading;
            return self.ask_agent("load", "session/load", &params);
        }
        let text = format!(
            "{} The agent can neither resume nor load a conversation.",
            Code::ResumeUnavailable.text()
        );
        self.fail(Failure::new(Code::ResumeUnavailable, text).detail("NOT_SUPPORTED"))
    }

    pub(super) fn opened(&mut self, outcome: Result<&str, &str>) -> Vec<BackendStep> {
        let raw = match outcome {
            Ok(raw) => raw,
            Err(error) => return self.refused(error),
        };
        let result = lens::value(raw);
        if self.state.phase == HandshakePhase::Creating {
            let Some(id) = result.get("sessionId").and_then(Value::as_str).filter(|id| is_session_id(id))
            else {
                let text = "The agent opened a session without a usable id.";
                return self.fail(Failure::new(Code::SessionInitFailed, text).detail("NO_SESSION_ID"));
            };
            self.state.session_id = Some(id.to_owned());
        }
        self.state.modes = lens::modes(&result);
        let settings = lens::settings(&result);
        self.state.wire = OptionFormat::of(&settings);
        self.state.approving_option = approving_option(&settings.options);
        // A resumed conversation without any report keeps the known settings.
        let is_silent = self.state.resumed && settings == AgentSettings::default();
        let mut steps = Vec::new();
        if !is_silent {
            steps.push(BackendStep::SettingsReported(SettingsReport::All(settings)));
        }
        steps.extend(self.plan_settings());
        steps.extend(self.next_setting());
        steps
    }

    fn refused(&mut self, error: &str) -> Vec<BackendStep> {
        let (code, message) = lens::error(error);
        if self.needs_sign_in(code, &message) || self.state.phase == HandshakePhase::Creating {
            return self.fail_opening(error, "It refused to open a session.");
        }
        // Some agents advertise `session/resume` and only know how to load.
        if self.state.phase == HandshakePhase::Resuming && self.state.abilities.load {
            self.state.abilities.resume &= code != METHOD_NOT_FOUND;
            self.state.phase = HandshakePhase::Loading;
            let params = self.state.wanted.as_ref().map(|wanted| self.session_params(wanted));
            let params = params.unwrap_or_default();
            let mut steps =
                vec![BackendStep::Log(format!("session/resume failed ({code} {message}): trying to load"))];
            steps.extend(self.ask_agent("load", "session/load", &params));
            return steps;
        }
        // Any error code: agents report "unknown session" as -32002, -32602 and -32603.
        let text = format!("{} The agent said: {message} ({code}).", Code::ResumeUnavailable.text());
        let failure = Failure::new(Code::ResumeUnavailable, text).detail("NOT_RESUMED").origin("agent");
        self.fail(Failure { acp: Some(lens::raw_error(error)), ..failure })
    }

    pub(super) fn fail_opening(&mut self, error: &str, what: &str) -> Vec<BackendStep> {
        let (code, message) = lens::error(error);
        let failure = if self.needs_sign_in(code, &message) {
            self.sign_in_failure(&message)
        } else {
            let text =
                format!("{} {what} The agent said: {message} ({code}).", Code::SessionInitFailed.text());
            Failure::new(Code::SessionInitFailed, text).detail("AGENT_ERROR")
        };
        self.fail(Failure { acp: Some(lens::raw_error(error)), ..failure.origin("agent") })
    }

    /// True if an error means that credentials are missing. The code is ACP's; the texts are for agents that
    /// use another code.
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
            text.push_str(&format!("\nIt offers these ways to sign in:\n{}", self.state.sign_in));
        }
        let methods = lens::sign_in_methods(&self.state.agent_info);
        let sign_in_methods = (!methods.is_empty()).then(|| Box::new(SignInMethods(methods)));
        let failure = Failure::new(Code::AuthRequired, text).detail("AUTH_REQUIRED").origin("agent");
        Failure { sign_in_methods, ..failure }
    }

    pub(super) fn fail(&mut self, failure: Failure) -> Vec<BackendStep> {
        self.state.phase = HandshakePhase::Failed;
        vec![BackendStep::Failed(failure)]
    }

    /// Queues the settings to make before the session counts as open. Returns reports of those that are
    /// impossible.
    fn plan_settings(&mut self) -> Vec<BackendStep> {
        let Some(wanted) = self.state.wanted.clone() else { return Vec::new() };
        let options = wanted.options.into_iter().map(|(id, value)| OptionChange::Config { id, value });
        self.state.settings.extend(options);
        wanted.mode.map(|mode| self.plan_mode(mode)).unwrap_or_default()
    }

    /// Queues a mode as the next setting; an unknown mode is replaced by the asking mode.
    fn plan_mode(&mut self, mode: String) -> Vec<BackendStep> {
        let modes = &self.state.modes;
        if modes.current.as_deref() == Some(&mode) {
            return Vec::new();
        }
        if modes.known.contains(&mode) {
            self.state.settings.push_front(OptionChange::Mode(mode));
            return Vec::new();
        }
        let known = sanitize::line(&modes.known.join(", "), KNOWN_CHARS_MAX);
        let text = if known.is_empty() {
            format!("The agent lists no modes, so its mode could not be set to \"{mode}\".")
        } else {
            format!("The agent has no mode \"{mode}\"; it has: {known}.")
        };
        let status = self.status("mode_unavailable", &text, &[("mode", mode.clone().into())]);
        let mut steps = vec![status, self.answered_option(OptionChange::Mode(mode.clone()), false, text)];
        steps.extend(self.plan_asking_mode(&mode));
        steps
    }

    /// Queues the asking mode after another one was refused.
    fn plan_asking_mode(&mut self, refused: &str) -> Vec<BackendStep> {
        let asking = self.state.asking_mode.clone().filter(|asking| asking != refused);
        asking.map(|asking| self.plan_mode(asking)).unwrap_or_default()
    }

    /// Returns the certainty of permission requests in the current mode and with the current options.
    fn asking(&self) -> AskGuarantee {
        let mode = self.state.modes.current.as_deref();
        let is_approving = mode.is_some_and(|mode| preset::approves_by_itself(&self.state.agent_name, mode));
        if is_approving || self.state.approving_option.is_some() {
            return AskGuarantee::Never;
        }
        let is_asking_mode = mode.is_some() && mode == self.state.asking_mode.as_deref();
        if self.state.vouched || is_asking_mode { AskGuarantee::Ensured } else { AskGuarantee::Unknown }
    }

    /// Sends the next setting, or reports the session as open.
    fn next_setting(&mut self) -> Vec<BackendStep> {
        if let Some(option) = self.state.settings.front().cloned() {
            self.state.phase = HandshakePhase::Setting;
            let (_, bytes) = self.option_request("setup", &option);
            return vec![control(bytes)];
        }
        self.state.phase = HandshakePhase::Ready;
        self.state.wanted = None;
        let known = std::mem::take(&mut self.state.modes.known);
        let mut steps = Vec::new();
        if let Some(mode) = &self.state.modes.current {
            steps.extend(self.mode_approves(mode));
        } else if let Some(mode) =
            known.iter().find(|mode| preset::approves_by_itself(&self.state.agent_name, mode))
        {
            let text = format!(
                "The agent does not report its mode; in \"{mode}\" it approves tool calls without asking."
            );
            steps.push(self.status("approves_by_itself", &text, &[("mode", mode.clone().into())]));
        }
        steps.extend(self.option_approves());
        steps.push(BackendStep::AskGuarantee(self.asking()));
        steps.push(BackendStep::Ready {
            agent_session_id: self.state.session_id.clone().unwrap_or_default(),
            resumable: self.state.abilities.resume || self.state.abilities.load,
            agent_info: std::mem::take(&mut self.state.agent_info),
        });
        steps
    }

    pub(super) fn setting_done(&mut self, outcome: Result<&str, &str>) -> Vec<BackendStep> {
        let Some(option) = self.state.settings.pop_front() else { return Vec::new() };
        let refused = match &option {
            OptionChange::Mode(mode) if outcome.is_err() => Some(mode.clone()),
            OptionChange::Mode(_) | OptionChange::Config { .. } => None,
        };
        let mut steps = self.option_result(option, outcome, false);
        steps.extend(refused.map(|mode| self.plan_asking_mode(&mode)).unwrap_or_default());
        steps.extend(self.next_setting());
        steps
    }

    /// Records a mode and options that the agent reported or accepted. In an open session, returns what changes
    /// about its questions.
    pub(super) fn record_asking(
        &mut self,
        mode: Option<String>,
        options: Option<&SettingsReport>,
    ) -> Vec<BackendStep> {
        let before = (self.state.modes.current.clone(), self.state.approving_option.clone());
        self.state.modes.current = mode.or_else(|| before.0.clone());
        match options {
            Some(SettingsReport::Options(options)) => {
                self.state.approving_option = approving_option(options);
            }
            Some(SettingsReport::Value { id, value }) if preset::is_self_approving_option(id) => {
                let is_on = preset::option_approves_by_itself(id, value);
                self.state.approving_option = is_on.then(|| id.clone());
            }
            _ => {}
        }
        let is_new_mode = self.state.modes.current != before.0;
        let is_new_option = self.state.approving_option != before.1;
        if self.state.phase != HandshakePhase::Ready || !(is_new_mode || is_new_option) {
            return Vec::new();
        }
        let current = self.state.modes.current.as_deref();
        let by_mode = current.filter(|_| is_new_mode).and_then(|mode| self.mode_approves(mode));
        let by_option = if is_new_option { self.option_approves() } else { None };
        let asking = BackendStep::AskGuarantee(self.asking());
        by_mode.into_iter().chain(by_option).chain([asking]).collect()
    }

    /// Builds a status for a mode in which the agent approves tool calls itself.
    fn mode_approves(&self, mode: &str) -> Option<BackendStep> {
        preset::approves_by_itself(&self.state.agent_name, mode).then(|| {
            let text = format!(
                "The agent is in its mode {}: it approves tool calls itself and may not ask here.",
                quoted(mode)
            );
            self.status("approves_by_itself", &text, &[("mode", mode.into())])
        })
    }

    /// Builds a status for an option with which the agent approves tool calls itself.
    fn option_approves(&self) -> Option<BackendStep> {
        let id = self.state.approving_option.as_deref()?;
        let text = format!(
            "The agent's option {} is on: it approves tool calls itself and may not ask here.",
            quoted(id)
        );
        Some(self.status("approves_by_itself", &text, &[("option", id.into())]))
    }
}

/// Returns the id of a reported option with which the agent approves tool calls itself.
fn approving_option(options: &[ConfigOption]) -> Option<String> {
    let is_on = |option: &&ConfigOption| {
        let value = option.choices.current.as_deref();
        value.is_some_and(|value| preset::option_approves_by_itself(&option.id, value))
    };
    options.iter().find(is_on).map(|option| option.id.clone())
}
