//! Manages process leases: spawns, relays, verifies and reaps the agents of every gateway on a host.
//!
//! [`core`] makes the decisions and does no I/O; [`sys`] is the interface to the system; the other modules
//! carry out the decisions. Every process tree belongs to a durable lease ([`core::lease`]), no process is
//! signalled without a [`core::verify::Verified`], and output is never dropped before it is acknowledged
//! ([`relay`]).
#![deny(clippy::indexing_slicing)]

pub mod admission;
pub mod app;
mod cli;
pub mod config;
mod confine;
pub mod context;
pub mod core;
pub mod disk;
mod entry;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod ground;
mod handle;
mod handover;
pub mod launchdir;
pub mod lease_task;
pub mod legacy;
pub mod link;
pub mod owner;
mod progress;
pub mod reaper;
pub mod relay;
pub mod secret;
pub mod server;
pub mod session_logs;
mod signals;
mod socket;
pub mod spawn;
pub mod store;
pub mod strays;
pub mod sweep;
pub mod sys;
pub mod systemd;
pub mod tenants;
mod upkeep;

use std::process::ExitCode;

/// Entry point of the binary.
#[must_use]
pub fn main() -> ExitCode {
    cli::main()
}
