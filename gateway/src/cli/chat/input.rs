//! Input of `chat` from a person or a script, read on a separate thread, one line at a time and only on
//! request.

use crate::cli::inside;
use acp_core::failure::Failure;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{Config, Editor, ExternalPrinter};
use std::io::{self, BufRead, IsTerminal, Read};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Maximum length of a script line, in bytes.
const LINE_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum number of lines in the history.
const HISTORY_LINES_MAX: usize = 1_000;
/// Prompt of the line editor.
const PROMPT: &str = "> ";

/// Event of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InputEvent {
    /// A line.
    Line(String),
    /// A script line that cannot be sent, with the reason. No line follows.
    Unusable(&'static str),
    /// Ctrl-C in the line editor.
    Interrupt,
    /// End of input.
    End,
}

/// Prints above the line that is being edited.
pub(crate) type Printer = Box<dyn ExternalPrinter + Send>;

/// Handle of the reading thread.
pub(crate) struct InputReader {
    typed: mpsc::Receiver<InputEvent>,
    wanted: std::sync::mpsc::SyncSender<()>,
    /// True if a line was requested and has not arrived yet.
    reading: bool,
}

impl InputReader {
    /// Starts the thread: with line editing and a history if standard input and output are a terminal. The
    /// printer is for output while a line is being edited.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub(crate) fn start(history: &Path) -> Result<(Self, Option<Printer>), Failure> {
        let (send, typed) = mpsc::channel(1);
        let (wanted, asked) = std::sync::mpsc::sync_channel(1);
        let input = Self { typed, wanted, reading: false };
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            std::thread::spawn(move || read_lines(&asked, &send));
            return Ok((input, None));
        }
        let config = Config::builder()
            .max_history_size(HISTORY_LINES_MAX)
            .and_then(|config| config.history_ignore_dups(true))
            .map_err(|error| inside("cannot use the terminal", &error))?
            .build();
        let mut editor: Editor<(), DefaultHistory> =
            Editor::with_config(config).map_err(|error| inside("cannot use the terminal", &error))?;
        // The file does not exist before the first chat.
        let _ = editor.load_history(history);
        let printer =
            editor.create_external_printer().map_err(|error| inside("cannot use the terminal", &error))?;
        let history = history.to_owned();
        std::thread::spawn(move || edit_lines(editor, &history, &asked, &send));
        Ok((input, Some(Box::new(printer))))
    }

    /// Requests the next line, unless one is requested already.
    pub(crate) fn want(&mut self) {
        if !self.reading {
            // A thread that has ended has closed the other channel, which `next` reports.
            self.reading = self.wanted.send(()).is_ok();
        }
    }

    /// Waits for the requested line. Safe to cancel.
    pub(crate) async fn next(&mut self) -> InputEvent {
        let typed = self.typed.recv().await.unwrap_or(InputEvent::End);
        self.reading = false;
        typed
    }

    /// True if the line editor controls the terminal.
    pub(crate) const fn is_reading(&self) -> bool {
        self.reading
    }
}

fn read_lines(asked: &std::sync::mpsc::Receiver<()>, send: &mpsc::Sender<InputEvent>) {
    let mut stdin = io::stdin().lock();
    while asked.recv().is_ok() {
        let typed = read_line(&mut stdin, LINE_BYTES_MAX);
        let is_end = !matches!(typed, InputEvent::Line(_));
        if send.blocking_send(typed).is_err() || is_end {
            return;
        }
    }
}

/// Reads a line of at most `bytes_max` bytes, its end not counted.
fn read_line(input: &mut impl BufRead, bytes_max: u64) -> InputEvent {
    let mut line = Vec::new();
    // Two more for a carriage return and a line feed.
    match input.by_ref().take(bytes_max + 2).read_until(b'\n', &mut line) {
        Ok(0) => return InputEvent::End,
        Ok(_) => {}
        Err(_) => return InputEvent::Unusable("standard input cannot be read"),
    }
    while line.ends_with(b"\n") || line.ends_with(b"\r") {
        line.pop();
    }
    if line.len() as u64 > bytes_max {
        return InputEvent::Unusable("a line of standard input is longer than 1 MiB");
    }
    String::from_utf8(line)
        .map_or(InputEvent::Unusable("a line of standard input is not UTF-8"), InputEvent::Line)
}

fn edit_lines(
    mut editor: Editor<(), DefaultHistory>,
    history: &PathBuf,
    asked: &std::sync::mpsc::Receiver<()>,
    send: &mpsc::Sender<InputEvent>,
) {
    while asked.recv().is_ok() {
        let typed = match editor.readline(PROMPT) {
            Ok(line) => {
                if !line.trim().is_empty() && editor.add_history_entry(line.as_str()).unwrap_or(false) {
                    // A history that cannot be saved does not end the chat.
                    let _ = editor.save_history(history);
                }
                InputEvent::Line(line)
            }
            Err(ReadlineError::Interrupted) => InputEvent::Interrupt,
            Err(_) => InputEvent::End,
        };
        let is_end = typed == InputEvent::End;
        if send.blocking_send(typed).is_err() || is_end {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_lines_are_complete_or_rejected() {
        let line = |text: &str| InputEvent::Line(text.to_owned());
        let (long, text) =
            ("a line of standard input is longer than 1 MiB", "a line of standard input is not UTF-8");
        for (input, want) in [
            (&b"a\nbc\r\n"[..], vec![line("a"), line("bc"), InputEvent::End]),
            (b"\nend", vec![line(""), line("end"), InputEvent::End]),
            (b"12345678\n12345678\r\nx", vec![line("12345678"), line("12345678"), line("x")]),
            (b"123456789\n", vec![InputEvent::Unusable(long)]),
            (b"1234567890123\n", vec![InputEvent::Unusable(long)]),
            (b"a\n\xff\n", vec![line("a"), InputEvent::Unusable(text)]),
        ] {
            let mut reader = input;
            let read: Vec<_> = want.iter().map(|_| read_line(&mut reader, 8)).collect();
            assert_eq!(read, want, "{input:?}");
        }
    }
}
