//! Clock, blocking tasks and allocator settings: helpers without knowledge of the gateway.

pub(crate) mod allocator;
pub(crate) mod blocking;
pub(crate) mod clock;
