//! Discord, as the gateway needs it and nothing more: what happens there, in its order, and requests of which it is
//! known what became of them. It knows nothing of agents, sessions or bindings.
//!
//! Two halves, because one library does not do both (`ARCHITECTURE.md`, "Discord"):
//!
//! - the websocket is serenity's: connection, heartbeats, RESUME, models;
//! - requests are made by a client of our own over `reqwest`: serenity's keeps neither the headers of a rate limit nor
//!   a deadline.
//!
//! Both talk to one base URL. With another one than Discord's own, nothing can reach the real service.

pub mod core;
pub mod rest;
pub mod session;
