//! Interface of a backend: a pure state machine that turns commands into bytes for the agent's standard
//! input, and lines of the agent into steps. The machine does no I/O; the session task commits each step and
//! then carries out the step.
//!
//! The complete state is a text ([`BackendMachine::save`]), committed in one transaction with the stdout
//! offset read so far. After a crash the gateway restores the machine from the text and continues at the
//! offset. This makes the processing of output exactly-once.

use crate::agent_settings::{OptionChange, SettingsReport};
use crate::config::{ClientFs, McpServer, NonInteractive, PermissionMode};
use crate::elicitation::Elicitation;
use crate::event::NewEvent;
use crate::failure::Failure;
use crate::jsonrpc::RpcError;
use crate::permission::Voters;
use crate::rows::SessionMode;
use acp_shared::codes::Code;
use acp_shared::ids::{LeaseId, RunId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// Backend state machine of one session.
pub trait BackendMachine: Send {
    /// Opens a session in a new process of the agent (initialise, then new, resume or load). Ends with
    /// [`BackendStep::Ready`] or [`BackendStep::Failed`]. Clears all state of an earlier process.
    fn start_session(&mut self, input: &StartSessionParams) -> Vec<BackendStep>;
    /// Submits a turn, or steers the running one. Requires an open session, and for a turn no running one.
    fn submit(&mut self, input: &SubmitParams) -> Vec<BackendStep>;
    /// Handles one line of the agent, without newline. `at` is the offset of the first byte in the lease's
    /// stdout.
    fn stream(&mut self, at: u64, line: &[u8]) -> Vec<BackendStep>;
    /// Sends the answer to a request of the agent ([`BackendStep::Request`]).
    fn answer(&mut self, answer: &RequestReply) -> Vec<BackendStep>;
    /// Asks the agent to stop the running turn, without a signal to the process. The turn ends with
    /// [`BackendStep::TurnDone`].
    fn cancel(&mut self, run_id: RunId) -> Vec<BackendStep>;
    /// Changes a session option. The agent's answer comes as [`BackendStep::OptionAnswered`].
    fn set_option(&mut self, option: &OptionChange) -> Vec<BackendStep>;
    /// Tells the agent about the close of the session, if supported (`session/delete` for
    /// [`CloseMode::Discard`], else `session/close`). The answer comes as [`BackendStep::CloseAnswered`].
    fn close(&mut self, goodbye: CloseMode) -> Vec<BackendStep>;
    /// True if the agent can delete the conversation now.
    fn can_discard(&self) -> bool;
    /// Flushes buffered output; called once at the end of the agent's output.
    fn ended(&mut self) -> Vec<BackendStep> {
        Vec::new()
    }
    /// Sends a request without effect to an idle agent. Any answer comes as [`BackendStep::ProbeAnswered`].
    fn probe(&mut self) -> Vec<BackendStep>;
    /// True if the running turn can be steered.
    fn can_steer(&self) -> bool;
    /// Returns the mode that the process applies itself for a permission mode with which it is started; `None` if it
    /// asks the gateway for each permission.
    fn own_permission_mode(&self, _mode: PermissionMode) -> Option<PermissionMode> {
        None
    }
    /// True if the process is not the agent but passes turns on to it: its exit leaves the outcome of the turn unknown.
    fn is_proxy(&self) -> bool {
        false
    }
    /// Returns the machine's state as text, to be committed.
    fn save(&self) -> String;
}

/// Maximum length of a message to an agent, in bytes, so that it fits into a frame to the supervisor: each attempt to
/// send a larger frame would break the connection.
pub const INPUT_BYTES_MAX: usize = acp_shared::protocol::FRAME_BYTES_MAX - 64 * 1024;

/// Returns the failure of a prompt whose message would be longer than `bytes_max`.
pub fn prompt_too_long(bytes_max: usize) -> Failure {
    let max = bytes_max / (1024 * 1024);
    let text = format!(
        "As JSON this prompt with its files is longer than one message, {max} MiB. Send less at once."
    );
    Failure::new(Code::LimitReached, text).detail("PROMPT_TOO_LONG").origin("gateway")
}

/// Parameters of [`BackendMachine::start_session`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartSessionParams {
    /// Lease of the new process.
    pub lease_id: LeaseId,
    /// Key of the session.
    pub session_key: String,
    /// Lifetime of the session.
    pub session_mode: SessionMode,
    /// Permission mode of the session, for backends that decide permissions themselves.
    pub permission: PermissionMode,
    /// Outcome of permission requests without a person to decide, for the same.
    pub non_interactive: NonInteractive,
    /// Absolute working directory.
    pub cwd: String,
    /// Agent's id of the conversation to continue; `None` starts a new one.
    pub resume: Option<String>,
    /// Mode to set after opening: the person's choice, or else the asking mode.
    pub mode: Option<String>,
    /// Asking mode, set if the agent refuses `mode`.
    pub asking_mode: Option<String>,
    /// True if the agent asks in every mode except known self-approving ones.
    pub asks: bool,
    /// Config options to set once the session is open: id and value.
    pub options: Vec<(String, String)>,
    /// MCP servers for the agent. Servers with a transport unknown to the agent are omitted.
    pub mcp_servers: Vec<McpServer>,
    /// Additional absolute directories of the session.
    pub additional_directories: Vec<String>,
    /// File requests offered to the agent.
    pub client_fs: ClientFs,
    /// True if `terminal/*` may be offered to the agent.
    pub offer_terminal: bool,
    /// Name of the agent in the configuration, for instructions.
    pub agent: String,
    /// Sign-in method for `authenticate` before the session is opened.
    pub auth_method: Option<String>,
    /// Lists stored sessions of the agent instead of opening one. Ends with [`BackendStep::Listed`] or
    /// [`BackendStep::Failed`].
    pub listing: Option<SessionListing>,
}

