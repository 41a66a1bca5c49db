//! MCP servers and additional directories of a session: merges the three levels, and builds the parameters of
//! `session/new`, `session/load` and `session/resume`.

use crate::bearer::BearerToken;
use crate::config::mcp::mistakes;
use crate::config::{McpServer, McpTransport, Secret};
use crate::failure::Failure;
use crate::session_tools::{ENV_SOCKET, ENV_TOKEN, SERVER_NAME};
use acp_shared::codes::Code;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Maximum number of additional directories of one session.
const DIRECTORIES_MAX: usize = 32;
/// Servers by name, as in the JSON of `--mcp-config` and in the API.
pub type McpServers = BTreeMap<String, McpServer>;

/// Merges lists of servers by name; later lists take precedence.
pub fn merge_servers<'a>(levels: impl IntoIterator<Item = &'a [McpServer]>) -> Vec<McpServer> {
    let mut all: Vec<McpServer> = Vec::new();
    for server in levels.into_iter().flatten() {
        match all.iter_mut().find(|have| have.name == server.name) {
            Some(have) => have.clone_from(server),
            None => all.push(server.clone()),
        }
    }
    all
}

/// Returns the distinct directories of all lists, in order, without the working directory.
pub fn merge_directories<'a>(cwd: &str, lists: impl IntoIterator<Item = &'a [String]>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for directory in lists.into_iter().flatten() {
        if directory != cwd && !all.contains(directory) {
            all.push(directory.clone());
        }
    }
    all
}

/// Validates the servers of a spawn request.
///
/// # Errors
/// `USAGE` with the detail `INVALID_MCP_CONFIG`.
pub fn servers_from_map(servers: McpServers) -> Result<Vec<McpServer>, Failure> {
    let list: Vec<McpServer> =
        servers.into_iter().map(|(name, server)| McpServer { name, ..server }).collect();
    match mistakes(&list).into_iter().next() {
        None => Ok(list),
        Some((index, key, text)) => {
            let name = list.get(index).map_or("", |server| server.name.as_str());
            let text = format!("The MCP server {name:?}: {key} {text}.");
            Err(Failure::new(Code::Usage, text).detail("INVALID_MCP_CONFIG").origin("client"))
        }
    }
}

/// Checks the number of additional directories of a spawn request.
///
/// # Errors
/// `USAGE`.
pub fn check_directories(directories: &[String]) -> Result<(), Failure> {
    if directories.len() <= DIRECTORIES_MAX {
        return Ok(());
    }
    let text = format!("A session may have {DIRECTORIES_MAX} additional directories at most.");
    Err(Failure::new(Code::Usage, text).origin("client"))
}

/// True if the agent supports the transport. Every agent supports `stdio`; `http` and `sse` are capabilities.
pub const fn is_transport_supported(transport: McpTransport, http: bool, sse: bool) -> bool {
    match transport {
        McpTransport::Stdio => true,
        McpTransport::Http => http,
        McpTransport::Sse => sse,
    }
}

/// Returns a server as an element of ACP's `mcpServers`.
pub fn server_param(server: &McpServer) -> Value {
    let pairs = |map: &BTreeMap<String, Secret>| -> Vec<Value> {
        map.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect()
    };
    match server.transport() {
        McpTransport::Stdio => json!({
            "name": server.name,
            "command": server.command,
            "args": server.args,
            "env": pairs(&server.env),
        }),
        transport @ (McpTransport::Http | McpTransport::Sse) => json!({
            "type": transport,
            "name": server.name,
            "url": server.url,
            "headers": pairs(&server.headers),
        }),
    }
}

/// Returns the server of the session tools: the bridge, with the socket of the gateway and the token of the lease.
pub fn session_tools_server(command: &str, socket: &str, token: &BearerToken) -> McpServer {
    let env = [(ENV_SOCKET, socket.to_owned()), (ENV_TOKEN, token.show())];
    McpServer {
        name: SERVER_NAME.to_owned(),
        command: Some(command.to_owned()),
        args: vec![Secret("mcp".to_owned())],
        env: env.into_iter().map(|(name, value)| (name.to_owned(), Secret(value))).collect(),
        ..McpServer::default()
    }
}

/// MCP server as shown to people: without arguments, values, and secret parts of the address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct McpServerView {
    /// Name of the server.
    pub name: String,
    /// Transport of the server.
    #[serde(rename = "type")]
    pub transport: McpTransport,
    /// Program, or scheme and host of the address.
    pub target: String,
    /// Names of the environment variables or headers.
    pub names: Vec<String>,
}

impl From<&McpServer> for McpServerView {
    fn from(server: &McpServer) -> Self {
        let transport = server.transport();
        let target = match &server.url {
            Some(url) => origin(&url.0),
            None => server.command.clone().unwrap_or_default(),
        };
        let names = server.env.keys().chain(server.headers.keys()).cloned().collect();
        Self { name: server.name.clone(), transport, target, names }
    }
}

