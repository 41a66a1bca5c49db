//! Simulation of the gateway: the whole service, with its real cores, transactions and drivers, over
//! simulated interfaces and a simulated clock.
//!
//! | file | contents |
//! |---|---|
//! | `scheduler` | the scheduler: selects and executes the next event |
//! | `cell` | the scheduler of two gateways with one cell of a database server, and of two hosts |
//! | `gateway` | one run of the gateway, from a start to a kill |
//! | `supervisor`, `agent` | a supervisor, and agents that speak ACP |
//! | `chat` | a chat service |
//! | `store` | the store, on a database in memory |
//! | `server` | a database server in front of it, which loses answers and takes commits back |
//! | `users`, `user_actions` | users of the gateway, and their requests |
//! | `invariants` | invariants after each step, and at rest |
//! | `expected_output` | invariants of the messages and files that people see |
//! | `log_capture` | log capture: transitions, and faults that the gateway detects in itself |
//! | `names` | names of steps |
//! | `coverage` | coverage that all seeds together must reach |
//! | `seeded_bugs` | seeded bugs, to test that the simulation finds them |
//! | `faults` | frequency of faults in a seed |
//! | `rng` | seeded random numbers |
//!
//! One thread, no socket, no wall clock. The seed determines the scheduler's choices. One thing differs: the
//! order in which tasks that wait for the same event wake is tokio's choice, which follows from the seed only
//! in a build with `--cfg tokio_unstable`. `make replay SIM_SEED=7` makes such a build and runs a seed in it,
//! reproducible except for ids; `make nightly` runs new seeds in it. In an ordinary build a seed is only
//! nearly reproducible, so a failing seed prints its run.

mod agent;
mod cell;
mod chat;
mod coverage;
mod expected_output;
mod faults;
mod gateway;
mod invariants;
mod log_capture;
mod names;
mod rng;
mod scheduler;
mod seeded_bugs;
mod server;
pub(crate) mod store;
mod supervisor;
mod tests;
mod user_actions;
mod users;
