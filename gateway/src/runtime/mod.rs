//! Agents as programs: their commands, the look-up of programs where they run, and the host's side of their file
//! and terminal requests.

pub(crate) mod acpx;
pub(crate) mod agent_host;
pub(crate) mod agents;
pub(crate) mod hosts;
pub(crate) mod local_lookup;
pub(crate) mod lookup;
pub(crate) mod profiles;
