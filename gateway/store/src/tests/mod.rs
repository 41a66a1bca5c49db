//! Tests of the store as a whole, on real files.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod fixtures;
mod groups;
mod guards;
mod interleaved;
mod openclaw;
mod opening;
mod queries;
mod round_trip;
mod safety;
