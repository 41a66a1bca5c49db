//! A fault-injecting channel, used by the gateway of `src/bin/fake-channel-gateway.rs` and by tests, which
//! write people's messages and read the conversations.
//!
//! [`service::ChatService`] is the chat service: it runs in the test process, is strict, and keeps accepted
//! messages when other processes die. [`adapter::FakeChannel`] is the gateway's side, and [`wire`] their
//! protocol over a Unix socket. [`fate`] draws faults from a seed.

pub mod adapter;
pub mod fate;
pub mod service;
pub mod wire;

/// The channel's name in conversations.
pub const NAME: &str = "fake";
/// The environment variable that names the service's socket to the gateway.
pub const ENV_SOCKET: &str = "ACP_FAKE_CHANNEL";
/// Maximum length of a message, in UTF-16 code units: small, so that answers have several parts.
pub const MESSAGE_UNITS_MAX: usize = 600;
