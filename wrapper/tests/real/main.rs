//! The wrapper as a real process, started by a test in the role of the supervisor. Adapters are shell scripts.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![expect(clippy::print_stdout, reason = "skipped tests print the probe result")]

mod confine;
mod contract;
mod exec;
mod exit;
mod helper;
mod parent;
mod rare_events;
mod rig;
mod signals;
mod tree;
