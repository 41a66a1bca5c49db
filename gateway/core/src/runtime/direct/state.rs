//! State of the machine: everything that must survive a restart of the gateway, and nothing that grows with
//! the conversation.

use super::calls::OpenToolCalls;
use crate::agent_settings::OptionChange;
use crate::agent_settings::{AgentSettings, ConfigOption, MODEL_OPTION};
use crate::backend::{CloseMode, SessionListing};
use crate::config::{ClientFs, McpServer};
use crate::files::AcceptedContent;
use acp_shared::ids::{LeaseId, RunId};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum number of open requests of the agent.
pub(super) const ASKS_MAX: usize = 256;
/// Maximum total size, in bytes, of the parameters of open requests that are longer than [`ASK_SMALL_BYTES`].
pub(super) const ASKS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Parameters up to this size, in bytes, do not count: there are at most [`ASKS_MAX`] of them.
pub(super) const ASK_SMALL_BYTES: usize = 64 * 1024;
/// Maximum number of accepted pages whose completion is awaited.
pub(super) const PAGES_MAX: usize = 16;
/// Maximum length of the id of an agent's request, in bytes of JSON.
pub(super) const ASK_ID_BYTES_MAX: usize = 1024;
/// Maximum number of open steers, and of open option changes.
pub(super) const PENDING_MAX: usize = 64;

/// Serialized state of a backend machine. Short names, since it is written with every commit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct MachineState {
    /// Phase of the handshake.
    pub(super) phase: HandshakePhase,
    /// Lease of the process.
    pub(super) lease_id: Option<LeaseId>,
    /// Parameters of `start_session`; dropped when the session is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) wanted: Option<WantedSession>,
    /// Mode in which the agent requests permissions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) asking_mode: Option<String>,
    /// True for an agent that requests permissions in every mode except known self-approving ones.
    #[serde(default)]
    pub(super) vouched: bool,
    /// File requests offered to the agent.
    #[serde(alias = "offer_fs", deserialize_with = "client_fs")]
    pub(super) client_fs: ClientFs,
    /// True if `terminal/*` was offered to the agent.
    pub(super) offer_terminal: bool,
    /// The agent's id of the conversation, once known.
    pub(super) session_id: Option<String>,
    /// True for a resumed conversation, which the agent may replay (H10).
    pub(super) resumed: bool,
    /// True if this process was sent a prompt.
    pub(super) prompted: bool,
    /// Capabilities of the agent.
    pub(super) abilities: AgentCapabilities,
    /// Agent information for [`crate::backend::BackendStep::Ready`]; dropped when the session is open.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) agent_info: String,
    /// The agent's own name.
    pub(super) agent_name: String,
    /// Sign-in instructions of the agent; empty if it sends none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) sign_in: String,
    /// The agent's modes.
    pub(super) modes: Modes,
    /// Id of a config option that makes the agent approve tool calls itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) approving_option: Option<String>,
    /// Wire format of config options.
    #[serde(default, skip_serializing_if = "OptionFormat::is_default")]
    pub(super) wire: OptionFormat,
    /// Changes requested by a person while the session is being opened.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) own: Vec<OptionChange>,
    /// Settings to make before the session is open; the first one is in progress.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub(super) settings: VecDeque<OptionChange>,
    /// The running turn.
    pub(super) turn: Option<ActiveTurn>,
    /// Steers that are not answered yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) steers: Vec<RunId>,
    /// Option changes that are not answered yet, by number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) changes: BTreeMap<u64, OptionChange>,
    /// Open tool calls of the running turn.
    #[serde(default, skip_serializing_if = "OpenToolCalls::is_empty")]
    pub(super) calls: OpenToolCalls,
    /// Unanswered requests of the agent, by the offset that identifies each.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) asks: BTreeMap<u64, PendingAgentRequest>,
    /// Ids of accepted pages whose completion the agent has not reported, oldest first.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub(super) pages: VecDeque<String>,
    /// Closing request that waits for the end of the running turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) goodbye: Option<CloseMode>,
    /// Number of the next request without a durable id.
    pub(super) counter: u64,
    /// Number of stored sessions that the agent has listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) listed: usize,
    /// Number of lines that were not messages.
    pub(super) noise: u64,
    /// First half of a character cut at the end of the last chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) half: Option<HeldSurrogate>,
}

