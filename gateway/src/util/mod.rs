//! Allocator settings: helpers without knowledge of the gateway.

pub(crate) mod allocator;
pub(crate) mod random;
