//! What is told as files: an answer that would take too many messages, and what a run changed.
//!
//! A file is made of the same rows and the same record of how a conversation is told as the message that it goes with.
//! So the outbox keeps only its name and size, and its content is made anew when it is sent, also after a restart.

use crate::core::project::{PartKind, RunDigest, Said, joined};
use crate::core::split::{Limit, first, head_bytes, split};
use serde::{Deserialize, Serialize};

/// The name of an answer.
const ANSWER: &str = "answer.md";
/// The name of what a run changed.
const DIFF: &str = "turn.diff";
/// The longest diff, in bytes: longer ones are read elsewhere.
const DIFF_BYTES_MAX: usize = 1024 * 1024;
/// What is said where the channel did not take what a run changed.
const NO_DIFF: &str = "(What this turn changed is not attached: the channel did not take the file.)";

/// How a conversation is told what does not fit into messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AsFiles {
    /// An answer of more messages than this is told as its beginning and a file; 0: none is.
    pub(crate) long_final_parts: usize,
    /// The most bytes of a file.
    pub(crate) bytes_max: usize,
    /// Whether what a run changed goes with its answer.
    pub(crate) diff: bool,
    /// The channel did not take the files of this row: it is told once more, in messages alone.
    #[serde(default)]
    pub(crate) refused: bool,
}

/// A file of a part, as the outbox keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRef {
    /// Its name.
    pub(crate) name: String,
    /// How large it is, in bytes.
    pub(crate) bytes: u64,
}

/// A file with what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    /// Its name.
    pub(crate) name: &'static str,
    /// What it is, as MIME says it.
    pub(crate) content_type: &'static str,
    /// What it shows, in a few words.
    pub(crate) says: &'static str,
    /// What is in it.
    pub(crate) text: String,
}

impl File {
    /// What the outbox keeps of it.
    pub(crate) fn named(&self) -> FileRef {
        FileRef { name: self.name.to_owned(), bytes: self.text.len() as u64 }
    }
}

/// The text of one message, with its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) files: Vec<File>,
}

fn pieces(text: &str, limit: Limit) -> Vec<Piece> {
    split(text, limit).into_iter().map(|text| Piece { text, files: Vec::new() }).collect()
}

/// The messages that say it, in order. At most the last of those that were planned first has files; where the channel
/// did not take them, what says the same without comes after.
pub(super) fn lay_out(said: &Said, run: Option<&RunDigest>) -> Vec<Piece> {
    let limit = said.limit;
    let plain = pieces(&said.text(), limit);
    let run = run.filter(|_| said.kind == PartKind::Final);
    let Some((run, how)) = run.and_then(|run| Some((run, run.files()?))) else { return plain };
    let long = if is_long(plain.len(), run, how) { as_answer(said, run, how) } else { None };
    let is_long = long.is_some();
    let mut out = long.map_or_else(|| plain.clone(), |piece| vec![piece]);
    let diff = if how.diff { run.changes().unified(how.bytes_max.min(DIFF_BYTES_MAX)) } else { None };
    let has_diff = diff.is_some();
    if let (Some(text), Some(last)) = (diff, out.last_mut()) {
        last.files.push(File {
            name: DIFF,
            content_type: "text/x-diff",
            says: "What this turn changed",
            text,
        });
    }
    if how.refused && (is_long || has_diff) {
        let from = if is_long { 0 } else { plain.len().saturating_sub(1) };
        let mut again: Vec<Piece> = plain.into_iter().skip(from).collect();
        if has_diff && let Some(last) = again.pop() {
            again.extend(pieces(&joined(last.text, Some(NO_DIFF.to_owned())), limit));
        }
        out.extend(again);
    }
    out
}

fn is_long(messages: usize, run: &RunDigest, how: &AsFiles) -> bool {
    how.long_final_parts > 0 && (messages > how.long_final_parts || run.is_over())
}

/// The beginning of an answer with all of it in a file; `None` where not even that has room in a message.
fn as_answer(said: &Said, run: &RunDigest, how: &AsFiles) -> Option<Piece> {
    let whole = run.whole();
    let text = head_bytes(&whole, how.bytes_max).to_owned();
    let note = if run.is_cut() || text.len() < whole.len() {
        format!(
            "({ANSWER} has the first {} bytes of it; `acp-gateway sessions history` shows all of it.)",
            text.len()
        )
    } else {
        format!("(It goes on: {ANSWER} has all of it.)")
    };
    let end = joined(note, Some(said.end.clone()).filter(|end| !end.is_empty()));
    let room = said.limit.less(&format!("\n\n{end}"))?;
    let beginning = first(&text, room)?;
    let text_of_message = joined(beginning.trim_end().to_owned(), Some(end));
    let file = File { name: ANSWER, content_type: "text/markdown", says: "The whole answer", text };
    Some(Piece { text: text_of_message, files: vec![file] })
}
