//! Repairs an agent's output on intake: each line of JSON becomes JSON that every strict parser accepts.
//!
//! JSON's grammar allows halves of UTF-16 pairs, numbers beyond a double and unbounded nesting, which strict
//! parsers refuse. One occurrence in a payload would make the whole row unreadable for every consumer of the
//! journal. They are replaced once, before anything is stored. Valid text stays byte for byte as received.
#![deny(clippy::indexing_slicing)]

use std::borrow::Cow;

/// Maximum nesting of a line. Parsers stop at 128 levels, and rows and event lines add a few to a payload.
const DEPTH_MAX: usize = 100;
/// Length of the escape of one UTF-16 unit: `\uXXXX`.
const ESCAPE_BYTES: usize = 6;
/// Escape of the replacement character; the same length as the escape of a half.
const REPLACEMENT: &str = "\\ufffd";
/// Replacement of values beyond the maximum nesting.
const TOO_DEEP: &str = "\"(nested too deeply)\"";
/// Minimum length of a number without an exponent that may exceed a double.
const LONG_NUMBER_BYTES: usize = 300;
/// Number of bytes that are examined at once.
const CHUNK_BYTES: usize = 64;

/// One line of an agent, repaired.
#[derive(Debug)]
pub struct AgentLine<'a> {
    /// Line after UTF-8 repair and before JSON repair.
    source: Cow<'a, str>,
    /// Repaired line, if different from `source`.
    text: Option<String>,
    /// True if offsets in `text` and `source` are the same.
    is_aligned: bool,
    is_repaired: bool,
}

impl<'a> AgentLine<'a> {
    /// Repairs a line. Invalid JSON stays invalid.
    pub fn repair(bytes: &'a [u8]) -> Self {
        // Valid UTF-8 is checked faster than `from_utf8_lossy` does.
        let source =
            std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed);
        let was_text = matches!(source, Cow::Borrowed(_));
        let (text, is_aligned) = repair_json(&source);
        let is_repaired = text.is_some() || !was_text;
        Self { source, text, is_aligned, is_repaired }
    }

    /// Returns the repaired line.
    pub fn text(&self) -> &str {
        self.text.as_deref().unwrap_or(&self.source)
    }

    /// Returns true if anything was replaced.
    pub const fn is_repaired(&self) -> bool {
        self.is_repaired
    }

    /// Returns the second half of a pair at the beginning of a string literal, a slice of [`AgentLine::text`]
    /// with quotes.
    pub fn leading_half(&self, literal: &str) -> Option<u16> {
        let start = self.offset_of(literal)? + 1;
        self.replaced_at(start).filter(|unit| is_low(*unit))
    }

    /// Returns the first half of a pair at the end of such a string literal.
    pub fn trailing_half(&self, literal: &str) -> Option<u16> {
        let end = self.offset_of(literal)? + literal.len().checked_sub(1)?;
        self.replaced_at(end.checked_sub(ESCAPE_BYTES)?).filter(|unit| is_high(*unit))
    }

    /// Returns the offset of a slice of [`AgentLine::text`].
    fn offset_of(&self, slice: &str) -> Option<usize> {
        let offset = (slice.as_ptr() as usize).checked_sub(self.text().as_ptr() as usize)?;
        (offset + slice.len() <= self.text().len()).then_some(offset)
    }

    /// Returns the lone half that was replaced at this offset.
    fn replaced_at(&self, at: usize) -> Option<u16> {
        let repaired = self.text.as_deref().filter(|_| self.is_aligned)?;
        let unit = escape_at(self.source.as_bytes(), at)?;
        (escape_at(repaired.as_bytes(), at)? == 0xfffd && (is_high(unit) || is_low(unit))).then_some(unit)
    }
}

