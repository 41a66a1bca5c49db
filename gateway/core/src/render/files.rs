//! Files attached to messages: an answer that would take too many messages, and the changes of a run.
//!
//! A file is derived from the same rows and the same style record as its message. So the outbox stores only
//! its name and size, and its content is regenerated when it is sent, also after a restart.

use crate::message_split::{MessageLimit, first_part, head_bytes, split};
use crate::render::{MessageContent, PartKind, RunDigest, join_paragraphs};
use serde::{Deserialize, Serialize};

/// File name of an answer.
const ANSWER: &str = "answer.md";
/// File name of the changes of a run.
const DIFF: &str = "turn.diff";
/// Maximum size of a diff, in bytes.
const DIFF_BYTES_MAX: usize = 1024 * 1024;
/// Text in place of a diff that the channel did not accept.
const NO_DIFF: &str = "(The changes of this turn are not attached: the channel rejected the file.)";

/// Settings for sending content as files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSettings {
    /// Number of messages above which an answer is sent as its beginning and a file; 0 disables it.
    pub long_final_parts: usize,
    /// Maximum size of a file, in bytes.
    pub bytes_max: usize,
    /// True if the changes of a run are attached to its answer.
    pub diff: bool,
    /// True if the channel refused the files of this row: its content is sent again, as messages only.
    #[serde(default)]
    pub refused: bool,
}

/// Reference to a file of a part, as stored in the outbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRef {
    /// Name of the file.
    pub name: String,
    /// Size, in bytes.
    pub bytes: u64,
}

/// File and its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageFile {
    /// Name of the file.
    pub name: &'static str,
    /// MIME type.
    pub content_type: &'static str,
    /// Short description.
    pub description: &'static str,
    /// Content.
    pub text: String,
}

impl MessageFile {
    /// Returns the reference stored in the outbox.
    pub fn named(&self) -> FileRef {
        FileRef { name: self.name.to_owned(), bytes: self.text.len() as u64 }
    }
}

/// Message text with its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MessagePiece {
    pub(super) text: String,
    pub(super) files: Vec<MessageFile>,
}

fn pieces(text: &str, limit: MessageLimit) -> Vec<MessagePiece> {
    split(text, limit).into_iter().map(|text| MessagePiece { text, files: Vec::new() }).collect()
}

/// Splits the output into messages, in order. Only the last message of the first plan has files; if the
/// channel refused those, text messages with the same content follow.
pub(super) fn lay_out(said: &MessageContent, run: Option<&RunDigest>) -> Vec<MessagePiece> {
    let limit = said.limit;
    let plain = pieces(&said.text(), limit);
    let run = run.filter(|_| said.kind == PartKind::Final);
    let Some((run, how)) = run.and_then(|run| Some((run, run.files()?))) else { return plain };
    let long = if is_long(plain.len(), run, how) { answer_with_file(said, run, how) } else { None };
    let is_long = long.is_some();
    let mut out = long.map_or_else(|| plain.clone(), |piece| vec![piece]);
    let diff = if how.diff { run.changes().unified(how.bytes_max.min(DIFF_BYTES_MAX)) } else { None };
    let has_diff = diff.is_some();
    if let (Some(text), Some(last)) = (diff, out.last_mut()) {
        last.files.push(MessageFile {
            name: DIFF,
            content_type: "text/x-diff",
            description: "Changes of this turn",
            text,
        });
    }
    if how.refused && (is_long || has_diff) {
        let from = if is_long { 0 } else { plain.len().saturating_sub(1) };
        let mut again: Vec<MessagePiece> = plain.into_iter().skip(from).collect();
        if has_diff && let Some(last) = again.pop() {
            again.extend(pieces(&join_paragraphs(last.text, Some(NO_DIFF.to_owned())), limit));
        }
        out.extend(again);
    }
    out
}

fn is_long(messages: usize, run: &RunDigest, how: &FileSettings) -> bool {
    how.long_final_parts > 0 && (messages > how.long_final_parts || run.exceeds_messages())
}

/// Puts the beginning of an answer into a message and the answer into a file; `None` if the beginning does
/// not fit.
fn answer_with_file(said: &MessageContent, run: &RunDigest, how: &FileSettings) -> Option<MessagePiece> {
    let whole = run.full_output();
    let text = head_bytes(&whole, how.bytes_max).to_owned();
    let note = if run.is_cut() || text.len() < whole.len() {
        format!(
            "({ANSWER} has the first {} bytes of the answer; `acp-gateway sessions history` shows all of \
             it.)",
            text.len()
        )
    } else {
        format!("(Truncated: {ANSWER} has the whole answer.)")
    };
    let end = join_paragraphs(note, Some(said.end.clone()).filter(|end| !end.is_empty()));
    let room = said.limit.minus(&format!("\n\n{end}"))?;
    let beginning = first_part(&text, room)?;
    let text_of_message = join_paragraphs(beginning.trim_end().to_owned(), Some(end));
    let file =
        MessageFile { name: ANSWER, content_type: "text/markdown", description: "The whole answer", text };
    Some(MessagePiece { text: text_of_message, files: vec![file] })
}
