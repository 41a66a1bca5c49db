//! PostgreSQL: servers of the kit, and the store's schema for it against SQLite's.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod engine;
mod foreign;
mod gateway;
mod hosts;
mod identify_slots;
mod manual;
#[expect(dead_code, reason = "the tests of hosts use the rest")]
#[path = "../hosts/plane.rs"]
mod plane;
mod schema_text;
#[expect(dead_code, reason = "the tests of Discord use the rest")]
#[path = "../discord/stage.rs"]
mod stage;
mod statements;
mod tls;
