//! The pure half of the gateway: decides, and never acts. Synchronous, without a clock, without I/O; time and
//! fresh ids come in as arguments, decisions go out as values.
#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

pub mod actor;
pub mod agent_settings;
pub mod api;
pub mod argv_redaction;
pub mod backend;
pub mod bearer;
pub mod binding;
pub mod card;
pub mod command;
pub mod config;
pub mod elicitation;
pub mod error_messages;
pub mod event;
pub mod event_json;
pub mod failure;
pub mod files;
pub mod glob;
pub mod host;
pub mod intake;
pub mod jsonrpc;
pub mod line_splitter;
pub mod mcp;
pub mod message_split;
pub mod migrate;
pub mod nonce;
pub mod northbound;
pub mod options;
pub mod paths;
pub mod permission;
pub mod policy;
pub mod preset;
pub mod principal;
pub mod recovery;
pub mod render;
pub mod request;
pub mod route;
pub mod rows;
pub mod run;
pub mod runtime;
pub mod sanitize;
pub mod secrets;
pub mod session;
pub mod static_binding;
#[cfg(test)]
mod tests;
pub mod time_format;
pub mod timeouts;
pub mod transcript;
pub mod transition;
pub mod usage;
pub mod visibility;
pub mod web_request;
pub mod widening;
pub mod writes;
