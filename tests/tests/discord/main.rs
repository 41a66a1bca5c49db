//! Discord end to end: gateway, supervisor, wrapper and the scripted agent as real processes, with the real library, over
//! the strict fake. Judged from what the fake has kept, never from our own tables.

mod chaos;
mod conversation;
mod faults;
mod files;
mod queue;
mod restarts;
mod stage;
mod threads;
mod verbosity;
