//! One turn: executes a script.

use super::agent::{Agent, Exit, Prompt};
use super::messages::{self, OPTIONS};
use super::requests::Answer;
use super::script::{self, Directive, Script};
use super::session::{HistoryEntry, MODES};
use super::{chunk_text, now_ns, outlet, process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Polling interval of a running tool.
const TOOL_POLL_MS: u64 = 5;
/// Kind of the update with a piece of the answer.
const MESSAGE: &str = "agent_message_chunk";
/// Maximum output that a terminal keeps, in bytes.
const TERMINAL_BYTES_MAX: u64 = 1024 * 1024;

/// How a turn ends.
enum End {
    Stop(String),
    Error(i64, String, Option<Value>),
    /// The prompt is never answered.
    Silence,
}

/// Result of a directive.
enum Next {
    Go,
    End(End),
}

/// A running turn.
struct Turn {
    session: String,
    cwd: PathBuf,
    said: String,
    late_update: bool,
    /// Names of permission options in this turn, by kind.
    option_names: BTreeMap<String, String>,
}

impl Agent {
    /// Executes a prompt and answers it.
    pub(crate) fn take_turn(&mut self, prompt: Prompt) -> Result<(), Exit> {
        let Some(session) = self.sessions.get(&prompt.session) else {
            let what = "the session was closed";
            return self.send(&messages::error(&prompt.id, -32002, what));
        };
        let mut turn = Turn {
            session: prompt.session.clone(),
            cwd: session.cwd.clone(),
            said: String::new(),
            late_update: false,
            option_names: BTreeMap::new(),
        };
        self.turn = Some((prompt.session.clone(), prompt.cancelled));
        let script = script::parse(&prompt.text);
        let end = match script {
            Err(e) => End::Error(-32602, e.to_string(), None),
            Ok(Script::Plain(text)) => {
                self.say(&mut turn, &format!("echo: {text}"))?;
                End::Stop("end_turn".to_owned())
            }
            Ok(Script::Steps(steps)) => self.follow(&mut turn, &steps)?,
        };
        let cancelled = self.is_cancelled();
        if let Err(e) = self.sessions.change(&turn.session, |session| {
            session.history.push(HistoryEntry { by_user: false, text: std::mem::take(&mut turn.said) });
        }) {
            self.log_trouble(&format!("cannot store the session: {e}"));
        }
        let outcome = match &end {
            End::Stop(_) if cancelled => "cancelled".to_owned(),
            End::Stop(reason) => reason.clone(),
            End::Error(code, ..) => format!("error {code}"),
            End::Silence => "silence".to_owned(),
        };
        self.log.event("turn_end", json!({"session": turn.session, "outcome": outcome}));
        match end {
            // The session stays busy: the end of the turn is never reported.
            End::Silence => return self.never_answer(),
            End::Stop(_) => self.send(&messages::stop(&prompt.id, &outcome, self.flags.usage))?,
            End::Error(code, what, data) => {
                let mut error = messages::error(&prompt.id, code, &what);
                if let Some(data) = data {
                    error["error"]["data"] = data;
                }
                self.send(&error)?;
            }
        }
        if turn.late_update {
            self.update(&turn.session, usage())?;
        }
        self.turn = None;
        Ok(())
    }

    fn never_answer(&mut self) -> Result<(), Exit> {
        loop {
            self.handle_next_line(None)?;
        }
    }

    fn follow(&mut self, turn: &mut Turn, steps: &[Directive]) -> Result<End, Exit> {
        for step in steps {
            // Messages that the client sent in the meantime are handled before each step.
            self.handle_next_line(Some(Instant::now()))?;
            if self.is_cancelled() && *step != Directive::NoReply {
                break;
            }
            if let Next::End(end) = self.perform(turn, step)? {
                return Ok(end);
            }
        }
        Ok(End::Stop("end_turn".to_owned()))
    }

    fn perform(&mut self, turn: &mut Turn, step: &Directive) -> Result<Next, Exit> {
        match step {
            Directive::Say(text) => self.say(turn, text)?,
            Directive::Chunks { count, pace_ms, size } => self.chunks(turn, *count, *pace_ms, *size)?,
            Directive::Stamps { count, pace_ms } => self.stamps(turn, *count, *pace_ms)?,
            Directive::Thought(text) => {
                self.update(&turn.session, messages::chunk("agent_thought_chunk", text))?;
            }
            Directive::Plan(entries) => self.update(&turn.session, plan(entries))?,
            Directive::Mode(mode) => {
                let update = json!({"sessionUpdate": "current_mode_update", "currentModeId": mode});
                self.update(&turn.session, update)?;
            }
            Directive::ToolWrite { path, text } => self.tool_write(turn, path, text)?,
            Directive::ToolRun { command } => self.tool_run(turn, command)?,
            Directive::AskWrite { path, text } => self.ask_write(turn, path, text)?,
            Directive::AskRun { command } => self.ask_run(turn, command)?,
            Directive::Permission { title, announced } => self.permission(turn, title, *announced)?,
            Directive::Elicit(asked) => {
                let mut params = asked.clone();
                params["sessionId"] = json!(turn.session);
                self.ask_and_say(turn, "elicit", "elicitation/create", params, |result| {
                    let content = result.get("content").map(|content| format!(" {content}"));
                    Some(format!("{}{}", result["action"].as_str()?, content.unwrap_or_default()))
                })?;
            }
            Directive::SessionTool { name, arguments } => {
                let said = self.call_session_tool(&turn.session, name, arguments)?;
                self.say(turn, &said)?;
            }
            Directive::PageComplete(id) => {
                let params = json!({"elicitationId": id});
                self.send(&messages::notification("elicitation/complete", params))?;
            }
            Directive::FsRead { path } => {
                let params = json!({"sessionId": turn.session, "path": turn.cwd.join(path)});
                self.ask_and_say(turn, "fs_read", "fs/read_text_file", params, |result| {
                    result["content"].as_str().map(str::to_owned)
                })?;
            }
            Directive::FsWrite { path, text } => {
                let params = json!({"sessionId": turn.session, "path": turn.cwd.join(path), "content": text});
                self.ask_and_say(turn, "fs_write", "fs/write_text_file", params, |_| Some("ok".to_owned()))?;
            }
            Directive::Terminals { count, command } => self.terminals(turn, *count, command)?,
            Directive::Terminal { command, kill } => self.terminal(turn, command, *kill)?,
            Directive::ExtRequest(name) => {
                let params = json!({"sessionId": turn.session});
                let label = format!("ext_request {name}");
                self.ask_and_say(turn, &label, name, params, |result| Some(result.to_string()))?;
            }
            Directive::ExtNotify(name) => {
                self.send(&messages::notification(name, json!({"sessionId": turn.session})))?;
            }
            Directive::LongLine { bytes } => self.send(&messages::long_line(&turn.session, *bytes))?,
            Directive::EndlessLine { bytes } => outlet::endless_line(*bytes).map_err(|_| Exit(1))?,
            Directive::Titles { count, bytes } => {
                for n in 0..*count {
                    let call = json!({"sessionUpdate": "tool_call", "toolCallId": format!("title-{n}"),
                        "title": "x".repeat(*bytes), "kind": "other", "status": "pending"});
                    self.update(&turn.session, call)?;
                }
            }
            Directive::Reads { .. } | Directive::Writes { .. } => self.flood(turn, step)?,
            Directive::UnknownUpdate => {
                let update = json!({"sessionUpdate": "fancy_new_thing", "fancy": {"deep": [1, 2.50, null]}});
                self.update(&turn.session, update)?;
            }
            Directive::BadJson => outlet::stdout_line("{this is no JSON").map_err(|_| Exit(1))?,
            Directive::OrphanReply => self.send(&messages::error(&Value::Null, -32700, "Parse error"))?,
            Directive::LateUpdate => turn.late_update = true,
            Directive::Stderr(text) => outlet::stderr_line(text),
            Directive::Sleep { ms } => self.pause(*ms)?,
            Directive::WaitCancel => {
                while !self.is_cancelled() {
                    self.handle_next_line(None)?;
                }
            }
            Directive::NoReply => return Ok(Next::End(End::Silence)),
            Directive::Stop(reason) => return Ok(Next::End(End::Stop(reason.clone()))),
            Directive::Error { code, message } => {
                return Ok(Next::End(End::Error(*code, message.clone(), None)));
            }
            Directive::ErrorData { code, data } => {
                let message = "Internal error".to_owned();
                return Ok(Next::End(End::Error(*code, message, Some(data.clone()))));
            }
            Directive::OptionName { kind, name } => {
                turn.option_names.insert(kind.clone(), name.clone());
            }
            Directive::BadUtf8 => {
                let line = messages::update(&turn.session, messages::chunk(MESSAGE, "cut @")).to_string();
                let (before, after) = line.split_once('@').unwrap_or_default();
                let line = [before.as_bytes(), b"\xf0\x9f\x98", after.as_bytes()].concat();
                outlet::stdout_bytes(&line).map_err(|_| Exit(1))?;
            }
            Directive::Raw(update) => {
                let line = messages::update(&turn.session, json!("@")).to_string().replace("\"@\"", update);
                outlet::stdout_line(&line).map_err(|_| Exit(1))?;
            }
            Directive::Exit(code) => return Err(Exit(*code)),
            Directive::Crash | Directive::IgnoreTerm | Directive::IgnoreEof => self.perform_fault(step),
            Directive::ForkChild => self.say_pid(turn, "child", process::fork_child())?,
            Directive::SpawnSetsid => self.say_pid(turn, "escaped", process::spawn_setsid())?,
        }
        Ok(Next::Go)
    }

    fn perform_fault(&mut self, step: &Directive) {
        match step {
            Directive::IgnoreTerm => process::block_sigterm(),
            Directive::IgnoreEof => self.ignore_eof = true,
            _ => {
                if let Err(e) = process::kill_self() {
                    self.log_trouble(&format!("cannot crash: {e}"));
                }
            }
        }
    }

    fn say(&mut self, turn: &mut Turn, text: &str) -> Result<(), Exit> {
        turn.said.push_str(text);
        self.update(&turn.session, messages::chunk(MESSAGE, text))
    }

    fn say_pid(&mut self, turn: &mut Turn, label: &str, pid: std::io::Result<u32>) -> Result<(), Exit> {
        match pid {
            Ok(pid) => self.say(turn, &format!("{label} {pid}")),
            Err(e) => self.say(turn, &format!("{label} error {e}")),
        }
    }

    fn chunks(&mut self, turn: &mut Turn, count: u64, pace_ms: u64, size: usize) -> Result<(), Exit> {
        for number in 1..=count {
            self.say(turn, &chunk_text(number, size))?;
            self.pause(if number < count { pace_ms } else { 0 })?;
            if self.is_cancelled() {
                break;
            }
        }
        Ok(())
    }

    fn stamps(&mut self, turn: &mut Turn, count: u64, pace_ms: u64) -> Result<(), Exit> {
        for _ in 0..count {
            self.pause(pace_ms)?;
            if self.is_cancelled() {
                break;
            }
            self.say(turn, &now_ns().to_string())?;
        }
        Ok(())
    }

    /// Sends a request and says its answer after a label; says nothing if the turn is cancelled first.
    fn ask_and_say(
        &mut self,
        turn: &mut Turn,
        label: &str,
        method: &str,
        params: Value,
        show: impl FnOnce(&Value) -> Option<String>,
    ) -> Result<(), Exit> {
        match self.ask(&turn.session, method, params)? {
            None => Ok(()),
            Some(Answer::Error(code)) => self.say(turn, &format!("{label}: error {code}")),
            Some(Answer::Result(result)) => match show(&result) {
                Some(text) => self.say(turn, &format!("{label}: {text}")),
                None => {
                    self.log.violation(&format!("{method} was answered with {result}"));
                    self.say(turn, &format!("{label}: malformed"))
                }
            },
        }
    }

    /// Sends many file requests at once and says the number of results.
    fn flood(&mut self, turn: &mut Turn, step: &Directive) -> Result<(), Exit> {
        let params = |path: &str| json!({"sessionId": turn.session, "path": turn.cwd.join(path)});
        match step {
            Directive::Reads { count, deaf_ms, path } => {
                let deaf = outlet::stop_reading();
                let ids = self.send_many(&turn.session, "fs/read_text_file", &params(path), *count)?;
                std::thread::sleep(Duration::from_millis(*deaf_ms));
                drop(deaf);
                self.say_results(turn, "reads", &ids)
            }
            Directive::Writes { count, bytes, path } => {
                let mut params = params(path);
                params["content"] = "x".repeat(*bytes).into();
                let ids = self.send_many(&turn.session, "fs/write_text_file", &params, *count)?;
                self.say_results(turn, "writes", &ids)
            }
            _ => Ok(()),
        }
    }

    /// Sends the same request `count` times and returns the ids.
    fn send_many(
        &mut self,
        session: &str,
        method: &str,
        params: &Value,
        count: usize,
    ) -> Result<Vec<Value>, Exit> {
        let mut ids = Vec::new();
        for _ in 0..count {
            let id = self.requests.begin(session, method);
            self.send(&messages::request(&id, method, params.clone()))?;
            ids.push(id);
        }
        Ok(ids)
    }

    /// Waits for the answers of requests and says the number of results after a label.
    fn say_results(&mut self, turn: &mut Turn, label: &str, ids: &[Value]) -> Result<(), Exit> {
        let mut results = 0;
        for id in ids {
            let answer = loop {
                match self.requests.take(id) {
                    Some(answer) => break answer,
                    None => self.handle_next_line(None)?,
                }
            };
            results += usize::from(matches!(answer, Answer::Result(_)));
        }
        self.say(turn, &format!("{label}: {results} of {}", ids.len()))
    }

    fn next_call(&mut self) -> String {
        self.calls += 1;
        format!("call-{}", self.calls)
    }

    fn announce(&mut self, turn: &Turn, kind: &str, title: &str, input: Value) -> Result<String, Exit> {
        let call = self.next_call();
        let update = json!({
            "sessionUpdate": "tool_call", "toolCallId": call, "title": title, "kind": kind,
            "status": "pending", "rawInput": input,
        });
        self.update(&turn.session, update)?;
        Ok(call)
    }

    fn progress(&self, turn: &Turn, call: &str, status: &str, content: Option<Value>) -> Result<(), Exit> {
        let mut update = json!({"sessionUpdate": "tool_call_update", "toolCallId": call, "status": status});
        if let Some(content) = content {
            update["content"] = content;
        }
        self.update(&turn.session, update)
    }

    fn tool_write(&mut self, turn: &Turn, path: &str, text: &str) -> Result<(), Exit> {
        let path = turn.cwd.join(path);
        let call =
            self.announce(turn, "edit", &format!("Write {}", path.display()), json!({"path": path}))?;
        self.progress(turn, &call, "in_progress", None)?;
        let old = std::fs::read_to_string(&path).ok();
        match std::fs::write(&path, text) {
            Ok(()) => {
                let diff = json!([{"type": "diff", "path": path, "oldText": old, "newText": text}]);
                self.progress(turn, &call, "completed", Some(diff))
            }
            Err(e) => self.progress(turn, &call, "failed", Some(messages::text_content(&e.to_string()))),
        }
    }

    /// Writes a file as Qwen Code does: a permission request with the diff, then the client's file system.
    fn ask_write(&mut self, turn: &mut Turn, path: &str, text: &str) -> Result<(), Exit> {
        let target = turn.cwd.join(path);
        let title = format!("Write {}", target.display());
        let call = self.announce(turn, "edit", &title, json!({}))?;
        let diff = json!([{"type": "diff", "path": target, "oldText": null, "newText": text}]);
        let asked = json!({"toolCallId": call, "title": title, "kind": "edit", "content": diff});
        if self.ask_permission(turn, &call, asked)? {
            let params = json!({"sessionId": turn.session, "path": target, "content": text});
            self.ask_and_say(turn, "fs_write", "fs/write_text_file", params, |_| Some("ok".to_owned()))?;
            self.progress(turn, &call, "completed", None)?;
        }
        Ok(())
    }

    /// Runs a command as Kimi Code does: a permission request with only the title `Bash`, then a terminal.
    fn ask_run(&mut self, turn: &mut Turn, command: &str) -> Result<(), Exit> {
        let call = self.announce(turn, "execute", "Bash", json!({"command": command}))?;
        let asked = json!({"toolCallId": call, "title": "Bash"});
        if self.ask_permission(turn, &call, asked)? {
            self.terminal(turn, command, false)?;
            self.progress(turn, &call, "completed", None)?;
        }
        Ok(())
    }

    /// Requests permission for a tool call and says the outcome; returns whether it is allowed.
    fn ask_permission(&mut self, turn: &mut Turn, call: &str, asked: Value) -> Result<bool, Exit> {
        let mut params = messages::permission(&turn.session, call, "", false, &turn.option_names);
        params["toolCall"] = asked;
        let (status, said) = self.decision(turn, params)?;
        if let Some(said) = said {
            self.say(turn, &format!("permission: {said}"))?;
        }
        if status == "failed" {
            self.progress(turn, call, status, None)?;
        }
        Ok(status == "completed")
    }

    fn tool_run(&mut self, turn: &Turn, command: &str) -> Result<(), Exit> {
        let call = self.announce(turn, "execute", command, json!({"command": command}))?;
        self.progress(turn, &call, "in_progress", None)?;
        let (status, text) = match self.run_to_end(turn, command)? {
            Ok((Some(0), output)) => ("completed", output),
            Ok((code, output)) => ("failed", format!("{output}exit {code:?}")),
            Err(e) => ("failed", e.to_string()),
        };
        self.progress(turn, &call, status, Some(messages::text_content(&text)))
    }

    /// Runs a command with its output in a file, so that no pipe has to be read while it runs.
    fn run_to_end(
        &mut self,
        turn: &Turn,
        command: &str,
    ) -> Result<std::io::Result<(Option<i32>, String)>, Exit> {
        let start = || {
            let output = tempfile::NamedTempFile::new()?;
            let child = Command::new("sh")
                .args(["-c", command])
                .current_dir(&turn.cwd)
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(output.reopen()?)
                .stderr(output.reopen()?)
                .spawn()?;
            Ok((output, child))
        };
        let (output, mut child) = match start() {
            Ok(started) => started,
            Err(e) => return Ok(Err(e)),
        };
        let status = loop {
            match child.try_wait() {
                Ok(None) if self.is_cancelled() => {
                    break process::kill_group(&child).and_then(|()| child.wait());
                }
                Ok(None) => {
                    self.handle_next_line(Some(Instant::now() + Duration::from_millis(TOOL_POLL_MS)))?
                }
                Ok(Some(status)) => break Ok(status),
                Err(e) => break Err(e),
            }
        };
        let read = |status: std::process::ExitStatus| {
            Ok((status.code(), String::from_utf8_lossy(&std::fs::read(output.path())?).into_owned()))
        };
        Ok(status.and_then(read))
    }

    fn permission(&mut self, turn: &mut Turn, title: &str, announced: bool) -> Result<(), Exit> {
        let [_, auto] = MODES;
        if self.sessions.get(&turn.session).is_some_and(|session| session.mode == auto) {
            return self.say(turn, "permission: auto");
        }
        let call =
            if announced { self.announce(turn, "execute", title, json!({}))? } else { self.next_call() };
        let params = messages::permission(&turn.session, &call, title, announced, &turn.option_names);
        let (status, said) = self.decision(turn, params)?;
        self.progress(turn, &call, status, None)?;
        match said {
            Some(said) => self.say(turn, &format!("permission: {said}")),
            None => Ok(()),
        }
    }

    /// Sends a permission request; returns the resulting status of the tool call and the outcome to say, if any.
    fn decision(&mut self, turn: &Turn, params: Value) -> Result<(&'static str, Option<String>), Exit> {
        Ok(match self.ask(&turn.session, "session/request_permission", params)? {
            None => ("failed", None),
            Some(Answer::Error(code)) => ("failed", Some(format!("error {code}"))),
            Some(Answer::Result(result)) => self.outcome(&result),
        })
    }

    fn outcome(&mut self, result: &Value) -> (&'static str, Option<String>) {
        let outcome = &result["outcome"];
        match (outcome["outcome"].as_str(), outcome["optionId"].as_str()) {
            (Some("cancelled"), None) => ("failed", Some("cancelled".to_owned())),
            (Some("selected"), Some(option)) if OPTIONS.contains(&option) => {
                let status = if option.starts_with("allow") { "completed" } else { "failed" };
                (status, Some(format!("selected {option}")))
            }
            _ => {
                self.log.violation(&format!("a permission was answered with {result}"));
                ("failed", Some("malformed".to_owned()))
            }
        }
    }

    /// Creates `count` simultaneous terminals and releases them.
    fn terminals(&mut self, turn: &mut Turn, count: usize, command: &str) -> Result<(), Exit> {
        let mut created = Vec::new();
        for _ in 0..count {
            let params = terminal_params(turn, command);
            created.extend(self.terminal_step(turn, "terminal/create", params)?);
        }
        for terminal in &created {
            let on = json!({"sessionId": turn.session, "terminalId": terminal["terminalId"]});
            self.terminal_step(turn, "terminal/release", on)?;
        }
        self.say(turn, &format!("terminals: created {} of {count}", created.len()))
    }

    fn terminal(&mut self, turn: &mut Turn, command: &str, kill: bool) -> Result<(), Exit> {
        let params = terminal_params(turn, command);
        let Some(created) = self.terminal_step(turn, "terminal/create", params)? else { return Ok(()) };
        let on = json!({"sessionId": turn.session, "terminalId": created["terminalId"]});
        if !on["terminalId"].is_string() {
            self.log.violation(&format!("terminal/create was answered with {created}"));
        }
        let session = turn.session.clone();
        let mut steps = vec!["terminal/wait_for_exit", "terminal/output"];
        if kill {
            steps.insert(0, "terminal/kill");
        }
        let mut last = Value::Null;
        let mut exit = Value::Null;
        for method in steps {
            match self.terminal_step(turn, method, on.clone())? {
                None => return self.ask_without_waiting(&session, "terminal/release", on),
                Some(result) if method == "terminal/wait_for_exit" => exit = result,
                Some(result) => last = result,
            }
        }
        if self.terminal_step(turn, "terminal/release", on)?.is_none() {
            return Ok(());
        }
        let said = format!(
            "terminal: exit={} signal={} truncated={} output={}",
            exit["exitCode"],
            exit["signal"].as_str().unwrap_or("null"),
            last["truncated"],
            last["output"].as_str().unwrap_or("null"),
        );
        self.say(turn, &said)
    }

    /// Sends one terminal request; `None` if it failed, which is said, or if the turn was cancelled first.
    fn terminal_step(&mut self, turn: &mut Turn, method: &str, params: Value) -> Result<Option<Value>, Exit> {
        match self.ask(&turn.session, method, params)? {
            None => Ok(None),
            Some(Answer::Result(result)) => Ok(Some(result)),
            Some(Answer::Error(code)) => {
                self.say(turn, &format!("terminal: {method} error {code}"))?;
                Ok(None)
            }
        }
    }
}

fn terminal_params(turn: &Turn, command: &str) -> Value {
    json!({
        "sessionId": turn.session, "command": "/bin/sh", "args": ["-c", command], "env": [],
        "cwd": turn.cwd, "outputByteLimit": TERMINAL_BYTES_MAX,
    })
}

fn plan(entries: &[String]) -> Value {
    let entries: Vec<Value> = entries
        .iter()
        .map(|entry| json!({"content": entry, "priority": "medium", "status": "pending"}))
        .collect();
    json!({"sessionUpdate": "plan", "entries": entries})
}

fn usage() -> Value {
    json!({"sessionUpdate": "usage_update", "used": 1000, "size": 200_000})
}
