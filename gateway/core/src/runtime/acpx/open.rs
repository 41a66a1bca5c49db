//! From a new bridge to an open session: versions, `sessions ensure` or `sessions new`, `sessions show`, then the mode and
//! the options. An old conversation is either continued or the opening fails; it is never replaced by a new one.

use super::argv::{Invocation, agent_command, non_interactive_value, permission_flag};
use super::bridge::{BridgeCommand, BridgeHello, BridgeInput};
use super::errors::{AcpxError, FailedStage, Verdict, classify};
use super::handle::AcpxHandle;
use super::state::{AcpxPhase, CommandKind, MachineState, PENDING_MAX, PendingCommand, WantedAcpxSession};
use super::{AcpxMachine, INSTALL, control};
use crate::agent_settings::{OptionChange, SettingsReport};
use crate::backend::{BackendStep, StartSessionParams};
use crate::config::{NonInteractive, PermissionMode};
use crate::failure::Failure;
use crate::mcp;
use crate::runtime::direct::lens;
use acp_shared::codes::Code;
use semver::{Version, VersionReq};
use serde_json::{Value, json};

/// Name of the file with the MCP servers.
const MCP_FILE: &str = "mcp.json";

impl AcpxMachine {
    pub(super) fn begin(&mut self, input: &StartSessionParams) -> Vec<BackendStep> {
        self.state = MachineState {
            phase: AcpxPhase::Starting,
            lease_id: Some(input.lease_id),
            mode: input.session_mode,
            wanted: Some(WantedAcpxSession {
                session_key: input.session_key.clone(),
                cwd: input.cwd.clone(),
                resume: input.resume.clone(),
                permission: input.permission,
                non_interactive: input.non_interactive,
                mcp_servers: input.mcp_servers.clone(),
                mode: input.mode.clone(),
                options: input.options.clone(),
            }),
            ..MachineState::default()
        };
        if input.additional_directories.is_empty() {
            return Vec::new();
        }
        let text = "acpx does not support additional directories: they are not passed to the agent.";
        vec![self.status("directories_left_out", text, &[])]
    }

    pub(super) fn on_unusable(&mut self, error: &str) -> Vec<BackendStep> {
        let text = format!("{} {error}.", Code::BackendUnavailable.text());
        let shown =
            format!("{} The programs of the backend acpx cannot be used.", Code::BackendUnavailable.text());
        let failure = Failure::new(Code::BackendUnavailable, text).for_conversations(shown);
        self.fail(failure.detail("ACPX_UNUSABLE").origin("acpx"))
    }

    pub(super) fn on_hello(&mut self, hello: BridgeHello) -> Vec<BackendStep> {
        let (AcpxPhase::Starting, Some(wanted)) = (self.state.phase, self.state.wanted.clone()) else {
            return self.protocol_error("The bridge began twice.");
        };
        if let Some(why) = version_refusal(&hello.acpx, &(self.settings.0)().versions) {
            let text = format!("{} {why}", Code::BackendUnavailable.text());
            let failure = Failure::new(Code::BackendUnavailable, text).detail("ACPX_VERSION").origin("acpx");
            return self.fail(failure);
        }
        let agent = agent_command(&hello.home, &hello.agent);
        let name = match wanted.resume.as_deref().map(|handle| self.check_handle(handle, &wanted, &agent)) {
            None => wanted.session_key.clone(),
            Some(Ok(name)) => name,
            Some(Err(why)) => return self.cannot_resume(&why, "HANDLE"),
        };
        self.state.phase = AcpxPhase::Opening;
        self.state.agent_info = json!({ "acpx": hello.acpx, "node": hello.node }).to_string();
        self.state.notice = notice(wanted.permission, wanted.non_interactive);
        self.state.invocation = Invocation {
            cwd: wanted.cwd.clone(),
            agent,
            mcp_file: format!("{}/{MCP_FILE}", hello.dir),
            permission: permission_flag(wanted.permission).to_owned(),
            non_interactive: non_interactive_value(wanted.non_interactive).to_owned(),
            name: name.clone(),
        };
        let servers: Vec<Value> = wanted.mcp_servers.iter().map(mcp::server_param).collect();
        let text = json!({ "mcpServers": servers }).to_string();
        // `ensure` finds the session of an earlier conversation; a new one replaces it.
        let verb = if wanted.resume.is_some() { "ensure" } else { "new" };
        let ensure = self.run(CommandKind::Ensure, &["sessions", verb, "--name", &name]);
        vec![control(&BridgeInput::File { name: MCP_FILE, text: &text }), ensure]
    }

    /// Returns the name in a handle if its other members fit the session.
    fn check_handle(&self, handle: &str, wanted: &WantedAcpxSession, agent: &str) -> Result<String, String> {
        let handle = AcpxHandle::parse(handle).map_err(|error| format!("Its id cannot be read: {error}."))?;
        if handle.cwd != wanted.cwd {
            return Err(format!("It belongs to the working directory {}.", handle.cwd));
        }
        if handle.agent != agent {
            return Err("The command of the agent has changed since.".to_owned());
        }
        Ok(handle.name)
    }

