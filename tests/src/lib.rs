//! Support code of the system tests: real processes in temporary directories.
//!
//! [`world::World`] starts supervisors and gateways as a person would, drives them through their command
//! lines, inspects the running processes, and ends everything it started.

pub mod browser;
pub mod cli;
pub mod fake_agent;
pub mod fake_channel;
pub mod fake_discord;
pub mod fake_model;
pub mod foreign;
pub mod held_proxy;
pub mod house;
pub mod invariants;
pub mod lease;
pub mod locked;
pub mod model;
pub mod northbound;
pub mod openclaw_home;
pub mod processes;
pub mod pty;
pub mod runbook;
pub mod schema;
pub mod scrape;
pub mod seed;
pub mod service;
pub mod stdio;
pub mod story;
pub mod wait;
pub mod world;
