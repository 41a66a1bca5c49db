//! Permissions granted in advance, by an answer to the agent's own question or by an earlier answer to the
//! host's.

use super::question::command_line;
use super::{HostEffect, Inspection};
use crate::backend::AgentRequestKind;
use crate::render::shown_targets;
use acp_shared::ids::RunId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Maximum number of grants of a session; the oldest are dropped first.
const GRANTS_MAX: usize = 64;

/// Permission granted in advance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// Allows each of the targets once, in this run.
    Once {
        /// The run.
        run_id: RunId,
        /// The targets.
        targets: Vec<GrantTarget>,
    },
    /// Allows every effect of this kind, until the permission mode changes.
    Always(HostEffect),
}

/// File or command that the question about a tool call showed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantTarget {
    /// Absolute path of a file to write.
    File(String),
    /// Command line, in the session's directory and with no variables of its own.
    Command(String),
}

/// The grants of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Grants(Vec<Grant>);

impl Grants {
    /// True if there are no grants.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a grant.
    pub fn add(&mut self, grant: Grant) {
        if self.0.contains(&grant) && matches!(grant, Grant::Always(_)) {
            return;
        }
        self.0.push(grant);
        if self.0.len() > GRANTS_MAX {
            let oldest = self.0.iter().position(|grant| matches!(grant, Grant::Once { .. }));
            self.0.remove(oldest.unwrap_or(0));
        }
    }

    /// Adds the grant of an answer to the agent's own question, from the option's kind and the targets that
    /// the question showed.
    pub fn add_answer(&mut self, run_id: Option<RunId>, option_kind: &str, call: &Value) {
        let targets = shown_targets(call);
        match (option_kind, run_id) {
            ("allow_once", Some(run_id)) if !targets.is_empty() => self.add(Grant::Once { run_id, targets }),
            ("allow_always", _) => {
                for target in &targets {
                    self.add(Grant::Always(target.effect()));
                }
            }
            _ => {}
        }
    }

    /// Removes the grants of a run that has ended.
    pub fn end_run(&mut self, ended: RunId) {
        self.0.retain(|grant| !matches!(grant, Grant::Once { run_id, .. } if *run_id == ended));
    }

    /// True if a grant covers the request. `found` is the inspected target of a write, `cwd` the session's
    /// directory.
    pub fn covers(
        &self,
        run_id: Option<RunId>,
        wanted: &AgentRequestKind,
        found: Option<&Inspection>,
        cwd: &str,
    ) -> bool {
        self.find(run_id, wanted, found, cwd).is_some()
    }

    /// Consumes the grant that covers a request; a grant for the session stays.
    pub fn consume(
        &mut self,
        run_id: Option<RunId>,
        wanted: &AgentRequestKind,
        found: Option<&Inspection>,
        cwd: &str,
    ) {
        let Some((at, Some(used))) = self.find(run_id, wanted, found, cwd) else { return };
        if let Some(Grant::Once { targets, .. }) = self.0.get_mut(at) {
            targets.remove(used);
        }
        self.0.retain(|grant| !matches!(grant, Grant::Once { targets, .. } if targets.is_empty()));
    }

    /// Finds the grant for a request: the index, and for a one-time grant also the index of the target.
    fn find(
        &self,
        asked_in: Option<RunId>,
        wanted: &AgentRequestKind,
        found: Option<&Inspection>,
        cwd: &str,
    ) -> Option<(usize, Option<usize>)> {
        let effect = HostEffect::of(wanted)?;
        self.0.iter().enumerate().find_map(|(at, grant)| match grant {
            Grant::Always(kind) => (*kind == effect).then_some((at, None)),
            Grant::Once { run_id, targets } if Some(*run_id) == asked_in => {
                let target = targets.iter().position(|target| target.is_of(wanted, found, cwd))?;
                Some((at, Some(target)))
            }
            Grant::Once { .. } => None,
        })
    }
}

impl GrantTarget {
    /// True if a request concerns this target. Only canonical paths match, since a link below the root may
    /// have changed after the answer. Only a command in the session's directory and without variables
    /// matches, since a question about a tool call shows no others.
    fn is_of(&self, wanted: &AgentRequestKind, found: Option<&Inspection>, session_cwd: &str) -> bool {
        match (self, wanted) {
            (Self::File(path), AgentRequestKind::FsWrite { .. }) => {
                found.is_some_and(|found| found.path == *path)
            }
            (Self::Command(line), AgentRequestKind::TerminalCreate { command, args, env, cwd, .. }) => {
                let is_here = cwd.as_deref().is_none_or(|cwd| cwd == session_cwd);
                is_here && env.is_empty() && *line == command_line(command, args)
            }
            _ => false,
        }
    }

    const fn effect(&self) -> HostEffect {
        match self {
            Self::File(_) => HostEffect::Write,
            Self::Command(_) => HostEffect::Run,
        }
    }
}
