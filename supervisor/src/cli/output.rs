//! The only place that writes to standard output and standard error.

use super::table::Look;
use super::text;
use clap::ValueEnum;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// The version of everything that `--json` prints: `packaging/doc/acp-supervisor.schema.json`. It grows when a field
/// goes away or changes its meaning; fields are added without a new version.
pub(super) const SCHEMA: u32 = 1;

/// When colours are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Colour {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Where a command's result goes.
#[derive(Debug)]
pub(super) struct Output {
    json: bool,
    colour: bool,
    width: Option<usize>,
}

impl Output {
    pub(super) fn new(json: bool, colour: Colour) -> Self {
        Self { json, colour: is_coloured(colour), width: terminal_width() }
    }

    /// Whether programs read it.
    pub(super) const fn is_json(&self) -> bool {
        self.json
    }

    /// Whether a person looks at it.
    pub(super) fn is_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }

    /// How tables are written.
    pub(super) const fn look(&self) -> Look {
        Look { width: self.width, headers: true, colour: self.colour }
    }

    /// A result for programs: one line of JSON in the envelope.
    pub(super) fn data(&mut self, kind: &str, data: &impl Serialize) -> io::Result<()> {
        let data = serde_json::to_value(data)?;
        self.json_line(&serde_json::json!({ "schema": SCHEMA, "type": kind, "data": data }))
    }

    /// One line of JSON as it is.
    pub(super) fn json_line(&mut self, value: &serde_json::Value) -> io::Result<()> {
        self.line(&text::safe_json(&value.to_string()))
    }

    /// One line, or several.
    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.write_all(b"\n")?;
        out.flush()
    }

    /// Asks a person at the terminal; everything but yes is no.
    pub(super) fn confirm(&mut self, question: &str) -> io::Result<bool> {
        let mut err = io::stderr().lock();
        write!(err, "{} [y/N] ", text::plain(question))?;
        err.flush()?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
    }

    /// A failure: one line of JSON on standard output for programs, words on standard error for people.
    pub(super) fn error(&mut self, code: &str, message: &str) {
        let written = if self.json {
            self.json_line(
                &serde_json::json!({ "schema": SCHEMA, "type": "error", "code": code, "message": message }),
            )
        } else {
            writeln!(io::stderr().lock(), "error: {}", text::plain_lines(message))
        };
        // Nobody is left to tell when that fails too; the exit code says it.
        drop(written);
    }

    /// What clap has to say: help and version are results, the rest is a usage error. Returns the exit code.
    pub(super) fn usage(&mut self, error: &clap::Error) -> u8 {
        if self.json && error.use_stderr() {
            let text = error.to_string();
            self.error("USAGE", text.strip_prefix("error: ").unwrap_or(&text).trim_end());
            return super::error::USAGE;
        }
        // As above.
        drop(error.print());
        if error.use_stderr() { super::error::USAGE } else { 0 }
    }
}

fn is_coloured(colour: Colour) -> bool {
    match colour {
        Colour::Always => true,
        Colour::Never => false,
        // NO_COLOR, CLICOLOR, TERM=dumb and whether it is a terminal.
        Colour::Auto => anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never,
    }
}

/// The columns of the terminal, or what COLUMNS says; `None` where nothing must be cut.
fn terminal_width() -> Option<usize> {
    let told = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let asked = || rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    told.or_else(asked).filter(|columns| *columns > 0)
}
