//! The process lifecycle simulator: the production core and drivers on a faked system with virtual time.
//!
//! A test named `cNN_s_…` is case NN of section 5 of the supervision reference, `aNN` case A-NN of section 8 of the
//! OpenClaw reference. Each test fails when a signal reaches a process that is of no lease's tree.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod begin;
mod endings;
mod identity;
mod kernel;
mod leases;
mod lost;
mod openclaw;
mod scope;
mod spawning;
mod stage;
mod sys;
mod visibility;
mod wrapper;
