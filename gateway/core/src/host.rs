//! Effects of the host requested by an agent: reading and writing files, running commands. The permission
//! mode applies to effects as to `session/request_permission`.
//!
//! Requests for files and terminals carry no tool-call id. The host skips the question if a [`Grant`] covers
//! the request, or if the file already has the requested content.

mod grant;
mod question;

pub use grant::{Grant, GrantTarget, Grants};
pub use question::{HostQuestion, command_line, command_title, shell_words};

use crate::backend::AgentRequestKind;
use crate::jsonrpc::LIMIT_REACHED;
use crate::jsonrpc::RpcError;
use crate::rows::{NonInteractive, PermissionMode};
use serde::{Deserialize, Serialize};

/// Maximum length of an answer to an agent's request, in bytes of JSON. A commit holds several copies.
pub const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Returns the error for an agent whose request has an answer above [`ANSWER_BYTES_MAX`].
pub fn too_long_answer() -> RpcError {
    let message =
        format!("The answer is longer than {ANSWER_BYTES_MAX} bytes of JSON; ask for a part of it.");
    RpcError { code: LIMIT_REACHED, message }
}

acp_shared::named! {
    /// Kind of effect, named as in the journal.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum HostEffect {
        /// `fs/read_text_file`.
        Read = "read",
        /// `fs/write_text_file`.
        Write = "write",
        /// `terminal/create`.
        Run = "run",
    }
}

impl HostEffect {
    /// Returns the effect of a request. `None` for methods of a terminal, which was allowed at creation.
    pub const fn of(wanted: &AgentRequestKind) -> Option<Self> {
        match wanted {
            AgentRequestKind::FsRead { .. } => Some(Self::Read),
            AgentRequestKind::FsWrite { .. } => Some(Self::Write),
            AgentRequestKind::TerminalCreate { .. } => Some(Self::Run),
            AgentRequestKind::Permission { .. }
            | AgentRequestKind::Elicitation { .. }
            | AgentRequestKind::TerminalOutput { .. }
            | AgentRequestKind::TerminalWait { .. }
            | AgentRequestKind::TerminalKill { .. }
            | AgentRequestKind::TerminalRelease { .. } => None,
        }
    }
}

/// Turn that a request of the agent belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestTurn {
    /// No turn.
    None,
    /// A turn in which a person can be asked.
    Interactive,
    /// A turn in which no person can be asked.
    Unattended,
}

/// Facts that decide about an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectContext {
    /// Permission mode of the session.
    pub mode: PermissionMode,
    /// Outcome if no person can be asked.
    pub non_interactive: NonInteractive,
    /// Turn of the request.
    pub turn: RequestTurn,
    /// True while the turn is being cancelled.
    pub is_stopping: bool,
    /// True if an earlier permission covers the request.
    pub is_granted: bool,
}

/// Decision about an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EffectDecision {
    /// Carry it out.
    Perform(DecisionReason),
    /// Answer with an error.
    Refuse(DecisionReason),
    /// Ask a person.
    Ask,
    /// Answer with an error and end the run with `PERMISSION_PROMPT_UNAVAILABLE`.
    FailRun,
}

acp_shared::named! {
    /// Reason of an outcome. The names are in journals: never change one.
    pub enum DecisionReason {
        /// The permission mode.
        Mode = "mode",
        /// A permission given before.
        Granted = "granted",
        /// The file already has the requested content.
        Unchanged = "unchanged",
        /// The answer to the host's question.
        Answer = "answer",
        /// No person can be asked.
        Nobody = "nobody",
        /// The turn is being cancelled, or has ended.
        Stopped = "stopped",
        /// The deadline of the question.
        Deadline = "deadline",
    }
}

impl DecisionReason {
    /// Returns the text of a refusal for this reason, for the agent.
    pub const fn refusal(self) -> &'static str {
        match self {
            Self::Mode => "refused: the permission mode of this session does not allow it",
            Self::Nobody => "refused: permission is required, and no approver is available",
            Self::Stopped => "refused: the turn was stopped",
            Self::Deadline => "refused: nobody answered in time",
            Self::Granted | Self::Unchanged | Self::Answer => "refused: the person rejected it",
        }
    }
}

/// Decides about an effect. The file service confines reads to the session's roots.
pub const fn decide_effect(effect: HostEffect, now: EffectContext) -> EffectDecision {
    let reads = matches!(effect, HostEffect::Read);
    match now.mode {
        PermissionMode::DenyAll => EffectDecision::Refuse(DecisionReason::Mode),
        _ if now.is_stopping && !reads => EffectDecision::Refuse(DecisionReason::Stopped),
        PermissionMode::ApproveAll => EffectDecision::Perform(DecisionReason::Mode),
        PermissionMode::ApproveReads | PermissionMode::Ask if reads => {
            EffectDecision::Perform(DecisionReason::Mode)
        }
        PermissionMode::ApproveReads | PermissionMode::Ask => {
            match (now.is_granted, now.turn, now.non_interactive) {
                (true, _, _) => EffectDecision::Perform(DecisionReason::Granted),
                (false, RequestTurn::Interactive, _) => EffectDecision::Ask,
                (false, RequestTurn::Unattended, NonInteractive::Fail) => EffectDecision::FailRun,
                (false, RequestTurn::Unattended, NonInteractive::Deny) | (false, RequestTurn::None, _) => {
                    EffectDecision::Refuse(DecisionReason::Nobody)
                }
            }
        }
    }
}

/// State on disk of the target of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// Absolute path without symbolic links; the file itself may be missing.
    pub path: String,
    /// True if the file has exactly the new content.
    pub is_same: bool,
    /// Present content.
    pub old: FileContent,
}

/// Content of a file, as shown in a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileContent {
    /// The file does not exist.
    Absent,
    /// Text of the file.
    Text(String),
    /// File of this many bytes that is too large to be shown, or not text.
    Opaque(u64),
}

#[cfg(test)]
#[path = "host/tests.rs"]
mod tests;
