//! A strict fake of Discord, in a process of its own.

mod app;
pub mod client;
pub mod core;
pub mod multipart;
pub mod server;
mod socket;
pub mod store;

pub use client::FakeDiscord;
