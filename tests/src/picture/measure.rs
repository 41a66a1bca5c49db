//! How wide text is and where lines break, without a font: by the widths of Helvetica, which Arial and Liberation Sans
//! share, and six tenths of the size for each column of code.

use super::markup::{Face, Run};

/// Widths of the characters from space to tilde, in thousandths of the size. Source: the metrics of Helvetica that Adobe
/// published.
const WIDTHS: [u16; 95] = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556,
    556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278,
    500, 667, 556, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469,
    556, 333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500,
    278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
];
/// What is not in the table: most letters, and what is as wide as it is high.
const OTHER: u16 = 600;
const WIDE: u16 = 1_050;
/// A column of code.
const COLUMN: f64 = 0.602;
/// How much wider bold text is.
const BOLD: f64 = 1.06;
/// Code within text is that much smaller.
pub const CODE_SIZE: f64 = 0.87;

/// From here on characters are as wide as they are high, but for a few scripts that nobody writes here.
const WIDE_FROM: u32 = 0x1100;

/// Whether a character takes two columns, as far as that can be said without tables.
fn is_wide(c: char) -> bool {
    let code = u32::from(c);
    // Punctuation, arrows, box drawings and other symbols are narrow.
    code >= WIDE_FROM && !(0x1e00..0x2700).contains(&code)
}

/// Columns of a character in code.
fn columns(c: char) -> usize {
    if is_wide(c) { 2 } else { 1 }
}

/// How wide a character of text is.
fn of_char(c: char, face: Face, size: f64) -> f64 {
    if face.code {
        return if is_wide(c) { 2.0 } else { 1.0 } * COLUMN * CODE_SIZE * size;
    }
    let at = usize::try_from(u32::from(c).wrapping_sub(32)).unwrap_or(usize::MAX);
    let width = WIDTHS.get(at).copied().unwrap_or(if is_wide(c) { WIDE } else { OTHER });
    let bold = if face.bold { BOLD } else { 1.0 };
    f64::from(width) / 1_000.0 * size * bold
}

/// How wide a text is.
#[must_use]
pub fn width(text: &str, face: Face, size: f64) -> f64 {
    text.chars().map(|c| of_char(c, face, size)).sum()
}

/// A line that fits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Line {
    /// What it says, from left to right.
    pub runs: Vec<Run>,
    /// How wide that is.
    pub width: f64,
}

impl Line {
    fn push(&mut self, c: char, face: Face, size: f64) {
        self.width += of_char(c, face, size);
        match self.runs.last_mut().filter(|run| run.face == face) {
            Some(run) => run.text.push(c),
            None => self.runs.push(Run { text: c.to_string(), face }),
        }
    }

    fn append(&mut self, more: Self) {
        self.width += more.width;
        for run in more.runs {
            match self.runs.last_mut().filter(|last| last.face == run.face) {
                Some(last) => last.text.push_str(&run.text),
                None => self.runs.push(run),
            }
        }
    }
}

/// Breaks runs into lines, behind white space where that is possible. At least one line.
#[must_use]
pub fn wrapped(runs: &[Run], size: f64, room: f64) -> Vec<Line> {
    let (mut lines, mut line, mut word) = (Vec::new(), Line::default(), Line::default());
    for (c, face) in runs.iter().flat_map(|run| run.text.chars().map(move |c| (c, run.face))) {
        let wider = word.width + of_char(c, face, size);
        if !c.is_whitespace() && line.width + wider > room && !line.runs.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        if !c.is_whitespace() && wider > room && !word.runs.is_empty() {
            lines.push(std::mem::take(&mut word));
        }
        word.push(c, face, size);
        if c.is_whitespace() {
            line.append(std::mem::take(&mut word));
        }
    }
    line.append(word);
    lines.push(line);
    lines
}

/// Breaks a line of code where its columns end. At least one line.
#[must_use]
pub fn wrapped_code(text: &str, columns_max: usize) -> Vec<String> {
    let (mut lines, mut line, mut used) = (Vec::new(), String::new(), 0);
    for c in text.chars() {
        if used + columns(c) > columns_max && !line.is_empty() {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        used += columns(c);
        line.push(c);
    }
    lines.push(line);
    lines
}

/// How many columns of code of this size fit.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive number")]
pub fn columns_in(room: f64, size: f64) -> usize {
    (room / (COLUMN * size)).max(1.0) as usize
}

#[cfg(test)]
mod tests {
    use super::super::markup::runs;
    use super::*;
    use proptest::prelude::*;

    fn text(lines: &[Line]) -> Vec<String> {
        lines.iter().map(|line| line.runs.iter().map(|run| run.text.as_str()).collect()).collect()
    }

    #[test]
    fn lines_break_behind_white_space() {
        let room = width("aaaa bbbb", Face::default(), 10.0);
        for (given, want) in [
            ("", vec![""]),
            ("aaaa bbbb", vec!["aaaa bbbb"]),
            ("aaaa bbbb cccc", vec!["aaaa bbbb ", "cccc"]),
            ("aaaa **bb**bb", vec!["aaaa ", "bbbb"]),
            ("aaaaaaaaaaaa", vec!["aaaaaaaa", "aaaa"]),
        ] {
            assert_eq!(text(&wrapped(&runs(given), 10.0, room)), want, "{given}");
        }
        assert_eq!(wrapped_code("abcdefg", 3), ["abc", "def", "g"]);
        assert_eq!(wrapped_code("a好好", 3), ["a好", "好"]);
        assert_eq!(wrapped_code("", 3), [""]);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_every_line_fits(text in "[ -~äß好\u{1f440}]{0,200}", room in 30.0..300.0_f64) {
            let given = [Run { text: text.clone(), face: Face::default() }];
            let lines = wrapped(&given, 12.0, room);
            let whole: String = lines.iter().flat_map(|line| &line.runs).map(|run| run.text.as_str()).collect();
            prop_assert_eq!(whole, text);
            for line in &lines {
                let seen: String = line.runs.iter().map(|run| run.text.as_str()).collect();
                prop_assert!(width(seen.trim_end(), Face::default(), 12.0) <= room + 0.001, "{:?}", seen);
            }
        }
    }
}
