//! State of the machine: everything that must survive a restart of the gateway.

use super::argv::Invocation;
use super::errors::AcpxError;
use crate::agent_settings::OptionChange;
use crate::backend::CloseMode;
use crate::config::{McpServer, NonInteractive, PermissionMode};
use crate::files::AcceptedContent;
use crate::rows::SessionMode;
use acp_shared::ids::{LeaseId, RunId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of commands that wait or run.
pub(super) const PENDING_MAX: usize = 64;

/// Serialized state of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct MachineState {
    /// Phase of the opening.
    pub(super) phase: AcpxPhase,
    /// Lease of the bridge.
    pub(super) lease_id: Option<LeaseId>,
    /// Parameters of `start_session`; dropped when the session is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) wanted: Option<WantedAcpxSession>,
    /// Settings of every command.
    #[serde(default)]
    pub(super) invocation: Invocation,
    /// Lifetime of the session, for the handle.
    pub(super) mode: SessionMode,
    /// True if the record of acpx holds messages of the conversation.
    pub(super) has_messages: bool,
    /// True if the agent can resume or load a conversation.
    pub(super) can_load: bool,
    /// Content that the agent accepts in a prompt.
    pub(super) takes: AcceptedContent,
    /// Agent information for [`crate::backend::BackendStep::Ready`]; dropped when the session is open.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) agent_info: String,
    /// Notice for the first message of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) notice: Option<String>,
    /// Settings to make before the session is open; the first one is in progress.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub(super) settings: VecDeque<OptionChange>,
    /// Changes requested by a person while the session is being opened.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) own: Vec<OptionChange>,
    /// Position behind the last line of the watch command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cursor: Option<String>,
    /// Commands without an end, by number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) commands: BTreeMap<u64, PendingCommand>,
    /// The running turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) turn: Option<AcpxTurn>,
    /// Close that waits for the end of the running turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) goodbye: Option<CloseMode>,
    /// Number of the next command or timer.
    pub(super) counter: u64,
}

impl MachineState {
    /// Returns the number of a new command or timer.
    pub(super) fn number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Returns the run of the running turn.
    pub(super) fn run_id(&self) -> Option<RunId> {
        self.turn.as_ref().map(|turn| turn.run_id)
    }
}

/// Phase of the opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AcpxPhase {
    /// No process exists.
    #[default]
    Idle,
    /// The first line of the bridge is awaited.
    Starting,
    /// The session is created or found, and its settings are made.
    Opening,
    /// The session is open.
    Ready,
    /// The session cannot be used.
    Failed,
}

/// Fields of [`crate::backend::StartSessionParams`] that are needed after the first line of the bridge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WantedAcpxSession {
    pub(super) session_key: String,
    pub(super) cwd: String,
    pub(super) resume: Option<String>,
    pub(super) permission: PermissionMode,
    pub(super) non_interactive: NonInteractive,
    pub(super) mcp_servers: Vec<McpServer>,
    pub(super) mode: Option<String>,
    pub(super) options: Vec<(String, String)>,
}

/// Command of acpx that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PendingCommand {
    /// The command.
    pub(super) kind: CommandKind,
    /// True once the command reported success.
    #[serde(default)]
    pub(super) is_done: bool,
    /// Error that the command reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<AcpxError>,
}

/// Command of acpx.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CommandKind {
    /// `sessions ensure` or `sessions new`.
    Ensure,
    /// `sessions show`.
    Show,
    /// `set-mode` or `set`.
    Set(OptionChange),
    /// `prompt --no-wait`.
    Prompt,
    /// `cancel`.
    Cancel,
    /// `status`.
    Status,
    /// `sessions close`.
    Close,
    /// Timer after which a refused prompt is sent again.
    RetryTimer,
    /// Timer after which a prompt without a sign of acceptance is uncertain.
    AcceptTimer,
    /// Timer after which a cancel without an effect is sent again.
    CancelTimer,
}

/// The running turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AcpxTurn {
    pub(super) run_id: RunId,
    /// Content of the prompt, until acpx has accepted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) prompt: Option<String>,
    /// Id of the turn at acpx, once it is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) request: Option<String>,
    /// Number of the watch command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) watch: Option<u64>,
    /// Error that the watch command reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) watch_error: Option<AcpxError>,
    /// Number of starts of the watch command since its last line.
    #[serde(default)]
    pub(super) watch_starts: u32,
    /// Number of refusals that a retry followed.
    #[serde(default)]
    pub(super) retries: u32,
    /// True once a cancel was sent.
    #[serde(default)]
    pub(super) cancelled: bool,
    /// True once a queue owner ended in the turn.
    #[serde(default)]
    pub(super) owner_ended: bool,
    /// Number of cancels that had no effect.
    #[serde(default)]
    pub(super) cancel_retries: u32,
    /// Open requests of acpx to the agent: raw id and method.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) ids: BTreeMap<String, String>,
    /// Open permission requests of the agent: raw id and title.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) asked: BTreeMap<String, String>,
    /// Session of the agent, once the prompt was sent to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) agent_session: Option<String>,
    /// Result of `session/prompt`, as received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) result: Option<String>,
    /// Error of `session/prompt`, as received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

impl AcpxTurn {
    /// Creates a turn with a prompt that is not sent yet.
    pub(super) fn new(run_id: RunId, prompt: String) -> Self {
        Self {
            run_id,
            prompt: Some(prompt),
            request: None,
            watch: None,
            watch_error: None,
            watch_starts: 0,
            retries: 0,
            cancelled: false,
            owner_ended: false,
            cancel_retries: 0,
            ids: BTreeMap::new(),
            asked: BTreeMap::new(),
            agent_session: None,
            result: None,
            error: None,
        }
    }
}
