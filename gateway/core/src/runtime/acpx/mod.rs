//! Backend `acpx`: sessions run through the command line of acpx, which a bridge in the lease executes. Prompts go through
//! `prompt --no-wait`, and a turn is read from `sessions watch --cursor`; a waiting `prompt` has no request id.
//!
//! | module | content |
//! |---|---|
//! | `bridge` | lines from and to the bridge |
//! | `argv` | argument vectors and the quoting of the agent's command |
//! | `handle` | the id of a session |
//! | `open` | from a new bridge to an open session |
//! | `turn` | prompt, cancel, options, probe, close, and the ends of their commands |
//! | `watch` | lines of a turn |
//! | `errors` | errors of acpx and their meaning |
//! | `state` | the machine's state |
#![deny(clippy::indexing_slicing)]

mod argv;
mod bridge;
mod errors;
pub mod handle;
mod open;
mod state;
mod turn;
mod watch;

#[cfg(test)]
pub(super) mod tests;

use crate::actor::AgentProfile;
use crate::agent_settings::OptionChange;
use crate::backend::{
    BackendMachine, BackendStep, CloseMode, InputKind, LineFault, RequestReply, StartSessionParams,
    SubmitParams,
};
use crate::config::{AcpxBackend, ClientFs, PermissionMode};
use crate::event::{EventKind, NewEvent};
use crate::failure::Failure;
use crate::request::SpawnRequest;
use crate::rows::SessionRow;
use crate::runtime::{BackendHealth, MachineStateError, Runtime};
use acp_shared::codes::Code;
use acp_shared::ids::{RunId, SessionKey};
use bridge::{BridgeInput, BridgeOutput};
pub use open::{version_refusal, versions_text};
use serde_json::{Value, json};
use state::{AcpxPhase, MachineState};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Name of the backend.
pub const ID: &str = "acpx";

/// Minimum time for opening a session: Node starts several times before a first word.
const INIT_MS_MIN: u64 = 180_000;
/// Minimum time between the end of the bridge's input and SIGTERM: `sessions close` may take that long.
const EOF_MS_MIN: u64 = 20_000;

/// Settings of the backend, as configured now.
#[derive(Clone)]
struct Settings(Arc<dyn Fn() -> AcpxBackend + Send + Sync>);

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (self.0)().fmt(f)
    }
}

/// Root of a spawn for the private home directory of a session; `None` if the supervisor knows no such roots.
type PrivateHomeRoot = Box<dyn Fn(&SessionKey) -> Option<String> + Send + Sync>;

/// Health of the backend, as last probed.
type Probe = Box<dyn Fn() -> BackendHealth + Send + Sync>;

/// Creates [`AcpxMachine`]s.
pub struct AcpxRuntime {
    bridge: String,
    settings: Settings,
    private_home: PrivateHomeRoot,
    probe: Probe,
}

impl std::fmt::Debug for AcpxRuntime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AcpxRuntime").field("bridge", &self.bridge).finish_non_exhaustive()
    }
}

impl AcpxRuntime {
    /// Creates a backend. `bridge` is the path of `acp-acpx-bridge`; `private_home` returns the root of a spawn for the
    /// private home directory of a session, `probe` the cached result of the last look-up.
    pub fn new(
        bridge: String,
        settings: impl Fn() -> AcpxBackend + Send + Sync + 'static,
        private_home: impl Fn(&SessionKey) -> Option<String> + Send + Sync + 'static,
        probe: impl Fn() -> BackendHealth + Send + Sync + 'static,
    ) -> Self {
        let (private_home, probe) = (Box::new(private_home), Box::new(probe));
        Self { bridge, settings: Settings(Arc::new(settings)), private_home, probe }
    }
}

