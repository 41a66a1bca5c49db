//! The pure half of a runtime backend: a machine that turns commands into bytes for the agent's standard input
//! and the agent's lines into steps. It never acts; the session task commits what a step means and then does it.
//!
//! Its whole state is a text ([`Link::save`]) that is committed in the same transaction as the stdout offset up
//! to which it has read. A gateway that was killed rebuilds the machine from that text, reads on from that
//! offset, and is the same machine: that is how output is exactly-once across a crash.

use crate::config::{ClientFs, McpServer};
use crate::core::agent_settings::Report;
use crate::core::event::NewEvent;
use crate::error::Failure;
use acp_shared::ids::{LeaseId, RunId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A runtime backend's machine for one session.
pub(crate) trait Link: Send {
    /// A new process of the agent runs under `lease`: bring it to a session (initialise, then new, resume or
    /// load). Ends in [`LinkStep::Ready`] or [`LinkStep::Failed`]. Forgets everything of an earlier process.
    fn ensure_session(&mut self, input: &EnsureSession) -> Vec<LinkStep>;
    /// Submits a turn, or steers the running one. Only when ready; a turn only when none runs.
    fn submit(&mut self, input: &Submit) -> Vec<LinkStep>;
    /// One line of the agent, without its newline; `at` is the offset of its first byte in the lease's stdout.
    fn stream(&mut self, at: u64, line: &[u8]) -> Vec<LinkStep>;
    /// An answer to something the agent asked with [`LinkStep::Ask`].
    fn answer(&mut self, answer: &Answer) -> Vec<LinkStep>;
    /// Asks the agent to stop the running turn. Touches no process. The turn still ends by [`LinkStep::TurnDone`].
    fn cancel(&mut self, run_id: RunId) -> Vec<LinkStep>;
    /// Changes a session option; the agent's answer comes as [`LinkStep::OptionAnswered`].
    fn set_option(&mut self, option: &SetOption) -> Vec<LinkStep>;
    /// The session is closed: a last word to the agent where the protocol has one (`session/delete` for
    /// [`Goodbye::Discard`], else `session/close`). Its answer comes as [`LinkStep::Farewell`].
    fn close(&mut self, goodbye: Goodbye) -> Vec<LinkStep>;
    /// Whether the agent can be asked to forget the conversation now.
    fn can_discard(&self) -> bool;
    /// Flushes output that was held back; called once at the end of the agent's output.
    fn ended(&mut self) -> Vec<LinkStep> {
        Vec::new()
    }
    /// A harmless question to an idle agent; its answer, of whatever kind, comes as [`LinkStep::Alive`].
    fn probe(&mut self) -> Vec<LinkStep>;
    /// Whether the running turn can be steered.
    fn can_steer(&self) -> bool;
    /// The machine's state as text, to be committed.
    fn save(&self) -> String;
}

/// What [`Link::ensure_session`] needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EnsureSession {
    /// The process that was started for it.
    pub(crate) lease_id: LeaseId,
    /// Absolute working directory.
    pub(crate) cwd: String,
    /// The agent's own id of the conversation to go on with; `None` starts a new one.
    pub(crate) resume: Option<String>,
    /// Mode to set after opening: the person's choice, otherwise the asking mode.
    pub(crate) mode: Option<String>,
    /// Asking mode, set after a refusal of `mode`.
    pub(crate) asking_mode: Option<String>,
    /// True for an agent with questions in every mode except known self-approving ones.
    pub(crate) asks: bool,
    /// Config options to set once the session is open: id and value.
    pub(crate) options: Vec<(String, String)>,
    /// MCP servers for the agent; those with a transport unknown to the agent are left out.
    pub(crate) mcp_servers: Vec<McpServer>,
    /// Additional absolute directories of the session.
    pub(crate) additional_directories: Vec<String>,
    /// File requests offered to the agent.
    pub(crate) client_fs: ClientFs,
    /// Whether the agent may be offered `terminal/*`.
    pub(crate) offer_terminal: bool,
}

/// What [`Link::submit`] needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Submit {
    /// The turn; the id towards the agent is derived from it.
    pub(crate) run_id: RunId,
    /// The prompt.
    pub(crate) text: String,
    /// The files that came with it, as in the run's row.
    pub(crate) files: Option<Arc<str>>,
    /// Whether it is a steer into the running turn.
    pub(crate) steer: bool,
}

/// What the agent is told when its session is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goodbye {
    /// That nobody needs the session now.
    Close,
    /// That the conversation shall be forgotten.
    Discard,
}

/// What [`Link::set_option`] needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SetOption {
    /// `session/set_mode`.
    Mode(String),
    /// `session/set_config_option`.
    Config {
        /// The option's id.
        id: String,
        /// Its new value.
        value: String,
    },
}

impl std::fmt::Display for SetOption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mode(mode) => write!(f, "mode \"{mode}\""),
            Self::Config { id, value } => write!(f, "option \"{id}\" = \"{value}\""),
        }
    }
}

