//! Decision logic without I/O: no clock, files or processes. Time and evidence are arguments, decisions are
//! return values, and the driver modules of the crate carry them out.

pub mod admit;
pub mod backoff;
pub mod cgroup;
pub mod handshakes;
pub mod ladder;
pub mod lease;
pub mod limits;
pub mod load;
pub mod marks;
pub mod reap;
pub mod redact;
pub mod retain;
pub mod ring;
pub mod stdin;
pub mod stop;
pub mod tail;
pub mod tenant;
pub mod tree;
pub mod verify;
pub mod wake;
