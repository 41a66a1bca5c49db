//! Session tools: the MCP server through which an agent lists, reads, prompts and spawns sessions of its gateway. Messages
//! come in and replies go out; whoever drives this module executes the calls.
#![deny(clippy::indexing_slicing)]

mod call;
mod messages;
mod protocol;
mod results;
#[cfg(test)]
mod tests;

pub use call::{
    CURRENT, HistoryArguments, ListArguments, ListedState, SendArguments, SpawnArguments, StatusArguments,
    TOOLS, ToolCall, WAIT_S_MAX,
};
pub use messages::{AnswerText, message_rows};
pub use protocol::{MessageResult, PendingCall, ServerFacts, receive};
pub use results::{OldestRow, RESULT_BYTES_MAX, bounded_rows, bounded_text};

/// Name of the server in an agent's `mcpServers`.
pub const SERVER_NAME: &str = "acp-host";
/// Environment variable of the bridge: the socket of the session tools.
pub const ENV_SOCKET: &str = "ACP_HOST_AGENT_SOCKET";
/// Environment variable of the bridge: the token of the agent's lease.
pub const ENV_TOKEN: &str = "ACP_HOST_AGENT_TOKEN";
/// Name of the socket in the state directory.
pub const AGENTS_SOCKET: &str = "agents.sock";
/// Path of the session tools on that socket.
pub const MCP_PATH: &str = "/mcp";
/// Maximum number of generations beneath a session that no session spawned.
pub const DEPTH_MAX: usize = 3;
/// Maximum number of open sessions that one session has spawned.
pub const CHILDREN_MAX: u64 = 8;
/// Maximum number of prompts in a chain: each was sent by the turn of the one before.
pub const CHAIN_MAX: u64 = 5;

/// Returns the prompt of a session's message to another one, which names its sender.
#[must_use]
pub fn prompt_text(sender: &str, agent: &str, text: &str) -> String {
    format!("Message from the session {sender} (agent {agent}):\n\n{text}")
}
