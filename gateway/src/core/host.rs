//! Effects of the host for an agent: reading and writing files, starting commands. The permission mode decides about
//! them as about `session/request_permission`.
//!
//! Requests for files and terminals carry no tool-call id. The host leaves a question out where a [`Grant`] covers the
//! request, and where the file holds the content already.

mod grant;
mod question;

pub(crate) use grant::{Grant, GrantTarget, Grants};
pub(crate) use question::{Question, command_line, shell_words};

use crate::core::link::Wanted;
use crate::core::rows::{NonInteractive, PermissionMode};
use serde::{Deserialize, Serialize};

/// Kind of effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Effect {
    /// `fs/read_text_file`.
    Read,
    /// `fs/write_text_file`.
    Write,
    /// `terminal/create`.
    Run,
}

impl Effect {
    /// Effect of a request. `None` for methods that concern a terminal which was allowed when it was created.
    pub(crate) const fn of(wanted: &Wanted) -> Option<Self> {
        match wanted {
            Wanted::FsRead { .. } => Some(Self::Read),
            Wanted::FsWrite { .. } => Some(Self::Write),
            Wanted::TerminalCreate { .. } => Some(Self::Run),
            Wanted::Permission { .. }
            | Wanted::TerminalOutput { .. }
            | Wanted::TerminalWait { .. }
            | Wanted::TerminalKill { .. }
            | Wanted::TerminalRelease { .. } => None,
        }
    }

    /// Name in the journal.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Run => "run",
        }
    }
}

/// Facts that decide about an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Circumstances {
    /// Permission mode of the session.
    pub(crate) mode: PermissionMode,
    /// Outcome where a question cannot be asked.
    pub(crate) non_interactive: NonInteractive,
    /// True for a request of the running turn.
    pub(crate) in_turn: bool,
    /// True where a person can be asked in that turn.
    pub(crate) interactive: bool,
    /// True while the turn is being cancelled.
    pub(crate) is_stopping: bool,
    /// True for a request that an earlier permission covers.
    pub(crate) is_granted: bool,
}

/// Decision about an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Carry it out.
    Perform(Reason),
    /// Answer with an error.
    Refuse(Reason),
    /// Ask a person.
    Ask,
    /// Answer with an error and end the run with `PERMISSION_PROMPT_UNAVAILABLE`.
    FailRun,
}

/// Reason of an outcome. The names are in journals: never change one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The permission mode.
    Mode,
    /// A permission that was given before.
    Granted,
    /// The file holds the content already.
    Unchanged,
    /// The answer to the host's question.
    Answer,
    /// No person to ask.
    Nobody,
    /// The turn is being cancelled, or has ended.
    Stopped,
    /// The deadline of the question.
    Deadline,
}

impl Reason {
    /// Name in the journal.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Mode => "mode",
            Self::Granted => "granted",
            Self::Unchanged => "unchanged",
            Self::Answer => "answer",
            Self::Nobody => "nobody",
            Self::Stopped => "stopped",
            Self::Deadline => "deadline",
        }
    }

    /// Text of a refusal for this reason, for the agent.
    pub(crate) const fn refusal(self) -> &'static str {
        match self {
            Self::Mode => "refused: the permission mode of this session does not allow it",
            Self::Nobody => "refused: this needs a permission, and nobody can be asked",
            Self::Stopped => "refused: the turn was stopped",
            Self::Deadline => "refused: nobody answered in time",
            Self::Granted | Self::Unchanged | Self::Answer => "refused: the person rejected it",
        }
    }
}

/// Decides about an effect. Reads are confined to the session's roots where they are served.
pub(crate) const fn decide(effect: Effect, now: Circumstances) -> Decision {
    let reads = matches!(effect, Effect::Read);
    match now.mode {
        PermissionMode::DenyAll => Decision::Refuse(Reason::Mode),
        _ if now.is_stopping && !reads => Decision::Refuse(Reason::Stopped),
        PermissionMode::ApproveAll => Decision::Perform(Reason::Mode),
        PermissionMode::ApproveReads | PermissionMode::Ask if reads => Decision::Perform(Reason::Mode),
        PermissionMode::ApproveReads | PermissionMode::Ask => {
            match (now.is_granted, now.in_turn && now.interactive, now.non_interactive) {
                (true, _, _) => Decision::Perform(Reason::Granted),
                (false, true, _) => Decision::Ask,
                (false, false, NonInteractive::Fail) if now.in_turn => Decision::FailRun,
                (false, false, NonInteractive::Deny | NonInteractive::Fail) => {
                    Decision::Refuse(Reason::Nobody)
                }
            }
        }
    }
}

/// Target of a write as it is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inspection {
    /// Absolute path without links; the file itself may be missing.
    pub(crate) path: String,
    /// True for a file that holds exactly the new content.
    pub(crate) is_same: bool,
    /// Present content.
    pub(crate) old: Content,
}

/// Content of a file, as far as a question shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// There is no file.
    Absent,
    /// Its text.
    Text(String),
    /// A file of this many bytes that is too large to be shown, or no text.
    Opaque(u64),
}

#[cfg(test)]
#[path = "host/tests.rs"]
mod tests;
