//! What is decided, and what things are: no socket, no clock, no task.

pub mod base;
pub mod closes;
pub mod commands;
pub mod custom_id;
pub mod event;
pub mod ids;
pub mod intake;
pub mod overheard;
pub mod pace;
pub mod queue;
pub mod read;
