//! Simulation of the gateway: the whole service, with its real cores, transactions and drivers, over
//! simulated interfaces and a simulated clock.
//!
//! | file | contents |
//! |---|---|
//! | `stage` | the scheduler: selects and executes the next event |
//! | `life` | one run of the gateway, from a start to a kill |
//! | `host`, `agent` | a supervisor, and agents that speak ACP |
//! | `room` | a chat service |
//! | `people`, `wishes` | users of the gateway, and their requests |
//! | `laws` | invariants after each step, and at rest |
//! | `shown` | invariants of the messages and files that people see |
//! | `ear` | log capture: transitions, and faults that the gateway detects in itself |
//! | `names` | names of steps |
//! | `reach` | coverage that all seeds together must reach |
//! | `plants` | seeded bugs, to test that the simulation finds them |
//! | `trouble` | frequency of faults in a seed |
//! | `chance` | seeded random numbers |
//!
//! One thread, no socket, no wall clock. The seed determines the scheduler's choices. One thing differs: the
//! order in which tasks that wait for the same event wake is tokio's choice, which follows from the seed only
//! in a build with `--cfg tokio_unstable`. `make replay SIM_SEED=7` makes such a build and runs a seed in it,
//! reproducible except for ids; `make nightly` runs new seeds in it. In an ordinary build a seed is only
//! nearly reproducible, so a failing seed prints its run.

mod agent;
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
mod supervisor;
mod tests;
mod user_actions;
mod users;