/// Rewrites a string literal: with `pair` the leading half is replaced by the character of both halves; with
/// `without_end` the trailing half is removed.
pub fn rejoin_surrogates(literal: &str, pair: Option<(u16, u16)>, without_end: bool) -> String {
    let joined = pair.and_then(|(high, low)| char::decode_utf16([high, low]).next()?.ok());
    let from = 1 + if pair.is_some() { ESCAPE_BYTES } else { 0 };
    let to = literal.len().saturating_sub(1 + if without_end { ESCAPE_BYTES } else { 0 });
    let middle = literal.get(from..to).unwrap_or_default();
    let mut out = String::with_capacity(literal.len() + 4);
    out.push('"');
    out.extend(joined);
    out.push_str(middle);
    out.push('"');
    out
}

/// Repairs a stored payload. Rows of earlier versions were stored as received.
pub fn readable_payload(payload: &str) -> Cow<'_, str> {
    repair_json(payload).0.map_or(Cow::Borrowed(payload), Cow::Owned)
}

/// Returns the repaired text if anything was replaced, and true if offsets are unchanged.
fn repair_json(source: &str) -> (Option<String>, bool) {
    if !may_need_repair(source.as_bytes()) {
        return (None, true);
    }
    let mut scanner = Scanner::new(source);
    scanner.run();
    scanner.finish()
}

/// Returns false if nothing in the text can need a replacement, as in nearly all lines; faster than a scan. The last
/// byte is not examined: alone it needs none.
fn may_need_repair(bytes: &[u8]) -> bool {
    let is_number = |byte: &u8| matches!(byte, b'-' | b'.' | b'0'..=b'9');
    // A number of the minimum length covers at least one of these chunks.
    let has_long_number = bytes.chunks_exact(LONG_NUMBER_BYTES / 2).any(|chunk| chunk.iter().all(is_number));
    let next = bytes.get(1..).unwrap_or_default();
    let mut brackets = 0;
    for (number, (chunk, next)) in bytes.chunks(CHUNK_BYTES).zip(next.chunks(CHUNK_BYTES)).enumerate() {
        let (in_chunk, may_have_suspect) = scan_chunk(chunk, next);
        brackets += in_chunk;
        let from = number * CHUNK_BYTES;
        if may_have_suspect && (from..from + CHUNK_BYTES).any(|at| is_suspect(bytes, at)) {
            return true;
        }
    }
    has_long_number || brackets > DEPTH_MAX
}

/// Returns the number of opening brackets of a chunk, and true if it has `\u` or an `e` after a digit. `next` is the same
/// text, one byte later. Written without branches, so that it is compiled to vector instructions.
fn scan_chunk(chunk: &[u8], next: &[u8]) -> (usize, bool) {
    let (mut brackets, mut suspects) = (0, 0);
    for (first, second) in chunk.iter().zip(next) {
        brackets += u8::from(*first | 0x20 == b'{');
        let is_escape = (*first == b'\\') & (*second == b'u');
        let is_exponent = first.is_ascii_digit() & (*second | 0x20 == b'e');
        suspects |= u8::from(is_escape | is_exponent);
    }
    (usize::from(brackets), suspects != 0)
}

/// Returns true if a `\u`, or an exponent that may make a number of less than the minimum length exceed a double, begins
/// here.
fn is_suspect(bytes: &[u8], at: usize) -> bool {
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    match bytes.get(at..at + 2) {
        Some(b"\\u") => true,
        Some([b'0'..=b'9', b'e' | b'E']) => {
            let first = if bytes.get(at + 2) == Some(&b'+') { at + 3 } else { at + 2 };
            (first..first + 2).all(is_digit) && may_begin_number(bytes.get(..=at).unwrap_or_default())
        }
        _ => false,
    }
}

/// Returns false if the digits at the end of this text are part of a word or an id, as in `"7a-91e22"`.
fn may_begin_number(before: &[u8]) -> bool {
    let is_part = |byte: &u8| matches!(byte, b'-' | b'.' | b'0'..=b'9');
    // An unusually long number is left to the scan.
    let preceding = before.iter().rev().take(32).find(|byte| !is_part(byte));
    preceding.is_none_or(|byte| matches!(byte, b'[' | b',' | b':') || byte.is_ascii_whitespace())
}

const fn is_high(unit: u16) -> bool {
    matches!(unit, 0xd800..=0xdbff)
}

const fn is_low(unit: u16) -> bool {
    matches!(unit, 0xdc00..=0xdfff)
}

