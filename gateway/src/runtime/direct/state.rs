//! The machine's state: everything that must survive the gateway's death, and nothing that grows with the
//! conversation.

use super::calls::Calls;
use crate::config::{ClientFs, McpServer};
use crate::core::agent_settings::{AgentSettings, ConfigOption, MODEL_OPTION};
use crate::core::files::Takes;
use crate::core::link::{Goodbye, SetOption};
use acp_shared::ids::{LeaseId, RunId};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How many requests of the agent may be open at once.
pub(super) const ASKS_MAX: usize = 256;
/// Maximum length of the parameters of all open requests of an agent that are longer than [`ASK_SMALL_BYTES`].
pub(super) const ASKS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Parameters up to this length do not count: there are at most [`ASKS_MAX`] of them.
pub(super) const ASK_SMALL_BYTES: usize = 64 * 1024;
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
    /// Asking mode of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) asking_mode: Option<String>,
    /// True for an agent with questions in every mode except known self-approving ones.
    #[serde(default)]
    pub(super) vouched: bool,
    /// File requests offered to the agent.
    #[serde(alias = "offer_fs", deserialize_with = "client_fs")]
    pub(super) client_fs: ClientFs,
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
    /// Wire format of config options.
    #[serde(default, skip_serializing_if = "OptionWire::is_default")]
    pub(super) wire: OptionWire,
    /// Changes by a person while the session is being opened.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) own: Vec<SetOption>,
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
    /// Open tool calls of the running turn.
    #[serde(default, skip_serializing_if = "Calls::is_empty")]
    pub(super) calls: Calls,
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
    /// First half of a character cut at the end of the last chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) half: Option<Half>,
}

/// First half of a UTF-16 pair, held until the chunk with the second half arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Half {
    /// True for a half of a thought chunk, false for a half of a message chunk.
    pub(super) thought: bool,
    /// UTF-16 unit, 0xd800 to 0xdbff.
    pub(super) unit: u16,
}

/// Reads [`State::client_fs`], also from the boolean that version 0.1 wrote.
fn client_fs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ClientFs, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Offered(bool),
        Which(ClientFs),
    }
    Ok(match Either::deserialize(deserializer)? {
        Either::Offered(true) => ClientFs::Both,
        Either::Offered(false) => ClientFs::None,
        Either::Which(which) => which,
    })
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) mcp_servers: Vec<McpServer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) additional_directories: Vec<String>,
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
    pub(super) mcp_http: bool,
    #[serde(default)]
    pub(super) mcp_sse: bool,
    #[serde(default)]
    pub(super) additional_directories: bool,
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

/// Differences of the agent's config options from the plain format. The full list is kept in the session's row, since
/// this state is written with every commit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct OptionWire {
    /// Id of the model's option, where other than `model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<String>,
    /// True when models are set with `session/set_model`, the predecessor of config options.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) has_set_model: bool,
    /// Options whose values are JSON booleans.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) booleans: BTreeSet<String>,
}

impl OptionWire {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Derives the format from the agent's report at the opening of the session.
    pub(super) fn of(settings: &AgentSettings) -> Self {
        let model = settings.model_option().map(|option| option.id.clone());
        Self {
            has_set_model: model.is_none() && settings.models.is_some(),
            model: model.filter(|id| id != MODEL_OPTION),
            booleans: booleans(&settings.options),
        }
    }
}

/// Ids of the options whose values are JSON booleans.
pub(super) fn booleans(options: &[ConfigOption]) -> BTreeSet<String> {
    options.iter().filter(|option| option.is_boolean).map(|option| option.id.clone()).collect()
}

/// The running turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Turn {
    pub(super) run_id: RunId,
    /// Whether the agent was asked to stop it.
    pub(super) cancelled: bool,
    /// True once a permission of this turn was refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) rejected: bool,
}

/// A request of the agent without an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpenAsk {
    /// The agent's id of it, raw: the answer carries exactly this.
    pub(super) id: String,
    /// Whether it is a question to a person, which ends with its turn.
    pub(super) permission: bool,
    /// Length of its parameters, 0 for [`ASK_SMALL_BYTES`] and less.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) bytes: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(bytes: &usize) -> bool {
    *bytes == 0
}
