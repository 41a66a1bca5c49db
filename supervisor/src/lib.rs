//! Manages process leases: spawns, relays, verifies and reaps the agents of every gateway on a host.
//!
//! [`core`] makes the decisions and does no I/O; [`sys`] is the interface to the system; the other modules
//! carry out the decisions. Every process tree belongs to a durable lease ([`core::lease`]), no process is
//! signalled without a [`core::verify::Verified`], and output is never dropped before it is acknowledged
//! ([`relay`]).
//!
//! A module names only modules of lower lines, so there are no import cycles:
//!
//! ```text
//! cli      admin command
//! app      start, signals, shutdown; connects all parts
//! owner    loop over the lease table; requests; upgrade (`owner/handover`)
//! server   accept, handshake, frames; sends events to the owner
//! files    file requests of gateways
//! lease    tasks that start and end process trees
//! context  what all tasks share; events that they send to the owner
//! relay    streams of agents; sending side of connections
//! store    lease store
//! sys      the kernel and the service manager
//! core     pure decisions
//! config   configuration file
//! ```
#![deny(clippy::indexing_slicing)]

pub mod app;
mod cli;
pub mod config;
pub mod context;
pub mod core;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod lease;
mod owner;
pub mod relay;
pub mod server;
pub mod store;
pub mod sys;

use std::process::ExitCode;

/// Entry point of the binary.
#[must_use]
pub fn main() -> ExitCode {
    cli::main()
}
