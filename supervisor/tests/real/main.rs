//! The supervisor and the wrapper as real processes, driven over the socket as gateways and people do.

mod admin;
mod common;
mod crash;
mod gateways;
mod hostile;
mod relay;
mod spawn;
mod stop;
mod store;
mod terminal;
mod upgrade;
