//! Conversations: messages in, commands, bindings to sessions, and delivery of journal rows.

pub(crate) mod bindings;
pub(crate) mod commands;
pub(crate) mod delivery;
pub(crate) mod inbound;
