//! The grammar of what a person types at the gateway rather than at the agent: `/acp …`, `/focus`, `/unfocus`,
//! `/agents`, `/session …`. Source: openclaw.md §2, seed 000 "Command and UX plan".
//!
//! What starts like a gateway command never reaches the agent: one that is not understood is answered with how it is
//! used, an unknown one with help. Each command is one row of [`verbs::ROWS`], which is its grammar, its line of help
//! and its row in the manual. Which session is meant is decided in [`target`], who may do it in [`gate`].

pub(crate) mod gate;
mod read;
pub(crate) mod target;
#[cfg(test)]
mod tests;
pub(crate) mod verbs;
pub(crate) mod window;
pub(crate) mod words;

use crate::core::binding::Window;
use crate::core::options::Setting;
use crate::core::rows::{PermissionMode, SessionMode, Verbosity};
use crate::core::session::Ending;
use acp_shared::ids::{AgentName, RunId};

/// What a person wants of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// A new session.
    Spawn(SpawnArgs),
    /// Something about one session.
    On {
        /// Which session, in the person's words; `None` means the one of this conversation.
        target: Option<String>,
        /// What.
        act: Act,
    },
    /// List the sessions.
    Sessions,
    /// List what runs, and where it is bound.
    Agents,
    /// Say how the gateway is.
    Doctor,
    /// Say how a backend and agents are set up.
    Install,
    /// Say what there is.
    Help,
    /// Bind this conversation to a session.
    Focus(String),
    /// Unbind this conversation.
    Unfocus,
    /// Show a window of the session's bindings, or change it.
    Window {
        /// Which session, in the person's words; `None` means the one of this conversation.
        target: Option<String>,
        /// Which window.
        window: Window,
        /// The new one in milliseconds; `Some(None)` takes it away, `None` only shows.
        change: Option<Option<u64>>,
    },
    /// Show how much this conversation is told of a turn, or change it.
    Verbosity {
        /// The new one; `Some(None)` is what the configuration says, `None` only shows.
        change: Option<Option<Verbosity>>,
    },
    /// It was a command, but not one that can be understood.
    Misused {
        /// What is wrong with it.
        why: String,
        /// How the command is used; `None` for one that there is not.
        usage: Option<&'static verbs::Row>,
    },
}

/// What can be asked of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    /// Stop the running turn.
    Cancel,
    /// Stop this run and no other one.
    CancelRun(RunId),
    /// Take this run out of the queue.
    Drop(RunId),
    /// Say what waits in this run into the running turn.
    SteerRun(RunId),
    /// A word into the running turn.
    Steer(String),
    /// End the session.
    Close {
        /// In which way.
        ending: Ending,
        /// Whether the agent shall forget the conversation.
        discard: bool,
    },
    /// Start the agent's conversation anew.
    New,
    /// Say what it is and does.
    Status,
    /// Change one of its settings.
    Set(Setting),
    /// List what the agent waits for.
    Permissions,
    /// Answer a pending permission.
    Answer(AnswerArgs),
}

/// Arguments of `/acp spawn`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SpawnArgs {
    /// Which agent; `None` takes the default.
    pub(crate) agent: Option<AgentName>,
    /// Working directory.
    pub(crate) cwd: Option<String>,
    /// What people call it.
    pub(crate) label: Option<String>,
    /// How long it is meant to live.
    pub(crate) mode: Option<SessionMode>,
    /// What happens when the agent asks.
    pub(crate) permission: Option<PermissionMode>,
    /// Where it is bound.
    pub(crate) place: Place,
}

/// Where a new session is bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a thread of its own where the channel has threads, or else here. A conversation of the console is what a
    /// thread is elsewhere, so there it is bound here.
    #[default]
    Auto,
    /// In this conversation.
    Here,
    /// Nowhere.
    Off,
}

/// Which way a permission is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The agent's option that allows, once where there is a choice.
    Allow,
    /// The agent's option that refuses, once where there is a choice.
    Deny,
    /// The option of this number (from 1) or id.
    Option(String),
}

/// Arguments of `/acp allow`, `deny` and `answer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AnswerArgs {
    /// Which permission; `None` means the only one that is pending.
    pub(crate) permission: Option<String>,
    /// Which way.
    pub(crate) verdict: Verdict,
}

impl Act {
    /// Whether it changes anything: then it is done once, whatever the channel repeats.
    pub(crate) const fn changes(&self) -> bool {
        match self {
            Self::Cancel
            | Self::CancelRun(_)
            | Self::Drop(_)
            | Self::SteerRun(_)
            | Self::Steer(_)
            | Self::Close { .. }
            | Self::New
            | Self::Set(_)
            | Self::Answer(_) => true,
            Self::Status | Self::Permissions => false,
        }
    }
}

impl Command {
    /// Whether what it says is for whoever asks alone, where the channel can do that: it looks, or what it does is
    /// seen elsewhere.
    pub(crate) const fn is_private(&self) -> bool {
        match self {
            Self::Spawn(_)
            | Self::Focus(_)
            | Self::Unfocus
            | Self::Window { change: Some(_), .. }
            | Self::Verbosity { change: Some(_) } => false,
            Self::On { act, .. } => match act {
                Act::Close { .. } | Act::New | Act::Set(_) | Act::Steer(_) => false,
                Act::Cancel
                | Act::CancelRun(_)
                | Act::Drop(_)
                | Act::SteerRun(_)
                | Act::Status
                | Act::Permissions
                | Act::Answer(_) => true,
            },
            Self::Sessions
            | Self::Agents
            | Self::Doctor
            | Self::Install
            | Self::Help
            | Self::Window { change: None, .. }
            | Self::Verbosity { change: None }
            | Self::Misused { .. } => true,
        }
    }
}

/// Reads a message: `None` when it is for the agent.
pub(crate) fn parse(text: &str) -> Option<Command> {
    let (head, rest) = cut(text);
    let head = head.to_ascii_lowercase();
    let rows = verbs::ROWS.iter().filter(|row| row.head == head);
    let mut rows = rows.peekable();
    rows.peek()?;
    let alone = rows.clone().find(|row| row.verb.is_empty());
    let (row, args) = if let Some(row) = alone {
        (row, rest)
    } else {
        let (verb, args) = cut(rest);
        let verb = words::plain(verb);
        let found = rows.find(|row| row.verb == verb || row.aliases.contains(&verb.as_str()));
        let Some(row) = found else {
            let why = match verb.as_str() {
                "" => format!("{head} wants to know what."),
                _ => format!("{head} has no command {}.", words::shown(&verb)),
            };
            return Some(Command::Misused { why, usage: None });
        };
        (row, args)
    };
    let read = (row.read)(args);
    Some(read.unwrap_or_else(|why| Command::Misused { why, usage: Some(row) }))
}

/// The first word, and the rest as it was typed.
fn cut(text: &str) -> (&str, &str) {
    let text = text.trim();
    let (first, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (first, rest.trim())
}
