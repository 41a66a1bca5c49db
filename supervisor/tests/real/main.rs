//! The supervisor and the wrapper as real processes, driven over the socket as gateways and people do.

mod admin;
mod common;
mod crash;
mod disk;
mod doctor;
mod durable;
mod gateways;
mod ground;
mod hostile;
mod identity;
mod idle;
mod matrix;
mod pty;
mod relay;
mod schema;
mod service;
mod soak;
mod spawn;
mod stop;
mod store;
mod terminal;
mod trace;
mod visibility;
mod watch;
