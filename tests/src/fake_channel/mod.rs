//! A channel that fails in every way a chat service can: for the gateway that `src/bin/fake-channel-gateway.rs`
//! runs, and for the tests that say what people say in it and look what it holds.
//!
//! [`service::ChatService`] is the service: it lives in the test, is strict, and keeps what it took whatever dies
//! around it. [`adapter::FakeChannel`] is the gateway's side, and [`wire`] what they say to each other over a
//! Unix socket. What goes wrong, and when, is drawn from a seed in [`fate`].

pub mod adapter;
pub mod fate;
pub mod service;
pub mod wire;

/// The channel's name in conversations.
pub const NAME: &str = "fake";
/// The environment variable that names the service's socket to the gateway.
pub const ENV_SOCKET: &str = "ACP_FAKE_CHANNEL";
/// The most that a message holds, in UTF-16 code units: little, so that answers have several parts.
pub const MESSAGE_UNITS_MAX: usize = 600;
