//! A deterministic ACP agent inside this program: for a first run without credentials, for tests, and for
//! benchmarks. JSON-RPC lines on standard input and output; one thread processes and writes, one reads.

pub mod memory;
pub mod script;
pub mod turn;
pub mod wire;

use memory::{TranscriptLine, TranscriptStore};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::Instant;
use turn::{DemoTurn, TurnContext, TurnProgress};
use wire::{AcpWriter, Incoming};

/// Maximum number of buffered input lines.
const LINES_MAX: usize = 64;
/// Maximum length of an input line, in bytes.
const LINE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Maximum number of steps of one turn between two checks of the input.
const BURST: usize = 128;
/// Exit code of the `crash` directive.
const CRASHED: u8 = 70;

/// Conversation that is open in this process.
pub struct DemoSession {
    /// Working directory.
    pub cwd: PathBuf,
    /// Mode: `ask` or `auto`.
    pub mode: String,
    /// True after an "allow always" answer.
    pub allow_always: bool,
}

struct DemoAgent {
    wire: AcpWriter,
    memory: TranscriptStore,
    sessions: BTreeMap<String, DemoSession>,
    turns: Vec<DemoTurn>,
    next_request: u64,
}

/// Runs the agent until its input ends. Conversations are stored in the state directory, or else in the
/// default one.
pub fn main(state_dir: Option<&Path>) -> ExitCode {
    let dir = state_dir.map_or_else(default_dir, |dir| dir.join("demo-agent"));
    let (sender, lines) = sync_channel(LINES_MAX);
    // The thread ends with the process, or at the end of its input.
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        loop {
            let mut line = Vec::new();
            match io::Read::take(&mut input, LINE_BYTES_MAX).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if sender.send(line).is_err() => return,
                Ok(_) => {}
            }
        }
    });
    let mut agent = DemoAgent {
        wire: AcpWriter::stdout(),
        memory: TranscriptStore::new(&dir),
        sessions: BTreeMap::new(),
        turns: Vec::new(),
        next_request: 0,
    };
    match agent.run(&lines) {
        Ok(code) => code,
        // The reader of standard output is gone.
        Err(_) => ExitCode::SUCCESS,
    }
}

fn default_dir() -> PathBuf {
    let var = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let base = var("XDG_STATE_HOME").or_else(|| Some(var("HOME")?.join(".local/state")));
    base.map_or_else(
        || std::env::temp_dir().join("acp-host-demo-agent"),
        |base| base.join("acp-host/demo-agent"),
    )
}

impl DemoAgent {
    /// Processes input as it arrives and advances turns in between. Output is flushed before any wait.
    fn run(&mut self, lines: &Receiver<Vec<u8>>) -> io::Result<ExitCode> {
        loop {
            match self.next_line(lines)? {
                Some(line) => self.line(&line)?,
                None => {
                    self.wire.flush()?;
                    return Ok(ExitCode::SUCCESS);
                }
            }
            for mut turn in std::mem::take(&mut self.turns) {
                let Some(session) = self.sessions.get_mut(&turn.session) else { continue };
                let (memory, wire, next_request) = (&self.memory, &mut self.wire, &mut self.next_request);
                match turn.advance(BURST, &mut TurnContext { session, memory, wire, next_request })? {
                    TurnProgress::Running => self.turns.push(turn),
                    TurnProgress::Ended => {}
                    TurnProgress::Crashed => {
                        self.wire.flush()?;
                        return Ok(ExitCode::from(CRASHED));
                    }
                }
            }
        }
    }

