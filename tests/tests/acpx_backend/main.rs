//! Sessions of the backend `acpx`: its programs as real processes, and the real acpx (`foreign`).

mod foreign;
mod programs;