/// First half of a UTF-16 pair, held until the chunk with the second half arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HeldSurrogate {
    /// True for a half of a thought chunk, false for a half of a message chunk.
    pub(super) thought: bool,
    /// UTF-16 unit, 0xd800 to 0xdbff.
    pub(super) unit: u16,
}

/// Reads [`MachineState::client_fs`], also from the boolean that version 0.1 wrote.
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

impl MachineState {
    /// Returns the run of the running turn.
    pub(super) fn run_id(&self) -> Option<RunId> {
        self.turn.as_ref().map(|turn| turn.run_id)
    }

    /// Returns the id of a request to the agent: its kind, and the durable id it is derived from.
    pub(super) fn id(&self, what: &str) -> String {
        self.lease_id.map_or_else(|| what.to_owned(), |lease| format!("{what}:{lease}"))
    }

    /// Like `id` with a number, for requests that occur more than once per lease.
    pub(super) fn numbered(&mut self, what: &str) -> (u64, String) {
        let number = self.counter;
        self.counter += 1;
        (number, format!("{}:{number}", self.id(what)))
    }
}

/// Phase of the handshake. Each step waits for one response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HandshakePhase {
    /// No process exists.
    #[default]
    Idle,
    /// `initialize` was sent.
    Initializing,
    /// `authenticate` was sent.
    Authenticating,
    /// `session/new` was sent.
    Creating,
    /// `session/resume` was sent.
    Resuming,
    /// `session/load` was sent.
    Loading,
    /// `session/list` was sent.
    Listing,
    /// A mode or an option is being set.
    Setting,
    /// The session is open.
    Ready,
    /// Opening the session failed permanently.
    Failed,
}

/// Fields of [`crate::backend::StartSessionParams`] that are needed after `initialize`.
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
    /// Name of the agent in the configuration.
    #[serde(default)]
    pub(super) agent: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) auth_method: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) listing: Option<SessionListing>,
}

/// Capabilities that the agent reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(in crate::runtime) struct AgentCapabilities {
    pub(in crate::runtime) load: bool,
    pub(in crate::runtime) resume: bool,
    pub(super) close: bool,
    #[serde(default)]
    pub(super) list: bool,
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
    pub(in crate::runtime) takes: AcceptedContent,
}

/// Session modes of the agent, as needed to know if the agent approves tool calls itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Modes {
    /// Current mode, if reported.
    pub(super) current: Option<String>,
    /// Available modes; dropped when the session is open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) known: Vec<String>,
    /// Config option that represents the mode, for agents without modes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) option_id: Option<String>,
}

/// Differences of the agent's config options from the plain format. The full list is kept in the session's row, since
/// this state is written with every commit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct OptionFormat {
    /// Id of the model's option, if it is not `model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<String>,
    /// True if models are set with `session/set_model`, the predecessor of config options.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) has_set_model: bool,
    /// Options whose values are JSON booleans.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) booleans: BTreeSet<String>,
}

impl OptionFormat {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Derives the format from the agent's report when the session is opened.
    pub(super) fn of(settings: &AgentSettings) -> Self {
        let model = settings.model_option().map(|option| option.id.clone());
        Self {
            has_set_model: model.is_none() && settings.models.is_some(),
            model: model.filter(|id| id != MODEL_OPTION),
            booleans: booleans(&settings.options),
        }
    }
}

/// Returns the ids of the options whose values are JSON booleans.
pub(super) fn booleans(options: &[ConfigOption]) -> BTreeSet<String> {
    options.iter().filter(|option| option.is_boolean).map(|option| option.id.clone()).collect()
}

/// The running turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ActiveTurn {
    pub(super) run_id: RunId,
    /// True if the agent was sent a cancel for the turn.
    pub(super) cancelled: bool,
    /// True once a permission of this turn was refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) rejected: bool,
}

/// Request of the agent that is not answered yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PendingAgentRequest {
    /// The agent's id of the request as raw JSON, repeated in the response.
    pub(super) id: String,
    /// True for a permission request or an elicitation, which ends with its turn.
    pub(super) permission: bool,
    /// True for an elicitation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) elicitation: bool,
    /// The agent's id of the page that the request asks to open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) page: Option<String>,
    /// Size of its parameters in bytes, 0 for [`ASK_SMALL_BYTES`] and less.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) bytes: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(bytes: &usize) -> bool {
    *bytes == 0
}
