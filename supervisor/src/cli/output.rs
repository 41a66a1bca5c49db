//! Output of commands: the only module that writes to standard output and standard error.

use super::table::TableFormat;
use super::text;
use acp_shared::{help, sanitize};
use clap::ColorChoice;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// Version of the `--json` format: `docs/manual/acp-supervisor.schema.json`. It is incremented when a field
/// is removed or changes its meaning; fields may be added without a new version.
pub(super) const SCHEMA: u32 = 1;

/// Sets the use of colours in this process. Everything that is coloured, help and errors of clap too, asks `anstream`.
pub(super) fn choose_colours(choice: ColorChoice) {
    match choice {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
}

/// Output of a command, as JSON or text.
#[derive(Debug)]
pub(super) struct Output {
    json: bool,
    colour: bool,
    width: Option<usize>,
}

impl Output {
    pub(super) fn new(json: bool) -> Self {
        Self { json, colour: is_coloured(), width: terminal_width() }
    }

    /// True if the output is JSON.
    pub(super) const fn is_json(&self) -> bool {
        self.json
    }

    /// True if standard output is a terminal.
    pub(super) fn is_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }

    /// Returns the format options for tables.
    pub(super) const fn look(&self) -> TableFormat {
        TableFormat { width: self.width, headers: true, colour: self.colour }
    }

    /// Writes a result for programs: one line of JSON in the envelope.
    pub(super) fn data(&mut self, kind: &str, data: &impl Serialize) -> io::Result<()> {
        let data = serde_json::to_value(data)?;
        self.json_line(&serde_json::json!({ "schema": SCHEMA, "type": kind, "data": data }))
    }

    /// Writes one line of JSON without an envelope.
    pub(super) fn json_line(&mut self, value: &serde_json::Value) -> io::Result<()> {
        self.line(&sanitize::json(&value.to_string()))
    }

    /// Writes text and a newline.
    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.write_all(b"\n")?;
        out.flush()
    }

    /// Asks the user at the terminal to confirm; any answer except yes means no.
    pub(super) fn confirm(&mut self, question: &str) -> io::Result<bool> {
        let mut err = io::stderr().lock();
        write!(err, "{} [y/N] ", text::plain(question))?;
        err.flush()?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
    }

    /// Writes an error: one line of JSON on standard output for programs, text on standard error for people.
    pub(super) fn error(&mut self, code: &str, message: &str) {
        let written = if self.json {
            self.json_line(
                &serde_json::json!({ "schema": SCHEMA, "type": "error", "code": code, "message": message }),
            )
        } else {
            writeln!(io::stderr().lock(), "error: {}", text::plain_lines(message))
        };
        // A failed write is ignored: the exit code reports the error too.
        drop(written);
    }

    /// Prints the result of clap: help and version as they are, anything else as a usage error. Returns the
    /// exit code.
    pub(super) fn usage(&mut self, error: &clap::Error) -> u8 {
        if self.json && error.use_stderr() {
            let text = error.to_string();
            self.error("USAGE", text.strip_prefix("error: ").unwrap_or(&text).trim_end());
            return super::error::USAGE;
        }
        let text = error.render().ansi().to_string();
        // A failed write is ignored, as above.
        if error.use_stderr() {
            let columns = help::columns(io::stderr()).unwrap_or(usize::MAX);
            drop(write!(anstream::stderr().lock(), "{}", help::wrap(&text, columns)));
            return super::error::USAGE;
        }
        let columns = help::columns(io::stdout()).unwrap_or(usize::MAX);
        drop(write!(anstream::stdout().lock(), "{}", help::wrap(&text, columns)));
        0
    }
}

/// True if standard output may have colours: considers `--color`, NO_COLOR, CLICOLOR, CLICOLOR_FORCE, TERM=dumb, and
/// whether it is a terminal.
fn is_coloured() -> bool {
    anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never
}

/// Returns the width of the terminal, or the value of COLUMNS; `None` if output must not be cut.
fn terminal_width() -> Option<usize> {
    let told = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let asked = || rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    told.or_else(asked).filter(|columns| *columns > 0)
}
