//! What the processes of acp-host share: typed ids, the supervisor protocol, its framing, and the
//! contract between supervisor and wrapper.
//!
//! This crate is the lowest floor of the house: it knows nothing of gateways, databases or agents.
#![deny(clippy::indexing_slicing)]

pub mod codes;
pub mod files;
pub mod ids;
pub mod launch;
pub mod protocol;
pub mod redact;
pub mod refusal;
pub mod report;
pub mod wire;

#[cfg(feature = "net")]
pub mod conn;
#[cfg(feature = "net")]
pub mod log_limit;
#[cfg(feature = "net")]
pub mod probe;
