//! Supervisor and wrapper as real processes, used over the socket and the command line.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test")]
#![expect(clippy::print_stdout, reason = "a test prints probe results and measured figures")]

mod admin;
mod cgroups;
mod cgroups_unprivileged;
mod common;
mod connection_floods;
mod crash;
mod crash_matrix;
mod disk;
mod disk_faults;
mod doctor;
mod durable;
mod files;
mod fixtures;
mod gateways;
mod hostile;
mod hung;
mod identity;
mod idle;
mod legacy;
mod limits;
mod probe;
mod pty;
mod relay;
mod remote;
mod remote_absence;
mod remote_refusals;
mod retention;
mod rollback;
mod scenarios;
mod schema;
mod service;
mod session_log;
mod soak;
mod spawn;
mod spools;
mod stop;
mod tenants;
mod terminal;
mod test_cgroup;
mod trace;
mod upgrade;
mod visibility;
mod watch;
