//! A direct client of an agent over its pipes, without a gateway; serves as the reference for comparisons.

use crate::cli::RunningCommand;
use serde_json::{Value, json};
use std::io::Write as _;
use std::process::{ChildStdin, Command};
use std::time::Duration;

/// Answers a request of the agent with a result, or `None` for "method not found".
pub type Answer<'a> = dyn FnMut(&Value) -> Option<Value> + 'a;

/// A client of one agent process.
#[derive(Debug)]
pub struct Stdio {
    process: RunningCommand,
    stdin: ChildStdin,
    next_id: u64,
    deadline: Duration,
}

impl Stdio {
    /// Starts the agent; each wait for one of its lines is limited to `deadline`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(command: &mut Command, deadline: Duration) -> Self {
        let (process, stdin) = RunningCommand::start_piped(command);
        Self { process, stdin, next_id: 1, deadline }
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    fn write(&mut self, message: &Value) {
        let line = format!("{message}\n");
        let written = self.stdin.write_all(line.as_bytes()).and_then(|()| self.stdin.flush());
        written.unwrap_or_else(|e| panic!("the agent does not read {message}: {e}"));
    }

    /// Sends a notification.
    ///
    /// # Panics
    /// When the agent does not read.
    pub fn notify(&mut self, method: &str, params: &Value) {
        self.write(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Sends a request and returns its id.
    ///
    /// # Panics
    /// When the agent does not read.
    pub fn request(&mut self, method: &str, params: &Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// The next message of the agent.
    ///
    /// # Panics
    /// When the agent exits, sends nothing in time or sends a line that is not JSON.
    #[must_use]
    pub fn next_message(&mut self) -> Value {
        self.process.event(self.deadline).unwrap_or_else(|| panic!("the agent exited: {:?}", self.process))
    }

    /// Reads until the response to a request arrives. Returns its result and the notifications before it;
    /// requests of the agent are answered with `answer` meanwhile.
    ///
    /// # Panics
    /// When the response is an error, or none arrives.
    pub fn result(&mut self, id: u64, answer: &mut Answer<'_>) -> (Value, Vec<Value>) {
        let mut notifications = Vec::new();
        loop {
            let message = self.next_message();
            match (message.get("id"), message.get("method")) {
                (Some(request), Some(_)) => {
                    let reply = match answer(&message) {
                        Some(result) => json!({"jsonrpc": "2.0", "id": request, "result": result}),
                        None => {
                            let error = json!({"code": -32601, "message": "method not found"});
                            json!({"jsonrpc": "2.0", "id": request, "error": error})
                        }
                    };
                    self.write(&reply);
                }
                (Some(reply), None) if *reply == id => {
                    assert!(message.get("error").is_none(), "request {id} failed: {message}");
                    return (message["result"].clone(), notifications);
                }
                _ => notifications.push(message),
            }
        }
    }

    /// Sends a request and returns its result; requests of the agent get "method not found".
    ///
    /// # Panics
    /// As [`Stdio::result`].
    pub fn call(&mut self, method: &str, params: &Value) -> Value {
        let id = self.request(method, params);
        self.result(id, &mut |_| None).0
    }
}

/// Concatenated message text of the agent in these notifications.
#[must_use]
pub fn message_text(notifications: &[Value]) -> String {
    let updates = notifications.iter().map(|message| &message["params"]["update"]);
    let chunks = updates.filter(|update| update["sessionUpdate"] == "agent_message_chunk");
    chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
}
