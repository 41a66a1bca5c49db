//! What a person (or a script) types into `chat`, read on a thread of its own, one line at a time and only when
//! it is wanted.

use crate::cli::inside;
use crate::error::Failure;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{Config, Editor, ExternalPrinter};
use std::io::{self, BufRead, IsTerminal, Read};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Longest line of a script.
const LINE_BYTES_MAX: u64 = 1024 * 1024;
/// Lines that the history keeps.
const HISTORY_LINES_MAX: usize = 1_000;
/// What stands before the line that is typed.
const PROMPT: &str = "> ";

/// What came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Typed {
    /// A line.
    Line(String),
    /// Ctrl-C on the line.
    Interrupt,
    /// Nothing more will come.
    End,
}

/// Prints above the line that is being typed.
pub(crate) type Printer = Box<dyn ExternalPrinter + Send>;

/// The reading thread.
pub(crate) struct Input {
    typed: mpsc::Receiver<Typed>,
    wanted: std::sync::mpsc::SyncSender<()>,
    /// Whether a line was asked for and has not come yet.
    reading: bool,
}

impl Input {
    /// Starts reading: with line editing and a history when a person is there. The printer is for output beside
    /// the line that is being typed.
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
            .map_err(|error| inside("the terminal", &error))?
            .build();
        let mut editor: Editor<(), DefaultHistory> =
            Editor::with_config(config).map_err(|error| inside("the terminal", &error))?;
        // There is none before the first chat.
        let _ = editor.load_history(history);
        let printer = editor.create_external_printer().map_err(|error| inside("the terminal", &error))?;
        let history = history.to_owned();
        std::thread::spawn(move || edit_lines(editor, &history, &asked, &send));
        Ok((input, Some(Box::new(printer))))
    }

    /// Asks for the next line, unless that was done already.
    pub(crate) fn want(&mut self) {
        if !self.reading {
            // The thread that ended says so by closing the other channel.
            self.reading = self.wanted.send(()).is_ok();
        }
    }

    /// The line that was asked for. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Typed {
        let typed = self.typed.recv().await.unwrap_or(Typed::End);
        self.reading = false;
        typed
    }

    /// Whether the terminal is in the hands of the line editor.
    pub(crate) const fn is_reading(&self) -> bool {
        self.reading
    }
}

fn read_lines(asked: &std::sync::mpsc::Receiver<()>, send: &mpsc::Sender<Typed>) {
    let mut stdin = io::stdin().lock();
    while asked.recv().is_ok() {
        let mut line = String::new();
        let read = stdin.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
        let typed = match read {
            Ok(0) | Err(_) => Typed::End,
            Ok(_) => Typed::Line(line.trim_end_matches(['\n', '\r']).to_owned()),
        };
        let is_end = typed == Typed::End;
        if send.blocking_send(typed).is_err() || is_end {
            return;
        }
    }
}

fn edit_lines(
    mut editor: Editor<(), DefaultHistory>,
    history: &PathBuf,
    asked: &std::sync::mpsc::Receiver<()>,
    send: &mpsc::Sender<Typed>,
) {
    while asked.recv().is_ok() {
        let typed = match editor.readline(PROMPT) {
            Ok(line) => {
                if !line.trim().is_empty() && editor.add_history_entry(line.as_str()).unwrap_or(false) {
                    // A history that cannot be kept is no reason to stop talking.
                    let _ = editor.save_history(history);
                }
                Typed::Line(line)
            }
            Err(ReadlineError::Interrupted) => Typed::Interrupt,
            Err(_) => Typed::End,
        };
        let is_end = typed == Typed::End;
        if send.blocking_send(typed).is_err() || is_end {
            return;
        }
    }
}
