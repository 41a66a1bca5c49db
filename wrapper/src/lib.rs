//! Runs one agent (the *adapter*) in its own process group. Cleans up the whole process tree when the adapter
//! ends, when SIGTERM arrives, or when the supervisor is gone.
//!
//! The wrapper has one thread, one loop and no policy. Its parameters come from `launch.json` in the
//! directory of the binary; the messages exchanged with the supervisor are those of [`acp_shared::launch`].
//! The supervisor must not make the wrapper a group leader (the wrapper calls `setsid` itself), and keeps the
//! other end of the `SOCK_SEQPACKET` socket that is its stdin.
//!
//! Sequence: setsid and child subreaper; the control socket is moved above the stdio descriptors;
//! `launch.json` is read; every signal is blocked and read from a signalfd; a pidfd on the parent is opened;
//! `Launch` arrives with the adapter's pipes; fork, blocked before exec; `Hello`; `Go`; the child applies the
//! restrictions of `launch.json`: limits, user, capabilities, no new privileges, confined writes (unsupported
//! ones are refused before the fork); `Running` or `ExecFailed`; then signals are forwarded and children are
//! reaped; at the end, `AdapterExited` and `Done` are sent. The wrapper itself keeps the supervisor's user,
//! so that it is permitted to kill the tree.
//!
//! Exit codes: that of the adapter, or 128 + the signal that ended it; 127 if its program was not found and
//! 126 if it could not be started; 125 if the wrapper itself failed; 64 if it was not started by a
//! supervisor.
#![deny(clippy::indexing_slicing)]

mod cli;
mod confine;
mod control;
mod error;
mod escalation;
mod exec_step;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod launch_spec;
mod process_group;
mod run;
mod setup;
mod sys;
mod tree;

use std::process::ExitCode;

/// Exit code when the wrapper was not started by a supervisor (`EX_USAGE`).
const EXIT_USAGE: u8 = 64;
/// Exit code when the wrapper itself failed: nothing ran, or the adapter's exit status is unknown.
const EXIT_WRAPPER: u8 = 125;

/// Entry point of the binary: answers `--help` and `--version`, refuses to be run by hand, else runs the
/// adapter.
#[must_use]
pub fn main() -> ExitCode {
    match cli::read(std::env::args_os().skip(1)) {
        cli::Invocation::Text(text) => cli::say(text),
        cli::Invocation::Wrong => cli::refuse(),
        cli::Invocation::Nothing if setup::started_by_supervisor() => ExitCode::from(run::run()),
        cli::Invocation::Nothing => cli::refuse(),
    }
}
