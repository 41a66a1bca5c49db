//! Splits a long text into parts within a channel's limit, without breaking Markdown code fences.
//!
//! A cut inside a fenced block closes the fence in the earlier part and reopens the fence, info string
//! included, in the next one; added text counts against the limit. Cuts are placed between paragraphs if
//! possible, else between lines. A line is cut only if too long alone: after a word, or else between grapheme
//! clusters, and never after a backslash or inside an escape sequence. The same text always gives the same
//! parts.
#![deny(clippy::indexing_slicing)]

use serde::{Deserialize, Serialize};
use std::ops::{Add, Sub};
use unicode_segmentation::UnicodeSegmentation as _;

/// Unit of a channel's message limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// UTF-16 code units.
    Utf16,
    /// Bytes of UTF-8.
    Bytes,
}

/// Maximum size of one part: in the channel's unit, and in characters (Unicode scalar values).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageLimit {
    unit: Unit,
    max: usize,
    chars_max: usize,
}

/// Minimum size of a limit. Below this, repaired fences would leave no room for text.
const MAX_FLOOR: usize = 32;
/// Maximum length of a terminal's escape sequence that is kept whole, in bytes.
const ESCAPE_BYTES_MAX: usize = 32;

impl MessageLimit {
    /// Creates a limit of `max` units, at least 32.
    #[must_use]
    pub const fn new(unit: Unit, max: usize) -> Self {
        Self { unit, max: if max < MAX_FLOOR { MAX_FLOOR } else { max }, chars_max: usize::MAX }
    }

    /// Returns this limit with a maximum of `chars_max` characters, at least 32.
    pub const fn within_chars(self, chars_max: usize) -> Self {
        Self { chars_max: if chars_max < MAX_FLOOR { MAX_FLOOR } else { chars_max }, ..self }
    }

    /// Returns this limit with a maximum of `max` units, at least 32.
    pub const fn within(self, max: usize) -> Self {
        let max = if max < MAX_FLOOR { MAX_FLOOR } else { max };
        Self { max: if max < self.max { max } else { self.max }, ..self }
    }

    /// Returns the size of `text`.
    fn measure(self, text: &str) -> Size {
        let units = match self.unit {
            Unit::Utf16 => text.encode_utf16().count(),
            Unit::Bytes => text.len(),
        };
        Size { units, chars: text.chars().count() }
    }

    /// Returns the limit minus the size of `text`; `None` if the rest is below the minimum.
    pub fn minus(self, text: &str) -> Option<Self> {
        let left = self.to_size() - self.measure(text);
        let is_enough = left.units >= MAX_FLOOR && left.chars >= MAX_FLOOR;
        is_enough.then_some(Self { unit: self.unit, max: left.units, chars_max: left.chars })
    }

    /// True if `text` fits.
    pub fn fits(self, text: &str) -> bool {
        self.measure(text).is_within(self.to_size())
    }

    const fn to_size(self) -> Size {
        Size { units: self.max, chars: self.chars_max }
    }

    /// Maximum length of a line that can be a fence, in bytes. Longer ones could not be repeated.
    const fn fence_bytes_max(self) -> usize {
        (if self.max < self.chars_max { self.max } else { self.chars_max }) / 4
    }
}

/// Size of a text, or remaining space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Size {
    units: usize,
    chars: usize,
}

impl Size {
    const fn is_within(self, room: Self) -> bool {
        self.units <= room.units && self.chars <= room.chars
    }

    /// True if at least half of `room`, in units or in characters.
    const fn is_half_of(self, room: Self) -> bool {
        self.units >= room.units / 2 || self.chars >= room.chars / 2
    }
}

impl Add for Size {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { units: self.units + other.units, chars: self.chars + other.chars }
    }
}

impl Sub for Size {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self { units: self.units.saturating_sub(other.units), chars: self.chars.saturating_sub(other.chars) }
    }
}

/// Splits `text`. Parts of white space only are omitted, since channels refuse them.
pub fn split(text: &str, limit: MessageLimit) -> Vec<String> {
    visible_parts(text, limit).collect()
}

/// Returns the first part of `text`, if any. Reads only as much as necessary.
pub fn first_part(text: &str, limit: MessageLimit) -> Option<String> {
    visible_parts(text, limit).next()
}

