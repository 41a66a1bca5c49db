//! The real binary, driven from outside by a test that plays the supervisor. The adapters are small shell scripts.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![expect(clippy::print_stdout, reason = "skipped tests print the probe result")]

mod confine;
mod contract;
mod exec;
mod exit;
mod helper;
mod odd;
mod parent;
mod rig;
mod signals;
mod tree;
