//! Sessions of the backend `acpx`: its programs as real processes, and the real acpx (`foreign`).

#[path = "floods/foreign.rs"]
mod floods_foreign;
mod foreign;
#[path = "kills/foreign.rs"]
mod kills_foreign;
mod npm;
mod programs;
