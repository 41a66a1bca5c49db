//! PostgreSQL: servers of the kit, and the store's schema for it against SQLite's.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod engine;
mod foreign;
mod gateway;
mod schema_text;
mod statements;
mod tls;
