//! Allocator settings, private files, random bytes: helpers without knowledge of the gateway.

pub(crate) mod allocator;
pub(crate) mod private_file;
pub(crate) mod random;
