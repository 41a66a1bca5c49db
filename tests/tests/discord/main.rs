//! Discord end to end: gateway, supervisor, wrapper and the scripted agent as real processes, over
//! the strict fake. Judged from the fake's stored messages, never from the gateway's tables.

mod accounts;
mod amends;
mod bindings;
mod cases;
mod chaos;
mod conversation;
mod demo;
mod faults;
mod files;
mod foreign;
mod forms;
mod numbers;
mod once;
mod people;
mod personas;
mod projects;
mod questions;
mod queue;
mod reads;
mod reload;
mod restarts;
mod rules;
mod setup;
mod shards;
mod spawn;
mod spawned;
mod stage;
mod suggest;
mod threads;
mod tokens;
mod untold;
mod verbosity;
