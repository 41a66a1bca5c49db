//! Sessions of acpx.

pub mod handle;
