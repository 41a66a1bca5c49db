//! What the processes of acp-host share: typed ids, the supervisor protocol, its framing, and the
//! contract between supervisor and wrapper.
//!
//! This crate is the lowest floor of the house: it knows nothing of gateways, databases or agents.

pub mod codes;
pub mod ids;
pub mod launch;
pub mod protocol;
pub mod redact;
pub mod refusal;
pub mod wire;

#[cfg(feature = "net")]
pub mod conn;
