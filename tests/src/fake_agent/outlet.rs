//! Stdin, stdout and stderr: lines.

use serde_json::Value;
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, sync_channel};

/// How many lines of the client may wait to be handled.
const WAITING_LINES_MAX: usize = 1024;

/// Something from the client.
#[derive(Debug)]
pub(crate) enum Line {
    /// A line, without its end.
    Text(String),
    /// It closed its end, or sent what is no UTF-8.
    End,
}

/// Reads stdin in a thread of its own, so that a turn can hear a cancel.
pub(crate) fn read_stdin() -> std::io::Result<Receiver<Line>> {
    let (sender, receiver) = sync_channel(WAITING_LINES_MAX);
    std::thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        // So that `ignore_term` has only one thread to change.
        super::process::block_sigterm();
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.send(Line::Text(line)).is_err() {
                return;
            }
        }
        // The receiver is gone only when the agent ends.
        let _ = sender.send(Line::End);
    })?;
    Ok(receiver)
}

/// Writes one line to stdout at once.
pub(crate) fn stdout_line(text: &str) -> std::io::Result<()> {
    let mut line = Vec::with_capacity(text.len() + 1);
    line.extend_from_slice(text.as_bytes());
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}

/// Writes one message to stdout.
pub(crate) fn message(message: &Value) -> std::io::Result<()> {
    stdout_line(&message.to_string())
}

/// Writes one line to stderr. Nobody can be told when that fails.
pub(crate) fn stderr_line(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
