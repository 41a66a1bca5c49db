//! The supervisor and the wrapper as real processes, driven over the socket as gateways and people do.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test")]
#![expect(clippy::print_stdout, reason = "a test prints probe results and measured figures")]

mod admin;
mod common;
mod crash;
mod disk;
mod disk_faults;
mod doctor;
mod durable;
mod files;
mod gateways;
mod ground;
mod groups;
mod groups_foreign;
mod hostile;
mod hung;
mod identity;
mod idle;
mod legacy;
mod limits;
mod matrix;
mod probe;
mod pty;
mod relay;
mod retention;
mod rig_groups;
mod rollback;
mod schema;
mod service;
mod session_log;
mod siege;
mod soak;
mod spawn;
mod spools;
mod start;
mod stop;
mod tenants;
mod terminal;
mod trace;
mod upgrade;
mod visibility;
mod watch;
