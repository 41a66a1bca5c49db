//! A strict fake of Discord in its own process: REST, gateway, files, and the orders of tests.
//!
//! It is written from Discord's public documentation (developer pages of 2026: messages, channels, threads, webhooks,
//! application commands, receiving and responding, components, permissions, gateway and gateway events, rate limits,
//! opcodes and status codes), not from what a client happens to send. Each file names the page that it models.
//!
//! # Parts
//! - [`core`] is pure: the machine receives inputs and the time, and returns changes, responses and events.
//! - [`store`] stores changes before their effects are sent: after SIGKILL a fake that is started with the
//!   same file and address still has all messages, nonces, threads, webhooks, interactions, rules and the
//!   clock. Sessions of the gateway, faults, counts and buckets end with the process.
//! - [`server`] is the process, [`FakeDiscord`] the test's handle.
//!
//! # Decisions where the documentation is silent
//! - Content is counted in UTF-16 units (the documentation says "characters"), the strictest unit that is compatible
//!   with clients. It is trimmed after counting.
//! - A nonce is remembered for three minutes ("a few"), per author, in all channels.
//! - Messages read over REST have no nonce.
//! - Buckets are five in five seconds for posts and for edits in a channel, and fixed windows that begin with the first
//!   request. Other routes have 50 in a second, reactions one in 250 ms.
//! - A locked archived thread accepts no post, not even from moderators.
//! - A connection without a heartbeat for one and a half intervals is closed with 4009; its session can still
//!   be resumed.
//! - A client that sends anything before HELLO is closed with 4003. HELLO is sent a moment after the
//!   connection opens.
//! - Two IDENTIFYs may follow each other at once; the service demands five seconds between them.
//! - Bots have every permission that a test did not deny: [`core::permissions`].
//!
//! # Left out
//! Direct messages, voice, forums and announcement channels, private threads, stickers, polls, embeds, replies, selects,
//! labels in modals, "Components V2", archived-thread lists, transport compression (a client that asks for it may be sent
//! plain text), members' events for other members (a privileged intent), events of reactions and typing, audit logs,
//! and other parts of the interface that no test of the product uses. Such routes return 404 with code 0, as the
//! service does for unknown routes; such members of a body and such types return 400.

mod app;
pub mod client;
pub mod core;
mod failing;
pub mod http;
pub mod multipart;
pub mod server;
mod socket;
pub mod store;

pub use client::FakeDiscord;
