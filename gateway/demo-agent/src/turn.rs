//! One turn of the demo agent: its remaining steps, and the event it waits for.

use super::DemoSession;
use super::memory::{ANSWER_BYTES_MAX, TranscriptLine, TranscriptStore};
use super::script::{ScriptStep, chunk, steps};
use super::wire::AcpWriter;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

/// State of a turn after a burst of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnProgress {
    /// The turn has more steps, now or later.
    Running,
    /// The turn has ended and was answered.
    Ended,
    /// The process must exit.
    Crashed,
}

#[derive(Debug)]
enum TurnWait {
    /// Nothing: the next step can run.
    None,
    /// A point in time.
    Until(Instant),
    /// The answer to a permission request.
    Answer { request: u64, tool: String, then: Option<ScriptStep> },
}

/// What the steps of a turn use.
pub struct TurnContext<'a> {
    /// Session of the turn.
    pub session: &'a mut DemoSession,
    /// Storage of the conversation.
    pub memory: &'a TranscriptStore,
    /// Output to the client.
    pub wire: &'a mut AcpWriter,
    /// Id of the next request to the client.
    pub next_request: &'a mut u64,
}

/// A turn.
#[derive(Debug)]
pub struct DemoTurn {
    /// Session of the turn.
    pub session: String,
    /// Id of the `session/prompt` request, as raw JSON.
    id: String,
    steps: VecDeque<ScriptStep>,
    wait: TurnWait,
    cancelled: bool,
    /// Outcome of the answered permission request.
    outcome: Option<Option<Value>>,
    said: String,
    said_bytes: u64,
    tools: u64,
    prompt_bytes: u64,
    scratch: Vec<u8>,
}

impl DemoTurn {
    /// Creates the turn of a prompt; `id` is JSON.
    pub fn new(id: &str, session: &str, prompt: &str) -> Self {
        Self {
            session: session.to_owned(),
            id: id.to_owned(),
            steps: steps(prompt),
            wait: TurnWait::None,
            cancelled: false,
            outcome: None,
            said: String::new(),
            said_bytes: 0,
            tools: 0,
            prompt_bytes: prompt.len() as u64,
            scratch: Vec::new(),
        }
    }

    /// Cancels the turn: the next `advance` ends it.
    pub fn cancel(&mut self) {
        self.cancelled = true;
    }

    /// Adds text to the running turn.
    pub fn steer(&mut self, text: &str) {
        self.steps.push_front(ScriptStep::Text(format!("[steered: {text}]\n")));
    }

    /// Takes a response of the client if it answers this turn's permission request.
    pub fn answered(&mut self, id: &str, result: Option<&Value>) {
        if let TurnWait::Answer { request, .. } = &self.wait
            && id == request.to_string()
        {
            self.outcome = Some(result.cloned());
        }
    }