/// Stored sessions of an agent to list (`session/list`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionListing {
    /// Those of all directories.
    All,
    /// Those of the working directory.
    Directory,
}

/// Parameters of [`BackendMachine::submit`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubmitParams {
    /// Run of the turn. The request id towards the agent is derived from the run id.
    pub run_id: RunId,
    /// The prompt.
    pub text: String,
    /// Attached files, as in the run's row.
    pub files: Option<Arc<str>>,
    /// True for a steer into the running turn.
    pub steer: bool,
}

/// Message to the agent about the close of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloseMode {
    /// Close the session.
    Close,
    /// Delete the conversation.
    Discard,
}

/// Step requested by the backend. Steps are carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendStep {
    /// Append to the journal.
    Event(NewEvent),
    /// Write one message (newline included) to the agent's standard input, through the outbox.
    Send {
        /// Bytes of the message.
        bytes: Vec<u8>,
        /// Kind of the message, for the outbox row and for H6.
        kind: InputKind,
    },
    /// The session is open.
    Ready {
        /// Agent's id of the conversation.
        agent_session_id: String,
        /// True if a new process can continue the conversation.
        resumable: bool,
        /// `agentInfo` and capabilities as received, JSON text, for `sessions show`.
        agent_info: String,
    },
    /// The agent has listed its stored sessions, in the events before this step.
    Listed,
    /// The agent answered a change of a mode or an option.
    OptionAnswered {
        /// The change.
        option: OptionChange,
        /// True for a person's request; false for a preset or a stored setting.
        is_own: bool,
        /// True if the agent accepted the change.
        is_taken: bool,
        /// The agent's answer as a sentence for people.
        text: String,
    },
    /// The agent reported its modes, models or config options.
    SettingsReported(SettingsReport),
    /// The session could not be opened, or the agent violated the protocol. The process is unusable.
    Failed(Failure),
    /// The turn ended with an answer. Follows all output of the turn.
    TurnDone {
        /// The turn.
        run_id: RunId,
        /// Stop reason of ACP (`end_turn`, `cancelled`, `refusal` …), or one made up by the agent.
        stop_reason: String,
        /// The result of `session/prompt` as received, JSON text.
        result: String,
    },
    /// The turn ended with an error of the agent; the process continues.
    TurnFailed {
        /// The turn.
        run_id: RunId,
        /// Cause of the error.
        failure: Failure,
    },
    /// The agent accepted or refused a steer.
    Steered {
        /// Run of the steer.
        run_id: RunId,
        /// True if accepted; otherwise the steer must be queued as a prompt.
        taken: bool,
    },
    /// The agent sent a request. Requires exactly one call of [`BackendMachine::answer`].
    Request(AgentRequest),
    /// The agent withdrew a request (`$/cancel_request`), or the turn ended: no answer is expected.
    RequestWithdrawn {
        /// Offset of the request's line.
        at: u64,
    },
    /// Certainty that the agent asks in the present mode.
    AskGuarantee(AskGuarantee),
    /// The process cannot be used further, but the session can: the next prompt starts another process.
    EndProcess {
        /// Reason, for the log of the supervisor.
        reason: String,
    },
    /// Answer to a probe.
    ProbeAnswered,
    /// The agent answered the message about the close, or none was sent. No further answer is expected.
    CloseAnswered,
    /// Log message about a tolerated irregularity.
    Log(String),
    /// Count an invalid line of the agent in the metrics.
    LineFault(LineFault),
}

