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
//! | `names` | what steps are called |
//! | `reach` | what the seeds must reach together |
//! | `plants` | bugs that are planted to see whether they are found |
//! | `chance` | numbers that follow from a seed |
//!
//! One thread, no socket, no wall clock. What the scheduler picks follows from the seed. One thing does not: in which
//! order tasks wake that wait for the same news is tokio's chance, which cannot be seeded in a stable build. So a seed
//! that fails prints the run in which it failed, and `SIM_SEED=7 cargo nextest run -p acp-gateway sim::tests::replay
//! --no-capture` plays it again, nearly the same.

mod agent;
mod chance;
mod ear;
mod host;
mod laws;
mod life;
mod names;
mod people;
mod plants;
mod reach;
mod room;
mod stage;
mod tests;
