//! Decisions and data types without I/O: no socket, no clock, no task.

pub mod base;
pub mod buckets;
pub mod budget;
pub mod closes;
pub mod commands;
pub mod component;
pub mod custom_id;
pub mod echo;
pub mod embed;
pub mod errors;
pub mod event;
pub mod gate;
pub mod headers;
pub mod ids;
pub mod intake;
pub mod message;
pub mod pace;
pub mod permissions;
pub mod queue;
pub mod read;
pub mod readback;
pub mod route;
pub mod schedule;
pub mod shard;
pub mod units;
