//! The machine contract of acpx: every verb as a real process.

#[path = "acpx/client.rs"]
mod client;
#[path = "acpx/commands.rs"]
mod commands;
#[path = "acpx/errors.rs"]
mod errors;
#[path = "acpx/foreign.rs"]
mod foreign;
#[path = "acpx/killed.rs"]
mod killed;
#[path = "acpx/pipes.rs"]
mod pipes;
#[path = "acpx/sessions.rs"]
mod sessions;
#[path = "acpx/turns.rs"]
mod turns;
