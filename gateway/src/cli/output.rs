//! Standard output and standard error of commands: one locked, buffered standard output. A closed reader (`|
//! head`) ends the command without an error.

use crate::cli::inside;
use acp_core::api::ErrorBody;
use acp_core::failure::Failure;
use acp_core::sanitize;
use acp_shared::clock::Clock;
use acp_shared::help;
use clap::builder::StyledStr;
use clap::{ColorChoice, ValueEnum as _};
use serde::Serialize;
use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::ExitCode;

/// Reason why a command ends early.
#[derive(Debug)]
pub(crate) enum CliError {
    /// The command failed; the failure is not printed yet.
    Failed(Failure),
    /// The command ended with this exit code and has printed everything.
    Code(u8),
    /// The reader of standard output has closed it.
    StdoutClosed,
}

impl From<Failure> for CliError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Maximum length of a name within a line, in characters.
pub(crate) const NAME_CHARS_MAX: usize = 300;

/// Style of text on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextStyle {
    /// Default style.
    Plain,
    /// Notes between lines of output.
    Dim,
    /// Thoughts of the agent.
    DimItalic,
}

impl TextStyle {
    const fn escape(self) -> &'static [u8] {
        match self {
            Self::Plain => b"\x1b[0m",
            Self::Dim => b"\x1b[2m",
            Self::DimItalic => b"\x1b[2;3m",
        }
    }
}

/// Result of a command.
pub(crate) type CliResult = Result<(), CliError>;

/// Result of printing for a service, which a closed standard output does not end.
pub(crate) fn unless_closed(printed: CliResult) -> CliResult {
    match printed {
        Err(CliError::StdoutClosed) => Ok(()),
        other => other,
    }
}

