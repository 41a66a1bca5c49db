//! The gateway simulated: everything that the service starts, with its real cores, transactions and drivers, over
//! ports that are held by hand and on a clock that is a number.
//!
//! | file | about |
//! |---|---|
//! | `stage` | the scheduler: what can happen next, and what of it does |
//! | `life` | one life of the gateway, from a start to a kill |
//! | `host`, `agent` | a supervisor, and agents that speak ACP |
//! | `room` | a chat service |
//! | `people` | who uses it all |
//! | `laws` | what must hold after each step, and at rest |
//! | `ear` | reads the log: transitions, and faults that the gateway finds in itself |
//! | `reach` | what the seeds must reach together |
//! | `plants` | bugs that are planted to see whether they are found |
//! | `chance` | numbers that follow from a seed |
//!
//! One thread, no file, no socket, no wall clock: a seed gives the same run each time, ids excepted. `SIM_SEED=7 cargo
//! test -p acp-gateway sim::tests::replay -- --nocapture` prints the run of seed 7, with the gateway's log.

mod agent;
mod chance;
mod ear;
mod host;
mod laws;
mod life;
mod people;
mod plants;
mod reach;
mod room;
mod stage;
mod tests;
