//! The gateway simulated: everything that the service starts, with its real cores, transactions and drivers, over
//! ports that are held by hand and on a clock that is a number.
//!
//! | file | about |
//! |---|---|
//! | `stage` | the scheduler: what can happen next, and what of it does |
//! | `life` | one life of the gateway, from a start to a kill |
//! | `host`, `agent` | a supervisor, and agents that speak ACP |
//! | `room` | a chat service |
//! | `people`, `wishes` | who uses it all, and what they want next |
//! | `laws` | what must hold after each step, and at rest |
//! | `shown` | what people must see of the journal, in messages and files, and how much of it |
//! | `ear` | reads the log: transitions, and faults that the gateway finds in itself |
//! | `names` | what steps are called |
//! | `reach` | what the seeds must reach together |
//! | `plants` | bugs that are planted to see whether they are found |
//! | `trouble` | how much goes wrong in a seed |
//! | `chance` | numbers that follow from a seed |
//!
//! One thread, no socket, no wall clock. What the scheduler picks follows from the seed. One thing does not: in which
//! order tasks wake that wait for the same news is tokio's chance, which follows from the seed only in a build with
//! `--cfg tokio_unstable`. `make replay SIM_SEED=7` makes one and plays a seed there, the same each time but for the
//! ids; `make nightly` plays fresh ones there. In an ordinary build a seed is nearly the same each time, so one that
//! fails prints the run in which it failed.

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
mod shown;
mod stage;
mod tests;
mod trouble;
mod wishes;
