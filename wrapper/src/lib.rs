//! Runs one agent (the *adapter*) in its own process group, and cleans up its whole tree when the adapter ends,
//! when it is told to, or when the supervisor is gone.
//!
//! One thread, one loop, no policy. What is run comes from `launch.json` beside the binary; what is said to the
//! supervisor and by it is [`acp_shared::launch`]. The supervisor must not make the wrapper a group leader (the
//! wrapper calls `setsid` itself), and keeps the other end of the `SOCK_SEQPACKET` socket that is its stdin.
//!
//! In order: setsid and child subreaper; the control socket moves above stdio; `launch.json`; every signal is
//! blocked and read from a signalfd; a pidfd on the parent; `Launch` with the adapter's pipes; fork, blocked
//! before exec; `Hello`; `Go`; the adapter's side gives up what `launch.json` says: limits, user, capabilities,
//! further privileges, writes (what cannot hold is refused before the fork); `Running` or `ExecFailed`; then signals
//! are passed on, children are reaped, and at the end `AdapterExited` and `Done` are said. The wrapper itself keeps
//! the supervisor's user, and with it the power to end the tree.
//!
//! Exit codes: that of the adapter, or 128 + the signal that ended it; 127 when its program was not found and 126
//! when it could not be started; 125 when the wrapper itself failed; 64 when it was not started by a supervisor.
#![deny(clippy::indexing_slicing)]

mod cli;
mod confine;
mod control;
mod escalate;
mod family;
mod fault;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod plan;
mod run;
mod setup;
mod stage;
mod sys;
mod tree;

use std::process::ExitCode;

/// Exit code when the wrapper was not started by a supervisor (`EX_USAGE`).
const EXIT_USAGE: u8 = 64;
/// Exit code when the wrapper itself failed: nothing ran, or nobody saw how the adapter ended.
const EXIT_WRAPPER: u8 = 125;

/// What the binary does: answers `--help` and `--version`, refuses to be run by hand, else runs the adapter.
#[must_use]
pub fn main() -> ExitCode {
    match cli::read(std::env::args_os().skip(1)) {
        cli::Asked::Text(text) => cli::say(text),
        cli::Asked::Wrong => cli::refuse(),
        cli::Asked::Nothing if setup::started_by_supervisor() => ExitCode::from(run::run()),
        cli::Asked::Nothing => cli::refuse(),
    }
}