/// What the link wants; steps are carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkStep {
    /// Append to the journal.
    Event(NewEvent),
    /// Write one message (newline included) to the agent's standard input, through the outbox.
    Send {
        /// The bytes.
        bytes: Vec<u8>,
        /// What it is, for the outbox row and for H6.
        meaning: Meaning,
    },
    /// The session is open.
    Ready {
        /// The agent's own id of the conversation.
        agent_session_id: String,
        /// Whether a lost process can be followed by another one that goes on with the conversation.
        resumable: bool,
        /// `agentInfo` and abilities as received, JSON text, for `sessions show`.
        agent_info: String,
    },
    /// The agent answered a change of a mode or an option.
    OptionAnswered {
        /// The change.
        option: SetOption,
        /// True for a person's request; false for a preset or a stored setting.
        is_own: bool,
        /// True when the agent took the change.
        is_taken: bool,
        /// The agent's answer as a sentence for people.
        text: String,
    },
    /// The agent reported its modes, models or config options.
    Reported(Report),
    /// The session could not be opened, or the agent broke the protocol: the process is of no use.
    Failed(Failure),
    /// The turn ended with an answer. Comes after everything the agent said in it.
    TurnDone {
        /// The turn.
        run_id: RunId,
        /// ACP's stop reason: `end_turn`, `cancelled`, `refusal` … or what the agent made up.
        stop_reason: String,
        /// The result of `session/prompt` as received, JSON text.
        result: String,
    },
    /// The turn ended with an error of the agent; the process goes on.
    TurnFailed {
        /// The turn.
        run_id: RunId,
        /// Why.
        failure: Failure,
    },
    /// The agent took (or refused) a steer.
    Steered {
        /// The steer's run.
        run_id: RunId,
        /// Whether it was taken; otherwise it must be queued as a prompt.
        taken: bool,
    },
    /// The agent asks for something; [`Link::answer`] must follow, once.
    Ask(Ask),
    /// The agent took back what it had asked (`$/cancel_request`), or its turn ended: no answer is wanted.
    Unask {
        /// Offset that names the request.
        at: u64,
    },
    /// Certainty of questions in the agent's present mode.
    Asking(Asking),
    /// An answer to a probe.
    Alive,
    /// The agent answered the last word: nothing more is expected of it.
    Farewell,
    /// Worth a line in the log: something odd that was tolerated.
    Note(String),
    /// Count a defective line of the agent in the metrics.
    LineFault(LineFault),
}

/// Defect of one line of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineFault {
    /// Parts were replaced to make the line valid.
    Repaired,
    /// Not a message; skipped.
    Malformed,
}

impl LineFault {
    /// The label of its metric.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Repaired => "repaired",
            Self::Malformed => "malformed",
        }
    }
}

/// Certainty that an agent asks before acting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Asking {
    /// Ensured by mode, preset or configuration.
    Ensured,
    /// Not ensured: no asking mode is known, or none could be set.
    Unknown,
    /// Excluded: the present mode approves without questions.
    Never,
}

/// What an outbox row means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Meaning {
    /// Handshake, settings and other traffic without an effect to lose.
    Control,
    /// The prompt of a run.
    Prompt {
        /// The run.
        run_id: RunId,
    },
    /// A steer.
    Steer {
        /// The steer's run.
        run_id: RunId,
    },
    /// A cancel.
    Cancel {
        /// The run to stop.
        run_id: RunId,
    },
    /// The answer to the agent's request at this stdout offset.
    Answer {
        /// Offset of the request's line.
        at: u64,
    },
}

/// A request of the agent. Its name is the offset of its line in the lease's stdout (H3, H4): unique for ever,
/// whatever ids the agent uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ask {
    /// Offset of the request's line.
    pub(crate) at: u64,
    /// The turn it belongs to.
    pub(crate) run_id: Option<RunId>,
    /// The method, as received.
    pub(crate) method: String,
    /// The params, as received, JSON text.
    pub(crate) params: String,
    /// What is asked.
    pub(crate) what: Wanted,
}

/// What an agent can ask of its client, read from the params.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Wanted {
    /// `session/request_permission`.
    Permission {
        /// Title of the tool call, or what stands for it.
        title: String,
        /// ACP's tool kind (`read`, `edit`, `execute` …) when given.
        tool_kind: Option<String>,
        /// The agent's options, in its order.
        options: Vec<PermissionOption>,
    },
    /// `fs/read_text_file`.
    FsRead {
        /// Absolute path.
        path: String,
        /// First line wanted, from 1.
        line: Option<u64>,
        /// How many lines.
        limit: Option<u64>,
    },
    /// `fs/write_text_file`.
    FsWrite {
        /// Absolute path.
        path: String,
        /// The new content.
        content: String,
    },
    /// `terminal/create`.
    TerminalCreate {
        /// Program.
        command: String,
        /// Arguments.
        args: Vec<String>,
        /// Additions to the environment.
        env: Vec<(String, String)>,
        /// Absolute working directory; the session's when absent.
        cwd: Option<String>,
        /// How many bytes of output are kept.
        output_bytes_max: Option<u64>,
    },
    /// `terminal/output`.
    TerminalOutput {
        /// The terminal: its lease id.
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

/// One choice of a permission request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PermissionOption {
    /// The agent's id of it.
    pub(crate) id: String,
    /// What a person reads.
    pub(crate) name: String,
    /// `allow_once`, `allow_always`, `reject_once`, `reject_always`, or what the agent made up.
    pub(crate) kind: String,
}

/// The answer to an [`Ask`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Offset that names the request.
    pub(crate) at: u64,
    /// The JSON-RPC result as JSON text, or the error.
    pub(crate) outcome: Result<String, RpcError>,
    /// True when the answer refuses a permission, which lets the agent end its turn as cancelled.
    pub(crate) is_rejection: bool,
}

/// A JSON-RPC error towards the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RpcError {
    /// The number, e.g. -32602.
    pub(crate) code: i64,
    /// What happened.
    pub(crate) message: String,
}
