//! Lines between the gateway's machine and the bridge. The counterpart is `gateway/core/src/runtime/acpx/bridge.rs`.

use serde::{Deserialize, Serialize};

/// Line of the gateway.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Input {
    /// Writes a file into the private home directory.
    File {
        /// Name without a slash.
        name: String,
        /// Content.
        text: String,
    },
    /// Runs a command of acpx after the earlier ones.
    Run(Command),
    /// Starts the watch command; an earlier one is ended first.
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
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Command {
    /// Number of the command.
    pub(crate) id: u64,
    /// Arguments of acpx.
    pub(crate) argv: Vec<String>,
    /// Text for its standard input.
    #[serde(default)]
    pub(crate) stdin: Option<String>,
    /// Members of an output line whose arrays and objects are replaced by their number of entries: a record of acpx
    /// holds all messages of a session.
    #[serde(default)]
    pub(crate) count: Vec<String>,
    /// True if the end of standard input waits for this command.
    #[serde(default)]
    pub(crate) finish: bool,
    /// Watch command that starts before it.
    #[serde(default)]
    pub(crate) watch: Option<WatchCommand>,
    /// True if the end of the queue owner that serves the command is to be reported.
    #[serde(default)]
    pub(crate) owner: bool,
}

/// Watch command of acpx.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct WatchCommand {
    /// Number of the command.
    pub(crate) id: u64,
    /// Arguments of acpx.
    pub(crate) argv: Vec<String>,
}

/// Line of the bridge.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Message {
    /// First line: versions, and the paths and words from which the gateway builds argument vectors.
    Hello {
        /// Output of `acpx --version`.
        acpx: String,
        /// Version of Node; absent if acpx does not run on Node.
        #[serde(skip_serializing_if = "Option::is_none")]
        node: Option<String>,
        /// Home directory of the agent.
        home: String,
        /// Private home directory of acpx.
        dir: String,
        /// Program and arguments of the agent.
        agent: Vec<String>,
    },
    /// Result of `--check`.
    Versions {
        /// Output of `acpx --version`.
        acpx: String,
        /// Version of Node; absent if acpx does not run on Node.
        #[serde(skip_serializing_if = "Option::is_none")]
        node: Option<String>,
    },
    /// First line instead of [`Message::Hello`], or result of `--check`: acpx cannot be used.
    Unusable {
        /// The reason, with the next step.
        error: String,
    },
    /// Line of a command.
    Out {
        /// Number of the command.
        id: u64,
        /// The line, unchanged.
        line: String,
    },
    /// Line of the watch command.
    Watch {
        /// Number of the command.
        id: u64,
        /// The line; without its large members and with `left_out_bytes` if it is too long for the gateway.
        line: String,
    },
    /// End of a command.
    Exit {
        /// Number of the command.
        id: u64,
        /// Exit code.
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<i32>,
        /// Signal that ended the command.
        #[serde(skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
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
