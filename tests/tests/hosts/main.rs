//! Hosts: agents on other machines, here processes of this one on loopback addresses.

mod enrol;
mod gateway;
#[expect(dead_code, reason = "benchmarks use the rest")]
mod plane;
mod shared;
