//! One client or one agent that takes what it can get: others are served, and memory is given back.

mod memory;
mod readers;