fn visible_parts(text: &str, limit: MessageLimit) -> impl Iterator<Item = String> {
    sections(text, limit).filter(|piece| !piece.body.trim().is_empty()).map(|piece| piece.render())
}

/// Returns the end of `text` as one part: as much as fits, from the start of a line if possible.
pub fn last_part(text: &str, limit: MessageLimit) -> String {
    let mut fence = None;
    let mut starts = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        starts.push((at, fence));
        fence = fence_after(fence, line, limit);
        at += line.len();
    }
    let mut size = limit.measure(&fence.map(|fence: CodeFence<'_>| fence.closer(text)).unwrap_or_default());
    let mut best = None;
    for &(start, before) in starts.iter().rev() {
        size = size + limit.measure(text.get(start..at).unwrap_or_default());
        at = start;
        if !size.is_within(limit.to_size()) {
            break;
        }
        let opener = limit.measure(&before.map(CodeFence::opener).unwrap_or_default());
        if (size + opener).is_within(limit.to_size()) {
            best = Some(TextSection { before, body: text.get(start..).unwrap_or_default(), after: fence });
        }
    }
    let last = best.map(|piece| piece.render());
    // For a single line that is too long: the last piece.
    last.or_else(|| sections(text, limit).last().map(|piece| piece.render())).unwrap_or_default()
}

/// Returns `text` from the first line starting at `from` or later, and reopens a fence open at that line.
pub fn resume_from_line(text: &str, from: usize, limit: MessageLimit) -> String {
    let (mut fence, mut at) = (None, 0);
    for line in text.split_inclusive('\n') {
        if at >= from {
            break;
        }
        fence = fence_after(fence, line, limit);
        at += line.len();
    }
    let opener = fence.map(CodeFence::opener).unwrap_or_default();
    opener + text.get(at..).unwrap_or_default()
}

/// Returns the longest start of `text` with at most `chars_max` characters, cut between grapheme clusters.
pub fn head(text: &str, chars_max: usize) -> &str {
    head_of(text, chars_max, |atom| atom.chars().count())
}

/// Returns the longest start of `text` with at most `bytes_max` bytes, cut between grapheme clusters.
pub fn head_bytes(text: &str, bytes_max: usize) -> &str {
    head_of(text, bytes_max, str::len)
}

fn head_of(text: &str, max: usize, measure: impl Fn(&str) -> usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let mut size = 0;
    head_while(text, |atom| {
        size += measure(atom);
        size <= max
    })
}

/// Returns the longest start of `text` within `limit`, cut between grapheme clusters. Does not close fences.
pub fn head_within(text: &str, limit: MessageLimit) -> &str {
    let mut size = Size::default();
    head_while(text, |atom| {
        size = size + limit.measure(atom);
        size.is_within(limit.to_size())
    })
}

fn head_while(text: &str, mut fits: impl FnMut(&str) -> bool) -> &str {
    let end = atoms(text).take_while(|atom| fits(atom)).map(str::len).sum();
    text.get(..end).unwrap_or_default()
}

/// Section of the text, with the fences to close and reopen.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TextSection<'a> {
    /// Fence open before the section.
    before: Option<CodeFence<'a>>,
    body: &'a str,
    /// Fence open after the section.
    after: Option<CodeFence<'a>>,
}

impl TextSection<'_> {
    fn render(&self) -> String {
        let mut text = self.before.map(CodeFence::opener).unwrap_or_default();
        text.push_str(self.body);
        if let Some(fence) = self.after {
            text.push_str(&fence.closer(self.body));
        }
        text
    }
}

/// Open code fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CodeFence<'a> {
    /// Backticks or tildes.
    marker: &'a str,
    info: &'a str,
}

impl CodeFence<'_> {
    fn opener(self) -> String {
        format!("{}{}\n", self.marker, self.info)
    }

    fn closer(self, body: &str) -> String {
        let newline = if body.ends_with('\n') { "" } else { "\n" };
        format!("{newline}{}", self.marker)
    }
}

