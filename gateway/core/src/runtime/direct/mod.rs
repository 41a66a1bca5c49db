//! The default backend: an ACP v1 client over the relayed standard streams of an agent that lives as long as
//! its session's lease.
//!
//! | file | contents |
//! |---|---|
//! | `state` | the machine's state, small and serialisable |
//! | `open` | initialise, then new, resume or load, then mode and options |
//! | `listing` | initialise, then list the agent's stored sessions |
//! | `turn` | prompt, steer, cancel, options, probe, close, and their answers |
//! | `requests` | requests of the agent |
//! | `updates` | updates of the agent |
//! | `calls` | tool calls in progress, for permission requests about them |
//! | `excerpt` | excerpts of large values |
//! | `halves` | characters that the agent cut between two chunks |
//! | `lens` | lenient extraction of the needed fields from raw JSON |
#![deny(clippy::indexing_slicing)]

mod calls;
mod excerpt;
mod halves;
pub(super) mod lens;
mod listing;
mod open;
mod requests;
mod state;
mod turn;
mod updates;

#[cfg(test)]
mod asking_tests;
#[cfg(test)]
mod cancel_tests;
#[cfg(test)]
mod lens_tests;
#[cfg(test)]
mod listing_tests;
#[cfg(test)]
mod open_tests;
#[cfg(test)]
mod requests_tests;
#[cfg(test)]
mod save_restore_tests;
#[cfg(test)]
mod session_params_tests;
#[cfg(test)]
mod sign_in_tests;
#[cfg(test)]
mod surrogate_tests;
#[cfg(test)]
pub mod tests;

pub use open::is_session_id;

use crate::agent_settings::OptionChange;
use crate::backend::{
    BackendMachine, BackendStep, CloseMode, InputKind, LineFault, RequestReply, StartSessionParams,
    SubmitParams,
};
use crate::event::{EventKind, NewEvent};
use crate::intake::AgentLine;
use crate::jsonrpc::{self, RpcMessage};
use crate::runtime::{BackendHealth, MachineStateError, Runtime};
use acp_shared::ids::RunId;
use state::{HandshakePhase, MachineState};

/// Name of the backend.
pub const ID: &str = "direct";

/// Returns the reason why agents cannot be started; `None` if they can.
type Outage = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// Creates [`DirectMachine`]s.
#[derive(Default)]
pub struct DirectRuntime {
    outage: Option<Outage>,
}

impl std::fmt::Debug for DirectRuntime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectRuntime").finish_non_exhaustive()
    }
}

impl DirectRuntime {
    /// Creates a backend; `outage` reports the health of the service for starting agents.
    pub fn new(outage: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self { outage: Some(Box::new(outage)) }
    }
}

impl Runtime for DirectRuntime {
    fn id(&self) -> &'static str {
        ID
    }

    fn machine(&self, saved: Option<&str>) -> Result<Box<dyn BackendMachine>, MachineStateError> {
        Ok(Box::new(DirectMachine::open(saved)?))
    }

    fn health(&self) -> BackendHealth {
        match self.outage.as_ref().and_then(|outage| outage()) {
            Some(why) => BackendHealth { ok: false, details: format!("no agent can be started: {why}") },
            None => {
                BackendHealth { ok: true, details: "ACP v1 over the agent's standard streams".to_owned() }
            }
        }
    }
}

/// ACP client of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectMachine {
    state: MachineState,
}

impl DirectMachine {
    /// Creates a fresh machine, or restores the one saved in `saved`. An empty text means a fresh one.
    ///
    /// # Errors
    /// `saved` was not written by this backend.
    pub fn open(saved: Option<&str>) -> Result<Self, MachineStateError> {
        let state = match saved {
            None | Some("") => MachineState::default(),
            Some(text) => serde_json::from_str(text)?,
        };
        Ok(Self { state })
    }

