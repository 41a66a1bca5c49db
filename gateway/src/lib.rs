//! The gateway: routes conversations to coding agents, stores their sessions, runs and journal in SQLite, and
//! talks to the supervisor that owns their processes.
//!
//! Layers, imports only downward: `ids, error, config` < `core` (pure) < ports (`store`, `runtime`,
//! `channel`) < drivers < `app`, `cli`. See `docs/design/code-map.md`.

pub mod channel;
pub mod cli;

pub(crate) mod api;
pub(crate) mod app;
pub(crate) mod config;
pub(crate) mod conversation;
pub(crate) mod core;
pub(crate) mod demo_agent;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub(crate) mod ops;
pub(crate) mod runtime;
pub(crate) mod session;
#[cfg(test)]
mod sim;
pub(crate) mod store;
pub(crate) mod supervisor;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod util;
