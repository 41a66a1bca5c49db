//! Tests of the store as a whole, on real files.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod completions;
pub(crate) mod fixtures;
mod groups;
mod guards;
mod host_reports;
mod interleaved;
mod names;
mod openclaw;
mod opening;
mod queries;
mod retention;
mod round_trip;
mod safety;
mod session_tools;
