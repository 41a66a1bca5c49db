//! The gateway: routes conversations to coding agents, stores their sessions, runs and journal in SQLite, and
//! talks to the supervisor that owns their processes.
//!
//! Layers, imports only downward: `acp-shared` < `acp-core` (pure) < `acp-store`, `acp-discord` < this crate:
//! `util`, `config`, `metrics` < `supervisor` < `runtime`, `channel` < `session` < `conversation` < `api`, `ops`
//! < `app` < `cli`. See `docs/design/code-map.md`.

pub mod channel;
pub mod cli;

pub(crate) mod api;
pub(crate) mod app;
pub(crate) mod config;
pub(crate) mod conversation;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub(crate) mod metrics;
pub(crate) mod ops;
pub(crate) mod runtime;
pub(crate) mod session;
#[cfg(test)]
#[path = "../../tests/sim/mod.rs"]
mod sim;
pub(crate) mod supervisor;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod util;
