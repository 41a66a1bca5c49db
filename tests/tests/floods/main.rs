//! One client or agent that exhausts resources: others are served, and memory is released.

mod memory;
mod readers;
