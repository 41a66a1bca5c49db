//! Results of tools: bounded in size, and what was left out is said.

use crate::failure::Failure;
use serde_json::{Map, Value, json};

/// Maximum size of a result as JSON text, in bytes.
pub const RESULT_BYTES_MAX: usize = 80_000;
/// Size reserved for the members about omitted rows, in bytes.
const NOTE_BYTES: usize = 200;
/// Maximum length of the text of a failure, in characters.
const FAILURE_CHARS_MAX: usize = 4_000;

/// Place of the oldest row in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldestRow {
    /// At the beginning.
    First,
    /// At the end.
    Last,
}

/// Adds a list to a result. The oldest rows are dropped until the result is small enough; `dropped` tells how many.
#[must_use]
pub fn bounded_rows(
    mut result: Map<String, Value>,
    name: &str,
    mut rows: Vec<Value>,
    oldest: OldestRow,
) -> Value {
    let mut room = RESULT_BYTES_MAX.saturating_sub(json_bytes(&result) + name.len() + NOTE_BYTES);
    let fits = |row: &Value| {
        let bytes = json_bytes(row) + 1;
        let has_room = bytes <= room;
        room = room.saturating_sub(bytes);
        has_room
    };
    let kept = match oldest {
        OldestRow::First => rows.iter().rev().map(fits).take_while(|fits| *fits).count(),
        OldestRow::Last => rows.iter().map(fits).take_while(|fits| *fits).count(),
    };
    let dropped = rows.len() - kept;
    match oldest {
        OldestRow::First => drop(rows.drain(..dropped)),
        OldestRow::Last => rows.truncate(kept),
    }
    result.insert(name.to_owned(), rows.into());
    if dropped > 0 {
        result.insert("dropped".to_owned(), dropped.into());
        result.insert(
            "note".to_owned(),
            format!("The oldest {dropped} rows were dropped: the result was too long. Ask for fewer.").into(),
        );
    }
    Value::Object(result)
}

/// Adds a text to a result. Its beginning is dropped until the result is small enough; `dropped` tells how many characters.
#[must_use]
pub fn bounded_text(mut result: Map<String, Value>, name: &str, text: &str) -> Value {
    let mut room = RESULT_BYTES_MAX.saturating_sub(json_bytes(&result) + name.len() + NOTE_BYTES);
    let mut start = text.len();
    for (at, character) in text.char_indices().rev() {
        let bytes = escaped_bytes(character);
        if bytes > room {
            break;
        }
        (room, start) = (room - bytes, at);
    }
    let (before, kept) = text.split_at(start);
    let dropped = before.chars().count();
    result.insert(name.to_owned(), kept.into());
    if dropped > 0 {
        result.insert("dropped".to_owned(), dropped.into());
        result.insert(
            "note".to_owned(),
            format!("The first {dropped} characters were dropped: the text was too long.").into(),
        );
    }
    Value::Object(result)
}

/// Returns the size of a character in a JSON string, in bytes.
const fn escaped_bytes(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        _ => character.len_utf8(),
    }
}

fn json_bytes(value: &(impl serde::Serialize + ?Sized)) -> usize {
    serde_json::to_string(value).map_or(usize::MAX, |text| text.len())
}

/// Returns a failure as the content of a result.
pub(super) fn failure(failure: &Failure) -> Value {
    let message: String = failure.message.chars().take(FAILURE_CHARS_MAX).collect();
    let mut error = json!({ "code": failure.code, "message": message, "retryable": failure.retryable });
    if let (Some(detail), Some(error)) = (&failure.detail_code, error.as_object_mut()) {
        error.insert("detail_code".to_owned(), json!(detail));
    }
    json!({ "error": error })
}