/// Sets the use of colours in this process. Everything that is coloured, help and errors of clap too, asks `anstream`.
pub(crate) fn choose_colours(choice: ColorChoice) {
    match choice {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
}

/// Sets the use of colours by the flag of a command line that cannot be parsed, or asks for help.
pub(crate) fn choose_colours_of(args: &[OsString]) {
    let texts = || args.iter().map(|arg| arg.to_str().unwrap_or_default());
    let next = texts().zip(texts().skip(1)).filter(|(flag, _)| *flag == "--color").map(|(_, value)| value);
    let joined = texts().filter_map(|arg| arg.strip_prefix("--color="));
    if let Some(choice) = next.chain(joined).find_map(|value| ColorChoice::from_str(value, false).ok()) {
        choose_colours(choice);
    }
}

/// True if standard output may have colours: considers `--color`, NO_COLOR, CLICOLOR, CLICOLOR_FORCE, TERM=dumb, and
/// whether it is a terminal.
fn has_colours() -> bool {
    anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never
}

/// Standard output.
pub(crate) struct Out {
    stdout: BufWriter<Box<dyn Write + Send>>,
    /// True with `--json`.
    pub(crate) json: bool,
    /// True if standard output is a terminal.
    pub(crate) terminal: bool,
    /// True if text may have colours.
    has_colours: bool,
    /// True if the last text ended in the middle of a line.
    open_line: bool,
}

impl Out {
    /// Opens standard output.
    pub(crate) fn new(json: bool) -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        Self::writing_to(Box::new(stdout), json, terminal)
    }

    /// Writes to another output.
    pub(crate) fn writing_to(output: Box<dyn Write + Send>, json: bool, terminal: bool) -> Self {
        let stdout = BufWriter::with_capacity(64 * 1024, output);
        Self { stdout, json, terminal, has_colours: !json && has_colours(), open_line: false }
    }

    fn raw(&mut self, bytes: &[u8]) -> CliResult {
        self.stdout.write_all(bytes).map_err(write_error)
    }

    /// Sanitizes text for standard output if it is shown on a terminal: coloured text in a pipe is meant for one.
    fn safe<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match (self.terminal || self.has_colours, self.json) {
            (false, _) => Cow::Borrowed(text),
            (true, false) => sanitize::text(text),
            (true, true) => sanitize::json(text),
        }
    }

    /// Prints a line; ends an open line first.
    pub(crate) fn line(&mut self, text: &str) -> CliResult {
        self.end_line()?;
        let text = self.safe(text);
        self.raw(text.as_bytes())?;
        self.raw(b"\n")
    }

    /// True if text may have colours.
    pub(crate) const fn is_coloured(&self) -> bool {
        self.has_colours
    }

    /// Sets the style of the following text.
    pub(crate) fn style(&mut self, style: TextStyle) -> CliResult {
        if self.has_colours { self.raw(style.escape()) } else { Ok(()) }
    }

    /// Prints streamed text without ending the line.
    pub(crate) fn text(&mut self, text: &str) -> CliResult {
        let text = self.safe(text);
        if let Some(last) = text.as_bytes().last() {
            self.open_line = *last != b'\n';
        }
        self.raw(text.as_bytes())
    }

    /// Prints help or version.
    pub(crate) fn help(&mut self, text: &StyledStr) -> CliResult {
        let text = if self.has_colours { text.ansi().to_string() } else { text.to_string() };
        let columns = help::columns(io::stdout()).unwrap_or(usize::MAX);
        self.raw(help::wrap(&text, columns).as_bytes())
    }

    /// Ends an open line.
    pub(crate) fn end_line(&mut self) -> CliResult {
        if std::mem::take(&mut self.open_line) { self.raw(b"\n") } else { Ok(()) }
    }

    /// Prints a value as one line of JSON.
    pub(crate) fn json<T: Serialize>(&mut self, value: &T) -> CliResult {
        let text = serde_json::to_string(value).map_err(|error| {
            Failure::new(acp_shared::codes::Code::Runtime, error.to_string()).origin("client")
        })?;
        self.line(&text)?;
        self.flush()
    }

    /// Prints a value as one line of JSON, or as the text that `people` makes of it.
    pub(crate) fn show<T: Serialize>(&mut self, value: &T, people: impl FnOnce(&T) -> String) -> CliResult {
        if self.json {
            return self.json(value);
        }
        let text = people(value);
        self.line(text.trim_end())?;
        self.flush()
    }

    /// Flushes the buffer.
    pub(crate) fn flush(&mut self) -> CliResult {
        self.stdout.flush().map_err(write_error)
    }

    /// Prints a note that is not part of the output: dimmed on a terminal, otherwise on standard error, and
    /// not at all with `--json`.
    pub(crate) fn note(&mut self, text: &str) -> CliResult {
        if self.json {
            return Ok(());
        }
        if self.terminal {
            self.end_line()?;
            self.style(TextStyle::Dim)?;
            self.text(text)?;
            self.style(TextStyle::Plain)?;
            self.end_line()?;
            // A note announces work that may take long.
            return self.flush();
        }
        // Flushed first, so that the order is right if both streams go to the same file.
        self.flush()?;
        print_message(text);
        Ok(())
    }

    /// Ends the command: prints a failure that is not printed yet and returns the exit code.
    pub(crate) fn finish(mut self, outcome: CliResult) -> ExitCode {
        let ended = outcome.and_then(|()| self.end_line()).and_then(|()| self.flush());
        match ended {
            Ok(()) | Err(CliError::StdoutClosed) => ExitCode::SUCCESS,
            Err(CliError::Code(code)) => {
                // The reader may be gone; then nothing can be reported.
                let _ = self.end_line().and_then(|()| self.flush());
                ExitCode::from(code)
            }
            Err(CliError::Failed(failure)) => self.fail(failure),
        }
    }

    fn fail(&mut self, failure: Failure) -> ExitCode {
        let code = failure.code.exit();
        if self.json {
            let _ = self.json(&ErrorBody::from(failure));
        } else {
            let _ = self.end_line().and_then(|()| self.flush());
            print_message(&format!("error: {failure}"));
        }
        ExitCode::from(code)
    }
}

