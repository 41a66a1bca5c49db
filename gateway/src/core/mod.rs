//! The pure half of the gateway: decides, and never acts. Synchronous, without a clock, without I/O; time and
//! fresh ids come in as arguments, decisions go out as values.

pub(crate) mod actor;
pub(crate) mod agent_settings;
pub(crate) mod argv;
pub(crate) mod binding;
pub(crate) mod card;
pub(crate) mod command;
pub(crate) mod configured;
pub(crate) mod effect;
pub(crate) mod event;
pub(crate) mod files;
pub(crate) mod host;
pub(crate) mod intake;
pub(crate) mod jsonrpc;
pub(crate) mod lines;
pub(crate) mod link;
pub(crate) mod mcp;
pub(crate) mod moves;
pub(crate) mod options;
pub(crate) mod paths;
pub(crate) mod permission;
pub(crate) mod policy;
pub(crate) mod preset;
pub(crate) mod project;
pub(crate) mod recovery;
pub(crate) mod request;
pub(crate) mod route;
pub(crate) mod rows;
pub(crate) mod run;
pub(crate) mod sanitize;
pub(crate) mod session;
pub(crate) mod split;
pub(crate) mod told;
pub(crate) mod ttl;
pub(crate) mod view;
pub(crate) mod when;
