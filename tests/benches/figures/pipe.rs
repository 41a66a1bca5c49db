//! The agent on a raw pipe, read by one thread as fast as possible: the baseline of every pair.

use crate::turn::{Dialect, Turn, Watch};
use acp_testkit::processes::KillOnDrop;
use acp_tests::world::World;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// An agent process with an open session.
#[derive(Debug)]
pub(crate) struct Pipe {
    _child: KillOnDrop,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    line: String,
    session: String,
    next_id: u64,
}

impl Pipe {
    /// Starts the demo agent and opens a session in `cwd`, a directory of the world.
    ///
    /// # Panics
    /// When that fails.
    pub(crate) fn start(world: &World, cwd: &str) -> Self {
        let mut command = world.command("acp-gateway");
        command.arg("demo-agent").arg("--state-dir").arg(world.dir("raw"));
        Self::of(command, &world.dir(cwd))
    }

    /// Starts an agent and opens a session in `cwd`.
    ///
    /// # Panics
    /// When that fails.
    pub(crate) fn of(mut command: Command, cwd: &Path) -> Self {
        command.current_dir(cwd);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child =
            KillOnDrop(command.spawn().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}")));
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            panic!("the agent has no pipes")
        };
        let stdout = BufReader::with_capacity(64 * 1024, stdout);
        let (line, session) = (String::new(), String::new());
        let mut pipe = Self { _child: child, stdin, stdout, line, session, next_id: 1 };
        pipe.call("initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
        let made = pipe.call("session/new", &json!({"cwd": cwd, "mcpServers": []}));
        pipe.session =
            made["sessionId"].as_str().unwrap_or_else(|| panic!("no sessionId: {made}")).to_owned();
        pipe
    }

    /// Runs a turn to its end.
    ///
    /// # Panics
    /// When the agent ends, or the turn fails.
    pub(crate) fn prompt(&mut self, text: &str) -> Turn {
        self.follow(text, |_| {})
    }

    /// Runs a turn to its end; calls `on` with each line as it arrives.
    ///
    /// # Panics
    /// As [`Pipe::prompt`].
    pub(crate) fn follow(&mut self, text: &str, mut on: impl FnMut(&str)) -> Turn {
        let params = json!({"sessionId": self.session, "prompt": [{"type": "text", "text": text}]});
        let mut watch = Watch::begin(Dialect::Acp);
        self.request("session/prompt", &params);
        loop {
            self.read();
            on(&self.line);
            if let Some(turn) = watch.line(&self.line) {
                return turn;
            }
        }
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        let id = self.request(method, params);
        loop {
            self.read();
            let message: Value =
                serde_json::from_str(&self.line).unwrap_or_else(|e| panic!("not JSON ({e}): {}", self.line));
            if message["id"] == id && message.get("method").is_none() {
                assert!(message.get("error").is_none(), "{method} failed: {message}");
                return message["result"].clone();
            }
        }
    }

    fn request(&mut self, method: &str, params: &Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let line = format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        self.stdin.write_all(line.as_bytes()).unwrap_or_else(|e| panic!("the agent does not read: {e}"));
        id
    }

    fn read(&mut self) {
        self.line.clear();
        let read =
            self.stdout.read_line(&mut self.line).unwrap_or_else(|e| panic!("the agent's output: {e}"));
        assert!(read > 0, "the agent exited");
    }
}
