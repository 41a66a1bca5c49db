//! Sessions: one task per session drives its actor; the manager creates, finds and addresses them.

pub(crate) mod lease_events;
pub(crate) mod manager;
pub(crate) mod restore;
pub(crate) mod service;
pub(crate) mod task;
