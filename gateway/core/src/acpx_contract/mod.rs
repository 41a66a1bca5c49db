//! Machine contract of acpx: lines of a turn (JSON-RPC with the envelope of the integration plan), errors, cursors, and texts
//! for people. Pure: rows of the journal in, lines out.
#![deny(clippy::indexing_slicing)]

mod command;
mod cursor;
mod errors;
mod lines;
mod messages;
#[cfg(test)]
mod tests;
mod text;

pub use command::{command_agent, split_command};
pub use cursor::WatchCursor;
pub use errors::{AcpxCode, ContractError, Envelope};
pub use lines::{TurnLines, WatchLines};
pub use messages::JournalLine;
pub use text::TurnText;

use acp_shared::ids::AgentName;
use serde::{Deserialize, Serialize};
use std::path::{Component, Path};
use utoipa::ToSchema;

/// Maximum length of a session's name, in characters.
const NAME_CHARS_MAX: usize = 200;

/// Name of a session: unique among the open sessions of an agent and a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcpxNaming {
    /// Name; empty for the session without one.
    #[serde(default)]
    pub name: String,
    /// Absolute directory in which the name holds.
    pub cwd: String,
    /// Uppermost parent directory in which a session with the name is looked for; absent looks only in `cwd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// True to close an open session with the name in `cwd`, and to create another one.
    #[serde(default)]
    pub replace: bool,
}

impl AcpxNaming {
    /// Returns `cwd` and its parents up to `root`, the nearest first.
    pub fn directories(&self) -> impl Iterator<Item = &str> {
        let root = self.root.as_deref().map_or(Path::new(&self.cwd), Path::new);
        let ancestors = Path::new(&self.cwd).ancestors();
        ancestors.take_while(move |directory| directory.starts_with(root)).filter_map(Path::to_str)
    }

    /// Checks the name and the directories.
    ///
    /// # Errors
    /// Describes the invalid value.
    pub fn check(&self) -> Result<(), String> {
        if self.name.chars().count() > NAME_CHARS_MAX || self.name.contains(char::is_control) {
            return Err(format!(
                "invalid session name {:?}: at most {NAME_CHARS_MAX} characters, none of them a control character",
                self.name
            ));
        }
        let is_plain = |dir: &str| {
            let mut parts = Path::new(dir).components();
            parts.next() == Some(Component::RootDir) && parts.all(|part| matches!(part, Component::Normal(_)))
        };
        if !is_plain(&self.cwd) {
            return Err(format!("{:?} is not an absolute directory without `..`", self.cwd));
        }
        match &self.root {
            Some(root) if !is_plain(root) || !Path::new(&self.cwd).starts_with(root) => {
                Err(format!("{root:?} is not a parent directory of {:?}", self.cwd))
            }
            _ => Ok(()),
        }
    }
}

/// Query for sessions with names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameQuery {
    /// All sessions with names, the open ones first and of each group the newest first; not removed ones.
    All {
        /// Only sessions of this agent.
        agent: Option<AgentName>,
        /// True to include closed sessions.
        closed_too: bool,
        /// Maximum number of sessions.
        limit: u64,
    },
    /// The open session of an agent that has a name, in the nearest directory.
    Named {
        /// Agent.
        agent: AgentName,
        /// Name, and the directories in which it is looked for.
        naming: AcpxNaming,
        /// True to fall back on the newest closed session with the name in exactly that directory.
        closed_too: bool,
    },
}