    fn cannot_resume(&mut self, why: &str, detail: &str) -> Vec<BackendStep> {
        let text = format!("{} {why}", Code::ResumeUnavailable.text());
        self.fail(Failure::new(Code::ResumeUnavailable, text).detail(detail).origin("acpx"))
    }

    /// Registers a command and builds its line.
    pub(super) fn run(&mut self, kind: CommandKind, verb: &[&str]) -> BackendStep {
        let (count, finish): (&[&str], bool) = match kind {
            CommandKind::Show => (&["messages"], false),
            CommandKind::Close => (&[], true),
            _ => (&[], false),
        };
        let argv = self.state.invocation.argv(verb);
        let id = self.register(kind);
        control(&BridgeInput::Run(BridgeCommand { id, argv, count, finish, ..BridgeCommand::default() }))
    }

    pub(super) fn register(&mut self, kind: CommandKind) -> u64 {
        let id = self.state.number();
        self.state.commands.insert(id, PendingCommand { kind, is_done: false, error: None });
        id
    }

    /// Handles the line of `sessions ensure`, `sessions new` and `sessions show`.
    pub(super) fn on_opening_line(&mut self, kind: &CommandKind, line: &Value) -> Vec<BackendStep> {
        let is_resume = self.state.wanted.as_ref().is_some_and(|wanted| wanted.resume.is_some());
        if *kind == CommandKind::Ensure {
            if is_resume && line.get("created") != Some(&Value::Bool(false)) {
                return self.cannot_resume("acpx has no record of it.", "NO_RECORD");
            }
            return Vec::new();
        }
        let has_messages = match line.get("messages") {
            Some(Value::Number(count)) => count.as_u64() != Some(0),
            Some(Value::Array(list)) => !list.is_empty(),
            _ => false,
        };
        // The record has the members of `initialize` under its own names.
        let abilities = lens::abilities(line);
        self.state.can_load = abilities.resume || abilities.load;
        self.state.takes = abilities.takes;
        self.state.has_messages = has_messages;
        if is_resume && has_messages && !self.state.can_load {
            return self
                .cannot_resume("The agent can neither resume nor load a conversation.", "NOT_SUPPORTED");
        }
        let mut info: Value = serde_json::from_str(&self.state.agent_info).unwrap_or_default();
        for name in ["protocolVersion", "agentCapabilities"] {
            if let Some(value) = line.get(name) {
                crate::jsonrpc::put(&mut info, name, value.clone());
            }
        }
        self.state.agent_info = info.to_string();
        Vec::new()
    }

    /// Handles the end of a command of the opening.
    pub(super) fn on_opening_end(&mut self, command: PendingCommand, code: Option<i32>) -> Vec<BackendStep> {
        if self.state.phase == AcpxPhase::Failed {
            return Vec::new();
        }
        let is_ensure = command.kind == CommandKind::Ensure;
        if !command.is_done || code != Some(0) {
            let what = if is_ensure { "sessions ensure" } else { "sessions show" };
            let error = command.error.unwrap_or_else(|| AcpxError::without_report(what, code));
            let is_resume = self.state.wanted.as_ref().is_some_and(|wanted| wanted.resume.is_some());
            let stage = if is_resume { FailedStage::Resuming } else { FailedStage::Opening };
            let (Verdict::Failed(failure)
            | Verdict::Uncertain(failure)
            | Verdict::Unusable(failure)
            | Verdict::Retry { failure, .. }) = classify(&error, stage, None);
            return self.fail(failure);
        }
        if is_ensure {
            let name = self.state.invocation.name.clone();
            return vec![self.run(CommandKind::Show, &["sessions", "show", &name])];
        }
        if let Some(wanted) = &self.state.wanted {
            let options = wanted
                .options
                .iter()
                .map(|(id, value)| OptionChange::Config { id: id.clone(), value: value.clone() });
            self.state.settings.extend(wanted.mode.iter().cloned().map(OptionChange::Mode).chain(options));
        }
        self.next_setting()
    }

    /// Makes the next setting, or reports the session as open.
    fn next_setting(&mut self) -> Vec<BackendStep> {
        if let Some(option) = self.state.settings.front().cloned() {
            return vec![self.set(option)];
        }
        self.state.phase = AcpxPhase::Ready;
        self.state.wanted = None;
        let invocation = &self.state.invocation;
        let handle = AcpxHandle {
            name: invocation.name.clone(),
            agent: invocation.agent.clone(),
            cwd: invocation.cwd.clone(),
            mode: self.state.mode,
        };
        let notice = self.state.notice.take();
        let notice = notice.map(|text| self.status("acpx_permissions", &text, &[]));
        let ready = BackendStep::Ready {
            agent_session_id: handle.encode(),
            resumable: self.state.can_load,
            agent_info: std::mem::take(&mut self.state.agent_info),
        };
        notice.into_iter().chain([ready]).collect()
    }

