//! Decisions and data types without I/O: no socket, no clock, no task.

pub mod base_url;
pub mod buckets;
pub mod close_codes;
pub mod commands;
pub mod component;
pub mod connect_rate;
pub mod custom_id;
pub mod decode;
pub mod endpoint;
pub mod errors;
pub mod event;
pub mod event_queue;
pub mod global_limits;
pub mod headers;
pub mod ids;
pub mod message;
pub mod message_filter;
pub mod message_match;
pub mod modal;
pub mod payload_limits;
pub mod permissions;
pub mod rate_limiter;
pub mod request_scheduler;
pub mod sent_nonces;
pub mod shard;
