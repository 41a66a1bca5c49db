//! Stdin, stdout and stderr: lines.

use serde_json::Value;
use std::io::{BufRead, Read as _, Write};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of buffered lines of the client.
const WAITING_LINES_MAX: usize = 1024;

/// Held while no line of stdin is accepted.
static STDIN_GATE: Mutex<()> = Mutex::new(());

/// Stops reading stdin, except for one line, until the guard is dropped.
pub(crate) fn stop_reading() -> MutexGuard<'static, ()> {
    STDIN_GATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Input from the client.
#[derive(Debug)]
pub(crate) enum Line {
    /// A line, without its end.
    Text(String),
    /// End of file, or invalid UTF-8.
    End,
}

/// Reads stdin in its own thread, so that a running turn can receive a cancel.
pub(crate) fn read_stdin() -> std::io::Result<Receiver<Line>> {
    let (sender, receiver) = sync_channel(WAITING_LINES_MAX);
    std::thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        // With SIGTERM blocked here, `ignore_term` has only one thread to change.
        super::process::block_sigterm();
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            drop(stop_reading());
            if sender.send(Line::Text(line)).is_err() {
                return;
            }
        }
        // The receiver is dropped only when the agent exits.
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

/// Writes this many bytes to stdout without a line end.
pub(crate) fn endless_line(bytes: u64) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    std::io::copy(&mut std::io::repeat(b'x').take(bytes), &mut out)?;
    out.flush()
}

/// Writes bytes as one line to stdout at once.
pub(crate) fn stdout_bytes(line: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(&[line, b"\n"].concat())?;
    out.flush()
}

/// Writes one message to stdout. Lone UTF-16 surrogates are written as escapes, as from a truncated
/// JavaScript string.
pub(crate) fn message(message: &Value) -> std::io::Result<()> {
    let text = message.to_string();
    if !text.contains(|c| surrogate_of(c).is_some()) {
        return stdout_line(&text);
    }
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match surrogate_of(c) {
            Some(unit) => line.push_str(&format!("\\u{unit:04x}")),
            None => line.push(c),
        }
    }
    stdout_line(&line)
}

/// First of the 2,048 characters that represent UTF-16 surrogates, in their order.
const SURROGATE_CHARS: u32 = 0x10_f800;
/// First UTF-16 surrogate.
const FIRST_SURROGATE: u32 = 0xd800;

/// The character that represents this UTF-16 unit in texts of the agent: itself, unless it is a surrogate.
pub(crate) fn char_of_unit(unit: u32) -> Option<char> {
    let is_surrogate = (FIRST_SURROGATE..0xe000).contains(&unit);
    char::from_u32(if is_surrogate { unit - FIRST_SURROGATE + SURROGATE_CHARS } else { unit })
}

fn surrogate_of(c: char) -> Option<u32> {
    u32::from(c).checked_sub(SURROGATE_CHARS).map(|nth| FIRST_SURROGATE + nth)
}

/// Writes one line to stderr. A failure is ignored: there is no other place to report it.
pub(crate) fn stderr_line(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