/// Returns the fence that is open after `line`. Lines longer than a quarter of the limit are never fences,
/// since they could not be repeated.
fn fence_after<'a>(open: Option<CodeFence<'a>>, line: &'a str, limit: MessageLimit) -> Option<CodeFence<'a>> {
    let line = line.trim_end_matches(['\n', '\r']);
    if line.len() > limit.fence_bytes_max() {
        return open;
    }
    let bare = line.trim_start_matches(' ');
    let Some(mark) = bare.chars().next().filter(|c| matches!(c, '`' | '~')) else { return open };
    let after = bare.trim_start_matches(mark);
    let (marker, info) = bare.split_at(bare.len() - after.len());
    if line.len() - bare.len() > 3 || marker.len() < 3 {
        return open;
    }
    match open {
        None if mark == '`' && info.contains('`') => None,
        None => Some(CodeFence { marker, info: info.trim_end() }),
        Some(fence) => {
            let closes = fence.marker.starts_with(mark)
                && marker.len() >= fence.marker.len()
                && info.trim().is_empty();
            if closes { None } else { open }
        }
    }
}

fn sections(text: &str, limit: MessageLimit) -> impl Iterator<Item = TextSection<'_>> {
    let mut rest = text;
    let mut fence = None;
    let mut line_start = true;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let before = fence;
        let opener = before.map(CodeFence::opener).unwrap_or_default();
        let budget = limit.to_size() - limit.measure(&opener);
        let (cut, after) = best_cut(rest, before, line_start, budget, limit);
        let (body, tail) = rest.split_at(cut);
        rest = tail;
        fence = after;
        line_start = body.ends_with('\n');
        Some(TextSection { before, body, after })
    })
}

/// Returns the position of the best cut in `rest`, and the fence open there.
fn best_cut<'a>(
    rest: &'a str,
    open: Option<CodeFence<'a>>,
    line_start: bool,
    budget: Size,
    limit: MessageLimit,
) -> (usize, Option<CodeFence<'a>>) {
    let mut fence = open;
    let (mut end, mut size) = (0, Size::default());
    let (mut line_cut, mut paragraph_cut) = (None, None);
    for (index, line) in rest.split_inclusive('\n').enumerate() {
        size = size + limit.measure(line);
        if !size.is_within(budget) {
            break;
        }
        end += line.len();
        if index > 0 || line_start {
            fence = fence_after(fence, line, limit);
        }
        let closer = fence.map(|fence| limit.measure(&fence.closer(line))).unwrap_or_default();
        if !(size + closer).is_within(budget) {
            continue;
        }
        line_cut = Some((end, fence));
        if fence.is_none() && line.trim().is_empty() && size.is_half_of(budget) {
            paragraph_cut = line_cut;
        }
    }
    if let Some(all) = line_cut.filter(|(end, _)| *end == rest.len()) {
        return all;
    }
    paragraph_cut.or(line_cut).unwrap_or_else(|| (cut_in_line(rest, open, budget, limit), open))
}

/// Returns the position of a cut in a line that is too long: after a space in the second half, or else
/// between two atoms. Inside of an atom only if the atom alone is too long.
fn cut_in_line(rest: &str, open: Option<CodeFence<'_>>, budget: Size, limit: MessageLimit) -> usize {
    let closer = open.map(|fence| limit.measure(&fence.closer(""))).unwrap_or_default();
    let room = budget - closer;
    let (mut size, mut end, mut word) = (Size::default(), 0, None);
    for atom in atoms(rest) {
        size = size + limit.measure(atom);
        if !size.is_within(room) {
            break;
        }
        end += atom.len();
        if atom.ends_with(char::is_whitespace) && size.is_half_of(room) {
            word = Some(end);
        }
    }
    word.or_else(|| (end > 0).then_some(end)).unwrap_or_else(|| cut_in_atom(rest, room, limit))
}

/// Returns the position of a cut in a grapheme cluster that is too long for a part.
fn cut_in_atom(rest: &str, room: Size, limit: MessageLimit) -> usize {
    let (mut size, mut end) = (Size::default(), 0);
    for c in rest.chars() {
        size = size + limit.measure(c.encode_utf8(&mut [0; 4]));
        if !size.is_within(room) {
            break;
        }
        end += c.len_utf8();
    }
    end
}

/// Returns the units that are not cut: grapheme clusters, a backslash with the escaped character, escape
/// sequences of terminals.
fn atoms(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let len = atom_len(rest);
        let (atom, after) = rest.split_at_checked(len).filter(|_| len > 0)?;
        rest = after;
        Some(atom)
    })
}

