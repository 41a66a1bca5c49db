//! Runs command lines to completion, or reads their output line by line.

use crate::processes::ProcessHandle;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum number of buffered output lines of a followed command.
const LINES_MAX: usize = 100_000;

/// Output and exit code of a finished command.
#[derive(Debug)]
pub struct Output {
    /// The command line, for messages.
    pub command: String,
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Output {
    /// Standard output as JSON lines.
    ///
    /// # Panics
    /// When a line is not JSON.
    #[must_use]
    pub fn lines(&self) -> Vec<Value> {
        self.stdout.lines().filter(|line| !line.trim().is_empty()).map(|line| json(line, self)).collect()
    }

    /// Returns standard output as one JSON value, on one line or several; unwraps `data` of the supervisor's
    /// envelope.
    ///
    /// # Panics
    /// When it is not one JSON value.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut value = json(&self.stdout, self);
        if value["schema"].is_number() { value["data"].take() } else { value }
    }

    /// Returns itself after checking that the command succeeded.
    ///
    /// # Panics
    /// When the exit code is not 0.
    #[must_use]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "a command failed: {self:#?}");
        self
    }

    /// The `error` line that a failed command printed with `--json`.
    ///
    /// # Panics
    /// When there is no `error` line.
    #[must_use]
    pub fn error(&self) -> Value {
        let found = self.lines().into_iter().rev().find(|line| line["type"] == "error");
        found.unwrap_or_else(|| panic!("no error line: {self:#?}"))
    }

    /// The code of the `error` line.
    ///
    /// # Panics
    /// When there is no such line.
    #[must_use]
    pub fn error_code(&self) -> String {
        self.error()["code"].as_str().unwrap_or_default().to_owned()
    }
}

fn json(text: &str, output: &Output) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("not JSON ({e}): {text:?} of {output:#?}"))
}

/// Runs a command to its end.
///
/// # Panics
/// When it cannot be started, or does not exit within `deadline` (it is then killed).
#[must_use]
pub fn run(command: &mut Command, deadline: Duration) -> Output {
    RunningCommand::start(command).finish(deadline)
}

/// A running command whose output is read line by line. Dropping it kills the command.
#[derive(Debug)]
pub struct RunningCommand {
    name: String,
    child: Child,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
}

impl RunningCommand {
    /// Starts a command with no standard input.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        Self::spawn(command, Stdio::null())
    }

    /// Starts a command and returns its standard input.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start_piped(command: &mut Command) -> (Self, ChildStdin) {
        let mut followed = Self::spawn(command, Stdio::piped());
        let stdin = followed.child.stdin.take();
        let stdin = stdin.unwrap_or_else(|| panic!("no stdin of {}", followed.name));
        (followed, stdin)
    }

    fn spawn(command: &mut Command, stdin: Stdio) -> Self {
        let name = format!("{command:?}");
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot start {name}: {e}"));
        let stdout = child.stdout.take().unwrap_or_else(|| panic!("no stdout of {name}"));
        let mut stderr = child.stderr.take().unwrap_or_else(|| panic!("no stderr of {name}"));
        let (sender, lines) = sync_channel(LINES_MAX);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let stderr = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stderr.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Self { name, child, lines, stderr: Some(stderr) }
    }

    /// Its pid.
    ///
    /// # Panics
    /// Never: a pid is no larger than an `i32`.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The next line; `None` when the output has ended.
    ///
    /// # Panics
    /// When no line arrives within `deadline`.
    #[must_use]
    pub fn line(&mut self, deadline: Duration) -> Option<String> {
        self.next_line(Instant::now() + deadline)
    }

    fn next_line(&mut self, end: Instant) -> Option<String> {
        match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                let _ = self.child.kill();
                let stderr = self.stderr.take().and_then(|t| t.join().ok()).unwrap_or_default();
                panic!("no line in time from {}\nstderr: {stderr}", self.name)
            }
        }
    }

    /// The next JSON line; `None` when the output has ended.
    ///
    /// # Panics
    /// When no line arrives within `deadline`, or the line is not JSON.
    #[must_use]
    pub fn event(&mut self, deadline: Duration) -> Option<Value> {
        let line = self.line(deadline)?;
        Some(
            serde_json::from_str(&line)
                .unwrap_or_else(|e| panic!("not JSON ({e}): {line:?} of {}", self.name)),
        )
    }

    /// Reads JSON lines until one satisfies `is`, and returns all lines read, including that one.
    ///
    /// # Panics
    /// When the output ends first, or `deadline` passes.
    #[must_use]
    pub fn events_until(&mut self, deadline: Duration, is: impl Fn(&Value) -> bool) -> Vec<Value> {
        let end = Instant::now() + deadline;
        let mut events = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let Some(event) = self.event(left) else {
                panic!("{} ended before the awaited event; events received: {events:#?}", self.name)
            };
            let found = is(&event);
            events.push(event);
            if found {
                return events;
            }
        }
    }

    /// Waits until the command exits. The output contains the lines that were not read yet.
    ///
    /// # Panics
    /// When it does not exit within `deadline`.
    #[must_use]
    pub fn finish(mut self, deadline: Duration) -> Output {
        let end = Instant::now() + deadline;
        let mut lines = Vec::new();
        while let Some(line) = self.next_line(end) {
            lines.push(line);
        }
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => {}
                Err(e) => panic!("cannot wait for {}: {e}", self.name),
            }
            if Instant::now() >= end {
                let _ = self.child.kill();
                panic!("did not exit in time: {}", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let stderr = self.stderr.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        Output { command: self.name.clone(), code: status.code(), stdout: lines.join("\n"), stderr }
    }

    /// Kills the command with SIGKILL and reaps it.
    pub fn kill9(&mut self) {
        // An unreaped child of this process: its pid cannot have been reused.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends a signal; returns `false` if the process no longer exists.
    #[must_use]
    pub fn signal(&self, signal: rustix::process::Signal) -> bool {
        ProcessHandle::open(self.pid()).is_some_and(|held| held.signal(signal))
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// Concatenated output text of the agent in these events.
#[must_use]
pub fn output_text(events: &[Value]) -> String {
    crate::story::chunks(events).concat()
}

/// The last `done` event's stop reason.
#[must_use]
pub fn stop_reason(events: &[Value]) -> Option<String> {
    let done = events.iter().rev().find(|e| e["type"] == "done")?;
    done["stop_reason"].as_str().map(str::to_owned)
}

/// True if a program is installed. In CI a missing one is a failure.
///
/// # Panics
/// When it is missing in CI.
#[must_use]
pub fn has_program(name: &str) -> bool {
    let is_there = Command::new(name)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !is_there {
        assert!(std::env::var_os("CI").is_none(), "{name} is not installed");
        println!("SKIPPED: {name} is not installed");
    }
    is_there
}
