//! Calls of the session tools: the agent as a client of MCP.

use super::agent::{Agent, Exit};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
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

/// Starts the server of a session as it was given, and sends the messages.
fn start(servers: &Value, messages: &[Value]) -> Result<(Child, Receiver<Value>), String> {
    let server = servers.as_array().into_iter().flatten().find(|server| server["name"] == SERVER);
    let server = server.ok_or_else(|| format!("there is no server {SERVER}"))?;
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
    /// Calls a tool, and returns its result or error. A cancel ends the call.
    pub(super) fn call_session_tool(
        &mut self,
        session: &str,
        tool: &str,
        arguments: &Value,
    ) -> Result<String, Exit> {
        let servers = self.servers.get(session).cloned().unwrap_or_default();
        let (mut child, lines) = match start(&servers, &messages(tool, arguments)) {
            Ok(started) => started,
            Err(why) => return Ok(format!("{tool}: {why}")),
        };
        let answer = loop {
            match lines.try_recv() {
                Ok(answer) if answer["id"] == 2 => break answer,
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