fn atom_len(text: &str) -> usize {
    let mut graphemes = text.graphemes(true).map(str::len);
    let Some(first) = graphemes.next() else { return 0 };
    if text.starts_with("\u{1b}[") {
        let bytes = text.bytes().take(ESCAPE_BYTES_MAX).skip(2);
        let params = bytes.take_while(|byte| (0x20..0x40).contains(byte)).count();
        let is_final = text.as_bytes().get(2 + params).is_some_and(|byte| (0x40..0x7f).contains(byte));
        return if is_final && 2 + params < ESCAPE_BYTES_MAX { 3 + params } else { first };
    }
    if first == 1 && text.starts_with('\\') {
        return first + graphemes.next().unwrap_or(0);
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(text: &str, max: usize) -> Vec<String> {
        split(text, MessageLimit::new(Unit::Bytes, max))
    }

    #[test]
    fn text_is_split_at_best_border() {
        let a = "a".repeat(20);
        let b = "b".repeat(20);
        for (case, text, want) in [
            ("empty", String::new(), vec![]),
            ("white space", " \n\n ".to_owned(), vec![]),
            ("short", "hello".to_owned(), vec!["hello".to_owned()]),
            ("paragraph", format!("{a}\n\n{b}"), vec![format!("{a}\n\n"), b.clone()]),
            ("line", format!("{a}\n{b}"), vec![format!("{a}\n"), b.clone()]),
            ("word", format!("{a} {b}"), vec![format!("{a} "), b.clone()]),
            ("character", "é".repeat(20), vec!["é".repeat(16), "é".repeat(4)]),
        ] {
            assert_eq!(bytes(&text, 32), want, "{case}");
        }
    }

    #[test]
    fn split_reopens_fences_with_info_string() {
        let row = "x".repeat(12);
        let text = format!("```rust\n{row}\n{row}\n{row}\n```\nend");
        let want = vec![
            format!("```rust\n{row}\n```"),
            format!("```rust\n{row}\n```"),
            format!("```rust\n{row}\n```\nend"),
        ];
        assert_eq!(bytes(&text, 32), want);
    }

    #[test]
    fn only_matching_marker_closes_fence() {
        let row = "y".repeat(18);
        let text = format!("~~~~\n```\n~~~\n{row}\n~~~~\nend");
        let want = vec!["~~~~\n```\n~~~\n~~~~".to_owned(), format!("~~~~\n{row}\n~~~~\nend")];
        assert_eq!(bytes(&text, 32), want);
    }

    #[test]
    fn limit_counts_utf16_units() {
        let text = "🦀".repeat(20);
        assert_eq!(split(&text, MessageLimit::new(Unit::Utf16, 32)), vec!["🦀".repeat(16), "🦀".repeat(4)]);
    }

    #[test]
    fn byte_and_char_limits_both_apply() {
        let limit = MessageLimit::new(Unit::Bytes, 1_000).within_chars(40);
        assert_eq!(split(&"é".repeat(50), limit), vec!["é".repeat(40), "é".repeat(10)]);
        let limit = MessageLimit::new(Unit::Bytes, 40).within_chars(1_000);
        assert_eq!(split(&"é".repeat(30), limit), vec!["é".repeat(20), "é".repeat(10)]);
    }

    #[test]
    fn graphemes_and_escapes_are_not_split() {
        let family = "👩‍👩‍👧";
        let flag = "🇩🇪";
        for (case, before, atom) in [
            ("a family", 20, family),
            ("a flag", 28, flag),
            ("an accent", 31, "e\u{301}"),
            ("a line end", 31, "\r\n"),
            ("an escaped mark", 31, "\\*"),
            ("an escaped accent", 31, "\\e\u{301}"),
            ("a colour", 30, "\u{1b}[1;31m"),
        ] {
            let text = format!("{}{atom}{}", "x".repeat(before), "y".repeat(10));
            let want = ["x".repeat(before), format!("{atom}{}", "y".repeat(10))];
            assert_eq!(bytes(&text, 32), want, "{case}");
        }
        // An escaped backslash escapes nothing.
        assert_eq!(bytes(&format!("{}\\\\*", "x".repeat(30)), 32)[0], format!("{}\\\\", "x".repeat(30)));
    }

    #[test]
    fn last_part_starts_at_a_line() {
        let limit = MessageLimit::new(Unit::Bytes, 32);
        let row = "x".repeat(12);
        for (case, text, want) in [
            ("empty", String::new(), String::new()),
            ("whole text", "a\nb".to_owned(), "a\nb".to_owned()),
            ("lines", format!("{row}\n{row}\n{row}"), format!("{row}\n{row}")),
            ("code", format!("```rust\n{row}\n{row}"), format!("```rust\n{row}\n```")),
            ("one line", format!("{}end", "é".repeat(16)), "end".to_owned()),
        ] {
            assert_eq!(last_part(&text, limit), want, "{case}");
        }
        assert_eq!(head("e\u{301}e\u{301}", 3), "e\u{301}");
        let code = format!("intro\n```rust\n{row}\n{row}");
        for (from, want) in [
            (0, code.clone()),
            (1, code[6..].to_owned()),
            (15, format!("```rust\n{row}")),
            (99, "```rust\n".to_owned()),
        ] {
            assert_eq!(resume_from_line(&code, from, limit), want, "{from}");
        }
    }

    fn markdownish() -> impl Strategy<Value = String> {
        let atom = prop_oneof![
            4 => "[a-zé🦀 ]{0,12}",
            2 => Just("\n".to_owned()),
            1 => Just("\n\n".to_owned()),
            1 => Just("\n```rust\n".to_owned()),
            1 => Just("\n```\n".to_owned()),
            1 => Just("\n   ~~~~ x\r\n".to_owned()),
            1 => Just("\n~~~~~\n".to_owned()),
            1 => "[`~]{1,40}",
            1 => "(\\\\[*_]|\u{1b}\\[3[0-7]m|e\u{301}|👩‍👩‍👧|🇩🇪|\r\n){1,20}",
        ];
        prop::collection::vec(atom, 0..40).prop_map(|atoms| atoms.concat())
    }

    proptest! {
        #[test]
        fn parts_fit_limit_and_hold_whole_text(
            text in prop_oneof![markdownish(), any::<String>()],
            max in 1usize..120,
            chars_max in prop_oneof![Just(usize::MAX), 1usize..120],
            utf16 in any::<bool>(),
        ) {
            let limit = MessageLimit::new(if utf16 { Unit::Utf16 } else { Unit::Bytes }, max).within_chars(chars_max);
            let pieces: Vec<TextSection<'_>> = sections(&text, limit).collect();
            let bodies: String = pieces.iter().map(|piece| piece.body).collect();
            prop_assert_eq!(&bodies, &text);
            for piece in &pieces {
                prop_assert!(!piece.body.is_empty());
            }
            for part in split(&text, limit) {
                prop_assert!(limit.fits(&part), "{:?} exceeds {:?}", part, limit);
            }
            prop_assert_eq!(first_part(&text, limit), split(&text, limit).into_iter().next());
            let start = head_bytes(&text, max);
            prop_assert!(text.starts_with(start) && start.len() <= max);
            let tail = last_part(&text, limit);
            prop_assert!(limit.fits(&tail), "{:?} exceeds {:?}", tail, limit);
            prop_assert_eq!(tail.is_empty(), text.is_empty());
            let head = head(&text, chars_max);
            prop_assert!(text.starts_with(head) && head.chars().count() <= chars_max);
        }

        #[test]
        fn atoms_that_fit_are_not_split(text in prop_oneof![markdownish(), any::<String>()], max in 80usize..200) {
            let limit = MessageLimit::new(Unit::Bytes, max);
            let borders: Vec<usize> = atoms(&text)
                .scan(0, |at, atom| {
                    *at += atom.len();
                    Some(*at)
                })
                .collect();
            prop_assert!(atoms(&text).all(|atom| !atom.is_empty()));
            let mut at = 0;
            for piece in sections(&text, limit) {
                at += piece.body.len();
                prop_assert!(borders.contains(&at) || atoms(&text).any(|atom| atom.len() > max / 4), "{at}: {text:?}");
            }
        }

        #[test]
        fn every_part_closes_its_fences(text in markdownish(), max in 32usize..120) {
            let limit = MessageLimit::new(Unit::Bytes, max);
            for pair in sections(&text, limit).collect::<Vec<_>>().windows(2) {
                prop_assert_eq!(pair[0].after, pair[1].before);
            }
            // Without marks inside of lines every part, read alone, has all of its fences closed.
            if text.split('\n').all(|line| line.len() <= limit.max / 4) {
                for part in split(&text, limit) {
                    let open = part.split_inclusive('\n').fold(None, |open, line| fence_after(open, line, limit));
                    prop_assert_eq!(open, None, "{:?}", part);
                }
            }
        }
    }
}