    /// True if the turn can advance now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.cancelled
            || match &self.wait {
                TurnWait::None => true,
                TurnWait::Until(at) => *at <= now,
                TurnWait::Answer { .. } => self.outcome.is_some(),
            }
    }

    /// Returns the end of a timed wait; `None` if the turn is due, or waits for an answer.
    pub fn wakes_at(&self) -> Option<Instant> {
        match &self.wait {
            TurnWait::Until(at) => Some(*at),
            TurnWait::None | TurnWait::Answer { .. } => None,
        }
    }

    /// Runs up to `burst` steps.
    pub fn advance(&mut self, burst: usize, at: &mut TurnContext<'_>) -> io::Result<TurnProgress> {
        for _ in 0..burst {
            if !self.is_due(Instant::now()) {
                return Ok(TurnProgress::Running);
            }
            if self.cancelled {
                return self.end("cancelled", at);
            }
            if let TurnWait::Answer { tool, then, .. } = std::mem::replace(&mut self.wait, TurnWait::None) {
                let outcome = self.outcome.take().flatten().unwrap_or(Value::Null);
                self.settled(&tool, then, &outcome, at)?;
                continue;
            }
            let Some(step) = self.steps.pop_front() else {
                return self.end("end_turn", at);
            };
            if step == ScriptStep::Crash {
                return Ok(TurnProgress::Crashed);
            }
            self.step(step, at)?;
        }
        Ok(TurnProgress::Running)
    }

    fn step(&mut self, step: ScriptStep, at: &mut TurnContext<'_>) -> io::Result<()> {
        let wire = &mut *at.wire;
        match step {
            ScriptStep::Text(text) => self.say(&text, wire),
            ScriptStep::Thought(text) => wire.chunk(&self.session, "agent_thought_chunk", &text),
            ScriptStep::Stream { next, total, pace_ms, bytes } => {
                self.scratch.clear();
                chunk(next, bytes, &mut self.scratch);
                wire.plain_chunk(&self.session, &self.scratch)?;
                self.said_bytes += self.scratch.len() as u64 + 1;
                if next < total {
                    self.steps.push_front(ScriptStep::Stream { next: next + 1, total, pace_ms, bytes });
                    if pace_ms > 0 {
                        self.wait = TurnWait::Until(Instant::now() + Duration::from_millis(pace_ms));
                    }
                }
                Ok(())
            }
            ScriptStep::Plan => self.plan(wire),
            ScriptStep::Tool => {
                let tool = self.call("Look around", "search", &json!({"pattern": "demo"}), wire)?;
                self.tool_status(&tool, "in_progress", wire)?;
                self.tool_status(&tool, "completed", wire)
            }
            ScriptStep::Permission => self.ask("Do something that needs a permission", None, at),
            ScriptStep::Write { file, text } => {
                let title = format!("Write {file}");
                self.ask(&title, Some(ScriptStep::Write { file, text }), at)
            }
            ScriptStep::Pause { ms } => {
                self.wait = TurnWait::Until(Instant::now() + Duration::from_millis(ms));
                Ok(())
            }
            // Handled by `advance`.
            ScriptStep::Crash => Ok(()),
        }
    }

    fn say(&mut self, text: &str, wire: &mut AcpWriter) -> io::Result<()> {
        if self.said.len() + text.len() <= ANSWER_BYTES_MAX {
            self.said.push_str(text);
        }
        self.said_bytes += text.len() as u64;
        wire.chunk(&self.session, "agent_message_chunk", text)
    }

    fn plan(&mut self, wire: &mut AcpWriter) -> io::Result<()> {
        let entries = ["Read the prompt", "Do what it says", "Say that it is done"];
        for done in 0..=entries.len() {
            let entries: Vec<Value> = entries
                .iter()
                .enumerate()
                .map(|(at, content)| {
                    let status = match at.cmp(&done) {
                        std::cmp::Ordering::Less => "completed",
                        std::cmp::Ordering::Equal => "in_progress",
                        std::cmp::Ordering::Greater => "pending",
                    };
                    json!({"content": content, "priority": "medium", "status": status})
                })
                .collect();
            wire.update(&self.session, &json!({"sessionUpdate": "plan", "entries": entries}))?;
        }
        Ok(())
    }

    fn call(&mut self, title: &str, kind: &str, input: &Value, wire: &mut AcpWriter) -> io::Result<String> {
        self.tools += 1;
        let tool = format!("tool-{}", self.tools);
        let update = json!({
            "sessionUpdate": "tool_call", "toolCallId": tool, "title": title, "kind": kind,
            "status": "pending", "rawInput": input,
        });
        wire.update(&self.session, &update)?;
        Ok(tool)
    }

    fn tool_status(&mut self, tool: &str, status: &str, wire: &mut AcpWriter) -> io::Result<()> {
        let update = json!({"sessionUpdate": "tool_call_update", "toolCallId": tool, "status": status});
        wire.update(&self.session, &update)
    }

    fn ask(&mut self, title: &str, then: Option<ScriptStep>, at: &mut TurnContext<'_>) -> io::Result<()> {
        let input = match &then {
            Some(ScriptStep::Write { file, text }) => json!({"path": file, "content": text}),
            _ => json!({}),
        };
        let tool = self.call(title, "edit", &input, at.wire)?;
        if at.session.mode == "auto" || at.session.allow_always {
            let allowed = json!({"outcome": {"outcome": "selected", "optionId": "allow-once"}});
            return self.settled(&tool, then, &allowed, at);
        }
        let request = *at.next_request;
        *at.next_request += 1;
        // The permission request shows the change to make.
        let content: Vec<Value> = match &then {
            Some(ScriptStep::Write { file, text }) => {
                change(&at.session.cwd, file, text).map(|(_, diff)| diff).into_iter().collect()
            }
            _ => Vec::new(),
        };
        let params = json!({
            "sessionId": self.session,
            "toolCall": {
                "toolCallId": tool, "title": title, "kind": "edit", "status": "pending", "rawInput": input,
                "content": content,
            },
            "options": [
                {"optionId": "allow-once", "name": "Allow", "kind": "allow_once"},
                {"optionId": "allow-always", "name": "Allow from now on", "kind": "allow_always"},
                {"optionId": "reject-once", "name": "Reject", "kind": "reject_once"},
            ],
        });
        at.wire.request(request, "session/request_permission", &params)?;
        self.wait = TurnWait::Answer { request, tool, then };
        Ok(())
    }

    /// Continues after the answer to a permission request.
    fn settled(
        &mut self,
        tool: &str,
        then: Option<ScriptStep>,
        result: &Value,
        TurnContext { session, wire, .. }: &mut TurnContext<'_>,
    ) -> io::Result<()> {
        let option = result.pointer("/outcome/optionId").and_then(Value::as_str).unwrap_or("cancelled");
        session.allow_always |= option == "allow-always";
        if !option.starts_with("allow") {
            self.tool_status(tool, "failed", wire)?;
            return self.say(&format!("Not allowed ({option}).\n"), wire);
        }
        let text = match then {
            Some(ScriptStep::Write { file, text }) => match write(&session.cwd, &file, &text) {
                Ok(diff) => {
                    let update = json!({
                        "sessionUpdate": "tool_call_update", "toolCallId": tool, "status": "completed",
                        "content": [diff],
                    });
                    wire.update(&self.session, &update)?;
                    format!("Wrote {file}.\n")
                }
                Err(error) => {
                    self.tool_status(tool, "failed", wire)?;
                    format!("Could not write {file}: {error}.\n")
                }
            },
            _ => {
                self.tool_status(tool, "completed", wire)?;
                format!("Allowed ({option}).\n")
            }
        };
        self.say(&text, wire)
    }

    fn end(&mut self, reason: &str, at: &mut TurnContext<'_>) -> io::Result<TurnProgress> {
        let said = TranscriptLine::Agent { text: std::mem::take(&mut self.said) };
        // A failure to save the conversation shows up with the next prompt.
        let _ = at.memory.append(&self.session, &said);
        let (input, output) = (self.prompt_bytes.div_ceil(4), self.said_bytes.div_ceil(4));
        let usage = json!({"inputTokens": input, "outputTokens": output, "totalTokens": input + output});
        at.wire.result(&self.id, &json!({"stopReason": reason, "usage": usage}))?;
        Ok(TurnProgress::Ended)
    }
}

/// Writes a file in the working directory, and nowhere else. Returns the change as an ACP diff.
fn write(cwd: &Path, file: &str, text: &str) -> io::Result<Value> {
    let (path, diff) = change(cwd, file, text)?;
    std::fs::write(&path, text)?;
    Ok(diff)
}

/// Returns the path of the file and the diff that a write would make.
fn change(cwd: &Path, file: &str, text: &str) -> io::Result<(PathBuf, Value)> {
    let path = Path::new(file);
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the path must be inside the working directory",
        ));
    }
    let path = cwd.join(path);
    let old = std::fs::read_to_string(&path).ok();
    let diff = json!({"type": "diff", "path": path, "oldText": old, "newText": text});
    Ok((path, diff))
}
