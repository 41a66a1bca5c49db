//! Calls of the session tools: the agent as a client of MCP.

use super::agent::{Agent, Exit};
use crate::northbound::try_http;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

/// Name of the server in `mcpServers`.
const SERVER: &str = "acp-host";
/// Polling interval of a running call.
const POLL: Duration = Duration::from_millis(5);

/// Messages before the call, and the call.
fn messages(tool: &str, arguments: &Value) -> Vec<Value> {
    vec![
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "fake", "version": "1"}}}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}),
    ]
}

/// Returns the server of a session as it was given.
fn server_of(servers: &Value) -> Result<&Value, String> {
    let server = servers.as_array().into_iter().flatten().find(|server| server["name"] == SERVER);
    server.ok_or_else(|| format!("there is no server {SERVER}"))
}

/// Sends one message without the bridge, under a key of its own choice, and returns the response.
fn post(servers: &Value, arguments: &Value) -> Result<Value, String> {
    let server = server_of(servers)?;
    let value = |name: &str| {
        let found = server["env"].as_array().into_iter().flatten().find(|it| it["name"] == name);
        found.and_then(|it| it["value"].as_str()).unwrap_or_default()
    };
    let (socket, token) =
        (value("ACP_HOST_AGENT_SOCKET"), format!("Bearer {}", value("ACP_HOST_AGENT_TOKEN")));
    let key = arguments["key"].as_str().unwrap_or_default();
    let headers = [("authorization", token.as_str()), ("idempotency-key", key)];
    let answer = try_http(Path::new(socket), "POST", "/mcp", &headers, &arguments["message"].to_string());
    answer.map(|answer| answer.json()).map_err(|error| error.to_string())
}

/// Starts the server of a session, and sends the messages.
fn start(servers: &Value, messages: &[Value]) -> Result<(Child, Receiver<Value>), String> {
    let server = server_of(servers)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut command = Command::new(text(&server["command"]));
    command.args(server["args"].as_array().into_iter().flatten().map(text));
    for variable in server["env"].as_array().into_iter().flatten() {
        command.env(text(&variable["name"]), text(&variable["value"]));
    }
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| error.to_string())?;
    let (Some(stdin), Some(stdout)) = (&mut child.stdin, child.stdout.take()) else {
        return Err("no pipes".to_owned());
    };
    for message in messages {
        writeln!(stdin, "{message}").map_err(|error| error.to_string())?;
    }
    let (send, lines) = sync_channel(16);
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ =
                send.send(serde_json::from_str(&line).unwrap_or_else(|_| json!({"id": 2, "no_json": line})));
        }
    });
    Ok((child, lines))
}

impl Agent {
    /// Calls a tool, and returns its result or error. A cancel ends the call. The tool `bridge` sends any `messages` and
    /// returns the answer with the id `until`; `post` sends one `message` under a `key` and without the bridge.
    pub(super) fn call_session_tool(
        &mut self,
        session: &str,
        tool: &str,
        arguments: &Value,
    ) -> Result<String, Exit> {
        let servers = self.servers.get(session).cloned().unwrap_or_default();
        if tool == "post" {
            let answer = post(&servers, arguments).unwrap_or_else(|why| json!(why));
            return Ok(format!("post: {}", answer["result"].get("structuredContent").unwrap_or(&answer)));
        }
        let (sent, id) = match arguments["messages"].as_array() {
            Some(given) if tool == "bridge" => (given.clone(), arguments["until"].clone()),
            _ => (messages(tool, arguments), json!(2)),
        };
        let (mut child, lines) = match start(&servers, &sent) {
            Ok(started) => started,
            Err(why) => return Ok(format!("{tool}: {why}")),
        };
        let answer = loop {
            match lines.try_recv() {
                Ok(answer) if answer["id"] == id => break answer,
                Ok(_) => {}
                Err(TryRecvError::Empty) if self.is_cancelled() => break json!("cancelled"),
                Err(TryRecvError::Empty) => self.handle_next_line(Some(Instant::now() + POLL))?,
                Err(TryRecvError::Disconnected) => break json!("no answer"),
            }
        };
        drop(child.stdin.take());
        let _ = child.kill();
        let _ = child.wait();
        let result = answer["result"].get("structuredContent").unwrap_or(&answer);
        Ok(format!("{tool}: {result}"))
    }
}