    fn set(&mut self, option: OptionChange) -> BackendStep {
        let name = self.state.invocation.name.clone();
        let kind = CommandKind::Set(option.clone());
        match &option {
            OptionChange::Mode(mode) => self.run(kind, &["set-mode", mode, "-s", &name]),
            OptionChange::Config { id, value } => self.run(kind, &["set", id, value, "-s", &name]),
        }
    }

    pub(super) fn change_option(&mut self, option: &OptionChange) -> Vec<BackendStep> {
        let has_room = self.state.settings.len() < PENDING_MAX && self.state.commands.len() < PENDING_MAX;
        match self.state.phase {
            AcpxPhase::Ready if has_room => vec![self.set(option.clone())],
            AcpxPhase::Starting | AcpxPhase::Opening if has_room => {
                self.state.settings.push_back(option.clone());
                self.state.own.push(option.clone());
                Vec::new()
            }
            _ => {
                let text = format!("The {option} was not requested: the agent's session is not ready.");
                vec![BackendStep::OptionAnswered {
                    option: option.clone(),
                    is_own: true,
                    is_taken: false,
                    text,
                }]
            }
        }
    }

    /// Handles the end of `set-mode` and `set`.
    pub(super) fn on_setting_end(&mut self, command: PendingCommand, code: Option<i32>) -> Vec<BackendStep> {
        let CommandKind::Set(option) = command.kind else { return Vec::new() };
        let is_open = self.state.phase == AcpxPhase::Ready;
        let is_taken = command.is_done && code == Some(0);
        let mut steps = Vec::new();
        let text = if is_taken {
            steps.push(BackendStep::SettingsReported(match &option {
                OptionChange::Mode(mode) => SettingsReport::Mode(mode.clone()),
                OptionChange::Config { id, value } => {
                    SettingsReport::Value { id: id.clone(), value: value.clone() }
                }
            }));
            format!("The agent accepted the {option}.")
        } else {
            let error = command.error.unwrap_or_else(|| AcpxError::without_report("set", code));
            format!("The agent refused the {option}: {}", error.message)
        };
        let status = if is_taken { "option_set" } else { "option_refused" };
        if is_open || !is_taken {
            steps.push(self.status(status, &text, &[]));
        }
        let asked = self.state.own.iter().position(|own| *own == option);
        let is_own = asked.map(|at| self.state.own.remove(at)).is_some() || is_open;
        steps.push(BackendStep::OptionAnswered { option, is_own, is_taken, text });
        if self.state.phase == AcpxPhase::Opening {
            self.state.settings.pop_front();
            steps.extend(self.next_setting());
        }
        steps
    }
}

/// True if this version of acpx meets the requirement. A requirement that cannot be read is met by none.
fn is_known_version(text: &str, versions: &str) -> bool {
    let version = Version::parse(text.trim().trim_start_matches('v'));
    let requirement = VersionReq::parse(versions);
    version.is_ok_and(|version| requirement.is_ok_and(|requirement| requirement.matches(&version)))
}

/// Explains why a version of acpx is not used; `None` if it is.
pub fn version_refusal(found: &str, versions: &str) -> Option<String> {
    let refusal = || format!("acpx {found:?} is installed, and {versions} is needed. {INSTALL}");
    (!is_known_version(found, versions)).then(refusal)
}

/// Returns the versions in the agent information of a session.
pub fn versions_text(agent_info: &str) -> Option<String> {
    let info: Value = serde_json::from_str(agent_info).ok()?;
    let of = |name| info.get(name).and_then(Value::as_str);
    let acpx = of("acpx")?;
    Some(match of("node") {
        Some(node) => format!("acpx {acpx} on Node.js {node}"),
        None => format!("acpx {acpx}"),
    })
}

/// Text for sessions whose permission mode asks people, which acpx cannot.
fn notice(permission: PermissionMode, policy: NonInteractive) -> Option<String> {
    if !matches!(permission, PermissionMode::Ask | PermissionMode::ApproveReads) {
        return None;
    }
    let rest = match policy {
        NonInteractive::Deny => "denies everything else",
        NonInteractive::Fail => "ends the turn at any other request",
    };
    Some(format!("acpx cannot ask you for permissions: it allows reading and searching, and {rest}."))
}

#[cfg(test)]
mod tests {
    use super::is_known_version;
    use crate::config::AcpxBackend;

    #[test]
    fn versions_outside_of_the_range_are_unknown() {
        for (version, known) in [
            ("0.19.1", true),
            ("v0.19.7\n", true),
            ("0.19.0", false),
            ("0.20.0", false),
            ("0.1.15", false),
            ("1.0.0", false),
            ("0.19", false),
            ("0.19.1-beta", false),
            ("", false),
        ] {
            assert_eq!(is_known_version(version, &AcpxBackend::default().versions), known, "{version}");
        }
        assert!(is_known_version("0.20.3", ">=0.19.1, <0.21"));
        assert!(!is_known_version("0.19.1", "any"));
    }
}
