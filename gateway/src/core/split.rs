//! Splits a long text into parts that a channel takes, without breaking Markdown code fences.
//!
//! A cut inside a fenced block closes the fence in the earlier part and opens it again, info string included,
//! in the next one; what is added counts against the limit. Cuts are looked for between paragraphs, then between
//! lines, and inside a line only when the line alone is too long. The same text gives the same parts.

/// How a channel counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// UTF-16 code units.
    #[cfg_attr(not(test), expect(dead_code, reason = "chat services count so; the console counts bytes"))]
    Utf16,
    /// Bytes of UTF-8.
    Bytes,
}

/// The most that one part may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    unit: Unit,
    max: usize,
}

/// Below this a fence could not be repaired and still leave room for text.
const MAX_FLOOR: usize = 32;

impl Limit {
    /// A limit of `max` units, at least 32.
    pub(crate) const fn new(unit: Unit, max: usize) -> Self {
        Self { unit, max: if max < MAX_FLOOR { MAX_FLOOR } else { max } }
    }

    /// How much `text` counts.
    pub(crate) fn measure(self, text: &str) -> usize {
        match self.unit {
            Unit::Utf16 => text.encode_utf16().count(),
            Unit::Bytes => text.len(),
        }
    }

    fn measure_char(self, c: char) -> usize {
        match self.unit {
            Unit::Utf16 => c.len_utf16(),
            Unit::Bytes => c.len_utf8(),
        }
    }
}

/// Splits `text`; parts of white space alone are left out, since channels refuse them.
pub(crate) fn split(text: &str, limit: Limit) -> Vec<String> {
    pieces(text, limit).iter().filter(|piece| !piece.body.trim().is_empty()).map(Piece::render).collect()
}

/// A stretch of the text, and what is added to make it stand alone.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece<'a> {
    /// The fence that was open before it.
    before: Option<Fence<'a>>,
    body: &'a str,
    /// The fence that is open after it.
    after: Option<Fence<'a>>,
}

impl Piece<'_> {
    fn render(&self) -> String {
        let mut text = self.before.map(Fence::opener).unwrap_or_default();
        text.push_str(self.body);
        if let Some(fence) = self.after {
            text.push_str(&fence.closer(self.body));
        }
        text
    }
}

/// An open code fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fence<'a> {
    /// The backticks or tildes.
    marker: &'a str,
    info: &'a str,
}

impl Fence<'_> {
    fn opener(self) -> String {
        format!("{}{}\n", self.marker, self.info)
    }

    fn closer(self, body: &str) -> String {
        let newline = if body.ends_with('\n') { "" } else { "\n" };
        format!("{newline}{}", self.marker)
    }
}

/// The fence that is open after `line`. Lines that take more than a quarter of the limit are never fences:
/// they could not be repeated.
fn fence_after<'a>(open: Option<Fence<'a>>, line: &'a str, limit: Limit) -> Option<Fence<'a>> {
    let line = line.trim_end_matches(['\n', '\r']);
    if line.len() > limit.max / 4 {
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
        None => Some(Fence { marker, info: info.trim_end() }),
        Some(fence) => {
            let closes = fence.marker.starts_with(mark)
                && marker.len() >= fence.marker.len()
                && info.trim().is_empty();
            if closes { None } else { open }
        }
    }
}

fn pieces(text: &str, limit: Limit) -> Vec<Piece<'_>> {
    let mut out = Vec::new();
    let mut rest = text;
    let mut fence = None;
    let mut line_start = true;
    while !rest.is_empty() {
        let budget = limit.max - fence.map(Fence::opener).map_or(0, |opener| limit.measure(&opener));
        let (cut, after) = best_cut(rest, fence, line_start, budget, limit);
        let (body, tail) = rest.split_at(cut);
        out.push(Piece { before: fence, body, after });
        rest = tail;
        fence = after;
        line_start = body.ends_with('\n');
    }
    out
}

