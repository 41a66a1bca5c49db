//! Discord, as the gateway needs it and nothing more: what happens there, in its order, and requests of which it is
//! known what became of them. It knows nothing of agents, sessions or bindings.
//!
//! Two halves (`ARCHITECTURE.md`, "Discord"):
//!
//! - [`session`]: events, over a websocket client of our own on `tokio-tungstenite`. The protocol is in [`core::shard`];
//!   opcodes and intents are serenity's models.
//! - [`rest`]: requests, over `reqwest`, with the headers of rate limits and a deadline for each.
//!
//! Both talk to one base URL. With another one than Discord's own, nothing can reach the real service.

pub mod core;
pub mod rest;
pub mod session;
