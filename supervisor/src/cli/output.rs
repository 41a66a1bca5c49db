//! The only place that writes to standard output and standard error.

use serde::Serialize;
use std::io::{self, Write};

/// Where a command's result goes.
#[derive(Debug)]
pub(super) struct Output {
    json: bool,
}

impl Output {
    pub(super) const fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether programs read it.
    pub(super) const fn is_json(&self) -> bool {
        self.json
    }

    /// One value as one line of JSON.
    pub(super) fn value(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string(value)?;
        self.line(&text)
    }

    /// One line, or several.
    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.write_all(b"\n")?;
        out.flush()
    }

    /// A failure: one line of JSON on standard output for programs, words on standard error for people.
    pub(super) fn error(&mut self, code: &str, message: &str) {
        let written = if self.json {
            self.value(&serde_json::json!({ "type": "error", "code": code, "message": message }))
        } else {
            writeln!(io::stderr().lock(), "error: {message}")
        };
        // Nobody is left to tell when that fails too; the exit code says it.
        drop(written);
    }

    /// What clap has to say: help and version are results, the rest is a usage error. Returns the exit code.
    pub(super) fn usage(&mut self, error: &clap::Error) -> u8 {
        if self.json && error.use_stderr() {
            let text = error.to_string();
            self.error("USAGE", text.strip_prefix("error: ").unwrap_or(&text).trim_end());
            return 2;
        }
        // As above.
        drop(error.print());
        if error.use_stderr() { 2 } else { 0 }
    }
}