/// Where to cut `rest`, and the fence that is open there.
fn best_cut<'a>(
    rest: &'a str,
    open: Option<Fence<'a>>,
    line_start: bool,
    budget: usize,
    limit: Limit,
) -> (usize, Option<Fence<'a>>) {
    let mut fence = open;
    let (mut end, mut size) = (0, 0);
    let (mut line_cut, mut paragraph_cut) = (None, None);
    for (index, line) in rest.split_inclusive('\n').enumerate() {
        size += limit.measure(line);
        if size > budget {
            break;
        }
        end += line.len();
        if index > 0 || line_start {
            fence = fence_after(fence, line, limit);
        }
        let closer = fence.map_or(0, |fence| limit.measure(&fence.closer(line)));
        if size + closer > budget {
            continue;
        }
        line_cut = Some((end, fence));
        if fence.is_none() && line.trim().is_empty() && size >= budget / 2 {
            paragraph_cut = line_cut;
        }
    }
    if let Some(all) = line_cut.filter(|(end, _)| *end == rest.len()) {
        return all;
    }
    paragraph_cut.or(line_cut).unwrap_or_else(|| (cut_in_line(rest, open, budget, limit), open))
}

/// Where to cut a line that is too long: after a space in the second half, or else anywhere between characters.
fn cut_in_line(rest: &str, open: Option<Fence<'_>>, budget: usize, limit: Limit) -> usize {
    let room = budget - open.map_or(0, |fence| limit.measure(&fence.closer("")));
    let (mut size, mut end, mut word) = (0, 0, None);
    for c in rest.chars() {
        size += limit.measure_char(c);
        if size > room {
            break;
        }
        end += c.len_utf8();
        if c.is_whitespace() && size > room / 2 {
            word = Some(end);
        }
    }
    word.unwrap_or(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(text: &str, max: usize) -> Vec<String> {
        split(text, Limit::new(Unit::Bytes, max))
    }

    #[test]
    fn splits_at_the_best_border() {
        let a = "a".repeat(20);
        let b = "b".repeat(20);
        for (what, text, want) in [
            ("nothing", String::new(), vec![]),
            ("white space", " \n\n ".to_owned(), vec![]),
            ("short", "hello".to_owned(), vec!["hello".to_owned()]),
            ("paragraph", format!("{a}\n\n{b}"), vec![format!("{a}\n\n"), b.clone()]),
            ("line", format!("{a}\n{b}"), vec![format!("{a}\n"), b.clone()]),
            ("word", format!("{a} {b}"), vec![format!("{a} "), b.clone()]),
            ("character", "é".repeat(20), vec!["é".repeat(16), "é".repeat(4)]),
        ] {
            assert_eq!(bytes(&text, 32), want, "{what}");
        }
    }

    #[test]
    fn reopens_fences_with_their_info_string() {
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
    fn a_shorter_or_other_marker_does_not_close() {
        let row = "y".repeat(18);
        let text = format!("~~~~\n```\n~~~\n{row}\n~~~~\nend");
        assert_eq!(
            bytes(&text, 32),
            vec!["~~~~\n```\n~~~\n~~~~".to_owned(), format!("~~~~\n{row}\n~~~~\nend")]
        );
    }

    #[test]
    fn counts_utf16_units() {
        let text = "🦀".repeat(20);
        assert_eq!(split(&text, Limit::new(Unit::Utf16, 32)), vec!["🦀".repeat(16), "🦀".repeat(4)]);
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
        ];
        prop::collection::vec(atom, 0..40).prop_map(|atoms| atoms.concat())
    }

    proptest! {
        #[test]
        fn parts_fit_and_hold_the_whole_text(
            text in prop_oneof![markdownish(), any::<String>()],
            max in 1usize..120,
            utf16 in any::<bool>(),
        ) {
            let limit = Limit::new(if utf16 { Unit::Utf16 } else { Unit::Bytes }, max);
            let pieces = pieces(&text, limit);
            let bodies: String = pieces.iter().map(|piece| piece.body).collect();
            prop_assert_eq!(&bodies, &text);
            for piece in &pieces {
                prop_assert!(!piece.body.is_empty());
            }
            for part in split(&text, limit) {
                prop_assert!(limit.measure(&part) <= limit.max, "{:?} is over {:?}", part, limit);
            }
        }

        #[test]
        fn every_part_closes_what_it_opens(text in markdownish(), max in 32usize..120) {
            let limit = Limit::new(Unit::Bytes, max);
            for pair in pieces(&text, limit).windows(2) {
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
