//! Permissions given in advance, by an answer to the agent's own question or by an earlier answer to the host's.

use super::question::command_line;
use super::{Effect, Inspection};
use crate::core::link::Wanted;
use acp_shared::ids::RunId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Most grants of one session; the oldest go first.
const GRANTS_MAX: usize = 64;
/// Most targets of one grant. A question about more of them is asked again.
const TARGETS_MAX: usize = 32;
/// Longest target, in bytes.
const TARGET_BYTES_MAX: usize = 16 * 1024;

/// A permission that was given in advance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Grant {
    /// Each of the targets once, in this run.
    Once {
        /// The run.
        run_id: RunId,
        /// The targets.
        targets: Vec<GrantTarget>,
    },
    /// Every effect of this kind, until the permission mode changes.
    Always(Effect),
}

/// One file or command that a tool call names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GrantTarget {
    /// Absolute path of a file to write.
    File(String),
    /// Command line.
    Command(String),
}

/// The grants of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Grants(Vec<Grant>);

impl Grants {
    /// True without any grant.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a grant.
    pub(crate) fn add(&mut self, grant: Grant) {
        if self.0.contains(&grant) && matches!(grant, Grant::Always(_)) {
            return;
        }
        self.0.push(grant);
        if self.0.len() > GRANTS_MAX {
            let oldest = self.0.iter().position(|grant| matches!(grant, Grant::Once { .. }));
            self.0.remove(oldest.unwrap_or(0));
        }
    }

    /// Adds the grant of an answer to the agent's own question, from the option's kind and the tool call.
    pub(crate) fn add_answer(&mut self, run_id: Option<RunId>, option_kind: &str, call: &Value) {
        let targets = targets_of(call);
        match (option_kind, run_id) {
            ("allow_once", Some(run_id)) if !targets.is_empty() => self.add(Grant::Once { run_id, targets }),
            ("allow_always", _) => {
                for effect in effects_of(&targets) {
                    self.add(Grant::Always(effect));
                }
            }
            _ => {}
        }
    }

    /// Removes the grants of a run that has ended.
    pub(crate) fn end_run(&mut self, ended: RunId) {
        self.0.retain(|grant| !matches!(grant, Grant::Once { run_id, .. } if *run_id == ended));
    }

    /// True for a request that a grant covers. `found` is the inspected target of a write.
    pub(crate) fn covers(&self, run_id: Option<RunId>, wanted: &Wanted, found: Option<&Inspection>) -> bool {
        self.find(run_id, wanted, found).is_some()
    }

    /// Uses up the grant that covers a request; one that holds for the session stays.
    pub(crate) fn consume(&mut self, run_id: Option<RunId>, wanted: &Wanted, found: Option<&Inspection>) {
        let Some((at, Some(used))) = self.find(run_id, wanted, found) else { return };
        if let Some(Grant::Once { targets, .. }) = self.0.get_mut(at) {
            targets.remove(used);
        }
        self.0.retain(|grant| !matches!(grant, Grant::Once { targets, .. } if targets.is_empty()));
    }

    /// The grant that covers a request: its index, and for one that is used up the index of its target.
    fn find(
        &self,
        asked_in: Option<RunId>,
        wanted: &Wanted,
        found: Option<&Inspection>,
    ) -> Option<(usize, Option<usize>)> {
        let effect = Effect::of(wanted)?;
        self.0.iter().enumerate().find_map(|(at, grant)| match grant {
            Grant::Always(kind) => (*kind == effect).then_some((at, None)),
            Grant::Once { run_id, targets } if Some(*run_id) == asked_in => {
                let target = targets.iter().position(|target| target.is_of(wanted, found))?;
                Some((at, Some(target)))
            }
            Grant::Once { .. } => None,
        })
    }
}

impl GrantTarget {
    /// True for a request about this target. Paths count in canonical spelling alone: a link below the root may lead
    /// elsewhere since the answer.
    fn is_of(&self, wanted: &Wanted, found: Option<&Inspection>) -> bool {
        match (self, wanted) {
            (Self::File(path), Wanted::FsWrite { .. }) => found.is_some_and(|found| found.path == *path),
            (Self::Command(line), Wanted::TerminalCreate { command, args, .. }) => {
                *line == command_line(command, args)
            }
            _ => false,
        }
    }

    const fn effect(&self) -> Effect {
        match self {
            Self::File(_) => Effect::Write,
            Self::Command(_) => Effect::Run,
        }
    }

    const fn bytes(&self) -> usize {
        match self {
            Self::File(text) | Self::Command(text) => text.len(),
        }
    }
}

fn effects_of(targets: &[GrantTarget]) -> Vec<Effect> {
    let mut effects: Vec<Effect> = Vec::new();
    for effect in targets.iter().map(GrantTarget::effect) {
        if !effects.contains(&effect) {
            effects.push(effect);
        }
    }
    effects
}

/// Files and commands of a tool call. A location counts in an edit alone.
fn targets_of(call: &Value) -> Vec<GrantTarget> {
    let list = |name: &str| call[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let diffs = list("content").iter().filter(|block| block["type"] == "diff");
    let places = list("locations").iter().filter(|_| call["kind"] == "edit");
    let paths = diffs.chain(places).filter_map(|of| of["path"].as_str()).filter_map(normalised);
    let mut targets: Vec<GrantTarget> = Vec::new();
    let command = ["command", "cmd"].into_iter().find_map(|name| command_of(&call["rawInput"][name]));
    for target in paths.map(GrantTarget::File).chain(command) {
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    let fits =
        targets.len() <= TARGETS_MAX && targets.iter().all(|target| target.bytes() <= TARGET_BYTES_MAX);
    if fits { targets } else { Vec::new() }
}

fn command_of(command: &Value) -> Option<GrantTarget> {
    match command {
        Value::String(line) => Some(command_line(line, &[])),
        Value::Array(words) => {
            let words: Option<Vec<String>> =
                words.iter().map(|word| word.as_str().map(str::to_owned)).collect();
            words?.split_first().map(|(program, args)| command_line(program, args))
        }
        _ => None,
    }
    .filter(|line| !line.trim().is_empty())
    .map(GrantTarget::Command)
}

/// An absolute path without `.` and doubled slashes. `None` for a relative one, and for one with `..`.
fn normalised(path: &str) -> Option<String> {
    let rest = path.strip_prefix('/')?;
    let parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    (!parts.is_empty() && !parts.contains(&"..")).then(|| format!("/{}", parts.join("/")))
}
