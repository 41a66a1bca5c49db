//! Exported state of relays, for handover to the next program image (H14).

use crate::core::redact::Redactor;
use crate::core::stdin::StdinState;
use crate::sys::inherited_fd::HandoverFd;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::LeaseState;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// State of a relay.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum RelayState {
    /// Relay of an agent.
    Agent(Box<AgentState>),
    /// Relay of a terminal.
    Terminal(TerminalState),
}

/// State of an agent's relay.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AgentState {
    pub(super) state: LeaseState,
    pub(super) stdin: Option<HandoverFd>,
    pub(super) stdout: Option<HandoverFd>,
    pub(super) stderr: Option<HandoverFd>,
    pub(super) kept: OutputState,
    pub(super) input: StdinState,
    pub(super) exit: Option<ExitStatus>,
    pub(super) said: StderrState,
    pub(super) ended: bool,
}

/// Received output that is not acknowledged.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputState {
    /// First offset kept.
    pub(super) base: u64,
    /// Output kept in memory; empty if it is on disk.
    #[serde(skip)]
    pub(super) bytes: Vec<u8>,
    /// Spool on disk.
    pub(super) spool: Option<SpoolState>,
}

/// Reference to a spool file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SpoolState {
    pub(super) path: PathBuf,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// State of the stderr reader.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StderrState {
    /// True if the end of `line` was cut off.
    pub(super) truncated: bool,
    pub(super) line: Vec<u8>,
    /// Always empty. Images of earlier versions have the last bytes here.
    #[serde(skip)]
    pub(super) tail: Vec<u8>,
    /// `None` in images of earlier versions.
    #[serde(default)]
    pub(super) redactor: Option<Redactor>,
}

/// State of a terminal's relay.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TerminalState {
    pub(super) output: Option<HandoverFd>,
    pub(super) bytes_max: usize,
    pub(super) truncated: bool,
    pub(super) end: u64,
    pub(super) exit: Option<ExitStatus>,
    /// True if the gateway got the exit notice.
    pub(super) told: bool,
    #[serde(skip)]
    pub(super) tail: Vec<u8>,
}

impl RelayState {
    /// Number of messages in [`Self::raw_buffers`] that wait for the agent.
    pub(crate) const fn queued_count(&self) -> usize {
        match self {
            Self::Agent(agent) => agent.input.queued_count(),
            Self::Terminal(_) => 0,
        }
    }

    /// Returns the byte buffers that are too large for the JSON record, in a fixed order.
    pub(crate) fn raw_buffers(&mut self) -> Vec<&mut Vec<u8>> {
        match self {
            Self::Agent(agent) => {
                let mut all = agent.input.raw_buffers();
                all.extend([&mut agent.kept.bytes, &mut agent.said.tail]);
                all
            }
            Self::Terminal(terminal) => vec![&mut terminal.tail],
        }
    }

    /// Returns all descriptors.
    pub(crate) fn descriptors_mut(&mut self) -> Vec<&mut HandoverFd> {
        match self {
            Self::Agent(agent) => {
                let pipes = [&mut agent.stdin, &mut agent.stdout, &mut agent.stderr];
                pipes.into_iter().filter_map(Option::as_mut).collect()
            }
            Self::Terminal(terminal) => terminal.output.iter_mut().collect(),
        }
    }
}
