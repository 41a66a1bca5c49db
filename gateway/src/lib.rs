//! The gateway: routes conversations to coding agents, stores their sessions, runs and journal in SQLite, and
//! talks to the supervisor that owns their processes.
//!
//! Layers, imports only downward: `ids, error, config` < `core` (pure) < ports (`store`, `runtime`,
//! `channel`) < drivers < `app`, `cli`. See `docs/design/code-map.md`.

pub mod channel;
pub mod cli;

pub(crate) mod agent_files;
pub(crate) mod agent_terminal;
pub(crate) mod agents;
pub(crate) mod api;
pub(crate) mod app;
pub(crate) mod aside;
pub(crate) mod bindings;
#[cfg(feature = "discord")]
pub(crate) mod bots;
#[cfg(not(feature = "discord"))]
#[path = "no_bots.rs"]
pub(crate) mod bots;
pub(crate) mod client;
pub(crate) mod clock;
pub(crate) mod commands;
pub(crate) mod config;
pub(crate) mod core;
pub(crate) mod delivery;
pub(crate) mod demo_agent;
pub(crate) mod error;
pub(crate) mod expiry;
pub(crate) mod forget;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub(crate) mod http;
pub(crate) mod inbound;
pub(crate) mod integrity;
pub(crate) mod live;
pub(crate) mod local;
pub(crate) mod local_probe;
pub(crate) mod lookup;
pub(crate) mod manager;
pub(crate) mod memory;
pub(crate) mod metrics;
pub(crate) mod observe;
pub(crate) mod refuse;
mod requests;
pub(crate) mod runtime;
pub(crate) mod scrape;
pub(crate) mod serve;
pub(crate) mod session_load;
mod session_news;
pub(crate) mod session_task;
#[cfg(test)]
mod sim;
pub(crate) mod sse;
pub(crate) mod store;
pub(crate) mod strays;
pub(crate) mod supervisor;
#[cfg(test)]
pub(crate) mod tests;
