//! Decisions of the ACP server: which message a client sent, what its params say, which frames the rows of a journal
//! become, and on which stream of a connection each frame goes.
#![deny(clippy::indexing_slicing)]

pub mod answers;
pub mod bridge;
pub mod connection;
pub mod frames;
pub mod message;
pub mod params;
pub mod projection;
pub mod session_view;
pub mod voting;

/// Protocol version that every `initialize` gets.
pub const PROTOCOL_VERSION: u64 = 1;
/// Header with the id of a connection.
pub const CONNECTION_HEADER: &str = "acp-connection-id";
/// Header with the session of a request or of a stream.
pub const SESSION_HEADER: &str = "acp-session-id";
/// Prefix of the ids of permission requests to clients; the permission's id follows.
pub const PERMISSION_ID_PREFIX: &str = "perm:";