impl Runtime for AcpxRuntime {
    fn id(&self) -> &'static str {
        ID
    }

    fn machine(&self, saved: Option<&str>) -> Result<Box<dyn BackendMachine>, MachineStateError> {
        Ok(Box::new(AcpxMachine::open(saved, self.settings.clone())?))
    }

    fn check(&self, request: &SpawnRequest, profile: &AgentProfile) -> Result<(), Failure> {
        let refuse = |what: &str, instead: &str| {
            let text = format!(
                "The backend acpx cannot pass {what} on to the agent: {instead}, or use the backend direct."
            );
            Err(Failure::new(Code::Usage, text).detail("NOT_SUPPORTED").origin("gateway"))
        };
        if let [first, ..] = request.additional_directories.as_slice() {
            return refuse(
                &format!("the additional directory {first}"),
                "leave it out, or name it in acp.additional_directories, which the agent is not told",
            );
        }
        if let Some(method) = request.auth_method.as_ref().or(profile.auth_method.as_ref()) {
            let how = "remove auth_method and give the credential as ACPX_AUTH_METHOD in the agent's env, METHOD in capitals";
            return refuse(&format!("the sign-in method {method:?}"), how);
        }
        Ok(())
    }

    fn programs(&self) -> Vec<String> {
        let command = (self.settings.0)().command;
        [self.bridge.clone()].into_iter().chain(command.into_iter().next()).collect()
    }

    fn launch(
        &self,
        profile: AgentProfile,
        session: &SessionRow,
        found: &BTreeMap<String, String>,
    ) -> Result<AgentProfile, Failure> {
        let settings = (self.settings.0)();
        let program = |name: &str| found.get(name).cloned().ok_or_else(|| missing(name));
        let mut argv = vec![program(&self.bridge)?, "--key".to_owned(), session.session_key.to_string()];
        for (number, word) in settings.command.iter().enumerate() {
            let word = if number == 0 { program(word)? } else { word.clone() };
            argv.extend(["--acpx".to_owned(), word]);
        }
        argv.push("--".to_owned());
        argv.extend(profile.argv);
        let mut graces = profile.graces;
        graces.eof_ms = graces.eof_ms.max(settings.eof_ms.unwrap_or(EOF_MS_MIN));
        Ok(AgentProfile {
            argv,
            graces,
            init_ms: profile.init_ms.max(settings.init_ms.unwrap_or(INIT_MS_MIN)),
            private_home: (self.private_home)(&session.session_key),
            client_fs: ClientFs::None,
            offer_terminal: false,
            ..profile
        })
    }

    fn health(&self) -> BackendHealth {
        (self.probe)()
    }
}

/// Failure of a start without a program of the backend.
fn missing(program: &str) -> Failure {
    let text = format!(
        "{} {program} of the backend acpx is not installed. {INSTALL}",
        Code::BackendUnavailable.text()
    );
    let shown =
        format!("{} A program of the backend acpx is not installed.", Code::BackendUnavailable.text());
    Failure::new(Code::BackendUnavailable, text)
        .for_conversations(shown)
        .detail("NOT_INSTALLED")
        .origin("gateway")
}

/// How to get acpx.
pub const INSTALL: &str = "Install Node.js 22 or later and run `npm install --global acpx@0.19.1`, or name the program \
                           with [backends.acpx] command.";

/// Client of acpx for one session.
#[derive(Debug, Clone)]
pub struct AcpxMachine {
    state: MachineState,
    settings: Settings,
}

impl AcpxMachine {
    /// Creates a fresh machine, or restores the one saved in `saved`. An empty text means a fresh one.
    ///
    /// # Errors
    /// `saved` was not written by this backend.
    fn open(saved: Option<&str>, settings: Settings) -> Result<Self, MachineStateError> {
        let state = match saved {
            None | Some("") => MachineState::default(),
            Some(text) => serde_json::from_str(text)?,
        };
        Ok(Self { state, settings })
    }

