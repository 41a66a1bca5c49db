//! The script in a prompt: the model's answers, step by step.
//!
//! Steps are written in double brackets in the prompt's text; other text is ignored:
//! - `[[say TEXT]]`: one piece of text.
//! - `[[chunks N PACE]]`: the pieces `w1 `, `w2 ` … `wN `, one every `PACE` (`20ms`).
//! - `[[write PATH CONTENT]]`: a call of the agent's own tool for writing a file.
//! - `[[run COMMAND]]`: a call of the agent's own tool for running a command.
//! - `[[tool NAME JSON]]`: a call of the tool whose name ends with `NAME`, with these arguments; of one that is not offered
//!   through the agent's tool `tool_call`, if it has that. A value `"$MEMBER"` is that member of the newest tool result that
//!   has it.
//! - `[[repeat MEMBER]]`: that member as text.
//! - `[[error STATUS]]`: an HTTP error instead of an answer.
//! - `[[hang]]`: no further byte until the agent disconnects.
//!
//! An answer ends with the first tool call. When the tool's result arrives, the script continues after it;
//! without remaining steps the answer is `done`.

use serde_json::Value;
use std::time::Duration;

/// One step of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// One piece of text.
    Say(String),
    /// Numbered pieces of text at a pace.
    Chunks {
        /// Number of pieces.
        count: u32,
        /// Delay before each piece.
        pace: Duration,
    },
    /// A call of the tool for writing a file.
    Write {
        /// The file.
        path: String,
        /// Its content.
        content: String,
    },
    /// A call of the tool for running a command.
    Run {
        /// The command line.
        command: String,
    },
    /// A call of another tool.
    Tool {
        /// End of its name.
        name: String,
        /// Its arguments.
        arguments: Value,
    },
    /// A member of a tool result as text.
    Repeat(String),
    /// An HTTP error.
    Error(u16),
    /// No further output.
    Hang,
}

impl Step {
    /// Whether an answer ends with this step.
    #[must_use]
    pub const fn is_tool(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Run { .. } | Self::Tool { .. })
    }

    fn parse(text: &str) -> Option<Self> {
        let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
        match verb {
            "say" => Some(Self::Say(rest.to_owned())),
            "chunks" => {
                let (count, pace) = rest.split_once(' ')?;
                let pace_ms = pace.strip_suffix("ms")?.parse().ok()?;
                Some(Self::Chunks { count: count.parse().ok()?, pace: Duration::from_millis(pace_ms) })
            }
            "write" => {
                let (path, content) = rest.split_once(' ')?;
                Some(Self::Write { path: path.to_owned(), content: content.to_owned() })
            }
            "run" => Some(Self::Run { command: rest.to_owned() }),
            "tool" => {
                let (name, arguments) = rest.split_once(' ')?;
                Some(Self::Tool { name: name.to_owned(), arguments: serde_json::from_str(arguments).ok()? })
            }
            "repeat" => Some(Self::Repeat(rest.to_owned())),
            "error" => Some(Self::Error(rest.parse().ok()?)),
            "hang" => Some(Self::Hang),
            _ => None,
        }
    }
}

/// The steps in a prompt, in order. Invalid steps are text.
#[must_use]
pub fn steps(prompt: &str) -> Vec<Step> {
    prompt.split("[[").skip(1).filter_map(|part| Step::parse(part.split_once("]]")?.0)).collect()
}

/// The steps of the answer that comes after `tool_results` results of tools.
#[must_use]
pub fn answer(steps: &[Step], tool_results: usize) -> Vec<Step> {
    let mut answers = steps.split_inclusive(Step::is_tool);
    match answers.nth(tool_results) {
        Some(answer) => answer.to_vec(),
        None => vec![Step::Say("done".to_owned())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_in_order() {
        let pace = Duration::from_millis(20);
        for (text, want) in [
            ("hello", vec![]),
            ("[[nonsense]] [[chunks x 1ms]] [[chunks 1 1s]] [[say open", vec![]),
            ("a [[say b c]] d [[hang]]", vec![Step::Say("b c".into()), Step::Hang]),
            ("[[chunks 50 20ms]]", vec![Step::Chunks { count: 50, pace }]),
            ("[[write /a/b x y]]", vec![Step::Write { path: "/a/b".into(), content: "x y".into() }]),
            (
                r#"[[tool list {"a":"\u005b\u005bx"}]] [[repeat text]]"#,
                vec![
                    Step::Tool { name: "list".into(), arguments: serde_json::json!({"a": "[[x"}) },
                    Step::Repeat("text".into()),
                ],
            ),
            ("[[run sleep 9]][[error 503]]", vec![Step::Run { command: "sleep 9".into() }, Step::Error(503)]),
        ] {
            assert_eq!(steps(text), want, "{text}");
        }
    }

    #[test]
    fn an_answer_ends_with_a_tool_call() {
        let all = steps("[[say a]] [[run b]] [[say c]]");
        assert_eq!(answer(&all, 0), all[..2]);
        assert_eq!(answer(&all, 1), all[2..]);
        assert_eq!(answer(&all, 2), [Step::Say("done".into())]);
        assert_eq!(answer(&[], 0), [Step::Say("done".into())]);
    }
}