    /// Returns the next line, or an empty one if a turn can advance first. `None` at the end of input.
    fn next_line(&mut self, lines: &Receiver<Vec<u8>>) -> io::Result<Option<Vec<u8>>> {
        match lines.try_recv() {
            Ok(line) => return Ok(Some(line)),
            Err(TryRecvError::Disconnected) => return Ok(None),
            Err(TryRecvError::Empty) => {}
        }
        let now = Instant::now();
        if self.turns.iter().any(|turn| turn.is_due(now)) {
            return Ok(Some(Vec::new()));
        }
        self.wire.flush()?;
        match self.turns.iter().filter_map(DemoTurn::wakes_at).min() {
            None => Ok(lines.recv().ok()),
            Some(at) => match lines.recv_timeout(at.saturating_duration_since(now)) {
                Ok(line) => Ok(Some(line)),
                Err(RecvTimeoutError::Timeout) => Ok(Some(Vec::new())),
                Err(RecvTimeoutError::Disconnected) => Ok(None),
            },
        }
    }

    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let object = line.trim_ascii_start().starts_with(b"{");
        let parsed = serde_json::from_slice::<Incoming<'_>>(line).ok().filter(|_| object);
        let Some(incoming) = parsed else {
            return self.wire.error("null", -32700, "not a JSON-RPC message");
        };
        let params: Value =
            incoming.params.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or(Value::Null);
        match (incoming.method.as_deref(), incoming.id) {
            (Some(method), Some(id)) => self.request(method, id.get(), &params),
            (Some("session/cancel"), None) => {
                for turn in self.turns.iter_mut().filter(|turn| params["sessionId"] == turn.session.as_str())
                {
                    turn.cancel();
                }
                Ok(())
            }
            // Other notifications are ignored.
            (Some(_), None) | (None, None) => Ok(()),
            (None, Some(id)) => {
                let outcome = incoming.result.and_then(|raw| serde_json::from_str(raw.get()).ok());
                for turn in &mut self.turns {
                    turn.answered(id.get(), outcome.as_ref());
                }
                Ok(())
            }
        }
    }

    fn request(&mut self, method: &str, id: &str, params: &Value) -> io::Result<()> {
        let session = params["sessionId"].as_str().unwrap_or_default();
        match method {
            "initialize" => self.wire.result(id, &initialized()),
            "authenticate" | "session/close" => {
                self.sessions.remove(session);
                self.wire.result(id, &json!({}))
            }
            "session/new" => self.new_session(id, params),
            "session/load" => self.open(id, session, params, true),
            "session/resume" => self.open(id, session, params, false),
            "session/list" => {
                let sessions = self.memory.list();
                let sessions: Vec<Value> = sessions
                    .into_iter()
                    .filter(|(_, cwd)| params["cwd"].as_str().is_none_or(|wanted| wanted == cwd))
                    .map(|(id, cwd)| json!({"sessionId": id, "cwd": cwd}))
                    .collect();
                self.wire.result(id, &json!({"sessions": sessions}))
            }
            "session/set_mode" => self.set_mode(id, session, params),
            "session/prompt" => self.prompt(id, session, params),
            "_session/steering" => self.steer(id, session, params),
            _ => self.wire.error(id, -32601, &format!("unknown method {method}")),
        }
    }

    fn new_session(&mut self, id: &str, params: &Value) -> io::Result<()> {
        let Some(cwd) = params["cwd"].as_str().filter(|cwd| cwd.starts_with('/')) else {
            return self.wire.error(id, -32602, "cwd must be an absolute path");
        };
        let session = format!("demo-{}", uuid::Uuid::now_v7().simple());
        if let Err(error) = self.memory.append(&session, &TranscriptLine::Session { cwd: cwd.to_owned() }) {
            return self.wire.error(id, -32603, &format!("cannot store the conversation: {error}"));
        }
        self.insert(&session, cwd);
        self.wire.result(id, &json!({"sessionId": session, "modes": modes()}))
    }

    fn insert(&mut self, session: &str, cwd: &str) {
        let opened = DemoSession { cwd: PathBuf::from(cwd), mode: "ask".to_owned(), allow_always: false };
        self.sessions.insert(session.to_owned(), opened);
    }

    fn open(&mut self, id: &str, session: &str, params: &Value, replay: bool) -> io::Result<()> {
        let Some(lines) = self.memory.read(session) else {
            return self.wire.error(id, -32002, "unknown session");
        };
        let kept = lines.iter().find_map(|line| match line {
            TranscriptLine::Session { cwd } => Some(cwd.as_str()),
            TranscriptLine::User { .. } | TranscriptLine::Agent { .. } => None,
        });
        let cwd = params["cwd"].as_str().or(kept).unwrap_or("/").to_owned();
        if replay {
            for line in &lines {
                match line {
                    TranscriptLine::Session { .. } => {}
                    TranscriptLine::User { text } => self.wire.chunk(session, "user_message_chunk", text)?,
                    TranscriptLine::Agent { text } => {
                        self.wire.chunk(session, "agent_message_chunk", text)?
                    }
                }
            }
        }
        self.insert(session, &cwd);
        self.wire.result(id, &json!({"modes": modes()}))
    }

    fn set_mode(&mut self, id: &str, session: &str, params: &Value) -> io::Result<()> {
        let Some(open) = self.sessions.get_mut(session) else {
            return self.wire.error(id, -32002, "unknown session");
        };
        match params["modeId"].as_str() {
            Some(mode @ ("ask" | "auto")) => {
                mode.clone_into(&mut open.mode);
                self.wire.update(
                    session,
                    &json!({"sessionUpdate": "current_mode_update", "currentModeId": mode}),
                )?;
                self.wire.result(id, &json!({}))
            }
            _ => self.wire.error(id, -32602, "unknown mode; available: ask, auto"),
        }
    }

    fn prompt(&mut self, id: &str, session: &str, params: &Value) -> io::Result<()> {
        if !self.sessions.contains_key(session) {
            return self.wire.error(id, -32002, "unknown session");
        }
        if self.turns.iter().any(|turn| turn.session == session) {
            return self.wire.error(id, -32600, "a turn is already running");
        }
        let text = prompt_text(params);
        if let Err(error) = self.memory.append(session, &TranscriptLine::User { text: text.clone() }) {
            return self.wire.error(id, -32603, &format!("cannot store the conversation: {error}"));
        }
        self.turns.push(DemoTurn::new(id, session, &text));
        Ok(())
    }

    fn steer(&mut self, id: &str, session: &str, params: &Value) -> io::Result<()> {
        let text = prompt_text(params);
        let outcome = match self.turns.iter_mut().find(|turn| turn.session == session) {
            Some(turn) => {
                turn.steer(&text);
                "injected"
            }
            None => "promptRequired",
        };
        self.wire.result(id, &json!({"outcome": outcome}))
    }
}

fn prompt_text(params: &Value) -> String {
    let blocks = params["prompt"].as_array().map(Vec::as_slice).unwrap_or_default();
    let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
    texts.join("\n")
}

fn initialized() -> Value {
    json!({
        "protocolVersion": 1,
        "agentInfo": {"name": "acp-host-demo", "title": "Demo agent", "version": env!("CARGO_PKG_VERSION")},
        "agentCapabilities": {
            "loadSession": true,
            "promptCapabilities": {"image": false, "audio": false, "embeddedContext": false},
            "sessionCapabilities": {"resume": {}, "list": {}, "close": {}},
            "_meta": {"steering": {"supported": true}},
        },
        "authMethods": [],
    })
}

/// Modes of a session that was just opened.
fn modes() -> Value {
    json!({
        "currentModeId": "ask",
        "availableModes": [
            {"id": "ask", "name": "Ask", "description": "Asks before it does anything"},
            {"id": "auto", "name": "Automatic", "description": "Does everything without asking"},
        ],
    })
}