    /// Builds a status event for the journal.
    fn status(&self, status: &str, text: &str, more: &[(&str, Value)]) -> BackendStep {
        let mut payload = json!({ "status": status, "text": text });
        for (name, value) in more {
            crate::jsonrpc::put(&mut payload, name, value.clone());
        }
        self.event(EventKind::Status, payload.to_string(), None)
    }

    fn event(&self, kind: EventKind, payload: String, extra: Option<String>) -> BackendStep {
        BackendStep::Event(NewEvent { run_id: self.state.run_id(), kind, payload, extra })
    }

    /// Ends the session in this process.
    fn fail(&mut self, failure: Failure) -> Vec<BackendStep> {
        self.state.phase = AcpxPhase::Failed;
        self.state.turn = None;
        vec![BackendStep::Failed(failure)]
    }

    fn protocol_error(&mut self, text: &str) -> Vec<BackendStep> {
        let text = format!("{} {text}", Code::ProtocolError.text());
        self.fail(Failure::new(Code::ProtocolError, text).origin("acpx"))
    }
}

fn control(input: &BridgeInput<'_>) -> BackendStep {
    BackendStep::Send { bytes: input.line(), kind: InputKind::Control }
}

impl BackendMachine for AcpxMachine {
    fn start_session(&mut self, input: &StartSessionParams) -> Vec<BackendStep> {
        self.begin(input)
    }

    fn submit(&mut self, input: &SubmitParams) -> Vec<BackendStep> {
        let run_id = input.run_id;
        if input.steer { vec![BackendStep::Steered { run_id, taken: false }] } else { self.prompt(input) }
    }

    fn stream(&mut self, _at: u64, line: &[u8]) -> Vec<BackendStep> {
        if line.iter().all(u8::is_ascii_whitespace)
            || matches!(self.state.phase, AcpxPhase::Idle | AcpxPhase::Failed)
        {
            return Vec::new();
        }
        match serde_json::from_slice(line) {
            Ok(BridgeOutput::Hello(hello)) => self.on_hello(hello),
            Ok(BridgeOutput::Unusable { error }) => self.on_unusable(&error),
            Ok(BridgeOutput::Out { id, line }) => self.on_command_line(id, &line),
            Ok(BridgeOutput::Watch { id, line }) => self.on_watch_line(id, &line),
            Ok(BridgeOutput::Exit { id, code }) => self.on_exit(id, code),
            Ok(BridgeOutput::OwnerEnded) => self.on_owner_end(),
            Ok(BridgeOutput::Timer { id }) => self.on_timer(id),
            Ok(BridgeOutput::Fault { text }) => vec![BackendStep::Log(format!("acpx bridge: {text}"))],
            Err(error) => vec![
                BackendStep::LineFault(LineFault::Malformed),
                BackendStep::Log(format!("a line of the acpx bridge cannot be read: {error}")),
            ],
        }
    }

    fn answer(&mut self, _answer: &RequestReply) -> Vec<BackendStep> {
        Vec::new()
    }

    fn cancel(&mut self, run_id: RunId) -> Vec<BackendStep> {
        self.cancel_turn(run_id)
    }

    fn set_option(&mut self, option: &OptionChange) -> Vec<BackendStep> {
        self.change_option(option)
    }

    fn close(&mut self, goodbye: CloseMode) -> Vec<BackendStep> {
        self.say_goodbye(goodbye)
    }

    fn can_discard(&self) -> bool {
        self.state.phase == AcpxPhase::Ready
    }

    fn probe(&mut self) -> Vec<BackendStep> {
        self.ask_status()
    }

    fn can_steer(&self) -> bool {
        false
    }

    fn own_permission_mode(&self, mode: PermissionMode) -> Option<PermissionMode> {
        Some(if mode == PermissionMode::Ask { PermissionMode::ApproveReads } else { mode })
    }

    fn is_proxy(&self) -> bool {
        true
    }

    fn save(&self) -> String {
        // The state holds only strings, numbers and lists, so serialization cannot fail.
        serde_json::to_string(&self.state).unwrap_or_default()
    }
}
