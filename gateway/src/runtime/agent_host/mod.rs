//! Agent host: executes the file and terminal requests of agents, after policy allowed them.

pub(crate) mod dispatch;
pub(crate) mod executor;
pub(crate) mod fs;
pub(crate) mod terminal;
