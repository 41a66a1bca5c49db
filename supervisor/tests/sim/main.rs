//! Simulation of process lifecycles: the product's core and drivers on a faked system with virtual time. Each test
//! fails if a signal reaches a process outside of the leases' trees.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod endings;
mod identity;
mod identity_changes;
mod kernel;
mod leases;
mod lost;
mod scenarios;
mod scope;
mod simulation;
mod spawning;
mod sys;
mod visibility;
mod wrapper;
