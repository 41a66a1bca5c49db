//! Decision logic without I/O: no clock, files or processes. Time and evidence are arguments, decisions are
//! return values, and the driver modules of the crate carry them out.

pub mod admission;
pub mod backoff;
pub mod cgroup;
pub mod containment;
pub mod deadlines;
pub mod escalation;
pub mod handshakes;
pub mod lease;
pub mod limits;
pub mod marks;
pub mod quarantine;
pub mod reap_plan;
pub mod redact;
pub mod retention;
pub mod ring;
pub mod stdin;
pub mod tail_buffer;
pub mod tenant;
pub mod tree;
pub mod verify;
