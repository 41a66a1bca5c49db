//! The machine's state: everything that must survive the gateway's death, and nothing that grows with the
//! conversation.

use crate::core::files::Takes;
use crate::core::link::{Goodbye, SetOption};
use acp_shared::ids::{LeaseId, RunId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// How many requests of the agent may be open at once.
pub(super) const ASKS_MAX: usize = 256;
/// The longest id of an agent's request, in bytes of JSON.
pub(super) const ASK_ID_BYTES_MAX: usize = 1024;
/// How many steers or option changes may be open at once.
pub(super) const PENDING_MAX: usize = 64;

/// See the module. Short names: it is written with every commit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct State {
    /// Where the handshake is.
    pub(super) phase: Phase,
    /// The process.
    pub(super) lease_id: Option<LeaseId>,
    /// What was asked of `ensure_session`; dropped when the session is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) wanted: Option<WantedSession>,
    /// Whether `fs/*` was offered to the agent.
    pub(super) offer_fs: bool,
    /// Whether `terminal/*` was offered to the agent.
    pub(super) offer_terminal: bool,
    /// The agent's id of the conversation, once known.
    pub(super) session_id: Option<String>,
    /// Whether the conversation is an old one, so that a replay may come (H10).
    pub(super) resumed: bool,
    /// Whether this process was given a prompt.
    pub(super) prompted: bool,
    /// What the agent can do.
    pub(super) abilities: Abilities,
    /// What it is, for [`crate::core::link::LinkStep::Ready`]; dropped when the session is open.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) agent_info: String,
    /// What it calls itself.
    pub(super) agent_name: String,
    /// How to sign in, in the agent's words; empty when it does not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) sign_in: String,
    /// The agent's modes.
    pub(super) modes: Modes,
    /// Settings still to be made before the session is open; the first one is on its way.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub(super) settings: VecDeque<SetOption>,
    /// The running turn.
    pub(super) turn: Option<Turn>,
    /// Steers without an answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) steers: Vec<RunId>,
    /// Option changes without an answer, by number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) changes: BTreeMap<u64, SetOption>,
    /// Requests of the agent without an answer, by the offset that names them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) asks: BTreeMap<u64, OpenAsk>,
    /// The last word that waits for the end of the running turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) goodbye: Option<Goodbye>,
    /// Number of the next request that has no durable id of its own.
    pub(super) counter: u64,
    /// Lines that were no messages.
    pub(super) noise: u64,
}

impl State {
    /// The running turn's run.
    pub(super) fn run_id(&self) -> Option<RunId> {
        self.turn.as_ref().map(|turn| turn.run_id)
    }

    /// A request id of ours: what it is about, and the durable id it is derived from.
    pub(super) fn id(&self, what: &str) -> String {
        self.lease_id.map_or_else(|| what.to_owned(), |lease| format!("{what}:{lease}"))
    }

    /// The same with a number, for requests that come more than once in a lease.
    pub(super) fn numbered(&mut self, what: &str) -> (u64, String) {
        let number = self.counter;
        self.counter += 1;
        (number, format!("{}:{number}", self.id(what)))
    }
}

/// Where the handshake is. Each step waits for one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// No process.
    #[default]
    Idle,
    /// `initialize` is out.
    Initializing,
    /// `session/new` is out.
    Creating,
    /// `session/resume` is out.
    Resuming,
    /// `session/load` is out.
    Loading,
    /// A mode or an option is being set.
    Setting,
    /// The session is open.
    Ready,
    /// It never will be.
    Failed,
}

/// [`crate::core::link::EnsureSession`], as far as it is needed after `initialize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WantedSession {
    pub(super) cwd: String,
    pub(super) resume: Option<String>,
    pub(super) mode: Option<String>,
    pub(super) options: Vec<(String, String)>,
}

/// What the agent said it can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Abilities {
    pub(super) load: bool,
    pub(super) resume: bool,
    pub(super) close: bool,
    #[serde(default)]
    pub(super) delete: bool,
    pub(super) steer: bool,
    #[serde(default)]
    pub(super) takes: Takes,
}

/// The agent's session modes, as far as they matter for who approves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Modes {
    /// The one in use, if it was said.
    pub(super) current: Option<String>,
    /// The choices; dropped when the session is open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) known: Vec<String>,
    /// The config option that stands for the mode, where the agent has no modes of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) option_id: Option<String>,
}

/// The running turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Turn {
    pub(super) run_id: RunId,
    /// Whether the agent was asked to stop it.
    pub(super) cancelled: bool,
}

/// A request of the agent without an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpenAsk {
    /// The agent's id of it, raw: the answer carries exactly this.
    pub(super) id: String,
    /// Whether it is a question to a person, which ends with its turn.
    pub(super) permission: bool,
}
