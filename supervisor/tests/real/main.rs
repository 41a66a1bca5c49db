//! The supervisor and the wrapper as real processes, driven over the socket as gateways and people do.

mod admin;
mod common;
mod crash;
mod disk;
mod durable;
mod gateways;
mod groups;
mod groups_foreign;
mod hostile;
mod idle;
mod relay;
mod rig_groups;
mod spawn;
mod stop;
mod store;
mod terminal;
