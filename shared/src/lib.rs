//! Types shared by the processes of acp-host: typed ids, the supervisor protocol, its framing, and the
//! contract between supervisor and wrapper.
//!
//! This is the lowest crate of the workspace: it does not depend on gateway, database or agent code.
#![deny(clippy::indexing_slicing, missing_docs)]

pub mod backoff;
#[cfg(feature = "clock")]
pub mod clock;
pub mod codes;
pub mod figures;
pub mod files;
pub mod identity;
pub mod ids;
pub mod launch;
mod named;
pub mod private_home;
pub mod protocol;
pub mod redact;
pub mod refusal;
pub mod report;
pub mod sanitize;
pub mod wire;

#[cfg(any(test, fuzzing))]
pub mod fuzzing;

#[cfg(feature = "net")]
pub mod conn;
#[cfg(feature = "net")]
pub mod enrol;
#[cfg(feature = "net")]
pub mod help;
#[cfg(feature = "net")]
pub mod log_file;
#[cfg(feature = "net")]
pub mod log_limit;
#[cfg(feature = "net")]
pub mod probe;
#[cfg(feature = "net")]
pub mod service;
#[cfg(feature = "net")]
pub mod tls;