/// Returns scheme and host of an address. User, password, path and query may be secrets.
fn origin(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn server(name: &str, rest: Value) -> McpServer {
        McpServer { name: name.to_owned(), ..serde_json::from_value(rest).unwrap() }
    }

    #[test]
    fn later_level_replaces_server_of_same_name() {
        let global = [server("a", json!({"command": "a1"})), server("b", json!({"command": "b1"}))];
        let agent = [server("b", json!({"command": "b2"})), server("c", json!({"command": "c2"}))];
        let session = [server("c", json!({"type": "http", "url": "https://c"}))];
        let all = merge_servers([&global[..], &agent[..], &session[..]]);
        let got: Vec<String> = all
            .iter()
            .map(McpServerView::from)
            .map(|view| format!("{} {}", view.name, view.target))
            .collect();
        assert_eq!(got, ["a a1", "b b2", "c https://c"]);
    }

    #[test]
    fn directories_exclude_duplicates_and_working_directory() {
        let list = |dirs: &[&str]| dirs.iter().map(|&dir| dir.to_owned()).collect::<Vec<_>>();
        let (one, two) = (list(&["/a", "/w"]), list(&["/b", "/a"]));
        assert_eq!(merge_directories("/w", [&one[..], &two[..]]), ["/a", "/b"]);
    }

    #[test]
    fn server_parameters_match_protocol() {
        let table = [
            (
                json!({"command": "/bin/mcp", "args": ["-v"], "env": {"TOKEN": "t"}}),
                json!({"command": "/bin/mcp", "args": ["-v"], "env": [{"name": "TOKEN", "value": "t"}]}),
            ),
            (json!({"command": "mcp"}), json!({"command": "mcp", "args": [], "env": []})),
            (
                json!({"type": "http", "url": "https://h/x", "headers": {"A": "b"}}),
                json!({"type": "http", "url": "https://h/x", "headers": [{"name": "A", "value": "b"}]}),
            ),
            (json!({"type": "sse", "url": "u"}), json!({"type": "sse", "url": "u", "headers": []})),
            (
                json!({"type": "streamable-http", "url": "u"}),
                json!({"type": "http", "url": "u", "headers": []}),
            ),
        ];
        for (config, mut want) in table {
            want["name"] = "n".into();
            assert_eq!(server_param(&server("n", config)), want);
        }
    }

    #[test]
    fn session_tools_are_a_program_with_socket_and_token() {
        let token = BearerToken::new([7; 32]);
        let server = session_tools_server("/bin/acp-gateway", "/run/agents.sock", &token);
        let env = json!([{"name": "ACP_HOST_AGENT_SOCKET", "value": "/run/agents.sock"},
            {"name": "ACP_HOST_AGENT_TOKEN", "value": token.show()}]);
        let want = json!({"name": "acp-host", "command": "/bin/acp-gateway", "args": ["mcp"], "env": env});
        assert_eq!(server_param(&server), want);
    }

    #[test]
    fn server_errors_name_server_and_key() {
        let two = json!({"A": "b\r\nC: d"});
        for (config, wants) in [
            (json!({}), ["\"n\"", "command is required"]),
            (json!({"command": "./x"}), ["\"n\"", "absolute path"]),
            (json!({"command": "x", "url": "http://h"}), ["\"n\"", "url and headers require type"]),
            (json!({"type": "http"}), ["\"n\"", "url must begin with"]),
            (json!({"type": "http", "url": "ftp://h"}), ["\"n\"", "url must begin with"]),
            (json!({"type": "sse", "url": "http://h", "args": ["x"]}), ["\"n\"", "require type \"stdio\""]),
            (json!({"command": "x", "env": {"A=B": "x"}}), ["\"n\"", "env contains"]),
            (json!({"type": "http", "url": "http://h", "headers": two}), ["\"n\"", "headers contain"]),
            (json!({"command": "x", "args": ["x".repeat(20_000)]}), ["\"n\"", "at most 16384 bytes"]),
        ] {
            let failure = servers_from_map([("n".to_owned(), server("", config))].into()).unwrap_err();
            assert_eq!(failure.detail_code.as_deref(), Some("INVALID_MCP_CONFIG"));
            for want in wants {
                assert!(failure.message.contains(want), "{want:?} is not in {:?}", failure.message);
            }
        }
        let many = (0..33).map(|n| (n.to_string(), server("", json!({"command": "x"})))).collect();
        assert!(servers_from_map(many).unwrap_err().message.contains("at most 32 servers"));
        assert!(servers_from_map([("n".to_owned(), server("", json!({"command": "x"})))].into()).is_ok());
        let unknown = serde_json::from_value::<McpServer>(json!({"command": "x", "disabled": true}));
        assert!(unknown.unwrap_err().to_string().contains("disabled"));
    }

    #[test]
    fn views_and_debug_output_hide_secrets() {
        let secrets = [
            server("n", json!({"command": "mcp", "args": ["hidden-arg"], "env": {"TOKEN": "hidden-env"}})),
            server(
                "m",
                json!({"type": "http", "url": "https://hidden-user:p@host:1/hidden-path?k=hidden-query",
                "headers": {"Authorization": "hidden-header"}}),
            ),
        ];
        let views: Vec<McpServerView> = secrets.iter().map(McpServerView::from).collect();
        let shown = format!("{secrets:?} {views:?} {}", serde_json::to_string(&views).unwrap());
        assert!(!shown.contains("hidden"), "{shown}");
        assert!(["https://host:1", "TOKEN", "Authorization"].iter().all(|part| shown.contains(part)));
    }

    proptest! {
        #[test]
        fn origin_excludes_user_and_query(user in "[a-z:]{1,12}", host in "[a-z.]{1,12}", rest in "[a-z/?=#@]{0,12}") {
            let shown = origin(&format!("https://{user}@{host}/{rest}"));
            prop_assert_eq!(shown, format!("https://{host}"));
        }
    }
}
