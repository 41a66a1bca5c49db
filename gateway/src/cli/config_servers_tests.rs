//! Rows of the table for the keys of MCP servers.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::{Row, Seen, agents, mine};
use crate::runtime::profiles::Profiles;
use acp_core::config::load::LoadedConfig;
use acp_core::mcp;
use serde_json::json;

/// MCP servers that the agent is given.
fn servers(loaded: &LoadedConfig) -> String {
    let profile = agents(loaded).configured(&mine()).unwrap();
    json!(profile.mcp_servers.iter().map(mcp::server_param).collect::<Vec<_>>()).to_string()
}

pub(super) const ROWS: &[Row] = &[
    ("agents.*.mcp_servers.*.name", "\"other\"", Seen(servers)),
    ("agents.*.mcp_servers.*.type", "\"sse\"", Seen(servers)),
    ("agents.*.mcp_servers.*.command", "\"other\"", Seen(servers)),
    ("agents.*.mcp_servers.*.args", "[\"-v\"]", Seen(servers)),
    ("agents.*.mcp_servers.*.env", "{ K = \"v\" }", Seen(servers)),
    ("agents.*.mcp_servers.*.url", "\"http://other\"", Seen(servers)),
    ("agents.*.mcp_servers.*.headers", "{ K = \"v\" }", Seen(servers)),
    ("mcp_servers.*.name", "\"other\"", Seen(servers)),
    ("mcp_servers.*.type", "\"sse\"", Seen(servers)),
    ("mcp_servers.*.command", "\"other\"", Seen(servers)),
    ("mcp_servers.*.args", "[\"-v\"]", Seen(servers)),
    ("mcp_servers.*.env", "{ K = \"v\" }", Seen(servers)),
    ("mcp_servers.*.url", "\"http://other\"", Seen(servers)),
    ("mcp_servers.*.headers", "{ K = \"v\" }", Seen(servers)),
];
