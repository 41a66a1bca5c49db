//! The supervisor and the wrapper as real processes, driven over the socket as gateways and people do.

mod admin;
mod common;
mod crash;
mod disk;
mod durable;
mod gateways;
mod hostile;
mod idle;
mod relay;
mod spawn;
mod stop;
mod store;
mod terminal;
mod upgrade;
