//! Grammar of the commands that people send to the gateway instead of the agent: `/acp …`, `/focus`,
//! `/unfocus`, `/agents`, `/session …`. Source: openclaw.md §2, seed 000 "Command and UX plan".
//!
//! A message that starts like a gateway command never reaches the agent: a malformed command is answered with
//! its usage, an unknown one with the help. Each command is one row of [`table::COMMANDS`], which holds its
//! grammar, its help line and its row in the manual. [`session_ref`] resolves the session, [`authorization`] checks
//! authorization.
#![deny(clippy::indexing_slicing)]

pub mod authorization;
pub mod duration;
mod parser;
pub mod session_ref;
pub mod table;
#[cfg(test)]
mod tests;
pub mod tokenizer;

use crate::binding::BindingTimeout;
use crate::options::Setting;
use crate::rows::{PermissionMode, SessionMode, Verbosity};
use crate::session::Ending;
use acp_shared::ids::{AgentName, RunId};

/// Command of a person to the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChatCommand {
    /// Start a session.
    Spawn(SpawnArgs),
    /// Act on one session.
    On {
        /// Session as named by the person; `None` for the session of this conversation.
        target: Option<String>,
        /// Requested action.
        act: SessionAction,
    },
    /// List the sessions.
    Sessions,
    /// Report the tokens and turns of the last days.
    Usage {
        /// Number of days.
        days: u64,
    },
    /// List running agents and their bindings.
    Agents,
    /// Report the health of the gateway.
    Doctor,
    /// Explain the setup of a backend and agents.
    Install,
    /// List the commands.
    Help,
    /// Bind this conversation to a session.
    Focus(String),
    /// Unbind this conversation.
    Unfocus,
    /// Show or change a timeout of the session's bindings.
    Window {
        /// Session as named by the person; `None` for the session of this conversation.
        target: Option<String>,
        /// Timeout to show or change.
        window: BindingTimeout,
        /// New value in milliseconds; `Some(None)` removes the timeout, `None` only shows it.
        change: Option<Option<u64>>,
    },
    /// Show or change the verbosity of this conversation.
    Verbosity {
        /// New value; `Some(None)` restores the configured one, `None` only shows it.
        change: Option<Option<Verbosity>>,
    },
    /// Malformed or unknown command.
    Misused {
        /// Description of the mistake.
        why: String,
        /// Row of the command; `None` if the command is unknown.
        usage: Option<&'static table::CommandSpec>,
    },
}

/// Action on one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionAction {
    /// Stop the running turn.
    Cancel,
    /// Stop this run only.
    CancelRun(RunId),
    /// Remove this run from the queue.
    Drop(RunId),
    /// Steer the running turn with the text of this queued run.
    SteerRun(RunId),
    /// Steer the running turn with a text.
    Steer(String),
    /// End the session.
    Close {
        /// Kind of ending.
        ending: Ending,
        /// True if the agent is asked to delete the conversation.
        discard: bool,
    },
    /// Start a new conversation with the agent.
    New,
    /// Show the state of the session.
    Status,
    /// Change one of its settings.
    Set(Setting),
    /// List pending permission requests.
    Permissions,
    /// Answer a pending permission request.
    Answer(AnswerArgs),
}

/// Arguments of `/acp spawn`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpawnArgs {
    /// Name of the agent; `None` for the default agent.
    pub agent: Option<AgentName>,
    /// Working directory.
    pub cwd: Option<String>,
    /// Label of the session.
    pub label: Option<String>,
    /// Intended lifetime.
    pub mode: Option<SessionMode>,
    /// Handling of permission requests.
    pub permission: Option<PermissionMode>,
    /// Conversation to bind.
    pub place: SpawnPlacement,
    /// Sign-in method of the agent, by its id (`/acp login`).
    pub auth_method: Option<String>,
}

/// Conversation to bind to a new session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SpawnPlacement {
    /// A new thread if the channel supports threads, otherwise this conversation. A console conversation
    /// corresponds to a thread elsewhere, so it is bound itself.
    #[default]
    Auto,
    /// This conversation.
    Here,
    /// No conversation.
    Off,
}

/// Answer to a permission request or an elicitation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PermissionChoice {
    /// The agent's option that allows; the one-time option if both are offered.
    Allow,
    /// The agent's option that refuses; the one-time option if both are offered.
    Deny,
    /// The option with this number (from 1) or id, or the value of a form's only field.
    Option(String),
    /// Values of a form: words `FIELD=VALUE`.
    Fields(Vec<String>),
}

/// Arguments of `/acp allow`, `deny` and `answer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerArgs {
    /// Permission request to answer; `None` for the only pending one.
    pub permission: Option<String>,
    /// Requested answer.
    pub verdict: PermissionChoice,
}

impl SessionAction {
    /// True for an action that changes something; repeated deliveries of such a command are deduplicated.
    pub const fn changes(&self) -> bool {
        !matches!(self, Self::Status | Self::Permissions)
    }
}

impl ChatCommand {
    /// True if the reply is shown to the requester only, if the channel supports this: the command only
    /// reads, or its effect is visible elsewhere.
    pub const fn is_private(&self) -> bool {
        match self {
            Self::Spawn(_)
            | Self::Focus(_)
            | Self::Unfocus
            | Self::Window { change: Some(_), .. }
            | Self::Verbosity { change: Some(_) } => false,
            Self::On { act, .. } => {
                use SessionAction::{Close, New, Set, Steer};
                !matches!(act, Close { .. } | New | Set(_) | Steer(_))
            }
            _ => true,
        }
    }
}

/// Minimum similarity of a suggested word.
const LIKENESS_MIN: f64 = 0.8;

/// Parses a message; `None` if it is not a gateway command and goes to the agent.
pub fn parse(text: &str) -> Option<ChatCommand> {
    let (head, rest) = cut(text);
    let head = head.to_ascii_lowercase();
    let rows = table::COMMANDS.iter().filter(|row| row.head == head);
    let mut rows = rows.peekable();
    rows.peek()?;
    let alone = rows.clone().find(|row| row.verb.is_empty());
    let (row, args) = if let Some(row) = alone {
        (row, rest)
    } else {
        let (verb, args) = cut(rest);
        let verb = tokenizer::normalize_keyword(verb);
        let found = rows.find(|row| row.verb == verb || row.aliases.contains(&verb.as_str()));
        let Some(row) = found else {
            return Some(unknown_verb(&head, &verb));
        };
        (row, args)
    };
    let read = (row.read)(args);
    Some(read.unwrap_or_else(|why| ChatCommand::Misused { why, usage: Some(row) }))
}

/// Refuses an unknown verb, and suggests the one that is most similar: its usage is shown instead of the list of all commands,
/// in which the suggestion would be lost.
fn unknown_verb(head: &str, verb: &str) -> ChatCommand {
    if verb.is_empty() {
        return ChatCommand::Misused { why: format!("{head} requires a command."), usage: None };
    }
    let why = format!("{head} has no command {}.", tokenizer::quote_word(verb));
    let rows = table::COMMANDS.iter().filter(|row| row.head == head);
    let near = rows
        .map(|row| (strsim::jaro_winkler(row.verb, verb), row))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    match near {
        Some((_, row)) => {
            let why = format!("{why} Did you mean {head} {}?", row.verb);
            ChatCommand::Misused { why, usage: Some(row) }
        }
        None => ChatCommand::Misused { why, usage: None },
    }
}

/// Splits off the first word and returns the rest as typed.
fn cut(text: &str) -> (&str, &str) {
    let text = text.trim();
    let (first, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (first, rest.trim())
}
