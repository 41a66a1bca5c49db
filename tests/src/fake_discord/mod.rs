//! A strict fake of Discord, in a process of its own: REST, gateway, files, and the orders of tests.
//!
//! It is written from Discord's public documentation (developer pages of 2026: messages, channels, threads, webhooks,
//! application commands, receiving and responding, components, permissions, gateway and gateway events, rate limits,
//! opcodes and status codes), not from what a client happens to send. Each file names the page that it models.
//!
//! # Parts
//! - [`core`] is pure: the machine gets what happened and the time, and says what is kept, answered and sent.
//! - [`store`] keeps what was accepted, before anybody hears of it: after SIGKILL a fake that is started with the same
//!   file and address still has all messages, nonces, threads, webhooks, interactions, rules and the clock. Sessions of the
//!   gateway, faults, counts and buckets end with the process.
//! - [`server`] is the process, [`FakeDiscord`] what a test holds.
//!
//! # Decisions where the documentation is silent
//! - Content is counted in UTF-16 units ("characters" says the documentation); `content_unit` says otherwise. It is
//!   trimmed after it was counted.
//! - A nonce is remembered for three minutes ("a few"), for its author, in whatever channel.
//! - Reads over REST carry no nonce.
//! - Buckets are five in five seconds for posts and for edits in a channel, and fixed windows that begin with the first
//!   request. Other routes have 50 in a second, reactions one in 250 ms.
//! - A locked archived thread takes no post, not even of moderators.
//! - A connection that does not beat for one and a half intervals is closed with 4009; its session can be resumed all
//!   the same.
//! - Who sends anything before HELLO is closed with 4003. HELLO comes a moment after the connection.
//! - Two IDENTIFYs may follow each other at once (`identify_every_ms` has the service's five seconds).
//! - Bots have every permission that a test did not take away: [`core::permissions`].
//!
//! # Left out
//! Direct messages, voice, forums and announcement channels, stickers, polls, "Components V2", archived-thread lists,
//! transport compression (a client that asks for it may be sent plain text), members' events for other members
//! (a privileged intent), audit logs, and whatever else of the interface a channel of agents does not use: such routes
//! answer 404 with code 0, as the service does for what it does not know.

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