/// Prints a message on standard error.
pub(crate) fn print_message(text: &str) {
    let mut stderr = io::stderr().lock();
    let text = if stderr.is_terminal() { sanitize::text(text) } else { Cow::Borrowed(text) };
    // A closed standard error cannot be reported anywhere.
    let _ = writeln!(stderr, "{text}");
}

/// Sanitizes an untrusted title or name for use within a line.
pub(crate) fn name(text: &str) -> String {
    sanitize::line(text.trim(), NAME_CHARS_MAX)
}

fn write_error(error: io::Error) -> CliError {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return CliError::StdoutClosed;
    }
    inside("cannot write to standard output", &error).into()
}

/// Formats a table for people: no frames, minimal column widths, one line per row. On a terminal that is too narrow, cells
/// are wrapped; on one of few columns, each row becomes a list of its cells.
pub(crate) fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    table_within(head, rows, help::columns(io::stdout()))
}

/// Formats a table for a terminal of that many columns, or for a pipe.
fn table_within(
    head: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
    columns: Option<usize>,
) -> String {
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|row| row.iter().map(|cell| sanitize::line(cell, usize::MAX)).collect())
        .collect();
    let new_table = || {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        if let Some(columns) = columns {
            table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic);
            table.set_width(u16::try_from(columns).unwrap_or(u16::MAX));
        }
        table
    };
    let text = |table: &comfy_table::Table| {
        table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    };
    let mut table = new_table();
    table.set_header(head.iter().copied()).add_rows(rows.iter());
    let needed: usize = table.column_max_content_widths().iter().map(|width| usize::from(*width) + 2).sum();
    let is_few = columns.is_some_and(|columns| columns < help::NARROW_COLUMNS.min(needed));
    if !is_few {
        return text(&table);
    }
    let lists = rows.iter().map(|row| {
        let mut list = new_table();
        list.add_rows(
            head.iter()
                .zip(row)
                .filter(|(_, cell)| !cell.is_empty())
                .map(|(name, cell)| [*name, cell.as_str()]),
        );
        text(&list)
    });
    lists.collect::<Vec<_>>().join("\n\n")
}

/// Returns milliseconds since the Unix epoch. A verb is a process of its own.
#[expect(clippy::disallowed_methods, reason = "the clock of this process starts here")]
pub(crate) fn now_ms() -> u64 {
    Clock::start().wall_ms()
}

/// Formats the time since `at_ms`.
pub(crate) fn age(at_ms: u64) -> String {
    let seconds = now_ms().saturating_sub(at_ms) / 1_000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: [&str; 3] = ["AGENT", "STATE", ""];

    const NOTE: &str = "needs no credentials; send it `help` to see what it can do";

    fn rows() -> Vec<Vec<String>> {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        vec![row(["demo", "installed", NOTE]), row(["pi", "missing", ""])]
    }

    #[test]
    fn table_that_does_not_fit_a_narrow_terminal_is_a_list() {
        let wide = format!(" AGENT  STATE\n demo   installed  {NOTE}\n pi     missing");
        assert_eq!(table_within(&HEAD, rows(), None), wide);
        assert_eq!(table_within(&HEAD, rows(), Some(100)), wide);
        let list = [
            " AGENT  demo",
            " STATE  installed",
            "        needs no credentials;",
            "        send it `help` to see",
            "        what it can do",
            "",
            " AGENT  pi",
            " STATE  missing",
        ];
        assert_eq!(table_within(&HEAD, rows(), Some(32)), list.join("\n"));
        let narrow = table_within(&HEAD, rows(), Some(help::NARROW_COLUMNS - 1));
        assert!(narrow.starts_with(" AGENT  demo\n"), "{narrow}");
        let wrapped = table_within(&HEAD, rows(), Some(help::NARROW_COLUMNS));
        assert!(wrapped.starts_with(" AGENT  STATE\n"), "{wrapped}");
        // A table that fits stays one.
        let fits = table_within(&HEAD[..2], rows().iter().map(|row| row[..2].to_vec()), Some(32));
        assert_eq!(fits, " AGENT  STATE\n demo   installed\n pi     missing");
    }
}