acp_shared::named! {
    /// Defect of one line of an agent. The names are metric labels.
    pub enum LineFault {
        /// Parts were replaced to make the line valid.
        Repaired = "repaired",
        /// Not a message; skipped.
        Malformed = "malformed",
    }
}

/// Certainty that an agent asks before acting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AskGuarantee {
    /// Ensured by mode, preset or configuration.
    Ensured,
    /// Not ensured: no asking mode is known, or none could be set.
    Unknown,
    /// Excluded: the present mode approves without questions.
    Never,
}

/// Kind of an outbox row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum InputKind {
    /// Handshake, settings and other messages without side effects.
    Control,
    /// The prompt of a run.
    Prompt {
        /// The run.
        run_id: RunId,
    },
    /// A steer.
    Steer {
        /// Run of the steer.
        run_id: RunId,
    },
    /// Cancellation of a turn.
    Cancel {
        /// Run to stop.
        run_id: RunId,
    },
    /// Answer to the agent's request at this stdout offset.
    Answer {
        /// Offset of the request's line.
        at: u64,
    },
}

/// Request of the agent. The offset of its line in the lease's stdout is a permanent unique id (H3, H4),
/// independent of the agent's own ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRequest {
    /// Offset of the request's line.
    pub at: u64,
    /// Run of the turn, if any.
    pub run_id: Option<RunId>,
    /// Method, as received.
    pub method: String,
    /// Params as received, JSON text; `{}` for a file write, whose content is in `what`.
    pub params: String,
    /// Parsed request.
    pub what: AgentRequestKind,
    /// True once an allowed effect was recalled: what was not sent to the supervisor yet is never sent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_recalled: bool,
    /// Who may answer, if this is a question.
    #[serde(default, skip_serializing_if = "Voters::is_anyone")]
    pub voters: Voters,
}