    /// Handles a line that is not a JSON-RPC message: counted, and reported at the 1st, 2nd, 4th, 8th …
    /// occurrence.
    fn on_malformed_line(&mut self, line: &str, what: jsonrpc::RpcParseError) -> Vec<BackendStep> {
        self.state.noise += 1;
        let count = self.state.noise;
        let counted = BackendStep::LineFault(LineFault::Malformed);
        if !count.is_power_of_two() {
            return vec![counted];
        }
        let sample: String = line.chars().take(200).collect();
        vec![
            counted,
            BackendStep::Log(format!("a line on stdout is {what} ({count} such lines so far): {sample}")),
            self.status(
                "noise",
                &format!("The agent wrote a line to its standard output that is not ACP: {what}."),
                &[("line", sample.into()), ("count", count.into())],
            ),
        ]
    }

    /// Builds a status event for the journal.
    fn status(&self, status: &str, text: &str, more: &[(&str, serde_json::Value)]) -> BackendStep {
        let mut payload = serde_json::Map::new();
        payload.insert("status".to_owned(), status.into());
        payload.insert("text".to_owned(), text.into());
        payload.extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        self.event(EventKind::Status, serde_json::Value::Object(payload).to_string())
    }

    fn event(&self, kind: EventKind, payload: String) -> BackendStep {
        BackendStep::Event(NewEvent { run_id: self.state.run_id(), kind, payload, extra: None })
    }

    fn extension(&self, method: &str, params: Option<&str>) -> BackendStep {
        let method = jsonrpc::quoted(method);
        let payload = match params {
            Some(params) => format!("{{\"method\":{method},\"params\":{params}}}"),
            None => format!("{{\"method\":{method}}}"),
        };
        self.event(EventKind::Extension, payload)
    }
}

fn control(bytes: Vec<u8>) -> BackendStep {
    BackendStep::Send { bytes, kind: InputKind::Control }
}

impl BackendMachine for DirectMachine {
    fn start_session(&mut self, input: &StartSessionParams) -> Vec<BackendStep> {
        self.begin(input)
    }

    fn submit(&mut self, input: &SubmitParams) -> Vec<BackendStep> {
        if input.steer { self.steer(input) } else { self.prompt(input) }
    }

    fn stream(&mut self, at: u64, line: &[u8]) -> Vec<BackendStep> {
        if line.iter().all(u8::is_ascii_whitespace)
            || matches!(self.state.phase, HandshakePhase::Idle | HandshakePhase::Failed)
        {
            return Vec::new();
        }
        let line = AgentLine::repair(line);
        let mut steps = match RpcMessage::parse(line.text()) {
            Ok(RpcMessage::Notification { method, params }) => self.on_notification(&method, params, &line),
            Ok(RpcMessage::Request { id, method, params }) => {
                self.flush_half_then(|link| link.on_agent_request(at, id, &method, params))
            }
            Ok(RpcMessage::Response { id, outcome }) => {
                self.flush_half_then(|link| link.on_response(id, outcome))
            }
            Err(what) => return self.on_malformed_line(line.text(), what),
        };
        steps.extend(line.is_repaired().then_some(BackendStep::LineFault(LineFault::Repaired)));
        steps
    }

    fn answer(&mut self, answer: &RequestReply) -> Vec<BackendStep> {
        self.send_answer(answer)
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

    fn ended(&mut self) -> Vec<BackendStep> {
        self.flush_half().into_iter().collect()
    }

    fn can_discard(&self) -> bool {
        self.state.phase == HandshakePhase::Ready && self.state.abilities.delete
    }

    fn probe(&mut self) -> Vec<BackendStep> {
        self.ping()
    }

    fn can_steer(&self) -> bool {
        self.state.phase == HandshakePhase::Ready && self.state.turn.is_some() && self.state.abilities.steer
    }

    fn save(&self) -> String {
        // The state contains only strings, numbers and lists, so serialization cannot fail. An empty text
        // would be restored as a new machine.
        serde_json::to_string(&self.state).unwrap_or_default()
    }
}