/// Returns the UTF-16 unit of the escape at this offset.
fn escape_at(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + ESCAPE_BYTES)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit: u16, digit| {
        let value = char::from(*digit).to_digit(16)?;
        Some((unit << 4) | u16::try_from(value).ok()?)
    })
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// Scans JSON text once and builds the repaired text. Only strings, numbers and brackets are tracked; invalid
/// JSON passes through.
struct Scanner<'a> {
    source: &'a str,
    at: usize,
    out: String,
    /// Length of the source already copied to `out`; `None` before the first replacement.
    copied: Option<usize>,
    is_aligned: bool,
    depth: usize,
    /// Offset of the value that exceeds the maximum nesting depth; `None` outside such a value.
    deep_from: Option<usize>,
}

impl<'a> Scanner<'a> {
    fn new(source: &'a str) -> Self {
        Self { source, at: 0, out: String::new(), copied: None, is_aligned: true, depth: 0, deep_from: None }
    }

    fn run(&mut self) {
        while let Some(byte) = self.source.as_bytes().get(self.at) {
            match byte {
                b'"' => self.string(),
                b'[' | b'{' => {
                    self.depth += 1;
                    if self.depth > DEPTH_MAX && self.deep_from.is_none() {
                        self.deep_from = Some(self.at);
                    }
                    self.at += 1;
                }
                b']' | b'}' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.at += 1;
                    if self.depth == DEPTH_MAX
                        && let Some(from) = self.deep_from.take()
                    {
                        self.replace(from, self.at, TOO_DEEP);
                    }
                }
                b'-' | b'0'..=b'9' => self.number(),
                _ => self.at += 1,
            }
        }
    }

    /// Returns the repaired text if anything was replaced, and true if offsets are unchanged.
    fn finish(mut self) -> (Option<String>, bool) {
        let Some(copied) = self.copied else { return (None, true) };
        self.out.push_str(self.source.get(copied..).unwrap_or_default());
        (Some(self.out), self.is_aligned)
    }

    /// Skips a string and replaces lone halves in the string.
    fn string(&mut self) {
        self.at += 1;
        let bytes = self.source.as_bytes();
        while let Some(found) = bytes.get(self.at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
            self.at += found;
            if bytes.get(self.at) == Some(&b'"') {
                self.at += 1;
                return;
            }
            match escape_at(bytes, self.at) {
                Some(unit) if is_high(unit) => {
                    let next = self.at + ESCAPE_BYTES;
                    if escape_at(bytes, next).is_some_and(is_low) {
                        self.at = next + ESCAPE_BYTES;
                    } else {
                        self.replace(self.at, next, REPLACEMENT);
                        self.at = next;
                    }
                }
                Some(unit) => {
                    let next = self.at + ESCAPE_BYTES;
                    if is_low(unit) {
                        self.replace(self.at, next, REPLACEMENT);
                    }
                    self.at = next;
                }
                None => self.at += 2,
            }
        }
        self.at = bytes.len();
    }

    /// Skips a number; a number beyond a double becomes a string.
    fn number(&mut self) {
        let rest = self.source.get(self.at..).unwrap_or_default();
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
        let number = rest.split(|c| !is_part(c)).next().unwrap_or_default();
        let (from, to) = (self.at, self.at + number.len());
        self.at = to;
        let may_be_beyond = number.len() >= LONG_NUMBER_BYTES || number.contains(['e', 'E']);
        if may_be_beyond && is_json(number) && serde_json::from_str::<f64>(number).is_err() {
            self.replace(from, to, &format!("\"{number}\""));
        }
    }

    /// Replaces a range after all earlier ranges. Ranges inside a value replaced as a whole are ignored.
    fn replace(&mut self, from: usize, to: usize, with: &str) {
        if self.deep_from.is_some() {
            return;
        }
        let copied = self.copied.unwrap_or(0);
        self.out.push_str(self.source.get(copied..from).unwrap_or_default());
        self.out.push_str(with);
        self.is_aligned &= to - from == with.len();
        self.copied = Some(to);
    }
}

#[cfg(test)]
#[path = "intake_tests.rs"]
mod tests;
