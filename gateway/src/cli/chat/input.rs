//! Input of `chat` from a script, read on a separate thread, one line at a time and only on request.

use std::io::{self, BufRead, Read};
use tokio::sync::mpsc;

/// Maximum length of a script line, in bytes.
const LINE_BYTES_MAX: u64 = 1024 * 1024;

/// Event of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InputEvent {
    /// A line.
    Line(String),
    /// A script line that cannot be sent, with the reason. No line follows.
    Unusable(&'static str),
    /// End of input.
    End,
}

/// Handle of the reading thread.
pub(crate) struct InputReader {
    typed: mpsc::Receiver<InputEvent>,
    wanted: std::sync::mpsc::SyncSender<()>,
    /// True if a line was requested and has not arrived yet.
    reading: bool,
}

impl InputReader {
    /// Starts the thread.
    pub(crate) fn start() -> Self {
        let (send, typed) = mpsc::channel(1);
        let (wanted, asked) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || read_lines(&asked, &send));
        Self { typed, wanted, reading: false }
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

    /// True if a line is requested.
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
