//! The store on a server that is taken by a second gateway, killed, and replaced by its standby.

mod fight;
mod foreign;

pub(crate) use foreign::open;
