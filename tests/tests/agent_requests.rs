//! What agents ask of their client, through the real gateway: files inside the session's directory, commands as
//! supervised leases, under the permission mode, and nothing done twice when the gateway dies around it.

#[path = "agent_requests/files.rs"]
mod files;
#[path = "agent_requests/given.rs"]
mod given;
#[path = "agent_requests/modes.rs"]
mod modes;
#[path = "agent_requests/terminals.rs"]
mod terminals;
#[path = "agent_requests/unit.rs"]
mod unit;
#[path = "agent_requests/writes.rs"]
mod writes;
