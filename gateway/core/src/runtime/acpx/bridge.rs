//! Lines between the machine and the bridge in the lease. The counterpart is `supervisor/acpx-bridge/src/protocol.rs`.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Line for the bridge.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum BridgeInput<'a> {
    /// Writes a file into the private home directory of acpx.
    File {
        /// Name without a slash.
        name: &'a str,
        /// Content.
        text: &'a str,
    },
    /// Runs a command of acpx after the earlier ones.
    Run(BridgeCommand<'a>),
    /// Starts the watch command.
    Watch(WatchCommand),
    /// Ends the watch command.
    Unwatch,
    /// Reports the passing of a time.
    Timer {
        /// Number of the timer.
        id: u64,
        /// Time in milliseconds.
        ms: u64,
    },
    /// Removes the private home directory at the end.
    Discard,
}

/// Command of acpx.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct BridgeCommand<'a> {
    /// Number of the command.
    pub(super) id: u64,
    /// Arguments of acpx.
    pub(super) argv: Vec<String>,
    /// Text for its standard input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stdin: Option<&'a str>,
    /// Members of an output line that are replaced by their number of entries.
    #[serde(skip_serializing_if = "<[&str]>::is_empty")]
    pub(super) count: &'a [&'a str],
    /// True if the end of the lease waits for this command.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) finish: bool,
    /// Watch command that starts before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) watch: Option<WatchCommand>,
    /// True if the end of the queue owner that serves the command is to be reported.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) owner: bool,
}

/// Watch command of acpx.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct WatchCommand {
    /// Number of the command.
    pub(super) id: u64,
    /// Arguments of acpx.
    pub(super) argv: Vec<String>,
}

impl BridgeInput<'_> {
    /// Returns the line, newline included.
    pub(super) fn line(&self) -> Vec<u8> {
        // Strings and numbers have no value that JSON cannot hold.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// Line of the bridge.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum BridgeOutput<'a> {
    /// First line.
    Hello(BridgeHello),
    /// First line instead of [`BridgeOutput::Hello`]: acpx cannot be used.
    Unusable {
        /// The reason, with the next step.
        error: String,
    },
    /// Line of a command.
    Out {
        /// Number of the command.
        id: u64,
        /// The line.
        #[serde(borrow)]
        line: Cow<'a, str>,
    },
    /// Line of the watch command.
    Watch {
        /// Number of the command.
        id: u64,
        /// The line.
        #[serde(borrow)]
        line: Cow<'a, str>,
    },
    /// End of a command.
    Exit {
        /// Number of the command.
        id: u64,
        /// Exit code; absent if a signal ended the command, or if it was not started.
        #[serde(default)]
        code: Option<i32>,
    },
    /// The queue owner has ended.
    OwnerEnded,
    /// A timer has passed.
    Timer {
        /// Number of the timer.
        id: u64,
    },
    /// A line of the gateway was not carried out.
    Fault {
        /// The reason.
        text: String,
    },
}

/// Versions, and what argument vectors are built from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(super) struct BridgeHello {
    /// Output of `acpx --version`.
    pub(super) acpx: String,
    /// Version of Node, if acpx is a script of Node.
    #[serde(default)]
    pub(super) node: Option<String>,
    /// Home directory of the agent.
    pub(super) home: String,
    /// Private home directory of acpx.
    pub(super) dir: String,
    /// Program and arguments of the agent.
    pub(super) agent: Vec<String>,
}
