//! Script of the demo agent: each line of a prompt is a directive, and other lines are echoed. Pure.

use std::collections::VecDeque;
use std::io::Write as _;

/// Reply to `help`.
pub const HELP: &str = "\
I am the demo agent: deterministic, without a model and without credentials. One directive per line:
  stream N [pace MS] [size B]  N numbered chunks, MS milliseconds apart, B bytes each
  think [TEXT]                 a thought
  plan                         a plan whose entries complete one by one
  tool                         a tool call that starts and completes
  permission                   requests a permission and reports the outcome
  write FILE TEXT              requests a permission, then writes TEXT to FILE in the working directory
  slow [MS]                    sends nothing for MS milliseconds (default 10000), then continues
  crash                        ends this process without a reply
  help                         this text
All other text is echoed. A turn can be cancelled at any point; text sent into a running turn is echoed too.
";

/// Maximum number of chunks of one directive.
const CHUNKS_MAX: u64 = 10_000_000;
/// Maximum size of a chunk, in bytes.
const CHUNK_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum pause, in milliseconds.
const PAUSE_MS_MAX: u64 = 3_600_000;

/// One step of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptStep {
    /// Send text.
    Text(String),
    /// Send a thought.
    Thought(String),
    /// Send numbered chunks, from `next` to `total`.
    Stream {
        /// Number of the next chunk, from 1.
        next: u64,
        /// Number of the last chunk.
        total: u64,
        /// Delay between two chunks, in milliseconds.
        pace_ms: u64,
        /// Minimum size of a chunk, in bytes.
        bytes: usize,
    },
    /// Send a plan.
    Plan,
    /// Simulate a tool call.
    Tool,
    /// Request a permission and report the answer.
    Permission,
    /// Request a permission, then write a file.
    Write {
        /// Path relative to the working directory.
        file: String,
        /// New content.
        text: String,
    },
    /// Send nothing for a while.
    Pause {
        /// Duration in milliseconds.
        ms: u64,
    },
    /// End the process.
    Crash,
}

/// Returns the steps for a prompt.
pub fn steps(prompt: &str) -> VecDeque<ScriptStep> {
    let mut steps = VecDeque::new();
    let mut echo = String::new();
    for line in prompt.lines() {
        match directive(line.trim()) {
            Some(step) => {
                if !echo.is_empty() {
                    steps.push_back(ScriptStep::Text(std::mem::take(&mut echo)));
                }
                steps.push_back(step);
            }
            None => {
                if !echo.is_empty() {
                    echo.push('\n');
                }
                echo.push_str(line);
            }
        }
    }
    if !echo.is_empty() || steps.is_empty() {
        steps.push_back(ScriptStep::Text(echo));
    }
    steps
}

fn directive(line: &str) -> Option<ScriptStep> {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    match (word, rest) {
        ("help", "") => Some(ScriptStep::Text(HELP.to_owned())),
        ("plan", "") => Some(ScriptStep::Plan),
        ("tool", "") => Some(ScriptStep::Tool),
        ("permission", "") => Some(ScriptStep::Permission),
        ("crash", "") => Some(ScriptStep::Crash),
        ("think", "") => Some(ScriptStep::Thought("Let me think about it.".to_owned())),
        ("think", text) => Some(ScriptStep::Thought(text.to_owned())),
        ("slow", "") => Some(ScriptStep::Pause { ms: 10_000 }),
        ("slow", ms) => ms.parse().ok().filter(|ms| *ms <= PAUSE_MS_MAX).map(|ms| ScriptStep::Pause { ms }),
        ("write", rest) => {
            let (file, text) = rest.split_once(char::is_whitespace)?;
            Some(ScriptStep::Write { file: file.to_owned(), text: text.trim().to_owned() })
        }
        ("stream", rest) => stream(rest),
        _ => None,
    }
}

fn stream(rest: &str) -> Option<ScriptStep> {
    let mut words = rest.split_whitespace();
    let total = words.next()?.parse().ok().filter(|total| (1..=CHUNKS_MAX).contains(total))?;
    let (mut pace_ms, mut bytes) = (0, 0);
    while let Some(name) = words.next() {
        let value = words.next()?;
        match name {
            "pace" => pace_ms = value.parse().ok().filter(|ms| *ms <= PAUSE_MS_MAX)?,
            "size" => bytes = value.parse().ok().filter(|bytes| *bytes <= CHUNK_BYTES_MAX)?,
            _ => return None,
        }
    }
    Some(ScriptStep::Stream { next: 1, total, pace_ms, bytes })
}

/// Writes the text of a numbered chunk: `chunk N`, padded with `.` to the size, and a newline. Only the
/// newline would need an escape in JSON, and the caller writes it.
pub fn chunk(number: u64, bytes: usize, out: &mut Vec<u8>) {
    let start = out.len();
    // Writing into a vector cannot fail.
    let _ = write!(out, "chunk {number}");
    let length = out.len() - start + 1;
    out.resize(out.len() + bytes.saturating_sub(length), b'.');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_become_steps() {
        let text = |text: &str| ScriptStep::Text(text.to_owned());
        let stream = |total, pace_ms, bytes| ScriptStep::Stream { next: 1, total, pace_ms, bytes };
        let table: Vec<(&str, Vec<ScriptStep>)> = vec![
            ("hello", vec![text("hello")]),
            ("", vec![text("")]),
            ("two\nlines", vec![text("two\nlines")]),
            ("help", vec![text(HELP)]),
            ("help me", vec![text("help me")]),
            ("stream 3", vec![stream(3, 0, 0)]),
            ("stream 3 size 10 pace 5", vec![stream(3, 5, 10)]),
            ("stream 0", vec![text("stream 0")]),
            ("stream x", vec![text("stream x")]),
            ("stream 3 pace", vec![text("stream 3 pace")]),
            ("stream 3 colour 1", vec![text("stream 3 colour 1")]),
            (
                "write a.txt  some text ",
                vec![ScriptStep::Write { file: "a.txt".into(), text: "some text".into() }],
            ),
            ("write a.txt", vec![text("write a.txt")]),
            ("slow", vec![ScriptStep::Pause { ms: 10_000 }]),
            ("slow 5", vec![ScriptStep::Pause { ms: 5 }]),
            ("slow 99999999999", vec![text("slow 99999999999")]),
            (
                "  plan\nfirst\nsecond\ntool\nthink hard\npermission\ncrash\nlast",
                vec![
                    ScriptStep::Plan,
                    text("first\nsecond"),
                    ScriptStep::Tool,
                    ScriptStep::Thought("hard".into()),
                    ScriptStep::Permission,
                    ScriptStep::Crash,
                    text("last"),
                ],
            ),
        ];
        for (prompt, want) in table {
            assert_eq!(Vec::from(steps(prompt)), want, "{prompt:?}");
        }
    }

    #[test]
    fn chunks_have_their_number_and_size() {
        for (number, bytes, want) in [
            (1, 0, "chunk 1"),
            (10, 8, "chunk 10"),
            (10, 12, "chunk 10..."),
            (u64::MAX, 0, "chunk 18446744073709551615"),
        ] {
            let mut out = Vec::new();
            chunk(number, bytes, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), want);
        }
    }
}
