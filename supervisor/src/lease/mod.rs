//! Lease tasks: start of a process tree, its end, and reaping of what an earlier supervisor left behind.

pub(crate) mod confine;
pub mod legacy;
pub mod orphans;
pub mod pause;
pub mod reaper;
pub mod spawn;
pub mod task;
pub mod tree_kill;
