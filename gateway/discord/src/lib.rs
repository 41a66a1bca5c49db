//! Discord client for the gateway: events in order, and requests with a known outcome. It knows nothing of
//! agents, sessions or bindings.
//!
//! Two halves (`docs/design/decisions/0071-discord-package.md`):
//!
//! - [`websocket`]: events, over a websocket client of our own on `tokio-tungstenite`. The protocol is in [`core::shard`];
//!   opcodes and intents are serenity's models.
//! - [`rest`]: requests, over `reqwest`, with the headers of rate limits and a deadline for each.
//!
//! Both use one base URL. With any base URL other than Discord's own, no request can reach the real service.

pub mod core;
pub mod rest;
pub mod websocket;

/// Name of this program in the format that Discord requires (API reference, "User Agent").
pub(crate) const USER_AGENT: &str =
    concat!("DiscordBot (https://github.com/acp-host/acp-host, ", env!("CARGO_PKG_VERSION"), ")");
