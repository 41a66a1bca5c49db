//! Discord end to end: gateway, supervisor, wrapper and the scripted agent as real processes, with the real library, over
//! the strict fake. Judged from what the fake has kept, never from our own tables.

mod chaos;
mod conversation;
mod demo;
mod faults;
mod foreign;
mod queue;
mod restarts;
mod stage;
mod threads;