/// Parsed request of an agent to the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AgentRequestKind {
    /// `session/request_permission`.
    Permission {
        /// Title of the tool call, or a substitute.
        title: String,
        /// Tool kind of ACP (`read`, `edit`, `execute` …), if given.
        tool_kind: Option<String>,
        /// Options, in the agent's order.
        options: Vec<PermissionOption>,
    },
    /// `elicitation/create`.
    Elicitation {
        /// First line of the message.
        title: String,
        /// Options that answer without typing.
        options: Vec<PermissionOption>,
        /// The question.
        form: Elicitation,
    },
    /// `fs/read_text_file`.
    FsRead {
        /// Absolute path.
        path: String,
        /// First line to read, from 1.
        line: Option<u64>,
        /// Maximum number of lines.
        limit: Option<u64>,
    },
    /// `fs/write_text_file`.
    FsWrite {
        /// Absolute path.
        path: String,
        /// New content, shared by the copies of the request.
        #[serde(with = "shared_text")]
        content: Arc<str>,
    },
    /// `terminal/create`.
    TerminalCreate {
        /// Program.
        command: String,
        /// Arguments.
        args: Vec<String>,
        /// Additional environment variables.
        env: Vec<(String, String)>,
        /// Absolute working directory; `None` uses the session's.
        cwd: Option<String>,
        /// Maximum output to keep, in bytes.
        output_bytes_max: Option<u64>,
    },
    /// `terminal/output`.
    TerminalOutput {
        /// Lease id of the terminal.
        terminal_id: String,
    },
    /// `terminal/wait_for_exit`.
    TerminalWait {
        /// The terminal.
        terminal_id: String,
    },
    /// `terminal/kill`.
    TerminalKill {
        /// The terminal.
        terminal_id: String,
    },
    /// `terminal/release`.
    TerminalRelease {
        /// The terminal.
        terminal_id: String,
    },
}

impl AgentRequestKind {
    /// Creates an elicitation with its options.
    pub fn of_elicitation(form: Elicitation) -> Self {
        Self::Elicitation { title: form.title(), options: form.options(), form }
    }

    /// True for a question for a person: it waits for the answer in a permission row, and ends with its turn.
    pub const fn is_question(&self) -> bool {
        matches!(self, Self::Permission { .. } | Self::Elicitation { .. })
    }

    /// Title of a question for a person: a permission request or an elicitation.
    pub fn title(&self) -> Option<&str> {
        match self {
            Self::Permission { title, .. } | Self::Elicitation { title, .. } => Some(title),
            _ => None,
        }
    }

    /// Options of a question for a person; empty for other requests.
    pub fn options(&self) -> &[PermissionOption] {
        match self {
            Self::Permission { options, .. } | Self::Elicitation { options, .. } => options,
            _ => &[],
        }
    }

    /// The elicitation, if the request is one.
    pub const fn elicitation(&self) -> Option<&Elicitation> {
        match self {
            Self::Elicitation { form, .. } => Some(form),
            _ => None,
        }
    }
}

/// Option of a permission request, or of an elicitation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionOption {
    /// Agent's id of the option.
    pub id: String,
    /// Label for people.
    pub name: String,
    /// `allow_once`, `allow_always`, `reject_once`, `reject_always`, or one made up by the agent. Of an elicitation:
    /// `choice`, `accept`, `decline`.
    pub kind: String,
}

/// JSON-RPC result as JSON text, or error.
pub type RpcOutcome = Result<String, RpcError>;

/// Serialization of a shared text as a string.
mod shared_text {
    use serde::{Deserialize as _, Deserializer, Serializer};
    use std::sync::Arc;

    pub(super) fn serialize<S: Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<str>, D::Error> {
        String::deserialize(from).map(Arc::from)
    }
}

impl AgentRequest {
    /// Approximate number of content bytes.
    pub fn content_bytes(&self) -> usize {
        let content =
            if let AgentRequestKind::FsWrite { content, .. } = &self.what { content.len() } else { 0 };
        self.params.len() * 2 + content
    }
}

/// Answer to an [`AgentRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestReply {
    /// Offset of the request's line.
    pub at: u64,
    /// JSON-RPC result as JSON text, or error.
    pub outcome: RpcOutcome,
    /// True if the answer refuses a permission, so that the agent may end the turn as cancelled.
    pub is_rejection: bool,
}
