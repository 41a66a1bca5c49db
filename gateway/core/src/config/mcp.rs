//! `[[mcp_servers]]`: MCP servers for agents. The JSON of `--mcp-config` has the same shape.

use super::Config;
use super::check::{KeyProblems, owned};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use utoipa::ToSchema;

/// Maximum number of servers in one list.
const SERVERS_MAX: usize = 32;
/// Maximum length of a server's name, in characters.
const NAME_CHARS_MAX: usize = 100;
/// Maximum size of one server as JSON, in bytes.
const SERVER_BYTES_MAX: usize = 16 * 1024;

/// Value hidden from logs and views.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

acp_shared::named! {
    /// Transport between an agent and an MCP server, named as in configuration and in ACP.
    #[derive(Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum McpTransport {
        /// The agent starts the server and uses its standard input and output.
        Stdio = "stdio",
        /// Streamable HTTP.
        #[serde(alias = "streamable-http", alias = "streamableHttp")]
        Http = "http",
        /// HTTP with server-sent events.
        Sse = "sse",
    }
}

/// One MCP server: a program (`command`, `args`, `env`) or a remote one (`type`, `url`, `headers`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct McpServer {
    /// Name of the server. If several lists have the same name, the session's entry overrides the agent's,
    /// and the agent's overrides the global one. Required.
    pub name: String,
    /// Transport. Default: none, `stdio` for an entry with a command.
    #[serde(rename = "type")]
    pub transport: Option<McpTransport>,
    /// Program that the agent starts. Default: none.
    pub command: Option<String>,
    /// Arguments of the program. Default: none.
    pub args: Vec<Secret>,
    /// Environment of the program. Default: none.
    pub env: BTreeMap<String, Secret>,
    /// Address of a remote server. Default: none.
    pub url: Option<Secret>,
    /// Headers of each request to a remote server. Default: none.
    pub headers: BTreeMap<String, Secret>,
}

impl McpServer {
    /// Returns the transport; `stdio` if none is set.
    pub fn transport(&self) -> McpTransport {
        self.transport.unwrap_or(McpTransport::Stdio)
    }

    /// Mistakes of the entry, as key within the entry and message.
    fn mistakes(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let mut add = |key, text: &str| found.push((key, text.to_owned()));
        if self.name.trim().is_empty() || self.name.chars().any(char::is_control) {
            add("name", "is required, on one line");
        }
        if self.name.chars().count() > NAME_CHARS_MAX {
            add("name", &format!("must have at most {NAME_CHARS_MAX} characters"));
        }
        match self.transport() {
            McpTransport::Stdio => {
                match self.command.as_deref() {
                    None | Some("") => {
                        add("command", "is required, or else url with type = \"http\" or \"sse\"")
                    }
                    Some(command) if command.contains('/') && !command.starts_with('/') => {
                        add("command", "must name a program by an absolute path, or one on the agent's PATH");
                    }
                    Some(_) => {}
                }
                if self.url.is_some() || !self.headers.is_empty() {
                    add("type", "url and headers require type \"http\" or \"sse\"");
                }
            }
            McpTransport::Http | McpTransport::Sse => {
                let url = self.url.as_ref().map_or("", |url| url.0.as_str());
                if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) {
                    add("url", "must begin with http:// or https://");
                }
                if self.command.is_some() || !self.args.is_empty() || !self.env.is_empty() {
                    add("type", "command, args and env require type \"stdio\"");
                }
            }
        }
        let named = |map: &BTreeMap<String, Secret>| {
            map.iter().any(|(name, value)| {
                name.is_empty() || name.contains(['=', '\0', '\n', '\r']) || value.0.contains('\0')
            })
        };
        if named(&self.env) {
            add("env", "contains an empty name, or a name or value with an invalid character");
        }
        if named(&self.headers) || self.headers.values().any(|value| value.0.contains(['\n', '\r'])) {
            add("headers", "contains an empty name, or a name or value with an invalid character");
        }
        if serde_json::to_string(self).is_ok_and(|json| json.len() > SERVER_BYTES_MAX) {
            add("args", &format!("the whole entry must have at most {SERVER_BYTES_MAX} bytes"));
        }
        found
    }
}

/// Mistakes of a list of servers, as index, key within the entry and message.
pub fn mistakes(servers: &[McpServer]) -> Vec<(usize, &'static str, String)> {
    let mut found: Vec<_> = Vec::new();
    let mut names = BTreeSet::new();
    for (index, server) in servers.iter().enumerate() {
        found.extend(server.mistakes().into_iter().map(|(key, text)| (index, key, text)));
        if !names.insert(&server.name) {
            found.push((index, "name", format!("{:?} appears twice in this list", server.name)));
        }
        if index == SERVERS_MAX {
            found.push((index, "name", format!("a list must have at most {SERVERS_MAX} servers")));
        }
    }
    found
}

/// Checks the global list and the lists of agents, and adds their mistakes to `found`.
pub(super) fn check(found: &mut KeyProblems, config: &Config) {
    let mut list = |above: &[&str], servers: &[McpServer]| {
        for (index, key, text) in mistakes(servers) {
            found.push((owned(above, &["mcp_servers", &index.to_string(), key]), text));
        }
    };
    list(&[], &config.mcp_servers);
    for (name, agent) in &config.agents {
        list(&["agents", name.as_str()], &agent.mcp_servers);
    }
}

/// True for configuration keys with secret values.
pub(super) fn is_secret(path: &[String]) -> bool {
    let segments: Vec<&str> = path.iter().map(String::as_str).collect();
    matches!(
        segments.as_slice(),
        ["mcp_servers", _, "args" | "url" | "env" | "headers", ..]
            | ["notify", _, "url"]
            | ["agents", _, "mcp_servers", _, "args" | "url" | "env" | "headers", ..]
    )
}
